"""Files of deduplication ids: immutable, sorted by id, with the filter that says where an id would be.

All integers are little-endian::

    width field
     8    magic ``LSMQIDS1``
     4    version (1)
     n    blocks    of ``BLOCK_ROWS`` rows, the last of fewer, each with the CRC32C of its rows behind them (4)
     4*p  parts     of each part the crc of its marks and starts
     4*f  firsts    of each block the upper 32 bits of its first id
     2*r  marks     of each row the lower 16 bits of its id
     4*b  starts    of each bucket the number of its first row, and at the end the number of rows
     n    tail      msgpack: rows, buckets, and of each topic its rows and the latest ``stored_ms``
    28    footer    position of the marks (8); length of the tail (4); crc of marks, starts and tail (4); version (4);
                    crc of these 20 bytes (4); crc of parts and firsts (4)

A row is :data:`.dedupe_layer.ROW`. Ids are spread evenly, so the bucket of an id is its upper bits, and a bucket has
four to eight rows on average. Marks and starts stay in memory, two and a third bytes an id, until the file has joined
an index of many (:mod:`.dedupe_index`), which takes them a sixteenth of all ids at a time, a *part*. Of ids that are
not here one in ten thousand is looked for in a block; a block is found by the first ids of all.

Earlier releases wrote no parts and firsts, and 0 for their crc, and any number of buckets: an id's upper 32 bits were
scaled to it, as they are where it is a power of two. Such a file joins nothing. Those releases read what this writes.

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

from lsmq.errors import CorruptFile
from lsmq_node.descriptors import SHORTAGE

from .buffered_file import BufferedFile
from .columns import I64, U32, U64
from .dedupe_buckets import MARK_BITS, U16, Marks
from .dedupe_layer import ROW, IdRows, chosen_rows, joined_rows, newest_order
from .dedupe_recent import NEVER
from .disk import Disk, File, read_back
from .failures import damaged, newer, no_descriptor

MAGIC = b"LSMQIDS1"
VERSION = 1
HEAD = struct.Struct("<8sI")
FOOTER = struct.Struct("<QIIIII")
ROW_BYTES = ROW.itemsize  # 8 + 8 + 8 + 8 + 4 = 36
BLOCK_ROWS = 128
BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES + 4
#: Of the ids of a file, by their upper bits.
PART_BITS = 4
PARTS = 1 << PART_BITS
#: Rows of a bucket, at least, on average.
_BUCKET_ROWS = 4
_MOST_BITS = 30
#: So few are looked for one by one.
_FEW = 8
#: Ids whose blocks are in memory together.
_READ_TOGETHER = 256
#: Blocks that are read at a time by who reads all.
_SCAN_BLOCKS = 64
_HALF = np.uint64(32)


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
        self._marks: list[U16] = []
        self._bits = min(max((expected // _BUCKET_ROWS).bit_length() - 1, PART_BITS), _MOST_BITS)
        self._starts = np.zeros((1 << self._bits) + 1, np.uint32)
        self._firsts: list[U32] = []
        self._topics: dict[int, list[int]] = {}
        self.count = 0

    def add(self, rows: IdRows) -> None:
        """The next rows, sorted by ``high`` and ``low``, above the last."""
        if not len(rows):
            return
        self.count += len(rows)
        buckets = _buckets(rows["high"], 1 << self._bits)
        self._marks.append(rows["low"].astype(np.uint16))  # the lower bits
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
        self._firsts.append((rows["high"][::block_rows] >> _HALF).astype("<u4"))
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
        starts = np.cumsum(self._starts, out=self._starts)
        marks = np.concatenate(self._marks) if self._marks else np.empty(0, np.uint16)
        parts = []
        for part in range(PARTS):
            first, last = _buckets_of(part, self._bits)
            mine = starts[first : last + 1]
            parts.append(_part_crc(marks[mine[0] : mine[-1]].tobytes(), mine.tobytes()))
        guide = np.array(parts, "<u4").tobytes() + b"".join(firsts.tobytes() for firsts in self._firsts)
        self._file.write(guide)
        position, crc = self._file.end, 0
        tail = msgpack.packb([self.count, 1 << self._bits, self._topics])
        for piece in (marks.tobytes(), starts.tobytes(), tail):
            crc = crc32c.crc32c(piece, crc)
            self._file.write(piece)
        foot = struct.pack("<QIII", position, len(tail), crc, VERSION)
        self._file.write(foot + struct.pack("<II", crc32c.crc32c(foot), crc32c.crc32c(guide)))
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


def _buckets(high: U64, buckets: int) -> I64:
    """The buckets of ids."""
    found: I64 = ((high >> _HALF) * np.uint64(buckets) >> _HALF).view(np.int64)
    return found


def _buckets_of(part: int, bits: int) -> tuple[int, int]:
    """The first bucket of a part, and the first behind it."""
    return part << bits - PART_BITS, part + 1 << bits - PART_BITS


def _part_crc(marks: bytes, starts: bytes) -> int:
    return crc32c.crc32c(starts, crc32c.crc32c(marks))


@dataclass(frozen=True, slots=True)
class Prints:
    """What a filter knows of ids: the upper ``bits`` of each, and in the lowest 16 bits its mark."""

    bits: int
    values: U64


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
            #: None once it has joined an index.
            self._filter: Marks | None = self._read_tail(file)

    def _read_tail(self, file: File) -> Marks:
        """What is said of the rows, from the disk; its filter."""
        size = self.size_bytes
        if size < HEAD.size + FOOTER.size or file.pread(8, 0) != MAGIC:
            raise self._damaged(f"not a file of ids ({size} bytes)", 0)
        raw = file.pread(FOOTER.size, size - FOOTER.size)
        position, tail_bytes, crc, version, foot_crc, guide_crc = FOOTER.unpack(raw)
        if crc32c.crc32c(raw[:20]) != foot_crc:
            raise self._damaged("its footer is damaged", size - FOOTER.size)
        if version != VERSION:
            raise newer(self.path, "version of ids", version, VERSION)
        rest = file.pread(size - FOOTER.size - position, position)
        if crc32c.crc32c(rest) != crc or file.pread(HEAD.size, 0) != HEAD.pack(MAGIC, VERSION):
            raise self._damaged("its filter is damaged", position)
        count, buckets, topics = msgpack.unpackb(rest[len(rest) - tail_bytes :], strict_map_key=False)
        self.count: int = count
        self._buckets: int = buckets
        #: Of each topic the number of its rows, and the latest ``stored_ms``.
        self.topics: dict[int, tuple[int, int]] = {topic: (rows, last) for topic, (rows, last) in topics.items()}
        self._marks_at = position
        starts = np.frombuffer(rest, "<u4", self._buckets + 1, 2 * count)
        part_crcs: list[int] = []
        if guide_crc:
            blocks = -(-count // BLOCK_ROWS)
            guide = file.pread(4 * (PARTS + blocks), position - 4 * (PARTS + blocks))
            if crc32c.crc32c(guide) != guide_crc:
                raise self._damaged("its filter is damaged", position)
            part_crcs = np.frombuffer(guide, "<u4", PARTS).tolist()
            firsts = np.frombuffer(guide, "<u4", blocks, 4 * PARTS)
        else:
            firsts = starts.searchsorted(np.arange(0, count, BLOCK_ROWS), side="right") - 1
        self._part_crcs = part_crcs
        #: Of each block :meth:`_order_of` its first row.
        self._firsts: U32 = firsts.astype(np.uint32)
        return Marks(np.frombuffer(rest, "<u2", count), starts)

    def _damaged(self, what: str, position: int) -> CorruptFile:
        self.damage = damaged(self.path, f"{what} (byte {position}): the file of ids is damaged", position)
        return self.damage

    @property
    def memory_bytes(self) -> int:
        """What stays in memory of it."""
        return self._firsts.nbytes + (0 if self._filter is None else self._filter.memory_bytes)

    def _order_of(self, high: U64) -> U32:
        """What ascends with ids, and is of a few bits."""
        return (high >> _HALF if self._part_crcs else _buckets(high, self._buckets)).astype(np.uint32)

    def _bucket(self, high: int) -> int:
        """:func:`_buckets` of one id."""
        return (high >> 32) * self._buckets >> 32

    def find(self, high: U64, low: U64) -> tuple[I64, I64, I64]:
        """Which of these ids are here: their places among those asked for, the offsets, and when they were stored.

        Raises ``CorruptFile``, ``FileNotFoundError``, and ``StoreBusy`` for want of a file descriptor.
        """
        places = np.arange(len(high))
        if (held := self._filter) is not None:
            if len(high) <= _FEW:
                pairs = enumerate(zip(high.tolist(), low.tolist(), strict=True))
                here = [at for at, (upper, lower) in pairs if held.has_one(self._bucket(upper), lower & 0xFFFF)]
                places = np.array(here, np.int64)
            else:
                places = np.unique(held.find(_buckets(high, self._buckets), low.astype(np.uint16))[0])
        if not len(places) or not self.count:
            return places[:0], places[:0], places[:0]
        ordered = places[high[places].argsort()]
        begins = range(0, len(ordered), _READ_TOGETHER)
        found = [pair for at in begins for pair in self._look(ordered[at : at + _READ_TOGETHER], high, low)]
        rows = joined_rows([rows for _, rows in found])
        return np.concatenate([each for each, _ in found] or [places[:0]]), rows["offset"], rows["stored_ms"]

    def _look(self, places: I64, high: U64, low: U64) -> Iterator[tuple[I64, IdRows]]:
        """Those of some ids, which ascend, that are here, and their rows."""
        order = self._order_of(high[places])
        blocks = self._firsts.searchsorted(order, side="right") - 1
        while len(left := np.flatnonzero(blocks >= 0)):
            places, order, blocks = places[left], order[left], blocks[left]
            rows = self._read_blocks(np.unique(blocks).tolist())
            numbers = _numbers_of(rows, high[places], low[places])
            here = numbers >= 0
            yield places[here], chosen_rows(rows, numbers[here])
            # Where the block's first row is alike, others may stand in the block before it.
            blocks = np.where(~here & (self._firsts[blocks] == order), blocks - 1, -1)

    def _read_blocks(self, blocks: list[int]) -> IdRows:
        try:
            file = self._disk.open(self.path, random=True)
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise
            raise no_descriptor(self.path) from error
        with closing(file):
            return joined_rows([self._read(file, block, 1) for block in blocks])

    # For an index of many files

    @property
    def can_join(self) -> bool:
        """Whether :meth:`prints` are known."""
        return bool(self._part_crcs) and self.damage is None

    @property
    def bucket_bits(self) -> int:
        """Of a file that :attr:`can_join`."""
        bits: int = self._buckets.bit_length() - 1
        return bits

    def prints(self, part: int) -> Prints:
        """Of a sixteenth of the ids what the filter has of them, from the disk. Raises ``CorruptFile``."""
        first, last = _buckets_of(part, self.bucket_bits)
        with closing(self._disk.open(self.path)) as file:
            raw = read_back(file, 4 * (last - first + 1), self._marks_at + 2 * self.count + 4 * first)
            if len(raw) != 4 * (last - first + 1):
                raise self._damaged("its filter is cut off", self._marks_at)
            starts = np.frombuffer(raw, "<u4")
            begin, end = int(starts[0]), int(starts[-1])
            marks = read_back(file, 2 * max(0, end - begin), self._marks_at + 2 * begin)
        if _part_crc(marks, raw) != self._part_crcs[part]:
            raise self._damaged("its filter is damaged", self._marks_at)
        values = np.repeat(np.arange(first, last, dtype=np.uint64), np.diff(starts))
        values <<= np.uint64(MARK_BITS)
        values |= np.frombuffer(marks, "<u2")
        return Prints(self.bucket_bits, values)

    def forget_filter(self) -> None:
        """Another knows where its ids may be. Who asks all the same is answered from its blocks."""
        self._filter = None

    def _read(self, file: File, first: int, count: int) -> IdRows:
        """The rows of ``count`` blocks from ``first`` on."""
        begin = HEAD.size + first * BLOCK_BYTES
        rows = min(self.count - first * BLOCK_ROWS, count * BLOCK_ROWS)
        blocks = -(-rows // BLOCK_ROWS)
        raw = memoryview(read_back(file, rows * ROW_BYTES + 4 * blocks, begin))
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
        with closing(self._disk.open(self.path)) as file:
            whole = self._read_tail(file)
        starts, count, last = whole.starts, 0, (-1, -1)
        for rows in self.scan():
            if not is_sorted(rows) or _first(rows) <= last:
                raise self._damaged("its ids are out of order", 0)
            buckets, marks = _buckets(rows["high"], self._buckets), rows["low"].astype(np.uint16)
            numbers = np.arange(count, count + len(rows))
            if (
                (marks != whole.marks[count : count + len(rows)]).any()
                or (starts[buckets] > numbers).any()
                or (starts[buckets + 1] <= numbers).any()
            ):
                raise self._damaged("its filter is of other ids", 0)
            count += len(rows)
            last = _first(rows[-1:])
        if count != self.count:
            raise self._damaged("its blocks and its filter do not belong together", 0)


def _numbers_of(rows: IdRows, high: U64, low: U64) -> I64:
    """Which of the rows, which ascend, are of these ids; -1 where none is."""
    highs, lows = rows["high"].copy(), rows["low"].copy()
    found, at, left = np.full(len(high), -1), highs.searchsorted(high), np.arange(len(high))
    # The first that is not below; those with the same upper half follow one another.
    while len(left := left[at[left] < len(rows)]) and len(left := left[highs[at[left]] == high[left]]):
        same = lows[at[left]] == low[left]
        found[left[same]] = at[left[same]]
        left = left[~same]
        at[left] += 1
    return found


def _first(rows: IdRows) -> tuple[int, int]:
    return int(rows["high"][0]), int(rows["low"][0])


def is_sorted(rows: IdRows) -> bool:
    """Whether ids ascend, each once."""
    high, low = rows["high"], rows["low"]
    above: Any = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    return bool(above.all())


def newest_of(rows: IdRows) -> IdRows:
    """Sorted by id, and of each id the row that stands first."""
    return chosen_rows(rows, newest_order(rows["high"], rows["low"])[0])
