"""The storage engine of a shard: write-ahead log, memtable, tables, and the state that goes with them.

This is the door: it opens a directory, joins the parts and hands calls on. Writing is in :mod:`.log_writer`,
reading in :mod:`.queries`, the set of tables in :mod:`.tables`, the background in :mod:`.maintenance`.

Not supported: two processes on one directory (see :mod:`.lock`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

import msgpack
import numpy as np

from lsmq.errors import CorruptFile, LsmqError
from lsmq.record_batch import RecordBatch

from .applier import Applier
from .batch_checks import encode_positions
from .catalog import ShardCatalog
from .columns import I64, U32
from .commit_point import CommitPoint, CommitRule, Committed
from .dedupe_chain import expiries
from .delayed_records import DelayedRecords
from .disk import Clock, Disk, OsDisk, SystemClock
from .documents import Changes, encode_changes
from .epochs import epoch_start
from .failures import refused
from .first_messages import first_stored_ms, offsets_for_time
from .gauges import measure
from .key_cleaner import KeyCleaner
from .lapses import Lapses
from .line import Appended, Behind, Line, Taken
from .lock import forked
from .log_writer import LogWriter
from .losses import LossReason
from .maintenance import Flush, Maintenance
from .merger import Merger
from .named_topics import NamedTopics
from .options import FlushMode, StoreOptions
from .point_reads import PointRecord
from .queries import Queries, ReadLimits
from .reader import Slice
from .recovery import LogReplay, Opened, open_directory, unusable
from .replica_log import ReplicaLog, load_high_watermark
from .retainer import Retainer
from .retention import Retention
from .scrub import Scrub
from .search import search
from .shard_time import ShardTime
from .snapshot_source import FLUSH_WAIT_S, Exports, SnapshotSource
from .state import StoredTopic
from .stats import Counters, StoreStats
from .tables import TableSet
from .time_cuts import starts_after
from .topic_options import TopicOptions
from .wal import Appender, EntryKind, LogEntry
from .wal_reader import LogFloor

_log = logging.getLogger("lsmq.storage")
_NONE: Changes = {}


class ShardStore:
    """One shard's store. Thread-safe. Use :meth:`open`; close it, or use it as a context manager."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        disk: Disk,
        clock: Clock,
        opened: Opened,
        rule: CommitRule,
        floor: LogFloor | None = None,
    ) -> None:
        self.path = path
        self.options = options
        self._clock = clock
        self.time = ShardTime(clock, str(path))
        self._state = opened.state
        self._segments = opened.segments
        self._lock_file = opened.lock
        self._counters = Counters()
        self._tables = TableSet(path, options, disk, clock, opened, self._counters)
        applier = Applier(self._state, self._tables, self._counters, str(path))
        known_committed = load_high_watermark(disk, path) if rule is CommitRule.AGREED else None
        if known_committed is not None:
            floor = floor or LogFloor()
            floor = LogFloor(max(known_committed, floor.lsn), floor.led_epoch)
        replay = LogReplay(opened, path, disk, floor)
        tail = self._replay(replay, applier, known_committed)
        begun = [epoch_start(entry, str(path)) for entry in tail if entry.kind == EntryKind.EPOCH]
        epochs = [*self._state.epochs, *begun]
        appender = Appender(replay.end_lsn, self._segments.segment_bytes)
        self.time.opened(max([self._state.time_ms, *(entry.time_ms for entry in tail)]))
        self._line = Line(options, self.time, self._state, applier, appender, epochs[-1].epoch if epochs else 0)
        commits = self._commits = CommitPoint(self._line, applier, tail[0].lsn if tail else replay.end_lsn, tail)
        segments, line = self._segments, self._line
        writer = self._writer = LogWriter(path, options, segments, self._counters, line, commits, rule, epochs)
        self._segments.final_lsn = lambda: min(commits.lsn, writer.durable_lsn)
        self.take_led = commits.take_led  # by topic, what was written since, where this store leads
        self._exports = Exports(path, disk, self._tables, self._writer)
        #: The store as one replica of its shard.
        self.replica = ReplicaLog(path, options, disk, writer, self._segments, self._tables, self._exports.log_from)
        self.replica.damage = replay.damage
        queries = self._queries = Queries(self._state, self._tables, self._counters, self.time.expired)
        self.topic_changes, self.topics_changed_since = queries.topic_changes, queries.topics_changed_since
        self.find_key, self.search = queries.find_key, partial(search, queries)  # by key, newest first; by a filter
        self.group_marks, self.group_lag, self.applied_lsn = queries.group_marks, queries.group_lag, queries.applied_lsn
        self.check_open, self.disk_busy_s = writer.check_open, writer.disk_busy_s  # the first raises what stopped it
        #: Messages that come later.
        self.delayed = DelayedRecords(self._state, self._queries, self._line, self.time)
        self._merger = Merger(
            path, options, disk, clock, self._tables, self._state, self._counters, self.time.surely_expired
        )
        self.named = NamedTopics(self._state, self._line, self._queries, options, self.time)  # what is theirs alone
        #: What has expired and is moved to other topics.
        self.lapses = lapses = Lapses(self._state, self._queries, self._line, self.time)
        #: What goes by itself, and what there is.
        log_starts, expired_before = self._merger.log_starts, self.time.expired_before
        self.retention = retention = Retention(
            self._state, self._tables, self._queries, log_starts, expired_before, self.documents, self.named
        )
        retainer = Retainer(retention, self._merger, self.time, writer, self.trim, self.delete, self.barrier, lapses)
        self._maintenance = Maintenance(
            path, options, disk, clock, self._tables, self._merger, self._segments, writer, retainer.run
        )
        self._maintenance.is_watchful = lambda: retention.is_watchful
        retention.disk_shortage = self._merger.missing_bytes
        cleaner = KeyCleaner(
            self._state, self._queries, clock, self.time, self._line, writer, self.delete, self._maintenance.paused
        )
        self._maintenance.clean_keys = cleaner.run
        self._tables.make_durable = self._writer.sync_to
        self._tables.ids.since_ms = expiries(self._state, self.time.expired_before)
        self._line.expired_before = self._tables.checkpoint.expired_before = self.time.expired_before
        self._writer.saw_time = self.time.saw
        self._line.admit = self._maintenance.admit
        self._writer.after_write = self._maintenance.committed
        self._commits.after_apply = self._maintenance.applied
        self._writer.on_disk_full = self._maintenance.disk_is_full
        self._writer.on_stop = self._maintenance.progressed
        self._catalog = catalog = ShardCatalog(self._state, self._line, clock, self.wait)
        self.names, self.topic_count, self.numbers = self.named.names, catalog.count, queries.numbers
        self.are_empty, self.queue_count = queries.are_empty, catalog.queue_count
        self.are_at_hand = queries.are_at_hand
        self.scrub, self.starts_after = Scrub(self._tables), partial(starts_after, queries)
        self._closed = False
        self._lock_file.on_fork.append(self._let_go)
        if replay.damage is None:
            self._maintenance.start()
        else:

            def cut_off() -> None:
                replay.finish()
                self._writer.before_truncate = lambda: None
                self._maintenance.start()

            self._writer.before_truncate = cut_off

    @classmethod
    def open(
        cls,
        path: Path | str,
        options: StoreOptions | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        replicated: bool = False,
        floor: LogFloor | None = None,
    ) -> ShardStore:
        """Open or make the store in a directory, recovering what was acknowledged.

        A ``replicated`` store applies what :attr:`replica` is told is committed, instead of all it writes; and a log
        that is damaged in the middle, by what ``floor`` says of it, is no error but ``replica.damage``.
        Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``UnsupportedFormat`` or ``CorruptFile``.
        """
        options = options or StoreOptions()
        options.validate()
        disk, clock, path = disk or OsDisk(), clock or SystemClock(), Path(path)
        try:
            opened = open_directory(path, options, disk)
        except CorruptFile as damage:
            raise refused(path, damage, untouched=True) from damage
        try:
            rule = CommitRule.AGREED if replicated else CommitRule.ALONE
            store = cls(path, options, disk, clock, opened, rule, floor)
        except BaseException as error:
            opened.segments.close()
            opened.lock.release()
            if isinstance(error, OSError):
                raise unusable(path, error) from error
            if isinstance(error, CorruptFile):
                raise refused(path, error, untouched=True) from error
            raise
        return store

    def _replay(self, replay: LogReplay, applier: Applier, known_committed: int | None) -> list[LogEntry]:
        """Apply what the log holds beyond the last flush; a replica only what it knows to be committed.

        Returns the entries that are left.
        """
        started = self._clock.monotonic()
        tail = replay.run(applier.replay, known_committed)
        self._counters.recovered_entries = replay.entries
        self._counters.recovery_seconds = self._clock.monotonic() - started
        self._counters.records_written = self._counters.bytes_written = 0
        return tail

    def __enter__(self) -> ShardStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
    ) -> StoredTopic:
        """Make a topic, or return the equal one that is there. Durable on return.

        Args:
            queues: logical queues of the topic, over all shards.
            topic_id: where a cluster gives the ids; by default the next free one.
            first, end: the queues this shard holds; by default all.

        Raises ``TopicExists`` when it is there with other queues or options.
        """
        return self._catalog.create(name, queues, options or TopicOptions(), topic_id, first, end)

    def next_topic_id(self) -> int:
        """What the next topic that is made without an id will have."""
        return self._state.next_topic_id

    def grow_topic(self, name: str, queues: int, end: int | None = None) -> StoredTopic:
        """Give a topic more queues, those below ``end`` (by default all) on this shard. Durable on return."""
        return self._catalog.grow(name, queues, end)

    def alter_topic(self, name: str, options: TopicOptions) -> StoredTopic:
        """Give a topic other options. Durable on return; no effect when it has those. Raises ``UnknownTopic``."""
        return self._catalog.alter(name, options)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages; their space comes back with the next merges. Durable on return."""
        self._catalog.delete(name)

    def put_topic(self, topic: StoredTopic, first: int, end: int) -> Appended:
        """Put in line that there is ``topic``, of which this shard holds the queues ``[first, end)``; not waited for.

        For a leader whose topics are decided elsewhere. One of the same name and another id is deleted with it.
        """
        return self._catalog.put(topic, first, end)

    def drop_topic(self, topic_id: int) -> Appended:
        """Put in line that the topic is gone; not waited for."""
        return self._catalog.drop(topic_id)

    def has_topic(self, topic_id: int, queue: int = -1) -> bool:
        """Whether the topic is there, as readers see it; up to ``queue``, where it has grown."""
        state = self._state.topics.get(topic_id)
        return state is not None and queue < state.end

    def knows(self, topic: StoredTopic) -> bool:
        """Whether the topic is there with all queues that ``topic`` has, and with its options or newer ones."""
        state = self._state.topics.get(topic.id)
        if state is None or topic.queues > state.topic.queues:
            return False
        return topic.options.revision <= state.topic.options.revision

    def topic(self, name: str) -> StoredTopic:
        """Raises ``UnknownTopic``."""
        return self._catalog.state_of(name).topic

    def topic_by_id(self, topic_id: int) -> StoredTopic:
        """Raises ``UnknownTopic``."""
        return self._queries.topic_state(topic_id).topic

    def topics(self) -> list[StoredTopic]:
        """Those that clients know of."""
        return self._state.known_topics()

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, topic_id: int, batch: RecordBatch, *, flush: FlushMode | None = None) -> Appended:
        """Give the records of a batch offsets, in line. Reads the disk only for a producer idle since the last flush.

        ``flush``: how durable it is before it may be committed; None: as the topic says, or else the store.
        Raises ``UnknownTopic``, ``UnknownQueue``, ``InvalidBatch``, ``MessageTooLarge``, ``StoreBusy``,
        ``DiskFull``, ``ShardStopped``, or what :meth:`.Sequences.repeat` raises for a batch of a producer.
        """
        return self._line.append_records(((self._queries.topic_state(topic_id), batch),), flush=flush)[0]

    def append_many(
        self, items: Sequence[tuple[int, RecordBatch]], *, documents: Changes | None = None
    ) -> list[Appended]:
        """:meth:`append` for batches that belong together: they are committed, or dropped, together.

        With ``documents`` there is one item more at the end, for them (see :meth:`put_documents`); wait for that one.
        They come behind the batches in the log: a crash may leave the batches without them, never them without the
        batches. So whoever finds them missing does all of it again, with batches of an idempotent producer, which
        are then not stored twice.
        """
        states = [(self._queries.topic_state(topic_id), batch) for topic_id, batch in items]
        behind = None if documents is None else self._documents_behind(documents)
        return self._line.append_records(states, behind=behind)

    def put_documents(self, changes: Changes) -> Appended:
        """Put in line that documents are put, or deleted where the value is None: all of them or none; not waited for.

        Raises ``DocumentsFull`` beyond ``max_documents_bytes``, ``RequestTooLarge`` or ``InvalidRequest`` for a
        document beyond its own limits (:mod:`.documents`), and what other writes raise.
        """
        return self._line.append_records((), behind=self._documents_behind(changes))[0]

    def take_producer(self, producer_id: int, epoch: int | None = None, new: bool = False) -> Taken:
        """Put in line that somebody goes on with a producer's id: :meth:`.Line.take_producer`. May read the disk."""
        return self._line.take_producer(producer_id, epoch, new)

    def producer_epoch(self, producer_id: int) -> int | None:
        """The latest epoch of an idempotent producer's committed batches, None if forgotten. May read the disk."""
        head = self._state.producers.head(producer_id)
        return None if head is None else head.epoch

    def barrier(self) -> Appended | None:
        """What to wait for until all that is in line by now is committed; None when it is already."""
        with self._line.lock:
            lsn = self._line.end_lsn
            if lsn <= self._commits.lsn:
                return None
            return Appended(lsn, self._line.current, np.empty(0, np.int64), self._clock.now_ms())

    def _documents_behind(self, changes: Changes) -> Behind:
        self._state.documents.check_room(changes, self.options.max_documents_bytes)
        return Behind(EntryKind.DOCUMENT, 0, 0, encode_changes(changes))

    def delete(self, topic_id: int, queues: U32, offsets: I64, why: LossReason = LossReason.ASKED) -> Appended:
        """Delete messages: they are not read any more, and their space comes back with merges."""
        return self._append_positions(EntryKind.DELETE, topic_id, queues, offsets, why)

    def trim(
        self, topic_id: int, queues: U32 | int, offsets: I64 | int, why: LossReason = LossReason.ASKED
    ) -> Appended:
        """Move log starts up: messages below are gone. Never moves one down or beyond the end."""
        places = np.atleast_1d(np.asarray(queues)), np.atleast_1d(np.asarray(offsets))
        return self._append_positions(EntryKind.TRIM, topic_id, *places, why)

    def _append_positions(self, kind: EntryKind, topic_id: int, queues: U32, offsets: I64, check: int = 0) -> Appended:
        batch = self._positions_batch(topic_id, queues, offsets)
        with self._line.lock:
            self._line.check_waiting(len(batch))
            return self._line.append_entry(kind, topic_id, len(queues), batch, check)

    def commit_offsets(
        self, group: str, topic_id: int, queues: U32, offsets: I64, *, reset: bool = False, documents: Changes = _NONE
    ) -> Appended:
        """Set a group's committed offsets; without ``reset`` none goes back.

        ``documents`` are put with them, as in :meth:`append_many`.
        """
        batch = self._positions_batch(topic_id, queues, offsets)
        body = msgpack.packb([group, batch, reset])
        changes = self._documents_behind(documents).body if documents else b""
        with self._line.lock:
            self._line.check_room(len(body) + len(changes))
            appended = self._line.append_entry(EntryKind.OFFSETS, topic_id, len(queues), body)
            return self._line.append_entry(EntryKind.DOCUMENT, 0, 0, changes) if changes else appended

    def forget_group(self, group: str) -> Appended:
        """Drop all committed offsets of a group."""
        with self._line.lock:
            return self._line.append_entry(EntryKind.OFFSETS, 0, 0, msgpack.packb([group, None, True]))

    def _positions_batch(self, topic_id: int, queues: U32, offsets: I64) -> bytes:
        latest = self.latest_offsets(topic_id, queues)
        return encode_positions(self.topic_by_id(topic_id), queues, offsets, latest)

    # -- committing --------------------------------------------------------------------------------------

    @property
    def committed_lsn(self) -> int:
        """Everything below is durable as the flush mode promises, applied and readable."""
        return self._commits.lsn

    @property
    def round(self) -> int:
        """Counts how often what was in line has failed and was dropped."""
        return self._line.round

    def on_commit(self, listener: Callable[[Committed], None]) -> None:
        """Call ``listener`` after each commit, in the committing thread. It must be quick and not raise."""
        self._commits.add_listener(listener)

    def commit(self) -> int:
        """Write, sync and apply all that is in line. Returns the committed LSN.

        Raises ``DiskFull`` where what was in line was dropped for want of space, ``ShardStopped`` where a disk failed.
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

    def first_stored_ms(self, topic_id: int, queues: U32) -> I64:
        """When the first message of each queue was stored: see :func:`.first_messages.first_stored_ms`."""
        return first_stored_ms(self._queries, topic_id, queues)

    def next_offset(self, topic_id: int, queue: int) -> int:
        """The offset the next record appended to the queue will get; committed or not."""
        state = self._queries.topic_state(topic_id)
        return int(state.next[queue - state.first])

    def read(self, topic_id: int, queue: int, offset: int, **limits: Unpack[ReadLimits]) -> Slice:
        """Records of a queue from ``offset`` on that have not expired: see :meth:`.Queries.read`."""
        return self._queries.read(topic_id, queue, offset, **limits)

    def read_bytes(self, topic_id: int, queue: int, offset: int, max_records: int) -> list[bytes]:
        """The bytes of up to ``max_records`` messages of a queue: see :meth:`.Queries.read_bytes`."""
        return self._queries.read_bytes(topic_id, queue, offset, max_records)

    def read_one(self, topic_id: int, queue: int, offset: int) -> PointRecord | None:
        """The message at an offset, where it is found at once: see :meth:`.Queries.read_one`."""
        return self._queries.read_one(topic_id, queue, offset)

    def read_many(
        self, topic_id: int, queues: U32, offsets: I64, *, ends: I64 | None = None, **limits: Unpack[ReadLimits]
    ) -> Slice:
        """Records of many queues that have not expired: see :meth:`.Queries.read_many`."""
        return self._queries.read_many(topic_id, queues, offsets, ends=ends, **limits)

    def lag(self, topic_id: int, queues: U32, offsets: I64) -> tuple[I64, float]:
        """Records there are of each queue from its offset on, and what one of the topic takes, about, in bytes."""
        return self._queries.lag(topic_id, queues, offsets)

    def lag_in_tables(self, topic_id: int, queues: U32, offsets: I64) -> I64:
        """Records of each of the sorted, distinct queues from its offset on that are not in memory any more."""
        return self._queries.lag_in_tables(topic_id, queues, offsets)

    def offsets_for_time(self, topic_id: int, queues: U32, time_ms: int) -> I64:
        """The first offset of each queue stored since ``time_ms``: see :func:`.first_messages.offsets_for_time`."""
        return offsets_for_time(self._queries, topic_id, queues, time_ms)

    def committed_offsets(self, group: str, topic_id: int, queues: U32 | None = None) -> I64:
        """A group's committed offsets; -1 where it has none."""
        return self._queries.committed_offsets(group, topic_id, queues)

    def groups(self, after: str | None = None, limit: int = 0) -> list[str]:
        """Names of the groups that have committed offsets here; or so many of them after a name, in order."""
        return self._queries.groups(after, limit)

    def topics_of(self, group: str) -> list[int]:
        """Ids of the topics that a group has committed offsets of here."""
        return self._queries.topics_of(group)

    def document(self, key: str) -> bytes | None:
        """A committed document; None where there is none."""
        return self._state.documents.get(key)

    def documents(self, prefix: str = "") -> list[tuple[str, bytes]]:
        """Committed documents whose key begins with ``prefix``, sorted by key. Costs what is found."""
        with self._line.lock:
            return self._state.documents.with_prefix(prefix)

    def documents_of_each(self, prefix: str, depth: int, name: str) -> list[tuple[str, bytes]]:
        with self._line.lock:
            return self._state.documents.of_each(prefix, depth, name)

    @property
    def pressure(self) -> str:
        """``ok``, ``slow`` (writers should pause for a moment) or ``refuse``."""
        return self._maintenance.pressure()

    def wait_for_room(self, timeout: float) -> None:
        """Block while writes would be refused with ``StoreBusy``, ``timeout`` seconds at most."""
        self._maintenance.wait_for_room(timeout)

    def flush(self) -> None:
        """Commit, write all that is in memory to tables, and return when that is done.

        Raises ``DiskFull`` after an attempt that found no space; it is repeated in the background until it succeeds.
        """
        self._maintenance.wait_flushed(self.begin_flush())
        self._writer.check_open()

    def begin_flush(self) -> Flush:
        """Commit, and have all that is in memory by now written to tables; does not wait for that."""
        self._writer.check_open()
        self._writer.commit()
        return Flush(self._maintenance, self._commits.between_entries(self._tables.freeze))

    def on_progress(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, in any thread, when a flush or a merge has ended, or the store. It must be quick."""
        self._maintenance.on_progress = listener

    def compact(self) -> None:
        """Flush, and return when no merge is due any more. Raises ``DiskFull`` as :meth:`flush` does."""
        self.flush()
        self._maintenance.wait_merged()
        self._writer.check_open()

    def export_snapshot(self, flush_wait_s: float = FLUSH_WAIT_S) -> SnapshotSource:
        """Hold the files of a snapshot, to be read and closed. Flushes what is applied, and may block for that.

        Raises ``ClientClosed`` or ``ShardStopped``.
        """
        return self._exports.export(flush_wait_s)

    def stop(self, failure: LsmqError) -> None:
        """Take no more writes: ``failure`` says why."""
        self._writer.stop(failure)

    def on_fork(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` in a child that is forked while the store is open: the store is the parent's."""
        self._lock_file.on_fork.append(listener)

    def _let_go(self) -> None:
        self._closed = True
        self._writer.let_go(forked(self.path))

    @property
    def stopped(self) -> bool:
        """Whether a failure of the disk has ended all writing."""
        return self._writer.stopped

    @property
    def segment_bytes(self) -> int:
        """Size of the log's segment files."""
        return self._segments.segment_bytes

    @property
    def disk_full(self) -> bool:
        """Whether writes are refused for want of disk space."""
        return self._maintenance.disk_full

    def damage(self) -> list[str]:
        """What is known to be damaged on the disk, in words: each file once."""
        parts = self._tables, self._tables.checkpoint, self._tables.ids
        return [one.damage.message for part in parts for one in part.damaged() if one.damage is not None]

    def stats(self) -> StoreStats:
        """Counters and gauges for ``/metrics``."""
        parts = self._tables, self._segments, self._line, self._writer, self._maintenance, self._merger, self.time
        return measure(self._counters, self._state, self.named, *parts)

    def close(self) -> None:
        """Commit what is in line, stop the background threads and release the directory."""
        if self._closed:
            return
        self._closed = True
        self._exports.close()
        try:
            self._writer.close()
        finally:
            self._maintenance.close()
            try:
                if not self._writer.stopped:
                    self._segments.sync()
                    self._note_end()
            finally:
                self._segments.close()
                self._tables.close()
                self._lock_file.release()

    def _note_end(self) -> None:
        """Note where the log ends: if something is missing when it is opened again, it is named."""
        try:
            self._segments.note(self._writer.written_lsn, closed=True)
        except OSError as error:
            _log.warning("%s: the end of the log could not be noted: %s", self.path, error)
