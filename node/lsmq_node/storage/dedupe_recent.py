"""Which deduplication ids cannot be among the newest: some millions of them as bits in memory.

An id is five bits of one word of 64, so it is looked for by one access to memory, and a whole batch in a few passes of
numpy. Where a filter has 32 bits for each of its ids it is full, and the next one begins, eight times as large, up to
the largest. Two of those are kept, and what is in neither is not known here any more. So what this takes is bounded,
and a shard with few ids takes little.

Filters are numbered. Who holds ids knows since which filter they have been in here (``since``): while that one is kept,
an id that no filter has is not with him. Of a thousand others less than one is taken for one that may be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U64

#: Words of the first filters, then of all.
_WORDS = (1 << 11, 1 << 14, 1 << 17, 1 << 20, 1 << 21)
#: So many of the largest are kept.
_KEPT = 2
_IDS_A_WORD = 2
#: So many of the newest ids, at least, are known.
KNOWN_IDS = _IDS_A_WORD * _WORDS[-1]
#: Of ids that are not in here.
NEVER = -1
_ONE = np.uint64(1)
_BIT = np.uint64(63)
_SHIFTS = tuple(map(np.uint64, (12, 18, 24, 30, 36)))  # of a key: below are weak bits, above is the word


class _Filter:
    """The ids that were added while it was the newest."""

    __slots__ = ("_shift", "_words", "room")

    def __init__(self, words: int) -> None:
        self._words = np.zeros(words, np.uint64)
        self._shift = np.uint64(64 - (words.bit_length() - 1))
        self.room = _IDS_A_WORD * words

    @property
    def size_bytes(self) -> int:
        return self._words.nbytes

    def _places(self, keys: U64) -> I64:
        places: I64 = (keys >> self._shift).view(np.int64)
        return places

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
                self._filters.append(_Filter(_WORDS[0]))
            elif not self._filters[-1].room:
                self._begin()
            newest = self._filters[-1]
            count = min(newest.room, len(keys))
            newest.add(keys[:count], bits[:count])
            newest.room -= count
            keys, bits = keys[count:], bits[count:]

    def _begin(self) -> None:
        self.newest += 1
        self._filters.append(_Filter(_WORDS[min(self.newest, len(_WORDS) - 1)]))
        if self.newest >= len(_WORDS) - 2 + _KEPT:  # as many of the largest
            del self._filters[:-_KEPT]
            self.oldest = self.newest - _KEPT + 1

    def may_have(self, keys: U64, bits: U64) -> list[NDArray[np.bool_]]:
        """Of each whether it may have been added while a filter, or a later one, was the newest: for each filter that is
        kept, the oldest first; none where there is none."""
        found = [each.has(keys, bits) for each in self._filters]
        for at in range(len(found) - 1, 0, -1):
            found[at - 1] |= found[at]
        return found


def bits_of(keys: U64) -> U64:
    """The bits of their words that keys take."""
    bits = np.zeros(len(keys), np.uint64)
    for shift in _SHIFTS:
        places = keys >> shift
        places &= _BIT
        np.left_shift(_ONE, places, out=places)
        bits |= places
    return bits
