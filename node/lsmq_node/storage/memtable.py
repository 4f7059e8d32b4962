"""The memtable: committed records in memory, in columns, until they are flushed to a table.

Records are appended as they are committed, batch after batch: one arena for their bytes, one array a column.
Readers need order; a bulk load does not. So the part that came since the last look is sorted by (queue key,
offset) when a reader comes, into a *chunk*: the memtable is ordered by time between chunks and by queue inside
them. A queue is found by one binary search a chunk; what is too little to sort is compared as a whole. Small chunks
are merged, so there are never many. A queue that is idle costs nothing, and a record costs its bytes plus about forty.

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

from lsmq import runtime
from lsmq.record_batch import Column

from .columns import DTYPES, I64, U8, U64, Columns, gather, stable_sort
from .slabs import Slabs
from .sorted_records import SHADOW, TOMBSTONE_TOPIC, SortedPart, SortedRecords, check_size

#: So many unsorted records make a chunk when a reader comes.
CHUNK_RECORDS = 16_384
#: So many that came last are looked at alone first: who reads as they come wants no others.
RECENT_RECORDS = 1_024
#: So long a reader waits for another one that sorts.
_SORT_WAIT_SECONDS = 0.2
#: So many chunks are merged into one.
CHUNK_LIMIT = 8
#: A flush copies so many bytes at a time: they stay in the CPU's cache until they are written.
PIECE_BYTES = 4 << 20
#: Bytes of the columns that every record has: key 8, offset 8, start 8, length 4, stored_ms 8.
RECORD_COLUMN_BYTES = 8 + 8 + 8 + 4 + 8
#: Columns begin with so many bytes of ordinary pages: a memtable of few records takes no huge page for each.
SMALL_PAGES_BYTES = 512 << 10
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The order of a memtable's records up to ``end``, from where the one before ends: their keys and positions.

    ``view`` are the keys for Python's own ``bisect``, which finds one sooner than numpy does.
    """

    end: int
    count: int
    keys: U64
    view: memoryview
    order: I64


class Memtable:
    """One thread applies; readers may run beside it, without a lock.

    A reader sees the records that were applied when it began, since ``record_count`` is raised last and
    arrays are replaced by longer ones, never changed where they are in use.
    """

    def __init__(self, first_lsn: int, capacity_bytes: int, slabs: Slabs | None = None) -> None:
        """``slabs``, of :func:`slabs_for` that capacity, lend the memory."""
        # These never change.
        self.first_lsn = first_lsn
        self.capacity_bytes = capacity_bytes
        slab = (slabs or slabs_for(capacity_bytes)).take()
        self.arena: U8 = slab[:capacity_bytes]
        self.arena_view = self.arena.data
        # The applying thread's; readers take ``record_count`` first, and look at nothing beyond it.
        self.end_lsn = first_lsn
        self.record_count = 0
        self.tombstone_count = 0
        self.arena_used = 0
        columns = _carve(slab, capacity_bytes)
        self._keys: U64 = next(columns)
        self.starts: I64 = next(columns)
        self.columns: Columns = dict(zip((Column.OFFSET, Column.LENGTH, Column.STORED_MS), columns, strict=True))
        #: What is sorted, oldest first. Replaced as a whole, by whichever reader finds enough that is not.
        self._sorted: tuple[_Sorted, ...] = ()
        self._sorting = runtime.Lock()

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
        assert self.end_lsn < end_lsn, "batches are applied in the order of the log"
        count = len(keys)
        first, end = self.record_count, self.record_count + count
        self._reserve(end)
        self._keys[first:end] = keys
        self.columns[Column.OFFSET][first:end] = offsets
        self.columns[Column.LENGTH][first:end] = lengths
        self.columns[Column.STORED_MS][first:end] = stored_ms
        starts = self.starts[first:end]
        starts[0] = self.arena_used
        np.cumsum(lengths[:-1], out=starts[1:])
        starts[1:] += self.arena_used
        for column, values in optional.items():
            if column not in self.columns:  # a reader may be going through the old dict
                self.columns = {**self.columns, column: np.zeros(len(self._keys), DTYPES[column])}
            self.columns[column][first:end] = values
        self.arena[self.arena_used : self.arena_used + len(payload)] = np.frombuffer(payload, np.uint8)
        self.arena_used += len(payload)
        assert starts[-1] + lengths[-1] == self.arena_used, "the records of a batch are its payload"
        if int(keys[-1]) & (TOMBSTONE_TOPIC << 32):
            self.tombstone_count += count
        self.record_count = end
        self.end_lsn = end_lsn

    def arrived(self) -> tuple[U64, Columns]:
        """Keys and columns of all records, as they came."""
        count = self.record_count
        return self._keys[:count], {column: values[:count] for column, values in self.columns.items()}

    def _reserve(self, count: int) -> None:
        capacity = len(self._keys)
        if count <= capacity:
            return
        while capacity < count:
            capacity *= 2
        used = self.record_count
        self._keys = _widen(self._keys, used, capacity)
        self.starts = _widen(self.starts, used, capacity)
        for column, values in self.columns.items():
            self.columns[column] = _widen(values, used, capacity)

    def _sort(self) -> tuple[tuple[_Sorted, ...], int, int]:
        """What is sorted, how many records that covers, and how many there are. Sorts what has grown enough.

        One reader sorts, and those that want the same meanwhile wait for it: each on its own would take as long, and
        memory as often. They do not wait for ever: who sorts may be interrupted at any point. What is sorted is shown
        in one step, so that leaves nothing behind but what is not sorted.
        """
        known, covered, end = self._seen()
        if end - covered >= CHUNK_RECORDS:
            sorting = self._sorting
            held = sorting.acquire(timeout=_SORT_WAIT_SECONDS)
            if not held:
                self._sorting = runtime.Lock()  # whoever had the other may be gone
            try:
                known, covered, end = self._seen()
                if end - covered >= CHUNK_RECORDS:
                    if len(known) == CHUNK_LIMIT:  # make one of all
                        known, covered = (), 0
                    order, keys = self._order(covered, end)
                    known = self._sorted = (*known, _Sorted(end, len(keys), keys, keys.data, order + covered))
                    covered = end
            finally:
                if held:
                    sorting.release()
        return known, covered, end

    def _seen(self) -> tuple[tuple[_Sorted, ...], int, int]:
        end, known = self.record_count, self._sorted
        covered = known[-1].end if known else 0
        return known, covered, max(covered, end)

    def _order(self, first: int, end: int) -> tuple[I64, U64]:
        """Places that sort the records ``[first, end)`` by key and offset, counted from ``first``; and the keys."""
        order, keys = stable_sort(self._keys[first:end])
        tail = int(keys.searchsorted(SHADOW)) if self.tombstone_count else len(keys)
        if tail < len(keys):  # messages are deleted in any order
            shadow = order[tail:]
            order[tail:] = shadow[np.lexsort((self.columns[Column.OFFSET][first:end][shadow], keys[tail:]))]
        return order, keys

    def holding(self, key: int) -> Iterator[tuple[Chunk, int]]:
        """Chunks with records of the queue, newest first, and the row where they begin."""
        known, covered, end = self._sort()
        if covered < end:
            rest = np.flatnonzero(self._keys[covered:end] == np.uint64(key))
            if len(rest):
                rest += covered
                if key & TOMBSTONE_TOPIC << 32:  # messages are deleted in any order
                    rest = rest[np.argsort(self.columns[Column.OFFSET][rest], kind="stable")]
                yield Chunk(self, self._keys[rest], rest), 0
        for part in reversed(known):
            first = bisect_left(part.view, key)
            if first < part.count and part.view[first] == key:
                yield Chunk(self, part.keys, part.order), first

    def with_key(self, topic_id: int, digest: int) -> tuple[U64, I64, I64]:
        """Queue keys, offsets and times of a topic's messages whose key has this hash, in the order of the log."""
        count, columns = self.record_count, self.columns
        hashes = columns.get(Column.KEY_HASH)
        rows = np.empty(0, np.int64) if hashes is None else np.flatnonzero(hashes[:count] == np.uint64(digest))
        rows = rows[self._keys[rows] >> np.uint64(32) == np.uint64(topic_id)]
        return self._keys[rows], columns[Column.OFFSET][rows], columns[Column.STORED_MS][rows]

    def between(self, low: int, high: int) -> Iterator[tuple[Chunk, int, int]]:
        """Chunks with records whose keys are in ``[low, high)``, and the rows of these."""
        known, covered, end = self._sort()
        if covered < end:
            keys = self._keys[covered:end]
            rest = np.flatnonzero((keys >= np.uint64(low)) & (keys < np.uint64(high))) + covered
            if len(rest):
                rest = rest[np.lexsort((self.columns[Column.OFFSET][rest], self._keys[rest]))]
                yield Chunk(self, self._keys[rest], rest), 0, len(rest)
        for part in known:
            first, stop = bisect_left(part.view, low), bisect_left(part.view, high)
            if first < stop:
                yield Chunk(self, part.keys, part.order), first, stop

    def newest_first(self) -> Iterator[list[Chunk]]:
        """All records, those that came last before the others, which are not sorted for who asks no further."""
        known, covered, end = self._sort()
        recent = max(covered, end - RECENT_RECORDS)
        if recent < end:
            yield [self._chunk(recent, end)]
        others = [Chunk(self, part.keys, part.order) for part in known]
        if covered < recent:
            others.append(self._chunk(covered, recent))
        yield others

    def _chunk(self, first: int, end: int) -> Chunk:
        order, keys = self._order(first, end)
        return Chunk(self, keys, order + first)

    def recent_bytes(self, keys: U64, counts: I64) -> int | None:
        """What so many of the last records of each of the sorted, distinct queues take at most.

        None where they are not all among those that came last, or where who reads them would have to sort first.
        """
        _, covered, end = self._seen()
        if end - covered >= CHUNK_RECORDS:
            return None
        first = max(0, end - RECENT_RECORDS)
        recent = self._keys[first:end]
        places = np.minimum(keys.searchsorted(recent), len(keys) - 1)
        mine = np.flatnonzero(keys[places] == recent)
        if (np.bincount(places[mine], minlength=len(keys)) < counts).any():
            return None
        return int(self.columns[Column.LENGTH][first:end][mine].max(initial=0)) * int(counts.sum())

    def sorted(self) -> Iterator[SortedRecords]:
        """All records sorted by (key, offset), in pieces of about ``PIECE_BYTES``: what a flush writes."""
        order, keys = self._order(0, self.record_count)
        pieces = -(-self.size_bytes // PIECE_BYTES)
        step = -(-len(order) // pieces)
        firsts = range(0, len(order), step)
        whole = Chunk(self, keys, order)
        return (whole.records(first, first + step) for first in firsts)


class Chunk(SortedPart):
    """Some of a memtable's records, in order: their keys, and where each lies. Made for a look, and then gone."""

    __slots__ = ("_keys", "_memtable", "_offsets", "_order")

    def __init__(self, memtable: Memtable, keys: U64, order: I64) -> None:
        self._memtable = memtable
        self._keys = keys
        self._order = order
        self._offsets: I64 = memtable.columns[Column.OFFSET]

    @property
    def keys(self) -> U64:
        return self._keys

    def offset(self, row: int) -> int:
        found: int = self._offsets.item(self._order.item(row))
        return found

    def value(self, column: int, row: int) -> int:
        values = self._memtable.columns.get(column)
        return 0 if values is None else int(values.item(self._order.item(row)))

    def end_of(self, first: int) -> int:
        """Where the records end of the queue that begins at a row."""
        return int(self._keys.searchsorted(self._keys[first], "right"))

    def column(self, column: int, first: int = 0, end: int | None = None) -> NDArray[Any]:
        order, values = self._order[first:end], self._memtable.columns.get(column)
        return np.zeros(len(order), DTYPES[column]) if values is None else values[order]

    def column_at(self, column: int, rows: I64) -> NDArray[Any]:
        values = self._memtable.columns.get(column)
        return np.zeros(len(rows), DTYPES[column]) if values is None else values[self._order[rows]]

    def record_bytes(self, first: int, end: int) -> list[bytes]:
        memtable, order = self._memtable, self._order[first:end]
        arena, starts, lengths = memtable.arena_view, memtable.starts, memtable.columns[Column.LENGTH]
        places = zip(starts[order].tolist(), lengths[order].tolist(), strict=True)
        return [bytes(arena[at : at + length]) for at, length in places]

    def records(self, first: int, end: int) -> SortedRecords:
        return self._copied(self._keys[first:end], self._order[first:end])

    def chosen(self, rows: I64, limit_bytes: int) -> SortedRecords:
        check_size(self.column_at(Column.LENGTH, rows), limit_bytes)
        return self._copied(self._keys[rows], self._order[rows])

    def _copied(self, keys: U64, order: I64) -> SortedRecords:
        memtable = self._memtable
        columns = {column: values[order] for column, values in memtable.columns.items()}
        return SortedRecords(keys, columns, gather(memtable.arena, memtable.starts[order], columns[Column.LENGTH]))


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
