"""The write path: group commit, and applying what is committed.

``write`` takes all that is in line (see :mod:`.line`), whoever put it there, and writes it with one write and one
fdatasync. ``advance`` applies what is committed: only now is it in the memtable and seen by readers. On a node of
its own what is written is committed, and ``commit`` does both. On a replica the high watermark says what is
committed; between the two an entry may still be truncated, and nobody has seen it. There one thread writes while
another applies. What only a replica's writer does is in :mod:`.replica_writer`.

A thread that is torn out of writing or applying, by whatever exception, leaves log, memtable and state between two
entries: the shard stops, and is right again once it is opened again. Each step says that it is under way before it
begins, so that this is seen even where the exception struck twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lsmq import runtime
from lsmq.errors import ClientClosed, LsmqError, TimedOut

from .applier import Applier, PendingEntry, PendingRecords
from .columns import U32
from .disk import Buffer
from .epochs import EpochStart, epoch_start, needed
from .failures import FULL, WANT, again, disk_failed, torn, want
from .line import Appended, Line, Pending, Written, end_of
from .options import FlushMode, StoreOptions
from .segments import SegmentFiles
from .state import ShardState
from .stats import Counters
from .wal import Entry, EntryKind
from .wal_stream import EntryStream

Result = TypeVar("Result")


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
        epochs: list[EpochStart] | None = None,
    ) -> None:
        """Args:
        tail: what the log holds above ``applied_lsn``, where a replica does not know what is committed.
        epochs: the log's history, as far as it is needed.
        """
        self._path = path
        self._options = options
        self._state = state
        self._segments = segments
        self._applier = applier
        self._counters = counters
        self.line = line
        self.replicated = replicated
        self._lock = runtime.Lock()  # one writes at a time
        self._apply_lock = runtime.Lock()  # one applies at a time; taken after the other where both are
        self._advanced = runtime.Condition()
        self._written: deque[Written] = deque(tail or ())
        self.written_lsn = self.durable_lsn = line.end_lsn
        self._received_lsn = line.end_lsn
        self._stream: EntryStream | None = None
        self.epochs: list[EpochStart] = list(epochs or ())
        self.committed_lsn = line.end_lsn if applied_lsn is None else applied_lsn
        self._writing = False  # guarded by _lock: whoever takes it and finds it set comes after one that was torn out
        self._applying = False  # guarded by _apply_lock, likewise
        self._cuts = 0
        self._stopped: LsmqError | None = None
        self._closed = False
        self._listeners: list[Callable[[Committed], None]] = []
        self.after_write: Callable[[int, int], None] = lambda lsn, size: None
        self.after_apply: Callable[[int], None] = lambda lsn: None
        #: Between write and sync: from where to where, the bytes, and the end of each entry in them.
        self.on_written: Callable[[int, int, bytearray, list[int]], None] = lambda lsn, end_lsn, piece, ends: None
        #: A follower: an entry came that is stamped with this time.
        self.saw_time: Callable[[int], None] = lambda time_ms: None
        self.on_durable: Callable[[int], None] = lambda lsn: None
        self.before_truncate: Callable[[], None] = lambda: None
        self.on_disk_full: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None
        line.check_open = self.check_open
        line.committed_lsn = lambda: self.committed_lsn
        if replicated:
            line.close()

    @property
    def stopped(self) -> bool:
        """Whether a failure of the disk has ended all writing."""
        return self._stopped is not None

    def check_open(self) -> None:
        """Raises what stopped the shard, or ``ClientClosed``."""
        if self._stopped is not None:
            raise again(self._stopped)
        if self._closed:
            raise ClientClosed(f"the store {self._path} is closed")

    def add_listener(self, listener: Callable[[Committed], None]) -> None:
        self._listeners.append(listener)

    def sync_now(self) -> None:
        """Asynchronous mode: make durable what is written by now. Raises ``OSError``."""
        lsn, cuts = self.written_lsn, self._cuts
        self._segments.sync()
        with self._lock:
            if cuts == self._cuts:  # else what was synced may be gone
                self._note_durable(max(self.durable_lsn, lsn))

    def sync_to(self, lsn: int) -> None:
        """Return once the log is on the disk up to ``lsn``, which is applied, whatever the mode. Raises ``OSError``."""
        if self.durable_lsn < lsn:
            self.sync_now()

    @property
    def promised_lsn(self) -> int:
        """How far the log is as durable as the flush mode promises."""
        return self.durable_lsn if self._options.flush_mode is FlushMode.SYNC else self.written_lsn

    def _note_durable(self, lsn: int) -> None:
        self.durable_lsn = self.line.durable_lsn = lsn

    # -- write and commit --------------------------------------------------------------------------------

    def commit(self) -> int:
        """Write and sync all that is in line, and apply it where writing is committing. Returns the committed LSN.

        Raises ``DiskFull`` when what was in line had to be dropped for want of space, ``ShardStopped`` when the disk
        failed.
        """
        with self._lock:
            self._commit()
            return self.committed_lsn

    def between_entries(self, work: Callable[[], Result]) -> Result:
        """Do ``work``, on the memtable or the state, while nothing is applied."""
        with self._apply_lock:
            return self._apply_whole(work)

    def wait(self, appended: Appended, timeout: float | None = None) -> None:
        """Return once the write is committed, leading the group commit if nobody else does.

        Raises what made it fail, or ``TimedOut`` when nobody else has committed it after ``timeout`` seconds: then it
        may still happen.
        """
        while not self.is_committed(appended):
            with self._lock:
                if not self.is_committed(appended):
                    self._commit()
            if self.replicated:
                with self._advanced:
                    if not self._advanced.wait_for(lambda: self.is_committed(appended), timeout):
                        message = f"the write at LSN {appended.lsn} is not committed after {timeout} s; it may still be"
                        raise TimedOut(message)

    def is_committed(self, appended: Appended) -> bool:
        """Raises what made the write fail."""
        # First: the LSNs of a write that failed are given again, but only after its round has ended.
        committed_lsn = self.committed_lsn
        appended.fate.check(appended.lsn)
        return appended.lsn <= committed_lsn

    def _commit(self) -> None:
        with self._whole():
            self._write_line()
        if not self.replicated:
            with self._apply_lock:
                self._advance(self.written_lsn)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What changes the log is done whole, or the shard stops. The body sets ``_writing``; ``_lock`` is held."""
        if self._writing:
            raise self._torn(None)
        try:
            yield
        except BaseException as error:
            if self._writing:
                self._torn(error)
            raise

    def _write_line(self) -> None:
        self.check_open()
        if self.line.closed is not None:
            return
        self._writing = True
        lsn, buffer, pending = self.line.take()
        if pending:
            self._write_pending(lsn, buffer, pending)
        self._writing = False

    def _write_pending(self, lsn: int, buffer: bytearray, pending: list[Pending]) -> None:
        end_lsn = lsn + len(buffer)
        self._write(lsn, buffer, lsn)
        if self.replicated:
            # Others may have it from here on, so a failed sync does not take it back: it stops the shard.
            self.on_written(lsn, end_lsn, buffer, [end_of(item) for item in pending])
        self._sync(end_lsn)
        with self.line.lock:
            self._written.extend(pending)
        for item in pending:
            if isinstance(item, PendingEntry) and item.entry.kind == EntryKind.EPOCH:
                self._epoch_begins(item.entry)
        self.written_lsn = self._received_lsn = end_lsn
        self._counters.commits += 1
        self._counters.committed_entries += len(pending)
        self.after_write(end_lsn, len(buffer))
        self.on_durable(self.promised_lsn)

    def _epoch_begins(self, entry: Entry) -> None:
        start = epoch_start(entry, str(self._path))
        self.epochs = needed([*self.epochs, start], self._segments.begins_lsn)

    def _write(self, lsn: int, buffer: Buffer, kept_lsn: int) -> None:
        """Put bytes at their place. When that fails the log ends at ``kept_lsn``.

        A full disk is survived only where nothing of the write can stay behind.
        """
        end_lsn = lsn + len(buffer)
        try:
            self._segments.prepare_all(lsn, end_lsn)
        except OSError as error:
            raise self._write_failed(error, kept_lsn, survivable=True) from error
        try:
            self._segments.write(lsn, buffer)
        except OSError as error:
            raise self._write_failed(error, kept_lsn, survivable=self._taken_back(error, lsn, end_lsn)) from error

    def _sync(self, lsn: int) -> None:
        """Make the log durable up to ``lsn``, if the flush mode promises it."""
        if self._options.flush_mode is FlushMode.SYNC:
            try:
                self._segments.sync()
            except OSError as error:
                raise self._write_failed(error, self.written_lsn, survivable=False) from error
            self._note_durable(lsn)

    def _taken_back(self, error: OSError, lsn: int, end_lsn: int) -> bool:
        """Erase what was written of a write that did not fit: a recovery must not find what is reported dropped."""
        if error.errno not in WANT:
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
        with self._apply_lock:
            self._advance(lsn)
            return self.committed_lsn

    def _advance(self, lsn: int) -> None:
        self._apply_whole(lambda: self._apply_written(lsn))

    def _apply_whole(self, work: Callable[[], Result]) -> Result:
        """What changes the memtable or the state is done whole, or the shard stops. ``_apply_lock`` is held."""
        if self._applying:
            raise self._torn(None)
        try:
            self._applying = True
            result = work()
            self._applying = False
        except BaseException as error:  # durable, but not readable: what comes next must not be built on it
            failure = self._torn(error)
            if isinstance(error, Exception):
                raise failure from error
            raise
        return result

    def _apply_written(self, lsn: int) -> None:
        touched: list[tuple[int, U32]] = []
        reached = self.committed_lsn
        written = self._written
        while written and end_of(written[0]) <= lsn:
            reached = end_of(written[0])
            self._apply(written[0], touched)
        if reached > self.committed_lsn:
            self.committed_lsn = reached
            self.after_apply(reached)
            self._tell(Committed(reached, self.line.round, touched))
            if self.replicated:
                with self._advanced:
                    self._advanced.notify_all()

    def _apply(self, item: Written, touched: list[tuple[int, U32]]) -> None:
        """Apply the oldest of what is written, and forget it there in the same step."""
        match item:
            case PendingRecords():
                if item.producer is None:
                    self._applier.apply_records(item)
                    with self.line.lock:
                        self._written.popleft()
                else:
                    with self.line.lock:
                        self._applier.apply_records(item)
                        self.line.landed(item)
                        self._written.popleft()
                touched.append(item.touched_queues())
            case PendingEntry():
                with self.line.lock:
                    self._applier.apply_entry(item.entry)
                    self._written.popleft()
            case Entry():
                with self.line.lock:
                    records = self._applier.replay(item)
                    self._written.popleft()
                if records is not None:
                    touched.append(records.touched_queues())

    # -- failures ----------------------------------------------------------------------------------------

    def _write_failed(self, error: OSError, lsn: int, *, survivable: bool) -> LsmqError:
        """Drop all that is in line. Want of space or of a descriptor may be survived; else the shard stops."""
        survived = survivable and error.errno in WANT
        failure = want(self._path, error) if survived else disk_failed(self._path, error)
        self._drop_line(failure, lsn, stop=not survived)
        if survived and error.errno in FULL:
            self.on_disk_full()
        return failure

    def _torn(self, error: BaseException | None) -> LsmqError:
        """Stop: what was under way was left in the middle, by ``error``. Returns what the shard has stopped with."""
        if self._stopped is None:
            self._drop_line(torn(self._path, error), self.written_lsn, stop=True)
        assert self._stopped is not None
        return self._stopped

    def _drop_line(self, failure: LsmqError, lsn: int, *, stop: bool) -> None:
        """Drop all that is in line and go on at ``lsn``, or stop. The caller holds ``_lock`` or ``_apply_lock``."""
        if stop:
            self._stopped = failure  # first: nothing goes on after this, wherever it ends
        kept_lsn = self.committed_lsn if stop else self.written_lsn
        with self.line.lock:
            ended = self.line.restart(lsn, self._unapplied(), kept_lsn, failure)
        self._writing = False
        self._tell(Committed(kept_lsn, ended, [], failure))
        with self._advanced:
            self._advanced.notify_all()
        if stop:
            self.on_stop()

    def _unapplied(self) -> list[PendingRecords]:
        """Records that are written and keep their offsets, whatever happens to the line."""
        return [item for item in self._written if isinstance(item, PendingRecords)]

    def stop(self, failure: LsmqError) -> None:
        """Take no more writes: background work found the disk unusable."""
        with self._lock:
            if self._stopped is None:
                self._drop_line(failure, self.written_lsn, stop=True)

    def let_go(self, reason: LsmqError) -> None:
        """This is a forked child: take no more writes. Whoever held a lock is not here to release it."""
        self._stopped = reason
        self._lock, self._apply_lock, self._advanced = runtime.Lock(), runtime.Lock(), runtime.Condition()
        self.line.lock = runtime.Lock()

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
