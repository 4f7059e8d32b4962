"""The giving side of snapshots: files of one flush, kept while they are read.

An export flushes what is applied, so that the log that is needed on top is short, and holds the files of the
manifest that follows. Nothing is copied, and writing goes on; files that a merge or retention drops meanwhile are
removed when the export is closed, or at the next start. On a replica the log from the snapshot's LSN on is held
too, within ``wal_keep_bytes``: without it the snapshot would be of no use once it has arrived.
"""

from __future__ import annotations

from pathlib import Path

import crc32c

from lsmq import runtime
from lsmq.errors import ClientClosed, InvalidRequest

from .disk import Disk, File
from .log_writer import LogWriter
from .manifest import TABLE_DIRECTORY, Manifest
from .snapshot import SnapshotManifest
from .snapshot_target import FileVerifier
from .tables import TableSet

#: So long an export waits for its flush; then it takes what the last one left.
FLUSH_WAIT_S = 10.0
MAX_READ_BYTES = 4 << 20
_READ_BYTES = 1 << 20


class SnapshotSource:
    """One export, until it is closed. Thread-safe."""

    def __init__(self, exports: Exports, disk: Disk, directory: Path, snapshot: SnapshotManifest) -> None:
        self.snapshot = snapshot
        self._exports = exports
        self._disk = disk
        self._directory = directory
        self._sizes = {file.name: file.size_bytes for file in snapshot.files}
        self._lock = runtime.Lock()
        self._open: tuple[str, File] | None = None
        self._closed = False

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes of a file, at most ``MAX_READ_BYTES``; fewer at its end.

        Raises ``InvalidRequest``, ``ClientClosed`` once the export or the store is closed, ``OSError``.
        """
        length = min(length, MAX_READ_BYTES)
        with self._lock:
            return self._file(name, offset, length).pread(length, offset)

    def checksum(self, name: str, offset: int, length: int) -> int:
        """CRC32C of a range of a file, to compare it with what another has of it. Raises as :meth:`read` does."""
        crc, end = 0, offset + length
        while offset < end:
            piece = self.read(name, offset, min(_READ_BYTES, end - offset))
            if not piece:
                break
            crc = crc32c.crc32c(piece, crc)
            offset += len(piece)
        return crc

    def verify(self, name: str) -> None:
        """Read a whole file, and hold every byte against what the snapshot says of it.

        Raises ``CorruptFile``, and what :meth:`read` raises.
        """
        with self._lock:
            self._file(name, 0, 0)
        FileVerifier(self.snapshot, self._disk).verify(self._directory / name, name)

    def size_of(self, name: str) -> int:
        """Bytes of a file. Raises ``InvalidRequest``."""
        with self._lock:
            self._file(name, 0, 0)
            return self._sizes[name]

    def _file(self, name: str, offset: int, length: int) -> File:
        if self._closed:
            raise ClientClosed(f"the snapshot at LSN {self.snapshot.applied_lsn} of {self._directory.parent} is closed")
        if name not in self._sizes or not 0 <= offset <= self._sizes[name] or length < 0:
            raise InvalidRequest(f"the snapshot has no {length} bytes at {offset} of {name!r}")
        if self._open is None or self._open[0] != name:
            self._shut()
            self._open = name, self._disk.open(self._directory / name)
        return self._open[1]

    def _shut(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def release_files(self) -> None:
        """The files have been read. The log is still held: whoever has read them will now ask for it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._shut()
        self._exports.release_files(self)

    def release_log(self) -> None:
        """Whoever reads the files has no use for the log from here on."""
        self._exports.release_log(self)

    def close(self) -> None:
        self.release_files()
        self.release_log()

    def __enter__(self) -> SnapshotSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exports:
    """The exports of a store that are under way. Thread-safe."""

    def __init__(self, path: Path, disk: Disk, tables: TableSet, writer: LogWriter) -> None:
        self._path = path
        self._disk = disk
        self._tables = tables
        self._writer = writer
        self._lock = runtime.Lock()
        self._log_from: dict[object, int] = {}
        self._sources: dict[SnapshotSource, None] = {}
        self._closed = False

    def export(self, flush_wait_s: float = FLUSH_WAIT_S) -> SnapshotSource:
        """A snapshot of what is applied, or, where the flush takes longer than it may, of what the last one left.

        Raises ``ClientClosed`` or ``ShardStopped``.
        """
        self._writer.check_open()
        holder = object()
        with self._lock:
            self._log_from[holder] = self._tables.manifest.flushed_lsn  # until it is known more exactly
        try:
            lsn = self._writer.commits.between_entries(self._freeze)
            self._tables.wait_flushed(lsn, lambda: self._writer.stopped, flush_wait_s)
            self._writer.check_open()
            return self._hold(self._tables.pin())
        finally:
            with self._lock:
                del self._log_from[holder]

    def _freeze(self) -> int:
        self._tables.freeze()
        return self._tables.applied_lsn

    def _hold(self, manifest: Manifest) -> SnapshotSource:
        directory = self._path / TABLE_DIRECTORY
        try:
            epochs = tuple(start for start in self._writer.epochs if start.lsn < manifest.flushed_lsn)
            snapshot = SnapshotManifest(manifest.with_changes(extra={}), epochs)
            source = SnapshotSource(self, self._disk, directory, snapshot)
            with self._lock:
                if self._closed:
                    raise ClientClosed(f"the store {self._path} is closed")
                self._sources[source] = None
                self._log_from[source] = manifest.flushed_lsn
            return source
        except BaseException:
            self._tables.unpin(manifest)
            raise

    def log_from(self) -> int | None:
        """The log from here on is held; None where none is."""
        with self._lock:
            return min(self._log_from.values(), default=None)

    def release_files(self, source: SnapshotSource) -> None:
        self._tables.unpin(source.snapshot.manifest)
        with self._lock:
            self._sources.pop(source, None)

    def release_log(self, source: SnapshotSource) -> None:
        with self._lock:
            self._log_from.pop(source, None)

    def close(self) -> None:
        """End all exports; whoever still reads of one is told so."""
        with self._lock:
            self._closed = True
            sources = list(self._sources)
        for source in sources:
            source.close()
