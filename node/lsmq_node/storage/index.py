"""The index of a table: where its records lie, in pages of a few KiB, so that a read takes in a few KiB of it.

It is a tree of two levels. A *page* has a row for each of some neighbouring blocks, and a bloom filter over the
queues they hold (see :mod:`.bloom`). The *root* has a row for each page, and no filter. So what a read of a table of
any size brings into memory is bounded, and each page is a thing of its own to the cache. All integers are
little-endian::

    offset width field
     0      4    crc       CRC32C of bytes [4, size)
     4      4    size      of the page
     8      4    rows
    12      2    columns   7, or 8 in the root; in a page and up to 64 more
    14      2    probes    of the filter; 0 in the root
    16      8 a row        each column of :class:`IndexColumn`, one after another; and then the words of filters over
                           the tags and types in each block (see :mod:`.word_filters`), as columns too
     .      8 a word       the filter, to the page's end

Rows are as wide in memory as on the disk, and used where they lie: parsing a page makes nothing but views of it.

Not supported: more than two levels. A table has at most ``MAX_PAGES`` pages; those of a larger one are larger.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar

import crc32c
import numpy as np
from numpy.typing import NDArray

from .bloom import BITS_PER_KEY, PROBES, Probe, Probes, bloom_build, bloom_build_each
from .columns import I64, U64
from .failures import damaged
from .word_filters import MOST_WORDS

#: A page is cut when its rows and its filter have so many bytes.
PAGE_BYTES = 8 * 1024
#: What bounds the root: 256 KiB of rows.
MAX_PAGES = 4096
PAGE_HEAD = struct.Struct("<IIIHH")
PAGE_HEAD_BYTES = PAGE_HEAD.size  # 4 + 4 + 4 + 2 + 2 = 16
#: What a page takes in memory beside its bytes: views and arrays of its columns.
_OVERHEAD_BYTES = 2600


class IndexColumn(IntEnum):
    """Columns of the index, in their order on disk. A row says of a block, or in the root of a page:"""

    FIRST_KEY = 0  # of its first record
    FIRST_OFFSET = 1
    LAST_KEY = 2  # of its last record
    LAST_OFFSET = 3
    POSITION = 4  # in the file
    SIZE = 5
    RECORDS = 6
    BLOCKS = 7  # root only: position of the page's first block


ROW_COLUMNS = 7
ROOT_COLUMNS = 8
_KEYS = (IndexColumn.FIRST_KEY, IndexColumn.LAST_KEY)
DTYPES = tuple(np.dtype(np.uint64 if column in _KEYS else np.int64) for column in IndexColumn)


class IndexPage:
    """A page, or the root, parsed.

    The columns are there twice: for questions about one queue, which Python's own ``bisect`` answers sooner than numpy
    (keys as ``array``, in half the time of a ``memoryview``), and for those about many, made when asked for.
    """

    CHANCES: ClassVar[int] = 4
    __slots__ = (
        "__weakref__",
        "_arrays",
        "_filter",
        "_raw",
        "_width",
        "_word_count",
        "count",
        "first_keys",
        "first_offsets",
        "last_keys",
        "last_offsets",
        "positions",
        "probes",
        "recent",
        "records",
        "sizes",
    )

    def __init__(self, raw: bytes, rows: int, columns: int, probes: int) -> None:
        """``raw`` is intact: see :meth:`parse`."""
        self.recent = 0
        self._raw = raw
        self._width = columns
        self._arrays: dict[int, NDArray[Any]] = {}
        self.count = rows
        self.probes = probes
        view, width = memoryview(raw)[PAGE_HEAD_BYTES:], 8 * rows
        columns_end = width * columns
        numbers = view[:columns_end].cast("q")
        self.first_keys = array("Q", view[:width].tobytes())
        self.first_offsets = numbers[rows : 2 * rows]
        self.last_keys = array("Q", view[2 * width : 3 * width].tobytes())
        self.last_offsets = numbers[3 * rows : 4 * rows]
        self.positions = numbers[4 * rows : 5 * rows]
        self.sizes = numbers[5 * rows : 6 * rows]
        self.records = numbers[6 * rows : 7 * rows]
        self._filter = view[columns_end:].cast("Q")
        self._word_count = len(self._filter)

    @classmethod
    def parse(cls, raw: bytes, source: str, position: int, *, root: bool = False) -> IndexPage:
        """A page as it lies in a table at ``position``. Raises ``CorruptFile``."""
        columns = ROOT_COLUMNS if root else ROW_COLUMNS
        if len(raw) >= PAGE_HEAD_BYTES:
            crc, size, rows, width, probes = PAGE_HEAD.unpack_from(raw)
            fits = size == len(raw) and rows and not (size - PAGE_HEAD_BYTES) % 8
            fits = fits and (width == columns or (not root and columns < width <= columns + MOST_WORDS))
            if fits and PAGE_HEAD_BYTES + 8 * rows * width <= size and crc == crc32c.crc32c(memoryview(raw)[4:]):
                return cls(raw, rows, width, probes)
        what = "root of the index" if root else "index page"
        raise damaged(source, f"the {what} at byte {position} is damaged", position)

    @property
    def memory_bytes(self) -> int:
        return len(self._raw) + 16 * self.count + _OVERHEAD_BYTES

    def column(self, column: int) -> NDArray[Any]:
        """A column as an array."""
        found = self._arrays.get(column)
        if found is None:
            at = PAGE_HEAD_BYTES + 8 * self.count * column
            found = self._arrays[column] = np.frombuffer(self._raw, DTYPES[column], self.count, at)
        return found

    def word_filters(self) -> U64:
        """Filters over the tags and types in the blocks of a page: a row for each of their words, none without any."""
        at = PAGE_HEAD_BYTES + 8 * self.count * ROW_COLUMNS
        width = self._width - ROW_COLUMNS
        return np.frombuffer(self._raw, np.uint64, self.count * width, at).reshape(width, self.count)

    @property
    def words(self) -> U64:
        """The filter. One that passes everything where it is of another release, or there is none."""
        if self.probes != PROBES or self._word_count == 0:
            return np.full(1, np.iinfo(np.uint64).max, np.uint64)
        return np.frombuffer(self._filter, np.uint64)

    def may_contain(self, key: int, probe: Probe) -> bool:
        """False only when the page's blocks hold nothing of ``key``, of which ``probe`` was made."""
        if self.probes != PROBES:
            return True
        half, marks = probe
        return self._filter[half % self._word_count] & marks == marks

    def seek(self, key: int, offset: int) -> int:
        """First row whose last record is at or after (key, offset); ``count`` when there is none."""
        last_keys = self.last_keys
        left = bisect_left(last_keys, key)
        if left == self.count or last_keys[left] != key:
            return left
        return bisect_left(self.last_offsets, offset, left, bisect_right(last_keys, key, left))

    def seek_many(self, keys: U64, offsets: I64) -> I64:
        """:meth:`seek` of many places."""
        is_row = np.arange(self.count + len(keys)) < self.count
        order = np.lexsort(
            (
                is_row,  # a place comes before the row that ends with it
                np.concatenate((self.column(IndexColumn.LAST_OFFSET), offsets)),
                np.concatenate((self.column(IndexColumn.LAST_KEY), keys)),
            )
        )
        rows = np.empty(len(keys), np.int64)
        places = order >= self.count
        rows[order[places] - self.count] = np.cumsum(is_row[order])[places]
        return rows

    def covers(self, keys: U64, offsets: I64) -> NDArray[np.bool_]:
        """Which places lie between the first and the last record of a row."""
        rows = self.seek_many(keys, offsets)
        at = np.minimum(rows, self.count - 1)
        first_keys, first_offsets = self.column(IndexColumn.FIRST_KEY)[at], self.column(IndexColumn.FIRST_OFFSET)[at]
        begun = (first_keys < keys) | ((first_keys == keys) & (first_offsets <= offsets))
        found: NDArray[np.bool_] = (rows < self.count) & begun
        return found


class PageRows:
    """Rows and filters of some pages of a table, in order, joined for questions about many queues at once."""

    __slots__ = ("_columns", "_pages")

    def __init__(self, pages: Sequence[IndexPage]) -> None:
        self._pages = pages
        self._columns: dict[int, NDArray[Any]] = {}

    def column(self, column: int) -> NDArray[Any]:
        if len(self._pages) == 1:
            return self._pages[0].column(column)
        found = self._columns.get(column)
        if found is None:
            found = self._columns[column] = np.concatenate([page.column(column) for page in self._pages])
        return found

    def may_contain_many(self, probes: Probes, numbers: I64) -> NDArray[np.bool_]:
        """:meth:`IndexPage.may_contain` of many probes, each in the page that ``numbers`` says, ascending."""
        halves, marks = probes
        words = [page.words for page in self._pages]
        if len(words) == 1:
            at, joined = halves % np.uint64(len(words[0])), words[0]
        else:
            lengths = np.fromiter(map(len, words), np.uint64, len(words))
            bases = np.cumsum(lengths) - lengths
            at, joined = bases[numbers] + halves % lengths[numbers], np.concatenate(words)
        found: NDArray[np.bool_] = joined[at.astype(np.int64)] & marks == marks
        return found

    def blocks_of(self, keys: U64, starts: I64, ends: I64) -> tuple[I64, I64, NDArray[np.bool_]]:
        """Where records ``[starts[i], ends[i])`` of each of the sorted ``keys`` may be: first row and how many.

        The third array says which queues have a block of their own among these; of those, only one is counted.
        """
        first_keys, last_keys = self.column(IndexColumn.FIRST_KEY), self.column(IndexColumn.LAST_KEY)
        first_offsets, last_offsets = self.column(IndexColumn.FIRST_OFFSET), self.column(IndexColumn.LAST_OFFSET)
        ending, beginning = last_keys.searchsorted(keys), first_keys.searchsorted(keys)
        many_end = last_keys.searchsorted(keys, "right") - ending  # blocks that end with the queue
        many_begin = first_keys.searchsorted(keys, "right") - beginning  # blocks that begin with it
        last = len(last_keys) - 1
        firsts = ending + ((many_end == 1) & (last_offsets[np.minimum(ending, last)] < starts))
        stops = beginning + ((many_begin == 1) & (first_offsets[np.minimum(beginning, last)] < ends))
        alone = (many_end > 1) | (many_begin > 1) | ((many_end == 1) & (many_begin == 1) & (ending == beginning))
        for at in np.flatnonzero(alone).tolist():
            key, end = keys[at], ends[at]
            low = int(ending[at])
            first = firsts[at] = low + int(last_offsets[low : low + int(many_end[at])].searchsorted(starts[at]))
            inside = first <= last and (
                first_keys[first] < key or (first_keys[first] == key and first_offsets[first] < end)
            )
            stops[at] = first + inside
            alone[at] = inside
        return firsts, np.maximum(stops - firsts, 0), alone


def encode_page(columns: Sequence[NDArray[Any]], keys: U64 | None) -> bytes:
    """A page of these rows with a filter over ``keys``, or the root, which has none."""
    return _page(_rows(columns), None if keys is None else bloom_build(keys)[0])


def _page(rows: U64, words: U64 | None) -> bytes:
    body = rows.tobytes() if words is None else rows.tobytes() + words.tobytes()
    probes = 0 if words is None else PROBES
    head = PAGE_HEAD.pack(0, PAGE_HEAD_BYTES + len(body), rows.shape[1], len(rows), probes)[4:]
    crc = crc32c.crc32c(body, crc32c.crc32c(head))
    return crc.to_bytes(4, "little") + head + body


def encode_index(columns: Sequence[NDArray[Any]], keys: U64, position: int) -> tuple[list[bytes], bytes]:
    """The pages of a table, to be written at ``position`` one after another, and its root.

    ``columns`` are those of :class:`IndexColumn` but the root's, a row a block, and then words of filters over their
    tags and types; ``keys`` are the queues in the blocks, sorted and distinct.
    """
    first_keys, last_keys = columns[IndexColumn.FIRST_KEY], columns[IndexColumn.LAST_KEY]
    begins, ends = keys.searchsorted(first_keys), keys.searchsorted(last_keys, "right")
    costs = np.cumsum(8 * len(columns) + (ends - begins) * BITS_PER_KEY // 8)
    page_bytes = max(PAGE_BYTES, int(costs[-1]) // MAX_PAGES + 1)
    numbers = (costs - 1) // page_bytes
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    stops = np.append(firsts[1:], len(numbers))
    filters = bloom_build_each(keys, begins[firsts], ends[stops - 1])
    rows = _rows(columns)
    pages = [
        _page(rows[:, first:stop], words)
        for first, stop, words in zip(firsts.tolist(), stops.tolist(), filters, strict=True)
    ]
    sizes = np.fromiter(map(len, pages), np.int64, len(pages))
    return pages, encode_root(columns, firsts, position + np.cumsum(sizes) - sizes, sizes)


def _rows(columns: Sequence[NDArray[Any]]) -> U64:
    """The columns as they lie on the disk, all of 64 bits."""
    return np.stack([values.astype(np.uint64) for values in columns])


def encode_root(columns: Sequence[NDArray[Any]], firsts: I64, positions: I64, sizes: I64) -> bytes:
    """The root over pages that begin at the rows ``firsts`` and lie at ``positions``."""
    lasts = np.append(firsts[1:], len(columns[0])) - 1
    rows = (
        columns[IndexColumn.FIRST_KEY][firsts],
        columns[IndexColumn.FIRST_OFFSET][firsts],
        columns[IndexColumn.LAST_KEY][lasts],
        columns[IndexColumn.LAST_OFFSET][lasts],
        positions,
        sizes,
        np.add.reduceat(columns[IndexColumn.RECORDS], firsts),
        columns[IndexColumn.POSITION][firsts],
    )
    return encode_page(rows, None)
