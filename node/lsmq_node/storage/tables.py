"""A shard's memtables and tables: the set of them, and how it changes.

A flush turns the oldest frozen memtable into a table of level 0; merges and retention put tables in place of others
(see :mod:`.merger`). Each changes the set in one step: the new manifest is made durable, then readers are shown a new
:class:`Version`. A crash at any moment leaves the old set or the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from lsmq import runtime
from lsmq.errors import LsmqError

from .cache import BlockCache
from .checkpoint_chain import CheckpointChain
from .dedupe_chain import DedupeChain
from .disk import Clock, Disk
from .edits import Edit, apply_edit
from .epochs import needed
from .failures import WANT
from .manifest import TABLE_DIRECTORY, Manifest, store_manifest
from .memtable import Memtable, slabs_for
from .open_tables import OpenTables
from .options import StoreOptions
from .point_reads import Places
from .recovery import Opened
from .snapshot_pins import PinnedFiles
from .sstable import TableMeta, TableWriter, table_name
from .state import StateChange
from .stats import Counters
from .table import Table
from .version import TableRun, Version

_NOTHING_KEPT = 1 << 63


class Closing(Exception):
    """The store is being closed: leave the work at hand."""


class TableSet:
    """Owns memtables, tables and manifest.

    One thread applies (``room_for``, ``freeze``), one flushes, two merge; readers take ``version``.
    ``changed`` is notified whenever the set, or what waits to be flushed, changes.
    """

    def __init__(
        self, path: Path, options: StoreOptions, disk: Disk, clock: Clock, opened: Opened, counters: Counters
    ) -> None:
        self.path = path
        self._options = options
        self._disk = disk
        self._clock = clock
        self._counters = counters
        self._state = opened.state
        self._segments = opened.segments
        self._directory = path / TABLE_DIRECTORY
        self._files = PinnedFiles(disk, self._directory)
        self.cache = BlockCache(options.cache_bytes)
        self.places = Places()
        self.open_tables = OpenTables(options.max_open_tables)
        self._install_lock = runtime.Lock()  # guards the manifest: one changes it at a time; anybody may look
        self.manifest = opened.manifest
        self.changed = runtime.Condition()  # guards ``frozen``, ``version`` and ``closing``; readers take no lock
        self.checkpoint = CheckpointChain(
            disk,
            self._directory,
            options,
            self.cache,
            counters,
            self._files,
            self._state,
            opened.checkpoint,
            take_number=self._take_number,
            change_manifest=self._change_manifest,
            discard=lambda name, error: self.discard((name,), error),
            check=self._check_open,
        )
        self.ids = DedupeChain(
            disk,
            self._directory,
            self._files,
            self._state.ids,
            opened.ids,
            take_number=self._take_number,
            change_manifest=self._change_manifest,
            discard=lambda name, error: self.discard((name,), error),
            check=self._check_open,
        )
        self.frozen: deque[tuple[Memtable, StateChange]] = deque()
        self.applied_lsn = self.manifest.flushed_lsn  # the applying thread's, and so is ``memtable``
        #: Up to here the log needs no look: it was let go, or an earlier process flushed it, and who lacks something of
        #: that has not been heard of yet. The house-keeping thread's.
        self._released_lsn = self.applied_lsn
        self._slabs = slabs_for(options.memtable_bytes)
        self.memtable = Memtable(self.applied_lsn, options.memtable_bytes, self._slabs)
        self.version = self._version_of(self.manifest, (self.memtable,), Version((), (), ()))
        self.closing = False
        #: The log is kept from here on, though it is flushed: a replica may ask for it.
        self.keep_lsn: Callable[[], int] = lambda: _NOTHING_KEPT
        #: Returns once the log is on the disk up to an LSN, whatever the flush mode. Raises ``OSError``.
        self.make_durable: Callable[[int], None] = lambda lsn: None

    # -- memtables ---------------------------------------------------------------------------------------

    def room_for(self, payload_bytes: int, record_count: int) -> Memtable:
        """The memtable that takes the next records."""
        if not self.memtable.has_room(payload_bytes, record_count) or self._state.is_large(self._options):
            self.freeze()
            if payload_bytes > self.memtable.capacity_bytes:  # logged when memtable_bytes was larger
                self.memtable = Memtable(self.memtable.first_lsn, payload_bytes)
                with self.changed:
                    version = self.version
                    memtables = (self.memtable, *version.memtables[1:])
                    self.version = Version(memtables, version.level0, version.generations)
        return self.memtable

    def trim(self) -> None:
        """Give memory back to the system that was not wanted since the last call."""
        self._slabs.trim()
        self.places.trim()
        self._state.ids.slabs.trim()

    def freeze(self) -> int:
        """Put the memtable in line for its flush and begin a new one. Only the applying thread calls this.

        Returns the LSN below which everything is flushed once that is done.
        """
        if self.applied_lsn == self.memtable.first_lsn:
            return self.applied_lsn
        self._state.epochs = needed(self._state.epochs, self._segments.begins_lsn)
        change = self._state.take_change(self.applied_lsn)
        fresh = Memtable(self.applied_lsn, self._options.memtable_bytes, self._slabs)
        with self.changed:
            self.frozen.append((self.memtable, change))
            self.memtable = fresh
            version = self.version
            self.version = Version((fresh, *version.memtables), version.level0, version.generations)
            self.changed.notify_all()
        return change.end_lsn

    # -- flush -------------------------------------------------------------------------------------------

    def flush_oldest(self) -> None:
        """Write the memtable that was frozen first to level 0. There must be one."""
        memtable, change = self.frozen[0]
        self._flush(memtable, change)

    def _flush(self, memtable: Memtable, change: StateChange) -> None:
        started = self._clock.monotonic()
        metas: tuple[TableMeta, ...] = ()
        if memtable.record_count:
            number = self._take_number()
            metas = (self._write_table(number, memtable, change.end_lsn),)
        names = [meta.name for meta in metas]

        def installed() -> None:
            self.checkpoint.added(change, file)
            self.ids.added(change.ids, None if ids is None else ids[1])
            counters = self._counters  # before anybody who waits for the flush goes on
            counters.flushes += 1
            counters.flushed_bytes += sum(meta.size_bytes for meta in metas)
            counters.flush_seconds += self._clock.monotonic() - started

        try:
            increment, file = self.checkpoint.write(change)
            names.append(increment.name)
            ids = self.ids.write(change.ids, change.end_lsn)
            names += [] if ids is None else [ids[0].name]
            with self._install_lock:
                old = self.manifest
                changed = old.with_changes(
                    flushed_lsn=change.end_lsn,
                    checkpoint=(*old.checkpoint, increment),
                    level0=(*old.level0, *metas),
                    ids=old.ids if ids is None else (*old.ids, ids[0]),
                )
                self._install(changed, flushed=memtable, then=installed)
        except OSError as error:
            self.discard(names, error)
            raise
        self._segments.release(self._let_go_lsn())

    def release_log(self) -> None:
        """Let go of the log's segments that are flushed and that no replica asks for any more. Cheap where none is."""
        lsn = self._let_go_lsn()
        if lsn - self._released_lsn >= self._segments.segment_bytes:
            self._segments.release(lsn)
            self._released_lsn = lsn - lsn % self._segments.segment_bytes

    def drop_spares(self) -> None:
        """Give the disk back what is kept of the log to be used again."""
        self._segments.drop_spares()

    def _let_go_lsn(self) -> int:
        return min(self.manifest.flushed_lsn, self.keep_lsn())

    def _write_table(self, number: int, memtable: Memtable, end_lsn: int) -> TableMeta:
        path = self._directory / table_name(number)
        writer = self._table_writer(number)
        try:
            for records in memtable.sorted():
                writer.add(records)
            meta = writer.finish(memtable.first_lsn, end_lsn, memtable.first_lsn)
            self._disk.sync_directory(self._directory)
        except OSError:
            writer.abandon()
            self._disk.remove(path)
            raise
        return meta

    def _table_writer(self, number: int) -> TableWriter:
        return TableWriter(
            self._disk,
            self._directory / table_name(number),
            number,
            block_bytes=self._options.block_bytes,
            codec=self._options.codec,
        )

    def _take_number(self) -> int:
        with self._install_lock:
            number = self.manifest.next_number
            self.manifest = self.manifest.with_changes(next_number=number + 1)
            return number

    def _change_manifest(self, change: Callable[[Manifest], Manifest], then: Callable[[], None]) -> None:
        """Make a manifest of the same tables durable; ``then`` runs before it changes again. Raises ``OSError``."""
        with self._install_lock:
            changed = change(self.manifest)
            store_manifest(self._disk, self.path, changed)
            self.manifest = changed
            then()
        with self.changed:
            self.changed.notify_all()

    def _check_open(self) -> None:
        if self.closing:
            raise Closing

    def _install(
        self, manifest: Manifest, *, flushed: Memtable | None = None, then: Callable[[], None] = lambda: None
    ) -> None:
        """Make a new set of tables durable, do what comes ``then``, show it to readers. The install lock is held."""
        store_manifest(self._disk, self.path, manifest)
        self.manifest = manifest
        then()
        with self.changed:
            assert flushed is None or flushed is self.version.memtables[-1], "memtables are flushed in their order"
            memtables = self.version.memtables if flushed is None else self.version.memtables[:-1]
            self.version = self._version_of(manifest, memtables, self.version)
            if flushed is not None:
                self.frozen.popleft()
            self.changed.notify_all()

    def _version_of(self, manifest: Manifest, memtables: tuple[Memtable, ...], old: Version) -> Version:
        """The version that goes with a manifest. Tables and runs of ``old`` that are in it stay what they are."""
        runs = {id(run.metas): run for run in old.generations}
        tables = {table.meta.number: table for run in old.runs() for table in run.tables}

        def run_of(metas: tuple[TableMeta, ...]) -> TableRun:
            return runs.get(id(metas)) or TableRun(
                tuple(self._table(meta, tables.get(meta.number)) for meta in metas), metas
            )

        return Version(
            memtables,
            tuple(run_of((meta,)) for meta in reversed(manifest.level0)),
            tuple(run_of(metas) for metas in reversed(manifest.generations)),
        )

    def _table(self, meta: TableMeta, known: Table | None) -> Table:
        if known is None:
            return Table(self._disk, self._directory, meta, self.cache, self.open_tables, self._counters)
        return known if known.meta == meta else known.clipped(meta)

    # -- changes -----------------------------------------------------------------------------------------

    def writer(self) -> TableWriter:
        """Of a new table. Its file becomes part of the set, or is to be discarded."""
        return self._table_writer(self._take_number())

    def sync_names(self) -> None:
        """Make the names of new tables durable."""
        self._disk.sync_directory(self._directory)

    def edit(self, edit: Edit) -> None:
        """Put tables in place of others. Durable on return; then the files of those that are gone go.

        What they lack is gone by what was applied by now, so the log is made durable up to here first: after a power
        cut no table must lack what the log does not say is gone. Raises ``OSError``.
        """
        self.make_durable(self.applied_lsn)
        with self._install_lock:
            before = self.version.tables()
            self._install(apply_edit(self.manifest, edit))
            staying = set(map(id, self.version.tables()))
        for table in before:
            if id(table) not in staying:
                self.open_tables.forget(table)
        for number in sorted(edit.gone - {meta.number for meta in edit.added}):
            self.cache.drop(number)
            self._files.remove(table_name(number))

    def discard(self, names: Iterable[str], error: BaseException) -> None:
        """Give back the space of files that did not become part of the set, to have it for the next attempt.

        After any other failure than want of space or of a descriptor, damage of what was read, and the end of the
        store, it is not known whether they did: recovery finds out.
        """
        if isinstance(error, Closing | LsmqError) or (isinstance(error, OSError) and error.errno in WANT):
            for name in names:
                self._files.remove(name)

    def hold(self, wanted: Callable[[Version], Iterable[Table]]) -> tuple[Version, list[str]]:
        """The tables as they are. The files wanted of them stay until their names are handed to :meth:`drop`."""
        with self._install_lock:
            version = self.version.on_disk()
            names = [table.meta.name for table in wanted(version)]
            self._files.hold(names)
        return version, names

    def drop(self, names: list[str]) -> None:
        """The end of :meth:`hold`."""
        self._files.release(names)

    def damaged(self) -> list[Table]:
        """Tables in which damage was found since the store was opened."""
        return [table for table in self.version.tables() if table.damage is not None]

    # -- snapshots ---------------------------------------------------------------------------------------

    def pin(self) -> Manifest:
        """The manifest as it is. All files of it stay until it is handed to :meth:`unpin`."""
        with self._install_lock:
            manifest = self.manifest
            self._files.hold(_file_names(manifest))
        return manifest

    def unpin(self, manifest: Manifest) -> None:
        self._files.release(_file_names(manifest))

    def close(self) -> None:
        """Let go of all files, and have none removed any more: the directory may soon be another store's."""
        self.open_tables.close()
        self._files.close()

    def wait_flushed(self, lsn: int, over: Callable[[], bool], timeout: float) -> None:
        """Return once everything before ``lsn`` is flushed, the store is closed, it is ``over``, or time is up."""
        with self.changed:
            self.changed.wait_for(lambda: self.closing or over() or self.manifest.flushed_lsn >= lsn, timeout)


def _file_names(manifest: Manifest) -> list[str]:
    return [meta.name for meta in manifest.files()]
