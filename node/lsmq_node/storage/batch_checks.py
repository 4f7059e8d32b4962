"""What a producer's batch must be before it is taken: refused here, it has cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from lsmq.errors import (
    InvalidBatch,
    InvalidRequest,
    MessageTooLarge,
    OffsetOutOfRange,
    TooManyMessages,
    UnknownQueue,
)
from lsmq.record_batch import LAST_DUE_MS, MAX_TTL_MS, Column, Flag, RecordBatch

from .applier import BatchColumns
from .columns import I64, U32, encode_columns
from .options import StoreOptions
from .producers import BROKER_PRODUCERS
from .state import StoredTopic, TopicState

#: Columns that have their numbers in the format, and that nothing obeys yet.
NOT_OBEYED = frozenset({Column.TRANSACTION, Column.TARGET})


def check_obeyed(batch: RecordBatch) -> None:
    """Raises ``InvalidRequest`` for a batch with a column that nothing would obey."""
    for column in NOT_OBEYED & batch.directory.keys():
        raise InvalidRequest(
            f"the batch has the column {Column(column).name}, which this release does not obey; leave it out",
            column=Column(column).name,
        )


def check_count(batch: RecordBatch, options: StoreOptions) -> None:
    """Before columns are decoded: records may cost no byte of the batch, but they cost memory here."""
    limit = options.max_batch_records
    if batch.record_count > limit:
        raise TooManyMessages(
            f"a batch of {batch.record_count} records is over the limit of {limit} (a record for each 32 bytes "
            "of memtable_bytes); send smaller batches",
            limit=limit,
            count=batch.record_count,
        )


def check_batch(state: TopicState, batch: RecordBatch, columns: BatchColumns, options: StoreOptions) -> None:
    """Raises ``UnknownQueue``, ``InvalidBatch``, ``InvalidRequest`` or ``MessageTooLarge``."""
    check_obeyed(batch)
    topic, queues, lengths = state.topic, columns.queues, columns.lengths
    low, high = int(queues.min()), int(queues.max())
    if low < state.first or high >= state.last_end:
        queue = low if low < state.first else high
        raise UnknownQueue(
            f"topic {topic.name!r} has queues 0 to {topic.queues - 1}; there is no queue {queue} here",
            topic=topic.name,
            queue=queue,
            queues=topic.queues,
        )
    total = int(lengths.sum(dtype=np.int64))
    if total != len(batch.payload):
        raise InvalidBatch(f"the records' lengths add up to {total} bytes, the payload has {len(batch.payload)}")
    headers = columns.optional.get(Column.HEADER_LENGTH)
    if headers is not None and (headers > lengths).any():
        raise InvalidBatch("a record's header is longer than the record")
    expires = columns.optional.get(Column.EXPIRES_MS)
    if expires is not None and ((expires < 0) | (expires > LAST_DUE_MS)).any():
        wrong = int(expires.min()) if (expires < 0).any() else int(expires.max())
        raise InvalidRequest(
            f"a message's ttl_ms (column EXPIRES_MS) is {wrong}; it must be 1 to {MAX_TTL_MS} milliseconds from when "
            f"it is stored, or above that a moment up to {LAST_DUE_MS}, or 0 for a message that does not expire",
            field="ttl_ms",
            limit=MAX_TTL_MS,
        )
    moves = Column.OFFSET in batch.directory
    flags = columns.optional.get(Column.FLAGS)
    if flags is not None:
        _check_flags(flags, lengths, headers, moves=moves)
    if Column.DUE_MS in batch.directory:
        _check_due(batch, columns.optional[Column.DUE_MS])
    limit = options.max_message_bytes
    if moves or batch.producer_id >= BROKER_PRODUCERS:  # It was taken when it was sent.
        limit = options.max_batch_bytes
    elif topic.options.max_message_bytes is not None:
        limit = min(limit, topic.options.max_message_bytes)
    longest = int(lengths.max())
    if longest > limit:
        raise MessageTooLarge(
            f"a message of {longest} bytes (body, key, tag and properties) is over the limit of {limit}; send "
            "it in parts, or raise max_message_bytes",
            limit=limit,
            size=longest,
        )
    if total > options.max_batch_bytes:
        raise MessageTooLarge(
            f"a batch of {total} bytes is over the limit of {options.max_batch_bytes} (half of "
            "memtable_bytes); send smaller batches",
            limit=options.max_batch_bytes,
            size=total,
        )


def _check_due(batch: RecordBatch, due: I64) -> None:
    if batch.directory[Column.DUE_MS][1] == 0:
        raise InvalidBatch("the column DUE_MS has no bytes; it has one or more for each record")
    if (due < 0).any() or (due > LAST_DUE_MS).any():
        raise InvalidBatch(f"the column DUE_MS has a value that is not 0 to {LAST_DUE_MS}")


def _check_flags(flags: Any, lengths: Any, headers: Any, *, moves: bool) -> None:
    """``moves``: it puts delayed messages in place of others, which have the flag tombstone; only the broker does."""
    allowed = Flag.DELETE | Flag.TOMBSTONE if moves else Flag.DELETE
    if (flags & ~np.uint8(allowed)).any():
        raise InvalidBatch("a producer's record has other flags set than delete; they are the broker's to set")
    bodies = lengths if headers is None else lengths - headers
    if bodies[flags != 0].any():
        raise InvalidBatch("a record with the flag delete has a body; a deletion has none")


def encode_positions(topic: StoredTopic, queues: U32, offsets: I64, latest: I64) -> bytes:
    """An offset for each of some queues, none beyond ``latest``. Raises ``InvalidRequest`` or ``OffsetOutOfRange``."""
    if len(queues) == 0 or len(queues) != len(offsets):
        raise InvalidRequest(f"{len(queues)} queues and {len(offsets)} offsets: give one offset for each queue")
    wrong = (np.asarray(offsets) > latest) | (np.asarray(offsets) < 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise OffsetOutOfRange(
            f"offset {int(offsets[at])} is not within queue {int(queues[at])} of topic {topic.name!r}, which ends at "
            f"{int(latest[at])}",
            topic=topic.name,
            queue=int(queues[at]),
            earliest=0,
            latest=int(latest[at]),
        )
    return encode_columns(len(queues), {Column.QUEUE: np.asarray(queues), Column.OFFSET: np.asarray(offsets)})
