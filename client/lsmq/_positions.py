"""Where a consumer stands in each of its queues, in twenty bytes a queue.

Two offsets a queue: ``fetch``, the next to ask a node for, and ``handed``, the next to hand to the
application; what lies between is buffered. Both are columns beside the sorted column of queue numbers, and a
queue's place in the columns is its *slot*. Queues that are idle cost nothing beyond their place.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lsmq.errors import InvalidRequest, UnknownQueue
from lsmq.topics import Topic


class QueuePositions(Mapping[int, int]):
    """Queue to next offset to hand out, for all queues of one consumer.

    ``changed`` holds the queues whose ``handed`` moved since they were last committed, with their offset, and
    ``rewound`` those that went back; both are kept only when ``track_changes``. ``generation`` counts what
    makes answers under way worthless.
    """

    def __init__(self, queues: Iterable[int], *, track_changes: bool) -> None:
        self.queues: Sequence[int] = _sorted_queues(queues)
        self.fetch = array("q", bytes(8 * len(self.queues)))
        self.handed = array("q", bytes(8 * len(self.queues)))
        self.changed: dict[int, int] = {}
        self.generation = 0
        self.rewound: set[int] = set()
        self._track_changes = track_changes
        self._first = self.queues[0]
        self._slots: dict[int, int] | None = None
        if not isinstance(self.queues, range):
            self._slots = {queue: slot for slot, queue in enumerate(self.queues)}

    def slot(self, queue: int) -> int:
        """The place of ``queue``, or -1 when the consumer does not own it."""
        if self._slots is not None:
            return self._slots.get(queue, -1)
        slot = queue - self._first
        return slot if 0 <= slot < len(self.queues) else -1

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

    def skip_to(self, queue: int, offset: int) -> None:
        """Fetch on from ``offset``; what is buffered of ``queue`` is handed out before."""
        slot = self.owned_slot(queue)
        if self.handed[slot] == self.fetch[slot]:
            self.hand_out(queue, offset)
        self.fetch[slot] = offset

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

    def slots_by_leader(self, topic: Topic) -> dict[str | None, list[range]]:
        """Which slots each node leads. Key ``None``: those whose shard has no leader now."""
        owners: dict[str | None, list[range]] = {}
        for route in topic.routes:
            start, stop = bisect_left(self.queues, route.first), bisect_left(self.queues, route.end)
            if start < stop:
                owners.setdefault(route.leader, []).append(range(start, stop))
        return owners

    def shards_led(self, topic: Topic, leader: str | None) -> tuple[int, ...]:
        """The shards that ``leader`` leads and that hold queues of this consumer."""
        return tuple(
            route.shard
            for route in topic.routes
            if route.leader == leader and bisect_left(self.queues, route.first) < bisect_left(self.queues, route.end)
        )


def _sorted_queues(queues: Iterable[int]) -> Sequence[int]:
    if not isinstance(queues, range) or queues.step != 1:
        ordered = sorted(set(queues))
        if ordered and ordered[-1] - ordered[0] + 1 == len(ordered):
            queues = range(ordered[0], ordered[-1] + 1)
        else:
            queues = array("I", ordered)
    if not queues:
        raise InvalidRequest("a consumer needs at least one queue")
    return queues


def _packed(columns: Iterable[array[int]]) -> bytes:
    parts: list[bytes] = []
    for column in columns:
        if sys.byteorder == "big":
            column.byteswap()
        parts.append(column.tobytes())
    return b"".join(parts)
