"""A store as one replica of a shard: its log as bytes by LSN, and what of it is committed.

On a replica what is written is not yet committed. The replication protocol says what is (``advance``), lets a
follower put the leader's bytes at their places (``receive``), and takes back what a former leader wrote and nobody
committed (``truncate``). What is committed is applied and readable; the rest is bytes on disk.

``HIGH_WATERMARK`` in the shard's directory notes from time to time how far the log is known to be committed, so that
a restarted replica can serve reads at once. It may be behind, never ahead; it is not synced, and a damaged one is
ignored::

    offset width field
     0      8    magic ``LSMQHWM1``
     8      8    LSN
    16      4    crc     CRC32C of bytes [0, 16)
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import crc32c

from lsmq.errors import CorruptFile, LogTrimmed, LsmqError

from .commit_point import Committed
from .disk import Disk
from .epochs import StoredEpochStart
from .line import Appended
from .log_writer import LogWriter
from .manifest import HIGH_WATERMARK
from .options import StoreOptions
from .segments import SegmentFiles
from .tables import TableSet
from .wal_stream import EntryStream

_MAGIC = b"LSMQHWM1"
_BODY = struct.Struct("<8sQ")
_FILE_BYTES = _BODY.size + 4
_BLOCK_BYTES = 64 * 1024  # to find the end of an entry that is longer than asked for


class ReplicaLog:
    """Thread-safe."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        disk: Disk,
        writer: LogWriter,
        segments: SegmentFiles,
        tables: TableSet,
        held_from: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``held_from``: the log is kept from here on for snapshots that are under way."""
        self._path = path
        self._options = options
        self._disk = disk
        self._writer = writer
        self._segments = segments
        self._keep_from: int | None = None
        self._held_from = held_from
        self._log_start_lsn = tables.manifest.log_start_lsn
        self._saved_lsn = -1
        #: What is missing of the log at its end though it was durable. Until it is truncated, nothing may be written.
        self.damage: CorruptFile | None = None
        tables.keep_lsn = self._kept_from

    @property
    def end_lsn(self) -> int:
        """After the last whole entry that is written."""
        return self._writer.written_lsn

    @property
    def durable_lsn(self) -> int:
        """How far the log is on the disk, as the flush mode promises it."""
        return self._writer.promised_lsn

    @property
    def committed_lsn(self) -> int:
        """How far it is applied."""
        return self._writer.commits.lsn

    @property
    def history(self) -> list[StoredEpochStart]:
        """The leader epochs of the log, oldest first: all that began in it, and that of its first bytes."""
        return list(self._writer.epochs)

    def begin_epoch(self, epoch: int, incarnation: int, start: int) -> Appended:
        """A new leader, in this life: put the entry in line that says where its epoch begins; ``write`` writes it.

        From here on appends are taken; what they are given offsets by is complete when this entry is applied.
        """
        return self._writer.begin_epoch(epoch, incarnation, start)

    def listen(
        self,
        written: Callable[[int, int, bytes, list[int]], None],
        durable: Callable[[int], None],
        committed: Callable[[Committed], None],
    ) -> None:
        """Tell of each group commit of a leader, in the writing thread, and of what is committed, in the applying one.

        ``written(lsn, end_lsn, bytes, entry_ends)`` comes before the sync, ``durable(lsn)`` after it.
        """
        self._writer.on_written, self._writer.on_durable = written, durable
        self._writer.commits.add_listener(committed)

    def close_line(self, failure: LsmqError) -> None:
        """Leadership is over: appends raise ``failure`` from here on. Never blocks."""
        self._writer.line.closed = failure

    def leave(self, lsn: int, failure: LsmqError) -> None:
        """Drop what is in line, and what was written beyond ``lsn``, of which nobody was told. Durable on return.

        Whoever waits for what is not committed here gets ``failure``. Raises ``ShardStopped``; ``DiskFull`` or
        ``StoreBusy`` as ``truncate`` does.
        """
        self._writer.leave(lsn, failure)

    def write(self) -> int:
        """Write and sync all that is in line; nothing is applied. Returns :attr:`durable_lsn`.

        Raises ``DiskFull`` or ``ShardStopped``.
        """
        self._writer.commit()
        return self.durable_lsn

    def receive(self, lsn: int, piece: bytes | memoryview) -> int:
        """A follower: put the leader's bytes at their place; :meth:`sync` makes them durable. Returns :attr:`end_lsn`.

        Bytes that are here already are passed over. Raises ``InvalidRequest`` when bytes are missing before ``lsn``,
        ``CorruptFile`` when they are damaged, ``DiskFull`` or ``ShardStopped``.
        """
        return self._writer.receive(lsn, piece)

    def sync(self) -> int:
        """Make what was received durable; returns :attr:`durable_lsn`. Raises ``ShardStopped``."""
        return self._writer.sync()

    def make_durable(self) -> None:
        """In asynchronous mode as well: what is written by now is on the disk on return. Raises ``OSError``."""
        if self._writer.durable_lsn < self._writer.written_lsn:
            self._writer.sync_now()

    def advance(self, high_watermark: int) -> int:
        """Apply what is committed; never goes back. Returns :attr:`committed_lsn`. Raises ``ShardStopped``."""
        return self._writer.commits.advance(high_watermark)

    def truncate(self, lsn: int) -> None:
        """Forget the log from ``lsn``, the start of an entry, on. Durable on return.

        Raises ``InvalidRequest`` for what is committed, ``OSError``.
        """
        if self.damage is not None:
            self.save_high_watermark()  # else it would say that the shorter log is a damaged one
        self._writer.truncate(lsn)
        self.damage = None

    def read(self, lsn: int, max_bytes: int) -> bytes:
        """Bytes of the log from ``lsn`` on, as they lie there; none at its end, fewer at the end of a segment.

        Raises ``LogTrimmed`` when the log does not reach back that far.
        """
        length = min(max_bytes, self._writer.written_lsn - lsn)
        if length <= 0:
            return b""
        try:
            if lsn < self._log_start_lsn:  # the segment is there, but nothing was written to this part of it
                raise FileNotFoundError
            return self._segments.read(lsn, length)
        except FileNotFoundError as error:
            raise LogTrimmed(f"the log of {self._path} begins after LSN {lsn}", lsn=lsn) from error

    def read_entries(self, lsn: int, limit_lsn: int, max_bytes: int) -> bytes:
        """Whole entries from ``lsn`` on, verified: about ``max_bytes`` and to ``limit_lsn`` at most, but one at least.

        None at the end of the log. Raises ``LogTrimmed``, or ``CorruptFile`` for damage.
        """
        stream = EntryStream(lsn, self._segments.segment_bytes, str(self._path))
        pieces, ends, bound = [], [lsn], min(limit_lsn, lsn + max_bytes)
        try:
            while stream.lsn == lsn or stream.end_lsn < bound:
                wanted = bound - stream.end_lsn
                piece = self.read(stream.end_lsn, wanted if wanted > 0 else _BLOCK_BYTES)
                if not piece:
                    break
                pieces.append(piece)
                ends.extend(entry.end_lsn for entry in stream.feed(piece))
        except CorruptFile as error:
            if lsn < self.first_lsn():  # recycled while it was read
                raise LogTrimmed(f"the log of {self._path} begins after LSN {lsn}", lsn=lsn) from error
            raise
        end_lsn = max(ends[bisect_right(ends, bound) - 1], ends[min(1, len(ends) - 1)])
        return b"".join(pieces)[: end_lsn - lsn]

    def first_lsn(self) -> int:
        """Where the log begins that is still there."""
        first, end_lsn = self._segments.first_lsn(), self._writer.written_lsn
        # A segment may have been allocated ahead of a log that is still empty.
        return end_lsn if first is None else min(max(first, self._log_start_lsn), end_lsn)

    def keep_from(self, lsn: int | None) -> None:
        """Keep the log from ``lsn`` on though it is flushed, within ``wal_keep_bytes``; None keeps nothing."""
        self._keep_from = lsn

    def _kept_from(self) -> int:
        written_lsn = self._writer.written_lsn
        wanted = [lsn for lsn in (self._keep_from, self._held_from()) if lsn is not None]
        return max(min(wanted), written_lsn - self._options.wal_keep_bytes) if wanted else written_lsn

    def save_high_watermark(self) -> None:
        """Note how far the log is committed, and on the disk, if that has moved. Not synced. Raises ``OSError``."""
        lsn = min(self._writer.commits.lsn, self._writer.durable_lsn)
        if lsn == self._saved_lsn:
            return
        body = _BODY.pack(_MAGIC, lsn)
        temporary = self._path / f"{HIGH_WATERMARK}.tmp"
        file = self._disk.create(temporary)
        try:
            file.pwrite(body + crc32c.crc32c(body).to_bytes(4, "little"), 0)
        finally:
            file.close()
        self._disk.rename(temporary, self._path / HIGH_WATERMARK)
        self._saved_lsn = lsn


def load_high_watermark(disk: Disk, path: Path) -> int:
    """How far the log in a directory is known to be committed; 0 when nothing says so."""
    if HIGH_WATERMARK not in disk.list(path):
        return 0
    raw = disk.read_all(path / HIGH_WATERMARK)
    if len(raw) != _FILE_BYTES or crc32c.crc32c(raw[:16]) != int.from_bytes(raw[16:], "little"):
        return 0
    magic, lsn = _BODY.unpack_from(raw)
    return int(lsn) if magic == _MAGIC else 0
