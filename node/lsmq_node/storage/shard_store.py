"""The storage engine of a shard: write-ahead log, memtable, tables, and the state that goes with them.

A write goes three steps. ``append`` checks it, gives its records their offsets and puts the log entry in line;
it never touches the disk. ``commit`` writes all that is in line with one write and one fdatasync, whoever made
it (group commit), and then *applies* it: only now is it in the memtable and seen by readers. So whatever is
readable is durable, and an entry that was never committed is dropped by forgetting it.

Flushing and merging run in threads of their own (see :mod:`.maintenance`).

Not supported: two processes on one directory (see :mod:`.lock`).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from lsmq.errors import (
    ClientClosed,
    CorruptFile,
    DiskFull,
    InvalidBatch,
    InvalidRequest,
    LsmqError,
    MessageTooLarge,
    OffsetOutOfRange,
    ShardStopped,
    TimedOut,
    TopicExists,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.record_batch import Column, RecordBatch, encode_batch

from .columns import DTYPES, I64, OPTIONAL, U32, Columns, assign_offsets, decode_column, queue_key, queue_keys, wrap64
from .disk import Clock, Disk, OsDisk, SystemClock
from .maintenance import Maintenance
from .memtable import SortedRecords
from .options import FlushMode, StoreOptions
from .reader import FileRange, Slice, concatenate, encode_records, read_memtables_many, read_queue
from .recovery import Opened, Replay, open_directory
from .state import Stored, Topic, TopicOptions, TopicState, check_topic_name
from .stats import Counters, StoreStats
from .wal import Appender, Entry, EntryKind, encode_entry_header

MAX_QUEUES = 16_000_000


@dataclass(frozen=True, slots=True)
class Appended:
    """A write in line. Pass it to :meth:`ShardStore.wait`, or wait for ``lsn`` of the same ``round``."""

    lsn: int
    round: int
    offsets: I64
    stored_ms: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit made visible.

    Attributes:
        lsn: everything appended below it in this ``round`` is committed.
        touched: topic ids and the queues of each that got records.
        error: set when what was in line above ``lsn`` has failed; the next appends belong to ``round + 1``.
    """

    lsn: int
    round: int
    touched: list[tuple[int, U32]]
    error: LsmqError | None = None


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
    producer: tuple[int, int, int] | None

    def stored(self) -> Stored:
        """The answer to remember for the producer's batch."""
        assert self.producer is not None
        return Stored(self.producer[2], self.end_lsn, self.stored_ms, self.offsets)


class _BatchColumns:
    """The columns of a producer's batch that the store looks at."""

    __slots__ = ("lengths", "optional", "queues")

    def __init__(self, batch: RecordBatch) -> None:
        """Raises ``InvalidBatch`` for a batch without records."""
        if batch.record_count == 0:
            raise InvalidBatch("a batch has at least one record")
        self.queues: U32 = self._decode(batch, Column.QUEUE)
        self.lengths: U32 = self._decode(batch, Column.LENGTH)
        self.optional: Columns = {
            column: self._decode(batch, column) for column in OPTIONAL if column in batch.directory
        }

    @staticmethod
    def _decode(batch: RecordBatch, column: Column) -> Any:
        return decode_column(batch.buffer, batch.directory.get(column), batch.record_count, DTYPES[column])


@dataclass(slots=True)
class PendingEntry:
    """Any other entry in line."""

    entry: Entry


class ShardStore:
    """One shard's store. Thread-safe. Use :meth:`open`; close it, or use it as a context manager."""

    def __init__(self, path: Path, options: StoreOptions, disk: Disk, clock: Clock, opened: Opened) -> None:
        self.path = path
        self.options = options
        self.counters = Counters()
        self._clock = clock
        self._state = opened.state
        self._segments = opened.segments
        self._lock_file = opened.lock
        self._append_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._pending: list[PendingRecords | PendingEntry] = []
        self._inflight: dict[int, list[Stored]] = {}
        self._committed_lsn = self._durable_lsn = opened.manifest.flushed_lsn
        self._round = 0
        self._failures: dict[int, tuple[int, LsmqError]] = {}
        self._epoch = 0
        self._stopped: LsmqError | None = None
        self._closed = False
        self._listeners: list[Callable[[Committed], None]] = []
        self._maintenance = Maintenance(self, disk, clock, opened)
        self._replay(Replay(opened, path, disk))
        self._appender = Appender(self._committed_lsn, opened.manifest.segment_bytes)

    @classmethod
    def open(
        cls,
        path: Path | str,
        options: StoreOptions | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> ShardStore:
        """Open or make the store in a directory, recovering what was acknowledged.

        Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``UnsupportedFormat`` or ``CorruptFile``.
        """
        options = options or StoreOptions()
        options.validate()
        disk, clock, path = disk or OsDisk(), clock or SystemClock(), Path(path)
        opened = open_directory(path, options, disk)
        try:
            store = cls(path, options, disk, clock, opened)
        except BaseException:
            opened.segments.close()
            opened.lock.release()
            raise
        store._maintenance.start()
        return store

    def _replay(self, replay: Replay) -> None:
        """Apply what the log holds beyond the last flush."""
        started = self._clock.monotonic()
        for entry in replay:
            if entry.kind == EntryKind.RECORDS:
                self._replay_records(entry)
            else:
                self._maintenance.apply_entry(entry)
            self._epoch = max(self._epoch, entry.epoch)
        replay.finish()
        self._committed_lsn = self._durable_lsn = replay.end_lsn
        self._maintenance.committed(replay.end_lsn, 0)
        self.counters.recovered_entries = replay.entries
        self.counters.recovery_seconds = self._clock.monotonic() - started
        self.counters.records_written = self.counters.bytes_written = 0

    def _replay_records(self, entry: Entry) -> None:
        state = self._state.topics.get(entry.topic_id)
        if state is None:
            return  # written to a topic in the moment it was deleted
        batch = RecordBatch(entry.body, source=f"{self.path} LSN {entry.lsn}")
        pending = self._prepare(state, batch, entry.time_ms, entry.end_lsn)
        if wrap64(int(pending.offsets.sum())) != entry.check:
            raise CorruptFile(
                f"{self.path}: the log entry at LSN {entry.lsn} was given other offsets when it was written; the "
                "checkpoint and the log do not belong together. Restore this directory from a replica or a backup; "
                "nothing was changed.",
                file=str(self.path),
                position=entry.lsn,
            )
        self._apply_records(pending)

    def __enter__(self) -> ShardStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- topics ------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        queues: int,
        options: TopicOptions | None = None,
        *,
        topic_id: int | None = None,
        first: int = 0,
        end: int | None = None,
    ) -> Topic:
        """Make a topic, or return the equal one that is there. Durable on return.

        Args:
            queues: logical queues of the topic, over all shards.
            topic_id: where a cluster gives the ids; by default the next free one.
            first, end: the queues this shard holds; by default all.

        Raises ``TopicExists`` when it is there with other queues or options.
        """
        check_topic_name(name)
        options = options or TopicOptions()
        end = queues if end is None else end
        if not 1 <= queues <= MAX_QUEUES:
            raise InvalidRequest(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}", topic=name, limit=MAX_QUEUES)
        with self._append_lock:
            existing = self._state.by_name.get(name)
            if existing is not None:
                return self._same_topic(existing.topic, queues, options)
            topic = Topic(topic_id or self._state.next_topic_id, name, queues, options, self._clock.now_ms())
            self._state.next_topic_id = max(self._state.next_topic_id, topic.id + 1)
            appended = self._append_topic(topic, first, end)
        self.wait(appended)
        return self.topic(name)

    def _same_topic(self, topic: Topic, queues: int, options: TopicOptions) -> Topic:
        if topic.queues != queues or topic.options != options:
            raise TopicExists(
                f"topic {topic.name!r} exists with {topic.queues} queues and {topic.options.to_dict()}; delete it "
                "first, or create it with the same options",
                topic=topic.name,
                queues=topic.queues,
                options=topic.options.to_dict(),
            )
        return topic

    def _append_topic(self, topic: Topic, first: int, end: int) -> Appended:
        fields = [topic.id, topic.name, topic.queues, topic.options.to_dict(), topic.created_ms, first, end]
        return self._append_entry(EntryKind.CATALOG, topic.id, 0, msgpack.packb(["put", *fields]))

    def grow_topic(self, name: str, queues: int) -> Topic:
        """Give a topic more queues at its end. Durable on return; no effect when it has that many."""
        with self._append_lock:
            state = self._topic_state_by_name(name)
            if queues <= state.end:
                return state.topic
            old = state.topic
            topic = Topic(old.id, old.name, queues, old.options, old.created_ms)
            appended = self._append_topic(topic, state.first, queues)
        self.wait(appended)
        return self.topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages; their space comes back with the next merges. Durable on return."""
        with self._append_lock:
            topic = self._topic_state_by_name(name).topic
            appended = self._append_entry(EntryKind.CATALOG, topic.id, 0, msgpack.packb(["drop", topic.id]), frees_space=True)
        self.wait(appended)

    def topic(self, name: str) -> Topic:
        """Raises ``UnknownTopic``."""
        return self._topic_state_by_name(name).topic

    def topic_by_id(self, topic_id: int) -> Topic:
        """Raises ``UnknownTopic``."""
        return self._topic_state(topic_id).topic

    def topics(self) -> list[Topic]:
        return [state.topic for state in list(self._state.topics.values())]

    def _topic_state_by_name(self, name: str) -> TopicState:
        state = self._state.by_name.get(name)
        if state is None:
            raise UnknownTopic(f"there is no topic {name!r}; create it first", topic=name)
        return state

    def _topic_state(self, topic_id: int) -> TopicState:
        state = self._state.topics.get(topic_id)
        if state is None:
            raise UnknownTopic(f"there is no topic with id {topic_id}", topic_id=topic_id)
        return state

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, topic_id: int, batch: RecordBatch) -> Appended:
        """Check a batch, give its records offsets and put it in line. Never touches the disk.

        Raises ``UnknownTopic``, ``UnknownQueue``, ``InvalidBatch``, ``MessageTooLarge``, ``StoreBusy``,
        ``DiskFull``, ``ShardStopped``, ``OutOfOrderSequence``, ``StaleSequence`` or ``UnknownProducer``.
        """
        return self.append_many(((topic_id, batch),))[0]

    def append_many(self, items: Sequence[tuple[int, RecordBatch]]) -> list[Appended]:
        """:meth:`append` for batches that belong together: they are committed, or dropped, together."""
        checked = []
        for topic_id, batch in items:
            state = self._topic_state(topic_id)
            columns = _BatchColumns(batch)
            self._check_batch(state, batch, columns)
            checked.append((state, batch, columns))
        with self._append_lock:
            self._check_open()
            self._maintenance.admit(sum(len(batch.payload) for _, batch, _ in checked))
            return [self._append_records(state, batch, columns) for state, batch, columns in checked]

    def _append_records(self, state: TopicState, batch: RecordBatch, columns: _BatchColumns) -> Appended:
        if batch.producer_id:
            repeat = self._find_repeat(batch)
            if repeat is not None:
                return Appended(repeat.lsn, self._round, repeat.offsets, repeat.stored_ms, duplicate=True)
        stored_ms = self._clock.now_ms()
        pending = self._prepare(state, batch, stored_ms, 0, columns)
        check = wrap64(int(pending.offsets.sum()))
        topic_id = state.topic.id
        header = encode_entry_header(
            EntryKind.RECORDS, self._epoch, self._durable_lsn, stored_ms, topic_id, batch.record_count, check
        )
        _, end_lsn = self._appender.append(b"".join((header, batch.buffer[: batch.total_bytes])))
        pending.end_lsn = end_lsn
        if pending.producer is not None:
            self._inflight.setdefault(batch.producer_id, []).append(pending.stored())
        self._pending.append(pending)
        return Appended(end_lsn, self._round, pending.offsets, stored_ms)

    def _prepare(
        self,
        state: TopicState,
        batch: RecordBatch,
        stored_ms: int,
        end_lsn: int,
        columns: _BatchColumns | None = None,
    ) -> PendingRecords:
        """Give the records their offsets; the same for a new batch and for one read back from the log."""
        columns = columns or _BatchColumns(batch)
        index = columns.queues - np.uint32(state.first) if state.first else columns.queues
        offsets, touched, ends = assign_offsets(index, state.next)
        producer = (batch.producer_id, batch.producer_epoch, batch.sequence) if batch.producer_id else None
        return PendingRecords(
            end_lsn,
            state,
            queue_keys(state.topic.id, columns.queues),
            offsets,
            columns.lengths,
            stored_ms,
            batch.payload,
            columns.optional,
            touched,
            ends,
            producer,
        )

    def _check_batch(self, state: TopicState, batch: RecordBatch, columns: _BatchColumns) -> None:
        topic, queues, lengths = state.topic, columns.queues, columns.lengths
        headers = columns.optional.get(Column.HEADER_LENGTH)
        if headers is not None and (headers > lengths).any():
            raise InvalidBatch("a record's header is longer than the record")
        low, high = int(queues.min()), int(queues.max())
        if low < state.first or high >= state.end:
            queue = low if low < state.first else high
            raise UnknownQueue(
                f"topic {topic.name!r} has queues 0 to {topic.queues - 1}; there is no queue {queue} here",
                topic=topic.name,
                queue=queue,
                queues=topic.queues,
            )
        if int(lengths.sum(dtype=np.int64)) != len(batch.payload):
            raise InvalidBatch(
                f"the records' lengths add up to {int(lengths.sum(dtype=np.int64))} bytes, the payload has "
                f"{len(batch.payload)}"
            )
        limit = min(topic.options.max_message_bytes or self.options.max_message_bytes, self.options.max_message_bytes)
        longest = int(lengths.max())
        if longest > limit:
            raise MessageTooLarge(
                f"a message of {longest} bytes (body, key, tag and properties) is over the limit of {limit}; send "
                "it in parts, or raise max_message_bytes",
                limit=limit,
                size=longest,
            )
        if len(batch.payload) > self.options.memtable_bytes // 2:
            raise MessageTooLarge(
                f"a batch of {len(batch.payload)} bytes is over the limit of {self.options.memtable_bytes // 2} "
                "(half of memtable_bytes); send smaller batches",
                limit=self.options.memtable_bytes // 2,
                size=len(batch.payload),
            )

    def _find_repeat(self, batch: RecordBatch) -> Stored | None:
        inflight = self._inflight.get(batch.producer_id)
        if inflight:
            for stored in inflight:
                if stored.sequence == batch.sequence:
                    return stored
            if batch.sequence == inflight[-1].sequence + 1:
                return None
        return self._state.producers.check(batch.producer_id, batch.producer_epoch, batch.sequence)

    def _append_entry(
        self, kind: EntryKind, topic_id: int, count: int, body: bytes, *, frees_space: bool = False
    ) -> Appended:
        """Put an entry other than records in line. The append lock is held."""
        self._check_open()
        if not frees_space:
            self._maintenance.admit(len(body))
        now = self._clock.now_ms()
        header = encode_entry_header(kind, self._epoch, self._durable_lsn, now, topic_id, count, 0)
        lsn, end_lsn = self._appender.append(header + body)
        entry = Entry(lsn, end_lsn, kind, self._epoch, self._durable_lsn, now, topic_id, count, 0, body)
        self._pending.append(PendingEntry(entry))
        return Appended(end_lsn, self._round, np.empty(0, np.int64), now)

    def _check_open(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._closed:
            raise ClientClosed(f"the store {self.path} is closed")

    def delete(self, topic_id: int, queues: U32, offsets: I64) -> Appended:
        """Delete messages: they are not read any more, and their space comes back with merges."""
        return self._append_positions(EntryKind.DELETE, topic_id, queues, offsets)

    def trim(self, topic_id: int, queues: U32 | int, offsets: I64 | int) -> Appended:
        """Move log starts up: messages below are gone. Never moves one down or beyond the end."""
        return self._append_positions(
            EntryKind.TRIM, topic_id, np.atleast_1d(np.asarray(queues)), np.atleast_1d(np.asarray(offsets))
        )

    def commit_offsets(
        self, group: str, topic_id: int, queues: U32, offsets: I64, *, reset: bool = False
    ) -> Appended:
        """Set a group's committed offsets. Without ``reset`` an offset never goes back."""
        batch = self._positions_batch(topic_id, queues, offsets)
        with self._append_lock:
            body = msgpack.packb([group, batch, reset])
            return self._append_entry(EntryKind.OFFSETS, topic_id, len(queues), body)

    def _append_positions(self, kind: EntryKind, topic_id: int, queues: U32, offsets: I64) -> Appended:
        batch = self._positions_batch(topic_id, queues, offsets)
        with self._append_lock:
            return self._append_entry(kind, topic_id, len(queues), batch, frees_space=True)

    def _positions_batch(self, topic_id: int, queues: U32, offsets: I64) -> bytes:
        state = self._topic_state(topic_id)
        if len(queues) == 0 or len(queues) != len(offsets):
            raise InvalidRequest(f"{len(queues)} queues and {len(offsets)} offsets: give one offset for each queue")
        low, high = int(np.min(queues)), int(np.max(queues))
        if low < state.first or high >= state.end:
            raise UnknownQueue(
                f"topic {state.topic.name!r} has queues 0 to {state.topic.queues - 1}, not {low} to {high}",
                topic=state.topic.name,
                queues=state.topic.queues,
            )
        latest = state.committed[np.asarray(queues, np.int64) - state.first]
        wrong = (np.asarray(offsets) > latest) | (np.asarray(offsets) < 0)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise OffsetOutOfRange(
                f"offset {int(offsets[at])} is not within queue {int(queues[at])} of topic {state.topic.name!r}, "
                f"which ends at {int(latest[at])}",
                topic=state.topic.name,
                queue=int(queues[at]),
                earliest=0,
                latest=int(latest[at]),
            )
        return encode_batch(
            len(queues), {Column.QUEUE: np.asarray(queues).tolist(), Column.OFFSET: np.asarray(offsets).tolist()}, b""
        )

    # -- committing --------------------------------------------------------------------------------------

    @property
    def committed_lsn(self) -> int:
        """Everything below is durable as the flush mode promises, applied and readable."""
        return self._committed_lsn

    @property
    def durable_lsn(self) -> int:
        """How far the log is known to be on the disk."""
        return self._durable_lsn

    def synced(self, lsn: int) -> None:
        """Asynchronous mode: the log is on the disk up to ``lsn``."""
        self._durable_lsn = max(self._durable_lsn, lsn)

    @property
    def stopped(self) -> bool:
        """Whether a failure of the disk has ended all writing."""
        return self._stopped is not None

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def on_commit(self, listener: Callable[[Committed], None]) -> None:
        """Call ``listener`` after each commit, in the committing thread. It must be quick and not raise."""
        self._listeners.append(listener)

    def commit(self) -> int:
        """Write, sync and apply all that is in line. Returns the committed LSN.

        Raises ``DiskFull`` when what was in line had to be dropped for want of space, ``ShardStopped`` when
        the disk failed.
        """
        with self._commit_lock:
            return self._commit()

    def wait(self, appended: Appended, timeout: float | None = None) -> None:
        """Return once the write is committed, leading the group commit if nobody else does.

        Raises what made it fail, or ``TimedOut`` after ``timeout`` seconds: then it may still happen.
        """
        while not self._is_committed(appended):
            if not self._commit_lock.acquire(timeout=-1 if timeout is None else timeout):
                raise TimedOut(f"the write at LSN {appended.lsn} is not committed after {timeout} s")
            try:
                if not self._is_committed(appended):
                    self._commit()
            finally:
                self._commit_lock.release()

    def _is_committed(self, appended: Appended) -> bool:
        failure = self._failures.get(appended.round)
        if failure is not None and appended.lsn > failure[0]:
            raise failure[1]
        return appended.round < self._round or appended.lsn <= self._committed_lsn

    def _commit(self) -> int:
        with self._append_lock:
            if self._stopped is not None:
                raise self._stopped
            pending, self._pending = self._pending, []
            lsn, buffer = self._appender.take()
        if not pending:
            return self._committed_lsn
        end_lsn = lsn + len(buffer)
        try:
            self._segments.prepare(end_lsn)
            self._segments.write(lsn, buffer)
            if self.options.flush_mode is FlushMode.SYNC:
                self._segments.sync()
                self._durable_lsn = end_lsn
        except OSError as error:
            self._commit_failed(error, lsn)
        touched = self._apply(pending)
        self._committed_lsn = end_lsn
        counters = self.counters
        counters.commits += 1
        counters.committed_entries += len(pending)
        self._maintenance.committed(end_lsn, len(buffer))
        self._tell(Committed(end_lsn, self._round, touched))
        return end_lsn

    def _commit_failed(self, error: OSError, lsn: int) -> None:
        """Drop all that is in line. A full disk is survived; after any other failure the shard stops."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        failure: LsmqError
        if full:
            failure = DiskFull(
                f"no space is left for the log of {self.path}; free some or add a disk. Reads go on, and writes "
                "are taken again when there is space.",
                path=str(self.path),
            )
        else:
            failure = ShardStopped(
                f"writing the log of {self.path} failed: {error}. Nothing more is written, since what the disk "
                "holds is not known; check the disk and restart the node.",
                path=str(self.path),
            )
        self._fail(failure, lsn, stop=not full)
        raise failure from error

    def _fail(self, failure: LsmqError, lsn: int, *, stop: bool) -> None:
        with self._append_lock:
            self._pending = []
            self._inflight.clear()
            for state in self._state.topics.values():
                np.copyto(state.next, state.committed)
            self._appender.reset(lsn)
            self._failures[self._round] = (self._committed_lsn, failure)
            self._failures.pop(self._round - 64, None)
            if stop:
                self._stopped = failure
            else:
                self._maintenance.disk_is_full()
            round_failed, self._round = self._round, self._round + 1
        self._tell(Committed(self._committed_lsn, round_failed, [], failure))

    def stop(self, failure: LsmqError) -> None:
        """Take no more writes: a background sync or flush found the disk unusable."""
        with self._commit_lock:
            self._fail(failure, self._committed_lsn, stop=True)

    def _tell(self, committed: Committed) -> None:
        for listener in self._listeners:
            listener(committed)

    def _apply(self, pending: list[PendingRecords | PendingEntry]) -> list[tuple[int, U32]]:
        touched: list[tuple[int, U32]] = []
        for item in pending:
            if isinstance(item, PendingRecords):
                self._apply_records(item)
                first = np.uint32(item.state.first)
                touched.append((item.state.topic.id, item.touched + first if first else item.touched))
            else:
                with self._append_lock:
                    self._maintenance.apply_entry(item.entry)
        return touched

    def _apply_records(self, item: PendingRecords) -> None:
        memtable = self._maintenance.room_for(len(item.payload), len(item.keys))
        memtable.apply(
            item.end_lsn, item.keys, item.offsets, item.lengths, item.stored_ms, item.payload, item.optional
        )
        item.state.committed[item.touched] = item.ends
        item.state.version += 1
        if item.producer is not None:
            producer_id, epoch, _ = item.producer
            with self._append_lock:
                self._state.producers.record(producer_id, epoch, item.stored())
                inflight = self._inflight.get(producer_id)
                if inflight:
                    inflight.pop(0)
                    if not inflight:
                        del self._inflight[producer_id]
        counters = self.counters
        counters.records_written += len(item.keys)
        counters.bytes_written += len(item.payload)
        self._maintenance.applied(item.end_lsn)

    # -- reading -----------------------------------------------------------------------------------------

    def bounds(self, topic_id: int, queue: int) -> tuple[int, int]:
        """First offset kept and next offset to be read of a queue. Raises ``UnknownTopic``, ``UnknownQueue``."""
        state = self._topic_state(topic_id)
        if not state.first <= queue < state.end:
            raise UnknownQueue(
                f"topic {state.topic.name!r} has queues 0 to {state.topic.queues - 1}; there is no queue {queue} here",
                topic=state.topic.name,
                queue=queue,
                queues=state.topic.queues,
            )
        return int(state.start[queue - state.first]), int(state.committed[queue - state.first])

    def latest_offsets(self, topic_id: int, queues: U32 | None = None) -> I64:
        """The next offset a reader will see of each queue; of all of them when ``queues`` is None."""
        state = self._topic_state(topic_id)
        return self._values(state, state.committed, queues)

    def earliest_offsets(self, topic_id: int, queues: U32 | None = None) -> I64:
        """The first offset kept of each queue; of all of them when ``queues`` is None."""
        state = self._topic_state(topic_id)
        return self._values(state, state.start, queues)

    def _values(self, state: TopicState, values: I64, queues: U32 | None) -> I64:
        if queues is None:
            return values[: state.end - state.first].copy()
        wanted = np.asarray(queues, np.int64)
        if len(wanted) and not (state.first <= wanted.min() and wanted.max() < state.end):
            raise UnknownQueue(
                f"topic {state.topic.name!r} has queues 0 to {state.topic.queues - 1}, not {int(wanted.min())} to "
                f"{int(wanted.max())}",
                topic=state.topic.name,
                queues=state.topic.queues,
            )
        return values[wanted - state.first]

    def read(self, topic_id: int, queue: int, offset: int, *, max_records: int = 1000, max_bytes: int = 1 << 20) -> Slice:
        """Records of a queue from ``offset`` on, at least one when there is one.

        Raises ``OffsetOutOfRange`` with ``earliest`` and ``latest`` unless ``offset`` is between them,
        ``CorruptFile`` when a table is damaged.
        """
        earliest, latest = self.bounds(topic_id, queue)
        if not earliest <= offset <= latest:
            topic = self.topic_by_id(topic_id).name
            raise OffsetOutOfRange(
                f"offset {offset} is not in queue {queue} of topic {topic!r}, which holds {earliest} to {latest - 1} "
                f"(next: {latest})",
                topic=topic,
                queue=queue,
                earliest=earliest,
                latest=latest,
            )
        found = Slice(queues=np.array((queue,), np.uint32))
        next_offset = self._read_into(found, topic_id, queue, offset, latest, max_records, max_bytes)
        found.next_offsets = np.array((next_offset,), np.int64)
        return found

    def read_many(
        self, topic_id: int, queues: U32, offsets: I64, *, max_records: int = 1000, max_bytes: int = 1 << 20
    ) -> Slice:
        """Records of many queues; cost follows what is returned. Queues are served in the order given.

        An offset below the earliest starts at the earliest; one at or beyond the latest finds nothing.
        """
        state = self._topic_state(topic_id)
        latest = self._values(state, state.committed, queues)
        starts = np.maximum(offsets, self._values(state, state.start, queues))
        active = np.flatnonzero(starts < latest)
        found = Slice()
        if len(active) == 0:
            return found
        if len(active) > 1 and not state.deletes:
            fast = self._read_memtable(topic_id, queues[active], starts[active], max_records, max_bytes)
            if fast is not None:
                return fast
        moved, positions = [], []
        for at in active.tolist():
            if found.record_count >= max_records or found.size_bytes >= max_bytes:
                break
            queue = int(queues[at])
            position = self._read_into(
                found,
                topic_id,
                queue,
                int(starts[at]),
                int(latest[at]),
                max_records - found.record_count,
                max_bytes - found.size_bytes,
            )
            moved.append(queue)
            positions.append(position)
        found.queues, found.next_offsets = np.array(moved, np.uint32), np.array(positions, np.int64)
        return found

    def _read_memtable(self, topic_id: int, queues: U32, starts: I64, max_records: int, max_bytes: int) -> Slice | None:
        """The fast way: all that is wanted is in the newest memtable. One batch for any number of queues."""
        count = min(len(queues), max_records)
        order = np.argsort(queues[:count], kind="stable")
        wanted, offsets = queues[:count][order], starts[:count][order]
        if (wanted[1:] == wanted[:-1]).any():
            return None
        many = read_memtables_many(self._maintenance.version, queue_keys(topic_id, wanted), offsets, max_records)
        if many is None:
            return None
        records, owners = many
        sizes = np.cumsum(records.columns[Column.LENGTH], dtype=np.int64)
        keep = max(1, int(np.searchsorted(sizes, max_bytes, side="right")))
        if keep < len(records):
            columns = {column: values[:keep] for column, values in records.columns.items()}
            records = SortedRecords(records.keys[:keep], columns, records.payload[: int(sizes[keep - 1])])
            owners = owners[:keep]
        lasts = np.append(np.flatnonzero(owners[1:] != owners[:-1]), len(owners) - 1)
        part = encode_records(records)
        return Slice(
            [part],
            wanted[owners[lasts]],
            records.columns[Column.OFFSET][lasts] + 1,
            len(records),
            len(part),
        )

    def _read_into(
        self, found: Slice, topic_id: int, queue: int, offset: int, latest: int, max_records: int, max_bytes: int
    ) -> int:
        if offset >= latest:
            return offset
        state = self._topic_state(topic_id)
        while True:
            version = self._maintenance.version
            try:
                read = read_queue(
                    version,
                    queue_key(topic_id, queue),
                    offset,
                    latest,
                    max_records,
                    max_bytes,
                    deletes=state.deletes > 0,
                )
                break
            except FileNotFoundError as error:  # merged away between choosing and opening the table
                if self._maintenance.version is version:
                    raise self._maintenance.missing_table(error) from error
        small: list[SortedRecords] = []
        for part in read.parts:
            if isinstance(part, FileRange):
                if small:
                    found.parts.append(encode_records(concatenate(small)))
                    small = []
                found.parts.append(part)
            else:
                small.append(part)
        if small:
            found.parts.append(encode_records(concatenate(small)))
        found.record_count += read.record_count
        found.size_bytes += read.size_bytes
        self.counters.records_read += read.record_count
        return read.next_offset

    def offset_for_time(self, topic_id: int, queue: int, time_ms: int) -> int:
        """First offset of the queue stored at or after ``time_ms``; the latest offset when there is none."""
        low, high = self.bounds(topic_id, queue)
        while low < high:
            middle = (low + high) // 2
            found = self.read(topic_id, queue, middle, max_records=1, max_bytes=1)
            first = next((batch for batch in found.batches() if batch.record_count), None)
            if first is None:
                high = middle
                continue
            offsets, stored = first.column(Column.OFFSET), first.column(Column.STORED_MS)
            at = next((i for i, offset in enumerate(offsets) if offset >= middle), len(offsets) - 1)
            if stored[at] >= time_ms:
                high = middle
            else:
                low = offsets[at] + 1
        return low

    def committed_offsets(self, group: str, topic_id: int, queues: U32 | None = None) -> I64:
        """A group's committed offsets; -1 where it has none."""
        state = self._topic_state(topic_id)
        values = self._state.offsets.get((group, topic_id))
        count = state.end - state.first
        whole = np.zeros(count, np.int64)
        if values is not None:
            known = min(count, len(values))
            whole[:known] = values[:known]
        whole -= 1
        return whole if queues is None else self._values(state, whole, queues)

    def groups(self) -> list[str]:
        """Names of the groups that have committed offsets here."""
        return sorted({group for group, _ in list(self._state.offsets)})

    # -- the rest ----------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """Counts how often what was in line has failed and was dropped."""
        return self._round

    def next_offset(self, topic_id: int, queue: int) -> int:
        """The offset the next record appended to the queue will get; committed or not."""
        state = self._topic_state(topic_id)
        return int(state.next[queue - state.first])

    def wait_for_room(self, timeout: float) -> None:
        """Block while writes would be refused with ``StoreBusy``, ``timeout`` seconds at most."""
        self._maintenance.wait_for_room(timeout)

    @property
    def pressure(self) -> str:
        """``ok``, ``slow`` (writers should pause for a moment) or ``refuse``."""
        return self._maintenance.pressure()

    def flush(self) -> None:
        """Commit, write all that is in memory to tables, and return when that is done."""
        with self._append_lock:
            self._check_open()
        with self._commit_lock:
            self._commit()
            self._maintenance.freeze()
        self._maintenance.wait_flushed()
        self._check_open()

    def compact(self) -> None:
        """Flush, and return when no merge is due any more."""
        self.flush()
        self._maintenance.wait_merged()

    def stats(self) -> StoreStats:
        """Counters and gauges for ``/metrics``."""
        return self._maintenance.stats()

    def close(self) -> None:
        """Commit what is in line, stop the background threads and release the directory."""
        if self._closed:
            return
        try:
            with self._commit_lock:
                if self._stopped is None:
                    self._commit()
                self._closed = True
        finally:
            self._closed = True
            self._maintenance.close()
            if self._stopped is None:
                self._segments.sync()
            self._segments.close()
            self._lock_file.release()

