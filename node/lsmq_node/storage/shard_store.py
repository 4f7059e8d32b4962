"""The storage engine of a shard: write-ahead log, memtable, tables, and the state that goes with them.

This is the door: it opens a directory, joins the parts and hands calls on. Writing is in :mod:`.log_writer`,
reading in :mod:`.queries`, the set of tables in :mod:`.tables`, the background in :mod:`.maintenance`.

Not supported: two processes on one directory (see :mod:`.lock`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgpack
import numpy as np

from lsmq.errors import ClientClosed, DiskFull, InvalidRequest, OffsetOutOfRange, TopicExists, UnknownTopic
from lsmq.record_batch import Column, RecordBatch

from .applier import Applier
from .columns import I64, U32, encode_columns
from .disk import Clock, Disk, OsDisk, SystemClock
from .line import Appended, Line
from .log_writer import Committed, LogWriter
from .maintenance import Maintenance
from .options import StoreOptions
from .queries import Queries
from .reader import QueueRead, Slice
from .recovery import Opened, Replay, open_directory, unusable
from .replica_log import ReplicaLog, load_high_watermark
from .retention import expired_tables
from .state import Topic, TopicOptions, TopicState, check_topic_name
from .stats import Counters, StoreStats
from .tables import TableSet
from .wal import Appender, Entry, EntryKind

MAX_QUEUES = 16_000_000


class ShardStore:
    """One shard's store. Thread-safe. Use :meth:`open`; close it, or use it as a context manager."""

    def __init__(
        self, path: Path, options: StoreOptions, disk: Disk, clock: Clock, opened: Opened, *, replicated: bool
    ) -> None:
        self.path = path
        self.options = options
        self._clock = clock
        self._state = opened.state
        self._segments = opened.segments
        self._lock_file = opened.lock
        self._counters = Counters()
        self._tables = TableSet(path, options, disk, clock, opened, self._counters)
        applier = Applier(self._state, self._tables, self._counters, str(path))
        replay = Replay(opened, path, disk)
        tail = self._replay(replay, applier, load_high_watermark(disk, path) if replicated else None)
        epochs = [*self._state.epochs, *((entry.epoch, entry.lsn) for entry in tail if entry.kind == EntryKind.EPOCH)]
        appender = Appender(replay.end_lsn, self._segments.segment_bytes)
        self._line = Line(options, clock, self._state, applier, appender, epochs[-1][0] if epochs else 0)
        self._writer = LogWriter(
            path,
            options,
            self._state,
            self._segments,
            applier,
            self._counters,
            self._line,
            replicated=replicated,
            applied_lsn=tail[0].lsn if tail else replay.end_lsn,
            tail=tail,
            epochs=epochs,
        )
        self._replica: ReplicaLog | None = None
        if replicated:
            self._replica = ReplicaLog(path, options, disk, self._writer, self._segments, self._tables)
        self._queries = Queries(self._state, self._tables, self._counters)
        self._maintenance = Maintenance(
            path, options, disk, clock, self._tables, self._segments, self._writer, self._retain
        )
        self._line.admit = self._maintenance.admit
        self._writer.after_write = self._maintenance.committed
        self._writer.on_disk_full = self._maintenance.disk_is_full
        self._catalog_lock = threading.Lock()  # one change of the catalog at a time, from question to commit
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path | str,
        options: StoreOptions | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        replicated: bool = False,
    ) -> ShardStore:
        """Open or make the store in a directory, recovering what was acknowledged.

        A ``replicated`` store applies what :attr:`replica` is told is committed, instead of all it writes.
        Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``UnsupportedFormat`` or ``CorruptFile``.
        """
        options = options or StoreOptions()
        options.validate()
        disk, clock, path = disk or OsDisk(), clock or SystemClock(), Path(path)
        opened = open_directory(path, options, disk)
        try:
            store = cls(path, options, disk, clock, opened, replicated=replicated)
        except BaseException as error:
            opened.segments.close()
            opened.lock.release()
            if isinstance(error, OSError):
                raise unusable(path, error) from error
            raise
        store._maintenance.start()
        return store

    def _replay(self, replay: Replay, applier: Applier, known_committed: int | None) -> list[Entry]:
        """Apply what the log holds beyond the last flush; a replica only what it knows to be committed.

        Returns the entries that are left.
        """
        started = self._clock.monotonic()
        tail: list[Entry] = []
        for entry in replay:
            if known_committed is None or (entry.end_lsn <= known_committed and not tail):
                applier.replay(entry)
            else:
                tail.append(entry)
        replay.finish()
        self._counters.recovered_entries = replay.entries
        self._counters.recovery_seconds = self._clock.monotonic() - started
        self._counters.records_written = self._counters.bytes_written = 0
        return tail

    def __enter__(self) -> ShardStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def replica(self) -> ReplicaLog:
        """The store as one replica of its shard. Only where it was opened as ``replicated``."""
        assert self._replica is not None, "the store was not opened as a replica"
        return self._replica

    # -- topics ------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        queues: int,
        options: TopicOptions | None = None,
        *,
        topic_id: int | None = None,
        first: int = 0,
        end: int | None = None,
    ) -> Topic:
        """Make a topic, or return the equal one that is there. Durable on return.

        Args:
            queues: logical queues of the topic, over all shards.
            topic_id: where a cluster gives the ids; by default the next free one.
            first, end: the queues this shard holds; by default all.

        Raises ``TopicExists`` when it is there with other queues or options.
        """
        check_topic_name(name)
        options = options or TopicOptions()
        end = queues if end is None else end
        if not 1 <= queues <= MAX_QUEUES:
            raise InvalidRequest(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}", topic=name, limit=MAX_QUEUES)
        with self._catalog_lock:
            with self._line.lock:
                existing = self._state.by_name.get(name)
                if existing is not None:
                    return self._same_topic(existing.topic, queues, options)
                topic = Topic(topic_id or self._state.next_topic_id, name, queues, options, self._clock.now_ms())
                self._state.next_topic_id = max(self._state.next_topic_id, topic.id + 1)
                appended = self._append_topic(topic, first, end)
            self.wait(appended)
            return self.topic(name)

    def _same_topic(self, topic: Topic, queues: int, options: TopicOptions) -> Topic:
        if topic.queues != queues or topic.options != options:
            raise TopicExists(
                f"topic {topic.name!r} exists with {topic.queues} queues and {topic.options.to_dict()}; delete it "
                "first, or create it with the same options",
                topic=topic.name,
                queues=topic.queues,
                options=topic.options.to_dict(),
            )
        return topic

    def _append_topic(self, topic: Topic, first: int, end: int) -> Appended:
        self._maintenance.admit(0)
        fields = [topic.id, topic.name, topic.queues, topic.options.to_dict(), topic.created_ms, first, end]
        return self._line.append_entry(EntryKind.CATALOG, topic.id, 0, msgpack.packb(["put", *fields]))

    def grow_topic(self, name: str, queues: int) -> Topic:
        """Give a topic more queues at its end. Durable on return; no effect when it has that many."""
        if queues > MAX_QUEUES:
            raise InvalidRequest(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}", topic=name, limit=MAX_QUEUES)
        with self._catalog_lock:
            with self._line.lock:
                state = self._topic_state(name)
                if queues <= state.end:
                    return state.topic
                old = state.topic
                topic = Topic(old.id, old.name, queues, old.options, old.created_ms)
                appended = self._append_topic(topic, state.first, queues)
            self.wait(appended)
            return self.topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages; their space comes back with the next merges. Durable on return."""
        with self._catalog_lock:
            with self._line.lock:
                topic = self._topic_state(name).topic
                body = msgpack.packb(["drop", topic.id])
                appended = self._line.append_entry(EntryKind.CATALOG, topic.id, 0, body)
            self.wait(appended)

    def topic(self, name: str) -> Topic:
        """Raises ``UnknownTopic``."""
        return self._topic_state(name).topic

    def topic_by_id(self, topic_id: int) -> Topic:
        """Raises ``UnknownTopic``."""
        return self._queries.topic_state(topic_id).topic

    def topics(self) -> list[Topic]:
        return [state.topic for state in list(self._state.topics.values())]

    def _topic_state(self, name: str) -> TopicState:
        state = self._state.by_name.get(name)
        if state is None:
            raise UnknownTopic(f"there is no topic {name!r}; create it first", topic=name)
        return state

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, topic_id: int, batch: RecordBatch) -> Appended:
        """Check a batch, give its records offsets and put it in line. Never touches the disk.

        Raises ``UnknownTopic``, ``UnknownQueue``, ``InvalidBatch``, ``MessageTooLarge``, ``StoreBusy``,
        ``DiskFull``, ``ShardStopped``, ``OutOfOrderSequence``, ``StaleSequence`` or ``UnknownProducer``.
        """
        return self._line.append_records(((self._queries.topic_state(topic_id), batch),))[0]

    def append_many(self, items: Sequence[tuple[int, RecordBatch]], *, round_: int | None = None) -> list[Appended]:
        """:meth:`append` for batches that belong together: they are committed, or dropped, together.

        Raises ``RoundOver`` when ``round_`` is given and is not the present one any more.
        """
        states = [(self._queries.topic_state(topic_id), batch) for topic_id, batch in items]
        return self._line.append_records(states, round_=round_)

    def delete(self, topic_id: int, queues: U32, offsets: I64) -> Appended:
        """Delete messages: they are not read any more, and their space comes back with merges."""
        return self._append_positions(EntryKind.DELETE, topic_id, queues, offsets)

    def trim(self, topic_id: int, queues: U32 | int, offsets: I64 | int) -> Appended:
        """Move log starts up: messages below are gone. Never moves one down or beyond the end."""
        return self._append_positions(
            EntryKind.TRIM, topic_id, np.atleast_1d(np.asarray(queues)), np.atleast_1d(np.asarray(offsets))
        )

    def _append_positions(self, kind: EntryKind, topic_id: int, queues: U32, offsets: I64) -> Appended:
        batch = self._positions_batch(topic_id, queues, offsets)
        with self._line.lock:
            return self._line.append_entry(kind, topic_id, len(queues), batch)

    def commit_offsets(self, group: str, topic_id: int, queues: U32, offsets: I64, *, reset: bool = False) -> Appended:
        """Set a group's committed offsets. Without ``reset`` an offset never goes back."""
        batch = self._positions_batch(topic_id, queues, offsets)
        body = msgpack.packb([group, batch, reset])
        with self._line.lock:
            self._maintenance.admit(len(body))
            return self._line.append_entry(EntryKind.OFFSETS, topic_id, len(queues), body)

    def _positions_batch(self, topic_id: int, queues: U32, offsets: I64) -> bytes:
        if len(queues) == 0 or len(queues) != len(offsets):
            raise InvalidRequest(f"{len(queues)} queues and {len(offsets)} offsets: give one offset for each queue")
        latest = self.latest_offsets(topic_id, queues)
        wrong = (np.asarray(offsets) > latest) | (np.asarray(offsets) < 0)
        if wrong.any():
            at = int(np.argmax(wrong))
            name = self.topic_by_id(topic_id).name
            raise OffsetOutOfRange(
                f"offset {int(offsets[at])} is not within queue {int(queues[at])} of topic {name!r}, which ends at "
                f"{int(latest[at])}",
                topic=name,
                queue=int(queues[at]),
                earliest=0,
                latest=int(latest[at]),
            )
        return encode_columns(len(queues), {Column.QUEUE: np.asarray(queues), Column.OFFSET: np.asarray(offsets)})

    # -- committing --------------------------------------------------------------------------------------

    @property
    def committed_lsn(self) -> int:
        """Everything below is durable as the flush mode promises, applied and readable."""
        return self._writer.committed_lsn

    @property
    def round(self) -> int:
        """Counts how often what was in line has failed and was dropped."""
        return self._line.round

    def on_commit(self, listener: Callable[[Committed], None]) -> None:
        """Call ``listener`` after each commit, in the committing thread. It must be quick and not raise."""
        self._writer.add_listener(listener)

    def commit(self) -> int:
        """Write, sync and apply all that is in line. Returns the committed LSN.

        Raises ``DiskFull`` when what was in line had to be dropped for want of space, ``ShardStopped`` when
        the disk failed.
        """
        return self._writer.commit()

    def wait(self, appended: Appended, timeout: float | None = None) -> None:
        """Return once the write is committed, leading the group commit if nobody else does.

        Raises what made it fail, or ``TimedOut`` after ``timeout`` seconds: then it may still happen.
        """
        self._writer.wait(appended, timeout)

    # -- reading -----------------------------------------------------------------------------------------

    def bounds(self, topic_id: int, queue: int) -> tuple[int, int]:
        """First offset kept and next offset to be read of a queue. Raises ``UnknownTopic``, ``UnknownQueue``."""
        return self._queries.bounds(topic_id, queue)

    def latest_offsets(self, topic_id: int, queues: U32 | None = None) -> I64:
        """The next offset a reader will see of each queue; of all of them when ``queues`` is None."""
        return self._queries.latest_offsets(topic_id, queues)

    def earliest_offsets(self, topic_id: int, queues: U32 | None = None) -> I64:
        """The first offset kept of each queue; of all of them when ``queues`` is None."""
        return self._queries.earliest_offsets(topic_id, queues)

    def next_offset(self, topic_id: int, queue: int) -> int:
        """The offset the next record appended to the queue will get; committed or not."""
        state = self._queries.topic_state(topic_id)
        return int(state.next[queue - state.first])

    def read(
        self, topic_id: int, queue: int, offset: int, *, max_records: int = 1000, max_bytes: int = 1 << 20
    ) -> Slice:
        """Records of a queue from ``offset`` on, at least one when there is one.

        Raises ``OffsetOutOfRange`` with ``earliest`` and ``latest`` unless ``offset`` is between them,
        ``CorruptFile`` when a table is damaged.
        """
        return self._queries.read(topic_id, queue, offset, max_records=max_records, max_bytes=max_bytes)

    def read_records(
        self, topic_id: int, queue: int, offset: int, end: int, max_records: int, max_bytes: int
    ) -> QueueRead:
        """What :meth:`read` finds before it is encoded; ``[offset, end)`` must be within the queue's bounds."""
        return self._queries.read_records(topic_id, queue, offset, end, max_records, max_bytes)

    def read_many(
        self, topic_id: int, queues: U32, offsets: I64, *, max_records: int = 1000, max_bytes: int = 1 << 20
    ) -> Slice:
        """Records of many queues; cost follows what is returned. Queues are served in the order given.

        An offset below the earliest starts at the earliest; one at or beyond the latest finds nothing.
        """
        return self._queries.read_many(topic_id, queues, offsets, max_records=max_records, max_bytes=max_bytes)

    def offset_for_time(self, topic_id: int, queue: int, time_ms: int) -> int:
        """First offset of the queue stored at or after ``time_ms``; the latest offset when there is none."""
        return self._queries.offset_for_time(topic_id, queue, time_ms)

    def committed_offsets(self, group: str, topic_id: int, queues: U32 | None = None) -> I64:
        """A group's committed offsets; -1 where it has none."""
        return self._queries.committed_offsets(group, topic_id, queues)

    def groups(self) -> list[str]:
        """Names of the groups that have committed offsets here."""
        return self._queries.groups()

    # -- the rest ----------------------------------------------------------------------------------------

    @property
    def pressure(self) -> str:
        """``ok``, ``slow`` (writers should pause for a moment) or ``refuse``."""
        return self._maintenance.pressure()

    def wait_for_room(self, timeout: float) -> None:
        """Block while writes would be refused with ``StoreBusy``, ``timeout`` seconds at most."""
        self._maintenance.wait_for_room(timeout)

    def flush(self) -> None:
        """Commit, write all that is in memory to tables, and return when that is done."""
        self._writer.check_open()
        self._writer.commit(then=self._tables.freeze)
        self._maintenance.wait_flushed()
        self._writer.check_open()

    def compact(self) -> None:
        """Flush, and return when no merge is due any more."""
        self.flush()
        self._maintenance.wait_merged()
        self._writer.check_open()

    def _retain(self) -> None:
        """Drop whole tables that nobody can read any more, after moving log starts past what has expired."""
        plan = expired_tables(self._tables.version, self._state, self._clock.now_ms())
        try:
            for topic_id, queues, offsets in plan.trims:
                if topic_id in self._state.topics:  # else it was deleted since
                    self.wait(self.trim(topic_id, queues, offsets))
        except (UnknownTopic, DiskFull, ClientClosed):
            return  # the next round looks again
        if plan.tables:
            self._tables.drop_tables(plan.tables)

    def stats(self) -> StoreStats:
        """Counters and gauges for ``/metrics``."""
        counters, tables, version = self._counters, self._tables, self._tables.version
        runs = version.runs()
        states = list(self._state.topics.values())
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
            cache_hits_total=tables.cache.hits,
            cache_misses_total=tables.cache.misses,
            cache_bytes=tables.cache.used_bytes,
            committed_lsn=self._writer.committed_lsn,
            durable_lsn=self._writer.durable_lsn,
            flushed_lsn=tables.manifest.flushed_lsn,
            memtable_bytes=sum(memtable.size_bytes for memtable in version.memtables),
            frozen_memtables=len(tables.frozen),
            level0_tables=len(version.level0),
            generations=len(version.generations),
            tables=sum(len(run.tables) for run in runs),
            table_bytes=sum(run.size_bytes for run in runs),
            topics=len(states),
            queues=sum(item.end - item.first for item in states),
            producers=len(self._state.producers),
            disk_free_bytes=self._maintenance.disk_free_bytes,
            disk_full=int(self._maintenance.disk_full),
            pressure=("ok", "slow", "refuse").index(self.pressure),
            stopped=int(self._writer.stopped),
        )

    def close(self) -> None:
        """Commit what is in line, stop the background threads and release the directory."""
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
        finally:
            self._maintenance.close()
            try:
                if not self._writer.stopped:
                    self._segments.sync()
            finally:
                self._segments.close()
                self._lock_file.release()
