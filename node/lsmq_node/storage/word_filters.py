"""Which tags and types a block has: a bloom filter for each block of one queue, in the index, beside its row.

A read that picks by tag or type passes over blocks that have none of its words, without reading them: of a backlog of
which it wants little it reads little. A filter has ``1 << n`` words of 64 bits, up to ``MOST_WORDS``, the same for all
blocks of a table: about ``BITS_A_WORD`` for each different tag or type of the block that has most. Two bits stand for
each. A table without tags and types has none, and its pages cost nothing more.

A tag is its ``TAG_HASH``, a type its ``TYPE_HASH`` with bit 32 set; mixed by splitmix64: ``m``. The two bits of ``b``
are ``m % b`` and ``(m >> 32) % b``; bit ``i`` is bit ``i & 63`` of word ``i >> 6``.

Not supported: blocks of several queues, which hold little of each and are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column

from .columns import I64, U64, mix

MOST_WORDS = 64
BITS_A_WORD = 10
_TYPE = np.uint64(1 << 32)
_WORD_BITS = 64
_HASH_BITS = 33


def of_tags(hashes: NDArray[Any]) -> U64:
    """Tags as filters have them."""
    return hashes.astype(np.uint64)


def of_types(hashes: NDArray[Any]) -> U64:
    """Types as filters have them."""
    return hashes.astype(np.uint64) | _TYPE


class WordCollector:
    """The tags and types of a table's blocks, while it is written."""

    def __init__(self) -> None:
        self._blocks: list[I64] = []
        self._words: list[U64] = []

    def add(self, columns: Mapping[int, NDArray[Any]], cuts: I64, of_one_queue: NDArray[np.bool_], first: int) -> None:
        """Records that are cut into blocks, the first of which is the table's block number ``first``."""
        found = [
            as_words(columns[column])
            for column, as_words in ((Column.TAG_HASH, of_tags), (Column.TYPE_HASH, of_types))
            if column in columns and columns[column].any()
        ]
        if not found or not of_one_queue.any():
            return
        counts = np.diff(cuts)
        blocks = np.repeat(np.arange(first, first + len(counts)), counts)
        inside = np.repeat(of_one_queue, counts)
        for words in found:
            some = inside & (words & ~_TYPE != 0)
            packed = np.unique(blocks[some].astype(np.uint64) << np.uint64(_HASH_BITS) | words[some])
            self._blocks.append((packed >> np.uint64(_HASH_BITS)).astype(np.int64))
            self._words.append(packed & np.uint64((1 << _HASH_BITS) - 1))

    def filters(self, block_count: int) -> list[U64]:
        """Columns for the index, as many as a filter has words; none where there are no tags and types."""
        if not self._blocks:
            return []
        blocks, words = np.concatenate(self._blocks), np.concatenate(self._words)
        if len(blocks) == 0:
            return []
        most = int(np.bincount(blocks).max())
        width = min(MOST_WORDS, 1 << max(0, (most * BITS_A_WORD - 1) // _WORD_BITS).bit_length())
        filters = np.zeros((width, block_count), np.uint64)
        for bits in _bits(words, width):
            marks = np.uint64(1) << (bits & np.uint64(_WORD_BITS - 1))
            np.bitwise_or.at(filters, ((bits >> np.uint64(6)).astype(np.int64), blocks), marks)
        return list(filters)


def may_have(filters: NDArray[np.uint64], words: U64) -> NDArray[np.bool_]:
    """Which blocks may have any of the words. ``filters`` has a row for each word of a filter, as in the index."""
    found = np.zeros(filters.shape[1], np.bool_)
    one, other = _bits(words, len(filters))
    for pair in zip(one.tolist(), other.tolist(), strict=True):
        has = np.ones(filters.shape[1], np.bool_)
        for bit in pair:
            has &= (filters[bit >> 6] >> np.uint64(bit & (_WORD_BITS - 1))) & np.uint64(1) != 0
        found |= has
    return found


def _bits(words: U64, width: int) -> tuple[U64, U64]:
    mixed, bits = mix(words), np.uint64(_WORD_BITS * width)
    return mixed % bits, (mixed >> np.uint64(32)) % bits
