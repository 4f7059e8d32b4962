"""A shard's memtables and tables: the set of them, and how it changes.

A flush turns the oldest frozen memtable into a table of level 0, a merge turns runs into a new generation of
level 1, retention drops tables. Each changes the set in one step: the new manifest is made durable, then
readers are shown a new :class:`Version`. A crash at any moment leaves the old set or the new one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from lsmq.errors import CorruptFile

from .cache import BlockCache
from .checkpoint_chain import CheckpointChain
from .columns import I64, U64
from .compaction import choose_runs, merge
from .disk import Clock, Disk
from .failures import WANT
from .manifest import TABLE_DIRECTORY, Manifest, store_manifest
from .memtable import Memtable, slabs_for
from .open_tables import OpenTables
from .options import StoreOptions
from .recovery import Opened
from .snapshot_pins import PinnedFiles
from .sstable import TableMeta, TableWriter, table_name
from .state import StateChange
from .stats import Counters
from .table import Table
from .version import Run, Version

_log = logging.getLogger("lsmq.storage")


_NOTHING_KEPT = 1 << 63


class Closing(Exception):
    """The store is being closed: leave the work at hand."""


class TableSet:
    """Owns memtables, tables and manifest.

    One thread applies (``room_for``, ``freeze``), one flushes, one merges; readers take ``version``.
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
        self.open_tables = OpenTables(options.max_open_tables)
        self.manifest = opened.manifest
        self._install_lock = threading.Lock()
        self._merge_lock = threading.Lock()  # held while tables are read to be replaced
        self.changed = threading.Condition()
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
            discard=lambda name, error: self._discard((name,), error),
            check=self._check_open,
        )
        self.frozen: deque[tuple[Memtable, StateChange]] = deque()
        self.applied_lsn = self.manifest.flushed_lsn
        self.slabs = slabs_for(options.memtable_bytes)
        self.memtable = Memtable(self.applied_lsn, options.memtable_bytes, self.slabs)
        self.version = Version(
            (self.memtable,),
            tuple(self._run((meta,)) for meta in reversed(self.manifest.level0)),
            tuple(self._run(metas) for metas in reversed(self.manifest.generations)),
        )
        self.closing = False
        #: The log is kept from here on, though it is flushed: a replica may ask for it.
        self.keep_lsn: Callable[[], int] = lambda: _NOTHING_KEPT

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

    def freeze(self) -> int:
        """Put the memtable in line for its flush and begin a new one. Only the applying thread calls this.

        Returns the LSN below which everything is flushed once that is done.
        """
        if self.applied_lsn == self.memtable.first_lsn:
            return self.applied_lsn
        change = self._state.take_change(self.applied_lsn)
        fresh = Memtable(self.applied_lsn, self._options.memtable_bytes, self.slabs)
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
            counters = self._counters  # before anybody who waits for the flush goes on
            counters.flushes += 1
            counters.flushed_bytes += sum(meta.size_bytes for meta in metas)
            counters.flush_seconds += self._clock.monotonic() - started

        try:
            increment, file = self.checkpoint.write(change)
            names.append(increment.name)
            with self._install_lock:
                old = self.manifest
                changed = old.with_changes(
                    flushed_lsn=change.end_lsn,
                    checkpoint=(*old.checkpoint, increment),
                    level0=(*old.level0, *metas),
                )
                self._install(
                    changed,
                    flushed=memtable,
                    level0=tuple(self._run((meta,)) for meta in metas),
                    then=installed,
                )
        except OSError as error:
            self._discard(names, error)
            raise
        self._segments.release(min(change.end_lsn, self.keep_lsn()))

    def _discard(self, names: Iterable[str], error: OSError) -> None:
        """Give back the space of files that did not become part of the set, to have it for the next attempt.

        After any failure but want of space or of a descriptor it is not known whether they did: recovery sorts it out.
        """
        if error.errno in WANT:
            for name in names:
                self._disk.remove(self._directory / name)

    def _write_table(self, number: int, memtable: Memtable, end_lsn: int) -> TableMeta:
        path = self._directory / table_name(number)
        writer = self._table_writer(number)
        try:
            for records in memtable.sorted():
                writer.add(records)
            meta = writer.finish(memtable.first_lsn, end_lsn)
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

    def _run(self, metas: tuple[TableMeta, ...]) -> Run:
        disk, directory, counters = self._disk, self._directory, self._counters
        return Run(tuple(Table(disk, directory, meta, self.cache, self.open_tables, counters) for meta in metas))

    def _install(
        self,
        manifest: Manifest,
        *,
        flushed: Memtable | None = None,
        level0: tuple[Run, ...] = (),
        replaced: tuple[Run, ...] = (),
        generation: Run | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a new set of tables durable, do what comes ``then``, show it to readers. The install lock is held."""
        store_manifest(self._disk, self.path, manifest)
        self.manifest = manifest
        then()
        with self.changed:
            version = self.version
            generations = tuple(run for run in version.generations if run not in replaced)
            if generation is not None and generation.tables:
                generations = (generation, *generations)
            self.version = Version(
                tuple(memtable for memtable in version.memtables if memtable is not flushed),
                (*level0, *(run for run in version.level0 if run not in replaced)),
                generations,
            )
            if flushed is not None:
                self.frozen.popleft()
            self.changed.notify_all()

    # -- merge -------------------------------------------------------------------------------------------

    def choose_merge(self) -> tuple[Run, ...] | None:
        """Runs to merge next, oldest first."""
        return choose_runs(self.version, self._options)

    def merge(self) -> None:
        """Do the next merge, if there is one. Tables that turn out to be damaged are left as they are."""
        with self._merge_lock:
            runs = self.choose_merge()
            if runs is None:
                return
            if runs[0].damaged:
                self._set_aside(runs[0])
                return
            try:
                self._merge(runs)
            except CorruptFile as damage:
                if not any(run.damaged for run in runs):
                    raise
                _log.error("%s. The table is kept as it is, out of merges", damage.message)

    def _set_aside(self, run: Run) -> None:
        """Make the oldest table of level 0 a generation of its own, as it is."""
        numbers = {table.meta.number for table in run.tables}
        with self._install_lock:
            old = self.manifest
            self._install(
                old.with_changes(
                    level0=tuple(meta for meta in old.level0 if meta.number not in numbers),
                    generations=(*old.generations, run.metas()),
                ),
                replaced=(run,),
                generation=run,
            )

    def damaged(self) -> list[Table]:
        """Tables in which damage was found since the store was opened."""
        return [table for run in self.version.runs() for table in run.tables if table.damage is not None]

    def _merge(self, runs: tuple[Run, ...]) -> None:
        started = self._clock.monotonic()
        oldest = self.version.generations[-1] if self.version.generations else runs[0]
        keep_tombstones = oldest not in runs
        metas = self._write_generation(runs, keep_tombstones=keep_tombstones)
        generation = self._run(metas)
        gone = {table.meta.number for run in runs for table in run.tables}
        try:
            with self._install_lock:
                old = self.manifest
                kept = tuple(run for run in old.generations if not gone.intersection(meta.number for meta in run))
                self._install(
                    old.with_changes(
                        level0=tuple(meta for meta in old.level0 if meta.number not in gone),
                        generations=(*kept, metas) if metas else kept,
                    ),
                    replaced=runs,
                    generation=generation,
                )
        except OSError as error:
            self._discard([meta.name for meta in metas], error)
            raise
        self._retire(table for run in runs for table in run.tables)
        counters = self._counters
        counters.merges += 1
        counters.merged_bytes += generation.size_bytes
        counters.merge_seconds += self._clock.monotonic() - started

    def _write_generation(self, runs: tuple[Run, ...], *, keep_tombstones: bool) -> tuple[TableMeta, ...]:
        first_lsn = min(table.meta.first_lsn for run in runs for table in run.tables)
        end_lsn = max(table.meta.end_lsn for run in runs for table in run.tables)
        metas: list[TableMeta] = []
        writer: TableWriter | None = None
        try:
            for records in merge(runs, self._log_starts, keep_tombstones=keep_tombstones):
                if self.closing:
                    raise Closing
                if writer is None:
                    writer = self._table_writer(self._take_number())
                writer.add(records)
                if writer.size_bytes >= self._options.table_bytes:
                    metas.append(writer.finish(first_lsn, end_lsn))
                    writer = None
            if writer is not None:
                metas.append(writer.finish(first_lsn, end_lsn))
        except BaseException:
            for meta in metas:
                self._disk.remove(self._directory / meta.name)
            if writer is not None:
                writer.abandon()
                self._disk.remove(self._directory / table_name(writer.number))
            raise
        self._disk.sync_directory(self._directory)
        return tuple(metas)

    def _log_starts(self, keys: U64) -> I64:
        """Earliest offset kept of each queue; everything of a topic that is gone goes."""
        starts = np.full(len(keys), np.iinfo(np.int64).max, np.int64)
        topics = keys >> np.uint64(32)
        for topic_id in np.unique(topics).tolist():
            item = self._state.topics.get(topic_id)
            if item is not None:
                mine = topics == np.uint64(topic_id)
                starts[mine] = item.start[(keys[mine] & np.uint64(0xFFFFFFFF)).astype(np.int64) - item.first]
        return starts

    # -- dropping ----------------------------------------------------------------------------------------

    def drop_tables(self, tables: list[Table]) -> int:
        """Drop whole tables, unless a merge is reading tables; returns how many went."""
        if not self._merge_lock.acquire(blocking=False):
            return 0
        try:
            return self._drop_tables(tables)
        finally:
            self._merge_lock.release()

    def _drop_tables(self, tables: list[Table]) -> int:
        live = {table.meta.number for run in self.version.runs() for table in run.tables}
        tables = [table for table in tables if table.meta.number in live]
        gone = {table.meta.number for table in tables}
        with self._install_lock:
            old = self.manifest
            level0 = tuple(meta for meta in old.level0 if meta.number not in gone)
            generations = tuple(
                kept for run in old.generations if (kept := tuple(meta for meta in run if meta.number not in gone))
            )
            changed = old.with_changes(level0=level0, generations=generations)
            store_manifest(self._disk, self.path, changed)
            self.manifest = changed
            with self.changed:
                self.version = Version(
                    self.version.memtables,
                    tuple(left for run in self.version.level0 if (left := _without(run, gone)) is not None),
                    tuple(left for run in self.version.generations if (left := _without(run, gone)) is not None),
                )
                self.changed.notify_all()
        self._retire(tables)
        self._counters.dropped_tables += len(tables)
        return len(tables)

    def _retire(self, tables: Iterable[Table]) -> None:
        """These are in no version any more: remove their names. Readers that have them open go on."""
        for table in tables:
            self.cache.drop(table.meta.number)
            self._files.remove(table.meta.name)
            self.open_tables.forget(table)

    # -- snapshots ---------------------------------------------------------------------------------------

    def pin(self) -> Manifest:
        """The manifest as it is. All files of it stay until it is handed to :meth:`unpin`."""
        with self._install_lock:
            manifest = self.manifest
            self._files.hold(_file_names(manifest))
        return manifest

    def unpin(self, manifest: Manifest) -> None:
        self._files.release(_file_names(manifest))

    def wait_flushed(self, lsn: int, over: Callable[[], bool], timeout: float) -> None:
        """Return once everything before ``lsn`` is flushed, the store is closed, it is ``over``, or time is up."""
        with self.changed:
            self.changed.wait_for(lambda: self.closing or over() or self.manifest.flushed_lsn >= lsn, timeout)


def _file_names(manifest: Manifest) -> list[str]:
    return [meta.name for meta in manifest.files()]


def _without(run: Run, gone: set[int]) -> Run | None:
    if not any(table.meta.number in gone for table in run.tables):
        return run
    kept = tuple(table for table in run.tables if table.meta.number not in gone)
    return Run(kept) if kept else None
