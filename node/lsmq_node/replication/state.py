"""What all roles of one replica share: its log's ends, its record, its view of the control plane, its outbox."""

from __future__ import annotations

from dataclasses import replace

from lsmq_coordinator.lives import UNCLAIMED, InSyncMember, LifeId

from .actions import AskElection, Persist, ProposeLeave, ReplicaAction, Send, TruncateLog
from .control import ControlView, ReplicaRecord, Timings
from .history import EpochHistory, LogPosition
from .messages import ReplicaMessage, ReplicaSession


class LogState:
    """The ends of the replica's log, in rising order: start, high watermark, durable, end.

    The high watermark is what readers see and what is applied; it never goes back. ``busy`` while the log is cut or
    replaced: nothing is appended then, and reports of the disk are about bytes that may be gone.
    """

    __slots__ = ("busy", "durable_lsn", "end_lsn", "high_watermark", "history", "start_lsn")

    def __init__(self, start_lsn: int, applied_lsn: int, end_lsn: int, history: EpochHistory) -> None:
        assert start_lsn <= end_lsn and applied_lsn <= end_lsn, "the log ends before what was applied"
        self.start_lsn = start_lsn
        self.high_watermark = applied_lsn
        self.durable_lsn = self.end_lsn = end_lsn
        self.history = history.clip(end_lsn).since(start_lsn)
        self.busy = False

    @property
    def position(self) -> LogPosition:
        return self.history.position(self.end_lsn)

    @property
    def durable_position(self) -> LogPosition:
        return self.history.position(self.durable_lsn)

    def append(self, end_lsn: int, history: EpochHistory) -> None:
        """Bytes up to ``end_lsn`` were written; ``history`` covers them."""
        assert end_lsn >= self.end_lsn and not self.busy, "a log grows at its end"
        self.end_lsn = end_lsn
        self.history = history.clip(end_lsn)

    def trim(self, start_lsn: int) -> None:
        """What lies before ``start_lsn`` is gone, or as good as gone."""
        self.start_lsn = max(self.start_lsn, start_lsn)
        self.history = self.history.since(self.start_lsn)

    def synced(self, lsn: int) -> bool:
        """Whether more than before is durable."""
        if self.busy or lsn <= self.durable_lsn:
            return False
        assert lsn <= self.end_lsn, f"LSN {lsn} cannot be durable, the log ends at {self.end_lsn}"
        self.durable_lsn = lsn
        return True

    def cut(self, lsn: int) -> None:
        assert self.high_watermark <= lsn <= self.end_lsn, "what was applied is never truncated"
        self.end_lsn = lsn
        self.durable_lsn = min(self.durable_lsn, lsn)
        self.history = self.history.clip(lsn)
        self.busy = True

    def raise_high_watermark(self, lsn: int) -> bool:
        """Whether it went up. What is not durable here is not shown here."""
        lsn = min(lsn, self.durable_lsn)
        if lsn <= self.high_watermark:
            return False
        self.high_watermark = lsn
        return True


#: Bits of a start's token, which is random, that its sessions have in their numbers; the others count.
_OF_THE_LIFE = (1 << 62) - (1 << 24)


class ReplicaState:
    """One replica between events. ``record`` is what was asked to be persisted, ``persisted`` what is."""

    __slots__ = (
        "_hellos",
        "_last_done",
        "bound_here",
        "log",
        "node",
        "now",
        "outbox",
        "persisted",
        "record",
        "timings",
        "view",
    )

    def __init__(self, node: str, timings: Timings, log: LogState, record: ReplicaRecord) -> None:
        self.node = node
        self.timings = timings
        self.log = log
        self.record = record
        self.persisted: ReplicaRecord | None = None
        self.bound_here = 0
        self.view: ControlView | None = None
        self.now = 0.0
        self.outbox: list[ReplicaAction] = []
        self._hellos = 0
        self._last_done: dict[object, float] = {}

    def emit(self, action: ReplicaAction) -> None:
        self.outbox.append(action)

    def send(self, peer: str, message: ReplicaMessage) -> None:
        self.outbox.append(Send(peer, message))

    def due(self, what: object, every_s: float | None = None) -> bool:
        """Whether to do now what is done again each ``every_s``, or ``retry_s``, until it has an effect."""
        last = self._last_done.get(what)
        if last is not None and self.now - last < (every_s or self.timings.retry_s):
            return False
        self._last_done[what] = self.now
        return True

    def next_session(self) -> ReplicaSession:
        """Of no other life: another incarnation has another token, and what was sent to that one is not heeded here."""
        self._hellos += 1
        return ReplicaSession(self.record.start, (self.record.starts[-1].token & _OF_THE_LIFE) + self._hellos)

    # The epoch.

    @property
    def bound(self) -> bool:
        """Whether the epoch and its leader are durable: only then may anything be done under them."""
        kept, wanted = self.persisted, self.record
        return kept is not None and (kept.epoch, kept.leader, kept.leading) == (
            wanted.epoch,
            wanted.leader,
            wanted.leading,
        )

    def bind(self, epoch: int, leader: str, life: LifeId) -> None:
        """Accept this life of ``leader`` for ``epoch``, and nothing below it for ever. It counts when ``bound``."""
        assert epoch > self.record.epoch, "a replica's epoch only rises, and has one leader"
        self.bound_here = epoch
        self.persist(replace(self.record, epoch=epoch, leader=leader, leading=life, floor_lsn=self.log.durable_lsn))

    def persist(self, record: ReplicaRecord) -> None:
        self.record = record
        self.emit(Persist(record))

    def ask_elsewhere(self, epoch: int) -> None:
        """Ask for another leader than this replica, which hears too few of the others to lead ``epoch``."""
        if self.due("elsewhere", self.timings.ask_elsewhere_s):
            self.emit(AskElection(epoch, elsewhere=True))

    # The log.

    def truncate(self, lsn: int) -> None:
        """Cut the log. The floor is lowered first, or the shorter log would be taken for a damaged one."""
        self.lower_floor(lsn)
        self.log.cut(lsn)
        self.emit(TruncateLog(lsn))

    def lower_floor(self, lsn: int) -> None:
        """The log is about to end at ``lsn`` or later."""
        if lsn < self.record.floor_lsn:
            self.persist(replace(self.record, floor_lsn=lsn))

    # The in-sync set.

    @property
    def member(self) -> InSyncMember:
        return InSyncMember(self.node, self.record.incarnation)

    def propose_leave(self) -> bool:
        """Ask for this node to be taken out of the in-sync set, if it is in there; whether it is."""
        listed = self.view.listed(self.node) if self.view is not None else None
        if self.view is None or listed is None or listed == UNCLAIMED:
            return False
        if self.due("leave"):
            self.emit(ProposeLeave(InSyncMember(self.node, listed), self.view.version))
        return True
