"""The memtable: committed records in memory, in columns, until they are flushed to a table.

Records are appended as they are committed, batch after batch: one arena for their bytes, one array a column.
Readers need order; a bulk load does not. So the part that came since the last look is sorted by (queue key,
offset) when a reader comes, into a *chunk*; chunks are kept in a ``SortedDict`` by the record they begin at, so
that the memtable is ordered by time between chunks and by queue inside them. A queue is found by one binary
search a chunk; what is too little to sort is compared as a whole. Small chunks are merged, so there are never
many. A queue that is idle costs nothing, and a record costs its bytes plus about forty.

Inserting record by record into a sorted structure (a skip list, thesis 3.2) costs over 2 us in Python;
sorting a chunk costs 0.06 us a record and gives the same order.

Tombstones are records too, under a *shadow topic* (``topic_id | TOMBSTONE_TOPIC``), so that they never stand
between the messages of a queue and yet sort, flush and merge like them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedDict

from lsmq.record_batch import Column

from .columns import DTYPES, I64, U8, U64, Columns, gather, spread, stable_sort
from .slabs import Slabs

#: So many unsorted records make a chunk when a reader comes.
CHUNK_RECORDS = 16_384
#: So many chunks are merged into one.
CHUNK_LIMIT = 8
#: A flush copies so many bytes at a time: they stay in the CPU's cache until they are written.
PIECE_BYTES = 4 << 20
TOMBSTONE_TOPIC = 1 << 31
_TOMBSTONE_KEYS = np.uint64(TOMBSTONE_TOPIC << 32)
#: Bytes of the columns that every record has: key 8, offset 8, start 8, length 4, stored_ms 8.
RECORD_COLUMN_BYTES = 8 + 8 + 8 + 4 + 8
#: Columns begin with so many bytes of ordinary pages: a memtable of few records takes no huge page for each.
SMALL_PAGES_BYTES = 512 << 10
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Records ``[first, end)`` of the memtable, sorted: ``keys`` ascending, ``order`` their positions."""

    first: int
    end: int
    keys: U64
    order: I64


@dataclass(frozen=True, slots=True)
class SortedRecords:
    """Records sorted by (key, offset), with their bytes in the same order.

    ``columns`` holds every record column but TOPIC and QUEUE, which are in ``keys``.
    """

    keys: U64
    columns: Columns
    payload: U8

    def __len__(self) -> int:
        return len(self.keys)


class Memtable:
    """One thread applies; readers may run beside it.

    A reader sees the records that were applied when it began, since ``record_count`` is raised last and
    arrays are replaced by longer ones, never changed where they are in use.
    """

    def __init__(self, first_lsn: int, capacity_bytes: int, slabs: Slabs | None = None) -> None:
        """``slabs``, of :func:`slabs_for` that capacity, lend the memory."""
        self.first_lsn = first_lsn
        self.end_lsn = first_lsn
        self.capacity_bytes = capacity_bytes
        self.record_count = 0
        self.tombstone_count = 0
        slab = (slabs or slabs_for(capacity_bytes)).take()
        self.arena: U8 = slab[:capacity_bytes]
        self._view = self.arena.data
        self.arena_used = 0
        columns = _carve(slab, capacity_bytes)
        self._keys: U64 = next(columns)
        self._starts: I64 = next(columns)
        self._columns: Columns = dict(zip((Column.OFFSET, Column.LENGTH, Column.STORED_MS), columns, strict=True))
        #: Chunks by the record they begin at, and the same as readers take them. Replaced together, never changed.
        self._chunks: tuple[SortedDict[int, _Chunk], tuple[_Chunk, ...]] = (SortedDict(), ())

    @property
    def size_bytes(self) -> int:
        """What it holds: record bytes and columns."""
        return self.arena_used + self.record_count * RECORD_COLUMN_BYTES

    def has_room(self, payload_bytes: int, record_count: int) -> bool:
        """Whether a batch fits. An empty memtable takes any batch up to its capacity."""
        if self.arena_used + payload_bytes > self.capacity_bytes:
            return False
        needed = self.size_bytes + payload_bytes + record_count * RECORD_COLUMN_BYTES
        return self.record_count == 0 or needed <= self.capacity_bytes

    def apply(
        self,
        end_lsn: int,
        keys: U64,
        offsets: I64,
        lengths: NDArray[Any],
        stored_ms: int,
        payload: memoryview,
        optional: Mapping[int, NDArray[Any]],
    ) -> None:
        """Append a batch's records. ``end_lsn`` is the LSN after the entry they came in."""
        count = len(keys)
        first, end = self.record_count, self.record_count + count
        self._reserve(end)
        self._keys[first:end] = keys
        self._columns[Column.OFFSET][first:end] = offsets
        self._columns[Column.LENGTH][first:end] = lengths
        self._columns[Column.STORED_MS][first:end] = stored_ms
        starts = self._starts[first:end]
        starts[0] = self.arena_used
        np.cumsum(lengths[:-1], out=starts[1:])
        starts[1:] += self.arena_used
        for column, values in optional.items():
            if column not in self._columns:  # a reader may be going through the old dict
                self._columns = {**self._columns, column: np.zeros(len(self._keys), DTYPES[column])}
            self._columns[column][first:end] = values
        self.arena[self.arena_used : self.arena_used + len(payload)] = np.frombuffer(payload, np.uint8)
        self.arena_used += len(payload)
        if int(keys[-1]) & (TOMBSTONE_TOPIC << 32):
            self.tombstone_count += count
        self.record_count = end
        self.end_lsn = end_lsn

    def _reserve(self, count: int) -> None:
        capacity = len(self._keys)
        if count <= capacity:
            return
        while capacity < count:
            capacity *= 2
        used = self.record_count
        self._keys = _widen(self._keys, used, capacity)
        self._starts = _widen(self._starts, used, capacity)
        for column, values in self._columns.items():
            self._columns[column] = _widen(values, used, capacity)

    def _sorted_chunks(self) -> tuple[tuple[_Chunk, ...], int, int]:
        """The chunks, how many records they cover, and how many there are. Sorts what has grown enough.

        What it sorts is shown in one step: a reader that is interrupted leaves nothing behind, and of two that sort at
        the same time one has done so in vain.
        """
        end = self.record_count
        by_first, chunks = self._chunks
        covered = chunks[-1].end if chunks else 0
        if end - covered >= CHUNK_RECORDS:
            if len(chunks) < CHUNK_LIMIT:
                by_first = by_first.copy()
            else:  # make one of all
                by_first, covered = SortedDict(), 0
            order, keys = self._order(covered, end)
            by_first[covered] = _Chunk(covered, end, keys, order + covered)
            chunks, covered = tuple(by_first.values()), end
            self._chunks = by_first, chunks
        return chunks, covered, max(covered, end)

    def _order(self, first: int, end: int) -> tuple[I64, U64]:
        """Places that sort the records ``[first, end)`` by key and offset, counted from ``first``; and the keys."""
        order, keys = stable_sort(self._keys[first:end])
        tail = int(keys.searchsorted(_TOMBSTONE_KEYS)) if self.tombstone_count else len(keys)
        if tail < len(keys):  # messages are deleted in any order
            shadow = order[tail:]
            order[tail:] = shadow[np.lexsort((self._columns[Column.OFFSET][first:end][shadow], keys[tail:]))]
        return order, keys

    def find(self, key: int, offset: int, limit: int) -> I64:
        """Positions of the queue's messages from ``offset`` on, by offset, ``limit`` at most. Not for tombstones."""
        chunks, covered, end = self._sorted_chunks()
        wanted = np.uint64(key)
        found: list[I64] = []
        for chunk in chunks:
            left = int(chunk.keys.searchsorted(wanted, "left"))
            if left < len(chunk.keys) and chunk.keys[left] == wanted:
                found.append(chunk.order[left : int(chunk.keys.searchsorted(wanted, "right"))])
        if covered < end:
            rest = np.flatnonzero(self._keys[covered:end] == wanted)
            if len(rest):
                found.append(rest + covered)
        if not found:
            return np.empty(0, np.int64)
        # The offsets of a queue's messages follow one another without gaps.
        skip = max(0, offset - int(self._columns[Column.OFFSET][found[0][0]]))
        taken: list[I64] = []
        for part in found:
            if skip < len(part) and limit > 0:
                taken.append(part[skip : skip + limit])
                limit -= len(taken[-1])
            skip = max(0, skip - len(part))
        if not taken:
            return np.empty(0, np.int64)
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def deleted(self, key: int, offset: int, end: int) -> I64:
        """Offsets in ``[offset, end)`` of which a tombstone is here, in any order; ``key`` is that of the messages."""
        chunks, covered, count = self._sorted_chunks()
        shadow = key | TOMBSTONE_TOPIC << 32
        offsets = self._columns[Column.OFFSET]
        found: list[I64] = []
        for chunk in chunks:
            left = int(chunk.keys.searchsorted(np.uint64(shadow), "left"))
            right = int(chunk.keys.searchsorted(np.uint64(shadow), "right"))
            if left < right:
                order = chunk.order
                first = bisect_left(order, offset, left, right, key=lambda at: offsets.item(at))
                found.append(
                    offsets[order[first : bisect_left(order, end, first, right, key=lambda at: offsets.item(at))]]
                )
        if covered < count:
            rest = offsets[covered:count][self._keys[covered:count] == np.uint64(shadow)]
            found.append(rest[(rest >= offset) & (rest < end)])
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def collect(self, key: int, offset: int, end: int, found: list[list[bytes]]) -> int:
        """Bytes of the queue's messages in ``[offset, end)``, as far as they are here: the newest of them.

        Appends lists to ``found``, newest first, and returns the offset they begin at: ``end`` when there are none.
        Not for tombstones.
        """
        chunks, covered, count = self._sorted_chunks()
        wanted = np.uint64(key)
        if covered < count:
            rest = np.flatnonzero(self._keys[covered:count] == wanted)
            if len(rest):
                end = self._collect(rest + covered, offset, end, found)
        for chunk in reversed(chunks):
            if end <= offset:
                break
            left = int(chunk.keys.searchsorted(wanted))
            if left < len(chunk.keys) and chunk.keys.item(left) == key:
                # The offsets of a queue's messages follow one another without gaps.
                begins = self._columns[Column.OFFSET].item(chunk.order.item(left))
                if begins < end:
                    end = self._collect(chunk.order[left : left + end - begins], offset, end, found)
        return end

    def _collect(self, positions: I64, offset: int, end: int, found: list[list[bytes]]) -> int:
        """:meth:`collect` from the queue's records at ``positions``, by offset."""
        begins: int = self._columns[Column.OFFSET].item(positions.item(0))
        if begins >= end:
            return end
        chosen = positions[max(0, offset - begins) : end - begins]
        if len(chosen) == 0:
            return end
        arena = self._view
        starts, lengths = self._starts[chosen].tolist(), self._columns[Column.LENGTH][chosen].tolist()
        found.append([bytes(arena[at : at + length]) for at, length in zip(starts, lengths, strict=True)])
        return max(begins, offset)

    def find_ranges(self, keys: U64, offsets: I64, ends: I64) -> tuple[I64, I64]:
        """Records of many queues at once: of each the offsets ``[offsets[i], ends[i])``, as far as they are here.

        ``keys`` are sorted and distinct. Returns positions, sorted by (key, offset), and for each the ``i`` it
        belongs to. Not for tombstones.
        """
        chunks, covered, end = self._sorted_chunks()
        parts = [(chunk.keys, chunk.order) for chunk in chunks]
        if covered < end:
            order, rest = stable_sort(self._keys[covered:end])
            parts.append((rest, order + covered))
        positions: list[I64] = []
        owners: list[I64] = []
        for part_keys, order in parts:
            lefts = part_keys.searchsorted(keys, "left")
            counts = part_keys.searchsorted(keys, "right") - lefts
            here = np.flatnonzero(counts)
            if len(here) == 0:
                continue
            lefts, counts = lefts[here], counts[here]
            begins = self._columns[Column.OFFSET][order[lefts]]
            skips = np.maximum(offsets[here] - begins, 0)
            counts = np.minimum(counts, ends[here] - begins) - skips
            some = counts > 0
            here, lefts, counts = here[some], lefts[some] + skips[some], counts[some]
            if len(here):
                positions.append(order[spread(lefts, counts)])
                owners.append(np.repeat(here, counts))
        if not positions:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if len(positions) == 1:
            return positions[0], owners[0]
        found, owner = np.concatenate(positions), np.concatenate(owners)
        by_queue, owner = stable_sort(owner)
        return found[by_queue], owner

    def first_offsets(self, keys: U64, otherwise: I64) -> I64:
        """The least offset here of each of the sorted, distinct ``keys``, or what ``otherwise`` says. No tombstones."""
        chunks, covered, end = self._sorted_chunks()
        parts = [(chunk.keys, chunk.order) for chunk in chunks]
        if covered < end:
            order, rest = stable_sort(self._keys[covered:end])
            parts.append((rest, order + covered))
        firsts = otherwise.copy()
        for part_keys, order in parts:
            lefts = part_keys.searchsorted(keys)
            here = np.flatnonzero(lefts < len(part_keys))
            here = here[part_keys[lefts[here]] == keys[here]]
            begins = self._columns[Column.OFFSET][order[lefts[here]]]
            firsts[here] = np.minimum(firsts[here], begins)
        return firsts

    def offsets_at(self, positions: I64) -> I64:
        return self._columns[Column.OFFSET][positions]

    def lengths_at(self, positions: I64) -> NDArray[np.uint32]:
        return self._columns[Column.LENGTH][positions]

    def records(self, positions: I64) -> SortedRecords:
        """Copy out the records at ``positions``, in that order."""
        return self._records(self._keys[positions], positions)

    def _records(self, keys: U64, positions: I64) -> SortedRecords:
        columns = {column: values[positions] for column, values in self._columns.items()}
        payload = gather(self.arena, self._starts[positions], columns[Column.LENGTH])
        return SortedRecords(keys, columns, payload)

    def sorted(self) -> Iterator[SortedRecords]:
        """All records sorted by (key, offset), in pieces of about ``PIECE_BYTES``: what a flush writes."""
        order, keys = self._order(0, self.record_count)
        pieces = -(-self.size_bytes // PIECE_BYTES)
        step = -(-len(order) // pieces)
        firsts = range(0, len(order), step)
        return (self._records(keys[first : first + step], order[first : first + step]) for first in firsts)


def slabs_for(capacity_bytes: int) -> Slabs:
    """Memory for memtables of a capacity: one part for records' bytes, one for columns, whatever their ratio."""
    places = _column_places(capacity_bytes)
    begins = (_aligned(capacity_bytes), *(end for _, end in places))
    columns = [(begin + SMALL_PAGES_BYTES, end) for begin, (_, end) in zip(begins, places, strict=False)]
    return Slabs(places[-1][1], [(0, capacity_bytes), *columns])


def _column_places(capacity_bytes: int) -> list[tuple[np.dtype[Any], int]]:
    """dtype of each column that every record has, and where in the slab it ends."""
    records = capacity_bytes // RECORD_COLUMN_BYTES + 1
    places: list[tuple[np.dtype[Any], int]] = []
    end = _aligned(capacity_bytes)
    for name in ("u8", "i8", "i8", "u4", "i8"):  # keys, starts, offsets, lengths, stored_ms
        dtype = np.dtype(name)
        end += _aligned(records * dtype.itemsize)
        places.append((dtype, end))
    return places


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _carve(slab: U8, capacity_bytes: int) -> Iterator[NDArray[Any]]:
    """The columns behind the arena of ``capacity_bytes``."""
    records = capacity_bytes // RECORD_COLUMN_BYTES + 1
    begin = _aligned(capacity_bytes)
    for dtype, end in _column_places(capacity_bytes):
        yield slab[begin : begin + records * dtype.itemsize].view(dtype)
        begin = end


def _widen(values: NDArray[Any], used: int, capacity: int) -> NDArray[Any]:
    """A longer copy; what is not used yet is zero, as optional columns need it."""
    wider = np.zeros(capacity, values.dtype)
    wider[:used] = values[:used]
    return wider
