"""Opening a shard's directory: lock it, read manifest and checkpoint, throw out what no manifest names."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lsmq.errors import CorruptFile, DataDirectoryUnusable

from .checkpoint import load_state, open_checkpoint
from .dedupe_chain import open_ids
from .dedupe_file import IdFile
from .disk import Disk
from .failures import FULL, damaged
from .keyed_file import KeyedFile
from .lock import DirectoryLock
from .log_mark import NAME as LOG_MARK
from .log_mark import load_log_mark
from .manifest import TABLE_DIRECTORY, WAL_DIRECTORY, Manifest, load_manifest, store_manifest
from .options import StoreOptions
from .segments import SegmentFiles
from .snapshot_install import settle
from .state import ShardState
from .wal import LogEntry, segment_name
from .wal_reader import LogFloor, LogReader

_log = logging.getLogger("lsmq.storage")

TORN = ".torn"  #: ends the names of segments whose end was cut off as torn


@dataclass(slots=True)
class Opened:
    """A shard's directory, ready to replay its log."""

    lock: DirectoryLock
    manifest: Manifest
    state: ShardState
    checkpoint: list[KeyedFile]
    ids: list[IdFile]
    segments: SegmentFiles


def open_directory(path: Path, options: StoreOptions, disk: Disk) -> Opened:
    """Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``UnsupportedFormat`` or ``CorruptFile``."""
    lock = DirectoryLock(path)
    try:
        try:
            disk.make_directory(path / WAL_DIRECTORY)
            disk.make_directory(path / TABLE_DIRECTORY)
            manifest = load_manifest(disk, path)
            if manifest is None:
                manifest = _new_shard(path, options, disk)
            else:  # the name may still be what a killed process renamed: nothing goes before it is safe
                disk.sync_directory(path)
                manifest = settle(disk, path, manifest)
                if manifest.segment_bytes != options.segment_bytes:
                    _log.warning(
                        "%s: segment_bytes is %d, but the store was made with %d, which holds as long as it is there",
                        path,
                        options.segment_bytes,
                        manifest.segment_bytes,
                    )
        except OSError as error:
            raise unusable(path, error) from error
        checkpoint = open_checkpoint(disk, path / TABLE_DIRECTORY, manifest.checkpoint, manifest.flushed_lsn)
        ids = open_ids(disk, path / TABLE_DIRECTORY, manifest.ids)
        state = load_state(checkpoint)
        _check_tables(path / TABLE_DIRECTORY, manifest, disk)
        segments = SegmentFiles(disk, path / WAL_DIRECTORY, manifest.segment_bytes)
        return Opened(lock, manifest, state, checkpoint, ids, segments)
    except BaseException:
        lock.release()
        raise


def unusable(path: Path, error: OSError) -> DataDirectoryUnusable:
    return DataDirectoryUnusable(
        f"the data directory {path} cannot be used: {error.strerror}. Check its owner, its mode and the space on "
        "the disk, or choose another.",
        directory=str(path),
    )


def _new_shard(path: Path, options: StoreOptions, disk: Disk) -> Manifest:
    """Raises ``CorruptFile`` when there is data but no manifest: making a new one would hide it."""
    leftovers = [*disk.list(path / TABLE_DIRECTORY), *disk.list(path / WAL_DIRECTORY), *disk.list(path)]
    kept = [name for name in leftovers if name.endswith((".tbl", ".ckp", ".ids", ".wal")) or name == LOG_MARK]
    if kept:
        raise CorruptFile(
            f"{path}: the manifest is missing, but there are {len(kept)} data files",
            file=str(path / "MANIFEST"),
            position=0,
        )
    manifest = Manifest(segment_bytes=options.segment_bytes)
    store_manifest(disk, path, manifest)
    for parent in (path, path.parent):
        disk.sync_directory(parent)
    for ancestor in path.parent.parents:  # as many of them as are new, and nobody knows how many
        try:
            disk.sync_directory(ancestor)
        except OSError as error:
            if error.errno == errno.EIO:
                raise
            break  # not ours to sync, so it was there before
    return manifest


def _table_names(manifest: Manifest) -> set[str]:
    return {meta.name for meta in manifest.tables()}


def _check_tables(directory: Path, manifest: Manifest, disk: Disk) -> None:
    missing = sorted(_table_names(manifest) - set(disk.list(directory)))
    if missing:
        raise damaged(
            directory / missing[0], f"the table is in the manifest but not on the disk ({len(missing)} missing)"
        )


def _clean(path: Path, manifest: Manifest, disk: Disk) -> None:
    """Remove files that a crash left half made."""
    keep = {meta.name for meta in manifest.files()}
    for name in sorted(set(disk.list(path / TABLE_DIRECTORY)) - keep):
        disk.remove(path / TABLE_DIRECTORY / name)
    for directory, suffix in ((path, ".tmp"), (path / WAL_DIRECTORY, ".new")):
        for name in disk.list(directory):
            if name.endswith(suffix):
                disk.remove(directory / name)


class LogReplay:
    """The log from the manifest's flushed LSN on. Iterate, then :meth:`finish`, which is the first to change files."""

    def __init__(self, opened: Opened, path: Path, disk: Disk, floor: LogFloor | None = None) -> None:
        """``floor``: of a replica, where damage is no error but the end of the log: see :attr:`damage`."""
        self._segments = opened.segments
        self._directory = path / WAL_DIRECTORY
        self._disk = disk
        self._path = path
        self._manifest = opened.manifest
        self._first_lsn = opened.manifest.flushed_lsn
        self._segment_bytes = opened.manifest.segment_bytes
        self._starts = [start for start in self._segments.start_lsns() if start + self._segment_bytes > self._first_lsn]
        mark = load_log_mark(disk, path)
        self._durable_lsn = mark.durable_lsn if mark is not None else self._first_lsn
        self._reader = LogReader(
            self._segments.read, self._starts, self._segment_bytes, str(self._directory), floor, mark
        )
        self.end_lsn = self._first_lsn
        self.entries = 0
        self.reason = ""
        self._erasing = False  # from then on a copy would lack what was erased

    def __iter__(self) -> Iterator[LogEntry]:
        """Raises ``CorruptFile`` for damage in the middle, ``UnsupportedFormat`` for a newer log."""
        for entry in self._reader.entries(self._first_lsn):
            self.entries += 1
            yield entry
        self.end_lsn = self._reader.end.lsn
        self.reason = self._reader.end.reason

    def run(self, apply: Callable[[LogEntry], object], committed_lsn: int | None) -> list[LogEntry]:
        """Apply the entries up to ``committed_lsn``, where that is known, and finish unless there is damage.

        Returns the entries that are left.
        """
        tail: list[LogEntry] = []
        for entry in self:
            if committed_lsn is None or (entry.end_lsn <= committed_lsn and not tail):
                apply(entry)
            else:
                tail.append(entry)
        if self.damage is None:
            self.finish()
        return tail

    @property
    def damage(self) -> CorruptFile | None:
        """Why more of the log is missing than a crash can take. What lies behind is left until :meth:`finish`."""
        return self._reader.damage

    def finish(self) -> None:
        """Erase what lies behind the end, so that no torn entry can come back to life; open for appending.

        Durable on return, and so is all that was replayed: a process that was killed, or whose sync failed, may have
        left it with the operating system only. Files that are part of nothing are removed. It may be done again where
        it raised ``OSError``, until a sync failed.
        """
        end, size = self.end_lsn, self._segment_bytes
        last_start = end - end % size
        if self.reason not in LogReader.CLEAN_ENDS:
            _log.info(
                "%s: the log ends at LSN %d (%s): a torn write, or what a recycled segment held before",
                self._directory,
                end,
                self.reason,
            )
        _clean(self._path, self._manifest, self._disk)
        self._segments.make_durable((start for start in self._starts if start < end), self._durable_lsn, end)
        if not self._erasing:
            self._keep_aside()
        self._erasing = True
        for start in self._starts:
            if start > last_start:
                self._disk.remove(self._directory / segment_name(start))
        self._disk.sync_directory(self._directory)
        self._segments.open_for_append(end)
        if last_start in self._starts:  # Also where the log ends before it: it would be missed until there is a mark.
            self._segments.erase_rest(end)
        self._segments.begin(end)

    def _keep_aside(self) -> None:
        """Keep what is about to be erased though it has whole entries: a write that was cut short, or a damaged one.

        Nobody was told that they are stored, as far as the log says; ``lsmq dump wal`` shows them. One log's end is
        kept, until there is another one.
        """
        if self.reason in LogReader.CLEAN_ENDS or not self._reader.has_entries_beyond(self.end_lsn):
            return
        for name in self._disk.list(self._directory):
            if name.endswith(TORN):
                self._disk.remove(self._directory / name)
        kept = [start for start in self._starts if start + self._segment_bytes > self.end_lsn]
        try:
            for start in kept:
                self._segments.copy(start, self._directory / segment_name(start).replace(".wal", TORN))
        except OSError as error:
            if error.errno not in FULL:
                raise
            kept = []
        _log.warning(
            "%s: behind the log's end at LSN %d (%s) stand whole entries of a write that was cut short; %s",
            self._directory,
            self.end_lsn,
            self.reason,
            f"kept as *{TORN}" if kept else "there was no space to keep them",
        )
