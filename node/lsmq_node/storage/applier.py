"""Applying: how log entries become state. The same code for a new entry, a replayed one and a replica's.

``prepare`` gives a batch's records their offsets, ``apply`` makes an entry readable. Both are deterministic,
so every replica that has the same log has the same offsets; the sum of a batch's offsets is in the log, and a
replay that comes to another sum is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgpack
import numpy as np
from numpy.typing import NDArray

from lsmq.errors import InvalidBatch
from lsmq.record_batch import Column, Flag, RecordBatch

from .columns import (
    DTYPES,
    I64,
    OPTIONAL,
    U32,
    U64,
    Columns,
    assign_offsets,
    decode_column,
    queue_keys,
    wrap64,
)
from .epochs import epoch_start
from .failures import damaged
from .memtable import Memtable
from .producers import BatchKey, Stored, fingerprint
from .sorted_records import TOMBSTONE_TOPIC
from .sstable import stored_batch
from .state import ShardState, Topic, TopicOptions, TopicState
from .stats import Counters
from .wal import Entry, EntryKind

#: Where records of a topic that is gone are.
_NOWHERE: I64 = np.empty(0, np.int64)


@dataclass(slots=True)
class PendingRecords:
    """Records that have their offsets and wait to be applied."""

    end_lsn: int
    state: TopicState
    keys: Any
    offsets: I64
    lengths: Any
    stored_ms: int
    payload: memoryview
    optional: Columns
    touched: U32
    ends: I64
    producer: BatchKey | None

    def touched_queues(self) -> tuple[int, U32]:
        """The topic's id and the queues that got records, in any order and with repeats."""
        first = np.uint32(self.state.first)
        return self.state.topic.id, self.touched + first if first else self.touched

    def stored(self) -> Stored:
        """The answer to remember for the producer's batch."""
        assert self.producer is not None
        return self.producer.stored(self.end_lsn, self.stored_ms, self.offsets)


class BatchColumns:
    """The columns of a producer's batch that the store looks at."""

    __slots__ = ("lengths", "optional", "producer", "queues")

    def __init__(self, batch: RecordBatch, topic_id: int) -> None:
        """Raises ``InvalidBatch`` for a batch without records."""
        if batch.record_count == 0:
            raise InvalidBatch("a batch has at least one record")
        self.queues: U32 = self._decode(batch, Column.QUEUE)
        self.lengths: U32 = self._decode(batch, Column.LENGTH)
        self.optional: Columns = {
            column: self._decode(batch, column) for column in OPTIONAL if column in batch.directory
        }
        self.producer = batch_key(batch, topic_id)

    @staticmethod
    def _decode(batch: RecordBatch, column: Column) -> Any:
        return decode_column(batch.buffer, batch.directory.get(column), batch.record_count, DTYPES[column])


@dataclass(slots=True)
class PendingEntry:
    """Any other entry in line."""

    entry: Entry


class Memtables(Protocol):
    """Where applied records go."""

    applied_lsn: int

    def room_for(self, payload_bytes: int, record_count: int) -> Memtable:
        """The memtable that takes the next records."""


class Applier:
    """Applies committed entries in log order. One thread at a time."""

    def __init__(self, state: ShardState, tables: Memtables, counters: Counters, source: str) -> None:
        self._state = state
        self._tables = tables
        self._counters = counters
        self._source = source

    def prepare(self, state: TopicState, batch: RecordBatch, columns: BatchColumns, stored_ms: int) -> PendingRecords:
        """Give the records their offsets, and advance the ends of their queues."""
        index = columns.queues - np.uint32(state.first) if state.first else columns.queues
        offsets, touched, ends = assign_offsets(index, state.next, state.scratch)
        return PendingRecords(
            0,
            state,
            queue_keys(state.topic.id, columns.queues),
            offsets,
            columns.lengths,
            stored_ms,
            batch.payload,
            columns.optional,
            touched,
            ends,
            columns.producer,
        )

    def replay(self, entry: Entry) -> PendingRecords | None:
        """Apply an entry as it stands in the log; returns its records where it has some.

        Raises ``CorruptFile`` when it does not fit the state.
        """
        if entry.kind != EntryKind.RECORDS:
            self.apply_entry(entry)
            return None
        state = self._state.topics.get(entry.topic_id)
        if state is None:  # written to a topic in the moment it was deleted; its producer goes on elsewhere
            self._replay_orphan(entry)
            return None
        batch = stored_batch(entry.body, self._source, entry.lsn, "log entry")
        pending = self.prepare(state, batch, BatchColumns(batch, entry.topic_id), entry.time_ms)
        pending.end_lsn = entry.end_lsn
        if wrap64(int(pending.offsets.sum())) != entry.check:
            raise damaged(
                self._source,
                f"the log entry at LSN {entry.lsn} was given other offsets when it was written; the "
                "checkpoint and the log do not belong together",
                entry.lsn,
            )
        self.apply_records(pending)
        return pending

    def _replay_orphan(self, entry: Entry) -> None:
        batch = stored_batch(entry.body, self._source, entry.lsn, "log entry")
        producer = batch_key(batch, entry.topic_id)
        if producer is not None:
            self._state.producers.record(producer.producer_id, producer.stored(entry.end_lsn, entry.time_ms, _NOWHERE))
        self._applied(entry.end_lsn, entry.time_ms)

    def _applied(self, end_lsn: int, time_ms: int) -> None:
        assert self._tables.applied_lsn < end_lsn, "entries are applied in the order of the log"
        self._state.time_ms = max(self._state.time_ms, time_ms)
        self._tables.applied_lsn = end_lsn

    def apply_records(self, item: PendingRecords) -> None:
        """Put records in the memtable, then show them to readers."""
        began = item.state.committed[item.touched]
        assert _follow_on(began, item.ends, item.offsets), "a queue's offsets follow one another without gaps"
        memtable = self._tables.room_for(len(item.payload), len(item.keys))
        memtable.apply(item.end_lsn, item.keys, item.offsets, item.lengths, item.stored_ms, item.payload, item.optional)
        self._state.land(item.state, item.touched, item.ends)
        producer = item.producer
        if producer is not None:
            here = self._state.topics.get(item.state.topic.id) is item.state
            answer = producer.stored(item.end_lsn, item.stored_ms, item.offsets if here else _NOWHERE)
            self._state.producers.record(producer.producer_id, answer)
        self._counters.records_written += len(item.keys)
        self._counters.bytes_written += len(item.payload)
        self._applied(item.end_lsn, item.stored_ms)

    def apply_entry(self, entry: Entry) -> None:
        """Apply a committed entry other than records."""
        state = self._state
        match entry.kind:
            case EntryKind.CATALOG:
                operation, *fields = msgpack.unpackb(entry.body)
                if operation == "put":
                    topic_id, name, queues, options, created_ms, first, end = fields
                    topic = Topic(topic_id, name, queues, TopicOptions.from_dict(options), created_ms)
                    state.put_topic(topic, first, end)
                else:
                    state.drop_topic(fields[0])
            case EntryKind.OFFSETS:
                group, raw, reset = msgpack.unpackb(entry.body)
                if raw is None:
                    state.drop_group(group)
                else:
                    queues, offsets = positions(raw)
                    state.commit_offsets(group, entry.topic_id, queues, offsets, reset=reset)
            case EntryKind.TRIM:
                state.trim(entry.topic_id, *positions(entry.body))
            case EntryKind.DELETE:
                queues, offsets = positions(entry.body)
                needed = state.delete(entry.topic_id, queues, offsets)
                if needed.any():
                    keys = queue_keys(entry.topic_id | TOMBSTONE_TOPIC, queues[needed])
                    self._apply_tombstones(entry, keys, offsets[needed])
            case EntryKind.DOCUMENT:
                state.documents.apply(entry.body)
            case EntryKind.EPOCH:
                state.epochs.append(epoch_start(entry, self._source))
            case _:
                raise damaged(
                    self._source, f"the log entry at LSN {entry.lsn} has unknown kind {entry.kind}", entry.lsn
                )
        self._applied(entry.end_lsn, entry.time_ms)

    def _apply_tombstones(self, entry: Entry, keys: U64, offsets: I64) -> None:
        zeros = np.zeros(len(keys), np.uint32)
        flags = np.full(len(keys), Flag.TOMBSTONE, np.uint8)
        memtable = self._tables.room_for(0, len(keys))
        memtable.apply(entry.end_lsn, keys, offsets, zeros, entry.time_ms, memoryview(b""), {Column.FLAGS: flags})


def _follow_on(begins: I64, ends: I64, offsets: I64) -> bool:
    """Whether a batch's offsets lead its queues from where they began to where they end: by their sums, so in no time.

    ``begins`` and ``ends`` are of each queue, or of each record's queue; then as many offsets lie below as above it.
    """
    count = len(offsets)
    if count == 1:
        return begins.item(0) == offsets.item(0)
    if count == len(ends):
        return 2 * int(offsets.sum()) + count == int(begins.sum()) + int(ends.sum())
    return int(ends.sum()) - int(begins.sum()) == count


def batch_key(batch: RecordBatch, topic_id: int) -> BatchKey | None:
    """What tells the batch from others of its producer; None where it has none."""
    if not batch.producer_id:
        return None
    return BatchKey(batch.producer_id, batch.producer_epoch, batch.sequence, fingerprint(topic_id, batch))


def positions(raw: bytes) -> tuple[NDArray[np.uint32], I64]:
    """Queues and offsets of an entry that names places."""
    batch = RecordBatch(raw, source="log entry")
    return (
        decode_column(raw, batch.directory.get(Column.QUEUE), batch.record_count, DTYPES[Column.QUEUE]),
        decode_column(raw, batch.directory.get(Column.OFFSET), batch.record_count, DTYPES[Column.OFFSET]),
    )
