"""Reading: newest to oldest through memory, level 0 and level 1 (thesis 4.4).

A queue's offsets grow with time, so each source holds a range of them that lies wholly before those of newer
sources. A read goes back through the sources until one holds the wanted offset, then forward from there.
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

from .columns import DTYPES, I64, U32, Columns, encode_one, gather
from .memtable import TOMBSTONE_TOPIC, Memtable, SortedRecords
from .sstable import IndexColumn
from .table import Table
from .version import Run, Version

#: Runs of whole blocks shorter than this are not worth a system call of their own.
MIN_FILE_RANGE_BYTES = 64 * 1024

#: What a record counts for beside its bytes, where bytes are limited.
RECORD_OVERHEAD_BYTES = 16
#: What is far behind is read from the disk in pieces, between which the log's fsyncs have their turn.
_PIECE_BYTES = 128 << 10


class MissingRecords(Exception):
    """No source has the record at an offset of a queue without tombstones."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@dataclass(frozen=True, slots=True)
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
class _Piece:
    """A source's records of the queue from the wanted offset on."""

    first_offset: int
    memtable: Memtable | None = None
    positions: I64 | None = None
    table: Table | None = None
    run: Run | None = None
    block: int = 0


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


def read_queue(
    version: Version, key: int, offset: int, end: int, max_records: int, max_bytes: int, *, deletes: bool
) -> QueueRead:
    """Records of a queue in ``[offset, end)``, in order, up to ``max_records`` and about ``max_bytes``.

    At least one record is returned when there is one, whatever its size. Raises ``CorruptFile`` or
    ``MissingRecords``.

    Args:
        deletes: whether the topic ever had tombstones.
    """
    deleted = _deleted_offsets(version, key, offset, end) if deletes else None
    result = QueueRead([], offset, 0, 0)
    while not result.parts and result.next_offset < end:
        began, result.full = result.next_offset, False
        pieces = _find_pieces(version, key, result.next_offset, max_records)
        if not deletes and (not pieces or pieces[-1].first_offset > result.next_offset):
            raise MissingRecords(result.next_offset)
        for piece in reversed(pieces):
            if result.full or result.next_offset >= end:
                break
            if not deletes and piece.first_offset > result.next_offset:
                raise MissingRecords(result.next_offset)
            if piece.memtable is not None and piece.positions is not None:
                _from_memtable(result, piece.memtable, piece.positions, end, max_records, max_bytes, deleted)
            elif piece.run is not None:
                _from_run(result, piece, key, end, max_records, max_bytes, deleted)
        if result.next_offset == began:  # all that was left is deleted, and what there is came since
            result.next_offset = end
    return result


def _find_pieces(version: Version, key: int, offset: int, limit: int) -> list[_Piece]:
    pieces: list[_Piece] = []
    for memtable in version.memtables:
        positions = memtable.find(key, offset, limit)
        if len(positions):
            first = int(memtable.offsets_at(positions[:1])[0])
            pieces.append(_Piece(first, memtable=memtable, positions=positions))
            if first <= offset:
                return pieces
    for run in version.runs():
        piece = _seek_run(run, key, offset)
        if piece is not None:
            pieces.append(piece)
            if piece.first_offset <= offset:
                return pieces
    return pieces


def _seek_run(run: Run, key: int, offset: int) -> _Piece | None:
    for table in run.tables_from(key, offset):
        index = table.index()
        if not index.may_contain(key):
            continue
        number = index.seek(key, offset)
        if number == index.count:
            continue
        first_key = int(index.columns[IndexColumn.FIRST_KEY][number])
        if first_key > key:
            return None
        if first_key == key:
            first_offset = int(index.columns[IndexColumn.FIRST_OFFSET][number])
            if first_offset >= offset:
                return _Piece(first_offset, table=table, run=run, block=number)
        block = table.block(number)
        at = block.seek(key, offset)
        if at == block.count or block.span(key)[1] <= at:
            return None
        return _Piece(int(block.offsets[at]), table=table, run=run, block=number)
    return None


def _deleted_offsets(version: Version, key: int, offset: int, end: int) -> I64:
    shadow = key | TOMBSTONE_TOPIC << 32
    found: list[I64] = []
    for memtable in version.memtables:
        if memtable.tombstone_count:
            positions = memtable.find(shadow, offset, memtable.record_count)  # a message may be deleted twice
            found.append(memtable.offsets_at(positions))
    for run in version.runs():
        if run.tombstone_count:
            for table in run.tables_from(shadow, offset):
                index = table.index()
                if index.may_contain(shadow):
                    for number in range(index.seek(shadow, offset), index.count):
                        block = table.block(number)
                        first, last = block.span(shadow)
                        found.append(block.column(Column.OFFSET, first, last))
                        if last < block.count:
                            break
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _fits(lengths: U32 | I64, result: QueueRead, max_records: int, max_bytes: int) -> int:
    """How many of the next records may be taken: at least one for an empty result."""
    room = max_records - result.record_count
    sizes = np.cumsum(lengths[:room], dtype=np.int64) + result.size_bytes
    count = int(np.searchsorted(sizes, max_bytes, side="right"))
    return max(count, 1) if result.record_count == 0 else count


def _take(result: QueueRead, records: SortedRecords, deleted: I64 | None) -> None:
    offsets = records.columns[Column.OFFSET]
    result.next_offset = int(offsets[-1]) + 1
    if deleted is not None and len(deleted):
        alive = ~np.isin(offsets, deleted)
        if not alive.all():
            records = select(records, np.flatnonzero(alive))
    if len(records):
        result.parts.append(records)
        result.record_count += len(records)
        result.size_bytes += len(records.payload) + RECORD_OVERHEAD_BYTES * len(records)


def _from_memtable(
    result: QueueRead,
    memtable: Memtable,
    positions: I64,
    end: int,
    max_records: int,
    max_bytes: int,
    deleted: I64 | None,
) -> None:
    result.full = len(positions) >= max_records  # the search stopped there; the memtable may hold more
    offsets = memtable.offsets_at(positions)
    positions = positions[int(offsets.searchsorted(result.next_offset)) : int(offsets.searchsorted(end))]
    if len(positions) == 0:
        return
    count = _fits(memtable.lengths_at(positions), result, max_records, max_bytes)
    if count < len(positions):
        result.full = True
    if count:
        _take(result, memtable.records(positions[:count]), deleted)


def _from_run(
    result: QueueRead,
    piece: _Piece,
    key: int,
    end: int,
    max_records: int,
    max_bytes: int,
    deleted: I64 | None,
) -> None:
    assert piece.run is not None and piece.table is not None
    number = piece.block
    tables = piece.run.tables
    for table in tables[tables.index(piece.table) :]:
        index = table.index()
        while number < index.count:
            if int(index.columns[IndexColumn.FIRST_KEY][number]) > key:
                return
            result.full = result.record_count >= max_records or result.size_bytes >= max_bytes
            if result.full or result.next_offset >= end:
                return
            taken = (
                0
                if deleted is not None
                else _take_whole_blocks(result, table, number, key, end, max_records, max_bytes)
            )
            if taken:
                if result.full:
                    return
                number += taken
                continue
            block = table.block(number)
            first, stop = block.span(key)
            offsets = block.column(Column.OFFSET, first, stop)
            last = first + int(offsets.searchsorted(end))
            first += int(offsets.searchsorted(result.next_offset))
            if first < last:
                lengths = block.column(Column.LENGTH, first, last)
                count = _fits(lengths, result, max_records, max_bytes)
                result.full = count < last - first
                if count:
                    _take(result, block.records(first, min(last, first + count)), deleted)
                if result.full:
                    return
            if stop < block.count:
                return
            number += 1
        number = 0


def _take_whole_blocks(
    result: QueueRead, table: Table, number: int, key: int, end: int, max_records: int, max_bytes: int
) -> int:
    """Add blocks that hold nothing but the queue as one file range; returns how many.

    The result is full when the bytes left are too few for the next block: half of it would have to be decoded, and all
    of it again by the next read.
    """
    columns = table.index().columns
    firsts = columns[IndexColumn.FIRST_KEY][number : number + 256]
    lasts = columns[IndexColumn.LAST_KEY][number : number + 256]
    last_offsets = columns[IndexColumn.LAST_OFFSET][number : number + 256]
    sizes = np.cumsum(columns[IndexColumn.SIZE][number : number + 256])
    wanted = np.uint64(key)
    fits = (firsts == wanted) & (lasts == wanted) & (last_offsets < end)
    fits &= sizes + result.size_bytes <= max_bytes
    fits &= last_offsets - result.next_offset + 1 + result.record_count <= max_records
    count = len(fits) if fits.all() else int(np.argmin(fits))
    if count == 0 or sizes[count - 1] < MIN_FILE_RANGE_BYTES:
        return 0
    first_offset = max(int(columns[IndexColumn.FIRST_OFFSET][number]), result.next_offset)
    position = int(columns[IndexColumn.POSITION][number])
    length = int(sizes[count - 1])
    result.full = count < len(sizes) and int(sizes[count]) + result.size_bytes > max_bytes
    result.parts.append(FileRange(table.stream(), position, length, str(table.path), table))
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
