"""Which deduplication ids cannot be among the newest: some millions of them as bits in memory.

An id is six bits of one word of 64, so it is looked for by one access to memory, and a whole batch in a few passes of
numpy. A filter that has its number of ids is full, and the next one begins, larger, up to the largest. Three of those
are kept, and what is in none is not known here any more. So what this takes is bounded, and a shard with few ids takes
little.

Who asks for ids is about to add them, so one visit to each word does both (:meth:`RecentIds.look`).

Filters are numbered. Who holds ids knows since which filter they have been in here (``since``): while that one is kept,
an id that no filter has is not with him. Of ten thousand others a few are taken for ids that may be here, by a filter
of the largest, and by the others none. That an id is here that nobody holds, since the batch was refused, does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U64, mix

#: Words of the first filters, then of all, and the ids that fill them.
_SIZES = ((1 << 13, 1 << 12), (1 << 16, 1 << 15), (1 << 19, 1 << 18), (15 << 16, 2_000_000))
#: So many of the largest are kept.
_KEPT = 3
#: So many of the newest ids, at least, are known.
KNOWN_IDS = (_KEPT - 1) * _SIZES[-1][1]
#: Of ids that are not in here.
NEVER = -1
_HALF = np.uint64(32)
_SHIFTS = tuple(map(np.uint64, (8, 20)))  # of a key: below are weak bits, the uppermost say which word
_TWELVE = np.uint64(4095)
#: Words with three bits each; a few with two.
_THREES: U64 = np.bitwise_or.reduce(
    np.uint64(1) << (mix(np.arange(3 * 4096, dtype=np.uint64)) >> np.uint64(58)).reshape(4096, 3), axis=1
)


@dataclass(frozen=True, slots=True)
class RecentLook:
    """What was found when ids were looked for and added.

    Attributes:
        may_have: of each id whether it may have been added before while a filter, or a later one, was the newest: for
            each filter from ``oldest`` on.
        oldest: number of the first of these filters.
        number: of the filter that the ids are in now.
    """

    may_have: list[NDArray[np.bool_]]
    oldest: int
    number: int


class _Filter:
    """The ids that were added while it was the newest."""

    __slots__ = ("_words", "room")

    def __init__(self, words: int, room: int) -> None:
        self._words = np.zeros(words, np.uint64)
        self.room = room  # for so many more ids

    @property
    def size_bytes(self) -> int:
        return self._words.nbytes

    def _places(self, keys: U64) -> I64:
        places = keys >> _HALF
        places *= np.uint64(len(self._words))
        places >>= _HALF
        found: I64 = places.view(np.int64)
        return found

    def has(self, keys: U64, bits: U64) -> NDArray[np.bool_]:
        found = self._words.take(self._places(keys))
        found &= bits
        has: NDArray[np.bool_] = found == bits
        return has

    def look(self, keys: U64, bits: U64) -> NDArray[np.bool_]:
        """Which of the ids it has; from now on all."""
        words, at = self._words, self._places(keys)
        wanted = words.take(at)
        has: NDArray[np.bool_] = (wanted & bits) == bits
        self.room -= len(keys) - int(np.count_nonzero(has))
        wanted |= bits
        while len(at):  # Of several in one word the last has its bits in it, and the others come again.
            words[at] = wanted
            lost = np.flatnonzero(words.take(at) != wanted)
            at, bits = at[lost], bits[lost]
            wanted = words.take(at)
            wanted |= bits
        return has


class RecentIds:
    """Its owner lets one thread at a time look. Is asked for :func:`.dedupe_layer.keys_of` ids."""

    def __init__(self) -> None:
        self._filters: list[_Filter] = []  # the oldest first
        #: Number of the filter that ids go into, and of the oldest that is kept.
        self.newest = self.oldest = 0

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        return sum(each.size_bytes for each in self._filters)

    def look(self, keys: U64, bits: U64) -> RecentLook:
        """Look for ids, and add them: they are in here while the filter is kept that is the newest then.

        ``bits``: :func:`bits_of` the keys.
        """
        if not self._filters:
            self._filters.append(_Filter(*_SIZES[0]))
        while self.would_begin(len(keys)):
            self._begin()
        found = [each.has(keys, bits) for each in self._filters[:-1]]
        found.append(self._filters[-1].look(keys, bits))
        for at in range(len(found) - 1, 0, -1):
            found[at - 1] |= found[at]
        return RecentLook(found, self.oldest, self.newest)

    def _begin(self) -> None:
        self.newest += 1
        self._filters.append(_Filter(*_SIZES[min(self.newest, len(_SIZES) - 1)]))
        if self.newest >= len(_SIZES) - 2 + _KEPT:  # as many of the largest
            del self._filters[:-_KEPT]
            self.oldest = self.newest - len(self._filters) + 1

    def would_begin(self, count: int) -> bool:
        """Whether so many more ids go into a filter that is still to begin: a larger one that has room for all, or
        the next of the largest when the last is full."""
        if not self._filters:
            return False
        room = self._filters[-1].room
        return room < count if self.newest < len(_SIZES) - 1 else room <= 0

    def fits_one(self, count: int) -> bool:
        """Whether so many ids go into one filter."""
        return count <= _SIZES[-1][1]

    def begin_anew(self, count: int) -> None:
        """Forget all, and begin a filter for so many ids, which fit: who holds ids adds them again."""
        self.newest += 1
        while _SIZES[min(self.newest, len(_SIZES) - 1)][1] < count:
            self.newest += 1
        self._filters = [_Filter(*_SIZES[min(self.newest, len(_SIZES) - 1)])]
        self.oldest = self.newest


def bits_of(keys: U64) -> U64:
    """The bits of their words that keys take."""
    first = keys >> _SHIFTS[0]
    first &= _TWELVE
    second = keys >> _SHIFTS[1]
    second &= _TWELVE
    bits: U64 = _THREES.take(first.view(np.int64))
    bits |= _THREES.take(second.view(np.int64))
    return bits
