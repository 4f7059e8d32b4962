"""Reading table files (see :mod:`.sstable` for the format)."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import crc32c
import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile
from lsmq.record_batch import HEADER_BYTES, Column

from .block import Block
from .bloom import PROBES, Probe, Probes, bloom_build, bloom_has_many, bloom_probe
from .cache import BlockCache
from .columns import I64, U64, decode_column, group_starts
from .disk import Disk, File
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


class TableIndex:
    """Index and bloom filter of a table, parsed.

    The columns are there twice, without taking memory twice: as arrays for questions about many queues, and as
    ``memoryview`` for those about one, which Python's own ``bisect`` answers sooner than numpy.
    """

    __slots__ = (
        "_filter",
        "_last_keys",
        "_last_offsets",
        "columns",
        "count",
        "first_keys",
        "first_offsets",
        "memory_bytes",
        "positions",
        "probes",
        "recent",
        "sizes",
        "words",
    )

    def __init__(self, columns: dict[int, NDArray[Any]], words: U64, probes: int) -> None:
        self.columns = columns
        self.recent = False
        self.first_keys = columns[IndexColumn.FIRST_KEY].data
        self.first_offsets = columns[IndexColumn.FIRST_OFFSET].data
        self._last_keys = columns[IndexColumn.LAST_KEY].data
        self._last_offsets = columns[IndexColumn.LAST_OFFSET].data
        self.positions: I64 = columns[IndexColumn.POSITION]
        self.sizes: I64 = columns[IndexColumn.SIZE]
        self.count = len(self.sizes)
        self.probes = probes
        if probes != PROBES:  # made by another release: pass no table over
            words = np.full(1, np.iinfo(np.uint64).max, np.uint64)
        self.words = words
        self._filter = words.data
        self.memory_bytes = 8 * (len(words) + self.count * len(INDEX_DTYPES)) + 3000

    @property
    def last_keys(self) -> U64:
        return self.columns[IndexColumn.LAST_KEY]

    @property
    def last_offsets(self) -> I64:
        return self.columns[IndexColumn.LAST_OFFSET]

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
        bits, probes = bloom_build(distinct)
        return cls(columns, bits.view(np.dtype("<u8")), probes)

    def may_contain(self, key: int) -> bool:
        return self.may_have(bloom_probe(key))

    def may_have(self, probe: Probe) -> bool:
        """:meth:`may_contain` of the key that ``probe`` was made of."""
        half, marks = probe
        words = self._filter
        return words[half % len(words)] & marks == marks

    def may_have_many(self, probes: Probes) -> NDArray[np.bool_]:
        """:meth:`may_have` of many probes."""
        return bloom_has_many(self.words, probes)

    def seek(self, key: int, offset: int) -> int:
        """First block whose last record is at or after (key, offset); ``count`` when there is none."""
        last_keys = self._last_keys
        left = bisect_left(last_keys, key)
        if left == self.count or last_keys[left] != key:
            return left
        return bisect_left(self._last_offsets, offset, left, bisect_right(last_keys, key, left))

    def blocks_of(self, keys: U64, starts: I64, ends: I64) -> tuple[I64, I64, NDArray[np.bool_]]:
        """Where records ``[starts[i], ends[i])`` of each of the sorted ``keys`` may be: first block and how many.

        The third array says which queues have a block of their own among these; of those, only one is counted.
        """
        first_keys, last_keys = self.columns[IndexColumn.FIRST_KEY], self.last_keys
        first_offsets = self.columns[IndexColumn.FIRST_OFFSET]
        ending, beginning = last_keys.searchsorted(keys), first_keys.searchsorted(keys)
        many_end = last_keys.searchsorted(keys, "right") - ending  # blocks that end with the queue
        many_begin = first_keys.searchsorted(keys, "right") - beginning  # blocks that begin with it
        last = self.count - 1
        firsts = ending + ((many_end == 1) & (self.last_offsets[np.minimum(ending, last)] < starts))
        stops = beginning + ((many_begin == 1) & (first_offsets[np.minimum(beginning, last)] < ends))
        alone = (many_end > 1) | (many_begin > 1) | ((many_end == 1) & (many_begin == 1) & (ending == beginning))
        for at in np.flatnonzero(alone).tolist():
            key, end = int(keys[at]), int(ends[at])
            first = firsts[at] = self.seek(key, int(starts[at]))
            inside = first < self.count and (self.first_keys[first], self.first_offsets[first]) < (key, end)
            stops[at] = first + inside
            alone[at] = inside
        return firsts, np.maximum(stops - firsts, 0), alone


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
        #: The last damage that was found in its blocks.
        self.damage: CorruptFile | None = None
        self._lock = threading.Lock()
        self._rebuild_lock = threading.Lock()

    def file(self) -> File:
        file = self._file
        if file is None:
            with self._lock:
                if self._file is None:
                    # What is read ahead of a block makes fsyncs of the log wait, by megabytes on some systems.
                    self._file = self._disk.open(self.path, random=True)
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

    def _load_index(self, _: int) -> TableIndex:
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
                    raise self._damaged(damage)
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
                raise self._damaged(
                    CorruptFile(
                        f"{self.path}: the block at byte {position} is damaged, and so is the index",
                        file=str(self.path),
                        position=position,
                    )
                )
            yield position, self._read_block(position, size)
            position += size

    def block(self, number: int, *, keep: bool = True) -> Block:
        """Block ``number``, through the cache unless ``keep`` is false. Raises ``CorruptFile``."""
        if keep:
            return self._cache.get(self.meta.number, number, self._load_block)
        return self._load_block(number)

    def _load_block(self, number: int) -> Block:
        index = self.index()
        return self._read_block(index.positions.item(number), index.sizes.item(number))

    def _read_block(self, position: int, size: int) -> Block:
        raw = self.file().pread(size, position)
        if len(raw) != size or size < HEADER_BYTES:
            raise self._damaged(
                CorruptFile(
                    f"{self.path}: the block at byte {position} is cut off", file=str(self.path), position=position
                )
            )
        return self.parse(raw, position)

    def parse(self, raw: bytes, position: int) -> Block:
        """The block that was read at ``position``. Raises ``CorruptFile``."""
        try:
            return Block(raw, str(self.path), position)
        except CorruptFile as damage:
            raise self._damaged(damage) from damage.__cause__

    def _damaged(self, damage: CorruptFile) -> CorruptFile:
        self.damage = damage
        return damage

    def scan(self, numbers: Iterable[int] | None = None) -> Iterator[Block]:
        """Blocks in order, past the cache."""
        for number in range(self.index().count) if numbers is None else numbers:
            yield self.block(number, keep=False)
