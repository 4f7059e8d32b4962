"""Deduplication ids in memory: those that came since the last flush, as rows in the order of the log.

A row is one id that a message was stored under; its id is the 128 bits of its hash, spread by the queue it belongs to
(:func:`.dedupe.scoped`), so that all queues of a shard lie together::

    width field
     8    high       the upper half
     8    low        the lower half
     8    offset     of the message in its queue
     8    stored_ms
     4    topic      id of the topic

Rows of writes that are in line stand at the end: what is dropped from the line is cut off. Where an id is there twice,
as its window ended in between, the later row counts.

Adding copies them, and nothing is sorted for it: an id that is new is mostly told apart before anybody looks
here (:mod:`.dedupe_recent`). Few are looked for among the *marks*, the upper halves of the rows' keys, by one
comparison of a whole column each. Once that has cost as much as sorting would, or many are looked for, the rows that
have come since are sorted, into stretches that are joined by eights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime

from .columns import I64, U32, U64
from .slabs import Slabs
from .tiers import joined_tier

#: One id, in memory and in files.
ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("offset", "<i8"), ("stored_ms", "<i8"), ("topic", "<u4")])
IdRows = NDArray[np.void]

# Random, so that nobody can choose ids that fall together.
_HIGH = np.uint64(runtime.random_bits(64) | 1)
_LOW = np.uint64(runtime.random_bits(64) | 1)
_WHOLE_ROW = np.dtype((np.void, ROW.itemsize))
#: Of a layer: a row and its mark.
_ROW_BYTES = ROW.itemsize + 4
_HALF = np.uint64(32)
#: Rows that a slab has room for: a layer is flushed before, but for many more that are in line.
_SLAB_ROWS = 1 << 20
#: Stretches of fewer rows count as ones of so many.
_SMALL_ROWS = 1 << 10
#: So many rows are taken at a time: what is computed of them stays in the processor's cache.
_PIECE_ROWS = 1 << 13
#: So many stretches of about one size are joined.
_FAN = 8
#: Sorting a row takes as long as comparing so many.
_COMPARED = 64


def keys_of(high: U64, low: U64) -> U64:
    """Of each id 64 bits, of which the lowest are worth little."""
    keys = high * _HIGH
    keys += low * _LOW
    return keys


def chosen_rows(rows: IdRows, places: I64) -> IdRows:
    """``rows[places]``, as one piece of memory a row: numpy moves fields one by one, and picks items slower than it
    takes them."""
    found: IdRows = rows.view(_WHOLE_ROW).take(places).view(ROW)
    return found


def joined_rows(pieces: Sequence[IdRows]) -> IdRows:
    """One after another."""
    if len(pieces) == 1:
        return pieces[0]
    whole = np.concatenate([piece.view(_WHOLE_ROW) for piece in pieces]) if pieces else np.empty(0, _WHOLE_ROW)
    found: IdRows = whole.view(ROW)
    return found


def newest_order(high: U64, low: U64) -> I64:
    """The places of ids in their order, and of those with one id the place that comes first."""
    # By the upper bits, with the place below them: numpy sorts integers many times faster than it finds an order.
    bits = np.uint64(max(0, len(high) - 1).bit_length())
    packed = high >> bits
    packed <<= bits
    packed |= np.arange(len(high), dtype=np.uint64)
    packed.sort()
    order: I64 = (packed & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
    packed >>= bits
    if (packed[1:] > packed[:-1]).all():
        return order
    order = np.lexsort((low, high))  # stable: of equal ids the first stays the first
    high, low = high[order], low[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return order[fresh]


def id_slabs() -> Slabs:
    """Memory for layers."""
    return Slabs(_SLAB_ROWS * _ROW_BYTES, spares=1)


@dataclass(frozen=True, slots=True)
class IdColumns:
    """Ids that are stored, with their :func:`keys_of`; the time and the topic are one for all, or of each."""

    high: U64
    low: U64
    keys: U64
    offsets: I64
    stored_ms: I64 | int
    topics: U32 | int

    def __len__(self) -> int:
        return len(self.high)


class IdLayer:
    """The ids of one memtable. Its owner lets one thread at a time look or change."""

    def __init__(self, since: int = 0, slabs: Slabs | None = None) -> None:
        """``since``: see :class:`.RecentIds`. ``slabs``, of :func:`id_slabs`, lend the memory."""
        self.since = since
        self._slabs = slabs or id_slabs()
        self.count = 0
        #: So many rows, the first, are of entries that are applied.
        self.applied = 0
        # As long as one another; what lies behind the first ``count`` means nothing.
        self._marks: U32 = np.empty(0, np.uint32)
        self._rows: IdRows = np.empty(0, ROW)
        self._stretches: list[_Stretch] = []  # of the rows from the first on, without gaps
        self._compared = 0  # rows, since the last of them

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        sorted_bytes = sum(each.packed.nbytes for each in self._stretches)
        return self.count * _ROW_BYTES + sorted_bytes

    def in_line(self) -> IdColumns:
        """Those that are not applied."""
        rows = self._rows[self.applied : self.count]
        keys = keys_of(rows["high"], rows["low"])
        return IdColumns(rows["high"], rows["low"], keys, rows["offset"], rows["stored_ms"], rows["topic"])

    def key_pieces(self, begin: int = 0) -> Iterator[U64]:
        """:func:`keys_of` all rows from ``begin`` on, some at a time."""
        for first in range(begin, self.count, _PIECE_ROWS):
            rows = self._rows[first : min(self.count, first + _PIECE_ROWS)]
            yield keys_of(rows["high"], rows["low"])

    def kept(self) -> Iterator[IdRows]:
        """Those that are applied, in the order of their ids, of each the newest; some at a time."""
        rows = self._rows[: self.applied]
        order = self.applied - 1 - newest_order(rows["high"][::-1], rows["low"][::-1])
        for begin in range(0, len(order), _PIECE_ROWS):
            yield chosen_rows(rows, order[begin : begin + _PIECE_ROWS])

    def add(self, ids: IdColumns) -> None:
        """Ids that are stored from now on; what was here under them counts no more."""
        count, end = self.count, self.count + len(ids)
        if end > len(self._marks):
            self._grow(end)
        self._marks[count:end] = ids.keys >> _HALF
        rows = self._rows[count:end]
        rows["high"], rows["low"], rows["offset"] = ids.high, ids.low, ids.offsets
        rows["stored_ms"], rows["topic"] = ids.stored_ms, ids.topics
        self.count = end

    def _grow(self, count: int) -> None:
        if count <= _SLAB_ROWS:
            slab, capacity = self._slabs.take(), _SLAB_ROWS
        else:
            capacity = 1 << (count - 1).bit_length()
            slab = np.empty(capacity * _ROW_BYTES, np.uint8)
        marks: U32 = slab[: capacity * 4].view(np.uint32)
        rows: IdRows = slab[capacity * 4 :].view(ROW)
        marks[: self.count], rows[: self.count] = self._marks[: self.count], self._rows[: self.count]
        self._marks, self._rows = marks, rows

    def cut(self) -> None:
        """What is in line is dropped."""
        self.count = self.applied
        while self._stretches and self._stretches[-1].end > self.count:
            self._stretches.pop()

    def find(self, high: U64, low: U64) -> tuple[I64, I64, I64]:
        """Which of these ids are here: their places among those asked for, the offsets, and when they were stored."""
        numbers = self._numbers(high, low, keys_of(high, low))
        places = np.flatnonzero(numbers >= 0)
        rows = chosen_rows(self._rows, numbers[places])
        return places, rows["offset"], rows["stored_ms"]

    def _numbers(self, high: U64, low: U64, keys: U64) -> I64:
        """Of each id the number of its latest row, or -1."""
        numbers = np.full(len(keys), -1)
        begin = self._stretches[-1].end if self._stretches else 0
        unsorted = self.count - begin
        self._compared += len(keys) * unsorted
        if unsorted and self._compared > _COMPARED * unsorted:
            self._sort(begin)
        elif unsorted:
            for place, mark in enumerate((keys >> _HALF).astype(np.uint32)):
                alike = self._marks[begin : self.count] == mark
                if alike.any():
                    rows = begin + np.flatnonzero(alike)
                    numbers[place] = self._same(rows, high[place : place + 1], low[place : place + 1]).max()
        left = np.flatnonzero(numbers < 0)
        for stretch in reversed(self._stretches):
            if not len(left):
                break
            numbers[left] = self._latest(stretch, high[left], low[left], keys[left])
            left = left[numbers[left] < 0]
        return numbers

    def _same(self, numbers: I64, high: U64, low: U64) -> I64:
        """The numbers, or -1 where the row has another id."""
        rows = chosen_rows(self._rows, numbers)
        same: I64 = np.where((rows["high"] == high) & (rows["low"] == low), numbers, -1)
        return same

    def _latest(self, stretch: _Stretch, high: U64, low: U64, keys: U64) -> I64:
        """Of each id the number of its latest row in the stretch, or -1."""
        found, at = np.full(len(keys), -1), stretch.last_places(keys)
        left = np.flatnonzero(at >= 0)
        while len(left):
            numbers, alike = stretch.numbers(at[left], keys[left])
            left = left[alike]
            found[left] = self._same(numbers[alike], high[left], low[left])
            left = left[found[left] < 0]
            at[left] -= 1
            left = left[at[left] >= 0]
        return found

    def _sort(self, begin: int) -> None:
        """The rows from ``begin`` on are in stretches."""
        sizes = [*(each.end - each.begin for each in self._stretches), self.count - begin]
        joined = joined_tier(sizes, _FAN, _SMALL_ROWS) - 1
        if joined > 0:
            begin = self._stretches[-joined].begin
            del self._stretches[-joined:]
        self._stretches.append(_Stretch.of(np.concatenate([*self.key_pieces(begin)]), begin))
        self._compared = 0


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Rows ``[begin, end)``, sorted: the upper bits of their keys, and below them their places in the stretch.

    Numpy sorts integers many times faster than it finds an order.
    """

    begin: int
    packed: U64
    of_places: np.uint64  # the bits that are places

    @classmethod
    def of(cls, keys: U64, begin: int) -> _Stretch:
        of_places = np.uint64((1 << (len(keys) - 1).bit_length()) - 1)
        packed = keys & ~of_places
        packed |= np.arange(len(keys), dtype=np.uint64)
        packed.sort()
        return cls(begin, packed, of_places)

    @property
    def end(self) -> int:
        return self.begin + len(self.packed)

    def last_places(self, keys: U64) -> I64:
        """Of each key the last place in the order where it may be; -1: nowhere. It may also be before that."""
        return self.packed.searchsorted(keys | self.of_places, side="right") - 1

    def numbers(self, places: I64, keys: U64) -> tuple[I64, NDArray[np.bool_]]:
        """The rows at places in the order, and whether their keys are alike."""
        entries = self.packed[places]
        numbers: I64 = (entries & self.of_places).view(np.int64)
        return self.begin + numbers, entries | self.of_places == keys | self.of_places
