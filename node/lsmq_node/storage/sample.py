"""A sample of a table's records: what of the table is dead, and how its bytes lie in time, without reading it.

Every so many bytes, in key order, one record is taken: its key, its offset and its time. So each point stands for the
same number of bytes, and the share of points below their queues' log starts is the share of the table that nobody can
read. The sample lies in the table's properties as a record batch without payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column, RecordBatch

from .columns import DTYPES, I64, U64, decode_column, encode_columns, queue_keys

#: At most so many points a table, and one for so many of its bytes: the sample stays below a hundredth of it.
MAX_POINTS = 512
BYTES_A_POINT = 1024
MIN_POINTS = 16
_FIRST_SPACING_BYTES = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """Points in key order; tombstones are among them, under their shadow topics."""

    keys: U64
    offsets: I64
    stored_ms: I64
    targets: U64  # of delayed messages; 0 of others
    expires_ms: I64 | None = None  # None where none of them does

    def __len__(self) -> int:
        return len(self.keys)

    def before(self, key: int, offset: int) -> NDArray[np.bool_]:
        """Which points lie before a place."""
        wanted = np.uint64(key)
        before: NDArray[np.bool_] = (self.keys < wanted) | ((self.keys == wanted) & (self.offsets < offset))
        return before

    def at(self, chosen: slice | I64) -> Sample:
        """Some of the points."""
        expires = None if self.expires_ms is None else self.expires_ms[chosen]
        return Sample(self.keys[chosen], self.offsets[chosen], self.stored_ms[chosen], self.targets[chosen], expires)

    def encode(self) -> bytes:
        """A record batch of columns."""
        columns: dict[int, NDArray[Any] | int] = {
            Column.TOPIC: (self.keys >> np.uint64(32)).astype(np.uint32),
            Column.QUEUE: self.keys.astype(np.uint32),
            Column.OFFSET: self.offsets,
            Column.STORED_MS: self.stored_ms,
        }
        if self.expires_ms is not None:
            columns[Column.EXPIRES_MS] = self.expires_ms
        if self.targets.any():
            columns[Column.TARGET] = self.targets
        return encode_columns(len(self), columns)

    @classmethod
    def decode(cls, batch: RecordBatch) -> Sample:
        """What :meth:`encode` has made."""

        def column(number: Column) -> NDArray[Any]:
            return decode_column(batch.buffer, batch.directory.get(number), batch.record_count, DTYPES[number])

        keys = queue_keys(0, column(Column.QUEUE)) | column(Column.TOPIC).astype(np.uint64) << np.uint64(32)
        expires = column(Column.EXPIRES_MS) if Column.EXPIRES_MS in batch.directory else None
        return cls(keys, column(Column.OFFSET), column(Column.STORED_MS), column(Column.TARGET), expires)


class Sampler:
    """Takes the sample of a table that is being written, whose size nobody knows yet."""

    def __init__(self) -> None:
        self._spacing = _FIRST_SPACING_BYTES
        self._next = 0  # the byte whose record is the next point
        self._bytes = 0
        self._count = 0
        self._parts: list[Sample] = []

    def add(self, keys: U64, columns: Mapping[int, NDArray[Any]], weights: I64) -> None:
        """Records that follow those added before, with the columns they have, and the bytes that all up to and with
        each one stand for."""
        ends = weights + self._bytes
        while not self._count and ends[-1] > 8 * MAX_POINTS * self._spacing:  # as it would come to, point by point
            self._spacing *= 2
        marks = np.arange(self._next, int(ends[-1]), self._spacing)
        self._bytes = int(ends[-1])
        if len(marks) == 0:
            return
        self._next = int(marks[-1]) + self._spacing
        chosen = ends.searchsorted(marks, "right")
        targets, expires = columns.get(Column.TARGET), columns.get(Column.EXPIRES_MS)
        self._parts.append(
            Sample(
                keys[chosen],
                columns[Column.OFFSET][chosen],
                columns[Column.STORED_MS][chosen],
                np.zeros(len(chosen), np.uint64) if targets is None else targets[chosen],
                None if expires is None else expires[chosen],
            )
        )
        self._count += len(chosen)
        while self._count > 8 * MAX_POINTS:
            whole = self._joined()
            self._parts = [whole.at(slice(None, None, 2))]
            self._count = len(self._parts[0])
            if len(whole) % 2:  # its last point stays, and the next one is two steps behind it
                self._next += self._spacing
            self._spacing *= 2

    def finish(self, size_bytes: int) -> Sample:
        """The sample of a table of so many bytes."""
        whole = self._joined()
        limit = min(MAX_POINTS, max(MIN_POINTS, size_bytes // BYTES_A_POINT))
        if len(whole) <= limit:
            return whole
        chosen = (np.arange(limit) * 2 + 1) * len(whole) // (2 * limit)
        return whole.at(chosen)

    def _joined(self) -> Sample:
        expires = None
        if any(part.expires_ms is not None for part in self._parts):
            never = [
                np.zeros(len(part), np.int64) if part.expires_ms is None else part.expires_ms for part in self._parts
            ]
            expires = np.concatenate(never)
        return Sample(
            np.concatenate([part.keys for part in self._parts]),
            np.concatenate([part.offsets for part in self._parts]),
            np.concatenate([part.stored_ms for part in self._parts]),
            np.concatenate([part.targets for part in self._parts]),
            expires,
        )
