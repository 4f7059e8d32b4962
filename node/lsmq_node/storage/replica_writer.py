"""The write path of a replica: the log as its leader has it, cut off and led again.

A follower puts the leader's bytes at their places (``receive``, ``sync``); what a former leader wrote and nobody
committed is cut off (``truncate``, ``leave``); a new leader notes where its epoch begins (``begin_epoch``).
"""

from __future__ import annotations

from lsmq.errors import CorruptFile, InvalidRequest, LsmqError, NotLeader

from .epochs import encode_life
from .line import Appended, end_of
from .log_writer import LogWriter
from .wal import Entry, EntryKind
from .wal_stream import EntryStream


class ReplicaWriter(LogWriter):
    """Thread-safe."""

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
            with self.line.lock:
                self._written.extend(entries)
            self.written_lsn = stream.lsn
            self._received_lsn = end_lsn
            self._counters.commits += 1
            self._counters.committed_entries += len(entries)
            self.after_write(stream.lsn, len(fresh))
            self._writing = False
            return stream.lsn

    def _put(self, lsn: int, piece: memoryview) -> None:
        try:
            self._write(lsn, piece, self.written_lsn)
        except LsmqError:
            self._stream = None
            raise

    def sync(self) -> int:
        """Make what was received durable, as the flush mode promises; returns how far it is."""
        with self._lock:
            self.check_open()
            if self.durable_lsn < self.written_lsn:
                self._sync(self.written_lsn)
            return self.promised_lsn

    def truncate(self, lsn: int) -> None:
        """Forget the log from ``lsn``, the start of an entry, on. Durable on return.

        Raises ``InvalidRequest`` for what is applied: that is committed, and never goes.
        """
        with self._lock, self._whole():
            self.check_open()
            if lsn < self.committed_lsn:
                raise InvalidRequest(f"the log is committed up to LSN {self.committed_lsn}; it cannot end at {lsn}")
            self._truncate(
                lsn,
                lsn,
                NotLeader("the write was cut off the log: another replica leads its shard, and has not got it"),
            )

    def _truncate(self, lsn: int, kept_lsn: int, failure: LsmqError) -> None:
        end_lsn = max(self.written_lsn, self._received_lsn)
        self._writing = True
        with self._apply_lock, self.line.lock:
            while self._written and end_of(self._written[-1]) > lsn:
                self._written.pop()
            self.epochs = [start for start in self.epochs if start.lsn < lsn]
            self.line.restart(lsn, self._unapplied(), kept_lsn, failure)
        self._stream = None
        self._cuts += 1
        self.written_lsn = self._received_lsn = lsn
        self._note_durable(min(self.durable_lsn, lsn))
        try:
            self.before_truncate()
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
                self._truncate(lsn, self.committed_lsn, failure)
            else:
                with self.line.lock:
                    self.line.restart(self.written_lsn, self._unapplied(), self.committed_lsn, failure)
        with self._advanced:
            self._advanced.notify_all()

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
                self.line.restart(self.written_lsn, self._unapplied(), self.written_lsn, dropped)
                self.line.epoch = epoch
                self.line.closed = None
                return self.line.append_entry(EntryKind.EPOCH, 0, 0, encode_life(incarnation, start))

    def _note_epoch(self, entry: Entry) -> None:
        if entry.kind == EntryKind.EPOCH:
            self._epoch_begins(entry)
            with self.line.lock:
                self.line.epoch = max(self.line.epoch, entry.epoch)
