"""A batch with other columns, its QUEUE column above all: the rest is as it came."""

from __future__ import annotations

from typing import Any

import crc32c
from numpy.typing import NDArray

from lsmq.record_batch import COLUMN, COLUMN_BYTES, HEADER, HEADER_BYTES, Codec, Column, RecordBatch

from .columns import U32, WIDTH_DTYPES, Columns, width_of


def with_queues(batch: RecordBatch, queues: U32) -> RecordBatch:
    """The batch with these queues, one a record. Its payload is copied once, packed as it is."""
    return with_columns(batch, {Column.QUEUE: queues})


def with_columns(batch: RecordBatch, columns: Columns, payload: bytes | None = None) -> RecordBatch:
    """The batch with these columns in place of its own, which have no negative values; and with another payload, not
    compressed, where one is given."""
    found = {column: _packed(values) for column, values in columns.items()}
    columns_end = HEADER_BYTES + COLUMN_BYTES * len(batch.directory)
    for column, (position, its_width, base) in batch.directory.items():
        end = position + its_width * batch.record_count
        columns_end = max(columns_end, end)
        if column not in columns:
            found[column] = (its_width, base, bytes(batch.buffer[position:end]))
    packed = batch.buffer[columns_end : batch.total_bytes] if payload is None else payload
    order = sorted(found)
    directory = b"".join(COLUMN.pack(column, *found[column][:2]) for column in order)
    rest = b"".join((directory, *(found[column][2] for column in order)))
    fields = list(HEADER.unpack_from(batch.buffer))
    fields[1], fields[4] = HEADER_BYTES + len(rest) + len(packed), len(order)
    if payload is not None:
        fields[3], fields[6], fields[7] = Codec.NONE, len(payload), len(payload)
    head = HEADER.pack(*fields)[4:]
    crc = crc32c.crc32c(packed, crc32c.crc32c(rest, crc32c.crc32c(head)))
    buffer = b"".join((crc.to_bytes(4, "little"), head, rest, packed))
    changed = RecordBatch.__new__(RecordBatch)
    changed.buffer, changed.total_bytes, changed.record_count = memoryview(buffer), len(buffer), batch.record_count
    changed.codec, changed.payload = batch.codec, batch.payload
    if payload is not None:
        changed.codec, changed.payload = Codec.NONE, memoryview(payload)
    changed.producer_id, changed.producer_epoch, changed.sequence = (
        batch.producer_id,
        batch.producer_epoch,
        batch.sequence,
    )
    changed.directory = {}
    position = HEADER_BYTES + COLUMN_BYTES * len(order)
    for column in order:
        its_width, base, _ = found[column]
        changed.directory[column] = (position, its_width, base)
        position += its_width * batch.record_count
    return changed


def _packed(values: NDArray[Any]) -> tuple[int, int, bytes]:
    low = int(values.min())
    span = int(values.max()) - low
    width = width_of(span) if span else 0
    return width, low, (values - values.dtype.type(low)).astype(WIDTH_DTYPES[width]).tobytes() if width else b""
