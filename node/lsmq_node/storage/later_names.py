"""Messages that come later into queues by name: the name stands in the header of their record.

A queue may be deleted, or forgotten, before its message is due, and its number be another's by then. So who delivers
goes by the name: the broker puts it behind the other fields of the header (:func:`lsmq.messages.encode_header`), as the
sixth. It stays there; whoever reads the message passes over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np

from lsmq.errors import InvalidBatch
from lsmq.queue_names import check_queue_name
from lsmq.record_batch import Column, RecordBatch

from .columns import DTYPES, I64, U32, U64, Columns, decode_column
from .renumber import with_columns, with_queues
from .sorted_records import SortedRecords

_NAME = 5  # its place in the header
_TOPIC_SHIFT = np.uint64(32)


def with_names(batch: RecordBatch, names: Sequence[str]) -> RecordBatch:
    """The batch, whose QUEUE column counts ``names``, with these in the headers of records that may come later.

    Raises ``InvalidBatch`` for a header that is none, ``InvalidQueueName``.
    """
    if Column.DUE_MS not in batch.directory:
        return batch
    batch.check_lengths()
    lengths, headers = list(batch.column(Column.LENGTH)), list(batch.column(Column.HEADER_LENGTH))
    queues, due, payload = batch.column(Column.QUEUE), batch.column(Column.DUE_MS), batch.payload
    parts: list[bytes | memoryview] = []
    start = 0
    for row, (length, header_length) in enumerate(zip(lengths, headers, strict=True)):
        end = start + length
        if due[row]:
            header = _with_name(payload[start : start + header_length], names[queues[row]])
            parts += header, payload[start + header_length : end]
            headers[row] = len(header)
            lengths[row] += len(header) - header_length
        else:
            parts.append(payload[start:end])
        start = end
    columns: Columns = {
        Column.LENGTH: np.array(lengths, DTYPES[Column.LENGTH]),
        Column.HEADER_LENGTH: np.array(headers, DTYPES[Column.HEADER_LENGTH]),
    }
    return with_columns(batch, columns, b"".join(parts))


def numbered(batch: RecordBatch, names: Sequence[str], numbers: U32) -> RecordBatch:
    """The batch, whose QUEUE column counts ``names``, as a store takes it: these have the ``numbers``."""
    which = decode_column(batch.buffer, batch.directory.get(Column.QUEUE), batch.record_count, DTYPES[Column.QUEUE])
    return with_queues(with_names(batch, names), numbers[which])


def _with_name(header: memoryview, name: str) -> bytes:
    fields = _fields(header)
    fields += [None] * (_NAME - len(fields))
    packed: bytes = msgpack.packb([*fields[:_NAME], check_queue_name(name)])
    return packed


def name_of(header: bytes | memoryview) -> str:
    """The name of the queue that a record is for. Raises ``InvalidBatch`` where it has none."""
    fields = _fields(header)
    name = fields[_NAME] if len(fields) > _NAME else None
    if not isinstance(name, str):
        raise InvalidBatch("a message that comes later to a queue by name has no name in its header")
    return name


def _fields(header: bytes | memoryview) -> list[Any]:
    try:
        found = msgpack.unpackb(header) if len(header) else []
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InvalidBatch(f"a record's header of {len(header)} bytes is not msgpack") from error
    if not isinstance(found, list):
        raise InvalidBatch(f"a record's header of {len(header)} bytes is not a msgpack array")
    return found


def names_due(records: SortedRecords, topic_id: int) -> tuple[I64, list[str]]:
    """Which of some delayed records are for a topic with named queues, and the name of each one's queue."""
    rows = np.flatnonzero(records.columns[Column.TARGET] >> _TOPIC_SHIFT == np.uint64(topic_id))
    ends = np.cumsum(records.lengths, dtype=np.int64)
    starts = (ends - records.lengths)[rows]
    sizes = records.columns[Column.HEADER_LENGTH][rows]
    places = zip(starts.tolist(), sizes.tolist(), strict=True)
    return rows, [name_of(records.payload[start : start + size].tobytes()) for start, size in places]


def retargeted(records: SortedRecords, topic_id: int, rows: I64, numbers: U32) -> SortedRecords:
    """Delayed records of which these rows are for queues of the topic with these numbers."""
    targets: U64 = records.columns[Column.TARGET].copy()
    targets[rows] = np.uint64(topic_id) << _TOPIC_SHIFT | numbers.astype(np.uint64)
    return replace(records, columns={**records.columns, Column.TARGET: targets})
