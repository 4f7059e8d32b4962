"""Settings of a store, each with unit, default and hazard, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lsmq.errors import InvalidRequest
from lsmq.record_batch import Codec

from .wal import BLOCK_BYTES, EntryFlag

MiB = 1 << 20


GiB = 1 << 30
_UNLIMITED = 1 << 62
#: A hundred years: no thread can wait for three times as long.
_LONGEST_MS = 36_525 * 24 * 3_600_000


class FlushMode(Enum):
    """When a write is acknowledged."""

    SYNC = "sync"  # once it is on the disk (fdatasync); survives power loss
    ASYNC = "async"  # once the operating system has it; survives a crash of the process, not of the machine

    def syncs(self, flags: int) -> bool:
        """Whether an entry with these flags is to be on the disk before it counts, where this is the store's mode."""
        own = flags & (EntryFlag.SYNC | EntryFlag.ASYNC)
        return own == EntryFlag.SYNC if own else self is FlushMode.SYNC


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a shard's store. Those of the first group change behaviour, the others speed and memory.

    Attributes:
        flush_mode: see :class:`FlushMode`.
        flush_interval_ms: asynchronous mode: at most this long until the disk has a write.
        flush_bytes: asynchronous mode: at most this much is not on the disk yet.
        max_message_bytes: larger messages are refused.
        max_waiting_bytes: writes are refused while so much of the log waits in memory to be written and committed. So
            is a ``put_many`` of more.
        max_documents_bytes: documents (groups, transactions, retries) are refused beyond this; they are in memory.
        producer_expiry_ms: an idempotent producer that sent nothing for so long is forgotten. No retry may come later.
        max_producers: new idempotent producers are refused while so many are remembered; each takes two bytes of
            memory and about a hundred on the disk.
        min_free_bytes: writes are refused below this much free disk space, so that flushing still has room.

        memtable_bytes: a memtable is flushed at this size. Larger: fewer, larger merges, more memory, longer
            recovery.
        memtable_age_ms: one that has held something for so long is flushed, however little it is. Shorter: where little
            is written, space of what nobody can read any more comes back sooner; more, smaller tables.
        slow_memtables: so many waiting for their flush slow writers down.
        max_memtables: so many refuse writers.
        wal_keep_bytes: of the log that replicas have not got yet, so much is kept after it is flushed; one that
            is further behind gets table files. At least a segment.
        segment_bytes: size of a log segment file; recovery has one in memory. Fixed when the store is made.
        block_bytes: payload of a table block. Larger: better compression and throughput of backlog reads,
            dearer single reads.
        table_bytes: size of a table of level 1.
        generation_bytes: a generation of level 1 is not merged beyond this.
        level0_merge: so many tables in level 0 start a merge.
        slow_level0, max_level0: so many slow writers down, or refuse them.
        compression: of table blocks: ``none`` or ``zstd``. zstd costs about 1 us a KiB and saves disk.
        cache_bytes: limit of the cache of blocks and index pages.
        max_open_tables: so many table files are held open for reading; fewer where ``ulimit -n`` leaves fewer for them.
        retention_interval_ms: how often old messages are looked for.
    """

    flush_mode: FlushMode = FlushMode.SYNC
    flush_interval_ms: int = 200
    flush_bytes: int = 16 * MiB
    max_message_bytes: int = 1 * MiB
    max_waiting_bytes: int = 64 * MiB
    max_documents_bytes: int = 256 * MiB
    producer_expiry_ms: int = 7 * 24 * 3_600_000
    max_producers: int = 10_000_000
    max_delayed: int = 100_000_000
    min_free_bytes: int = 64 * MiB

    memtable_bytes: int = 64 * MiB
    memtable_age_ms: int = 600_000
    slow_memtables: int = 2
    max_memtables: int = 4
    wal_keep_bytes: int = 512 * MiB
    segment_bytes: int = 64 * MiB
    block_bytes: int = 32 * 1024
    table_bytes: int = 128 * MiB
    generation_bytes: int = 16 * 1024 * MiB
    level0_merge: int = 8
    slow_level0: int = 24
    max_level0: int = 48
    compression: str = "none"
    cache_bytes: int = 64 * MiB
    max_open_tables: int = 1024
    retention_interval_ms: int = 10_000

    def validate(self) -> None:
        """Raises ``InvalidRequest`` naming the option, its value and what is allowed."""
        if not isinstance(self.flush_mode, FlushMode):
            raise InvalidRequest(f"option flush_mode must be a FlushMode, not {self.flush_mode!r}", option="flush_mode")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                allowed = f"at least {low}" if high == _UNLIMITED else f"from {low} to {high}"
                raise InvalidRequest(f"option {name} must be a whole number, {allowed}, not {value!r}", option=name)
        if self.segment_bytes % BLOCK_BYTES:
            raise InvalidRequest(
                f"option segment_bytes must be a multiple of {BLOCK_BYTES}, not {self.segment_bytes}",
                option="segment_bytes",
            )
        if self.wal_keep_bytes < self.segment_bytes:
            raise InvalidRequest(
                f"option wal_keep_bytes ({self.wal_keep_bytes}) must not be below segment_bytes "
                f"({self.segment_bytes}): the log is kept and let go by whole segments",
                option="wal_keep_bytes",
            )
        if self.max_memtables < self.slow_memtables:
            raise InvalidRequest("option max_memtables must not be below slow_memtables", option="max_memtables")
        if not self.level0_merge <= self.slow_level0 <= self.max_level0:
            raise InvalidRequest(
                "options must satisfy level0_merge <= slow_level0 <= max_level0, not "
                f"{self.level0_merge}, {self.slow_level0}, {self.max_level0}",
                option="slow_level0",
            )
        if self.compression not in ("none", "zstd"):
            raise InvalidRequest(
                f"option compression must be 'none' or 'zstd', not {self.compression!r}", option="compression"
            )
        if 2 * self.max_message_bytes > self.memtable_bytes:
            raise InvalidRequest(
                f"option memtable_bytes ({self.memtable_bytes}) must be at least twice max_message_bytes "
                f"({self.max_message_bytes})",
                option="memtable_bytes",
            )

    @property
    def max_batch_bytes(self) -> int:
        """Larger batches are refused, so that a memtable holds more than one."""
        return self.memtable_bytes // 2

    @property
    def max_batch_records(self) -> int:
        """Batches of more records are refused: a record costs memory however short it is."""
        return self.memtable_bytes // 32

    @property
    def codec(self) -> Codec:
        return Codec.ZSTD if self.compression == "zstd" else Codec.NONE


#: From and to which value an option may be, where it is a number.
_RANGES = {
    "flush_interval_ms": (1, 24 * 3600 * 1000),
    "flush_bytes": (1, _UNLIMITED),
    "max_message_bytes": (1, 2 * GiB),
    "max_waiting_bytes": (64 * 1024, _UNLIMITED),
    "max_documents_bytes": (0, _UNLIMITED),
    "max_delayed": (0, _UNLIMITED),
    "producer_expiry_ms": (1, _UNLIMITED),
    "max_producers": (1, _UNLIMITED),
    "min_free_bytes": (0, _UNLIMITED),
    "memtable_bytes": (64 * 1024, 4 * GiB),  # a batch is up to half of it, and its format counts to 4 GiB
    "memtable_age_ms": (1, _UNLIMITED),
    "slow_memtables": (1, _UNLIMITED),
    "max_memtables": (1, _UNLIMITED),
    "wal_keep_bytes": (1, _UNLIMITED),
    "segment_bytes": (2 * BLOCK_BYTES, GiB),
    "block_bytes": (512, 16 * MiB),
    "table_bytes": (64 * 1024, _UNLIMITED),
    "generation_bytes": (64 * 1024, _UNLIMITED),
    "level0_merge": (2, _UNLIMITED),
    "slow_level0": (1, _UNLIMITED),
    "max_level0": (1, _UNLIMITED),
    "cache_bytes": (0, _UNLIMITED),
    "max_open_tables": (1, _UNLIMITED),
    "retention_interval_ms": (1, _LONGEST_MS),
}
