"""Where ``lsmq group reset`` sets a group's offsets: worked out for all queues first, and shown before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from lsmq import Client
from lsmq.topics import Offsets


@dataclass(frozen=True, slots=True)
class Target:
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
class Move:
    """One queue's offset before and after. ``committed`` is None where there is none."""

    queue: int
    earliest: int
    latest: int
    committed: int | None
    to: int

    @property
    def lag_change(self) -> int:
        """How many messages more (or fewer) the group has before it."""
        return max(self.committed or 0, self.earliest) - self.to

    def to_dict(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "earliest": self.earliest,
            "latest": self.latest,
            "committed": self.committed,
            "to": self.to,
        }


def moves(target: Target, bounds: Offsets, committed: dict[int, int]) -> list[Move]:
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
            found.append(Move(queue, earliest, latest, before, to))
    return found


async def plan(client: Client, group: str, topic: str, queues: Sequence[int] | None, target: Target) -> list[Move]:
    """Ask for what is needed, and work it out."""
    bounds = await client.offsets(topic, queues, at_time=target.time)
    return moves(target, bounds, await client.committed_offsets(group, topic))
