"""A few messages of one queue: the way of ``QueueStore.get``, and of work queues that deliver them one by one.

The same search as :mod:`.reader`, without its arrays: what is found is small, and at this size making arrays costs
more than reading the disk.

Not supported: topics with tombstones, limits of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lsmq.record_batch import Column

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


class PointRecord(NamedTuple):
    """A message as it lies in the store: columns, and its header, which takes ``header_length``, and body."""

    record: bytes
    header_length: int
    priority: int
    stored_ms: int
    flags: int
    key_hash: int
    expires_ms: int


_COLUMNS = (
    Column.HEADER_LENGTH,
    Column.PRIORITY,
    Column.STORED_MS,
    Column.FLAGS,
    Column.KEY_HASH,
    Column.EXPIRES_MS,
)


def record_at(part: SortedPart, row: int) -> PointRecord:
    """The one at a row."""
    return PointRecord(part.record_bytes(row, row + 1)[0], *(part.value(column, row) for column in _COLUMNS))


Rows = tuple[SortedPart, int, int]
"""Records ``[first, end)`` of a part."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Records ``[first, end)`` of a queue, by offset, which lie in a block from position ``at`` on."""

    block: Block
    at: int
    first: int
    end: int

    def rows(self, offset: int, end: int) -> Rows:
        """Those of ``[offset, end)``, which must overlap."""
        shift = self.at - self.first
        return self.block, offset + shift, min(end, self.end) + shift


class Places:
    """Where the last reads ended: who reads a queue from end to end finds the next messages in the same block.

    Messages never change, so a place is right for ever; whether they may still be read is for the caller to say. A
    queue's place may be taken by another queue's. Thread-safe without a lock: a slot is read or replaced as a whole.
    """

    __slots__ = ("_asked", "_slots")

    def __init__(self) -> None:
        self._slots: list[tuple[int, BlockPlace] | None] = [None] * PLACE_LIMIT
        self._asked = False

    def get(self, key: int, offset: int) -> BlockPlace | None:
        self._asked = True
        slot = self._slots[key % PLACE_LIMIT]
        if slot is None or slot[0] != key:
            return None
        place = slot[1]
        return place if place.first <= offset < place.end else None

    def note(self, key: int, place: BlockPlace) -> None:
        if place.block.memory_bytes <= PLACE_BYTES:
            self._slots[key % PLACE_LIMIT] = key, place

    def trim(self) -> None:
        """Forget all, if nobody has asked since the last call."""
        if not self._asked:
            self._slots[:] = [None] * PLACE_LIMIT
        self._asked = False

    def __len__(self) -> int:
        return PLACE_LIMIT - self._slots.count(None)


def point_rows(version: Version, key: int, offset: int, end: int, places: Places) -> Iterator[Rows]:
    """Where the messages ``[offset, end)`` of a queue lie, which holds them all, in order.

    Raises ``NotFound`` when not all are there, ``CorruptFile``.
    """
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
            stops = first + stop - at
            if stops > offset:
                yield _rows(block, at, first, offset, min(stops, end))
            if stop - at > 1 and block.offset(stop - 1) != stops - 1:
                raise NotFound
            if stops > end:
                places.note(key, BlockPlace(block, at, first, stops))
            if stops >= end:
                return
            offset = max(offset, stops)
    for chunk, at, stop, first in recent:
        stops = first + stop - at
        if stops > offset:
            yield _rows(chunk, at, first, offset, min(stops, end))
            offset = stops
        if stops >= end:
            return
    raise NotFound


def _rows(part: SortedPart, at: int, first: int, low: int, end: int) -> Rows:
    """The rows of the messages ``[low, end)``; ``first`` is the offset of the row ``at``, the others follow."""
    if first > low:
        raise NotFound
    return part, at + low - first, at + end - first
