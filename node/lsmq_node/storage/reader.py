"""Reading a queue: from the source that has the wanted offset forward, only as far as it has to (thesis 4.4).

What is found are columns, and ranges of table files where whole blocks are the queue's alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from lsmq.record_batch import Column, RecordBatch, split_batches

from .bloom import bloom_probe
from .columns import I64, U32
from .file_range import MIN_FILE_RANGE_BYTES, FileRange
from .index import IndexColumn, IndexPage
from .locate import in_memory, in_tables
from .sieve import Sieve
from .sorted_records import TOMBSTONE_TOPIC, SortedPart, SortedRecords
from .table import Table
from .version import Version

#: What a record counts for beside its bytes, where bytes are limited.
RECORD_OVERHEAD_BYTES = 16
_ANY_BYTES = 1 << 62
#: Of a queue with deleted messages so many offsets are looked at at first, and twice as many when none is left of them.
_FIRST_PART = 1024


class MissingRecords(Exception):
    """No source has the record at an offset of a queue without tombstones."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@dataclass(slots=True)
class Slice:
    """What a read found: encoded record batches, in memory or still in files, in order.

    Attributes:
        parts: record batches one after another.
        queues, next_offsets: the queues that moved, and where to go on in each.
        record_count: records at or after the offsets asked for.
        size_bytes: of all parts.
        spent: the read has looked at as much as one may, and let little through: there may be more at once.
    """

    parts: list[bytes | FileRange] = field(default_factory=list)
    queues: U32 = field(default_factory=lambda: np.empty(0, np.uint32))
    next_offsets: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    record_count: int = 0
    size_bytes: int = 0
    spent: bool = False

    @property
    def positions(self) -> tuple[U32, I64]:
        return self.queues, self.next_offsets

    def load(self) -> bytes:
        """All parts in memory, checksums verified. Raises ``CorruptFile``."""
        return b"".join(part if isinstance(part, bytes) else part.load() for part in self.parts)

    def batches(self) -> Iterator[RecordBatch]:
        return split_batches(self.load(), source="read")


@dataclass(slots=True)
class QueueRead:
    """One queue's share of a read: records as columns, and whole blocks."""

    parts: list[SortedRecords | FileRange]
    next_offset: int
    record_count: int
    size_bytes: int
    full: bool = False  # a limit was met: newer sources must not follow, or there would be a gap

    def record_bytes(self, offset: int) -> Iterator[bytes]:
        """Each record from ``offset`` on: header and body."""
        for part in self.parts:
            if isinstance(part, SortedRecords):
                whole, ends = part.payload.tobytes(), np.cumsum(part.columns[Column.LENGTH], dtype=np.int64).tolist()
                yield from (whole[start:end] for start, end in pairwise((0, *ends)))
                continue
            for batch in split_batches(part.load(), source=part.path):
                ends = list(accumulate(batch.column(Column.LENGTH), initial=0))
                skip = bisect_left(batch.column(Column.OFFSET), offset)
                whole = batch.payload.tobytes()
                yield from (whole[start:end] for start, end in pairwise(ends[skip:]))

    def first(self, offset: int) -> tuple[int, int] | None:
        """Offset and ``STORED_MS`` of the first record from ``offset`` on."""
        for part in self.parts:
            if isinstance(part, SortedRecords):
                return int(part.columns[Column.OFFSET][0]), int(part.columns[Column.STORED_MS][0])
            for batch in split_batches(part.load(), source=part.path):
                at = bisect_left(batch.column(Column.OFFSET), offset)
                if at < batch.record_count:
                    return batch.column(Column.OFFSET)[at], batch.column(Column.STORED_MS)[at]
        return None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is read of a queue: up to ``end``, within limits, without ``deleted`` (None: nothing there is).

    Of what there is, what ``sieve`` lets through; without one, all.
    """

    key: int
    end: int
    max_records: int
    max_bytes: int
    deleted: I64 | None
    sieve: Sieve | None

    @property
    def all(self) -> bool:
        """Whether every record there is is wanted."""
        return self.deleted is None and self.sieve is None


def read_queue(
    version: Version,
    key: int,
    offset: int,
    end: int,
    max_records: int,
    max_bytes: int,
    *,
    holes: bool,
    sieve: Sieve | None = None,
) -> QueueRead:
    """Records of a queue in ``[offset, end)``, in order, up to ``max_records`` and about ``max_bytes``.

    At least one record is returned when there is one, whatever its size, and the sieve is not spent before. Raises
    ``CorruptFile`` or ``MissingRecords``.

    Args:
        holes: whether messages in the range may be deleted, or gone since they expired. The tombstones of a part of it
            are looked at at a time.
        sieve: what is let through; it must not be spent.
    """
    result = QueueRead([], offset, 0, 0)
    max_records = max(max_records, 1)
    if not holes:
        stop = min(end, offset + max_records) if sieve is None else end
        _read(version, _Wanted(key, stop, max_records, max_bytes, None, sieve), result)
        return result
    part = _FIRST_PART
    while result.next_offset < end and not result.record_count and not (sieve is not None and sieve.spent):
        result.full, stop = False, min(end, result.next_offset + part)
        deleted = _deleted_offsets(version, key, result.next_offset, stop)
        _read(version, _Wanted(key, stop, max_records, max_bytes, deleted, sieve), result)
        if not result.full:  # what is not there was deleted, or has expired
            result.next_offset = stop
        part *= 2
    return result


def _read(version: Version, wanted: _Wanted, result: QueueRead) -> None:
    """What is wanted of a queue, from where the result has come to."""
    key, began = wanted.key, result.next_offset
    begins, recent = in_memory(version.memtables, key, began, wanted.end)
    if begins > began:
        skip = 0
        for table, page, row, _ in in_tables(version.runs(), key, began, wanted.end):
            if skip:  # these left as whole blocks
                skip -= 1
                continue
            if wanted.sieve is not None and _passes_over(result, page, row, wanted, wanted.sieve):
                if result.full or result.next_offset >= wanted.end:
                    return
                continue
            taken = _take_whole_blocks(result, table, page, row, wanted) if wanted.all else 0
            if taken:
                skip = taken - 1
            elif not result.full:
                block = table.block_of(page, row)
                _take(result, block, *block.span(key), max(result.next_offset, table.begins(key)), wanted)
            if result.full or result.next_offset >= wanted.end:
                return
    for part, first, stop, _ in recent:
        _take(result, part, first, stop, result.next_offset, wanted)
        if result.full:
            return
    if wanted.deleted is None and result.next_offset == began < wanted.end:
        raise MissingRecords(began)


def _deleted_offsets(version: Version, key: int, offset: int, end: int) -> I64:
    """Offsets of the queue in ``[offset, end)`` that have a tombstone, sorted."""
    shadow = key | TOMBSTONE_TOPIC << 32
    found: list[I64] = []

    def look(part: SortedPart, first: int, stop: int) -> None:
        first = part.seek(first, stop, offset)
        found.append(part.column(Column.OFFSET, first, part.seek(first, stop, end)))

    for memtable in version.memtables:
        if memtable.tombstone_count:
            for chunk, row in memtable.holding(shadow):
                look(chunk, row, chunk.end_of(row))
    probe = bloom_probe(shadow)
    for run in version.runs():
        if run.tombstone_count:
            for table, page, row in run.rows_from(shadow, probe, offset, end):
                block = table.block_of(page, row)
                look(block, *block.span(shadow))
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _take(result: QueueRead, part: SortedPart, first: int, stop: int, low: int, wanted: _Wanted) -> None:
    """Add what is wanted from offset ``low`` on of the queue's records ``[first, stop)``, as much as fits.

    The result is full when some of it does not. An empty one takes a record whatever its size.
    """
    first = part.seek(first, stop, low)
    stop = part.seek(first, stop, wanted.end)
    if first == stop:
        return
    if not wanted.all:
        _take_some(result, part, first, stop, wanted)
        return
    if wanted.max_records == result.record_count:
        result.full = True
        return
    sizes = np.cumsum(part.column(Column.LENGTH, first, stop), dtype=np.int64) + result.size_bytes
    count = max(int(sizes.searchsorted(wanted.max_bytes, "right")), result.record_count == 0)
    result.full = count < stop - first
    if count == 0:
        return
    records = part.records(first, first + count)
    if records.offsets[0] != result.next_offset:
        raise MissingRecords(result.next_offset)
    _add(result, records)


def _take_some(result: QueueRead, part: SortedPart, first: int, stop: int, wanted: _Wanted) -> None:
    """Add those of a queue's records ``[first, stop)`` that are wanted, as many as fit.

    What is wanted by its columns is copied as much at a time as may still be returned, and looked into then.
    """
    sieve = wanted.sieve
    end = stop
    if sieve is not None:
        stop = first if sieve.spent else min(stop, first + sieve.records_left)
        if first == stop:
            result.full = True
            return
    offsets = part.column(Column.OFFSET, first, stop)
    if wanted.deleted is None and offsets[0] != result.next_offset:
        raise MissingRecords(result.next_offset)
    keep = np.ones(stop - first, np.bool_) if sieve is None else sieve.look_at(part, first, stop)
    if wanted.deleted is not None and len(wanted.deleted):
        keep &= np.isin(offsets, wanted.deleted, invert=True)
    rows = np.flatnonzero(keep)
    lengths = part.column_at(Column.LENGTH, first + rows).astype(np.int64)
    at = 0
    while at < len(rows):
        sizes = np.cumsum(lengths[at:]) + result.size_bytes
        count = max(int(sizes.searchsorted(wanted.max_bytes, "right")), result.record_count == 0)
        count = min(count, wanted.max_records - result.record_count)
        if sieve is not None:
            count = 0 if at and sieve.spent else min(count, sieve.most_at_once)
        if count <= 0:
            result.full = True
            result.next_offset = max(result.next_offset, int(offsets[rows[at]]))
            return
        records = part.chosen(first + rows[at : at + count], _ANY_BYTES)
        _add(result, records if sieve is None else sieve.passing(records))
        at += count
        reached = int(offsets[rows[at] if at < len(rows) else -1]) + (at == len(rows))
        result.next_offset = max(result.next_offset, reached)
    result.next_offset = max(result.next_offset, int(offsets[-1]) + 1)
    result.full = stop < end


def _passes_over(result: QueueRead, page: IndexPage, row: int, wanted: _Wanted, sieve: Sieve) -> bool:
    """Go on behind a block of the queue's own that has none of the words that are picked; whether it is one.

    The index says so: the block is not read. The result is full when the sieve is spent by that.
    """
    if not page.first_keys[row] == wanted.key == page.last_keys[row] or not sieve.passes_over(page, row):
        return False
    if wanted.deleted is None and page.first_offsets[row] > result.next_offset:
        raise MissingRecords(result.next_offset)
    result.next_offset = max(result.next_offset, min(page.last_offsets[row] + 1, wanted.end))
    result.full = sieve.spent
    return True


def _add(result: QueueRead, records: SortedRecords) -> None:
    if len(records):
        result.next_offset = max(result.next_offset, int(records.offsets[-1]) + 1)
        result.parts.append(records)
        result.record_count += len(records)
        result.size_bytes += len(records.payload) + RECORD_OVERHEAD_BYTES * len(records)


def _take_whole_blocks(result: QueueRead, table: Table, page: IndexPage, row: int, wanted: _Wanted) -> int:
    """Add blocks that hold nothing but the queue as one file range; returns how many. None where the first one begins
    below what is wanted: what is there may be deleted.

    The result is full when the bytes left are too few for the next block: half of it would have to be decoded, and all
    of it again by the next read.
    """
    last_offsets = page.column(IndexColumn.LAST_OFFSET)[row:]
    sizes = np.cumsum(page.column(IndexColumn.SIZE)[row:])
    key = np.uint64(wanted.key)
    whole = (page.column(IndexColumn.FIRST_KEY)[row:] == key) & (page.column(IndexColumn.LAST_KEY)[row:] == key)
    whole &= last_offsets < wanted.end
    fits = whole & (sizes + result.size_bytes <= wanted.max_bytes)
    count = len(fits) if fits.all() else int(np.argmin(fits))
    if count == 0:
        result.full = bool(whole[0]) and bool(result.parts) and isinstance(result.parts[-1], FileRange)
        return 0
    length = int(sizes[count - 1])
    first_offset = page.first_offsets[row]
    if first_offset < result.next_offset or length < MIN_FILE_RANGE_BYTES or not table.may_lend():
        return 0
    if first_offset != result.next_offset:
        raise MissingRecords(result.next_offset)
    result.full = count < len(sizes) and int(sizes[count]) + result.size_bytes > wanted.max_bytes
    part = FileRange(table.file().stream(), page.positions[row], length, str(table.path), table)
    table.lend(part)
    result.parts.append(part)
    result.next_offset = int(last_offsets[count - 1]) + 1
    result.record_count += result.next_offset - first_offset
    result.size_bytes += length
    return count
