"""Where ``lsmq group reset`` sets a group's offsets: worked out for all queues first, and shown before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import click

from lsmq import Client
from lsmq._named_selection import names_by_number
from lsmq.groups import Group
from lsmq.topics import Offsets


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Exactly one of its fields is set.

    Attributes:
        offset: of each queue; limited by what is kept and what there is.
        time: the first message stored at or after it.
        end: ``earliest`` or ``latest``.
        shift: so many messages on, or back where it is negative. Queues without a committed offset are left alone.
    """

    offset: int | None = None
    time: datetime | None = None
    end: str | None = None
    shift: int | None = None

    def __post_init__(self) -> None:
        given = sum(value is not None for value in (self.offset, self.time, self.end, self.shift))
        if given != 1:
            raise click.UsageError(
                "say where to: one of --to-offset, --to-time, --to-earliest, --to-latest and --shift"
            )


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One queue's offset before and after. ``committed`` is None where there is none; ``name``: where it has one."""

    queue: int
    earliest: int
    latest: int
    committed: int | None
    to: int
    name: str | None = None

    @property
    def label(self) -> int | str:
        """What people call the queue."""
        return self.queue if self.name is None else self.name

    @property
    def lag_change(self) -> int:
        """How many messages more the group has before it, which it reads again; or fewer, which it skips."""
        return max(self.committed or 0, self.earliest) - self.to

    def to_dict(self) -> dict[str, Any]:
        return {
            "queue": self.label,
            "earliest": self.earliest,
            "latest": self.latest,
            "committed": self.committed,
            "to": self.to,
        }


def summed(moves: Sequence[OffsetMove]) -> tuple[int, int]:
    """How many messages are read again, and how many skipped; deleted ones count."""
    changes = [move.lag_change for move in moves]
    return sum(max(change, 0) for change in changes), sum(max(-change, 0) for change in changes)


def moves(target: ResetTarget, bounds: Offsets, committed: dict[int, int]) -> list[OffsetMove]:
    """What changes. A queue that holds nothing and has no committed offset is left alone."""
    found = []
    times: Sequence[int] = bounds.at_time or [0] * len(bounds)
    for (queue, earliest, latest), at_time in zip(bounds.rows(), times, strict=True):
        before = committed.get(queue)
        if target.shift is not None:
            if before is None:
                continue
            wanted = before + target.shift
        elif target.end is not None:
            wanted = earliest if target.end == "earliest" else latest
        elif target.time is not None:
            wanted = at_time
        else:
            wanted = target.offset or 0
        to = min(max(wanted, earliest), latest)
        if to != before and (latest > 0 or before is not None):
            found.append(OffsetMove(queue, earliest, latest, before, to))
    return found


async def plan(
    client: Client, group: str, topic: str, queues: Sequence[int] | None, names: Sequence[str], target: ResetTarget
) -> list[OffsetMove]:
    """Ask for what is needed, and work it out. ``names`` are of a named topic, and ``queues`` of any other; without
    them it is all that the group reads."""
    committed = await client.committed_offsets(group, topic)
    if not (await client.topic(topic)).named:
        if names:
            raise click.UsageError(f"the queues of topic {topic!r} have numbers: say which with --queues")
        return moves(target, await client.offsets(topic, queues, at_time=target.time), committed)
    if queues is not None:
        raise click.UsageError(f"the queues of topic {topic!r} have names: say which with --queue, once for each")
    if names:
        called = {queue.number: queue.name for queue in [await client.queue(topic, name) for name in names]}
    else:
        called = await names_by_number(client, topic, await Group(client, group)._pattern(topic))
    if not called:
        return []
    bounds = await client.offsets(topic, called, at_time=target.time)
    return [replace(move, name=called[move.queue]) for move in moves(target, bounds, committed)]
