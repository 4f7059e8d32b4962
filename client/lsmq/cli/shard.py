"""``lsmq shard``: the shards of a cluster, where they are and who leads them."""

from __future__ import annotations

import click

from lsmq import Client
from lsmq.admin import ClusterAdmin, ClusterInfo
from lsmq.cli._options import json_option, url_option, with_client
from lsmq.cli._progress import wait_options, watch
from lsmq.cli._render import print_json, print_table


@click.group()
def shard() -> None:
    """List the shards of a cluster, move their replicas, hand their leadership over."""


@shard.command("list")
@json_option
@url_option
def list_shards(as_json: bool, url: str, deadline_ms: int) -> None:
    """List the shards: leader, epoch, replicas, in-sync set."""

    async def work(client: Client) -> ClusterInfo:
        return await ClusterAdmin(client).overview()

    info = with_client(url, deadline_ms, work)
    names = ["shard", "leader", "epoch", "in_sync", "replicas", "adding", "target"]
    rows = [
        [found.id, found.leader, found.epoch, found.in_sync, found.replicas, found.adding, found.target]
        for found in info.shards
    ]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table([name.replace("_", " ") for name in names], [[_text(value) for value in row] for row in rows])


def _text(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(value) or "-"
    return "-" if value is None else value


@shard.command()
@click.argument("number", metavar="SHARD", type=click.IntRange(min=0))
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@wait_options
@url_option
def move(number: int, nodes: tuple[str, ...], wait: bool, wait_ms: int, url: str, deadline_ms: int) -> None:
    """Have SHARD held by these NODEs and no others; the first leads when it can.

    New replicas are filled and in sync before old ones go. You may interrupt this command: the cluster goes on.
    """

    async def work(client: Client) -> None:
        admin = ClusterAdmin(client)
        await admin.move(number, nodes)
        if wait:
            await watch(admin, f"moving shard {number}", lambda info: _steps_left(info, number, nodes), wait_ms)

    with_client(url, deadline_ms, work)
    click.echo(f"shard {number} is {'on' if wait else 'being moved to'} {' '.join(nodes)}", err=True)


def _steps_left(info: ClusterInfo, number: int, nodes: tuple[str, ...]) -> int:
    found = next(found for found in info.shards if found.id == number)
    missing = [node for node in nodes if node not in found.in_sync]
    extra = [node for node in found.replicas if node not in nodes]
    return len(missing) + len(extra)


@shard.command()
@click.argument("number", metavar="SHARD", type=click.IntRange(min=0))
@url_option
def cancel(number: int, url: str, deadline_ms: int) -> None:
    """Give up moving the replicas of SHARD; they stay where they are now."""

    async def work(client: Client) -> None:
        await ClusterAdmin(client).cancel_move(number)

    with_client(url, deadline_ms, work)
    click.echo(f"shard {number} stays where it is", err=True)


@shard.command()
@click.argument("number", metavar="SHARD", type=click.IntRange(min=0))
@click.argument("node", metavar="NODE")
@url_option
def transfer(number: int, node: str, url: str, deadline_ms: int) -> None:
    """Hand the leadership of SHARD to NODE, a replica in sync."""

    async def work(client: Client) -> None:
        await ClusterAdmin(client).transfer(number, node)

    with_client(url, deadline_ms, work)
    click.echo(f"shard {number} is led by {node}", err=True)
