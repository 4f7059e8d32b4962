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
from lsmq.record_batch import LAST_DUE_MS, MAX_TTL_MS, Column, Flag, RecordBatch

from .columns import (
    DTYPES,
    I64,
    OPTIONAL,
    U8,
    U32,
    U64,
    Columns,
    assign_offsets,
    decode_column,
    gather,
    queue_keys,
    wrap64,
    wrap_signed,
)
from .dedupe import BatchIds, NotedIds, Repeats, decode_repeats, scoped
from .delayed import DUE, HAND, STORED, due_keys, due_times, is_due_topic
from .epochs import epoch_start
from .failures import damaged
from .memtable import Memtable
from .name_log import highest_number
from .producers import BatchKey, StoredBatch, fingerprint
from .sorted_records import SHADOW, TOMBSTONE_TOPIC
from .sstable import stored_batch
from .state import NAMES_TOPIC, ShardState, StoredTopic, TopicState
from .stats import Counters
from .topic_options import TopicOptions
from .wal import EntryFlag, EntryKind, LogEntry

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
    touched: NDArray[Any]
    ends: I64
    producer: BatchKey | None
    #: Of all records of the batch, also those that are not stored since they are ``repeats``.
    answers: I64
    is_delayed: bool = False  # some come later
    delayed_count: int = 0  # how many more are pending with it
    first_due_ms: int = 0  # of those that come later
    repeats: Repeats | None = None
    #: What is remembered of their deduplication ids.
    ids: NotedIds | None = None
    flags: int = 0  # of the log entry

    def touched_queues(self) -> tuple[int, U32]:
        """The topic's id and the queues that got records, in any order and with repeats."""
        queues: U32 = self.touched.astype(np.uint32, copy=False)
        first = np.uint32(self.state.first)
        return self.state.topic.id, queues + first if first else queues

    def in_queues(self) -> tuple[int, int]:
        """How many messages are in their queues with it, and their bytes; those that come later are not."""
        if not self.is_delayed:
            return len(self.keys), len(self.payload)
        there = self.keys < DUE
        return int(np.count_nonzero(there)), int(self.lengths[there].sum())

    def stored(self) -> StoredBatch:
        """The answer to remember for the producer's batch."""
        assert self.producer is not None
        answers = self.answers if self.repeats is None else self.repeats.marked(self.answers)
        return self.producer.stored(self.end_lsn, self.stored_ms, answers)


class BatchColumns:
    """The columns of a producer's batch that the store looks at."""

    __slots__ = ("ids", "lengths", "optional", "producer", "queues")

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
        self.ids: BatchIds | None = None
        if Column.DEDUPE_LOW in batch.directory or Column.DEDUPE_HIGH in batch.directory:
            high, low = self._decode(batch, Column.DEDUPE_HIGH), self._decode(batch, Column.DEDUPE_LOW)
            self.ids = scoped(topic_id, self.queues, high, low)

    def chosen(self, kept: NDArray[np.bool_]) -> BatchColumns:
        """Those of some of the records."""
        some = BatchColumns.__new__(BatchColumns)
        some.queues, some.lengths = self.queues[kept], self.lengths[kept]
        some.optional = {column: values[kept] for column, values in self.optional.items()} if kept.any() else {}
        some.producer, some.ids = self.producer, None
        return some

    @staticmethod
    def _decode(batch: RecordBatch, column: Column) -> Any:
        return decode_column(batch.buffer, batch.directory.get(column), batch.record_count, DTYPES[column])


@dataclass(slots=True)
class PendingEntry:
    """Any other entry in line."""

    entry: LogEntry


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

    def prepare(
        self,
        state: TopicState,
        batch: RecordBatch,
        columns: BatchColumns,
        stored_ms: int,
        lsn: int,
        repeats: Repeats | None = None,
        *,
        note_ids: bool = False,
    ) -> PendingRecords:
        """Give the records their offsets, and advance the ends of their queues; but those that are ``repeats``.

        With ``note_ids`` their deduplication ids are remembered from here on. ``lsn`` is where the entry begins.
        """
        if repeats is None:
            pending = self._prepare(state, batch, columns, batch.payload, stored_ms, lsn)
        else:
            pending = self._prepare_others(state, batch, columns, stored_ms, lsn, repeats)
        if note_ids:
            assert columns.ids is not None
            unstored = None if repeats is None else repeats.rows
            pending.ids = columns.ids.noted(unstored, state.topic.id, pending.answers, stored_ms)
            self._state.ids.note(pending.ids)
        return pending

    def _prepare_others(
        self,
        state: TopicState,
        batch: RecordBatch,
        columns: BatchColumns,
        stored_ms: int,
        lsn: int,
        repeats: Repeats,
    ) -> PendingRecords:
        kept = np.ones(batch.record_count, np.bool_)
        kept[repeats.rows] = False
        others = columns.chosen(kept)
        begins = np.cumsum(columns.lengths, dtype=np.int64) - columns.lengths
        payload: U8 = gather(np.frombuffer(batch.payload, np.uint8), begins[kept], others.lengths)
        view = payload.data
        pending = self._prepare(state, batch, others, view, stored_ms, lsn)
        answers = np.full(batch.record_count, -1)
        answers[kept] = pending.offsets
        repeats.fill(answers)
        pending.answers, pending.repeats = answers, repeats
        return pending

    def _prepare(
        self,
        state: TopicState,
        batch: RecordBatch,
        columns: BatchColumns,
        payload: memoryview,
        stored_ms: int,
        lsn: int,
    ) -> PendingRecords:
        if Column.DUE_MS in columns.optional:
            return _prepare_delayed(state, batch, columns, payload, stored_ms, lsn)
        index = columns.queues - np.uint32(state.first) if state.first else columns.queues
        touched: NDArray[Any] = index
        offsets = ends = _NOWHERE
        if len(index):
            if state.named:
                state.make_room(int(index.max()) + 1)
            offsets, touched, ends = assign_offsets(index, state.next, state.scratch)
        return PendingRecords(
            0,
            state,
            queue_keys(state.topic.id, columns.queues),
            offsets,
            columns.lengths,
            stored_ms,
            payload,
            columns.optional,
            touched,
            ends,
            columns.producer,
            offsets,
        )

    def replay(self, entry: LogEntry) -> PendingRecords | None:
        """Apply an entry as it stands in the log; returns its records where it has some.

        Raises ``CorruptFile`` when it does not fit the state.
        """
        if entry.kind != EntryKind.RECORDS:
            self.apply_entry(entry)
            return None
        state = self._state.topics.get(entry.topic_id)
        if state is None:
            batch = stored_batch(entry.body, self._source, entry.lsn, "log entry")
            self._apply_orphan(batch_key(batch, entry.topic_id), entry.end_lsn, entry.time_ms)
            return None
        batch = stored_batch(entry.body, self._source, entry.lsn, "log entry")
        repeats = self.repeats_of(entry, batch)
        note_ids = bool(entry.flags & EntryFlag.IDS)
        columns = BatchColumns(batch, entry.topic_id)
        pending = self.prepare(state, batch, columns, entry.time_ms, entry.lsn, repeats, note_ids=note_ids)
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

    def repeats_of(self, entry: LogEntry, batch: RecordBatch) -> Repeats | None:
        """Which of an entry's messages are not stored. Raises ``CorruptFile``."""
        if not entry.flags & EntryFlag.REPEATS:
            return None
        return decode_repeats(memoryview(entry.body)[batch.total_bytes :], self._source, entry.lsn)

    def _apply_orphan(self, producer: BatchKey | None, end_lsn: int, stored_ms: int) -> None:
        """What was written to a topic in the moment it was deleted is nowhere; its producer goes on elsewhere."""
        if producer is not None:
            self._state.producers.record(producer.producer_id, producer.stored(end_lsn, stored_ms, _NOWHERE))
        self._applied(end_lsn, stored_ms)

    def _applied(self, end_lsn: int, time_ms: int) -> None:
        assert self._tables.applied_lsn < end_lsn, "entries are applied in the order of the log"
        self._state.time_ms = max(self._state.time_ms, time_ms)
        self._tables.applied_lsn = end_lsn

    def apply_records(self, item: PendingRecords) -> None:
        """Put records in the memtable, then show them to readers."""
        if item.ids is not None:
            self._state.ids.landed(len(item.ids))
        if self._state.topics.get(item.state.topic.id) is not item.state:
            self._apply_orphan(item.producer, item.end_lsn, item.stored_ms)
            return
        memtable = self._tables.room_for(len(item.payload), len(item.keys))
        optional = item.optional
        if item.state.topic.options.ttl_ms is not None or Column.EXPIRES_MS in optional:
            optional = _with_expiry(item)
        if len(item.keys):
            memtable.apply(item.end_lsn, item.keys, item.offsets, item.lengths, item.stored_ms, item.payload, optional)
        if len(item.touched):
            in_queues = item.offsets[item.keys < DUE] if item.is_delayed else item.offsets
            began = item.state.committed[item.touched]  # here, and the other half of it is still at hand below
            assert _follow_on(began, item.ends, in_queues), "a queue's offsets follow one another without gaps"
            self._state.land(item.state, item.touched, item.ends)
        if item.state.guarded and len(item.keys):
            self._cover(item)
        producer = item.producer
        if producer is not None:
            self._state.producers.record(producer.producer_id, item.stored())
        if item.repeats is not None and (dropped := int(np.count_nonzero(item.answers < 0))):
            self._state.note_dropped(item.state, dropped)
        if item.is_delayed:
            self._count_delayed(item.delayed_count)
        self._counters.records_written += len(item.keys)
        self._counters.bytes_written += len(item.payload)
        self._applied(item.end_lsn, item.stored_ms)

    def _count_delayed(self, more: int) -> None:
        documents = self._state.documents
        documents.put(STORED, b"%d" % (int(documents.get(STORED) or 0) + more))

    def _cover(self, item: PendingRecords) -> None:
        """Queues that have got a name are there from now on, though nothing is in them yet."""
        state = self._state.topics.get(item.state.topic.id & ~NAMES_TOPIC)
        if state is not None and item.state.topic.is_internal:
            state.cover(state.first + highest_number(item.payload, item.lengths) + 1)

    def apply_entry(self, entry: LogEntry) -> None:
        """Apply a committed entry other than records."""
        state = self._state
        match entry.kind:
            case EntryKind.CATALOG:
                operation, *fields = msgpack.unpackb(entry.body)
                if operation == "put":
                    topic_id, name, queues, options, created_ms, first, end = fields
                    topic = StoredTopic(topic_id, name, queues, TopicOptions.from_dict(options), created_ms)
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
                state.trim(entry.topic_id, *positions(entry.body), entry.check)
            case EntryKind.DELETE:
                queues, offsets = positions(entry.body)
                if is_due_topic(entry.topic_id):  # who cancels has seen that they are there
                    needed = np.ones(len(queues), np.bool_)
                    self._count_delayed(-len(queues))
                    state.space_changes += 1
                    state.due_losses += 1
                else:
                    needed = state.delete(entry.topic_id, queues, offsets, entry.check)
                if needed.any():
                    keys = queue_keys(entry.topic_id | TOMBSTONE_TOPIC, queues[needed])
                    self._apply_tombstones(entry, keys, offsets[needed])
            case EntryKind.DOCUMENT:
                hand = state.documents.get(HAND)
                state.documents.apply(entry.body)
                if state.documents.get(HAND) is not hand:
                    state.space_changes += 1
                    state.due_losses += 1
            case EntryKind.PRODUCER:
                state.producers.record(*epoch_of(entry))
            case EntryKind.EPOCH:
                state.epochs.append(epoch_start(entry, self._source))
            case _:
                raise damaged(
                    self._source, f"the log entry at LSN {entry.lsn} has unknown kind {entry.kind}", entry.lsn
                )
        self._applied(entry.end_lsn, entry.time_ms)

    def _apply_tombstones(self, entry: LogEntry, keys: U64, offsets: I64) -> None:
        zeros = np.zeros(len(keys), np.uint32)
        flags = np.full(len(keys), Flag.TOMBSTONE, np.uint8)
        memtable = self._tables.room_for(0, len(keys))
        memtable.apply(entry.end_lsn, keys, offsets, zeros, entry.time_ms, memoryview(b""), {Column.FLAGS: flags})


def _with_expiry(item: PendingRecords) -> Columns:
    """The columns with the moments at which records expire in place of their times to live, which the log holds.

    What is above ``MAX_TTL_MS`` there is a moment already. The topic may shorten them, as its options stand at this
    place of the log: so it is the same on all replicas. A message that comes later keeps what it was sent with: a time
    to live begins when it comes into its queue.
    """
    limit = item.state.topic.options.ttl_ms
    given = item.optional.get(Column.EXPIRES_MS)
    ttls = np.zeros(len(item.keys), np.int64) if given is None else given
    expires = np.where((ttls > 0) & (ttls <= MAX_TTL_MS), ttls + item.stored_ms, ttls)
    if limit is not None:
        latest = item.stored_ms + min(limit, MAX_TTL_MS)
        expires = np.minimum(np.where(expires == 0, latest, expires), latest)
    if item.is_delayed:
        expires = np.where(item.keys < DUE, expires, ttls)
    item.state.will_expire(item.touched, item.ends)
    return {**item.optional, Column.EXPIRES_MS: expires}


class DelayedPlaces:
    """Where the records of a batch lie of which some come later, or make others go that would have.

    Attributes:
        keys, offsets: offsets of records that are in queues at once are still to be given.
        later: which come later.
        first_due_ms: when the first of those does.
        added: how many more are pending with the batch.
        here: rows of the records that are in queues at once.
        targets: the column TARGET.
    """

    __slots__ = ("added", "first_due_ms", "here", "keys", "later", "offsets", "targets")

    def __init__(self, topic_id: int, batch: RecordBatch, columns: BatchColumns, stored_ms: int, lsn: int) -> None:
        values: I64 = columns.optional[Column.DUE_MS]
        flags = columns.optional.get(Column.FLAGS)
        gone = np.zeros(len(values), np.bool_) if flags is None else (flags & Flag.TOMBSTONE) != 0
        due = due_times(values, stored_ms)
        self.later = (due > 0) & ~gone
        queues = queue_keys(topic_id, columns.queues)
        self.keys: U64 = np.where(self.later, due_keys(due), queues)
        self.offsets: I64 = np.arange(len(values), dtype=np.int64) + lsn
        if gone.any():
            given = decode_column(batch.buffer, batch.directory.get(Column.OFFSET), len(values), DTYPES[Column.OFFSET])
            self.keys[gone] = due_keys(values[gone]) | SHADOW
            self.offsets[gone] = given[gone]
        self.here: I64 = np.flatnonzero(~self.later & ~gone)
        self.targets: U64 = np.where(self.later, queues, np.uint64(0))
        self.added = int(np.count_nonzero(self.later)) - int(np.count_nonzero(gone))
        self.first_due_ms = int(due[self.later].min(initial=LAST_DUE_MS))


def _prepare_delayed(
    state: TopicState, batch: RecordBatch, columns: BatchColumns, payload: memoryview, stored_ms: int, lsn: int
) -> PendingRecords:
    places = DelayedPlaces(state.topic.id, batch, columns, stored_ms, lsn)
    touched, ends = _NOWHERE, _NOWHERE
    if len(places.here):
        index = columns.queues[places.here] - np.uint32(state.first)
        if state.named:
            state.make_room(int(index.max()) + 1)
        places.offsets[places.here], touched, ends = assign_offsets(index, state.next, state.scratch)
    optional = {column: each for column, each in columns.optional.items() if column != Column.DUE_MS}
    optional[Column.TARGET] = places.targets
    return PendingRecords(
        0,
        state,
        places.keys,
        places.offsets,
        columns.lengths,
        stored_ms,
        payload,
        optional,
        touched,
        ends,
        columns.producer,
        places.offsets,
        True,
        places.added,
        places.first_due_ms,
    )


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
    position = batch.directory.get(Column.PRODUCER_POSITION)
    mark = fingerprint(topic_id, batch)
    said = -1 if position is None else wrap_signed(position[2])
    return BatchKey(batch.producer_id, batch.producer_epoch, batch.sequence, mark, said)


def epoch_of(entry: LogEntry) -> tuple[int, StoredBatch]:
    """The producer that an entry of kind PRODUCER is about, and the epoch that begins, as what it stored."""
    producer_id, epoch, position = msgpack.unpackb(entry.body)
    return producer_id, StoredBatch(epoch, -1, 0, entry.end_lsn, entry.time_ms, _NOWHERE, position)


def positions(raw: bytes) -> tuple[NDArray[np.uint32], I64]:
    """Queues and offsets of an entry that names places."""
    batch = RecordBatch(raw, source="log entry")
    return (
        decode_column(raw, batch.directory.get(Column.QUEUE), batch.record_count, DTYPES[Column.QUEUE]),
        decode_column(raw, batch.directory.get(Column.OFFSET), batch.record_count, DTYPES[Column.OFFSET]),
    )
