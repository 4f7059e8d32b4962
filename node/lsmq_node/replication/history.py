"""The epoch history of a log: which leader epoch wrote which stretch of it.

Every leader begins its epoch with an EPOCH entry that names its life, so a log names the epoch of each of its bytes,
and who wrote it. One life writes an epoch, replicas take its bytes in order, and a replica is handed bytes only after
its log was found to be a prefix of the leader's. Hence the log matching property (Raft thesis 3.5): when two histories
hold the same start of an epoch, the logs are equal from 0 to where the shorter of the two *stretches* ends.

A number alone would not do. No epoch is begun twice while disks and control plane keep what they were told; should
one be all the same (by a process with a copy of a disk, in a cluster whose control plane was set back), then the two
stretches have the same epoch at the same LSN and other bytes. They are different starts, and one of them is cut off.

A comparison by high watermark or by log length alone cannot tell this and loses or diverges (KIP-101); one
that knows the leader's epochs but takes the end of the stretch from one side only diverges after two quick
failovers (KIP-279). ``common_end`` takes the shorter stretch of the last shared epoch, whoever has it.

A history is as long as the log is: of epochs that began before the log's first byte only the last is kept, since that
byte may be of it. Two logs of which one reaches back to the committed end of the other still share a start: the last
one before that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lsmq_coordinator.lives import LifeId

from .control import NOBODY


class EpochStart(NamedTuple):
    """``epoch`` began with its EPOCH entry at ``lsn``, written by ``life``."""

    epoch: int
    lsn: int
    life: LifeId


#: Of what lies before the first EPOCH entry.
ORIGIN = EpochStart(0, 0, NOBODY)


class LogPosition(NamedTuple):
    """How far a log reaches, comparable between replicas: the greater one holds what the other may lack."""

    last_epoch: int
    lsn: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Epochs with where they began, both rising; the first is that of the log's first bytes."""

    starts: tuple[EpochStart, ...] = (ORIGIN,)

    def __post_init__(self) -> None:
        assert self.starts, "a history has at least one epoch"
        for before, after in zip(self.starts, self.starts[1:], strict=False):
            assert before.epoch < after.epoch and before.lsn <= after.lsn, f"epochs do not rise: {self.starts}"

    @classmethod
    def of(cls, starts: Iterable[EpochStart]) -> EpochHistory:
        """The history of a whole log from its EPOCH entries."""
        return cls((ORIGIN, *starts))

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

    def since(self, log_start_lsn: int) -> EpochHistory:
        """What is left of the history when the log begins at ``log_start_lsn``."""
        if len(self.starts) == 1 or self.starts[1].lsn >= log_start_lsn:
            return self
        before = [start for start in self.starts if start.lsn < log_start_lsn]
        return EpochHistory((before[-1], *self.starts[len(before) :]))

    def begin(self, epoch: int, lsn: int, life: LifeId) -> EpochHistory:
        """The history after an EPOCH entry of ``life`` at ``lsn``."""
        return EpochHistory((*self.starts, EpochStart(epoch, lsn, life)))

    def followed_by(self, longer: EpochHistory) -> EpochHistory:
        """This one, of a log that is a prefix of another, as it goes on in that other's history."""
        return EpochHistory((*self.starts, *(start for start in longer.starts if start.epoch > self.last_epoch)))

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
