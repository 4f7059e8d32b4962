"""Which queues with names are read, and where these end at the moment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lsmq._paths import topic_path
from lsmq._queue_ranges import contains, intersect, to_ranges
from lsmq._transport import BATCHES, MSGPACK
from lsmq.client import Client
from lsmq.group_values import Ranges, to_pairs
from lsmq.queue_names import SLOTS, compile_pattern, queue_slot
from lsmq.record_batch import Column, Flag, split_batches
from lsmq.topics import Topic

#: Slots that are asked for at once where names are told.
_SLOTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class NamedSelection:
    """Which queues are read, and where they begin.

    ``names``, or those that match ``pattern``, or with neither all of the slots that are read; ``in_slots`` those that
    match and lie in these. They begin where ``group`` has committed, else at the earliest; named ones at ``offsets``,
    where these have them.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    in_slots: bool = False
    group: str | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)
    _named: frozenset[str] = field(init=False, repr=False, compare=False)
    _fits: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", frozenset(self.names))  # Each queue of each answer is looked up,
        object.__setattr__(self, "_fits", compile_pattern(self.pattern or "**"))  # or held against this.

    def slots(self) -> Ranges:
        """All slots that such queues may lie in."""
        return to_ranges({queue_slot(name) for name in self.names}) if self.names else (range(SLOTS),)

    def has(self, name: str) -> bool:
        """Whether the name is one of these, whatever its slot."""
        if self.names:
            return name in self._named
        return self._fits.fullmatch(name) is not None

    def request(self, slots: Sequence[range], start: str | None = None) -> dict[str, Any]:
        """What a request says of them, as far as they lie in ``slots``, but for ``offsets``."""
        value: dict[str, Any] = {}
        if self.names:
            value["names"] = [name for name in self.names if contains(tuple(slots), queue_slot(name))]
        else:
            if self.pattern is not None:
                value["pattern"] = self.pattern
            if self.pattern is None or self.in_slots:
                value["slots"] = to_pairs(slots)
        if start is None and self.group is not None:
            return value | {"start": "committed", "group": self.group}
        return value | {"start": start or "earliest"}


async def named_ends(
    client: Client, topic: Topic, selection: NamedSelection, ranges: Ranges, *, with_names: bool = False
) -> tuple[dict[int, int], dict[int, str]]:
    """The latest offsets of the queues in slots of ``ranges`` that ever had a message, by number; and names by number.

    All queues that are selected by name are told with their names, and ``with_names`` those of ``ranges``, if they are
    not selected by a pattern. Costs some bytes a queue, and asks for all of a shard at once, or for some slots.
    """
    latest: dict[int, int] = {}
    names: dict[int, str] = {}

    async def ask(shard: int, slots: Ranges) -> None:
        answer = await client._router.ask_leader(
            topic,
            shard,
            "POST",
            f"{topic_path(topic.name)}/fetch",
            value=selection.request(slots, "latest") | ({"with_names": True} if with_names else {}),
            content_type=MSGPACK,
            accept=BATCHES,
            must_lead=(shard,),
            deadline=client._deadline(),
        )
        for batch in split_batches(answer.body):
            flags = batch.column(Column.FLAGS)[0] if Column.FLAGS in batch.directory else 0
            if flags & Flag.POSITION:
                latest.update(zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True))
            elif flags & Flag.NAMES:
                names.update(zip(batch.column(Column.QUEUE), batch.texts(), strict=True))

    for route in topic.routes:
        own = intersect(ranges, (range(route.first, route.end),))
        for slots in _in_turns(own, _SLOTS_AT_ONCE if with_names else SLOTS):
            await ask(route.shard, slots)
    return latest, names


async def names_by_number(client: Client, topic: str, pattern: str | None = None) -> dict[int, str]:
    """All queues of a named topic, or those that match a pattern."""
    all_of_it = NamedSelection()
    _, names = await named_ends(client, await client.topic(topic), all_of_it, (range(SLOTS),), with_names=True)
    has = NamedSelection(pattern=pattern).has
    return {number: name for number, name in names.items() if has(name)}


def _in_turns(ranges: Ranges, most: int) -> Iterator[Ranges]:
    """All of them, so many slots at a time."""
    slots = [slot for part in ranges for slot in part]
    for first in range(0, len(slots), most):
        yield to_ranges(slots[first : first + most])
