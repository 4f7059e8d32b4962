"""Reading: newest to oldest through memory, level 0 and level 1 (thesis 4.4).

A queue's offsets grow with time, so each source holds a range of them that lies wholly before those of newer
sources. A read looks for the newest source that holds the wanted offset (see :mod:`.locate`), then goes forward from
there, only as far as it has to.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import BinaryIO

import numpy as np

from lsmq.errors import CorruptFile
from lsmq.record_batch import Column, RecordBatch, split_batches, verify_batches

from .bloom import Probe, bloom_probe
from .columns import DTYPES, I64, U32, Columns, encode_one, gather
from .index import IndexColumn, IndexPage
from .locate import newest_holding
from .memtable import TOMBSTONE_TOPIC, Memtable, SortedRecords
from .table import Table
from .version import Run, Version

#: Runs of whole blocks shorter than this are not worth a system call of their own.
MIN_FILE_RANGE_BYTES = 64 * 1024

#: What a record counts for beside its bytes, where bytes are limited.
RECORD_OVERHEAD_BYTES = 16
#: What is far behind is read from the disk in pieces, between which the log's fsyncs have their turn.
_PIECE_BYTES = 128 << 10
#: Of a queue with deleted messages so many offsets are looked at at first, and twice as many when none is left of them.
_FIRST_PART = 1024


class MissingRecords(Exception):
    """No source has the record at an offset of a queue without tombstones."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FileRange:
    """Whole blocks of one queue in a table file, to be sent as they are. Each is a record batch.

    ``table`` remembers damage that is found in them.
    """

    file: BinaryIO
    position: int
    length: int
    path: str
    table: Table

    def load(self) -> bytes:
        """Read them. Raises ``CorruptFile`` when a checksum does not match."""
        raw = bytearray(self.length)
        view = memoryview(raw)
        for at in range(0, self.length, _PIECE_BYTES):
            self._read(view[at : at + _PIECE_BYTES], self.position + at)
        if self._verified(view, self.position) != self.length:
            raise self._damaged(f"cut off at byte {self.position}", self.position)
        return bytes(raw)

    def verify(self) -> None:
        """Verify their checksums, which has the operating system read what is not in its memory.

        Takes the memory of a piece, or of the largest block. Raises ``CorruptFile``.
        """
        position, end = self.position, self.position + self.length
        piece = memoryview(bytearray(min(_PIECE_BYTES, self.length)))
        while position < end:
            view = piece[: end - position]
            self._read(view, position)
            verified = self._verified(view, position)
            position += verified
            if verified == 0:  # A block that is larger than a piece.
                if len(view) == end - position:
                    raise self._damaged(f"cut off at byte {position}", position)
                piece = memoryview(bytearray(min(2 * len(piece), end - position)))

    def _read(self, into: memoryview, position: int) -> None:
        if os.preadv(self.file.fileno(), [into], position) != len(into):
            raise self._damaged(f"cut off at byte {position}", position)

    def _verified(self, view: memoryview, position: int) -> int:
        """Bytes of the whole blocks that ``view``, which stands at ``position``, begins with."""
        try:
            return verify_batches(view, source=self.path)
        except CorruptFile as damage:
            position += int(damage.details["position"])
            raise self._damaged(f"the block at byte {position} is damaged", position) from damage

    def _damaged(self, what: str, position: int) -> CorruptFile:
        self.table.damage = damage = CorruptFile(f"{self.path}: {what}", file=self.path, position=position)
        return damage


@dataclass(slots=True)
class Slice:
    """What a read found: encoded record batches, in memory or still in files, in order.

    Attributes:
        parts: record batches one after another. Those of a ``FileRange`` may hold records of the same queue
            below the offset asked for, which the reader passes over.
        queues, next_offsets: the queues that moved, and where to go on in each.
        record_count: records at or after the offsets asked for.
        size_bytes: of all parts.
    """

    parts: list[bytes | FileRange] = field(default_factory=list)
    queues: U32 = field(default_factory=lambda: np.empty(0, np.uint32))
    next_offsets: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    record_count: int = 0
    size_bytes: int = 0

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
    """What is read of a queue: up to ``end``, within limits, without ``deleted`` (None: nothing there is)."""

    key: int
    probe: Probe
    end: int
    max_records: int
    max_bytes: int
    deleted: I64 | None


def read_queue(
    version: Version, key: int, offset: int, end: int, max_records: int, max_bytes: int, *, deletes: bool
) -> QueueRead:
    """Records of a queue in ``[offset, end)``, in order, up to ``max_records`` and about ``max_bytes``.

    At least one record is returned when there is one, whatever its size. Raises ``CorruptFile`` or
    ``MissingRecords``.

    Args:
        deletes: whether messages in the range may be deleted. The tombstones of a part of it are looked at at a time.
    """
    result = QueueRead([], offset, 0, 0)
    probe = bloom_probe(key)
    part = _FIRST_PART if deletes else end - offset
    while result.next_offset < end and not result.record_count:
        stop = min(end, result.next_offset + part)
        deleted = _deleted_offsets(version, key, result.next_offset, stop) if deletes else None
        _read_part(version, _Wanted(key, probe, stop, max_records, max_bytes, deleted), result)
        part *= 2
    return result


def _read_part(version: Version, wanted: _Wanted, result: QueueRead) -> None:
    """What is wanted of a queue, from where the result has come to."""
    end = wanted.end
    while not result.parts and result.next_offset < end:
        began, result.full = result.next_offset, False
        memtables, runs = _sources(version, wanted, began)
        for run in runs:
            if not result.full and result.next_offset < end:
                _from_run(result, run, wanted)
        for memtable, positions in memtables:
            if not result.full and result.next_offset < end:
                _from_memtable(result, memtable, positions, wanted)
        if result.next_offset == began:  # all that was left is deleted, and what there is came since
            if wanted.deleted is None:
                raise MissingRecords(began)
            result.next_offset = end


def _sources(version: Version, wanted: _Wanted, offset: int) -> tuple[list[tuple[Memtable, I64]], Sequence[Run]]:
    """Memtables with positions of the queue's records from ``offset`` on, and runs: oldest first, as far as needed."""
    memtables: list[tuple[Memtable, I64]] = []
    for memtable in version.memtables:
        positions = memtable.find(wanted.key, offset, wanted.max_records)
        if len(positions):
            memtables.insert(0, (memtable, positions))
            if int(memtable.offsets_at(positions[:1])[0]) <= offset:
                return memtables, ()
    runs = version.runs()
    return memtables, runs[newest_holding(runs, wanted.key, wanted.probe, offset) :: -1]


def _deleted_offsets(version: Version, key: int, offset: int, end: int) -> I64:
    """Offsets of the queue in ``[offset, end)`` that have a tombstone, sorted."""
    shadow = key | TOMBSTONE_TOPIC << 32
    found = [memtable.deleted(key, offset, end) for memtable in version.memtables if memtable.tombstone_count]
    probe = bloom_probe(shadow)
    for run in version.runs():
        if run.tombstone_count:
            for table, page, row in run.rows_from(shadow, probe, offset, end):
                block = table.block_of(page, row)
                offsets = block.column(Column.OFFSET, *block.span(shadow))
                found.append(offsets[offsets.searchsorted(offset) : offsets.searchsorted(end)])
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _fits(lengths: U32 | I64, result: QueueRead, wanted: _Wanted) -> int:
    """How many of the next records may be taken: at least one for an empty result."""
    room = wanted.max_records - result.record_count
    sizes = np.cumsum(lengths[:room], dtype=np.int64) + result.size_bytes
    count = int(np.searchsorted(sizes, wanted.max_bytes, side="right"))
    return max(count, 1) if result.record_count == 0 else count


def _take(result: QueueRead, records: SortedRecords, deleted: I64 | None) -> None:
    offsets = records.columns[Column.OFFSET]
    if deleted is None and offsets[0] != result.next_offset:
        raise MissingRecords(result.next_offset)
    result.next_offset = int(offsets[-1]) + 1
    if deleted is not None and len(deleted):
        alive = ~np.isin(offsets, deleted)
        if not alive.all():
            records = select(records, np.flatnonzero(alive))
    if len(records):
        result.parts.append(records)
        result.record_count += len(records)
        result.size_bytes += len(records.payload) + RECORD_OVERHEAD_BYTES * len(records)


def _from_memtable(result: QueueRead, memtable: Memtable, positions: I64, wanted: _Wanted) -> None:
    result.full = len(positions) >= wanted.max_records  # the search stopped there; the memtable may hold more
    offsets = memtable.offsets_at(positions)
    positions = positions[int(offsets.searchsorted(result.next_offset)) : int(offsets.searchsorted(wanted.end))]
    if len(positions) == 0:
        return
    count = _fits(memtable.lengths_at(positions), result, wanted)
    if count < len(positions):
        result.full = True
    if count:
        _take(result, memtable.records(positions[:count]), wanted.deleted)


def _from_run(result: QueueRead, run: Run, wanted: _Wanted) -> None:
    skip = 0
    for table, page, row in run.rows_from(wanted.key, wanted.probe, result.next_offset, wanted.end):
        if skip:  # these left as whole blocks
            skip -= 1
            continue
        result.full = result.record_count >= wanted.max_records or result.size_bytes >= wanted.max_bytes
        if result.full or result.next_offset >= wanted.end:
            return
        taken = 0 if wanted.deleted is not None else _take_whole_blocks(result, table, page, row, wanted)
        if result.full:
            return
        if taken:
            skip = taken - 1
            continue
        block = table.block_of(page, row)
        first, stop = block.span(wanted.key)
        offsets = block.column(Column.OFFSET, first, stop)
        last = first + int(offsets.searchsorted(wanted.end))
        first += int(offsets.searchsorted(max(result.next_offset, table.begins(wanted.key))))
        if first < last:
            count = _fits(block.column(Column.LENGTH, first, last), result, wanted)
            result.full = count < last - first
            if count:
                _take(result, block.records(first, min(last, first + count)), wanted.deleted)
            if result.full:
                return


def _take_whole_blocks(result: QueueRead, table: Table, page: IndexPage, row: int, wanted: _Wanted) -> int:
    """Add blocks that hold nothing but the queue as one file range; returns how many.

    The result is full when the bytes left are too few for the next block: half of it would have to be decoded, and all
    of it again by the next read.
    """
    last_offsets = page.column(IndexColumn.LAST_OFFSET)[row:]
    sizes = np.cumsum(page.column(IndexColumn.SIZE)[row:])
    key = np.uint64(wanted.key)
    whole = (page.column(IndexColumn.FIRST_KEY)[row:] == key) & (page.column(IndexColumn.LAST_KEY)[row:] == key)
    whole &= last_offsets < wanted.end
    whole &= last_offsets - result.next_offset + 1 + result.record_count <= wanted.max_records
    fits = whole & (sizes + result.size_bytes <= wanted.max_bytes)
    count = len(fits) if fits.all() else int(np.argmin(fits))
    if count == 0:
        result.full = bool(whole[0]) and bool(result.parts) and isinstance(result.parts[-1], FileRange)
        return 0
    length = int(sizes[count - 1])
    if length < MIN_FILE_RANGE_BYTES or not table.may_lend():
        return 0
    first_offset = max(page.first_offsets[row], result.next_offset)
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


def select(records: SortedRecords, chosen: I64) -> SortedRecords:
    """The records at ``chosen``, in that order."""
    lengths = records.columns[Column.LENGTH]
    ends = np.cumsum(lengths, dtype=np.int64)
    columns = {column: values[chosen] for column, values in records.columns.items()}
    payload = gather(records.payload, (ends - lengths)[chosen], lengths[chosen])
    return SortedRecords(records.keys[chosen], columns, payload)


def concatenate(parts: Sequence[SortedRecords]) -> SortedRecords:
    """Records one after another; columns that only some have are zero in the others."""
    if len(parts) == 1:
        return parts[0]
    names = sorted({column for part in parts for column in part.columns})
    columns: Columns = {}
    for column in names:
        columns[column] = np.concatenate(
            [part.columns[column] if column in part.columns else np.zeros(len(part), DTYPES[column]) for part in parts]
        )
    return SortedRecords(
        np.concatenate([part.keys for part in parts]),
        columns,
        np.concatenate([part.payload for part in parts]),
    )


def encode_records(records: SortedRecords) -> bytes:
    """One record batch, as readers get it."""
    keys = records.keys
    columns: Columns = {
        Column.TOPIC: (keys >> np.uint64(32)).astype(np.uint32),
        Column.QUEUE: keys.astype(np.uint32),
        **records.columns,
    }
    return encode_one(columns, records.payload)
