"""Records in key order, and what holds them.

:class:`SortedRecords` are columns and bytes of their own, made to be written or sent. A :class:`SortedPart` is a place
where records rest in that order, a block of a table or a chunk of a memtable: there queues are looked up, and what is
found is copied out. So whoever reads does the same whatever it reads from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column

from .columns import DTYPES, I64, U8, U64, Columns, encode_one, gather

#: The bit of a queue key that tells a tombstone's from its message's: tombstones are records of a *shadow topic*.
TOMBSTONE_TOPIC = 1 << 31
SHADOW = np.uint64(TOMBSTONE_TOPIC << 32)


@dataclass(frozen=True, slots=True)
class SortedRecords:
    """Records sorted by (key, offset), with their bytes in the same order.

    ``columns`` holds every record column but TOPIC and QUEUE, which are in ``keys``.
    """

    keys: U64
    columns: Columns
    payload: U8

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def offsets(self) -> I64:
        return self.columns[Column.OFFSET]

    @property
    def lengths(self) -> NDArray[np.uint32]:
        return self.columns[Column.LENGTH]

    def all_columns(self) -> Columns:
        """As record batches have them: with TOPIC and QUEUE."""
        return {
            Column.TOPIC: (self.keys >> np.uint64(32)).astype(np.uint32),
            Column.QUEUE: self.keys.astype(np.uint32),
            **self.columns,
        }


class TooMuch(Exception):
    """The records found have more bytes than were to be held: ask for fewer."""


class SortedPart(ABC):
    """Records in key order, in which queues are looked up. Rows count from 0."""

    __slots__ = ()

    @property
    @abstractmethod
    def keys(self) -> U64:
        """Queue key of each record, ascending."""

    @abstractmethod
    def offset(self, row: int) -> int:
        """Offset of one record."""

    @abstractmethod
    def value(self, column: int, row: int) -> int:
        """A column's value of one record; 0 where it does not have the column."""

    @abstractmethod
    def column(self, column: int, first: int = 0, end: int | None = None) -> NDArray[Any]:
        """Values of the records ``[first, end)``; zeros where they do not have the column."""

    @abstractmethod
    def column_at(self, column: int, rows: I64) -> NDArray[Any]:
        """Values of the records at these rows; zeros where they do not have the column."""

    @abstractmethod
    def record_bytes(self, first: int, end: int) -> list[bytes]:
        """Each of the records ``[first, end)``, of which there is at least one: header and body."""

    @abstractmethod
    def records(self, first: int, end: int) -> SortedRecords:
        """The records ``[first, end)``."""

    @abstractmethod
    def chosen(self, rows: I64, limit_bytes: int) -> SortedRecords:
        """The records at these rows, ascending. Raises ``TooMuch`` for more bytes."""

    def seek(self, first: int, end: int, offset: int) -> int:
        """Of a queue's records ``[first, end)`` the first at or behind ``offset``; ``end`` when there is none.

        A queue's messages follow one another nearly everywhere, so it is looked for where it would be then.
        """
        if first == end:
            return end
        at = first + offset - self.offset(first)
        if at <= first:
            return first
        if at < end and self.offset(at) == offset and self.offset(at - 1) < offset:
            return at
        return bisect_left(range(end), offset, first, end, key=self.offset)

    def spans(self, keys: U64) -> tuple[I64, I64, I64]:
        """Which of the sorted, distinct ``keys`` have records here; of each the first row, and how many."""
        firsts = self.keys.searchsorted(keys)
        counts = self.keys.searchsorted(keys, "right") - firsts
        here = np.flatnonzero(counts)
        return here, firsts[here], counts[here]


def check_size(lengths: NDArray[Any], limit_bytes: int) -> None:
    """Raises ``TooMuch`` for records of more bytes together."""
    if int(lengths.sum(dtype=np.int64)) > limit_bytes:
        raise TooMuch


def select(records: SortedRecords, chosen: I64) -> SortedRecords:
    """The records at ``chosen``, in that order."""
    ends = np.cumsum(records.lengths, dtype=np.int64)
    columns = {column: values[chosen] for column, values in records.columns.items()}
    lengths = columns[Column.LENGTH]
    return SortedRecords(records.keys[chosen], columns, gather(records.payload, ends[chosen] - lengths, lengths))


def concatenate(parts: Sequence[SortedRecords]) -> SortedRecords:
    """Records one after another; columns that only some have are zero in the others."""
    if len(parts) == 1:
        return parts[0]
    names = sorted({column for part in parts for column in part.columns})
    columns: Columns = {}
    for column in names:
        columns[column] = np.concatenate(
            [part.columns[column] if column in part.columns else np.zeros(len(part), DTYPES[column]) for part in parts]
        )
    return SortedRecords(
        np.concatenate([part.keys for part in parts]),
        columns,
        np.concatenate([part.payload for part in parts]),
    )


def encode_records(records: SortedRecords) -> bytes:
    """One record batch, as readers get it."""
    return encode_one(records.all_columns(), records.payload)
