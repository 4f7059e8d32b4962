"""When messages of many queues were stored: the first of each, and from which one on they were stored since a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column, RecordBatch

from .columns import DTYPES, I64, U32, decode_column
from .queries import Queries
from .sieve import none_expired

_READ_BYTES: Final = 4 << 20


def first_stored_ms(queries: Queries, topic_id: int, queues: U32) -> I64:
    """Of each of these distinct queues, -1 where nothing can be read.

    Reads the messages, bodies and all: together, but one by one where the first ones of a queue have expired or are
    deleted. Raises ``UnknownTopic``, ``UnknownQueue``, ``CorruptFile``.
    """
    state = queries.topic_state(topic_id)
    order = np.argsort(queues)
    wanted = np.asarray(queues, np.uint32)[order]
    starts = state.live_from(queries.rows(state, wanted))
    found = _stored_ms(queries, topic_id, wanted, starts)
    behind = (found < 0) & (starts < queries.latest_offsets(topic_id, wanted))
    for at in np.flatnonzero(behind).tolist():
        one = slice(at, at + 1)
        for batch in queries.read_many(topic_id, wanted[one], starts[one], max_records=1, max_bytes=1).batches():
            found[at] = _column(batch, Column.STORED_MS)[0]
    result = np.empty(len(found), np.int64)
    result[order] = found
    return result


def offsets_for_time(queries: Queries, topic_id: int, queues: U32, time_ms: int) -> I64:
    """The first offset of each queue that was stored at or after ``time_ms``; the latest where there is none.

    Searches all queues at once, the last and the first message of each before those between; one by one where what is
    looked at is deleted. Reads whole messages. Raises ``UnknownTopic``, ``UnknownQueue``, ``CorruptFile``.
    """
    state = queries.topic_state(topic_id)
    wanted, places = np.unique(np.asarray(queues, np.uint32), return_inverse=True)
    low = state.live_from(queries.rows(state, wanted)).copy()
    high = np.maximum(queries.latest_offsets(topic_id, wanted), low)
    step, left = 0, np.flatnonzero(low < high)
    while len(left):
        at = high[left] - 1 if step == 0 else low[left] if step == 1 else (low[left] + high[left]) // 2
        stored_ms = _stored_ms(queries, topic_id, wanted[left], at, with_expired=True)
        later = stored_ms >= time_ms
        high[left[later]], low[left[~later]] = at[later], at[~later] + 1
        for gone in left[stored_ms < 0].tolist():
            low[gone] = high[gone] = queries.offset_for_time(topic_id, int(wanted[gone]), time_ms)
        step, left = step + 1, left[low[left] < high[left]]
    result: I64 = low[places]
    return result


def _stored_ms(queries: Queries, topic_id: int, queues: U32, offsets: I64, *, with_expired: bool = False) -> I64:
    """Of the message at one offset of each of these queues, sorted and distinct; -1 where there is none."""
    found, left = np.full(len(queues), -1, np.int64), np.arange(len(queues))
    while len(left):
        some, begins = queues[left], offsets[left]
        read = queries.read_many(
            topic_id,
            some,
            begins,
            ends=begins + 1,
            max_records=len(left),
            max_bytes=_READ_BYTES,
            expired=none_expired if with_expired else None,
        )
        for batch in read.batches():
            found[queues.searchsorted(_column(batch, Column.QUEUE))] = _column(batch, Column.STORED_MS)
        moved = np.isin(some, read.queues)
        if not moved.any():
            break
        left = left[~moved]
    return found


def _column(batch: RecordBatch, column: Column) -> NDArray[Any]:
    return decode_column(batch.buffer, batch.directory.get(column), batch.record_count, DTYPES[column])
