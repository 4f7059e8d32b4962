"""``lsmq node``: the nodes of a cluster."""

from __future__ import annotations

import click

from lsmq import Client
from lsmq.admin import ClusterAdmin, ClusterInfo
from lsmq.cli._options import json_option, url_option, with_client
from lsmq.cli._progress import wait_options, watch
from lsmq.cli._render import print_json, print_table


@click.group()
def node() -> None:
    """List, drain and remove the nodes of a cluster."""


@node.command("list")
@json_option
@url_option
def list_nodes(as_json: bool, url: str, deadline_ms: int) -> None:
    """List the nodes, with what they hold."""

    async def work(client: Client) -> ClusterInfo:
        return await ClusterAdmin(client).overview()

    info = with_client(url, deadline_ms, work)
    rows = [
        [found.id, found.url, found.alive, found.state, found.voter, found.shards_led, found.replicas]
        for found in info.nodes
    ]
    names = ["node", "url", "alive", "state", "voter", "leads", "replicas"]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, [[_text(value) for value in row] for row in rows])


def _text(value: object) -> object:
    if value is None:
        return "unknown"
    return ("yes" if value else "no") if isinstance(value, bool) else value


@node.command()
@click.argument("node_id", metavar="NODE")
@wait_options
@url_option
def drain(node_id: str, wait: bool, wait_ms: int, url: str, deadline_ms: int) -> None:
    """Move all replicas away from NODE.

    Shard by shard: a new replica elsewhere is filled and in sync before the old one goes, so nothing is at risk in
    between, and you may interrupt this command: the cluster goes on. `lsmq node undrain` calls it off.
    """

    async def work(client: Client) -> None:
        admin = ClusterAdmin(client)
        await admin.drain(node_id)
        if wait:
            await watch(admin, f"draining {node_id}", lambda info: len(info.replicas_on(node_id)), wait_ms)

    with_client(url, deadline_ms, work)
    click.echo(f"node {node_id} is {'drained' if wait else 'being drained'}", err=True)


@node.command()
@click.argument("node_id", metavar="NODE")
@url_option
def undrain(node_id: str, url: str, deadline_ms: int) -> None:
    """Let NODE have replicas again."""

    async def work(client: Client) -> None:
        await ClusterAdmin(client).undrain(node_id)

    with_client(url, deadline_ms, work)
    click.echo(f"node {node_id} may have replicas again", err=True)


@node.command()
@click.argument("node_id", metavar="NODE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
def remove(node_id: str, yes: bool, url: str, deadline_ms: int) -> None:
    """Take NODE out of the cluster for good. Drain it first."""
    if not yes:
        click.confirm(f"Remove node {node_id} from the cluster for good?", abort=True, err=True)

    async def work(client: Client) -> None:
        await ClusterAdmin(client).remove(node_id)

    with_client(url, deadline_ms, work)
    click.echo(f"node {node_id} is removed; stop its process", err=True)
