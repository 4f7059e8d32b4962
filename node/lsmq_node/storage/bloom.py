"""A bloom filter over queue keys: says for sure when a table holds nothing of a queue.

Ten bits a key and seven probes give a false positive in a hundred. Both halves of one 64-bit mix of the key
make the probes (Kirsch and Mitzenmacher's double hashing).
"""

from __future__ import annotations

import numpy as np

from .columns import U8, U64, mix

BITS_PER_KEY = 10
PROBES = 7
_MASK64 = (1 << 64) - 1


def bloom_build(keys: U64) -> tuple[U8, int]:
    """The filter's bytes, and its number of probes. ``keys`` should be distinct."""
    bit_count = max(64, (len(keys) * BITS_PER_KEY + 63) // 64 * 64)
    mixed = mix(keys)
    low, high = mixed & np.uint64(0xFFFFFFFF), mixed >> np.uint64(32)
    marks = np.zeros(bit_count, np.bool_)
    for probe in range(PROBES):
        marks[(low + np.uint64(probe) * high) % np.uint64(bit_count)] = True
    return np.packbits(marks, bitorder="little"), PROBES


def bloom_may_contain(bits: U8, probes: int, key: int) -> bool:
    """False only when the key was not among those the filter was built from."""
    mixed = (key + 0x9E3779B97F4A7C15) & _MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    mixed ^= mixed >> 31
    low, high = mixed & 0xFFFFFFFF, mixed >> 32
    bit_count = len(bits) * 8
    for probe in range(probes):
        bit = (low + probe * high) % bit_count
        if not int(bits[bit >> 3]) >> (bit & 7) & 1:
            return False
    return True
