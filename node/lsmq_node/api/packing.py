"""Small record batches made of numpy columns: offsets of stored records, positions of queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import COLUMN, HEADER, HEADER_BYTES, VERSION, Codec

Columns = Mapping[int, NDArray[Any] | int]

_WIDTHS = ((0, "<u1", 1), (1 << 8, "<u2", 2), (1 << 16, "<u4", 4), (1 << 32, "<u8", 8))


def pack_columns(record_count: int, columns: Columns) -> bytes:
    """A batch of columns without payload: what ``encode_batch`` makes, for arrays of any length.

    Values are 0 or more. A column that is one int is the same for all records.
    """
    directory: list[bytes] = []
    deltas: list[bytes] = []
    for column in sorted(columns):
        values = columns[column]
        if isinstance(values, int):
            directory.append(COLUMN.pack(column, 0, values))
            continue
        low, high = int(values.min()), int(values.max())
        if low == high:
            directory.append(COLUMN.pack(column, 0, low))
            continue
        dtype, width = next((dtype, width) for span, dtype, width in reversed(_WIDTHS) if high - low >= span)
        directory.append(COLUMN.pack(column, width, low))
        deltas.append((values - values.dtype.type(low)).astype(np.dtype(dtype)).tobytes())
    rest = b"".join((*directory, *deltas))
    total = HEADER_BYTES + len(rest)
    head = HEADER.pack(0, total, VERSION, Codec.NONE, len(directory), record_count, 0, 0, 0, 0, 0)[4:]
    return crc32c.crc32c(rest, crc32c.crc32c(head)).to_bytes(4, "little") + head + rest
