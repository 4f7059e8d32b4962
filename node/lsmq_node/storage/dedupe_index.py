"""Where deduplication ids of full files may be: one look for all files, at two and a quarter bytes an id.

A file that is full joins, and forgets the filter of its own. What is known of an id here is its bucket, which is upper
bits of it and as many of its mark as it takes, twelve bits of the rest of the mark, and which of sixteen *seats* its
file has; those of more than sixteen files share some. The ids are cut by their upper bits into parts, which are made
anew one by one, so that joining takes no more memory than one of them. Of ten thousand ids that are not here some
thirty are looked for in a block of one file.

Ids of files that are gone stay until they are a quarter of all; then the parts are made from the files' filters on the
disk, as where buckets have come to twice as many as they should have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U64
from .dedupe_buckets import MARK_BITS, Marks
from .dedupe_file import PART_BITS, PARTS, IdFile, Prints

SEATS = 16
_SEAT_BITS = 4
_KEPT_BITS = 12
_KEPT = 0xFFFF & ~(SEATS - 1)
#: Marks of a bucket, at least, on average; twice as many at most.
_BUCKET_MARKS = 8
_STALE = 4
#: So few are looked for part by part.
_FEW = 64
_LOWER = np.uint64(0xFFFF)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How an id's bucket is made: of its upper bits ``high``, and of so many bits of its mark below them."""

    high: int
    marked: int

    def keys(self, prints: U64) -> U64:
        """Of ids of one part by their upper bits and marks, as :class:`.Prints` have them: bucket in the part, the
        rest of the mark, and no seat."""
        keys = prints >> np.uint64(MARK_BITS - _KEPT_BITS - self.marked)
        keys &= np.uint64((1 << self.bits - PART_BITS + _KEPT_BITS) - 1)
        keys <<= np.uint64(_SEAT_BITS)
        return keys

    def keys_of(self, high: U64, low: U64) -> U64:
        """The same of ids themselves."""
        prints = high >> np.uint64(64 - self.high)
        prints <<= np.uint64(MARK_BITS)
        prints |= low & _LOWER
        return self.keys(prints)

    @property
    def bits(self) -> int:
        return self.high + self.marked

    @property
    def buckets(self) -> int:
        """Of a part."""
        return 1 << self.bits - PART_BITS


class _Part:
    """The ids of one sixteenth of all."""

    def __init__(self, shape: _Shape, marks: Marks) -> None:
        self.shape = shape
        self.marks = marks

    def find(self, high: U64, low: U64) -> tuple[I64, I64]:
        """Places of ids that may be here, and the seats of the files where they may be."""
        keys = self.shape.keys_of(high, low)
        buckets = (keys >> np.uint64(MARK_BITS)).view(np.int64)
        places, numbers = self.marks.find(buckets, keys.astype(np.uint16), _KEPT)
        return places, self.marks.marks[numbers].astype(np.int64) & (SEATS - 1)

    def with_more(self, files: Sequence[tuple[Prints, int]]) -> _Part:
        """This and the ids of files, each with its seat."""
        keys = np.concatenate([self._keys(prints, seat) for prints, seat in files])
        keys.sort()
        buckets = (keys >> np.uint64(MARK_BITS)).view(np.int64)
        before = self.marks.starts
        starts = before.copy()
        starts[1:] += np.cumsum(np.bincount(buckets, minlength=len(before) - 1)).astype(np.uint32)
        marks = np.empty(int(starts[-1]), np.uint16)
        # Behind those that are in the bucket already.
        places = before[buckets + 1].astype(np.int64) + np.arange(len(keys))
        is_old = np.ones(len(marks), np.bool_)
        is_old[places] = False
        marks[is_old] = self.marks.marks
        marks[places] = keys.astype(np.uint16)
        return _Part(self.shape, Marks(marks, starts))

    def _keys(self, prints: Prints, seat: int) -> U64:
        values, more = prints.values, np.uint64(prints.bits - self.shape.high)
        if more:  # than an id has here: those above its mark
            values = (values >> (more + np.uint64(MARK_BITS)) << np.uint64(MARK_BITS)) | (values & _LOWER)
        keys = self.shape.keys(values)
        keys |= np.uint64(seat)
        return keys

    @classmethod
    def empty(cls, shape: _Shape) -> _Part:
        return cls(shape, Marks(np.empty(0, np.uint16), np.zeros(shape.buckets + 1, np.uint32)))


@dataclass(frozen=True, slots=True)
class IdIndex:
    """Of the files that have joined. A value: who has one may look while another is made."""

    parts: tuple[_Part, ...] = ()
    seats: Mapping[IdFile, int] = field(default_factory=dict)
    #: Ids of files that have gone, or have joined half way.
    stale: int = 0
    next_seat: int = 0

    @property
    def memory_bytes(self) -> int:
        return sum(part.marks.memory_bytes for part in self.parts)

    @property
    def count(self) -> int:
        """Ids, with those that are stale."""
        return sum(part.marks.count for part in self.parts)

    def find(self, high: U64, low: U64) -> tuple[I64, I64]:
        """Places of ids that may be in files that have joined, and the seats of these; an id may have several."""
        parts = (high >> np.uint64(64 - PART_BITS)).astype(np.uint8)
        shape = self.parts[0].shape
        if len(parts) > _FEW and all(part.shape == shape and not part.marks.has_wide for part in self.parts):
            return self._find_many(shape, high, low, parts)
        found = []
        for number in sorted(set(parts.tolist())):
            mine = np.flatnonzero(parts == number)
            places, seats = self.parts[number].find(high[mine], low[mine])
            found.append((mine[places], seats))
        return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])

    def _find_many(self, shape: _Shape, high: U64, low: U64, parts: NDArray[np.uint8]) -> tuple[I64, I64]:
        """:meth:`find`, with little done for each part: of some thousand ids a part has few."""
        order = parts.argsort(kind="stable")
        cuts = [0, *np.bincount(parts, minlength=PARTS).cumsum().tolist()]
        keys = shape.keys_of(high[order], low[order])
        buckets = (keys >> np.uint64(MARK_BITS)).view(np.int64)
        width = max(part.marks.width for part in self.parts)
        near = np.empty((len(keys), width), np.uint16)
        lengths = np.empty(len(keys), np.int64)
        for part, begin, end in zip(self.parts, cuts[:-1], cuts[1:], strict=True):
            if begin < end:
                near[begin:end], starts, ends = part.marks.near(buckets[begin:end], width)
                lengths[begin:end] = ends - starts
        near ^= keys.astype(np.uint16)[:, None]  # what is left where marks are alike is the seat
        hits = np.flatnonzero(near < SEATS)
        rows, columns = np.divmod(hits, width)
        inside = columns < lengths[rows]
        return order[rows[inside]], near.ravel()[hits[inside]].astype(np.int64)

    def without(self, gone: Collection[object]) -> IdIndex:
        """Files are gone."""
        left = {file: seat for file, seat in self.seats.items() if file not in gone}
        if len(left) == len(self.seats):
            return self
        if not left:
            return IdIndex()
        stale = sum(file.count for file in self.seats if file in gone)
        return replace(self, seats=left, stale=self.stale + stale)

    def lacks(self, file: IdFile) -> bool:
        """Whether a file that is full should join."""
        high = max((part.shape.high for part in self.parts), default=0)
        return file not in self.seats and file.can_join and file.bucket_bits >= high

    def is_worn(self, files: Sequence[IdFile] = ()) -> bool:
        """Whether it should be made from what its files have on the disk, rather than have others join as it is."""
        if not self.seats or not all(file.can_join for file in self.seats):
            return False
        fitting = _shape_for(self.count + sum(file.count for file in files), [*self.seats, *files]).bits
        return _STALE * self.stale > self.count or any(part.shape.bits < fitting for part in self.parts)

    def _with_part(self, number: int, files: Mapping[IdFile, int], before: _Part) -> IdIndex:
        prints = [(file.prints(number), seat) for file, seat in files.items()]
        return replace(self, parts=(*self.parts[:number], before.with_more(prints), *self.parts[number + 1 :]))


def _shape_for(count: int, files: Collection[IdFile]) -> _Shape:
    """Of so many ids of these files."""
    wanted = max(PART_BITS, (count // _BUCKET_MARKS).bit_length() - 1)
    high = min(wanted, *(file.bucket_bits for file in files))
    return _Shape(high, min(wanted - high, MARK_BITS - _KEPT_BITS))


def join(
    held: Callable[[], IdIndex],
    hold: Callable[[IdIndex], None],
    files: Sequence[IdFile],
    check: Callable[[], None],
) -> None:
    """Have files join the index that is ``held``. What is to ``hold`` is right at any time, and has them at the end.

    Raises ``CorruptFile``, and what ``check`` raises; then it goes on without them.
    """
    index = held()
    fresh = {file: (index.next_seat + at) % SEATS for at, file in enumerate(files)}
    joined = {**index.seats, **fresh}
    stale, fresh_rows = index.stale, sum(file.count for file in files)
    empty = None
    if not index.seats or index.is_worn(files):
        stale, empty = 0, _Part.empty(_shape_for(sum(file.count for file in joined), joined))
    parts = index.parts if empty is None or index.seats else (empty,) * PARTS
    # Until they have seats, what is here of them is stale: so it stays where this ends half way.
    hold(replace(index, parts=parts, stale=index.stale + fresh_rows))
    del index, parts  # or else all of them would stay until the last has followed them
    for number in range(PARTS):
        check()
        if empty is None:
            hold(held()._with_part(number, fresh, held().parts[number]))
        else:
            hold(held()._with_part(number, joined, empty))
    index = held()
    hold(replace(index, seats=joined, stale=stale, next_seat=(index.next_seat + len(files)) % SEATS))
