"""Where a consumer stands in each of its queues, in twenty bytes a queue.

Two offsets a queue: ``fetch``, the next to ask a node for, and ``handed``, the next to hand to the
application; what lies between is buffered. Both are columns beside the sorted column of queue numbers, and a
queue's place in the columns is its *slot*. Queues that are idle cost nothing beyond their place.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from lsmq._queue_ranges import NONE, intersect, subtract, to_ranges, union
from lsmq.errors import UnknownQueue
from lsmq.group_values import Ranges
from lsmq.topics import Topic

Pauser = Literal["client", "application"]
"""Whose reason it is that queues are not fetched: each resumes what it has paused."""


class QueuePositions(Mapping[int, int]):
    """Queue to next offset to hand out, for all queues of one topic that a consumer owns.

    ``changed`` holds the queues whose ``handed`` moved since they were last committed, with their offset, and
    ``rewound`` those that went back; both are kept only when ``track_changes``. Queues that somebody has ``paused`` are
    not fetched. ``generation`` counts what makes answers under way worthless.
    """

    def __init__(self, queues: Iterable[int], *, track_changes: bool) -> None:
        self.changed: dict[int, int] = {}
        self.rewound: set[int] = set()
        self.paused: dict[Pauser, Ranges] = {}
        self.generation = 0
        self._track_changes = track_changes
        self.ranges: Ranges = NONE
        self.fetch = self.handed = array("q")
        self._lay_out(to_ranges(queues))

    def _lay_out(self, ranges: Ranges) -> None:
        self.queues: Sequence[int] = (
            ranges[0] if len(ranges) == 1 else array("I", (queue for part in ranges for queue in part))
        )
        self._firsts = [part.start for part in ranges]
        self._before: list[int] = []
        slots = 0
        for part in ranges:
            self._before.append(slots)
            slots += len(part)
        self.ranges = ranges
        self.fetch = array("q", bytes(8 * slots))
        self.handed = array("q", bytes(8 * slots))

    def own(self, ranges: Ranges) -> None:
        """Own these queues from now on. What was owned before stays as it is, the others stand at 0."""
        kept = [
            (part.start, self.fetch[slot : slot + len(part)], self.handed[slot : slot + len(part)])
            for part in intersect(self.ranges, ranges)
            for slot in (self.slot(part.start),)
        ]
        self._lay_out(ranges)
        for queue, fetch, handed in kept:
            slot = self.slot(queue)
            self.fetch[slot : slot + len(fetch)] = fetch
            self.handed[slot : slot + len(handed)] = handed
        self.changed = {queue: offset for queue, offset in self.changed.items() if queue in self}
        self.rewound = {queue for queue in self.rewound if queue in self}
        self.paused = {who: left for who, paused in self.paused.items() if (left := intersect(paused, ranges))}
        self.generation += 1

    def pause(self, ranges: Ranges, who: Pauser) -> None:
        self.paused[who] = union(self.paused.get(who, NONE), intersect(self.ranges, ranges))
        self.generation += 1

    def resume(self, ranges: Ranges, who: Pauser) -> None:
        left = subtract(self.paused.pop(who, NONE), ranges)
        if left:
            self.paused[who] = left
        self.generation += 1

    def slot(self, queue: int) -> int:
        """The place of ``queue``, or -1 when the consumer does not own it."""
        at = bisect_right(self._firsts, queue) - 1
        if at < 0 or queue >= self.ranges[at].stop:
            return -1
        return self._before[at] + queue - self._firsts[at]

    def share(self, queue: int) -> int:
        """What members of a group share out when they share out ``queue``: itself, or what its name lies in."""
        return queue

    def __contains__(self, queue: object) -> bool:
        return isinstance(queue, int) and self.slot(queue) >= 0

    def owned_slot(self, queue: int) -> int:
        """The place of ``queue``. Raises ``UnknownQueue`` when the consumer does not own it."""
        slot = self.slot(queue)
        if slot < 0:
            raise UnknownQueue(f"queue {queue} is not among the {len(self.queues)} of this consumer", queue=queue)
        return slot

    def __getitem__(self, queue: int) -> int:
        slot = self.slot(queue)
        if slot < 0:
            raise KeyError(queue)
        return self.handed[slot]

    def __iter__(self) -> Iterator[int]:
        return iter(self.queues)

    def __len__(self) -> int:
        return len(self.queues)

    def hand_out(self, queue: int, next_offset: int) -> None:
        """The application has been given everything of ``queue`` below ``next_offset``."""
        self.handed[self.slot(queue)] = next_offset
        if self._track_changes:
            self.changed[queue] = next_offset

    def move(self, queue: int, offset: int) -> None:
        """Go on from ``offset`` in ``queue``, forward or back."""
        slot = self.owned_slot(queue)
        if self._track_changes and offset < self.handed[slot]:
            self.rewound.add(queue)
        self.fetch[slot] = self.handed[slot] = offset
        self.generation += 1
        if self._track_changes:
            self.changed[queue] = offset

    def hand_back(self, queue: int, offset: int) -> None:
        """The application has not handled what it was given from ``offset`` on: it comes again."""
        slot = self.slot(queue)
        self.fetch[slot] = self.handed[slot] = offset
        self.generation += 1
        if self._track_changes:
            self.changed[queue] = offset

    def skip_to(self, queue: int, offset: int) -> None:
        """Fetch on from ``offset``; what is buffered of ``queue`` is handed out before."""
        slot = self.owned_slot(queue)
        if self.handed[slot] == self.fetch[slot]:
            self.hand_out(queue, offset)
        self.fetch[slot] = offset

    def committed(self, offsets: Mapping[int, int]) -> None:
        """The group has committed these: of queues that have not moved on nothing is changed any more."""
        for queue, offset in offsets.items():
            if self.changed.get(queue) == offset:
                del self.changed[queue]

    def start_at(self, queues: Sequence[int], offsets: Sequence[int]) -> None:
        """Set where to begin, without marking anything as changed."""
        for queue, offset in zip(queues, offsets, strict=True):
            slot = self.owned_slot(queue)
            self.fetch[slot] = self.handed[slot] = offset

    def queue_bytes(self, slots: Sequence[range]) -> bytes:
        """Queue numbers of ``slots``, 32 bits each, little-endian."""
        return _packed(array("I", self.queues[part.start : part.stop]) for part in slots)

    def fetch_bytes(self, slots: Sequence[range]) -> bytes:
        """Offsets to ask for, 64 bits each, little-endian, in the order of ``slots``."""
        return _packed(self.fetch[part.start : part.stop] for part in slots)

    def slots_between(self, slots: Sequence[range], first: int, end: int) -> list[int]:
        """Those of ``slots`` whose queue lies in ``[first, end)``."""
        low, high = bisect_left(self.queues, first), bisect_left(self.queues, end)
        return [slot for part in slots for slot in range(max(part.start, low), min(part.stop, high))]

    def slots_by_leader(self, topic: Topic) -> dict[str | None, list[range]]:
        """Which slots each node leads. Key ``None``: those whose shard has no leader now."""
        owners: dict[str | None, list[range]] = {}
        for route in topic.routes:
            slots = self._slots_between(route.first, route.end)
            if slots:
                owners.setdefault(route.leader, []).extend(slots)
        return owners

    def shards_led(self, topic: Topic, leader: str | None) -> tuple[int, ...]:
        """The shards that ``leader`` leads and that hold queues of this consumer."""
        return tuple(
            route.shard
            for route in topic.routes
            if route.leader == leader and self._slots_between(route.first, route.end)
        )

    def _slots_between(self, first: int, end: int) -> Ranges:
        """The slots of queues in ``[first, end)`` that are not paused."""
        slots = range(bisect_left(self.queues, first), bisect_left(self.queues, end))
        if not self.paused:
            return (slots,) if slots else NONE
        paused = union(*self.paused.values())
        idle = [range(self.slot(part.start), self.slot(part.start) + len(part)) for part in paused]
        return subtract((slots,) if slots else NONE, union(idle))


def _packed(columns: Iterable[array[int]]) -> bytes:
    parts: list[bytes] = []
    for column in columns:
        if sys.byteorder == "big":
            column.byteswap()
        parts.append(column.tobytes())
    return b"".join(parts)
