"""``lsmq node``: the nodes of a cluster."""

from __future__ import annotations

import click

from lsmq import Client
from lsmq.admin import ClusterAdmin
from lsmq.cli._progress import wait_options, watch
from lsmq.cli.options import asks_a_node, asks_first, json_option
from lsmq.cli.render import print_json, print_table, yes_or_no

_node = click.argument("node_id", metavar="NODE")


@click.group()
def node() -> None:
    """List, drain and remove the nodes of a cluster."""


@node.command("list")
@json_option
@asks_a_node
async def list_nodes(client: Client, as_json: bool) -> None:
    """List the nodes, with what they hold and where they are."""
    rows = [
        [
            each.id,
            each.url,
            each.alive,
            each.condition,
            each.voter,
            each.shards_led,
            each.replicas,
            each.host,
            each.rack,
        ]
        for each in (await ClusterAdmin(client).overview()).nodes
    ]
    names = ["node", "url", "alive", "state", "voter", "leads", "replicas", "host", "rack"]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = [["unknown" if value is None else yes_or_no(value) for value in row[:-2]] + row[-2:] for row in rows]
    print_table(names, [["-" if value is None else value for value in row] for row in shown])


@node.command()
@_node
@wait_options
@asks_a_node
async def drain(client: Client, node_id: str, wait: bool, wait_ms: int) -> None:
    """Move all replicas away from NODE.

    Shard by shard: a new replica elsewhere is filled and in sync before the old one goes, so nothing is at risk in
    between, and you may interrupt this command: the cluster goes on. `lsmq node undrain` calls it off.
    """
    admin = ClusterAdmin(client)
    await admin.drain(node_id)
    if wait:
        await watch(admin, f"draining {node_id}", lambda info: len(info.replicas_on(node_id)), wait_ms)
    click.echo(f"node {node_id} is {'drained' if wait else 'being drained'}", err=True)


@node.command()
@_node
@asks_a_node
async def undrain(client: Client, node_id: str) -> None:
    """Let NODE have replicas again."""
    await ClusterAdmin(client).undrain(node_id)
    click.echo(f"node {node_id} may have replicas again", err=True)


@node.command()
@_node
@asks_first("Remove node {node_id} from the cluster for good?")
@asks_a_node
async def remove(client: Client, node_id: str) -> None:
    """Take NODE out of the cluster for good. Drain it first."""
    await ClusterAdmin(client).remove(node_id)
    click.echo(f"node {node_id} is removed; stop its process", err=True)
