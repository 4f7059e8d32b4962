"""The order of many names: sorted by their bytes, eight at a time, among those that are alike so far.

Names are distinct. Bytes of UTF-8 are ordered as the characters they stand for. A name has no byte 0, so one that ends
is padded with these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U8, U64, windows

_WORD_BYTES = 8
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def sorted_order(text: U8, starts: I64, lengths: I64) -> I64:
    """Positions of names in their order; ``text`` goes on for 8 bytes behind the last."""
    order: I64 = np.arange(len(starts), dtype=np.int64)
    # Runs of names that are alike so far, by the place in ``order`` where each begins.
    places: I64 = order.copy()
    runs: I64 = np.zeros(len(starts), np.int64)
    at = 0
    while len(places):
        which = order[places]
        words = _words(text, starts[which] + at, lengths[which] - at)
        sorting = np.lexsort((words, runs))
        order[places] = which[sorting]
        words, runs = words[sorting], runs[sorting]
        at += _WORD_BYTES
        fresh = np.ones(len(places), np.bool_)
        fresh[1:] = (words[1:] != words[:-1]) | (runs[1:] != runs[:-1])
        alike: NDArray[np.bool_] = ~fresh
        alike[:-1] |= ~fresh[1:]
        runs = np.cumsum(fresh, dtype=np.int64)[alike]
        places = places[alike]
    return order


def _words(text: U8, starts: I64, lengths: I64) -> U64:
    """The next bytes of each name as a number that is ordered as they are."""
    found: U64 = np.zeros(len(starts), np.uint64)
    some = np.flatnonzero(lengths > 0)
    if len(some):
        words = windows(text, starts[some], _WORD_BYTES).view(">u8").astype(np.uint64)
        unused = (8 * np.maximum(_WORD_BYTES - lengths[some], 0)).astype(np.uint64)
        found[some] = words & (_ALL << unused)
    return found
