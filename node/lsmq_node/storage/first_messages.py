"""When the first message of each of many queues was stored."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column, RecordBatch

from .columns import DTYPES, I64, U32, decode_column
from .queries import Queries

_READ_BYTES: Final = 4 << 20


def first_stored_ms(queries: Queries, topic_id: int, queues: U32) -> I64:
    """Of each of these distinct queues, -1 where nothing can be read.

    Reads the messages, bodies and all: together, but one by one where the first ones of a queue have expired or are
    deleted. Raises ``UnknownTopic``, ``UnknownQueue``, ``CorruptFile``.
    """
    state = queries.topic_state(topic_id)
    order = np.argsort(queues)
    wanted = np.asarray(queues, np.uint32)[order]
    starts, found = state.live_from(queries.rows(state, wanted)), np.full(len(wanted), -1, np.int64)
    left = np.arange(len(wanted))
    while len(left):
        some, begins = wanted[left], starts[left]
        read = queries.read_many(topic_id, some, begins, ends=begins + 1, max_records=len(left), max_bytes=_READ_BYTES)
        for batch in read.batches():
            found[wanted.searchsorted(_column(batch, Column.QUEUE))] = _column(batch, Column.STORED_MS)
        moved = np.isin(some, read.queues)
        if not moved.any():
            break
        left = left[~moved]
    behind = (found < 0) & (starts < queries.latest_offsets(topic_id, wanted))
    for at in np.flatnonzero(behind).tolist():
        one = slice(at, at + 1)
        for batch in queries.read_many(topic_id, wanted[one], starts[one], max_records=1, max_bytes=1).batches():
            found[at] = _column(batch, Column.STORED_MS)[0]
    result = np.empty(len(found), np.int64)
    result[order] = found
    return result


def _column(batch: RecordBatch, column: Column) -> NDArray[Any]:
    return decode_column(batch.buffer, batch.directory.get(column), batch.record_count, DTYPES[column])
