"""Which deduplication ids cannot be among the newest: some millions of them as bits in memory.

An id is five bits of one word of 64, so it is looked for by one access to memory, and a whole batch in a few passes of
numpy. A filter that has its number of ids is full, and the next one begins, larger, up to the largest. Three of those
are kept, and what is in none is not known here any more. So what this takes is bounded, and a shard with few ids takes
little.

Filters are numbered. Who holds ids knows since which filter they have been in here (``since``): while that one is kept,
an id that no filter has is not with him. Of ten thousand others a few are taken for ids that may be here, by a filter
of the largest, and by the others none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U64

#: Words of the first filters, then of all, and the ids that fill them.
_SIZES = ((1 << 13, 1 << 12), (1 << 16, 1 << 15), (1 << 19, 1 << 18), (3 << 19, 3_000_000))
#: So many of the largest are kept.
_KEPT = 3
#: So many of the newest ids, at least, are known.
KNOWN_IDS = (_KEPT - 1) * _SIZES[-1][1]
#: Of ids that are not in here.
NEVER = -1
_HALF = np.uint64(32)
_ONE, _PLACE, _PAIR = np.uint64(1), np.uint64(63), np.uint64(4095)
_SHIFTS = tuple(map(np.uint64, (8, 14, 26)))  # of a key: below are weak bits, the uppermost say which word
#: By twice the number of a bit the word with both.
_PAIRS: U64 = (_ONE << np.arange(64, dtype=np.uint64)[:, None] | _ONE << np.arange(64, dtype=np.uint64)).ravel()


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

    def add(self, keys: U64, bits: U64) -> None:
        words, at = self._words, self._places(keys)
        while len(at):  # Of several in one word the last has its bits in it, and the others come again.
            wanted = words[at] | bits
            words[at] = wanted
            lost = words[at] != wanted
            at, bits = at[lost], bits[lost]

    def has(self, keys: U64, bits: U64) -> NDArray[np.bool_]:
        found = self._words[self._places(keys)]
        found &= bits
        has: NDArray[np.bool_] = found == bits
        return has


class RecentIds:
    """Its owner lets one thread at a time look or change. Takes and is asked for :func:`.dedupe_layer.keys_of` ids."""

    def __init__(self) -> None:
        self._filters: list[_Filter] = []  # the oldest first
        #: Number of the filter that ids go into, and of the oldest that is kept.
        self.newest = self.oldest = 0

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        return sum(each.size_bytes for each in self._filters)

    def add(self, keys: U64, bits: U64) -> None:
        """They are in here while the filter is kept that is the newest now. ``bits``: :func:`bits_of` the keys."""
        while len(keys):
            if not self._filters:
                self._filters.append(_Filter(*_SIZES[0]))
            elif not self._filters[-1].room:
                self._begin()
            newest = self._filters[-1]
            count = min(newest.room, len(keys))
            newest.add(keys[:count], bits[:count])
            newest.room -= count
            keys, bits = keys[count:], bits[count:]

    def _begin(self) -> None:
        self.newest += 1
        self._filters.append(_Filter(*_SIZES[min(self.newest, len(_SIZES) - 1)]))
        if self.newest >= len(_SIZES) - 2 + _KEPT:  # as many of the largest
            del self._filters[:-_KEPT]
            self.oldest = self.newest - _KEPT + 1

    def has_room(self, count: int) -> bool:
        """Whether so many go into the filter that is the newest."""
        return not self._filters or self._filters[-1].room >= count

    def begin_anew(self) -> None:
        """Forget all, and begin the next filter: who holds ids adds them again."""
        self._begin()
        del self._filters[:-1]
        self.oldest = self.newest

    def may_have(self, keys: U64, bits: U64) -> list[NDArray[np.bool_]]:
        """Of each whether it may have been added while a filter, or a later one, was the newest.

        That for each filter that is kept, the oldest first; none where there is none.
        """
        found = [each.has(keys, bits) for each in self._filters]
        for at in range(len(found) - 1, 0, -1):
            found[at - 1] |= found[at]
        return found


def bits_of(keys: U64) -> U64:
    """The bits of their words that keys take."""
    places = keys >> _SHIFTS[0]
    places &= _PLACE
    bits: U64 = np.left_shift(_ONE, places, out=places)
    for shift in _SHIFTS[1:]:
        pairs = keys >> shift
        pairs &= _PAIR
        bits |= _PAIRS[pairs.view(np.int64)]
    return bits
