"""Where an id may be: marks of 16 bits by the buckets that ids fall into.

Ids are spread evenly, so a bucket has few, and an id is looked for by one access to memory: at the marks of its bucket,
all of which are compared at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U32, windows

U16 = NDArray[np.uint16]

MARK_BITS = 16
#: Marks of a bucket that are compared at once; what is beyond, which chance does not make, one bucket after another.
_WIDEST = 64
#: So many ids are looked for at a time.
_CHUNK = 1 << 14
#: Buckets for which one start is kept whole, and of the others how far above it they are.
_STRETCH_BITS = 8
_STRETCH = 1 << _STRETCH_BITS


class Marks:
    """The marks of ids, bucket after bucket; nothing changes once it is made."""

    def __init__(self, marks: U16, starts: U32) -> None:
        """``starts``: of each bucket the number of its first mark, and at the end the number of marks."""
        self.count = len(marks)
        widest = int(np.diff(starts).max(initial=0))
        self._bases = starts[::_STRETCH].copy()
        above = starts - np.repeat(self._bases, _STRETCH)[: len(starts)]
        self._above = above.astype(np.uint16) if int(above.max()) < 1 << 16 else above
        #: Most marks of a bucket, of those that are compared at once.
        self.width = max(1, min(widest, _WIDEST))
        #: Whether there are buckets with more marks than are compared at once.
        self.has_wide = widest > _WIDEST
        self._marks = np.zeros(self.count + _WIDEST, np.uint16)
        self._marks[: self.count] = marks

    @property
    def memory_bytes(self) -> int:
        size: int = self._marks.nbytes + self._bases.nbytes + self._above.nbytes
        return size

    @property
    def starts(self) -> U32:
        """As they were given."""
        starts: U32 = np.repeat(self._bases, _STRETCH)[: len(self._above)]
        starts += self._above
        return starts

    @property
    def marks(self) -> U16:
        """As they were given; not to be changed."""
        return self._marks[: self.count]

    def _starts_of(self, buckets: I64) -> I64:
        starts: I64 = self._bases[buckets >> _STRETCH_BITS].astype(np.int64)
        starts += self._above[buckets]
        return starts

    def find(self, buckets: I64, wanted: U16, compared: int = 0xFFFF) -> tuple[I64, I64]:
        """Of ids by their buckets and marks: the places of those that may be here, and the numbers of the marks that
        are alike in the bits ``compared``; an id has several where several are."""
        if len(buckets) <= _CHUNK:
            return self._find(buckets, wanted, compared)
        found = list(self._chunks(buckets, wanted, compared))
        return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])

    def _chunks(self, buckets: I64, wanted: U16, compared: int) -> Iterator[tuple[I64, I64]]:
        for at in range(0, len(buckets), _CHUNK):
            places, numbers = self._find(buckets[at : at + _CHUNK], wanted[at : at + _CHUNK], compared)
            yield places + at, numbers

    def _find(self, buckets: I64, wanted: U16, compared: int) -> tuple[I64, I64]:
        width = self.width
        near, starts, ends = self.near(buckets, width)
        if compared != 0xFFFF:
            near &= np.uint16(compared)
        hits = np.flatnonzero(near == wanted[:, None])
        places = hits // width
        numbers = starts[places] + (hits - places * width)
        inside = numbers < ends[places]
        places, numbers = places[inside], numbers[inside]
        if self.has_wide:
            for place in np.flatnonzero(ends - starts > width).tolist():
                begin, end = int(starts[place]) + width, int(ends[place])
                alike = self._marks[begin:end] & np.uint16(compared) == wanted[place]
                more = begin + np.flatnonzero(alike)
                places = np.append(places, np.full(len(more), place))
                numbers = np.append(numbers, more)
        return places, numbers

    def near(self, buckets: I64, width: int) -> tuple[U16, I64, I64]:
        """``width`` marks from the first of each bucket on, a row each; their numbers, and those behind the bucket.

        ``width``: up to 64.
        """
        starts, ends = self._starts_of(buckets), self._starts_of(buckets + 1)
        marks = windows(self._marks.view(np.uint8), 2 * starts, 2 * width).view(np.uint16)
        return marks.reshape(-1, width), starts, ends

    def has_one(self, bucket: int, wanted: int) -> bool:
        """Whether an id may be here. For few ids: numpy would take longer for its calls."""
        bases, above, following = self._bases, self._above, bucket + 1
        begin = bases.item(bucket >> _STRETCH_BITS) + above.item(bucket)
        end = bases.item(following >> _STRETCH_BITS) + above.item(following)
        return wanted in self._marks[begin:end].tolist()
