"""``lsmq shard``: the shards of a cluster, where they are and who leads them."""

from __future__ import annotations

import click

from lsmq import Client
from lsmq.admin import ClusterAdmin, ClusterInfo
from lsmq.cli._progress import wait_options, watch
from lsmq.cli.options import asks_a_node, json_option
from lsmq.cli.render import print_json, print_table

_shard = click.argument("number", metavar="SHARD", type=click.IntRange(min=0))


@click.group()
def shard() -> None:
    """List the shards of a cluster, move their replicas, hand their leadership over."""


@shard.command("list")
@json_option
@asks_a_node
async def list_shards(client: Client, as_json: bool) -> None:
    """List the shards: leader, epoch, replicas, in-sync set, and why nobody leads one that has no leader."""
    shards = (await ClusterAdmin(client).overview()).shards
    names = ["shard", "leader", "epoch", "in_sync", "replicas", "adding", "target", "problem"]
    rows = [
        [found.id, found.leader, found.epoch, found.in_sync, found.replicas, found.adding, found.target, found.problem]
        for found in shards
    ]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    # A problem is a sentence or two: below the table.
    print_table([name.replace("_", " ") for name in names[:-1]], [[_text(value) for value in row[:-1]] for row in rows])
    for found in shards:
        if found.problem is not None:
            click.echo(f"shard {found.id} has no leader: {found.problem}")


def _text(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(value) or "-"
    return "-" if value is None else value


@shard.command()
@_shard
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@wait_options
@asks_a_node
async def move(client: Client, number: int, nodes: tuple[str, ...], wait: bool, wait_ms: int) -> None:
    """Have SHARD held by these NODEs and no others; the first leads when it can.

    New replicas are filled and in sync before old ones go. You may interrupt this command: the cluster goes on.
    """
    admin = ClusterAdmin(client)
    await admin.move(number, nodes)
    if wait:
        await watch(admin, f"moving shard {number}", lambda info: _steps_left(info, number, nodes), wait_ms)
    click.echo(f"shard {number} is {'on' if wait else 'being moved to'} {' '.join(nodes)}", err=True)


def _steps_left(info: ClusterInfo, number: int, nodes: tuple[str, ...]) -> int:
    found = next(found for found in info.shards if found.id == number)
    missing = [node for node in nodes if node not in found.in_sync]
    extra = [node for node in found.replicas if node not in nodes]
    return len(missing) + len(extra)


@shard.command()
@_shard
@asks_a_node
async def cancel(client: Client, number: int) -> None:
    """Give up moving the replicas of SHARD; they stay where they are now."""
    await ClusterAdmin(client).cancel_move(number)
    click.echo(f"shard {number} stays where it is", err=True)


@shard.command()
@_shard
@click.option("--from", "node", metavar="NODE", required=True, help="The replica to go on with.")
@click.option("--accept-loss", is_flag=True, help="Say that acknowledged messages may be lost.")
@asks_a_node
async def revive(client: Client, number: int, node: str, accept_loss: bool) -> None:
    """Go on with what the replica of SHARD at a node has, whatever others had beyond. UNCLEAN.

    For a shard that nobody can lead, when the nodes that have all acknowledged messages never come back: `lsmq shard
    list` names them. What was acknowledged and is not on the chosen replica is lost. Replicas that come back with more
    are set aside at their nodes, as shard-N.damaged-TIME, and filled from the chosen one. Refused while SHARD is led.
    """
    if not accept_loss:
        raise click.UsageError(
            f"acknowledged messages of shard {number} may be lost. If that is accepted, say --accept-loss"
        )
    await ClusterAdmin(client).revive(number, node, accept_loss=True)
    click.echo(f"shard {number} goes on with what {node} has; what others had beyond is given up", err=True)


@shard.command()
@_shard
@click.argument("node", metavar="NODE")
@asks_a_node
async def transfer(client: Client, number: int, node: str) -> None:
    """Hand the leadership of SHARD to NODE, a replica in sync."""
    await ClusterAdmin(client).transfer(number, node)
    click.echo(f"shard {number} is led by {node}", err=True)
