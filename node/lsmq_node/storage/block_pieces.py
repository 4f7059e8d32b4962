"""Many pieces of blocks, made into columns at once.

numpy takes about a microsecond for anything, however small. So of a piece of a few records, or of a block of a hundred,
only bytes are taken when the block is at hand, and they become arrays together with those of all other pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lsmq.record_batch import Column

from .block import Block
from .columns import DTYPES, I64, U64, WIDTH_DTYPES, Columns, spread
from .sorted_records import SortedRecords

_OF_ALL = Column.TOPIC
_OF_A_QUEUE = Column.QUEUE + 1  # the columns before tell the queue


@dataclass(slots=True)
class _Group:
    """One column of the pieces that have it in one width."""

    pieces: list[int] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    deltas: list[bytes] = field(default_factory=list)


class BlockPieces:
    """Pieces of blocks, in the order they were added."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], _Group] = {}
        self._keys: list[int] = []
        self._counts: list[int] = []
        self._payloads: list[bytes] = []

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, block: Block, key: int, first: int, end: int) -> int:
        """Take a queue's records ``[first, end)`` of a block; returns how many bytes they have."""
        self._keys.append(key)
        return self._add(block, first, end, _OF_A_QUEUE)

    def add_rows(self, block: Block, first: int, end: int) -> None:
        """Take records ``[first, end)`` of a block, of whatever queues. Not together with :meth:`add`."""
        self._add(block, first, end, _OF_ALL)

    def _add(self, block: Block, first: int, end: int, from_column: int) -> int:
        piece = len(self._counts)
        for column, width, base, deltas in block.deltas(first, end, from_column):
            group = self._groups.get((column, width))
            if group is None:
                group = self._groups[column, width] = _Group()
            group.pieces.append(piece)
            group.bases.append(base)
            group.deltas.append(deltas)
        payload = block.bytes_of(first, end)
        self._counts.append(end - first)
        self._payloads.append(payload)
        return len(payload)

    @property
    def counts(self) -> I64:
        """How many records each piece has."""
        return np.array(self._counts, np.int64)

    def records(self) -> SortedRecords:
        """All records as columns, piece after piece."""
        counts = self.counts
        starts, count = np.cumsum(counts) - counts, int(counts.sum())
        columns: Columns = {}
        for (column, width), group in self._groups.items():
            dtype = DTYPES[column]
            in_all = len(group.pieces) == len(counts)
            sizes = counts if in_all else counts[group.pieces]
            values = np.repeat(np.array(group.bases, np.uint64).astype(dtype), sizes)
            if width:
                values += np.frombuffer(b"".join(group.deltas), WIDTH_DTYPES[width]).astype(dtype)
            if in_all:
                columns[column] = values
                continue
            whole = columns.setdefault(column, np.zeros(count, dtype))
            whole[spread(starts[group.pieces], sizes)] = values
        columns.setdefault(Column.LENGTH, np.zeros(count, np.uint32))
        keys: U64
        if self._keys:
            keys = np.repeat(np.array(self._keys, np.uint64), counts)
        else:
            keys = columns.pop(Column.QUEUE).astype(np.uint64)
            keys |= columns.pop(Column.TOPIC).astype(np.uint64) << np.uint64(32)
        return SortedRecords(keys, columns, np.frombuffer(b"".join(self._payloads), np.uint8))
