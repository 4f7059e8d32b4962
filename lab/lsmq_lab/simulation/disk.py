"""A replica's disk: a log of entries at LSNs and a record; a crash takes what was not synced, or part of it.

Operations of the disk (sync, persist, truncate) are done one after another, each taking its time, as by the one
writer thread of a shard. Appends go to the page cache at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from lsmq_node.replication import NOBODY, EpochHistory, EpochStart, LifeId, ReplicaRecord

EPOCH_PAYLOAD = 0
EPOCH_BYTES = 5


class LogEntry(NamedTuple):
    """``[lsn, end_lsn)`` of the log. ``chain`` hashes this entry and all before it: equal chains, equal prefixes.
    ``life``: of an EPOCH entry, who began it."""

    lsn: int
    end_lsn: int
    epoch: int
    payload: int
    chain: int
    life: LifeId = NOBODY


class SimLog:
    """Entries one after another; ``ends`` are their end LSNs, for looking them up."""

    def __init__(self, entries: list[LogEntry] | None = None) -> None:
        self.entries: list[LogEntry] = entries or []
        self.ends: list[int] = [entry.end_lsn for entry in self.entries]

    @property
    def end_lsn(self) -> int:
        return self.ends[-1] if self.ends else 0

    def append(self, epoch: int, payload: int, size: int, life: LifeId = NOBODY) -> LogEntry:
        lsn = self.end_lsn
        chain = hash((self.chain_at(lsn), epoch, payload, size, life))
        entry = LogEntry(lsn, lsn + size, epoch, payload, chain, life)
        self.put(entry)
        return entry

    def begin(self, epoch: int, life: LifeId) -> LogEntry:
        """The EPOCH entry."""
        return self.append(epoch, EPOCH_PAYLOAD, EPOCH_BYTES, life)

    def put(self, entry: LogEntry) -> None:
        assert entry.lsn == self.end_lsn, "a log has no gaps"
        self.entries.append(entry)
        self.ends.append(entry.end_lsn)

    def index_at(self, lsn: int) -> int:
        """The index of the entry that begins at ``lsn``."""
        if lsn == 0:
            return 0
        index = bisect_left(self.ends, lsn)
        assert index < len(self.ends) and self.ends[index] == lsn, f"LSN {lsn} is not between two entries"
        return index + 1

    def chain_at(self, lsn: int) -> int:
        index = self.index_at(lsn)
        return self.entries[index - 1].chain if index else 0

    def holds(self, lsn: int, chain: int) -> bool:
        """Whether the log up to ``lsn`` is the one with this chain."""
        if lsn == 0:
            return True
        index = bisect_left(self.ends, lsn)
        return index < len(self.ends) and self.ends[index] == lsn and self.entries[index].chain == chain

    def between(self, lsn: int, end_lsn: int) -> list[LogEntry]:
        return self.entries[self.index_at(lsn) : self.index_at(end_lsn)]

    def cut(self, lsn: int) -> None:
        index = self.index_at(lsn)
        del self.entries[index:]
        del self.ends[index:]

    def history(self) -> EpochHistory:
        return EpochHistory.of(EpochStart(entry.epoch, entry.lsn, entry.life) for entry in self.begun())

    def begun(self) -> list[LogEntry]:
        """The EPOCH entries."""
        return [entry for entry in self.entries if entry.payload == EPOCH_PAYLOAD]


@dataclass(frozen=True, slots=True)
class Sync:
    """Make the log durable as far as it was written when the operation began."""


@dataclass(frozen=True, slots=True)
class Keep:
    record: ReplicaRecord


@dataclass(frozen=True, slots=True)
class Cut:
    lsn: int


Operation = Sync | Keep | Cut


class SimDisk:
    """What survives a crash, and what is under way."""

    def __init__(self) -> None:
        self.log = SimLog()
        self.durable_lsn = 0
        self.start_lsn = 0
        self.flushed_lsn = 0
        self.record: ReplicaRecord | None = None
        self.queue: deque[Operation] = deque()
        self.syncing_to = 0
        #: Incarnations that were here, and of which something that was durable is gone.
        self.gone: set[int] = set()

    def is_intact(self, incarnation: int) -> bool:
        """Whether this is the disk of that incarnation, with all of its log."""
        record = self.record
        whole = record is not None and record.incarnation == incarnation and self.log.end_lsn >= record.floor_lsn
        return whole and incarnation not in self.gone

    def copy(self) -> SimDisk:
        """What is durable now."""
        made = SimDisk()
        made.log = SimLog(self.log.between(0, self.durable_lsn))
        made.durable_lsn = made.syncing_to = self.durable_lsn
        made.start_lsn, made.flushed_lsn, made.record = self.start_lsn, self.flushed_lsn, self.record
        return made

    def finish(self) -> Operation:
        """The first operation is done."""
        operation = self.queue.popleft()
        match operation:
            case Sync():
                self.durable_lsn = max(self.durable_lsn, self.syncing_to)
            case Keep(record):
                self.record = record
            case Cut(lsn):
                self.log.cut(lsn)
                self.durable_lsn = min(self.durable_lsn, lsn)
        return operation

    def crash(self, random: Random, *, power: bool) -> None:
        """The process dies. With the power, what was not synced goes too, or some of it."""
        if self.queue and random.random() < 0.5 and not isinstance(self.queue[0], Sync):
            self.finish()
        self.queue.clear()
        if power:
            first, last = self.log.index_at(self.durable_lsn), len(self.log.entries)
            kept = random.choice((first, random.randint(first, last)))
            if kept < last:
                self.log.cut(self.log.ends[kept - 1] if kept else 0)
        self.durable_lsn = self.syncing_to = self.log.end_lsn
