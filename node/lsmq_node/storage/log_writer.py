"""The write path: group commit, and applying what is committed.

``write`` takes all that is in line (see :mod:`.line`), whoever put it there, and writes it with one write and one
fdatasync. ``advance`` applies what is committed: only now is it in the memtable and seen by readers. On a node of
its own what is written is committed, and ``commit`` does both. On a replica the high watermark says what is
committed; between the two an entry may still be truncated, and nobody has seen it.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lsmq.errors import ClientClosed, CorruptFile, DiskFull, InvalidRequest, LsmqError, ShardStopped, TimedOut

from .applier import Applier, PendingEntry, PendingRecords
from .columns import U32
from .line import Appended, Line, Pending
from .options import FlushMode, StoreOptions
from .segments import SegmentFiles
from .state import ShardState
from .stats import Counters
from .wal import Entry, EntryKind
from .wal_stream import EntryStream

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REMEMBERED_ROUNDS = 64

Written = Pending | Entry
"""On disk and not applied: as it came from a producer here, or raw, as it came from a leader or from the log."""


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


class LogWriter:
    """Thread-safe."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        state: ShardState,
        segments: SegmentFiles,
        applier: Applier,
        counters: Counters,
        line: Line,
        *,
        replicated: bool = False,
        applied_lsn: int | None = None,
        tail: list[Entry] | None = None,
        epochs: list[tuple[int, int]] | None = None,
    ) -> None:
        """Args:
        tail: what the log holds above ``applied_lsn``, where a replica does not know what is committed.
        epochs: the log's history: leader epochs, and the LSN at which each begins.
        """
        self._path = path
        self._options = options
        self._state = state
        self._segments = segments
        self._applier = applier
        self._counters = counters
        self.line = line
        self.replicated = replicated
        self._lock = threading.Lock()  # one writes or applies at a time
        self._advanced = threading.Condition()
        self._written: deque[Written] = deque(tail or ())
        self.written_lsn = self.durable_lsn = line.end_lsn
        self._received_lsn = line.end_lsn
        self._stream: EntryStream | None = None
        self.epochs: list[tuple[int, int]] = list(epochs or ())
        self.committed_lsn = line.end_lsn if applied_lsn is None else applied_lsn
        self._failures: dict[int, tuple[int, LsmqError]] = {}
        self._stopped: LsmqError | None = None
        self._closed = False
        self._listeners: list[Callable[[Committed], None]] = []
        self.after_write: Callable[[int, int], None] = lambda lsn, size: None
        self.on_disk_full: Callable[[], None] = lambda: None
        line.check_open = self.check_open

    @property
    def stopped(self) -> bool:
        """Whether a failure of the disk has ended all writing."""
        return self._stopped is not None

    def check_open(self) -> None:
        """Raises what stopped the shard, or ``ClientClosed``."""
        if self._stopped is not None:
            raise self._stopped
        if self._closed:
            raise ClientClosed(f"the store {self._path} is closed")

    def add_listener(self, listener: Callable[[Committed], None]) -> None:
        self._listeners.append(listener)

    def synced(self, lsn: int) -> None:
        """Asynchronous mode: the log is on the disk up to ``lsn``."""
        self._note_durable(max(self.durable_lsn, lsn))

    @property
    def promised_lsn(self) -> int:
        """How far the log is as durable as the flush mode promises."""
        return self.durable_lsn if self._options.flush_mode is FlushMode.SYNC else self.written_lsn

    def _note_durable(self, lsn: int) -> None:
        self.durable_lsn = self.line.durable_lsn = lsn

    # -- write and commit --------------------------------------------------------------------------------

    def commit(self, then: Callable[[], None] | None = None) -> int:
        """Write and sync all that is in line, and apply it where writing is committing.

        ``then`` runs before anything else is applied. Returns the committed LSN. Raises ``DiskFull`` when what was
        in line had to be dropped for want of space, ``ShardStopped`` when the disk failed.
        """
        with self._lock:
            self._commit()
            if then is not None:
                then()
            return self.committed_lsn

    def wait(self, appended: Appended, timeout: float | None = None) -> None:
        """Return once the write is committed, leading the group commit if nobody else does.

        Raises what made it fail, or ``TimedOut`` after ``timeout`` seconds: then it may still happen.
        """
        while not self.is_committed(appended):
            if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
                raise self._timed_out(appended, timeout)
            try:
                if not self.is_committed(appended):
                    self._commit()
            finally:
                self._lock.release()
            if self.replicated:
                with self._advanced:
                    if not self._advanced.wait_for(lambda: self.is_committed(appended), timeout):
                        raise self._timed_out(appended, timeout)

    def _timed_out(self, appended: Appended, timeout: float | None) -> TimedOut:
        return TimedOut(f"the write at LSN {appended.lsn} is not committed after {timeout} s; it may still be")

    def is_committed(self, appended: Appended) -> bool:
        """Raises what made the write fail."""
        failure = self._failures.get(appended.round)
        if failure is not None and appended.lsn > failure[0]:
            raise failure[1]
        return appended.lsn <= self.committed_lsn or (appended.round < self.line.round and not self.replicated)

    def _commit(self) -> None:
        self._write_line()
        if not self.replicated:
            self._advance(self.written_lsn)

    def _write_line(self) -> None:
        lsn, buffer, pending = self.line.take()
        if not pending:
            return
        end_lsn = lsn + len(buffer)
        self._write(lsn, end_lsn, buffer)
        self._written.extend(pending)
        for item in pending:
            if isinstance(item, PendingEntry) and item.entry.kind == EntryKind.EPOCH:
                self.epochs.append((item.entry.epoch, item.entry.lsn))
        self.written_lsn = self._received_lsn = end_lsn
        self._counters.commits += 1
        self._counters.committed_entries += len(pending)
        self.after_write(end_lsn, len(buffer))

    def _write(self, lsn: int, end_lsn: int, buffer: bytearray) -> None:
        """Write and sync. A full disk is survived only where nothing of the write can stay behind."""
        try:
            self._segments.prepare_all(lsn, end_lsn)
        except OSError as error:
            raise self._write_failed(error, lsn, survivable=True) from error
        try:
            self._segments.write(lsn, buffer)
        except OSError as error:
            raise self._write_failed(error, lsn, survivable=self._taken_back(error, lsn, end_lsn)) from error
        if self._options.flush_mode is FlushMode.SYNC:
            try:
                self._segments.sync()
            except OSError as error:
                raise self._write_failed(error, lsn, survivable=False) from error
            self._note_durable(end_lsn)

    def _taken_back(self, error: OSError, lsn: int, end_lsn: int) -> bool:
        """Erase what was written of a write that did not fit: a recovery must not find what is reported dropped."""
        if error.errno not in _FULL:
            return False
        try:
            self._segments.erase(lsn, end_lsn)
        except OSError:
            return False
        return True

    # -- apply -------------------------------------------------------------------------------------------

    def advance(self, lsn: int) -> int:
        """A replica: everything below ``lsn`` is committed; apply it. Never goes back. Returns the committed LSN.

        Raises ``ShardStopped`` when something committed cannot be applied.
        """
        with self._lock:
            self._advance(lsn)
            return self.committed_lsn

    def _advance(self, lsn: int) -> None:
        touched: list[tuple[int, U32]] = []
        reached = self.committed_lsn
        written = self._written
        try:
            while written and _end_of(written[0]) <= lsn:
                reached = _end_of(written[0])
                self._apply(written[0], touched)
                written.popleft()
        except Exception as error:  # durable, but not readable: what comes next must not be built on it
            failure = error if isinstance(error, LsmqError) else self._failure(error)
            self._drop_line(failure, self.written_lsn, stop=True)
            raise failure from error
        if reached > self.committed_lsn:
            self.committed_lsn = reached
            self._tell(Committed(reached, self.line.round, touched))
            if self.replicated:
                with self._advanced:
                    self._advanced.notify_all()

    def _apply(self, item: Written, touched: list[tuple[int, U32]]) -> None:
        match item:
            case PendingRecords():
                if item.producer is None:
                    self._applier.apply_records(item)
                else:
                    with self.line.lock:
                        self._applier.apply_records(item)
                        self.line.landed(item)
                touched.append(item.touched_queues())
            case PendingEntry():
                with self.line.lock:
                    self._applier.apply_entry(item.entry)
            case Entry():
                with self.line.lock:
                    records = self._applier.replay(item)
                if records is not None:
                    touched.append(records.touched_queues())

    # -- following a leader ------------------------------------------------------------------------------

    def receive(self, lsn: int, piece: bytes | memoryview) -> int:
        """A follower: put the leader's bytes at their place, not synced. Returns the LSN after the last whole entry.

        Bytes that are here already are passed over. Raises ``InvalidRequest`` when bytes are missing before
        ``lsn``, ``CorruptFile`` when the bytes are damaged (none of them counts then), and what a failed write does.
        """
        with self._lock:
            self.check_open()
            if self._stream is None:
                self._stream = EntryStream(self.written_lsn, self._segments.segment_bytes, str(self._path))
            stream = self._stream
            if lsn > stream.end_lsn:
                raise InvalidRequest(f"the log ends at LSN {stream.end_lsn}; bytes came for LSN {lsn}")
            fresh = memoryview(piece)[stream.end_lsn - lsn :]
            if not fresh:
                return stream.lsn
            at, end_lsn = stream.end_lsn, stream.end_lsn + len(fresh)
            try:
                entries = list(stream.feed(fresh))
            except CorruptFile:
                self._stream = None
                raise
            self._put(at, end_lsn, fresh)
            for entry in entries:
                self._note_epoch(entry)
            self._written.extend(entries)
            self.written_lsn = stream.lsn
            self._received_lsn = end_lsn
            self._counters.commits += 1
            self._counters.committed_entries += len(entries)
            self.after_write(stream.lsn, len(fresh))
            return stream.lsn

    def _put(self, lsn: int, end_lsn: int, piece: memoryview) -> None:
        try:
            self._segments.prepare_all(lsn, end_lsn)
            self._segments.write(lsn, piece)
        except OSError as error:
            self._stream = None
            raise self._write_failed(
                error, self.written_lsn, survivable=self._taken_back(error, lsn, end_lsn)
            ) from error

    def sync(self) -> int:
        """Make what was received durable, as the flush mode promises; returns how far it is."""
        with self._lock:
            self.check_open()
            if self._options.flush_mode is FlushMode.SYNC and self.durable_lsn < self.written_lsn:
                reached = self.written_lsn
                try:
                    self._segments.sync()
                except OSError as error:
                    raise self._write_failed(error, reached, survivable=False) from error
                self._note_durable(reached)
            return self.promised_lsn

    def truncate(self, lsn: int) -> None:
        """Forget the log from ``lsn``, the start of an entry, on. Durable on return.

        Raises ``InvalidRequest`` for what is applied: that is committed, and never goes.
        """
        with self._lock:
            self.check_open()
            if lsn < self.committed_lsn:
                raise InvalidRequest(f"the log is committed up to LSN {self.committed_lsn}; it cannot end at {lsn}")
            end_lsn = max(self.written_lsn, self._received_lsn)
            while self._written and _end_of(self._written[-1]) > lsn:
                self._written.pop()
            self.epochs = [(epoch, start) for epoch, start in self.epochs if start < lsn]
            with self.line.lock:
                self.line.restart(lsn, self._unapplied())
            self._stream = None
            self.written_lsn = self._received_lsn = lsn
            self._note_durable(min(self.durable_lsn, lsn))
            try:
                self._segments.erase(lsn, end_lsn)
            except OSError as error:
                raise self._write_failed(error, lsn, survivable=False) from error

    def begin_epoch(self, epoch: int) -> Appended:
        """A new leader: note in the log that its epoch begins here. Entries of before are committed with it."""
        with self._lock:
            if self.written_lsn != self._received_lsn:
                raise InvalidRequest("the log ends in the middle of an entry; truncate it first")
            if epoch <= self.line.epoch:
                raise InvalidRequest(f"epoch {epoch} is not above {self.line.epoch}")
            self._stream = None
            with self.line.lock:
                self.line.restart(
                    self.written_lsn, [item for item in self._written if isinstance(item, PendingRecords)]
                )
                self.line.epoch = epoch
                return self.line.append_entry(EntryKind.EPOCH, 0, 0, b"")

    def _note_epoch(self, entry: Entry) -> None:
        if entry.kind == EntryKind.EPOCH:
            self.epochs.append((entry.epoch, entry.lsn))
            with self.line.lock:
                self.line.epoch = max(self.line.epoch, entry.epoch)

    # -- failures ----------------------------------------------------------------------------------------

    def _write_failed(self, error: OSError, lsn: int, *, survivable: bool) -> LsmqError:
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
            failure = self._failure(error)
        self._drop_line(failure, lsn, stop=not full)
        return failure

    def _failure(self, error: Exception) -> ShardStopped:
        return ShardStopped(
            f"writing the log of {self._path} failed: {error}. Nothing more is written, since what the disk "
            "holds is not known; check the disk and restart the node.",
            path=str(self._path),
        )

    def _drop_line(self, failure: LsmqError, lsn: int, *, stop: bool) -> None:
        with self.line.lock:
            ended = self.line.restart(lsn, self._unapplied())
            self._failures[ended] = (self.written_lsn if not stop else self.committed_lsn, failure)
            self._failures.pop(ended - _REMEMBERED_ROUNDS, None)
            if stop:
                self._stopped = failure
        if not stop:
            self.on_disk_full()
        self._tell(Committed(self._failures[ended][0], ended, [], failure))
        with self._advanced:
            self._advanced.notify_all()

    def _unapplied(self) -> list[PendingRecords]:
        """Records that are written and keep their offsets, whatever happens to the line."""
        return [item for item in self._written if isinstance(item, PendingRecords)]

    def stop(self, failure: LsmqError) -> None:
        """Take no more writes: background work found the disk unusable."""
        with self._lock:
            if self._stopped is None:
                self._drop_line(failure, self.written_lsn, stop=True)

    def _tell(self, committed: Committed) -> None:
        for listener in self._listeners:
            listener(committed)

    def close(self) -> None:
        """Commit what is in line and take no more. Raises what made that fail."""
        with self._lock:
            try:
                if self._stopped is None and not self._closed:
                    self._commit()
            finally:
                self._closed = True


def _end_of(item: Written) -> int:
    return item.entry.end_lsn if isinstance(item, PendingEntry) else item.end_lsn
