"""What a store measures of itself: its counters, and what its parts hold at the moment."""

from __future__ import annotations

from .line import Line
from .log_writer import LogWriter
from .losses import LossReason
from .maintenance import Maintenance
from .merger import Merger
from .named_topics import NamedTopics
from .segments import SegmentFiles
from .shard_time import ShardTime
from .state import ShardState
from .stats import Counters, StoreStats
from .tables import TableSet


def measure(
    counters: Counters,
    state: ShardState,
    named: NamedTopics,
    tables: TableSet,
    segments: SegmentFiles,
    line: Line,
    writer: LogWriter,
    maintenance: Maintenance,
    merger: Merger,
    time: ShardTime,
) -> StoreStats:
    """Everything in one look; parts may move on while it is taken."""
    version = tables.version
    runs = version.runs()
    checkpoint = tables.checkpoint.files
    return StoreStats(
        commits_total=counters.commits,
        committed_entries_total=counters.committed_entries,
        records_written_total=counters.records_written,
        bytes_written_total=counters.bytes_written,
        records_read_total=counters.records_read,
        bytes_read_total=counters.bytes_read,
        flushes_total=counters.flushes,
        flushed_bytes_total=counters.flushed_bytes,
        flush_seconds=counters.flush_seconds,
        checkpoint_written_bytes_total=counters.checkpoint_bytes,
        merges_total=counters.merges,
        merged_bytes_total=counters.merged_bytes,
        merge_seconds=counters.merge_seconds,
        dropped_tables_total=counters.dropped_tables,
        rebuilt_indexes_total=counters.rebuilt_indexes,
        recovered_entries=counters.recovered_entries,
        recovery_seconds=counters.recovery_seconds,
        fsyncs_total=segments.fsync_count,
        wal_bytes_total=segments.written_bytes,
        cache_hits_total=tables.cache.hits,
        cache_misses_total=tables.cache.misses,
        cache_bytes=tables.cache.used_bytes,
        committed_lsn=writer.commits.lsn,
        durable_lsn=writer.durable_lsn,
        flushed_lsn=tables.manifest.flushed_lsn,
        memtable_bytes=sum(memtable.size_bytes for memtable in version.memtables),
        frozen_memtables=len(tables.frozen),
        level0_tables=len(version.level0),
        generations=len(version.generations),
        tables=sum(len(run.tables) for run in runs),
        open_tables=len(tables.open_tables),
        damaged_tables=len(tables.damaged()),
        table_bytes=sum(run.size_bytes for run in runs),
        topics=state.topic_count,
        queues=state.queue_count,
        named_queues=named.count(),
        producers=state.producers.count,
        dedupe_ids=state.ids.count,
        dedupe_files=len(tables.ids.files),
        dedupe_memory_bytes=state.ids.memory_bytes,
        checkpoint_files=len(checkpoint),
        checkpoint_bytes=sum(file.size_bytes for file in checkpoint),
        documents=len(state.documents),
        documents_bytes=state.documents.size_bytes,
        waiting_bytes=line.waiting_bytes,
        garbage_bytes=merger.garbage.dead_bytes(),
        expired_messages_total=state.gone.get(LossReason.EXPIRED, 0),
        overflowed_messages_total=state.gone.get(LossReason.OVERFLOW, 0),
        consumed_messages_total=state.gone.get(LossReason.CONSUMED, 0),
        disk_dropped_messages_total=state.gone.get(LossReason.DISK, 0),
        quota_refusals_total=line.quota_refusals,
        clock_steps_total=time.steps,
        clock_ahead_seconds=time.ahead_ms / 1000,
        disk_free_bytes=maintenance.disk_free_bytes,
        disk_full=int(maintenance.disk_full),
        disk_busy_seconds=writer.disk_busy_s(),
        pressure=("ok", "slow", "refuse").index(maintenance.pressure()),
        stopped=int(writer.stopped),
    )
