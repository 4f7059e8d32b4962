"""Keyed files: immutable files of keys and values in key order, of which :mod:`.checkpoint` is made.

All integers are little-endian::

    width field
     8    magic ``LSMQCKP1``
     4    version (4)
     n    blocks, one after another
     n    tail      zstd over a msgpack map: properties, index, filter
    24    footer    position of the tail (8) and its length (4); crc of the tail (4); version (4); crc of these 20 bytes

    a block:
     4    crc       CRC32C of the rest of the block
     4    length    of the body
     4    count     keys in it
     n    body      zstd over a msgpack list: key, value, key, value, ...; nil as value says that the key is gone

Keys are bytes, ascending and distinct; a value is never taken apart here. The index names the first key and the
position of each block. The filter is the one of :mod:`.bloom`, over the *marks* that the writer gave with some of the
keys: of these a look-up says for sure, without reading a block, when one is not here.

No file stays open between reads: however many there are, they take no descriptors. Index and filter stay in memory,
about two bytes a marked key; blocks go through the block cache.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import crc32c
import msgpack
import numpy as np
import zstandard

from lsmq.errors import CorruptFile
from lsmq_node.descriptors import SHORTAGE

from .bloom import PROBES, bloom_build, bloom_probe
from .buffered_file import BufferedFile
from .cache import BlockCache
from .disk import Disk, File, read_back
from .failures import damaged, newer, no_descriptor

MAGIC = b"LSMQCKP1"
VERSION = 5
HEAD = struct.Struct("<8sI")
FOOTER = struct.Struct("<QIIII")
BLOCK = struct.Struct("<III")
#: Keys and values of a block have about so many bytes before they are compressed; one item may have more.
BLOCK_BYTES = 16 * 1024
#: A parsed item takes about so much memory beside its bytes.
_ITEM_BYTES = 120

KeyedItem = tuple[bytes, bytes | None]


class KeyedBlock:
    """A parsed block, as the cache keeps it."""

    CHANCES: ClassVar[int] = 1
    __slots__ = ("keys", "memory_bytes", "recent", "values")

    def __init__(self, items: list[Any]) -> None:
        self.keys: list[bytes] = items[::2]
        self.values: list[bytes | None] = items[1::2]
        self.recent = 0
        self.memory_bytes = sum(len(item or b"") for item in items) + _ITEM_BYTES * len(self.keys)


class KeyedWriter:
    """Writes one file. ``finish`` it or ``abandon`` it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._file = BufferedFile(disk, path, HEAD.pack(MAGIC, VERSION))
        self._items: list[Any] = []
        self._items_bytes = 0
        self._index: list[tuple[bytes, int]] = []
        self._marks = array("Q")
        self.count = 0

    def add(self, key: bytes, value: bytes | None, mark: int | None = None) -> None:
        """The next key, which is above the last. ``mark``: what a look-up will ask the filter for."""
        self._items += (key, value)
        self._items_bytes += len(key) + (0 if value is None else len(value))
        self.count += 1
        if mark is not None:
            self._marks.append(mark)
        if self._items_bytes >= BLOCK_BYTES:
            self._end_block()

    def _end_block(self) -> None:
        if not self._items:
            return
        body = zstandard.compress(msgpack.packb(self._items), 1)
        rest = struct.pack("<II", len(body), len(self._items) // 2) + body
        self._index.append((self._items[0], self._file.end))
        self._file.write(crc32c.crc32c(rest).to_bytes(4, "little") + rest)
        self._items, self._items_bytes = [], 0

    def finish(self, properties: dict[str, Any]) -> int:
        """Durable on return, but for the file's name. Returns its size in bytes."""
        self._end_block()
        words, probes = bloom_build(np.unique(np.frombuffer(self._marks, np.uint64)))
        tail = zstandard.compress(
            msgpack.packb(
                {
                    "properties": properties,
                    "count": self.count,
                    "index": [list(row) for row in self._index],
                    "filter": words.astype("<u8", copy=False).tobytes() if self._marks else b"",
                    "probes": probes if self._marks else 0,
                }
            ),
            1,
        )
        position = self._file.end
        head = struct.pack("<QIII", position, len(tail), crc32c.crc32c(tail), VERSION)
        self._file.write(tail + head + crc32c.crc32c(head).to_bytes(4, "little"))
        return self._file.finish()

    def abandon(self) -> None:
        """Close what is not finished; the caller removes it."""
        self._file.abandon()


class KeyedFile:
    """A finished file. Thread-safe."""

    def __init__(self, disk: Disk, path: Path, number: int) -> None:
        """Read its tail. Raises ``CorruptFile``, ``UnsupportedFormat``, ``FileNotFoundError``."""
        self.path = path
        self.number = number
        self._disk = disk
        self._cache: BlockCache | None = None
        #: The last damage that was found in it.
        self.damage: CorruptFile | None = None
        with closing(disk.open(path, random=True)) as file:
            self.size_bytes = file.size()
            tail = self._read_tail(file)
        self.properties: dict[str, Any] = tail["properties"]
        self.count: int = tail["count"]
        self._firsts: list[bytes] = [key for key, _ in tail["index"]]
        self._positions: list[int] = [position for _, position in tail["index"]]
        self._has_filter = tail["probes"] == PROBES  # one of another number says nothing
        self._words = np.frombuffer(tail["filter"], np.dtype("<u8"))
        self._view: Sequence[int] = self._words.data

    def _read_tail(self, file: File) -> dict[str, Any]:
        if self.size_bytes < HEAD.size + FOOTER.size or file.pread(8, 0) != MAGIC:
            raise self._damaged(f"not a checkpoint ({self.size_bytes} bytes)", 0)
        raw = file.pread(FOOTER.size, self.size_bytes - FOOTER.size)
        position, length, tail_crc, version, crc = FOOTER.unpack(raw)
        if crc32c.crc32c(raw[:-4]) != crc:
            raise self._damaged("its footer is damaged", self.size_bytes - FOOTER.size)
        if version != VERSION:
            raise newer(self.path, "checkpoint version", version, VERSION)
        tail = file.pread(length, position)
        if len(tail) != length or position + length + FOOTER.size != self.size_bytes:
            raise self._damaged("it is cut off", position)
        if crc32c.crc32c(tail) != tail_crc or file.pread(HEAD.size, 0) != HEAD.pack(MAGIC, VERSION):
            raise self._damaged("its index is damaged", position)
        self._end = position
        found: dict[str, Any] = msgpack.unpackb(zstandard.decompress(tail))
        return found

    def _damaged(self, what: str, position: int) -> CorruptFile:
        self.damage = damaged(self.path, f"{what} (byte {position}): the checkpoint is damaged", position)
        return self.damage

    def use(self, cache: BlockCache) -> None:
        """Keep blocks that are looked into there, under the file's number."""
        self._cache = cache

    @property
    def memory_bytes(self) -> int:
        """What stays in memory of it, about."""
        return self._words.nbytes + sum(len(key) + 120 for key in self._firsts)

    def may_have(self, mark: int) -> bool:
        """False only when no key was added with this mark."""
        words = self._view
        if not len(words):
            return False
        if not self._has_filter:
            return True
        half, marks = bloom_probe(mark)
        return words[half % len(words)] & marks == marks

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None where it has none here.

        Raises ``CorruptFile``, ``FileNotFoundError``, and ``StoreBusy`` for want of a file descriptor.
        """
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        block = self._block(at)
        place = bisect_left(block.keys, key)
        return block.values[place] if place < len(block.keys) and block.keys[place] == key else None

    def _block(self, at: int) -> KeyedBlock:
        return self._load(at) if self._cache is None else self._cache.get(self.number, at, self._load, at)

    def _load(self, at: int) -> KeyedBlock:
        try:
            file = self._disk.open(self.path, random=True)
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise
            raise no_descriptor(self.path) from error
        try:
            return self._read(file, at)
        finally:
            file.close()

    def _read(self, file: File, at: int) -> KeyedBlock:
        begin = self._positions[at]
        end = self._positions[at + 1] if at + 1 < len(self._positions) else self._end
        raw = read_back(file, end - begin, begin)
        if len(raw) != end - begin or len(raw) < BLOCK.size:
            raise self._damaged("a block is cut off", begin)
        crc, length, count = BLOCK.unpack_from(raw)
        if len(raw) != BLOCK.size + length or crc32c.crc32c(memoryview(raw)[4:]) != crc:
            raise self._damaged("a block is damaged", begin)
        block = KeyedBlock(msgpack.unpackb(zstandard.decompress(memoryview(raw)[BLOCK.size :])))
        if len(block.keys) != count or block.keys[0] != self._firsts[at]:
            raise self._damaged("a block is not the one of the index", begin)
        return block

    def scan(self, first: bytes = b"", end: bytes | None = None) -> Iterator[KeyedItem]:
        """Keys in ``[first, end)`` and their values, in order, past the cache. Raises ``CorruptFile``."""
        blocks = range(max(0, bisect_right(self._firsts, first) - 1), len(self._firsts))
        with closing(self._disk.open(self.path)) as file:
            for at in blocks:
                block = self._read(file, at)
                for key, value in zip(block.keys, block.values, strict=True):
                    if end is not None and key >= end:
                        return
                    if key >= first:
                        yield key, value

    def blocks(self) -> Iterator[tuple[int, int, bytes, KeyedBlock | None]]:
        """Of each block where it begins and ends, its first key, and what is in it: None where it is damaged."""
        ends = [*self._positions[1:], self._end]
        with closing(self._disk.open(self.path)) as file:
            for at, (position, first) in enumerate(zip(self._positions, self._firsts, strict=True)):
                try:
                    yield position, ends[at], first, self._read(file, at)
                except CorruptFile:
                    yield position, ends[at], first, None

    def verify(self) -> None:
        """Read all of it. Raises ``CorruptFile``."""
        count, last = 0, b""
        for key, _ in self.scan():
            if count and key <= last:
                raise self._damaged("its keys are out of order", 0)
            count, last = count + 1, key
        if count != self.count or (self._positions or [self._end])[0] != HEAD.size:
            raise self._damaged("its blocks and its index do not belong together", 0)
