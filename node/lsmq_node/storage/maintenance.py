"""A shard's tables and the threads behind its back: flushing, merging, housekeeping.

The *flusher* writes frozen memtables to level 0, the *merger* merges level 0 into level 1 (see
:mod:`.compaction`), the *housekeeper* allocates log segments ahead, syncs the log in asynchronous mode, looks
at the disk's free space and drops what retention has expired. Both of the first change the set of tables in
one step: write the new manifest, then show readers a new version.

Writers never wait for a flush: up to ``max_memtables`` may queue for it. Beyond ``slow_memtables`` the store
reports pressure ``slow``, at the limit it refuses.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgpack
import numpy as np

from lsmq.errors import CorruptFile, DiskFull, LsmqError, ShardStopped, StoreBusy
from lsmq.record_batch import Column, Flag, RecordBatch

from .cache import BlockCache
from .checkpoint import Checkpointer, Snapshot, checkpoint_name
from .columns import DTYPES, I64, U64, decode_column, queue_keys
from .compaction import choose, merge
from .disk import Clock, Disk
from .manifest import Manifest, store_manifest
from .memtable import TOMBSTONE_TOPIC, Memtable
from .options import FlushMode
from .recovery import TABLE_DIRECTORY, Opened
from .retention import expired_tables
from .sstable import Table, TableMeta, TableWriter, table_name
from .state import ShardState, Topic, TopicOptions
from .stats import StoreStats
from .version import Run, Version
from .wal import Entry, EntryKind

if TYPE_CHECKING:
    from .shard_store import ShardStore

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TICK_SECONDS = 1.0


class Maintenance:
    """Owns memtables, tables and manifest of a :class:`ShardStore`."""

    def __init__(self, store: ShardStore, disk: Disk, clock: Clock, opened: Opened) -> None:
        self._store = store
        self._options = store.options
        self._disk = disk
        self._clock = clock
        self._state: ShardState = opened.state
        self._segments = opened.segments
        self._directory = store.path / TABLE_DIRECTORY
        self._cache = BlockCache(store.options.cache_bytes)
        self._manifest = opened.manifest
        self._install_lock = threading.Lock()
        self._merge_lock = threading.Lock()  # held while tables are being read to be replaced
        self._wake = threading.Condition()
        self._checkpointer = Checkpointer()
        self._frozen: deque[tuple[Memtable, Snapshot]] = deque()
        self._applied_lsn = self._manifest.flushed_lsn
        self._memtable = Memtable(self._applied_lsn, store.options.memtable_bytes)
        self.version = Version(
            (self._memtable,),
            tuple(self._run((meta,)) for meta in reversed(self._manifest.level0)),
            tuple(self._run(metas) for metas in reversed(self._manifest.generations)),
        )
        self._disk_full = False
        self._disk_free = 0
        self._end_lsn = self._applied_lsn
        self._unsynced_bytes = 0
        self._merging = False
        self._closing = False
        self._threads: list[threading.Thread] = []

    # -- memtables ---------------------------------------------------------------------------------------

    def room_for(self, payload_bytes: int, record_count: int) -> Memtable:
        """The memtable that takes the next records. Only the committing thread calls this."""
        if not self._memtable.has_room(payload_bytes, record_count):
            self.freeze()
        return self._memtable

    def applied(self, end_lsn: int) -> None:
        self._applied_lsn = end_lsn

    def apply_entry(self, entry: Entry) -> None:
        """Apply a committed entry other than records."""
        state = self._state
        match entry.kind:
            case EntryKind.CATALOG:
                operation, *fields = msgpack.unpackb(entry.body)
                if operation == "put":
                    topic_id, name, queues, options, created_ms, first, end = fields
                    topic = Topic(topic_id, name, queues, TopicOptions.from_dict(options), created_ms)
                    state.put_topic(topic, first, end)
                else:
                    state.drop_topic(fields[0])
            case EntryKind.OFFSETS:
                group, raw, reset = msgpack.unpackb(entry.body)
                queues, offsets = _positions(raw)
                state.commit_offsets(group, entry.topic_id, queues, offsets, reset=reset)
            case EntryKind.TRIM:
                item = state.topics.get(entry.topic_id)
                if item is not None:
                    queues, offsets = _positions(entry.body)
                    index = queues - np.uint32(item.first)
                    item.start[index] = np.maximum(item.start[index], np.minimum(offsets, item.committed[index]))
                    item.version += 1
            case EntryKind.DELETE:
                item = state.topics.get(entry.topic_id)
                if item is not None:
                    queues, offsets = _positions(entry.body)
                    self._apply_tombstones(entry, queue_keys(entry.topic_id | TOMBSTONE_TOPIC, queues), offsets)
                    item.deletes += len(queues)
                    item.version += 1
            case EntryKind.EPOCH:
                pass
            case _:
                raise CorruptFile(
                    f"{self._store.path}: the log entry at LSN {entry.lsn} has unknown kind {entry.kind}",
                    file=str(self._store.path),
                    position=entry.lsn,
                )
        self._applied_lsn = entry.end_lsn

    def _apply_tombstones(self, entry: Entry, keys: U64, offsets: I64) -> None:
        zeros = np.zeros(len(keys), np.uint32)
        flags = np.full(len(keys), Flag.TOMBSTONE, np.uint8)
        memtable = self.room_for(0, len(keys))
        memtable.apply(entry.end_lsn, keys, offsets, zeros, entry.time_ms, memoryview(b""), {Column.FLAGS: flags})

    def freeze(self) -> None:
        """Put the memtable in line for its flush and begin a new one. Only the committing thread calls this."""
        if self._applied_lsn == self._memtable.first_lsn:
            return
        snapshot = self._checkpointer.take(self._state, self._applied_lsn)
        fresh = Memtable(self._applied_lsn, self._options.memtable_bytes, self._memtable.record_count * 5 // 4)
        with self._wake:
            self._frozen.append((self._memtable, snapshot))
            self._memtable = fresh
            version = self.version
            self.version = Version((fresh, *version.memtables), version.level0, version.generations)
            self._wake.notify_all()

    # -- admission ---------------------------------------------------------------------------------------

    def pressure(self) -> str:
        options, frozen, level0 = self._options, len(self._frozen), len(self.version.level0)
        if frozen >= options.max_memtables or level0 >= options.max_level0:
            return "refuse"
        if frozen >= options.slow_memtables or level0 >= options.slow_level0:
            return "slow"
        return "ok"

    def admit(self, size: int) -> None:
        """Raises ``DiskFull`` or ``StoreBusy`` when a write of ``size`` bytes must not be taken."""
        if self._disk_full:
            raise DiskFull(
                f"the disk of {self._store.path} has {self._disk_free >> 20} MiB left, and "
                f"{self._options.min_free_bytes >> 20} MiB are kept free for flushing (min_free_bytes). Free some "
                "space; reads go on, and writes are taken again then.",
                path=str(self._store.path),
                free_bytes=self._disk_free,
            )
        if self.pressure() == "refuse":
            raise StoreBusy(
                f"{len(self._frozen)} memtables wait for their flush and {len(self.version.level0)} tables for "
                f"their merge (limits {self._options.max_memtables} and {self._options.max_level0}); try again in "
                "a moment, or write more slowly",
                frozen_memtables=len(self._frozen),
                level0_tables=len(self.version.level0),
            )

    def wait_for_room(self, timeout: float) -> None:
        """Block while writes are refused, ``timeout`` seconds at most."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self.pressure() != "refuse", timeout)

    def disk_is_full(self) -> None:
        self._disk_full = True

    def committed(self, end_lsn: int, size: int) -> None:
        """The log grew: have the next segment ready before it is needed, and sync in time."""
        crossed = end_lsn // self._manifest.segment_bytes != self._end_lsn // self._manifest.segment_bytes
        self._end_lsn = end_lsn
        self._unsynced_bytes += size
        overdue = self._options.flush_mode is FlushMode.ASYNC and self._unsynced_bytes >= self._options.flush_bytes
        if crossed or overdue:
            with self._wake:
                self._wake.notify_all()
        if end_lsn - self._memtable.first_lsn > 4 * self._options.memtable_bytes:
            self.freeze()  # entries that are not records fill the log too

    # -- threads -----------------------------------------------------------------------------------------

    def start(self) -> None:
        for name, loop in (("flush", self._flush_loop), ("merge", self._merge_loop), ("house", self._house_loop)):
            thread = threading.Thread(target=self._guard, args=(loop,), name=f"lsmq-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guard(self, loop: Callable[[], None]) -> None:
        """A thread that fails stops the shard: nothing goes on as if it had not happened."""
        try:
            loop()
        except _Closing:
            return
        except Exception as error:
            failure = error if isinstance(error, LsmqError) else self._failed(error)
            self._store.stop(failure)
            with self._wake:
                self._wake.notify_all()

    def _failed(self, error: Exception) -> ShardStopped:
        return ShardStopped(
            f"background work on {self._store.path} failed: {error!r}. No more writes are taken; check the disk "
            "and restart the node.",
            path=str(self._store.path),
        )

    def _flush_loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or self._frozen)
                if self._closing:
                    return
                memtable, snapshot = self._frozen[0]
            self._retry_when_full(lambda memtable=memtable, snapshot=snapshot: self._flush(memtable, snapshot))  # type: ignore[misc]

    def _merge_loop(self) -> None:
        while True:
            with self._wake:
                self._merging = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._closing or self._choose() is not None)
                if self._closing:
                    return
                self._merging = True
            with self._merge_lock:
                self._retry_when_full(self._merge)

    def _retry_when_full(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self.disk_is_full()
            with self._wake:
                self._wake.wait_for(lambda: self._closing, _TICK_SECONDS)

    def _house_loop(self) -> None:
        interval = self._options.flush_interval_ms / 1000 if self._options.flush_mode is FlushMode.ASYNC else _TICK_SECONDS
        next_retention = 0.0
        while not self._closing:
            self._prepare_segments()
            self._check_space()
            if self._options.flush_mode is FlushMode.ASYNC and self._unsynced_bytes:
                self._sync()
            if self._clock.monotonic() >= next_retention:
                self._retain()
                next_retention = self._clock.monotonic() + self._options.retention_interval_ms / 1000
            with self._wake:
                if not self._closing:
                    self._wake.wait(min(interval, _TICK_SECONDS))

    def _prepare_segments(self) -> None:
        size = self._manifest.segment_bytes
        try:
            self._segments.prepare(self._end_lsn + size)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self.disk_is_full()

    def _check_space(self) -> None:
        self._disk_free = self._disk.free_bytes(self._store.path)
        ready = self._segments.has(self._end_lsn + self._manifest.segment_bytes)
        self._disk_full = self._disk_free < self._options.min_free_bytes or not ready

    def _sync(self) -> None:
        self._unsynced_bytes = 0
        end_lsn = self._end_lsn
        self._segments.sync()
        self._store.synced(end_lsn)

    # -- flush -------------------------------------------------------------------------------------------

    def _flush(self, memtable: Memtable, snapshot: Snapshot) -> None:
        started = self._clock.monotonic()
        metas: tuple[TableMeta, ...] = ()
        if memtable.record_count:
            number = self._take_number()
            metas = (self._write_table(number, memtable, snapshot.lsn),)
        checkpoint = self._take_number()
        try:
            self._checkpointer.write(self._disk, self._directory, checkpoint, snapshot)
        except OSError:
            for meta in metas:
                self._disk.remove(self._directory / meta.name)
            raise
        with self._install_lock:
            old = self._manifest
            self._install(
                old.with_changes(
                    flushed_lsn=snapshot.lsn, checkpoint=checkpoint, level0=(*old.level0, *metas)
                ),
                flushed=memtable,
                level0=tuple(self._run((meta,)) for meta in metas),
            )
        if old.checkpoint:
            self._disk.remove(self._directory / checkpoint_name(old.checkpoint))
        self._segments.release(snapshot.lsn)
        counters = self._store.counters
        counters.flushes += 1
        counters.flushed_bytes += sum(meta.size_bytes for meta in metas)
        counters.flush_seconds += self._clock.monotonic() - started

    def _write_table(self, number: int, memtable: Memtable, end_lsn: int) -> TableMeta:
        path = self._directory / table_name(number)
        writer = self._table_writer(number)
        try:
            writer.add(memtable.sorted())
            meta = writer.finish(memtable.first_lsn, end_lsn)
        except OSError:
            writer.abandon()
            self._disk.remove(path)
            raise
        self._disk.sync_directory(self._directory)
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
            number = self._manifest.next_number
            self._manifest = self._manifest.with_changes(next_number=number + 1)
            return number

    def _run(self, metas: tuple[TableMeta, ...]) -> Run:
        return Run(tuple(Table(self._disk, self._directory, meta, self._cache) for meta in metas))

    def _install(
        self,
        manifest: Manifest,
        *,
        flushed: Memtable | None = None,
        level0: tuple[Run, ...] = (),
        replaced: tuple[Run, ...] = (),
        generation: Run | None = None,
    ) -> None:
        """Make a new set of tables durable, then show it to readers. The install lock is held."""
        store_manifest(self._disk, self._store.path, manifest)
        self._manifest = manifest
        with self._wake:
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
                self._frozen.popleft()
            self._wake.notify_all()

    # -- merge -------------------------------------------------------------------------------------------

    def _choose(self) -> tuple[Run, ...] | None:
        """Runs to merge next, oldest first."""
        version = self.version
        level0, generations = version.level0[::-1], version.generations[::-1]
        runs = (*generations, *level0)
        pick = choose(
            [run.size_bytes for run in level0],
            [run.size_bytes for run in generations],
            self._options,
            records=sum(table.meta.record_count for run in runs for table in run.tables),
            tombstones=sum(run.tombstone_count for run in runs),
        )
        if pick is None:
            return None
        return (*generations[len(generations) - pick.generations :], *level0[: pick.level0])

    def _merge(self) -> None:
        started = self._clock.monotonic()
        runs = self._choose()
        if runs is None:
            return
        oldest = self.version.generations[-1] if self.version.generations else runs[0]
        keep_tombstones = oldest not in runs
        metas = self._write_generation(runs, keep_tombstones=keep_tombstones)
        generation = self._run(metas)
        gone = {table.meta.number for run in runs for table in run.tables}
        with self._install_lock:
            old = self._manifest
            kept = tuple(run for run in old.generations if not gone.intersection(meta.number for meta in run))
            self._install(
                old.with_changes(
                    level0=tuple(meta for meta in old.level0 if meta.number not in gone),
                    generations=(*kept, metas) if metas else kept,
                ),
                replaced=runs,
                generation=generation,
            )
        for run in runs:
            for table in run.tables:
                table.retire()
        counters = self._store.counters
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
                if self._closing:
                    raise _Closing
                if writer is None:
                    writer = self._table_writer(self._take_number())
                writer.add(records)
                if writer.size_bytes >= self._options.table_bytes:
                    metas.append(writer.finish(first_lsn, end_lsn))
                    writer = None
            if writer is not None:
                metas.append(writer.finish(first_lsn, end_lsn))
        except (OSError, _Closing):
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

    # -- retention ---------------------------------------------------------------------------------------

    def _retain(self) -> None:
        """Drop whole tables that nobody can read any more, after moving log starts past what has expired."""
        plan = expired_tables(self.version, self._state, self._clock.now_ms())
        for topic_id, queues, offsets in plan.trims:
            self._store.wait(self._store.trim(topic_id, queues, offsets))
        if not plan.tables or not self._merge_lock.acquire(blocking=False):
            return  # a merge that is under way drops what it reads; the rest goes in the next round
        try:
            self._drop_tables(plan.tables)
        finally:
            self._merge_lock.release()

    def _drop_tables(self, tables: list[Table]) -> None:
        live = {table.meta.number for run in self.version.runs() for table in run.tables}
        tables = [table for table in tables if table.meta.number in live]
        gone = {table.meta.number for table in tables}
        with self._install_lock:
            old = self._manifest
            level0 = tuple(meta for meta in old.level0 if meta.number not in gone)
            generations = tuple(
                kept for run in old.generations if (kept := tuple(meta for meta in run if meta.number not in gone))
            )
            changed = old.with_changes(level0=level0, generations=generations)
            store_manifest(self._disk, self._store.path, changed)
            self._manifest = changed
            with self._wake:
                self.version = Version(
                    self.version.memtables,
                    tuple(left for run in self.version.level0 if (left := _without(run, gone)) is not None),
                    tuple(left for run in self.version.generations if (left := _without(run, gone)) is not None),
                )
                self._wake.notify_all()
        for table in tables:
            table.retire()
        self._store.counters.dropped_tables += len(tables)

    # -- the rest ----------------------------------------------------------------------------------------

    def missing_table(self, error: FileNotFoundError) -> CorruptFile:
        return CorruptFile(
            f"{error.filename}: a table of the manifest has disappeared from the disk. Restore this directory from "
            "a replica or a backup.",
            file=str(error.filename),
            position=0,
        )

    def wait_flushed(self) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self._store.stopped or not self._frozen)

    def wait_merged(self) -> None:
        with self._wake:
            self._wake.wait_for(
                lambda: self._closing or self._store.stopped or (not self._merging and self._choose() is None)
            )

    def stats(self) -> StoreStats:
        version, counters = self.version, self._store.counters
        runs = version.runs()
        return StoreStats(
            commits_total=counters.commits,
            committed_entries_total=counters.committed_entries,
            records_written_total=counters.records_written,
            bytes_written_total=counters.bytes_written,
            records_read_total=counters.records_read,
            flushes_total=counters.flushes,
            flushed_bytes_total=counters.flushed_bytes,
            flush_seconds=counters.flush_seconds,
            merges_total=counters.merges,
            merged_bytes_total=counters.merged_bytes,
            merge_seconds=counters.merge_seconds,
            dropped_tables_total=counters.dropped_tables,
            rebuilt_indexes_total=counters.rebuilt_indexes,
            recovered_entries=counters.recovered_entries,
            recovery_seconds=counters.recovery_seconds,
            fsyncs_total=self._segments.fsync_count,
            wal_bytes_total=self._segments.written_bytes,
            cache_hits_total=self._cache.hits,
            cache_misses_total=self._cache.misses,
            cache_bytes=self._cache.used_bytes,
            committed_lsn=self._store.committed_lsn,
            durable_lsn=self._store.durable_lsn,
            flushed_lsn=self._manifest.flushed_lsn,
            memtable_bytes=sum(memtable.size_bytes for memtable in version.memtables),
            frozen_memtables=len(self._frozen),
            level0_tables=len(version.level0),
            generations=len(version.generations),
            tables=sum(len(run.tables) for run in runs),
            table_bytes=sum(run.size_bytes for run in runs),
            topics=len(self._state.topics),
            queues=sum(item.end - item.first for item in list(self._state.topics.values())),
            producers=len(self._state.producers),
            disk_free_bytes=self._disk_free,
            disk_full=int(self._disk_full),
            pressure=("ok", "slow", "refuse").index(self.pressure()),
            stopped=int(self._store.stopped),
        )

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()


class _Closing(Exception):
    """The store is being closed: leave the merge."""


def _without(run: Run, gone: set[int]) -> Run | None:
    if not any(table.meta.number in gone for table in run.tables):
        return run
    kept = tuple(table for table in run.tables if table.meta.number not in gone)
    return Run(kept) if kept else None


def _positions(raw: bytes) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint32]], I64]:
    batch = RecordBatch(raw, source="log entry")
    return (
        decode_column(raw, batch.directory.get(Column.QUEUE), batch.record_count, DTYPES[Column.QUEUE]),
        decode_column(raw, batch.directory.get(Column.OFFSET), batch.record_count, DTYPES[Column.OFFSET]),
    )
