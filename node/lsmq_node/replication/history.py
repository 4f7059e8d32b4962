"""The epoch history of a log: which leader epoch wrote which stretch of it.

Every leader begins its epoch with an EPOCH entry, so a log names the epoch of each of its bytes. One leader
writes an epoch, replicas take its bytes in order, and a replica is handed bytes only after its log was found
to be a prefix of the leader's. Hence the log matching property (Raft thesis 3.5): when two histories hold
the same epoch with the same start, the logs are equal from 0 to where the shorter of the two *stretches* ends.

A comparison by high watermark or by log length alone cannot tell this and loses or diverges (KIP-101); one
that knows the leader's epochs but takes the end of the stretch from one side only diverges after two quick
failovers (KIP-279). ``common_end`` takes the shorter stretch of the last shared epoch, whoever has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class EpochStart(NamedTuple):
    """``epoch`` began with its EPOCH entry at ``lsn``."""

    epoch: int
    lsn: int


class LogPosition(NamedTuple):
    """How far a log reaches, comparable between replicas: the greater one holds what the other may lack."""

    last_epoch: int
    lsn: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Epochs with where they began, both rising. Epoch 0 is what lies before the first EPOCH entry."""

    starts: tuple[EpochStart, ...] = (EpochStart(0, 0),)

    def __post_init__(self) -> None:
        assert self.starts, "a history has at least one epoch"
        for before, after in zip(self.starts, self.starts[1:], strict=False):
            assert before.epoch < after.epoch and before.lsn <= after.lsn, f"epochs do not rise: {self.starts}"

    @classmethod
    def of(cls, starts: tuple[tuple[int, int], ...]) -> EpochHistory:
        """The history of a whole log from its EPOCH entries."""
        return cls((EpochStart(0, 0), *(EpochStart(epoch, lsn) for epoch, lsn in starts)))

    @property
    def last_epoch(self) -> int:
        return self.starts[-1].epoch

    def position(self, end_lsn: int) -> LogPosition:
        """The position of a log that holds this history up to ``end_lsn``."""
        return LogPosition(self.clip(end_lsn).last_epoch, end_lsn)

    def clip(self, end_lsn: int) -> EpochHistory:
        """What is left of the history when the log ends at ``end_lsn``."""
        if self.starts[-1].lsn < end_lsn:
            return self
        return EpochHistory((self.starts[0], *(start for start in self.starts[1:] if start.lsn < end_lsn)))

    def begin(self, epoch: int, lsn: int) -> EpochHistory:
        """The history after an EPOCH entry at ``lsn``."""
        return EpochHistory((*self.starts, EpochStart(epoch, lsn)))

    def stretches(self, end_lsn: int) -> dict[EpochStart, int]:
        """Each epoch with the end of its stretch."""
        ends = [start.lsn for start in self.starts[1:]]
        return dict(zip(self.starts, [*ends, end_lsn], strict=True))


def common_end(mine: EpochHistory, my_end_lsn: int, theirs: EpochHistory, their_end_lsn: int) -> int | None:
    """Where the common prefix of two logs ends; None when the histories share no epoch."""
    ours = mine.stretches(my_end_lsn)
    for start, end_lsn in reversed(theirs.stretches(their_end_lsn).items()):
        if start in ours:
            return min(ours[start], end_lsn)
    return None
