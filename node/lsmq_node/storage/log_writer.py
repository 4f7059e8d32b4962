"""The write path: append, group commit, apply.

``append`` checks a batch, gives its records offsets and puts the log entry in line; it never touches the disk.
``commit`` writes all that is in line with one write and one fdatasync, whoever made it, and then applies it:
only now is it in the memtable and seen by readers. So whatever is readable is durable, and an entry that was
never committed is dropped by forgetting it.

What is in line shares one fate, called a *round*: when the disk is full all of it is dropped, its offsets are
given back, and the next append begins a new round.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lsmq.errors import (
    ClientClosed,
    DiskFull,
    InvalidBatch,
    LsmqError,
    MessageTooLarge,
    ShardStopped,
    TimedOut,
    TooManyMessages,
    UnknownQueue,
)
from lsmq.record_batch import Column, RecordBatch

from .applier import Applier, BatchColumns, PendingEntry, PendingRecords
from .columns import I64, U32, wrap64
from .disk import Clock
from .options import FlushMode, StoreOptions
from .segments import SegmentFiles
from .state import ShardState, Stored, TopicState
from .stats import Counters
from .wal import Appender, Entry, EntryKind, encode_entry_header

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REMEMBERED_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Appended:
    """A write in line: wait for it with :meth:`LogWriter.wait`.

    Attributes:
        lsn: it is committed when the store's committed LSN reaches this, in the same ``round`` or a later one.
        offsets: one for each record of the batch.
        duplicate: a repeat of a batch that was stored before; the rest is the answer given then.
    """

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


class RoundOver(Exception):
    """What the writer built on was dropped with its round: look again."""


class LogWriter:
    """Thread-safe. ``admit`` is asked before a write of so many bytes is taken, and raises to refuse it."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        clock: Clock,
        state: ShardState,
        segments: SegmentFiles,
        applier: Applier,
        counters: Counters,
        lsn: int,
        epoch: int,
    ) -> None:
        self._path = path
        self._options = options
        self._clock = clock
        self._state = state
        self._segments = segments
        self._applier = applier
        self._counters = counters
        self._appender = Appender(lsn, segments.segment_bytes)
        self.lock = threading.Lock()  # guards what is in line, and the state appends look at
        self._commit_lock = threading.Lock()
        self._pending: list[PendingRecords | PendingEntry] = []
        self._inflight: dict[tuple[int, int], list[Stored]] = {}  # by producer id and epoch
        self.committed_lsn = self.durable_lsn = lsn
        self.round = 0
        self._failures: dict[int, tuple[int, LsmqError]] = {}
        self._epoch = epoch
        self._stopped: LsmqError | None = None
        self._closed = False
        self._listeners: list[Callable[[Committed], None]] = []
        self.admit: Callable[[int], None] = lambda size: None
        self.after_commit: Callable[[int, int], None] = lambda lsn, size: None
        self.on_disk_full: Callable[[], None] = lambda: None

    @property
    def stopped(self) -> bool:
        """Whether a failure of the disk has ended all writing."""
        return self._stopped is not None

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def add_listener(self, listener: Callable[[Committed], None]) -> None:
        self._listeners.append(listener)

    def synced(self, lsn: int) -> None:
        """Asynchronous mode: the log is on the disk up to ``lsn``."""
        self.durable_lsn = max(self.durable_lsn, lsn)

    # -- append ------------------------------------------------------------------------------------------

    def append_records(
        self, items: Sequence[tuple[TopicState, RecordBatch]], *, round_: int | None = None
    ) -> list[Appended]:
        """Put batches in line, to be committed or dropped together; only in ``round_`` where it is given.

        Raises ``RoundOver``, ``UnknownQueue``, ``InvalidBatch``, ``MessageTooLarge``, ``OutOfOrderSequence``,
        ``StaleSequence``, ``UnknownProducer``, ``ShardStopped``, or what ``admit`` raises.
        """
        for _, batch in items:
            self._check_count(batch)
        columns = [BatchColumns(batch) for _, batch in items]
        for (state, batch), parsed in zip(items, columns, strict=True):
            self._check_batch(state, batch, parsed)
        with self.lock:
            self.check_open()
            if round_ is not None and round_ != self.round:
                raise RoundOver
            repeats = [self._find_repeat(batch) if batch.producer_id else None for _, batch in items]
            if None in repeats:
                self.admit(sum(len(batch.payload) for _, batch in items))
            return [
                self._append_records(state, batch, parsed)
                if repeat is None
                else Appended(repeat.lsn, self.round, repeat.offsets, repeat.stored_ms, duplicate=True)
                for (state, batch), parsed, repeat in zip(items, columns, repeats, strict=True)
            ]

    def _append_records(self, state: TopicState, batch: RecordBatch, columns: BatchColumns) -> Appended:
        stored_ms = self._clock.now_ms()
        pending = self._applier.prepare(state, batch, columns, stored_ms)
        check = wrap64(int(pending.offsets.sum()))
        count, topic_id = batch.record_count, state.topic.id
        header = encode_entry_header(
            EntryKind.RECORDS, self._epoch, self.durable_lsn, stored_ms, topic_id, count, check
        )
        _, end_lsn = self._appender.append(b"".join((header, batch.buffer[: batch.total_bytes])))
        pending.end_lsn = end_lsn
        if pending.producer is not None:
            self._inflight.setdefault(pending.producer[:2], []).append(pending.stored())
        self._pending.append(pending)
        return Appended(end_lsn, self.round, pending.offsets, stored_ms)

    def append_entry(self, kind: EntryKind, topic_id: int, count: int, body: bytes) -> Appended:
        """Put an entry other than records in line. The caller holds ``lock``."""
        self.check_open()
        now = self._clock.now_ms()
        header = encode_entry_header(kind, self._epoch, self.durable_lsn, now, topic_id, count, 0)
        lsn, end_lsn = self._appender.append(header + body)
        entry = Entry(lsn, end_lsn, kind, self._epoch, self.durable_lsn, now, topic_id, count, 0, body)
        self._pending.append(PendingEntry(entry))
        return Appended(end_lsn, self.round, np.empty(0, np.int64), now)

    def check_open(self) -> None:
        """Raises what stopped the shard, or ``ClientClosed``."""
        if self._stopped is not None:
            raise self._stopped
        if self._closed:
            raise ClientClosed(f"the store {self._path} is closed")

    def _check_count(self, batch: RecordBatch) -> None:
        """Before columns are decoded: records may cost no byte of the batch, but they cost memory here."""
        limit = self._options.max_batch_records
        if batch.record_count > limit:
            raise TooManyMessages(
                f"a batch of {batch.record_count} records is over the limit of {limit} (a record for each 32 bytes "
                "of memtable_bytes); send smaller batches",
                limit=limit,
                count=batch.record_count,
            )

    def _check_batch(self, state: TopicState, batch: RecordBatch, columns: BatchColumns) -> None:
        topic, queues, lengths = state.topic, columns.queues, columns.lengths
        low, high = int(queues.min()), int(queues.max())
        if low < state.first or high >= state.end:
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
        flags = columns.optional.get(Column.FLAGS)
        if flags is not None and flags.any():
            raise InvalidBatch("a producer's record has flags set, which are the broker's to set")
        limit = self._options.max_message_bytes
        if topic.options.max_message_bytes is not None:
            limit = min(limit, topic.options.max_message_bytes)
        longest = int(lengths.max())
        if longest > limit:
            raise MessageTooLarge(
                f"a message of {longest} bytes (body, key, tag and properties) is over the limit of {limit}; send "
                "it in parts, or raise max_message_bytes",
                limit=limit,
                size=longest,
            )
        if total > self._options.max_batch_bytes:
            raise MessageTooLarge(
                f"a batch of {total} bytes is over the limit of {self._options.max_batch_bytes} (half of "
                "memtable_bytes); send smaller batches",
                limit=self._options.max_batch_bytes,
                size=total,
            )

    def _find_repeat(self, batch: RecordBatch) -> Stored | None:
        inflight = self._inflight.get((batch.producer_id, batch.producer_epoch))
        if inflight:
            for stored in inflight:
                if stored.sequence == batch.sequence:
                    return stored
            if batch.sequence == inflight[-1].sequence + 1:
                return None
        return self._state.producers.check(batch.producer_id, batch.producer_epoch, batch.sequence)

    # -- commit ------------------------------------------------------------------------------------------

    def commit(self, then: Callable[[], None] | None = None) -> int:
        """Write, sync and apply all that is in line; ``then`` runs before anything else is applied.

        Returns the committed LSN. Raises ``DiskFull`` when what was in line had to be dropped for want of
        space, ``ShardStopped`` when the disk failed.
        """
        with self._commit_lock:
            self._commit()
            if then is not None:
                then()
            return self.committed_lsn

    def wait(self, appended: Appended, timeout: float | None = None) -> None:
        """Return once the write is committed, leading the group commit if nobody else does.

        Raises what made it fail, or ``TimedOut`` after ``timeout`` seconds: then it may still happen.
        """
        while not self.is_committed(appended):
            if not self._commit_lock.acquire(timeout=-1 if timeout is None else timeout):
                raise TimedOut(f"the write at LSN {appended.lsn} is not committed after {timeout} s")
            try:
                if not self.is_committed(appended):
                    self._commit()
            finally:
                self._commit_lock.release()

    def is_committed(self, appended: Appended) -> bool:
        """Raises what made the write fail."""
        failure = self._failures.get(appended.round)
        if failure is not None and appended.lsn > failure[0]:
            raise failure[1]
        return appended.round < self.round or appended.lsn <= self.committed_lsn

    def _commit(self) -> None:
        with self.lock:
            if self._stopped is not None:
                raise self._stopped
            pending, self._pending = self._pending, []
            lsn, buffer = self._appender.take()
        if not pending:
            return
        end_lsn = lsn + len(buffer)
        self._write(lsn, end_lsn, buffer)
        try:
            touched = self._apply(pending)
        except Exception as error:  # durable, but not readable: what comes next must not be built on it
            failure = error if isinstance(error, LsmqError) else self._write_failure(error)
            self._drop_line(failure, end_lsn, stop=True)
            raise failure from error
        self.committed_lsn = end_lsn
        self._counters.commits += 1
        self._counters.committed_entries += len(pending)
        self.after_commit(end_lsn, len(buffer))
        self._tell(Committed(end_lsn, self.round, touched))

    def _write(self, lsn: int, end_lsn: int, buffer: bytearray) -> None:
        """Write and sync. A full disk is survived only where nothing of the write can stay behind."""
        try:
            self._segments.prepare_all(lsn, end_lsn)
        except OSError as error:
            raise self._commit_failed(error, lsn, survivable=True) from error
        try:
            self._segments.write(lsn, buffer)
        except OSError as error:
            raise self._commit_failed(error, lsn, survivable=self._taken_back(error, lsn, end_lsn)) from error
        if self._options.flush_mode is FlushMode.SYNC:
            try:
                self._segments.sync()
            except OSError as error:
                raise self._commit_failed(error, lsn, survivable=False) from error
            self.durable_lsn = end_lsn

    def _taken_back(self, error: OSError, lsn: int, end_lsn: int) -> bool:
        """Erase what was written of a write that did not fit: a recovery must not find what is reported dropped."""
        if error.errno not in _FULL:
            return False
        try:
            self._segments.erase(lsn, end_lsn)
        except OSError:
            return False
        return True

    def _apply(self, pending: list[PendingRecords | PendingEntry]) -> list[tuple[int, U32]]:
        touched: list[tuple[int, U32]] = []
        for item in pending:
            if isinstance(item, PendingRecords):
                if item.producer is None:
                    self._applier.apply_records(item)
                else:
                    with self.lock:
                        self._applier.apply_records(item)
                        self._landed(item.producer[:2])
                first = np.uint32(item.state.first)
                touched.append((item.state.topic.id, item.touched + first if first else item.touched))
            else:
                with self.lock:
                    self._applier.apply_entry(item.entry)
        return touched

    def _landed(self, producer: tuple[int, int]) -> None:
        inflight = self._inflight.get(producer)
        if inflight:
            inflight.pop(0)
            if not inflight:
                del self._inflight[producer]

    def _commit_failed(self, error: OSError, lsn: int, *, survivable: bool) -> LsmqError:
        """Drop all that is in line. A full disk may be survived; after any other failure the shard stops."""
        failure: LsmqError
        full = survivable and error.errno in _FULL
        if full:
            failure = DiskFull(
                f"no space is left for the log of {self._path}; free some or add a disk. Reads go on, and writes "
                "are taken again when there is space.",
                path=str(self._path),
            )
        else:
            failure = self._write_failure(error)
        self._drop_line(failure, lsn, stop=not full)
        return failure

    def _write_failure(self, error: Exception) -> ShardStopped:
        return ShardStopped(
            f"writing the log of {self._path} failed: {error}. Nothing more is written, since what the disk "
            "holds is not known; check the disk and restart the node.",
            path=str(self._path),
        )

    def _drop_line(self, failure: LsmqError, lsn: int, *, stop: bool) -> None:
        with self.lock:
            self._pending = []
            self._inflight.clear()
            for state in self._state.topics.values():
                np.copyto(state.next, state.committed)
            self._appender.reset(lsn)
            self._failures[self.round] = (self.committed_lsn, failure)
            self._failures.pop(self.round - _REMEMBERED_ROUNDS, None)
            if stop:
                self._stopped = failure
            failed_round, self.round = self.round, self.round + 1
        if not stop:
            self.on_disk_full()
        self._tell(Committed(self.committed_lsn, failed_round, [], failure))

    def stop(self, failure: LsmqError) -> None:
        """Take no more writes: background work found the disk unusable."""
        with self._commit_lock:
            if self._stopped is None:
                self._drop_line(failure, self.committed_lsn, stop=True)

    def _tell(self, committed: Committed) -> None:
        for listener in self._listeners:
            listener(committed)

    def close(self) -> None:
        """Commit what is in line and take no more. Raises what made that fail."""
        with self._commit_lock:
            try:
                if self._stopped is None and not self._closed:
                    self._commit()
            finally:
                self._closed = True
