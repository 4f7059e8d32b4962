"""A bloom filter over queue keys: says for sure when a table holds nothing of a queue.

The filter is split into 64-bit words, and a key sets five bits of one word, so that a lookup looks at one word
(a register-blocked bloom filter, Putze, Sanders and Singler 2007). With twelve bits a key it errs in two of a
hundred lookups.
"""

from __future__ import annotations

import numpy as np

from .columns import U8, U64, mix

BITS_PER_KEY = 12
PROBES = 5
_MASK64 = (1 << 64) - 1


def bloom_build(keys: U64) -> tuple[U8, int]:
    """The filter's bytes, and its number of probes. ``keys`` should be distinct."""
    word_count = max(1, (len(keys) * BITS_PER_KEY + 63) // 64)
    mixed = mix(keys)
    marks = np.zeros(len(keys), np.uint64)
    for probe in range(PROBES):
        marks |= np.uint64(1) << ((mixed >> np.uint64(6 * probe)) & np.uint64(63))
    words = np.zeros(word_count, np.uint64)
    np.bitwise_or.at(words, ((mixed >> np.uint64(32)) % np.uint64(word_count)).astype(np.int64), marks)
    return words.astype("<u8").view(np.uint8), PROBES


def bloom_may_contain(words: U64, probes: int, key: int) -> bool:
    """False only when the key was not among those the filter was built from. ``words`` is the filter's view."""
    mixed = (key + 0x9E3779B97F4A7C15) & _MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    mixed ^= mixed >> 31
    word = words.item((mixed >> 32) % len(words))
    for _ in range(probes):
        if not word >> (mixed & 63) & 1:
            return False
        mixed >>= 6
    return True
