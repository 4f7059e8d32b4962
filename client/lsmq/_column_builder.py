"""Rows on their way into a record batch, as numpy columns: no object is made of a message.

What :class:`.batch_builder.BatchBuilder` is for single messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lsmq.batch_builder import COLUMN, MASK64, Codec, encode_column, join_batch

try:
    import numpy as np
except ImportError:  # Then there are no columns to send.
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ColumnBuilder:
    """Collects pieces, each some rows with their columns, and packs them. Keeps nothing of the caller's."""

    def __init__(self) -> None:
        self._columns: list[Mapping[int, NDArray[Any] | int]] = []
        self._counts: list[int] = []
        self._payload: list[bytes] = []
        self.count = 0

    def add(self, columns: Mapping[int, NDArray[Any] | int], count: int, payload: bytes) -> None:
        """Append ``count`` rows. A column that is one int is the same for all; ``payload`` is the records joined."""
        self._columns.append(columns)
        self._counts.append(count)
        self._payload.append(payload)
        self.count += count

    def due_times(self, stored_ms: int) -> Mapping[int, int]:
        """None: rows do not come later."""
        return {}

    def build(
        self, *, producer_id: int, producer_epoch: int, sequence: int, position: int | None, codec: Codec
    ) -> bytes:
        """The packed batch: the same bytes whenever it is asked for, where the arguments are the same."""
        assert position is None, "rows have no positions"
        encoded = [encode_array(column, self._whole(column)) for column in sorted(self._names())]
        payload = self._payload[0] if len(self._payload) == 1 else b"".join(self._payload)
        return join_batch(
            self.count,
            encoded,
            payload,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            codec=codec,
        )

    def _names(self) -> set[int]:
        return {column for piece in self._columns for column in piece}

    def _whole(self, column: int) -> NDArray[Any] | int:
        """All values of a column; the one that all rows have as an int."""
        pieces = [piece.get(column, 0) for piece in self._columns]
        first = pieces[0]
        if len(pieces) == 1 or (
            isinstance(first, int) and all(isinstance(each, int) and each == first for each in pieces)
        ):
            return first
        kind = next((each.dtype for each in pieces if not isinstance(each, int)), np.dtype(np.int64))
        filled = [
            np.full(count, each, kind) if isinstance(each, int) else each
            for each, count in zip(pieces, self._counts, strict=True)
        ]
        return np.concatenate(filled)


def encode_array(column: int, values: NDArray[Any] | int) -> tuple[bytes, bytes]:
    """:func:`.batch_builder.encode_column` of an array of integers, 0 or more."""
    if isinstance(values, int):
        return encode_column(column, values)
    low, high = int(values.min()), int(values.max())
    span = high - low
    if span == 0:
        return encode_column(column, low)
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8
    deltas = (values - values.dtype.type(low)).astype(f"<u{width}")
    return COLUMN.pack(column, width, low & MASK64), deltas.tobytes()
