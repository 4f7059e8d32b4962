"""What is due, as batches for the queues it is for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column, Flag, RecordBatch
from lsmq_node.broker import BROKER_PRODUCERS
from lsmq_node.machines import with_producer
from lsmq_node.storage.columns import I64, OPTIONAL, U64, Columns, encode_one
from lsmq_node.storage.sorted_records import SortedRecords, select

_EPOCH_BITS = 32
_QUEUE = np.uint64((1 << 32) - 1)
#: No coordinator of transactions has it.
_PRODUCER = BROKER_PRODUCERS | 1 << 62


def producer_of(number: int) -> tuple[int, int]:
    """Producer id and epoch of a batch: each is the first of its epoch."""
    return _PRODUCER | number >> _EPOCH_BITS, number & ((1 << _EPOCH_BITS) - 1)


def topics_of(targets: U64) -> tuple[int, ...]:
    """Ids of the topics, in the order in which each comes first."""
    ids = targets >> np.uint64(32)
    found, firsts = np.unique(ids, return_index=True)
    return tuple(found[np.argsort(firsts)].tolist())


def batches(
    records: SortedRecords | None, topics: Sequence[int], first: int, live: Collection[int], after: int
) -> list[tuple[int, RecordBatch]]:
    """A batch for each of the ``topics``, numbered from ``first`` on: topic's id and batch.

    Left out are those of topics that are not ``live`` any more, and those numbered up to ``after``, which are stored.
    Whoever makes them again for the same records gets the same.
    """
    if records is None:
        return []
    targets: U64 = records.columns[Column.TARGET]
    found = []
    for number, topic_id in enumerate(topics, first):
        if topic_id in live and number > after:
            chosen = np.flatnonzero(targets >> np.uint64(32) == np.uint64(topic_id))
            if len(chosen):
                found.append((topic_id, _batch(records, chosen, number)))
    return found


def _batch(records: SortedRecords, chosen: I64, number: int) -> RecordBatch:
    mine = records if len(chosen) == len(records) else select(records, chosen)
    columns: Columns = {
        column: mine.columns[column] for column in OPTIONAL if column in mine.columns and column != Column.TARGET
    }
    columns[Column.QUEUE] = (mine.columns[Column.TARGET] & _QUEUE).astype(np.uint32)
    columns[Column.LENGTH] = mine.lengths
    return RecordBatch(with_producer(encode_one(columns, mine.payload), *producer_of(number)), verify=False)


def moved(records: SortedRecords, due_ms: int, old_ms: int, old_offset: int) -> RecordBatch:
    """A batch that puts one record, the only one of ``records``, at another time, and takes it from where it was.

    ``due_ms`` is a delay or a time, as in the column ``DUE_MS``.
    """

    def pair(value: int, other: int, kind: type[np.generic]) -> NDArray[Any]:
        return np.array((value, other), kind)

    queue = int(records.columns[Column.TARGET][0] & _QUEUE)
    columns: Columns = {
        Column.QUEUE: pair(queue, queue, np.uint32),
        Column.LENGTH: pair(int(records.lengths[0]), 0, np.uint32),
        Column.DUE_MS: pair(due_ms, old_ms, np.int64),
        Column.OFFSET: pair(0, old_offset, np.int64),
    }
    for column in OPTIONAL:
        if column in records.columns and column not in (Column.TARGET, Column.DUE_MS):
            values = records.columns[column]
            columns[column] = np.concatenate((values, np.zeros(1, values.dtype)))
    flags = int(records.columns[Column.FLAGS][0]) if Column.FLAGS in records.columns else 0
    columns[Column.FLAGS] = pair(flags, Flag.TOMBSTONE, np.uint8)
    return RecordBatch(encode_one(columns, records.payload), verify=False)
