"""A block of a table, parsed: a record batch in which queues are looked up."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import crc32c
import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import COLUMN, COLUMN_BYTES, HEADER_BYTES, VERSION, Codec, Column, RecordBatch

from .columns import DTYPES, I64, U64, WIDTH_DTYPES, decode_column, gather
from .sorted_records import SortedPart, SortedRecords, check_size
from .sstable import stored_batch

_HEAD = struct.Struct("<IIBBHII")  # the beginning of a batch's header
_PLAIN = int(Codec.NONE)


_NO_COLUMN = 0, 0, 0
_TYPES = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Block(SortedPart):
    """A block parsed. Columns are decoded where and when they are asked for.

    Nearly all blocks hold one topic, so a queue is looked up in the packed deltas themselves.
    """

    CHANCES: ClassVar[int] = 1
    __slots__ = (
        "_directory",
        "_ends",
        "_keys",
        "_queues",
        "_topic",
        "count",
        "memory_bytes",
        "payload",
        "raw",
        "recent",
    )

    def __init__(self, raw: bytes, source: str, position: int) -> None:
        """Raises ``CorruptFile``, or ``UnsupportedFormat`` for a block of a newer version."""
        self.raw = raw
        self.recent = 0
        self._keys: U64 | None = None
        self._ends: memoryview | None = None
        unpacked_bytes = 0
        if not self._parse(raw):
            batch = stored_batch(raw, source, position, "block")  # raises, or unpacks
            self.count, self._directory, self.payload = batch.record_count, batch.directory, batch.payload
            if len(self.payload) > len(raw):
                unpacked_bytes = len(self.payload)
        _, width, topic = self._directory[Column.TOPIC]
        self._topic = -1 if width else topic
        self._queues: array[int] | None = None  # as deltas, once one was looked for
        # What is made when it is asked for counts too: ends and keys, 8 bytes a record each, and queues, 4.
        self.memory_bytes = len(raw) + 20 * self.count + 1000 + unpacked_bytes

    def _parse(self, raw: bytes) -> bool:
        """The usual case, without ceremony; False for a block that is compressed, or not as it should be."""
        if len(raw) < HEADER_BYTES:
            return False
        crc, total, version, codec, column_count, count, payload_bytes = _HEAD.unpack_from(raw)
        if version != VERSION or codec != _PLAIN or total != len(raw) or crc32c.crc32c(memoryview(raw)[4:]) != crc:
            return False
        position = HEADER_BYTES + column_count * COLUMN_BYTES
        directory: dict[int, tuple[int, int, int]] = {}
        for column, width, base in COLUMN.iter_unpack(raw[HEADER_BYTES:position]):
            directory[column] = (position, width, base)
            position += width * count
        if position + payload_bytes != total:
            return False
        self.count = count
        self._directory = directory
        self.payload = memoryview(raw)[position:]
        return True

    @property
    def batch(self) -> RecordBatch:
        """The block as the record batch that it is."""
        return RecordBatch(self.raw, verify=False)

    @property
    def keys(self) -> U64:
        if self._keys is None:
            queues = self.column(Column.QUEUE).astype(np.uint64)
            if self._topic >= 0:
                self._keys = queues | np.uint64(self._topic << 32)
            else:
                self._keys = queues | (self.column(Column.TOPIC).astype(np.uint64) << np.uint64(32))
        return self._keys

    @property
    def offsets(self) -> I64:
        """Offset of each record."""
        return self.column(Column.OFFSET)

    def column(self, column: int, first: int = 0, end: int | None = None) -> NDArray[Any]:
        count = (self.count if end is None else end) - first
        entry = self._directory.get(column)
        if entry is not None and first:
            entry = (entry[0] + first * entry[1], entry[1], entry[2])
        return decode_column(self.raw, entry, count, DTYPES[column])

    def column_at(self, column: int, rows: I64) -> NDArray[Any]:
        entry = self._directory.get(column)
        dtype = DTYPES[column]
        if entry is None or entry[1] == 0:
            return decode_column(self.raw, entry, len(rows), dtype)
        position, width, base = entry
        values = np.frombuffer(self.raw, WIDTH_DTYPES[width], self.count, position)[rows].astype(dtype)
        return values + np.uint64(base).astype(dtype) if base else values

    def span(self, key: int) -> tuple[int, int]:
        """The records ``[first, end)`` of a queue; where they would be when there are none."""
        if self._topic < 0:
            wanted = np.uint64(key)
            return int(self.keys.searchsorted(wanted, "left")), int(self.keys.searchsorted(wanted, "right"))
        topic, queue = key >> 32, key & 0xFFFFFFFF
        if topic != self._topic:
            return (0, 0) if topic < self._topic else (self.count, self.count)
        position, width, base = self._directory[Column.QUEUE]
        delta, queues = queue - base, self._queues
        if width == 0:
            return (0, 0) if delta < 0 else (0, self.count) if delta == 0 else (self.count, self.count)
        if queues is None:
            queues = self._queues = array(_TYPES[width], self.raw[position : position + width * self.count])
        first, count = bisect_left(queues, delta), self.count
        if first == count or queues[first] != delta:
            return first, first
        if first + 1 == count or queues[first + 1] != delta:  # as where queues are many
            return first, first + 1
        return first, bisect_right(queues, delta, first + 2)

    def offset(self, row: int) -> int:
        return self.value(Column.OFFSET, row)

    def value(self, column: int, row: int) -> int:
        position, width, base = self._directory.get(column, _NO_COLUMN)
        return base + int.from_bytes(self.raw[position + row * width : position + (row + 1) * width], "little")

    def place(self, key: int, offset: int) -> int:
        """First record at or behind (key, offset); the number of records when there is none."""
        return self.seek(*self.span(key), offset)

    @property
    def ends(self) -> memoryview:
        """Where each record's bytes end in the payload."""
        if self._ends is None:
            self._ends = np.cumsum(self.column(Column.LENGTH), dtype=np.int64).data
        return self._ends

    def record_bytes(self, first: int, end: int) -> list[bytes]:
        payload = self.payload
        _, width, length = self._directory.get(Column.LENGTH, _NO_COLUMN)
        if width == 0 and length:
            return [bytes(payload[at : at + length]) for at in range(first * length, end * length, length)]
        ends = self.ends
        bounds = [ends[first - 1] if first else 0, *ends[first:end]]
        return [bytes(payload[start:stop]) for start, stop in pairwise(bounds)]

    def bytes_of(self, first: int, end: int) -> bytes:
        """The bytes of the records ``[first, end)`` together."""
        _, width, length = self._directory.get(Column.LENGTH, _NO_COLUMN)
        if width == 0:
            return bytes(self.payload[first * length : end * length])
        return bytes(self.payload[self.ends[first - 1] if first else 0 : self.ends[end - 1]])

    def deltas(self, first: int, end: int, from_column: int) -> Iterator[tuple[int, int, int, bytes]]:
        """Of the records ``[first, end)`` each column from a number on: number, width, base, deltas."""
        raw = self.raw
        for column, (position, width, base) in self._directory.items():
            if column >= from_column:
                yield (
                    column,
                    width,
                    base,
                    raw[position + first * width : position + end * width],
                )

    def records(self, first: int, end: int) -> SortedRecords:
        """The records ``[first, end)``; their bytes are a view where the block is not compressed."""
        columns = {
            column: self.column(column, first, end)
            for column in self._directory
            if column not in (Column.TOPIC, Column.QUEUE)
        }
        lengths = columns.get(Column.LENGTH)
        if lengths is None:
            lengths = columns[Column.LENGTH] = np.zeros(end - first, np.uint32)
        start = int(self.column(Column.LENGTH, 0, first).sum(dtype=np.int64)) if first else 0
        stop = start + int(lengths.sum(dtype=np.int64))
        keys = self.keys[first:end] if self._topic < 0 or self._keys is not None else self._some_keys(first, end)
        return SortedRecords(keys, columns, np.frombuffer(self.payload, np.uint8)[start:stop])

    def chosen(self, rows: I64, limit_bytes: int) -> SortedRecords:
        columns = {
            column: self.column_at(column, rows)
            for column in self._directory
            if column not in (Column.TOPIC, Column.QUEUE)
        }
        lengths = columns.setdefault(Column.LENGTH, np.zeros(len(rows), np.uint32))
        check_size(lengths, limit_bytes)
        ends = np.frombuffer(self.ends, np.int64)[rows]
        payload = gather(np.frombuffer(self.payload, np.uint8), ends - lengths, lengths)
        return SortedRecords(self.keys[rows], columns, payload)

    def _some_keys(self, first: int, end: int) -> U64:
        return self.column(Column.QUEUE, first, end).astype(np.uint64) | np.uint64(self._topic << 32)
