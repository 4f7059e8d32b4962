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
from pathlib import Path

import crc32c

from lsmq.errors import LogTrimmed

from .disk import Disk
from .line import Appended
from .log_writer import LogWriter
from .options import StoreOptions
from .segments import SegmentFiles
from .tables import TableSet

_NAME = "HIGH_WATERMARK"
_MAGIC = b"LSMQHWM1"
_BODY = struct.Struct("<8sQ")
_FILE_BYTES = _BODY.size + 4


class ReplicaLog:
    """Thread-safe."""

    def __init__(
        self, path: Path, options: StoreOptions, disk: Disk, writer: LogWriter, segments: SegmentFiles, tables: TableSet
    ) -> None:
        self._path = path
        self._options = options
        self._disk = disk
        self._writer = writer
        self._segments = segments
        self._keep_from: int | None = None
        self._saved_lsn = -1
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
        return self._writer.committed_lsn

    @property
    def history(self) -> list[tuple[int, int]]:
        """Leader epochs and the LSN at which each begins, oldest first."""
        return list(self._writer.epochs)

    def begin_epoch(self, epoch: int) -> Appended:
        """A new leader: put the entry in line that says where its epoch begins; ``write`` writes it."""
        return self._writer.begin_epoch(epoch)

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

    def advance(self, high_watermark: int) -> int:
        """Apply what is committed; never goes back. Returns :attr:`committed_lsn`. Raises ``ShardStopped``."""
        return self._writer.advance(high_watermark)

    def truncate(self, lsn: int) -> None:
        """Forget the log from ``lsn``, the start of an entry, on. Durable on return.

        Raises ``InvalidRequest`` for what is committed.
        """
        self._writer.truncate(lsn)

    def read(self, lsn: int, max_bytes: int) -> bytes:
        """Bytes of the log from ``lsn`` on, as they lie there; none at its end, fewer at the end of a segment.

        Raises ``LogTrimmed`` when the log does not reach back that far.
        """
        length = min(max_bytes, self._writer.written_lsn - lsn)
        if length <= 0:
            return b""
        try:
            return self._segments.read(lsn, length)
        except FileNotFoundError as error:
            raise LogTrimmed(f"the log of {self._path} begins after LSN {lsn}", lsn=lsn) from error

    def first_lsn(self) -> int:
        """Where the log begins that is still there."""
        first = self._segments.first_lsn()
        return self._writer.written_lsn if first is None else first

    def keep_from(self, lsn: int | None) -> None:
        """Keep the log from ``lsn`` on though it is flushed, within ``wal_keep_bytes``; None keeps nothing."""
        self._keep_from = lsn

    def _kept_from(self) -> int:
        if self._keep_from is None:
            return self._writer.written_lsn
        return max(self._keep_from, self._writer.written_lsn - self._options.wal_keep_bytes)

    def save_high_watermark(self) -> None:
        """Note how far the log is committed, if that has moved. Not synced. Raises ``OSError``."""
        lsn = self._writer.committed_lsn
        if lsn == self._saved_lsn:
            return
        body = _BODY.pack(_MAGIC, lsn)
        temporary = self._path / f"{_NAME}.tmp"
        file = self._disk.create(temporary)
        try:
            file.pwrite(body + crc32c.crc32c(body).to_bytes(4, "little"), 0)
        finally:
            file.close()
        self._disk.rename(temporary, self._path / _NAME)
        self._saved_lsn = lsn


def load_high_watermark(disk: Disk, path: Path) -> int:
    """How far the log in a directory is known to be committed; 0 when nothing says so."""
    if _NAME not in disk.list(path):
        return 0
    raw = disk.read_all(path / _NAME)
    if len(raw) != _FILE_BYTES or crc32c.crc32c(raw[:16]) != int.from_bytes(raw[16:], "little"):
        return 0
    magic, lsn = _BODY.unpack_from(raw)
    return int(lsn) if magic == _MAGIC else 0
