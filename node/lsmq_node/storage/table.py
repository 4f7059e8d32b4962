"""Reading table files (see :mod:`.sstable` for the format)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import crc32c
import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile, InvalidBatch
from lsmq.record_batch import HEADER_BYTES, Column, RecordBatch

from .bloom import bloom_may_contain
from .cache import BlockCache
from .columns import DTYPES, I64, U64, decode_column
from .disk import Disk, File
from .memtable import SortedRecords
from .sstable import FILTER_HEAD, INDEX_DTYPES, IndexColumn, TableMeta

_INDEX_PART = -1


class Block:
    """A block parsed: its keys and offsets as arrays, the rest of the columns on demand."""

    __slots__ = ("_ends", "batch", "keys", "memory_bytes", "offsets", "raw")

    def __init__(self, raw: bytes, source: str, position: int) -> None:
        try:
            self.batch = RecordBatch(raw, source=source)
        except InvalidBatch as error:
            raise CorruptFile(
                f"{source}: the block at byte {position} is damaged: {error.message}",
                file=source,
                position=position,
            ) from error
        self.raw = raw
        topics = self.column(Column.TOPIC).astype(np.uint64)
        self.keys: U64 = (topics << np.uint64(32)) | self.column(Column.QUEUE).astype(np.uint64)
        self.offsets: I64 = self.column(Column.OFFSET)
        ends = np.zeros(len(self.keys) + 1, np.int64)
        np.cumsum(self.column(Column.LENGTH), out=ends[1:])
        self._ends = ends
        self.memory_bytes = len(raw) + len(self.batch.payload) + 24 * len(self.keys) + 400

    def column(self, column: int) -> NDArray[Any]:
        batch = self.batch
        return decode_column(self.raw, batch.directory.get(column), batch.record_count, DTYPES[column])

    def seek(self, key: int, offset: int) -> int:
        """First record at or after (key, offset); ``len(keys)`` when there is none."""
        wanted = np.uint64(key)
        left = int(self.keys.searchsorted(wanted, "left"))
        if left == len(self.keys) or self.keys[left] != wanted:
            return left
        right = int(self.keys.searchsorted(wanted, "right"))
        return left + int(self.offsets[left:right].searchsorted(offset))

    def records(self, first: int, end: int) -> SortedRecords:
        """Records ``[first, end)`` as columns; bytes are a view where the block is not compressed."""
        columns = {
            column: self.column(column)[first:end]
            for column in self.batch.directory
            if column not in (Column.TOPIC, Column.QUEUE)
        }
        if Column.LENGTH not in columns:
            columns[Column.LENGTH] = np.zeros(end - first, np.uint32)
        payload = np.frombuffer(self.batch.payload, np.uint8)
        return SortedRecords(self.keys[first:end], columns, payload[self._ends[first] : self._ends[end]])

    def payload_bytes(self, first: int, end: int) -> int:
        return int(self._ends[end] - self._ends[first])

    def ends(self) -> I64:
        """Where each record's bytes end in the payload, with a leading 0."""
        return self._ends


class TableIndex:
    """Index and bloom filter of a table, parsed."""

    __slots__ = (
        "bits",
        "columns",
        "count",
        "last_keys",
        "last_offsets",
        "memory_bytes",
        "positions",
        "probes",
        "sizes",
    )

    def __init__(self, raw: bytes, index_bytes: int, source: str, position: int) -> None:
        try:
            batch = RecordBatch(raw[:index_bytes], source=source)
        except InvalidBatch as error:
            raise CorruptFile(
                f"{source}: the index at byte {position} is damaged: {error.message}",
                file=source,
                position=position,
            ) from error
        self.count = batch.record_count
        self.columns = {
            column: decode_column(raw, batch.directory.get(column), self.count, dtype)
            for column, dtype in INDEX_DTYPES.items()
        }
        self.last_keys: U64 = self.columns[IndexColumn.LAST_KEY]
        self.last_offsets: I64 = self.columns[IndexColumn.LAST_OFFSET]
        self.positions: I64 = self.columns[IndexColumn.POSITION]
        self.sizes: I64 = self.columns[IndexColumn.SIZE]
        body = raw[index_bytes:]
        crc, probes, bits = FILTER_HEAD.unpack_from(body)
        if crc32c.crc32c(memoryview(body)[4:]) != crc or len(body) != FILTER_HEAD.size + bits // 8:
            at = position + index_bytes
            raise CorruptFile(f"{source}: the filter at byte {at} is damaged", file=source, position=at)
        self.probes = probes
        self.bits = np.frombuffer(body, np.uint8, bits // 8, FILTER_HEAD.size)
        self.memory_bytes = len(raw) + self.count * 8 * len(INDEX_DTYPES) + 1000

    def may_contain(self, key: int) -> bool:
        return bloom_may_contain(self.bits, self.probes, key)

    def seek(self, key: int, offset: int) -> int:
        """First block whose last record is at or after (key, offset); ``count`` when there is none."""
        wanted = np.uint64(key)
        left = int(self.last_keys.searchsorted(wanted, "left"))
        if left == self.count or self.last_keys[left] != wanted:
            return left
        right = int(self.last_keys.searchsorted(wanted, "right"))
        return left + int(self.last_offsets[left:right].searchsorted(offset))


class Table:
    """An open table. Thread-safe. The file is opened at the first read and closed when the table is dropped."""

    def __init__(self, disk: Disk, directory: Path, meta: TableMeta, cache: BlockCache) -> None:
        self.meta = meta
        self.path = directory / meta.name
        self._disk = disk
        self._cache = cache
        self._file: File | None = None
        self._lock = threading.Lock()

    def file(self) -> File:
        file = self._file
        if file is None:
            with self._lock:
                if self._file is None:
                    self._file = self._disk.open(self.path)
                file = self._file
        return file

    def stream(self) -> BinaryIO:
        return self.file().stream()

    def index(self) -> TableIndex:
        """Raises ``CorruptFile``."""
        return self._cache.get(self.meta.number, _INDEX_PART, self._load_index)

    def _load_index(self) -> TableIndex:
        meta = self.meta
        raw = self.file().pread(meta.index_bytes + meta.filter_bytes, meta.index_position)
        if len(raw) != meta.index_bytes + meta.filter_bytes:
            raise CorruptFile(
                f"{self.path}: cut off, {meta.size_bytes} bytes were written",
                file=str(self.path),
                position=meta.index_position,
            )
        return TableIndex(raw, meta.index_bytes, str(self.path), meta.index_position)

    def block(self, number: int, *, keep: bool = True) -> Block:
        """Block ``number``, through the cache unless ``keep`` is false. Raises ``CorruptFile``."""
        if keep:
            return self._cache.get(self.meta.number, number, lambda: self._load_block(number))
        return self._load_block(number)

    def _load_block(self, number: int) -> Block:
        index = self.index()
        position, size = int(index.positions[number]), int(index.sizes[number])
        raw = self.file().pread(size, position)
        if len(raw) != size or size < HEADER_BYTES:
            raise CorruptFile(
                f"{self.path}: the block at byte {position} is cut off",
                file=str(self.path),
                position=position,
            )
        return Block(raw, str(self.path), position)

    def may_hold(self, key: int) -> bool:
        """Whether the key range allows the queue; costs no read."""
        return self.meta.first_key <= key <= self.meta.last_key

    def is_cached(self, part: int) -> bool:
        return self._cache.has(self.meta.number, part)

    def retire(self) -> None:
        """The table is in no version any more: remove its name. Readers that have it open go on."""
        self._cache.drop(self.meta.number)
        self._disk.remove(self.path)

    def blocks_between(self, first_key: int, end_key: int) -> range:
        """Numbers of the blocks that may hold keys in ``[first_key, end_key)``."""
        index = self.index()
        first = int(index.last_keys.searchsorted(np.uint64(first_key), "left"))
        if end_key >= 1 << 64:
            return range(first, index.count)
        end = int(index.columns[IndexColumn.FIRST_KEY].searchsorted(np.uint64(end_key), "left"))
        return range(first, end)

    def scan(self, numbers: Iterable[int] | None = None) -> Iterator[Block]:
        """Blocks in order, past the cache."""
        for number in range(self.index().count) if numbers is None else numbers:
            yield self.block(number, keep=False)
