"""A bloom filter over queue keys: says for sure when a table holds nothing of a queue.

The filter is split into 64-bit words, and a key sets five bits of one word, so that a lookup looks at one word
(a register-blocked bloom filter, Putze, Sanders and Singler 2007). With twelve bits a key it errs in two of a
hundred lookups.

A reader asks many tables about one key, or one table about many keys: what depends on the key alone is a
*probe*, made once: the half of the hash that chooses the word, and the bits that must be set in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .columns import U8, U64, mix

BITS_PER_KEY = 12
PROBES = 5
_MASK64 = (1 << 64) - 1
_HALF = np.uint64(32)
#: So many keys are looked at at a time: what is computed of them stays in the CPU's cache.
_CHUNK_KEYS = 1 << 14

Probe = tuple[int, int]
Probes = tuple[U64, U64]


def bloom_build(parts: Sequence[U64]) -> tuple[U8, int]:
    """The filter's bytes, and its number of probes.

    The keys come in parts, in order, distinct in each; one part may begin with the key that the one before ends with.
    """
    count = sum(map(len, parts)) - sum(int(after[0] == before[-1]) for before, after in pairwise(parts))
    word_count = max(1, (count * BITS_PER_KEY + 63) // 64)
    words = np.zeros(word_count, np.uint64)
    for keys in parts:
        for first in range(0, len(keys), _CHUNK_KEYS):
            halves, marks = bloom_probes(keys[first : first + _CHUNK_KEYS])
            np.bitwise_or.at(words, (halves % np.uint64(word_count)).astype(np.int64), marks)
    return words.astype("<u8", copy=False).view(np.uint8), PROBES


def bloom_probe(key: int, probes: int = PROBES) -> Probe:
    """What to look for, in any filter of so many probes, to find ``key``."""
    mixed = (key + 0x9E3779B97F4A7C15) & _MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    mixed ^= mixed >> 31
    marks = 0
    for probe in range(probes):
        marks |= 1 << (mixed >> 6 * probe & 63)
    return mixed >> 32, marks


def bloom_probes(keys: U64, probes: int = PROBES) -> Probes:
    """:func:`bloom_probe` of many keys."""
    mixed = mix(keys)
    marks = np.zeros(len(keys), np.uint64)
    for probe in range(probes):
        marks |= np.uint64(1) << ((mixed >> np.uint64(6 * probe)) & np.uint64(63))
    return mixed >> _HALF, marks


def bloom_has_many(words: U64, probes: Probes) -> NDArray[np.bool_]:
    """For each probe: False only when its key was not among those the filter was built from."""
    halves, marks = probes
    found: NDArray[np.bool_] = words[(halves % np.uint64(len(words))).astype(np.int64)] & marks == marks
    return found
