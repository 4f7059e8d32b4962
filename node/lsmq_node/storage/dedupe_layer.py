"""Deduplication ids in memory: those that came since the last flush, in the order of the log.

A row is one id that a message was stored under; its id is the 128 bits of its hash, spread by the queue it belongs to
(:func:`.dedupe.scoped`), so that all queues of a shard lie together. In files, and for who reads them::

    width field
     8    high       the upper half
     8    low        the lower half
     8    offset     of the message in its queue
     8    stored_ms
     4    topic      id of the topic

Here they are columns: what is sorted and compared lies together, and what is said alike of the messages of a write,
time and topic, is kept once for all of them.

Rows of writes that are in line stand at the end: what is dropped from the line is cut off. Where an id is there twice,
as its window ended in between, the later row counts.

Adding copies them, and nothing is sorted for it: an id that is new is mostly told apart before anybody looks
here (:mod:`.dedupe_recent`). Few are looked for among the *marks*, the upper halves of the rows' keys, by one
comparison of a whole column each. Once that has cost as much as sorting would, or many are looked for, the rows that
have come since are sorted, into stretches that are joined by eights.
"""

from __future__ import annotations

from array import array
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
#: What two ids with one upper half are told apart by, and what is said of a message: two items that are moved at once.
_REST = np.dtype([("low", "<u8"), ("offset", "<i8")])
_WRITE = np.dtype([("stored_ms", "<i8"), ("topic", "<u4")])
_WHOLE_REST, _WHOLE_WRITE = (np.dtype((np.void, dtype.itemsize)) for dtype in (_REST, _WRITE))
#: A row as these lie in it.
_MOVED = np.dtype([("high", "<u8"), ("rest", _WHOLE_REST), ("write", _WHOLE_WRITE)])
#: Of a layer: a row's mark (4), its upper half (8), its rest, and the number of its write (4).
_ROW_BYTES = 4 + 8 + _REST.itemsize + 4
_HALF, _UPPERMOST = np.uint64(32), np.uint64(48)
#: Rows that a slab has room for: a layer is flushed before, but for many more that are in line.
_SLAB_ROWS = 1 << 20
#: Stretches of fewer rows count as ones of so many.
_SMALL_ROWS = 1 << 10
#: So many rows are taken at a time: what is computed of them stays in the processor's cache.
_PIECE_ROWS = 1 << 13
#: So many stretches of about one size are joined.
_FAN = 8
#: Sorting a row takes as long as comparing so many.
_COMPARED = 512


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


def newest_order(high: U64, low: U64) -> tuple[I64, U64]:
    """The places of ids in their order, of those with one id the place that comes first; and their upper halves."""
    # By their upper 32 bits, 16 at a time: numpy counts so small ones, which is three times as fast as comparing them.
    order: I64 = (high >> _HALF).astype(np.uint16).argsort(kind="stable")
    order = order.take((high >> _UPPERMOST).astype(np.uint16).take(order).argsort(kind="stable"))
    highs = high.take(order)
    if (highs[1:] > highs[:-1]).all():
        return order, highs
    # Those that are alike in these bits follow one another, in the order they came; they are few where ids do not come
    # again.
    halves = highs >> _HALF
    alike = np.zeros(len(order), np.bool_)
    alike[1:] = halves[1:] == halves[:-1]
    alike[:-1] |= alike[1:]
    at = np.flatnonzero(alike)
    some = order[at]
    some = some[np.lexsort((low[some], high[some]))]  # stable: of equal ids the first stays the first
    order[at], highs[at] = some, high[some]
    again = np.flatnonzero((high[some[1:]] == high[some[:-1]]) & (low[some[1:]] == low[some[:-1]])) + 1
    return (np.delete(order, at[again]), np.delete(highs, at[again])) if len(again) else (order, highs)


def id_slabs() -> Slabs:
    """Memory for layers."""
    return Slabs(_SLAB_ROWS * _ROW_BYTES, spares=1)


@dataclass(frozen=True, slots=True)
class IdColumns:
    """Ids of a topic that are stored at one time, with their :func:`keys_of`."""

    high: U64
    low: U64
    keys: U64
    offsets: I64
    stored_ms: int
    topic: int

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
        self._high: U64 = np.empty(0, np.uint64)
        self._rest: NDArray[np.void] = np.empty(0, _REST)
        self._write: U32 = np.empty(0, np.uint32)
        # Of each write; those behind the last that a row has mean nothing either.
        self._stored_ms, self._topics = array("q"), array("I")
        self._stretches: list[_Stretch] = []  # of the rows from the first on, without gaps
        self._compared = 0  # rows, since the last of them

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        sorted_bytes = sum(each.packed.nbytes for each in self._stretches)
        return self.count * _ROW_BYTES + len(self._topics) * _WRITE.itemsize + sorted_bytes

    def in_line(self) -> list[IdColumns]:
        """Those that are not applied, some at a time."""
        return [*self._columns(self.applied)]

    def _columns(self, begin: int) -> Iterator[IdColumns]:
        """The rows from ``begin`` on, each write's together."""
        while begin < self.count:
            write = int(self._write[begin])
            end = begin + int(self._write[begin : self.count].searchsorted(write, side="right"))
            high, rest = self._high[begin:end], self._rest[begin:end]
            keys = keys_of(high, rest["low"])
            yield IdColumns(high, rest["low"], keys, rest["offset"], self._stored_ms[write], self._topics[write])
            begin = end

    def key_pieces(self, begin: int = 0) -> Iterator[U64]:
        """:func:`keys_of` all rows from ``begin`` on, some at a time."""
        for first in range(begin, self.count, _PIECE_ROWS):
            end = min(self.count, first + _PIECE_ROWS)
            yield keys_of(self._high[first:end], self._rest["low"][first:end])

    def kept(self) -> Iterator[IdRows]:
        """Those that are applied, in the order of their ids, of each the newest; some at a time."""
        high, rest = self._high[: self.applied], self._rest[: self.applied]
        order, high = newest_order(high[::-1], rest["low"][::-1])
        np.subtract(self.applied - 1, order, out=order)
        whole_rest, writes = rest.view(_WHOLE_REST), np.empty(len(self._topics), _WRITE)
        writes["stored_ms"], writes["topic"] = self._stored_ms, self._topics
        whole_writes = writes.view(_WHOLE_WRITE)
        for begin in range(0, len(order), _PIECE_ROWS):
            places = order[begin : begin + _PIECE_ROWS]
            moved = np.empty(len(places), _MOVED)
            moved["high"], moved["rest"] = high[begin : begin + _PIECE_ROWS], whole_rest.take(places)
            moved["write"] = whole_writes.take(self._write.take(places))
            rows: IdRows = moved.view(ROW)
            yield rows

    def add(self, ids: IdColumns) -> None:
        """Ids that are stored from now on; what was here under them counts no more."""
        count, end = self.count, self.count + len(ids)
        if end > len(self._marks):
            self._grow(end)
        self._marks[count:end] = ids.keys >> _HALF
        self._high[count:end] = ids.high
        rest = self._rest[count:end]
        rest["low"], rest["offset"] = ids.low, ids.offsets
        if not self._topics or ids.stored_ms != self._stored_ms[-1] or ids.topic != self._topics[-1]:
            self._stored_ms.append(ids.stored_ms)
            self._topics.append(ids.topic)
        self._write[count:end] = len(self._topics) - 1
        self.count = end

    def _grow(self, count: int) -> None:
        if count <= _SLAB_ROWS:
            slab, capacity = self._slabs.take(), _SLAB_ROWS
        else:
            capacity = 1 << (count - 1).bit_length()
            slab = np.empty(capacity * _ROW_BYTES, np.uint8)
        at = 0
        for name in ("_rest", "_high", "_marks", "_write"):
            old = getattr(self, name)
            column = slab[at : at + capacity * old.itemsize].view(old.dtype)
            column[: self.count] = old[: self.count]
            setattr(self, name, column)
            at += column.nbytes

    def cut(self) -> None:
        """What is in line is dropped."""
        self.count = self.applied
        while self._stretches and self._stretches[-1].end > self.count:
            self._stretches.pop()

    def find(self, high: U64, low: U64) -> tuple[I64, I64, I64]:
        """Which of these ids are here: their places among those asked for, the offsets, and when they were stored."""
        numbers = self._numbers(high, low, keys_of(high, low))
        places = np.flatnonzero(numbers >= 0)
        numbers = numbers[places]
        stored_ms = np.array([self._stored_ms[write] for write in self._write[numbers].tolist()], np.int64)
        return places, self._rest["offset"][numbers], stored_ms

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
        alike = (self._high[numbers] == high) & (self._rest["low"][numbers] == low)
        same: I64 = np.where(alike, numbers, -1)
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
