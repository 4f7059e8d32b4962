"""``lsmq shard``: the shards of a cluster, where they are and who leads them."""

from __future__ import annotations

import dataclasses
from functools import partial

import click

from lsmq import Client
from lsmq.admin import ClusterAdmin, ClusterInfo
from lsmq.cli._progress import PAUSED, wait_options, watch
from lsmq.cli.options import asks_a_node, json_option
from lsmq.cli.render import print_json, print_table, yes_or_no

_shard = click.argument("number", metavar="SHARD", type=click.IntRange(min=0))


@click.group()
def shard() -> None:
    """List the shards of a cluster, have more of them, move their replicas, hand their leadership over.

    A cluster moves replicas by itself: away from nodes that are gone for too long, and to nodes that have fewer. `plan`
    shows what it is about to do, `pause` holds it back.
    """


@shard.command("list")
@json_option
@asks_a_node
async def list_shards(client: Client, as_json: bool) -> None:
    """List the shards: leader, epoch, replicas, in-sync set, and why nobody leads one that has no leader."""
    shards = (await ClusterAdmin(client).overview()).shards
    names = ["shard", "leader", "epoch", "in_sync", "replicas", "adding", "target", "pinned", "problem"]
    rows = [
        [
            *(found.id, found.leader, found.epoch, found.in_sync, found.replicas, found.adding, found.target),
            *(found.pinned, found.problem),
        ]
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
    if isinstance(value, bool):
        return yes_or_no(value)
    return "-" if value is None else value


@shard.command()
@json_option
@asks_a_node
async def plan(client: Client, as_json: bool) -> None:
    """Show what the cluster is about to move by itself, in order, and why, and which voters it is about to replace.

    The plan is made anew whenever something changed: of a node that comes back in time nothing is moved, and it goes on
    voting.
    """
    found = await ClusterAdmin(client).plan()
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    if found.moves:
        print_table(
            ["shard", "from", "to", "why", "bytes"],
            [[move.shard, _text(move.former), _text(move.replicas), move.why, move.size_bytes] for move in found.moves],
        )
    if found.more:
        click.echo("and more after these")
    for node in found.away:
        left = f"its replicas are made again in {node.rebuilt_in_s:.0f} s"
        rest = "its replicas wait for it" if node.rebuilt_in_s is None else left
        click.echo(f"node {node.node} is away for {node.away_s:.0f} s; {rest}")
    for voter in found.voters:
        by = f"{voter.new or 'another node'} takes its vote"
        when = "not by itself" if voter.in_s is None else f"in {voter.in_s:.0f} s" if voter.in_s else "now"
        held_back = f", but: {voter.waits_for}" if voter.waits_for else ""
        click.echo(f"voter {voter.old} is away; {by} {when}{held_back}")
    if found.moving:
        click.echo(f"being moved: shards {', '.join(map(str, found.moving))}")
    if found.paused:
        click.echo("moves are paused: `lsmq shard resume` lets them go on")
    elif not found.moves:
        click.echo("nothing is to be moved")


@shard.command()
@click.argument("shards", metavar="SHARDS", type=click.IntRange(1, 1_024))
@click.option("--plan", "only_plan", is_flag=True, help="Only show what would be new, and where it would lie.")
@json_option
@asks_a_node
async def grow(client: Client, shards: int, only_plan: bool, as_json: bool) -> None:
    """Have SHARDS in all, in a cluster or a node of its own, while it runs.

    Nothing moves: topics stay on the shards that they were made on until `lsmq topic spread`, and new topics use all.
    Shards never get fewer. All nodes have to run, with a release that knows of this.

    \b
      lsmq shard grow 6 --plan
      lsmq shard grow 6
    """
    admin = ClusterAdmin(client)
    planned = await admin.plan_growth(shards)
    if not only_plan:
        await admin.grow_shards(shards)
        info = await admin.overview()
        new = {found.id for found in planned}
        rows = [[found.id, found.replicas] for found in info.shards if found.id in new]
    else:
        rows = [[found.id, found.replicas] for found in planned]
    if as_json:
        print_json([{"shard": number, "replicas": replicas} for number, replicas in rows])
    elif rows:
        print_table(["shard", "replicas"], [[_text(value) for value in row] for row in rows])
    else:
        click.echo(f"there are {shards} shards already")


@shard.command()
@asks_a_node
async def pause(client: Client) -> None:
    """Add no replica anywhere until `lsmq shard resume`, whoever asked for it, and replace no voter by itself.

    Holds for the whole cluster, and over restarts. Replicas that are being filled are filled.
    """
    await ClusterAdmin(client).pause_moves()
    click.echo("moves are paused; `lsmq shard resume` lets them go on", err=True)


@shard.command()
@asks_a_node
async def resume(client: Client) -> None:
    """Go on with moves that were paused."""
    await ClusterAdmin(client).resume_moves()
    click.echo("moves go on", err=True)


@shard.command()
@_shard
@asks_a_node
async def unpin(client: Client, number: int) -> None:
    """Let the cluster move SHARD, which `move` or `transfer` placed, as it sees fit."""
    await ClusterAdmin(client).unpin(number)
    click.echo(f"shard {number} is moved as the cluster sees fit", err=True)


@shard.command()
@_shard
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@wait_options
@asks_a_node
async def move(client: Client, number: int, nodes: tuple[str, ...], wait: bool, wait_ms: int) -> None:
    """Have SHARD held by these NODEs and no others; the first leads when it can.

    New replicas are filled and in sync before old ones go. You may interrupt this command: the cluster goes on. SHARD
    is pinned there: the cluster moves it by itself only away from nodes that are gone or draining, until `unpin`.
    """
    admin = ClusterAdmin(client)
    await admin.move(number, nodes)
    if wait:
        left, held_by = partial(_steps_left, number, nodes), partial(_moved_no_further, number, nodes)
        await watch(admin, f"moving shard {number}", left, wait_ms, held_by)
    click.echo(f"shard {number} is {'on' if wait else 'being moved to'} {' '.join(nodes)}", err=True)


def _moved_no_further(number: int, nodes: tuple[str, ...], info: ClusterInfo) -> str | None:
    """Why the shard does not come to be where it was told to; None while it does."""
    found = next(found for found in info.shards if found.id == number)
    if found.target and set(found.target) != set(nodes):
        return f"it is moved to {' '.join(found.target)} by now, as somebody else said"
    if not found.target and set(found.replicas) != set(nodes):
        return f"the move was given up; it is on {' '.join(found.replicas)}"
    return PAUSED if info.moves_paused else None


def _steps_left(number: int, nodes: tuple[str, ...], info: ClusterInfo) -> int:
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
    """Hand the leadership of SHARD to NODE, a replica in sync. It is pinned there, as by `move`."""
    await ClusterAdmin(client).transfer(number, node)
    click.echo(f"shard {number} is led by {node}", err=True)
