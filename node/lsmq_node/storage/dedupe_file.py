"""Files of deduplication ids: immutable, sorted by id, with the filter that says where an id would be.

All integers are little-endian::

    width field
     8    magic ``LSMQIDS1``
     4    version (1)
     n    blocks    of ``BLOCK_ROWS`` rows, the last of fewer, each with the CRC32C of its rows behind them (4)
     2*r  marks     of each row the lower 16 bits of its id
     4*b  starts    of each bucket the number of its first row, and at the end the number of rows
     n    tail      msgpack: rows, buckets, and of each topic its rows and the latest ``stored_ms``
    28    footer    position of the marks (8); length of the tail (4); crc of marks, starts and tail (4); version (4);
                    crc of these 20 bytes (4); zeros (4)

A row is :data:`.dedupe_layer.ROW`. Ids are spread evenly, so the bucket of an id is its upper 32 bits, scaled to the
number of buckets, and a bucket has ``BUCKET_ROWS`` rows on average. Marks and starts stay in memory, two and a quarter
bytes an id, and are all the index there is: an id is looked for among the marks of its bucket, and the place of a mark
is the number of its row. Of ids that are not here one in a few thousand is looked for in a block.

No file stays open between reads. Blocks are not cached: of ids that come again none is asked for twice in a row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c
import msgpack
import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile
from lsmq_node.descriptors import SHORTAGE

from .buffered_file import BufferedFile
from .columns import I64, U64, group_starts, windows
from .dedupe_layer import ROW, IdRows, chosen_rows, joined_rows, newest_order
from .dedupe_recent import NEVER
from .disk import Disk, File
from .failures import damaged, newer, no_descriptor

MAGIC = b"LSMQIDS1"
VERSION = 1
HEAD = struct.Struct("<8sI")
FOOTER = struct.Struct("<QIIIII")
ROW_BYTES = ROW.itemsize  # 8 + 8 + 8 + 8 + 4 = 36
BLOCK_ROWS = 128
BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES + 4
BUCKET_ROWS = 8
#: Marks of a bucket that are compared at once; larger buckets, which chance does not make, one by one.
_WIDEST = 64
#: So many ids are looked for at a time.
_CHUNK = 1 << 14
#: So few are looked for one by one.
_FEW = 8
#: Buckets for which one start is kept whole, and of the others how far above it they are.
_STRETCH_BITS = 8
_STRETCH = 1 << _STRETCH_BITS
#: Blocks that are read at a time by who reads all.
_SCAN_BLOCKS = 64
_HALF = np.uint64(32)
_MARK = np.uint64(0xFFFF)


@dataclass(frozen=True, slots=True)
class IdFileMeta:
    """A file as the manifest lists it: of entries before ``end_lsn``."""

    number: int
    size_bytes: int
    end_lsn: int

    @property
    def name(self) -> str:
        return ids_name(self.number)


def ids_name(number: int) -> str:
    return f"{number:012d}.ids"


class IdWriter:
    """Writes one file. ``finish`` it or ``abandon`` it."""

    def __init__(self, disk: Disk, path: Path, expected: int) -> None:
        """``expected``: about so many rows will come; more make the filter slower, fewer larger."""
        self._file = BufferedFile(disk, path, HEAD.pack(MAGIC, VERSION))
        self._rest: IdRows = np.empty(0, ROW)  # of a block that is not full
        self._marks: list[NDArray[np.uint16]] = []
        self._buckets = max(1, expected // BUCKET_ROWS)
        self._starts = np.zeros(self._buckets + 1, np.uint32)
        self._topics: dict[int, list[int]] = {}
        self.count = 0

    def add(self, rows: IdRows) -> None:
        """The next rows, sorted by ``high`` and ``low``, above the last."""
        if not len(rows):
            return
        self.count += len(rows)
        self._marks.append(rows["low"].astype(np.uint16))  # the lower bits
        buckets = _buckets(rows["high"] >> _HALF, self._buckets)
        first = int(buckets[0])  # They ascend.
        counts = np.bincount(buckets - first)
        self._starts[first + 1 : first + 1 + len(counts)] += counts.astype(np.uint32)
        found = topics_of(rows)
        for topic in found:
            mine = rows["stored_ms"] if len(found) == 1 else rows["stored_ms"][rows["topic"] == topic]
            known = self._topics.setdefault(topic, [0, 0])
            known[0], known[1] = known[0] + len(mine), max(known[1], int(mine.max()))
        whole = joined_rows((self._rest, rows)) if len(self._rest) else rows
        end = len(whole) - len(whole) % BLOCK_ROWS
        self._put_blocks(whole[:end], BLOCK_ROWS)
        self._rest = whole[end:].copy()

    def _put_blocks(self, rows: IdRows, block_rows: int) -> None:
        """Blocks of so many rows each."""
        content = rows.view(np.uint8).reshape(-1, block_rows * ROW_BYTES)
        crcs = [crc32c.crc32c(block.data) for block in content]
        blocks = np.empty((len(content), block_rows * ROW_BYTES + 4), np.uint8)
        blocks[:, :-4] = content
        blocks[:, -4:] = np.array(crcs, "<u4").view(np.uint8).reshape(-1, 4)
        self._file.write(blocks.data)

    def finish(self) -> int:
        """Durable on return, but for the file's name. Returns its size in bytes."""
        if len(self._rest):
            self._put_blocks(self._rest, len(self._rest))
        position = self._file.end
        starts = np.cumsum(self._starts, out=self._starts)
        tail = msgpack.packb([self.count, self._buckets, self._topics])
        crc = 0
        for piece in (*(marks.tobytes() for marks in self._marks), starts.tobytes(), tail):
            crc = crc32c.crc32c(piece, crc)
            self._file.write(piece)
        foot = struct.pack("<QIII", position, len(tail), crc, VERSION)
        self._file.write(foot + crc32c.crc32c(foot).to_bytes(4, "little") + bytes(4))
        return self._file.finish()

    def abandon(self) -> None:
        """Close what is not finished; the caller removes it."""
        self._file.abandon()


def topics_of(rows: IdRows) -> list[int]:
    """The topics of one row and more."""
    topics = rows["topic"]
    one = len(topics) and (topics == topics[0]).all()
    found: list[int] = [int(topics[0])] if one else np.unique(topics).tolist()
    return found


def _buckets(highs: U64, buckets: int) -> I64:
    """The buckets of ids by their upper 32 bits."""
    found: I64 = ((highs * np.uint64(buckets)) >> _HALF).view(np.int64)
    return found


class IdFile:
    """A finished file. Thread-safe."""

    def __init__(self, disk: Disk, path: Path, meta: IdFileMeta | None = None) -> None:
        """Read its filter. Raises ``CorruptFile`` where it is not what ``meta`` says, ``UnsupportedFormat``,
        ``FileNotFoundError``."""
        self.path = path
        self.end_lsn = 0 if meta is None else meta.end_lsn
        self._disk = disk
        #: The last damage that was found in it.
        self.damage: CorruptFile | None = None
        #: See :class:`.RecentIds`. Its owner says.
        self.since = NEVER
        with closing(disk.open(path, random=True)) as file:
            self.size_bytes = file.size()
            if meta is not None and self.size_bytes != meta.size_bytes:
                raise self._damaged(f"{self.size_bytes} bytes, the manifest says {meta.size_bytes}", 0)
            self._read_tail(file)

    def _read_tail(self, file: File) -> None:
        size = self.size_bytes
        if size < HEAD.size + FOOTER.size or file.pread(8, 0) != MAGIC:
            raise self._damaged(f"not a file of ids ({size} bytes)", 0)
        raw = file.pread(FOOTER.size, size - FOOTER.size)
        position, tail_bytes, crc, version, foot_crc, _ = FOOTER.unpack(raw)
        if crc32c.crc32c(raw[:20]) != foot_crc:
            raise self._damaged("its footer is damaged", size - FOOTER.size)
        if version != VERSION:
            raise newer(self.path, "version of ids", version, VERSION)
        rest = file.pread(size - FOOTER.size - position, position)
        if crc32c.crc32c(rest) != crc or file.pread(HEAD.size, 0) != HEAD.pack(MAGIC, VERSION):
            raise self._damaged("its filter is damaged", position)
        count, self._bucket_count, topics = msgpack.unpackb(rest[len(rest) - tail_bytes :], strict_map_key=False)
        self.count: int = count
        #: Of each topic the number of its rows, and the latest ``stored_ms``.
        self.topics: dict[int, tuple[int, int]] = {topic: (rows, last) for topic, (rows, last) in topics.items()}
        starts = np.frombuffer(rest, "<u4", self._bucket_count + 1, 2 * count)
        widest = int(np.diff(starts).max(initial=0))
        self._bases = starts[::_STRETCH].copy()
        above = starts - np.repeat(self._bases, _STRETCH)[: len(starts)]
        self._above = above.astype(np.uint16) if int(above.max()) < 1 << 16 else above
        self._width = max(1, min(widest, _WIDEST))
        self._has_wide = widest > _WIDEST
        marks = np.zeros(count + self._width, np.uint16)
        marks[:count] = np.frombuffer(rest, "<u2", count)
        self._marks = marks

    def _damaged(self, what: str, position: int) -> CorruptFile:
        self.damage = damaged(self.path, f"{what} (byte {position}): the file of ids is damaged", position)
        return self.damage

    @property
    def memory_bytes(self) -> int:
        """What stays in memory of it."""
        size: int = self._marks.nbytes + self._bases.nbytes + self._above.nbytes
        return size

    def _starts(self, buckets: I64) -> I64:
        starts: I64 = self._bases[buckets >> _STRETCH_BITS].astype(np.int64)
        starts += self._above[buckets]
        return starts

    def find(self, high: U64, low: U64) -> tuple[I64, I64, I64]:
        """Which of these ids are here: their places among those asked for, the offsets, and when they were stored.

        Raises ``CorruptFile``, ``FileNotFoundError``, and ``StoreBusy`` for want of a file descriptor.
        """
        if len(high) <= _FEW:
            pairs = [self._few_candidates(high, low)]
        else:
            begins = range(0, len(high), _CHUNK)
            pairs = [self._candidates(high[at : at + _CHUNK], low[at : at + _CHUNK], at) for at in begins]
        places = np.concatenate([each for each, _ in pairs])
        numbers = np.concatenate([each for _, each in pairs])
        if not len(places):
            return places, places, places
        rows = self._read_rows(numbers)
        same = (rows["high"] == high[places]) & (rows["low"] == low[places])
        rows = rows[same]
        return places[same], rows["offset"], rows["stored_ms"]

    def _candidates(self, high: U64, low: U64, base: int) -> tuple[I64, I64]:
        """Where ids may be: their places among those asked for, from ``base`` on, and numbers of rows."""
        buckets = _buckets(high >> _HALF, self._bucket_count)
        starts, ends = self._starts(buckets), self._starts(buckets + 1)
        marks = (low & _MARK).astype(np.uint16)
        width = self._width
        near = windows(self._marks.view(np.uint8), 2 * starts, 2 * width).view(np.uint16).reshape(-1, width)
        hits = np.flatnonzero(near == marks[:, None])
        places = hits // width
        numbers = starts[places] + (hits - places * width)
        inside = numbers < ends[places]
        places, numbers = places[inside], numbers[inside]
        if self._has_wide:
            for place in np.flatnonzero(ends - starts > width).tolist():
                begin, end = int(starts[place]) + width, int(ends[place])
                more = begin + np.flatnonzero(self._marks[begin:end] == marks[place])
                places = np.append(places, np.full(len(more), place))
                numbers = np.append(numbers, more)
        return places + base, numbers

    def _few_candidates(self, high: U64, low: U64) -> tuple[I64, I64]:
        """:meth:`_candidates` of so few that numpy would take longer for its calls."""
        places, numbers = [], []
        for place, (upper, lower) in enumerate(zip((high >> _HALF).tolist(), low.tolist(), strict=True)):
            bucket, mark = upper * self._bucket_count >> 32, lower & 0xFFFF
            begin, end = (
                int(self._bases[each >> _STRETCH_BITS]) + int(self._above[each]) for each in (bucket, bucket + 1)
            )
            for number, each in enumerate(self._marks[begin:end].tolist(), begin):
                if each == mark:
                    places.append(place)
                    numbers.append(number)
        return np.array(places, np.int64), np.array(numbers, np.int64)

    def _read_rows(self, numbers: I64) -> IdRows:
        try:
            file = self._disk.open(self.path, random=True)
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise
            raise no_descriptor(self.path) from error
        with closing(file):
            found, order = np.empty(len(numbers), ROW), np.argsort(numbers)
            blocks, within = np.divmod(numbers[order], BLOCK_ROWS)
            firsts = group_starts(blocks)
            parts = zip(blocks[firsts].tolist(), np.split(order, firsts[1:]), np.split(within, firsts[1:]), strict=True)
            for block, mine, places in parts:
                found[mine] = self._read(file, block, 1)[places]
        return found

    def _read(self, file: File, first: int, count: int) -> IdRows:
        """The rows of ``count`` blocks from ``first`` on."""
        begin = HEAD.size + first * BLOCK_BYTES
        rows = min(self.count - first * BLOCK_ROWS, count * BLOCK_ROWS)
        blocks = -(-rows // BLOCK_ROWS)
        raw = memoryview(file.pread(rows * ROW_BYTES + 4 * blocks, begin))
        for at in range(0, len(raw), BLOCK_BYTES):
            block = raw[at : at + BLOCK_BYTES]
            if len(block) <= 4 or crc32c.crc32c(block[:-4]) != int.from_bytes(block[-4:], "little"):
                raise self._damaged("a block is damaged", begin + at)
        whole = len(raw) // BLOCK_BYTES * BLOCK_BYTES
        content = np.frombuffer(raw, np.uint8)
        found = content[:whole].reshape(-1, BLOCK_BYTES)[:, :-4].reshape(-1).view(ROW)
        if whole < len(raw):
            found = joined_rows((found, content[whole:-4].view(ROW)))
        if len(found) != rows:
            raise self._damaged("a block is cut off", begin)
        return found

    def scan(self) -> Iterator[IdRows]:
        """All rows, in order, some at a time. Raises ``CorruptFile``."""
        with closing(self._disk.open(self.path)) as file:
            for first in range(0, -(-self.count // BLOCK_ROWS), _SCAN_BLOCKS):
                yield self._read(file, first, _SCAN_BLOCKS)

    def whole_blocks(self) -> Iterator[IdRows | None]:
        """The rows of each block; None of one that is damaged."""
        with closing(self._disk.open(self.path)) as file:
            for first in range(-(-self.count // BLOCK_ROWS)):
                try:
                    yield self._read(file, first, 1)
                except CorruptFile:
                    yield None

    def verify(self) -> None:
        """Read all of it. Raises ``CorruptFile``."""
        count, last = 0, (-1, -1)
        for rows in self.scan():
            if not is_sorted(rows) or _first(rows) <= last:
                raise self._damaged("its ids are out of order", 0)
            if ((rows["low"] & _MARK).astype(np.uint16) != self._marks[count : count + len(rows)]).any():
                raise self._damaged("its filter is of other ids", 0)
            count += len(rows)
            last = _first(rows[-1:])
        if count != self.count:
            raise self._damaged("its blocks and its filter do not belong together", 0)


def _first(rows: IdRows) -> tuple[int, int]:
    return int(rows["high"][0]), int(rows["low"][0])


def is_sorted(rows: IdRows) -> bool:
    """Whether ids ascend, each once."""
    high, low = rows["high"], rows["low"]
    above: Any = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    return bool(above.all())


def newest_of(rows: IdRows) -> IdRows:
    """Sorted by id, and of each id the row that stands first."""
    return chosen_rows(rows, newest_order(rows["high"], rows["low"]))
