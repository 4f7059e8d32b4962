"""What golden scripts run replicas on: a log whose disk does at once what it is told, and words for what they say."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields, is_dataclass
from typing import NamedTuple

from lsmq_coordinator.lives import LifeId
from lsmq_node.replication import NOBODY, EpochHistory, EpochStart, ReplicaRecord

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


class Log:
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


@dataclass(eq=False)
class Disk:
    """What survives a crash."""

    log: Log = field(default_factory=Log)
    durable_lsn: int = 0
    start_lsn: int = 0
    flushed_lsn: int = 0
    record: ReplicaRecord | None = None


def describe(what: object) -> str:
    """An event, action or message on one line."""
    if isinstance(what, str):
        return what
    if isinstance(what, frozenset):
        return "{" + " ".join(sorted(describe(item) for item in what)) + "}"
    if hasattr(what, "starts") and hasattr(what, "stretches"):
        return "[" + " ".join(describe(start) for start in what.starts) + "]"
    if isinstance(what, tuple):
        return ".".join(describe(item) for item in what)
    if is_dataclass(what):
        words = [f"{field.name}={describe(getattr(what, field.name))}" for field in fields(what)]
        return f"{type(what).__name__}({' '.join(words)})"
    return f"{what:.4f}" if isinstance(what, float) else str(what)
