"""A few messages of one queue as plain bytes: the way of ``QueueStore.get``.

The same search as :mod:`.reader`, without its arrays: what is found is small, and at this size making arrays costs
more than reading the disk.

Not supported: topics with tombstones, limits of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .block import Block
from .locate import in_memory, in_tables
from .sorted_records import SortedPart
from .version import Version

#: So many queues are remembered with the block they were last read from.
PLACE_LIMIT = 64
#: Larger blocks are not remembered: they would be memory beyond the cache's limit.
PLACE_BYTES = 256 * 1024


class NotFound(Exception):
    """Something is not as it should be: the thorough search (:func:`.reader.read_queue`) says what."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Records ``[first, end)`` of a queue, by offset, which lie in a block from position ``at`` on."""

    block: Block
    at: int
    first: int
    end: int

    def record_bytes(self, offset: int, end: int) -> list[bytes]:
        """Those of ``[offset, end)``, which must overlap."""
        shift = self.at - self.first
        return self.block.record_bytes(offset + shift, min(end, self.end) + shift)


class Places:
    """Where the last reads ended: who reads a queue from end to end finds the next messages in the same block.

    Messages never change, so a place is right for ever; whether they may still be read is for the caller to say. A
    queue's place may be taken by another queue's. Thread-safe without a lock: a slot is read or replaced as a whole.
    """

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: list[tuple[int, BlockPlace] | None] = [None] * PLACE_LIMIT

    def get(self, key: int, offset: int) -> BlockPlace | None:
        slot = self._slots[key % PLACE_LIMIT]
        if slot is None or slot[0] != key:
            return None
        place = slot[1]
        return place if place.first <= offset < place.end else None

    def note(self, key: int, place: BlockPlace) -> None:
        if place.block.memory_bytes <= PLACE_BYTES:
            self._slots[key % PLACE_LIMIT] = key, place

    def __len__(self) -> int:
        return PLACE_LIMIT - self._slots.count(None)


def read_point(version: Version, key: int, offset: int, end: int, places: Places) -> list[bytes]:
    """The bytes of each message in ``[offset, end)`` of a queue, which holds them all.

    Raises ``NotFound`` when not all are there, ``CorruptFile``.
    """
    found: list[bytes] = []
    begins, recent = in_memory(version.memtables, key, offset, end)
    if begins > offset:
        for table, page, row, known in in_tables(version.runs(), key, offset, end):
            if known is None:
                block = table.block_of(page, row)
                at, stop = block.span(key)
                if at == stop:
                    continue
                first = block.offset(at)
            else:
                block, at, stop, first = known
            stops = _collect(found, block, at, stop, first, offset + len(found), end)
            if stop - at > 1 and block.offset(stop - 1) != stops - 1:
                raise NotFound
            if stops > end:
                places.note(key, BlockPlace(block, at, first, stops))
            if stops >= end:
                return found
    for chunk, at, stop, first in recent:
        if _collect(found, chunk, at, stop, first, offset + len(found), end) >= end:
            return found
    raise NotFound


def _collect(found: list[bytes], part: SortedPart, at: int, stop: int, first: int, low: int, end: int) -> int:
    """Add the messages ``[low, end)``, as far as they are in a queue's rows ``[at, stop)``; returns where those end.

    ``first`` is the offset of the row ``at``; the others follow one another.
    """
    stops = first + stop - at
    if first > low:
        raise NotFound
    if stops > low:
        found += part.record_bytes(at + low - first, at + min(stops, end) - first)
    return stops
