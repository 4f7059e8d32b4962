"""``lsmq group``: consumer groups, who is in them, how far they are, and setting them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import click

from lsmq import Client, WorkQueue
from lsmq._named_selection import names_by_number
from lsmq.cli._reset import OffsetMove, ResetTarget, plan, summed
from lsmq.cli.options import (
    QUEUES,
    TIME,
    TOPIC,
    asks_a_node,
    asks_first,
    json_option,
    one_by_one,
    url_option,
    with_client,
)
from lsmq.cli.render import counted, print_fields, print_json, print_table, time_text
from lsmq.cli.work_queue import configure
from lsmq.errors import GroupHasMembers, GroupModeMismatch, ReceiptExpired, UnknownGroup, UnknownMessage
from lsmq.groups import (
    Group,
    GroupDescription,
    GroupLag,
    GroupMember,
    GroupStream,
    GroupSummary,
    Ranges,
    find_group,
    list_groups,
)
from lsmq.topics import format_ranges
from lsmq.work_queue_values import WorkQueueState, describe_work_queue

_SHOWN_ROWS = 50
_MINUTE_MS = 60_000
_MOST_HELD = 1_000_000


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is in one queue. ``lag`` counts the messages after the committed offset."""

    topic: str
    queue: int | str
    committed: int
    latest: int
    lag: int


@click.group()
def group() -> None:
    """See consumer groups, how far they are, and set them back."""


group.add_command(configure)


@group.command("list")
@json_option
@asks_a_node
async def list_command(client: Client, as_json: bool) -> None:
    """List all groups, with their members and state."""
    groups = await list_groups(client)
    if as_json:
        print_json([asdict(found) for found in groups])
        return
    print_table(
        ["group", "mode", "state", "generation", "members", "stalled"],
        [[g.group, g.mode, g.state, g.generation, g.members, g.stalled] for g in groups],
    )


@group.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, help="Only this topic.")
@json_option
@asks_a_node
async def describe(client: Client, name: str, topic: str | None, as_json: bool) -> None:
    """Show members of group NAME, what they own, and how far behind they are.

    \b
      lsmq group describe kitchen
    """
    found, lags = await _describe(client, name, topic)
    streams = await Group(client, name).streams() if found.mode in ("push", "broadcast") else []
    streams = [stream for stream in streams if topic in (None, stream.topic)]
    work_queues = await _work_queues(client, name, topic) if found.mode == "work_queue" else []
    if as_json:
        rows = {"lag": [asdict(lag) for lag in lags.values()], "streams": [asdict(stream) for stream in streams]}
        print_json({**found.to_dict(), **rows, "work_queues": [state.to_dict() for state in work_queues]})
        return
    shown: list[tuple[str, object]] = [("group", found.group), ("mode", found.mode)]
    if found.mode == "work_queue":
        shown.append(("members", "not kept: workers take single messages"))
    else:
        shown += [("state", found.state), ("generation", found.generation), ("members", len(found.members))]
    for each, pattern in found.patterns.items():
        if topic in (None, each):
            shown.append(("reads", f"{pattern} of {each}"))
    print_fields([*shown, ("coordinated by", f"the leader of shard {found.shard}")])
    if found.members:
        named = any([(await client.topic(each)).named for each in found.topics])
        print_table(
            ["member", "client", "owns", "slots" if named else "queues", "lag", "heartbeat", "session", "state"],
            [_member_row(member, at, found, lags) for at, member in enumerate(found.members)],
        )
    if streams:
        print_table(
            ["stream", "topic", "sent by", "queues", "unacknowledged", "credit", "last acknowledgement"],
            [_stream_row(stream) for stream in streams],
        )
    if work_queues:
        print_table(
            ["topic", "undelivered", "new", "ready", "waiting", "blocked", "in flight", "dead letters in"],
            [
                [
                    work.topic,
                    work.undelivered,
                    work.new,
                    work.ready,
                    work.waiting,
                    work.blocked,
                    work.in_flight,
                    work.dead_letter_topic,
                ]
                for work in work_queues
            ],
        )
        return
    print_table(
        ["topic", "queues", "lag", "behind", "uncommitted", "largest", "last commit"],
        [
            [lag.topic, lag.queues, lag.lag, lag.behind, lag.uncommitted, lag.largest, _age(lag.last_commit_age_ms)]
            for lag in lags.values()
        ],
    )


async def _describe(client: Client, name: str, topic: str | None) -> tuple[GroupDescription, dict[str, GroupLag]]:
    """The group and its lag in each topic that it has members or offsets in; by member in the order of members."""
    asked = Group(client, name)
    topics = [] if topic is None else [topic]
    try:
        found = await asked.describe()
        topics = topics or list(found.topics)
    except UnknownGroup:  # there never were members: it has offsets, or nothing
        summary = await _known(client, name)
        found = GroupDescription(name, summary.mode, "empty", 0, (await asked.coordinator()).shard, (), ())
    if not topics:
        topics = await asked.topics()
    lags = {}
    for each in topics:
        shared = found.mode == "clustered" and bool(found.members)
        parts = [member.assigned.get(each, ()) for member in found.members]
        parts.append(_rest(parts, (await client.topic(each)).queues))
        lags[each] = await asked.lag(each, parts if shared else None)
    return found, lags


async def _work_queues(client: Client, name: str, topic: str | None) -> list[WorkQueueState]:
    """What the group works on: this topic, or all there are."""
    names = await Group(client, name).topics() if topic is None else [topic]
    found = []
    for each in names:
        try:
            found.append(await describe_work_queue(client, each, name, client._deadline()))
        except UnknownGroup:
            continue
    return found


def _rest(parts: Sequence[Ranges], queues: int) -> Ranges:
    """The queues that nobody owns at the moment."""
    rest, at = [], 0
    for part in sorted((part for ranges in parts for part in ranges), key=lambda part: part.start):
        if part.start > at:
            rest.append(range(at, part.start))
        at = max(at, part.stop)
    return (*rest, *((range(at, queues),) if at < queues else ()))


def _member_row(member: GroupMember, at: int, found: GroupDescription, lags: dict[str, GroupLag]) -> list[Any]:
    owns = "  ".join(
        f"{topic}: {','.join(part for ranges in owned for part in format_ranges(ranges))}"
        for topic, owned in member.assigned.items()
    )
    state = "stalled" if member.stalled else f"giving up {member.pending}" if member.pending else "ok"
    shared = found.mode == "clustered"
    lag = sum(lag.by_part[at] for lag in lags.values()) if shared else None
    return [
        member.static_id or member.id,
        member.client,
        owns if len(owns) <= 120 else f"{owns[:117]}...",
        member.queues,
        lag,
        _age(member.heartbeat_age_ms),
        f"{member.session_ms / 1000:g} s",
        state,
    ]


def _stream_row(stream: GroupStream) -> list[Any]:
    silent_ms = stream.silent_ms if stream.unacknowledged else None
    return [
        stream.subscriber or stream.id[:12],
        stream.topic,
        stream.node,
        stream.queues,
        stream.unacknowledged,
        stream.credit,
        _age(silent_ms),
    ]


def _age(age_ms: int | None) -> str | None:
    return None if age_ms is None else f"{age_ms / 1000:.1f} s ago"


@group.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, help="Only this topic.")
@json_option
@asks_a_node
async def offsets(client: Client, name: str, topic: str | None, as_json: bool) -> None:
    """Show committed offset and lag of group NAME in every queue it has committed for.

    \b
      lsmq group offsets kitchen --topic orders
    """
    await _known(client, name)
    topics = await Group(client, name).topics() if topic is None else [topic]
    rows = [row for each in topics for row in await _lags(client, name, each)]
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ["topic", "queue", "committed", "latest", "lag"],
        [[row.topic, row.queue, row.committed, row.latest, row.lag] for row in rows],
    )
    lag = sum(row.lag for row in rows)
    click.echo(f"{counted(len(rows), 'queue')}, lag {counted(lag, 'message')}", err=True)


@group.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, required=True, help="In this topic.")
@json_option
@asks_a_node
async def lag(client: Client, name: str, topic: str, as_json: bool) -> None:
    """Show how far group NAME was behind in the last hour, minute by minute.

    \b
      lsmq group lag kitchen --topic orders

    The leaders remember it for the groups that are furthest behind, and for those that somebody asked for.
    """
    await _known(client, name)
    past, now = await Group(client, name).past_lag(topic), await Group(client, name).lag(topic)
    if as_json:
        print_json({**asdict(past), "lag": now.lag})
        return
    each = max(1, _MINUTE_MS // past.every_ms)
    minutes = list(enumerate(past.lags[::-1][each - 1 :: each], 1))[::-1]
    rows = [(f"{ago} min", "not known" if lag is None else lag) for ago, lag in minutes]
    print_table(["ago", "lag"], [*rows, ("now", now.lag)])


@group.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, required=True, help="Of this topic.")
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True, help="At most so many.")
@json_option
@asks_a_node
async def held(client: Client, name: str, topic: str, limit: int, as_json: bool) -> None:
    """Show messages of work queue NAME that somebody has, and has not settled.

    \b
      lsmq group held kitchen --topic orders
    """
    async with WorkQueue(client, topic, name) as work:
        found = await work.held(limit)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        ["message", "queue", "offset", "delivery", "hidden until"],
        [[each.id, each.queue, each.offset, each.deliveries, time_text(each.until_ms)] for each in found],
    )


_ENDS: dict[str, Literal["release", "dead_letter", "ack"]] = {
    "again": "release",
    "dead-letter": "dead_letter",
    "done": "ack",
}


@group.command()
@click.argument("name")
@click.argument("ids", nargs=-1, required=True)
@click.option("--topic", type=TOPIC, required=True, help="Of this topic.")
@click.option(
    "--as",
    "how",
    type=click.Choice(tuple(_ENDS)),
    required=True,
    help="again: somebody else gets it now. dead-letter: it is not tried again. done: it never comes again.",
)
@asks_first("Take these messages from who works on them?")
@asks_a_node
async def settle(client: Client, name: str, ids: tuple[str, ...], topic: str, how: str) -> None:
    """Settle messages IDS of work queue NAME in the stead of who has them.

    \b
      lsmq group settle kitchen --topic orders --as again 00000001000000070000000000000042
    """
    async with WorkQueue(client, topic, name) as work:
        found = {each.id: each for each in await work.held(_MOST_HELD)}
        if missing := [id for id in ids if id not in found]:
            raise UnknownMessage(f"nobody has message {missing[0]!r} of group {name!r}: it is settled, or to be had")

        async def one(id: str) -> None:
            await work.end_held(found[id], _ENDS[how])
            click.echo(f"{id}: {how}")

        await one_by_one(ids, one, (ReceiptExpired,))  # Who had one has settled it meanwhile.


async def _known(client: Client, name: str, remedy: str = "'lsmq group list' shows those there are") -> GroupSummary:
    """The group, which has members, offsets, or had members. Raises ``UnknownGroup``."""
    found = await find_group(client, name)
    if found is None:
        raise UnknownGroup(
            f"there is no group {name!r}: it has no member and no offset. {remedy}",
            group=name,
        )
    return found


async def _lags(client: Client, group: str, topic: str) -> list[QueueLag]:
    committed = await client.committed_offsets(group, topic)
    if not committed:
        return []
    bounds = await client.offsets(topic, committed)
    called: dict[int, str] = {}
    if (await client.topic(topic)).named:
        pattern = await Group(client, group)._pattern(topic)
        called = await names_by_number(client, topic, pattern)
        if pattern is not None:
            committed = {queue: at for queue, at in committed.items() if queue in called}
    return [
        QueueLag(
            topic, called.get(queue, queue), committed[queue], latest, max(0, latest - max(committed[queue], earliest))
        )
        for queue, earliest, latest in bounds.rows()
        if queue in committed
    ]


@group.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, required=True, help="The topic whose offsets are set.")
@click.option("--queues", type=QUEUES, help="Only these, such as 0-99,200.")
@click.option("--queue", "names", multiple=True, metavar="NAME", help="In a named topic, only this; give as many.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset of every queue.")
@click.option("--to-time", type=TIME, help="To the first message stored then or later: 2026-03-01T12:00, or -15m.")
@click.option("--to-earliest", is_flag=True, help="To the first message that is kept.")
@click.option("--to-latest", is_flag=True, help="Behind the last message.")
@click.option("--shift", type=int, help="So many messages on, or back: --shift=-100.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--new", is_flag=True, help="Though there is no such group yet: it begins there.")
@click.option("--force", is_flag=True, help="Though members live: they go on from where they are until restarted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@url_option
def reset(
    name: str,
    topic: str,
    queues: Sequence[int] | None,
    names: Sequence[str],
    to_offset: int | None,
    to_time: datetime | None,
    to_earliest: bool,
    to_latest: bool,
    shift: int | None,
    dry_run: bool,
    new: bool,
    force: bool,
    yes: bool,
    as_json: bool,
    url: str,
    deadline_ms: int,
) -> None:
    """Set the committed offsets of group NAME. Shows what changes before it is done.

    \b
      lsmq group reset kitchen --topic orders --to-time -1h --dry-run
      lsmq group reset kitchen --topic orders --shift=-100 --queues 0-15
    """
    if to_earliest and to_latest:
        raise click.UsageError("--to-earliest and --to-latest: say one of the two")
    target = ResetTarget(to_offset, to_time, "earliest" if to_earliest else "latest" if to_latest else None, shift)

    async def look(client: Client) -> tuple[list[OffsetMove], int]:
        found = None if new else await _known(client, name, "With --new it begins there")
        if found is not None and found.mode == "work_queue" and await _work_queues(client, name, topic):
            raise GroupModeMismatch(
                f"group {name!r} is a work queue on topic {topic!r}, which settles single messages: acknowledge "
                "them, or delete the group, and all that is kept comes again",
                group=name,
                mode=found.mode,
            )
        return await plan(client, name, topic, queues, names, target), await Group(client, name)._live_members()

    moves, members = with_client(url, deadline_ms, look)
    if as_json:
        print_json([move.to_dict() for move in moves])
    else:
        _show_moves(moves)
    if dry_run or not moves:
        return
    if members and not force:
        raise GroupHasMembers(
            f"group {name!r} has {members} live members, which go on from where they are: stop them first, or use "
            "--force",
            group=name,
            members=members,
        )
    if not yes:
        click.confirm(f"Set {counted(len(moves), 'offset')} of group {name}?", abort=True, err=True)

    async def work(client: Client) -> None:
        await client.commit_offsets(name, topic, {move.queue: move.to for move in moves}, reset=True)

    with_client(url, deadline_ms, work)
    click.echo(f"{counted(len(moves), 'offset')} of group {name} set", err=True)


def _show_moves(moves: Sequence[OffsetMove]) -> None:
    print_table(
        ["queue", "earliest", "latest", "committed", "to", "lag"],
        [
            [move.label, move.earliest, move.latest, move.committed, move.to, f"{move.lag_change:+d}"]
            for move in moves[:_SHOWN_ROWS]
        ],
    )
    if len(moves) > _SHOWN_ROWS:
        click.echo(f"... and {len(moves) - _SHOWN_ROWS} more queues; --json prints all")
    changes = "1 queue changes" if len(moves) == 1 else f"{len(moves)} queues change"
    again, skipped = summed(moves)
    click.echo(f"{changes}: {counted(again, 'message')} to be read again, {skipped} to be skipped", err=True)


@group.command()
@click.argument("name")
@asks_first("Delete group {name} and all its offsets?")
@click.option("--force", is_flag=True, help="Though members live: they join again.")
@click.option("--missing-ok", is_flag=True, help="Succeed if there is no such group.")
@asks_a_node
async def delete(client: Client, name: str, force: bool, missing_ok: bool) -> None:
    """Forget group NAME: its committed offsets, its members and its generation."""
    try:
        await _known(client, name)
    except UnknownGroup:
        if not missing_ok:
            raise
        click.echo(f"there was no group {name}", err=True)
        return
    await Group(client, name).delete(force=force)
    click.echo(f"group {name} deleted", err=True)
