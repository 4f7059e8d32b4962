"""The write path: what is in line gets into the log, and as far as it is durable it may be committed.

``commit`` takes all that is in line (see :mod:`.line`), whoever put it there, and writes it with one write and one
fdatasync; a follower puts its leader's bytes at their places (``receive``, ``sync``). What is written waits at the
:class:`.CommitPoint` until the store's commit rule says that it is committed. Until then it may be cut off again
(``truncate``, ``leave``), and nobody has seen it. A new leader notes where its epoch begins (``begin_epoch``).

A thread that is torn out of writing, by whatever exception, leaves the log between two entries: the shard stops, and is
right again once it is opened again. Each step says that it is under way before it begins, so that this is seen even
where the exception struck twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lsmq import runtime
from lsmq.errors import ClientClosed, CorruptFile, InvalidRequest, LsmqError, NotLeader, TimedOut

from .applier import PendingEntry
from .commit_point import CommitPoint, CommitRule, Committed
from .disk import Buffer
from .epochs import StoredEpochStart, encode_life, epoch_start, needed
from .failures import FULL, WANT, again, disk_failed, torn, want
from .line import Appended, Line, Pending, end_of, flags_of
from .options import StoreOptions
from .segments import SegmentFiles
from .stats import Counters
from .wal import EntryKind, LogEntry
from .wal_stream import EntryStream


class LogWriter:
    """Thread-safe."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        segments: SegmentFiles,
        counters: Counters,
        line: Line,
        commits: CommitPoint,
        rule: CommitRule,
        epochs: list[StoredEpochStart],
    ) -> None:
        """``epochs``: the log's history, as far as it is needed."""
        self._path = path
        self._options = options
        self._segments = segments
        self._counters = counters
        self.line = line
        self.commits = commits
        self._rule = rule
        self._lock = runtime.Lock()  # one writes at a time; guards what follows. Taken before that of commits
        self._writing = False  # whoever takes the lock and finds it set comes after one that was torn out
        self.written_lsn = self.durable_lsn = line.end_lsn
        #: How far the log is as durable as the flush mode of each entry promises.
        self.promised_lsn = line.end_lsn
        self._sync_to_lsn = line.end_lsn  # the end of the last entry that counts only once it is synced
        self._received_lsn = line.end_lsn
        self._stream: EntryStream | None = None
        self.epochs = epochs
        self._cuts = 0
        self._closed = False
        self._asked_disk_at: float | None = None  # when a write or sync began that has not ended
        self._stopped: LsmqError | None = None  # set once, by whoever holds a lock
        self.after_write: Callable[[int, int], None] = lambda lsn, size: None
        #: Between write and sync: from where to where, the bytes, and the end of each entry in them. Others may have
        #: it from here on.
        self.on_written: Callable[[int, int, bytes, list[int]], None] | None = None
        self.on_durable: Callable[[int], None] = lambda lsn: None
        #: A follower: an entry came that is stamped with this time.
        self.saw_time: Callable[[int], None] = lambda time_ms: None
        #: Of a log that was found damaged: what is done before anything goes. It may be done again, where it raises.
        self.before_truncate: Callable[[], None] = lambda: None
        self.on_disk_full: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None
        line.check_open = self.check_open
        commits.on_torn = self._torn
        if rule is CommitRule.AGREED:
            line.close()

    @property
    def stopped(self) -> bool:
        """Whether a failure of the disk has ended all writing."""
        return self._stopped is not None

    def disk_busy_s(self) -> float:
        """For how long the write or sync of the log has lasted that is under way; 0 where there is none."""
        began = self._asked_disk_at
        return 0.0 if began is None else runtime.monotonic() - began

    @contextmanager
    def _asking_disk(self) -> Iterator[None]:
        self._asked_disk_at = runtime.monotonic()
        try:
            yield
        finally:
            self._asked_disk_at = None

    def check_open(self) -> None:
        """Raises what stopped the shard, or ``ClientClosed``."""
        if self._stopped is not None:
            raise again(self._stopped)
        if self._closed:
            raise ClientClosed(f"the store {self._path} is closed")

    def sync_now(self) -> None:
        """Make durable what is written by now, whatever the mode. Raises ``OSError``."""
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
    def lags(self) -> bool:
        """Whether the log has what counts and is not on the disk yet."""
        return self._sync_to_lsn <= self.durable_lsn < self.written_lsn

    def _note_durable(self, lsn: int) -> None:
        self.durable_lsn = self.line.durable_lsn = lsn
        self.promised_lsn = max(self.promised_lsn, lsn)

    # -- a leader's writes --------------------------------------------------------------------------------

    def commit(self) -> int:
        """Write and sync all that is in line, and apply what is committed by that. Returns the committed LSN.

        Raises ``DiskFull`` when what was in line had to be dropped for want of space, ``ShardStopped`` when the disk
        failed.
        """
        with self._lock:
            self._commit()
            return self.commits.lsn

    def wait(self, appended: Appended, timeout: float | None = None) -> None:
        """Return once the write is committed, leading the group commit if nobody else does.

        Raises what made it fail, or ``TimedOut`` when nobody else has committed it after ``timeout`` seconds: then it
        may still happen.
        """
        if self.is_committed(appended):
            return
        with self._lock:
            if not self.is_committed(appended):
                self._commit()
        committed = self.is_committed(appended)
        if not committed and not self.commits.wait_for(lambda: self.is_committed(appended), timeout):
            message = f"the write at LSN {appended.lsn} is not committed after {timeout} s; it may still be"
            raise TimedOut(message)

    def is_committed(self, appended: Appended) -> bool:
        """Raises what made the write fail."""
        # First: the LSNs of a write that failed are given again, but only after its round has ended.
        committed_lsn = self.commits.lsn
        appended.fate.check(appended.lsn)
        return appended.lsn <= committed_lsn

    def _commit(self) -> None:
        with self._whole():
            self._write_line()
        reached = self._rule.reached(self.promised_lsn, self.commits.lsn)
        if reached > self.commits.lsn:
            self.commits.advance(reached)

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

    def _write_pending(self, lsn: int, buffer: bytes, pending: list[Pending]) -> None:
        assert lsn == self.written_lsn == self._received_lsn, "what is in line goes on where the log ends"
        end_lsn = lsn + len(buffer)
        self._write(lsn, buffer, lsn)
        if self.on_written is not None:
            self.on_written(lsn, end_lsn, buffer, [end_of(item) for item in pending])
        mode = self._options.flush_mode
        if any(mode.syncs(flags_of(item)) for item in pending):
            self._sync_to_lsn = end_lsn
        self._sync(end_lsn)
        self.commits.extend(pending)
        for item in pending:
            if isinstance(item, PendingEntry) and item.entry.kind == EntryKind.EPOCH:
                self._epoch_begins(item.entry)
        self.promised_lsn = end_lsn
        self._wrote(end_lsn, end_lsn, len(buffer), len(pending))
        self.on_durable(end_lsn)

    def _wrote(self, lsn: int, received_lsn: int, size: int, entry_count: int) -> None:
        self.written_lsn, self._received_lsn = lsn, received_lsn
        self._counters.commits += 1
        self._counters.committed_entries += entry_count
        self.after_write(lsn, size)

    def _epoch_begins(self, entry: LogEntry) -> None:
        start = epoch_start(entry, str(self._path))
        self.epochs = needed([*self.epochs, start], self._segments.begins_lsn)

    def _write(self, lsn: int, buffer: Buffer, kept_lsn: int) -> None:
        """Put bytes at their place. When that fails the log ends at ``kept_lsn``.

        A full disk is survived only where nothing of the write can stay behind.
        """
        end_lsn = lsn + len(buffer)
        try:
            with self._asking_disk():
                self._segments.prepare(lsn, end_lsn)
        except OSError as error:
            raise self._write_failed(error, kept_lsn, survivable=True) from error
        try:
            with self._asking_disk():
                self._segments.write(lsn, buffer)
        except OSError as error:
            raise self._write_failed(error, kept_lsn, survivable=self._taken_back(error, lsn, end_lsn)) from error

    def _sync(self, lsn: int) -> None:
        """Make the log durable up to ``lsn``, if anything in it counts only then."""
        if self.durable_lsn < self._sync_to_lsn:
            try:
                with self._asking_disk():
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

    # -- a follower's, and what is taken back -------------------------------------------------------------

    def receive(self, lsn: int, piece: bytes | memoryview) -> int:
        """A follower: put the leader's bytes at their place, not synced. Returns the LSN after the last whole entry.

        Bytes that are here already are passed over. Raises ``InvalidRequest`` when bytes are missing before
        ``lsn``, ``CorruptFile`` when the bytes are damaged (none of them counts then), and what a failed write does.
        """
        with self._lock, self._whole():
            self.check_open()
            self.line.close()
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
            self._writing = True
            self._put(at, fresh)
            for entry in entries:
                self._note_epoch(entry)
                self.saw_time(entry.time_ms)
                if self._options.flush_mode.syncs(entry.flags):
                    self._sync_to_lsn = entry.end_lsn
            self.commits.extend(entries)
            self._wrote(stream.lsn, end_lsn, len(fresh), len(entries))
            self._writing = False
            return stream.lsn

    def _put(self, lsn: int, piece: memoryview) -> None:
        try:
            self._write(lsn, piece, self.written_lsn)
        except LsmqError:
            self._stream = None
            raise

    def sync(self) -> int:
        """Make what was received durable, as the flush mode of each entry promises; returns how far it is."""
        with self._lock:
            self.check_open()
            if self.durable_lsn < self.written_lsn:
                self._sync(self.written_lsn)
            self.promised_lsn = self.written_lsn
            return self.promised_lsn

    def truncate(self, lsn: int) -> None:
        """Forget the log from ``lsn``, the start of an entry, on. Durable on return.

        Raises ``InvalidRequest`` for what is applied: that is committed, and never goes; ``DiskFull`` or ``StoreBusy``
        where there is no room to say so: nothing has changed then, and it can be tried again.
        """
        with self._lock, self._whole():
            self.check_open()
            if lsn < self.commits.lsn:
                raise InvalidRequest(f"the log is committed up to LSN {self.commits.lsn}; it cannot end at {lsn}")
            self._truncate(
                lsn,
                lsn,
                NotLeader("the write was cut off the log: another replica leads its shard, and has not got it"),
            )

    def _truncate(self, lsn: int, kept_lsn: int, failure: LsmqError) -> None:
        try:
            # First, while all is as it was: this alone takes space.
            self.before_truncate()
            self._segments.lower_mark(lsn)
        except OSError as error:
            if error.errno in WANT and not self._segments.sync_failed:
                raise want(self._path, error) from error
            raise self._write_failed(error, self.written_lsn, survivable=False) from error
        end_lsn = max(self.written_lsn, self._received_lsn)
        self._writing = True
        with self.commits.lock, self.line.lock:
            self.commits.cut(lsn)
            self.epochs = [start for start in self.epochs if start.lsn < lsn]
            self.line.restart(lsn, self.commits.unapplied(), kept_lsn, failure)
        self._stream = None
        self._cuts += 1
        self.written_lsn = self._received_lsn = lsn
        self._note_durable(min(self.durable_lsn, lsn))
        self.promised_lsn, self._sync_to_lsn = min(self.promised_lsn, lsn), min(self._sync_to_lsn, lsn)
        try:
            self._segments.erase(lsn, end_lsn)
        except OSError as error:
            raise self._write_failed(error, lsn, survivable=False) from error
        self._writing = False

    def leave(self, lsn: int, failure: LsmqError) -> None:
        """Leadership is over: drop what is in line, and what was written beyond ``lsn``, which nobody was told of.

        Who waits for anything that is not committed here gets ``failure``.
        """
        with self._lock, self._whole():
            if self._stopped is not None:
                return
            if self.line.closed is None:
                self.line.closed = failure
            if lsn < self.written_lsn:
                self._truncate(lsn, self.commits.lsn, failure)
            else:
                with self.line.lock:
                    self.line.restart(self.written_lsn, self.commits.unapplied(), self.commits.lsn, failure)
        self.commits.wake()

    def _note_epoch(self, entry: LogEntry) -> None:
        if entry.kind == EntryKind.EPOCH:
            self._epoch_begins(entry)
            with self.line.lock:
                self.line.epoch = max(self.line.epoch, entry.epoch)

    # -- a new leader -------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int, incarnation: int, start: int) -> Appended:
        """A new leader, in this life: note in the log that its epoch begins here. Entries of before are committed with
        it."""
        with self._lock:
            if self.written_lsn != self._received_lsn:
                raise InvalidRequest("the log ends in the middle of an entry; truncate it first")
            if epoch <= self.line.epoch:
                raise InvalidRequest(f"epoch {epoch} is not above {self.line.epoch}")
            self._stream = None
            with self.line.lock:
                dropped = NotLeader("the write was in line when another epoch began, and is not in the log")
                self.line.restart(self.written_lsn, self.commits.unapplied(), self.written_lsn, dropped)
                self.line.epoch = epoch
                self.line.closed = None
                return self.line.append_entry(EntryKind.EPOCH, 0, 0, encode_life(incarnation, start))

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
        """Stop: writing or applying was left in the middle, by ``error``. Returns what the shard has stopped with."""
        if self._stopped is None:
            self._drop_line(torn(self._path, error), self.written_lsn, stop=True)
        assert self._stopped is not None
        return self._stopped

    def _drop_line(self, failure: LsmqError, lsn: int, *, stop: bool) -> None:
        """Drop all that is in line and go on at ``lsn``, or stop. The caller holds a lock."""
        if stop:
            self._stopped = failure  # first: nothing goes on after this, wherever it ends
        kept_lsn = self.commits.lsn if stop else self.written_lsn
        with self.line.lock:
            ended = self.line.restart(lsn, self.commits.unapplied(), kept_lsn, failure)
        self._writing = False
        self.commits.tell(Committed(kept_lsn, ended, [], failure))
        if stop:
            self.on_stop()

    def stop(self, failure: LsmqError) -> None:
        """Take no more writes: background work found the disk unusable."""
        with self._lock:
            if self._stopped is None:
                self._drop_line(failure, self.written_lsn, stop=True)

    def let_go(self, reason: LsmqError) -> None:
        """This is a forked child: take no more writes. Whoever held a lock is not here to release it."""
        self._stopped = reason
        self._lock, self.line.lock = runtime.Lock(), runtime.Lock()
        self.commits.let_go()

    def close(self) -> None:
        """Commit what is in line and take no more. Raises what made that fail."""
        with self._lock:
            try:
                if self._stopped is None and not self._closed:
                    self._commit()
            finally:
                self._closed = True
