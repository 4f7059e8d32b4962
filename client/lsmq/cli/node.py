"""``lsmq node``: the nodes of a cluster."""

from __future__ import annotations

import asyncio
from functools import partial

import click

from lsmq import Client
from lsmq._health import SILENCE_S, ask_node, members
from lsmq.admin import ClusterAdmin, ClusterInfo
from lsmq.cli._progress import PAUSED, wait_options, watch
from lsmq.cli.options import asks_a_node, asks_first, json_option
from lsmq.cli.render import counted, print_json, print_table, yes_or_no
from lsmq.errors import LsmqError

_node = click.argument("node_id", metavar="NODE")


@click.group()
def node() -> None:
    """List, drain and remove the nodes of a cluster."""


@node.command("list")
@json_option
@asks_a_node
async def list_nodes(client: Client, as_json: bool) -> None:
    """List the nodes, with what they hold, where they are, and the release that each runs."""
    cluster = await ClusterAdmin(client).overview()
    urls = members(client, cluster)
    versions = dict(zip(urls, await asyncio.gather(*(_version(client, url) for url in urls.values())), strict=True))
    rows = [
        [
            each.id,
            each.url,
            each.alive,
            each.condition,
            each.voter,
            each.shards_led,
            each.replicas,
            versions.get(each.id),
            each.host,
            each.rack,
        ]
        for each in cluster.nodes
    ]
    names = ["node", "url", "alive", "state", "voter", "leads", "replicas", "version", "host", "rack"]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = [["unknown" if value is None else yes_or_no(value) for value in row[:-3]] + row[-3:] for row in rows]
    print_table(names, [["-" if value is None else value for value in row] for row in shown])


async def _version(client: Client, url: str) -> str | None:
    """None where the node does not say it: it is away, or the caller may not ask."""
    try:
        return str((await ask_node(client, url, "/v1/status", SILENCE_S, {}))["version"])
    except (LsmqError, KeyError, TypeError):
        return None


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
        left = partial(_replicas_on, node_id)
        await watch(admin, f"draining {node_id}", left, wait_ms, partial(_drained_no_further, node_id))
    click.echo(f"node {node_id} is {'drained' if wait else 'being drained'}", err=True)


def _replicas_on(node_id: str, info: ClusterInfo) -> int:
    return len(info.replicas_on(node_id))


def _drained_no_further(node_id: str, info: ClusterInfo) -> str | None:
    """Why the replicas that the node has stay there; None while there are any that go."""
    held = info.replicas_on(node_id)
    if info.moves_paused:
        return PAUSED
    if not held or any(shard.target for shard in held):
        return None
    return (
        f"{counted(len(held), 'replica')} cannot go: there is no other node that may take them, one that is not "
        "draining, has no replica of the shard, and is on another host than those that have. Add a node (it goes on by "
        f"itself then), or call it off with `lsmq node undrain {node_id}`"
    )


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
