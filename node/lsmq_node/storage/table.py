"""Reading table files (see :mod:`.sstable` for the format)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import crc32c
import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile
from lsmq.record_batch import HEADER_BYTES, Column

from .bloom import bloom_build, bloom_may_contain
from .cache import BlockCache
from .columns import DTYPES, I64, U64, decode_column, group_starts, raw_column
from .disk import Disk, File
from .memtable import SortedRecords
from .sstable import (
    FILTER_HEAD,
    FOOTER_BYTES,
    INDEX_DTYPES,
    IndexColumn,
    TableMeta,
    check_properties,
    decode_footer,
    stored_batch,
)
from .stats import Counters

_log = logging.getLogger("lsmq.storage")
_INDEX_PART = -1
_LARGEST = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF, 8: 0xFFFFFFFFFFFFFFFF}


class Block:
    """A block parsed. Columns are decoded where and when they are asked for.

    Nearly all blocks hold one topic, so a queue is looked up in the packed deltas themselves.
    """

    __slots__ = ("_directory", "_keys", "_queue_base", "_queues", "_topic", "batch", "count", "memory_bytes", "raw")

    def __init__(self, raw: bytes, source: str, position: int) -> None:
        self.batch = stored_batch(raw, source, position, "block")
        self.raw = raw
        self.count = self.batch.record_count
        self._directory = self.batch.directory
        self._keys: U64 | None = None
        self._topic = -1
        _, width, topic = self._directory[Column.TOPIC]
        if width == 0:
            self._topic = topic
            self._queues, self._queue_base = raw_column(raw, self._directory[Column.QUEUE], self.count)
        self.memory_bytes = 2 * len(raw) + 1000

    @property
    def keys(self) -> U64:
        """Queue key of each record, ascending."""
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
        """A column of records ``[first, end)``; zeros when the block does not have it."""
        count = (self.count if end is None else end) - first
        entry = self._directory.get(column)
        if entry is not None and first:
            entry = (entry[0] + first * entry[1], entry[1], entry[2])
        return decode_column(self.raw, entry, count, DTYPES[column])

    def span(self, key: int) -> tuple[int, int]:
        """The records ``[first, end)`` of a queue; where they would be when there are none."""
        if self._topic < 0:
            wanted = np.uint64(key)
            return int(self.keys.searchsorted(wanted, "left")), int(self.keys.searchsorted(wanted, "right"))
        topic, queue = key >> 32, key & 0xFFFFFFFF
        if topic != self._topic:
            return (0, 0) if topic < self._topic else (self.count, self.count)
        delta = queue - self._queue_base
        if self._queues is None:
            return (0, 0) if delta < 0 else (0, self.count) if delta == 0 else (self.count, self.count)
        if delta < 0:
            return 0, 0
        if delta > _LARGEST[self._queues.itemsize]:
            return self.count, self.count
        wanted = self._queues.dtype.type(delta)
        return int(self._queues.searchsorted(wanted, "left")), int(self._queues.searchsorted(wanted, "right"))

    def seek(self, key: int, offset: int) -> int:
        """First record at or after (key, offset); the number of records when there is none."""
        first, end = self.span(key)
        if first == end:
            return first
        return first + int(self.column(Column.OFFSET, first, end).searchsorted(offset))

    def records(self, first: int, end: int) -> SortedRecords:
        """Records ``[first, end)`` as columns; bytes are a view where the block is not compressed."""
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
        return SortedRecords(keys, columns, np.frombuffer(self.batch.payload, np.uint8)[start:stop])

    def _some_keys(self, first: int, end: int) -> U64:
        return self.column(Column.QUEUE, first, end).astype(np.uint64) | np.uint64(self._topic << 32)


class TableIndex:
    """Index and bloom filter of a table, parsed."""

    __slots__ = (
        "columns",
        "count",
        "last_keys",
        "last_offsets",
        "memory_bytes",
        "positions",
        "probes",
        "sizes",
        "words",
    )

    def __init__(self, columns: dict[int, NDArray[Any]], words: U64, probes: int) -> None:
        self.columns = columns
        self.last_keys: U64 = columns[IndexColumn.LAST_KEY]
        self.last_offsets: I64 = columns[IndexColumn.LAST_OFFSET]
        self.positions: I64 = columns[IndexColumn.POSITION]
        self.sizes: I64 = columns[IndexColumn.SIZE]
        self.count = len(self.sizes)
        self.words = words
        self.probes = probes
        self.memory_bytes = 8 * (len(words) + 2 * self.count * len(INDEX_DTYPES)) + 1000

    @classmethod
    def parse(cls, raw: bytes, index_bytes: int, source: str, position: int) -> TableIndex:
        """Index and filter as they lie in a table. Raises ``CorruptFile``."""
        batch = stored_batch(raw[:index_bytes], source, position, "index")
        columns = {
            column: decode_column(raw, batch.directory.get(column), batch.record_count, dtype)
            for column, dtype in INDEX_DTYPES.items()
        }
        body = raw[index_bytes:]
        crc, probes, bits = FILTER_HEAD.unpack_from(body)
        if crc32c.crc32c(memoryview(body)[4:]) != crc or len(body) != FILTER_HEAD.size + bits // 8:
            at = position + index_bytes
            raise CorruptFile(f"{source}: the filter at byte {at} is damaged", file=source, position=at)
        return cls(columns, np.frombuffer(body, np.dtype("<u8"), bits // 64, FILTER_HEAD.size), probes)

    @classmethod
    def rebuild(cls, blocks: Iterable[tuple[int, Block]]) -> TableIndex:
        """Index and filter made from the blocks, and their positions, alone."""
        rows = []
        distinct = []
        for position, block in blocks:
            keys, offsets, stored = block.keys, block.offsets, block.column(Column.STORED_MS)
            rows.append(
                (
                    *(keys[0], offsets[0], keys[-1], offsets[-1]),
                    *(position, len(block.raw), block.count),
                    *(stored.min(), stored.max()),
                )
            )
            distinct.append(keys[group_starts(keys)])
        columns = {
            column: np.array([row[at] for row in rows], dtype)
            for at, (column, dtype) in enumerate(INDEX_DTYPES.items())
        }
        keys = np.concatenate(distinct)
        bits, probes = bloom_build(keys[group_starts(keys)])
        return cls(columns, bits.view(np.dtype("<u8")), probes)

    def may_contain(self, key: int) -> bool:
        return bloom_may_contain(self.words, self.probes, key)

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

    def __init__(
        self, disk: Disk, directory: Path, meta: TableMeta, cache: BlockCache, counters: Counters | None = None
    ) -> None:
        self.meta = meta
        self.path = directory / meta.name
        self._disk = disk
        self._cache = cache
        self._counters = counters
        self._file: File | None = None
        self._rebuilt: TableIndex | None = None
        self._lock = threading.Lock()
        self._rebuild_lock = threading.Lock()

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
        """Index and filter. Made again from the blocks where the file's own are damaged.

        Raises ``CorruptFile`` when a block is damaged too, ``UnsupportedFormat`` for a table of a newer version.
        """
        if self._rebuilt is not None:
            return self._rebuilt
        return self._cache.get(self.meta.number, _INDEX_PART, self._load_index)

    def _load_index(self) -> TableIndex:
        """Index, filter, properties and footer are neighbours and read at once."""
        meta, source = self.meta, str(self.path)
        wanted = meta.index_bytes + meta.filter_bytes
        raw = self.file().pread(meta.size_bytes - meta.index_position, meta.index_position)
        try:
            decode_footer(raw[-FOOTER_BYTES:], meta.size_bytes, source)
            check_properties(raw[wanted:-FOOTER_BYTES], source, meta.index_position + wanted)
        except CorruptFile as damage:  # the manifest knows all that they say
            _log.warning("%s: read without it, from what the manifest knows", damage.message)
        try:
            if len(raw) < wanted:
                raise CorruptFile(
                    f"{source}: cut off, {meta.size_bytes} bytes were written",
                    file=source,
                    position=meta.index_position,
                )
            return TableIndex.parse(raw[:wanted], meta.index_bytes, source, meta.index_position)
        except CorruptFile as damage:
            return self._rebuild_index(damage)

    def _rebuild_index(self, damage: CorruptFile) -> TableIndex:
        with self._rebuild_lock:
            if self._rebuilt is None:
                index = TableIndex.rebuild(self._walk())
                if int(index.columns[IndexColumn.RECORDS].sum()) != self.meta.record_count:
                    raise damage
                self._rebuilt = index
                if self._counters is not None:
                    self._counters.rebuilt_indexes += 1
                _log.warning("%s: made again in memory from %d blocks", damage.message, index.count)
            return self._rebuilt

    def _walk(self) -> Iterator[tuple[int, Block]]:
        """The blocks and their positions, without the index: each block says how long it is."""
        position = 0
        while position < self.meta.index_position:
            head = self.file().pread(HEADER_BYTES, position)
            size = int.from_bytes(head[4:8], "little")
            if len(head) < HEADER_BYTES or not HEADER_BYTES <= size <= self.meta.index_position - position:
                raise CorruptFile(
                    f"{self.path}: the block at byte {position} is damaged, and so is the index",
                    file=str(self.path),
                    position=position,
                )
            yield position, self._read_block(position, size)
            position += size

    def block(self, number: int, *, keep: bool = True) -> Block:
        """Block ``number``, through the cache unless ``keep`` is false. Raises ``CorruptFile``."""
        if keep:
            return self._cache.get(self.meta.number, number, lambda: self._load_block(number))
        return self._load_block(number)

    def _load_block(self, number: int) -> Block:
        index = self.index()
        return self._read_block(int(index.positions[number]), int(index.sizes[number]))

    def _read_block(self, position: int, size: int) -> Block:
        raw = self.file().pread(size, position)
        if len(raw) != size or size < HEADER_BYTES:
            raise CorruptFile(
                f"{self.path}: the block at byte {position} is cut off",
                file=str(self.path),
                position=position,
            )
        return Block(raw, str(self.path), position)

    def retire(self) -> None:
        """The table is in no version any more: remove its name. Readers that have it open go on."""
        self._cache.drop(self.meta.number)
        self._disk.remove(self.path)

    def scan(self, numbers: Iterable[int] | None = None) -> Iterator[Block]:
        """Blocks in order, past the cache."""
        for number in range(self.index().count) if numbers is None else numbers:
            yield self.block(number, keep=False)
