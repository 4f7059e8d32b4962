"""A bloom filter over queue keys: says for sure when a table holds nothing of a queue.

The filter is split into 64-bit words, and a key sets five bits of one word, so that a lookup looks at one word
(a register-blocked bloom filter, Putze, Sanders and Singler 2007). With twelve bits a key it errs in two of a
hundred lookups.

A reader asks many tables about one key, or one table about many keys: what depends on the key alone is a
*probe*, made once: the half of the hash that chooses the word, and the bits that must be set in it.
"""

from __future__ import annotations

import numpy as np

from .columns import I64, U64, mix

BITS_PER_KEY = 12
PROBES = 5
_MASK64 = (1 << 64) - 1
_HALF = np.uint64(32)
_BIT = np.uint64(1)
_POSITIONS = np.uint64(63)
#: So many keys are looked at at a time: what is computed of them stays in the CPU's cache.
_CHUNK_KEYS = 1 << 14

Probe = tuple[int, int]
Probes = tuple[U64, U64]


def bloom_build(keys: U64) -> tuple[U64, int]:
    """The filter over distinct keys, and its number of probes."""
    return bloom_build_each(keys, np.array((0,), np.int64), np.array((len(keys),), np.int64))[0], PROBES


def bloom_build_each(keys: U64, begins: I64, ends: I64) -> list[U64]:
    """A filter over ``keys[begins[i]:ends[i]]`` for each ``i``; both ascend, and some keys may be in two filters.

    Keys are hashed once, where they are.
    """
    counts = (ends - begins).tolist()
    filters = [np.zeros(max(1, (count * BITS_PER_KEY + 63) // 64), np.uint64) for count in counts]
    ranges = list(zip(filters, begins.tolist(), ends.tolist(), strict=True))
    at = 0  # filters before it are whole
    for first in range(0, len(keys), _CHUNK_KEYS):
        halves, marks = bloom_probes(keys[first : first + _CHUNK_KEYS])
        last = first + len(halves)
        while at < len(ranges):
            words, begin, end = ranges[at]
            some = slice(max(begin, first) - first, min(end, last) - first)
            np.bitwise_or.at(words, (halves[some] % np.uint64(len(words))).view(np.int64), marks[some])
            if end > last:  # so the next one begins behind these keys, or with the last of this one's
                break
            at += 1
    return filters


def bloom_probe(key: int) -> Probe:
    """What to look for, in any filter, to find ``key``."""
    mixed = (key + 0x9E3779B97F4A7C15) & _MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    mixed ^= mixed >> 31
    marks = 1 << (mixed & 63) | 1 << (mixed >> 6 & 63) | 1 << (mixed >> 12 & 63)  # PROBES of them, without a loop
    return mixed >> 32, marks | 1 << (mixed >> 18 & 63) | 1 << (mixed >> 24 & 63)


def bloom_probes(keys: U64) -> Probes:
    """:func:`bloom_probe` of many keys."""
    mixed = mix(keys)
    marks = _BIT << (mixed & _POSITIONS)
    position, mark = np.empty_like(mixed), np.empty_like(mixed)
    for probe in range(1, PROBES):
        np.right_shift(mixed, np.uint64(6 * probe), out=position)
        np.bitwise_and(position, _POSITIONS, out=position)
        np.left_shift(_BIT, position, out=mark)
        np.bitwise_or(marks, mark, out=marks)
    return mixed >> _HALF, marks
