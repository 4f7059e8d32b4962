"""Counters and gauges of a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What a store counts. Each is written by one thread at a time."""

    commits: int = 0
    committed_entries: int = 0
    records_written: int = 0
    bytes_written: int = 0
    records_read: int = 0
    bytes_read: int = 0
    flushes: int = 0
    flushed_bytes: int = 0
    flush_seconds: float = 0.0
    checkpoint_bytes: int = 0
    merges: int = 0
    merged_bytes: int = 0
    merge_seconds: float = 0.0
    dropped_tables: int = 0
    rebuilt_indexes: int = 0
    recovered_entries: int = 0
    recovery_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A store's counters (``*_total`` and ``*_seconds``) and gauges at a moment."""

    commits_total: int
    committed_entries_total: int
    records_written_total: int
    bytes_written_total: int
    records_read_total: int
    bytes_read_total: int
    flushes_total: int
    flushed_bytes_total: int
    flush_seconds: float
    checkpoint_written_bytes_total: int
    merges_total: int
    merged_bytes_total: int
    merge_seconds: float
    dropped_tables_total: int
    rebuilt_indexes_total: int
    recovered_entries: int
    recovery_seconds: float
    fsyncs_total: int
    wal_bytes_total: int
    cache_hits_total: int
    cache_misses_total: int
    cache_bytes: int
    committed_lsn: int
    durable_lsn: int
    flushed_lsn: int
    memtable_bytes: int
    frozen_memtables: int
    level0_tables: int
    generations: int
    tables: int
    open_tables: int
    damaged_tables: int
    table_bytes: int
    topics: int
    queues: int
    named_queues: int
    producers: int
    dedupe_ids: int
    dedupe_files: int
    dedupe_memory_bytes: int
    checkpoint_files: int
    checkpoint_bytes: int
    documents: int
    documents_bytes: int
    waiting_bytes: int
    garbage_bytes: int
    expired_messages_total: int
    overflowed_messages_total: int
    consumed_messages_total: int
    disk_dropped_messages_total: int
    quota_refusals_total: int
    clock_steps_total: int
    clock_ahead_seconds: float
    disk_free_bytes: int
    disk_full: int
    disk_busy_seconds: float
    pressure: int
    stopped: int
