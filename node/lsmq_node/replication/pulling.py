"""The receiving end of a stream: hello, cutting what diverges, taking frames, reporting what is durable."""

from __future__ import annotations

from .actions import AdvanceHighWatermark, AppendFrame, Distrust, FetchSnapshot, Halt, Reopen
from .history import EpochHistory
from .messages import (
    Frame,
    Hello,
    Progress,
    Rejoin,
    ReplicaSession,
    TakeNewIncarnation,
    TakeSnapshot,
    Welcome,
)
from .state import ReplicaState

#: After so many times ``retry_s`` a hello is said again at the latest.
_LONGEST_RETRIES = 16

FromSource = Welcome | TakeSnapshot | TakeNewIncarnation | Rejoin | Frame


class Puller:
    """Makes this log a prefix of the source's and then longer, in one epoch.

    The source is the epoch's leader, or a promiser that lends its tail to the candidate that this replica is
    (``lent_by`` that incarnation). A promiser that comes back as another one, or with less than what was applied
    here, is ``useless``: its log is no reason to cut this one.

    Only what belongs to the session of the last hello is heeded: an old ``Welcome`` would cut what was acknowledged
    since. So a hello is said again only after a while, which doubles: where an answer takes longer than that, it would
    always be one to the hello before.
    """

    __slots__ = (
        "_again_s",
        "_gap_since",
        "_heard_at",
        "_history",
        "_hw",
        "_lent_by",
        "_reported_at",
        "_session",
        "epoch",
        "lent",
        "source",
        "streaming",
        "useless",
    )

    def __init__(self, state: ReplicaState, source: str, epoch: int, *, lent_by: int | None = None) -> None:
        self.source = source
        self.epoch = epoch
        self.lent = lent_by is not None
        self.useless = False
        self._lent_by = lent_by
        self.streaming = False
        self._again_s = state.timings.retry_s
        self._session: ReplicaSession | None = None
        self._history = EpochHistory()
        self._hw = 0
        self._heard_at = state.now
        self._reported_at = float("-inf")
        self._gap_since: float | None = None
        self.hello(state)

    def hello(self, state: ReplicaState) -> None:
        """Begin a new session, unless the log is being cut: then when that is done."""
        self.streaming = False
        self._session = None
        if state.log.busy:
            return
        self._session = state.next_session()
        self._gap_since = None
        state.due(("hello", self.source))
        log, incarnation = state.log, state.record.incarnation
        state.send(self.source, Hello(self._session, self.epoch, incarnation, log.history, log.end_lsn, self.lent))

    def receive(self, state: ReplicaState, message: FromSource) -> None:
        if message.session != self._session or message.epoch != self.epoch or state.log.busy:
            return
        self._heard_at = state.now
        match message:
            case Welcome():
                self._welcomed(state, message)
            case Frame():
                self._take(state, message)
            case TakeSnapshot(_, _, log_start_lsn):
                self._needs_snapshot(state, log_start_lsn)
            case TakeNewIncarnation():
                reason = f"the log ends before LSN {message.durable_lsn}, which was reported durable"
                state.emit(Reopen(reason, Distrust.WENT_BACK))
            case Rejoin():
                self.hello(state)

    def _welcomed(self, state: ReplicaState, welcome: Welcome) -> None:
        log = state.log
        if self.streaming or welcome.resume_lsn > log.end_lsn:
            return
        if self.lent and (welcome.incarnation != self._lent_by or welcome.resume_lsn < log.high_watermark):
            self.useless = True
        elif welcome.resume_lsn == log.end_lsn:
            self.streaming = True
            self._again_s = state.timings.retry_s
            self._history = log.history.followed_by(welcome.history)
            self.report(state)
        elif welcome.resume_lsn < log.high_watermark:
            self._diverged(state, f"leaves this one at LSN {welcome.resume_lsn}")
        else:
            state.truncate(welcome.resume_lsn)

    def _diverged(self, state: ReplicaState, how: str) -> None:
        """What was applied here is not in the leader's log. Where an operator has accepted that, it is set aside."""
        log, view = state.log, state.view
        reason = (
            f"the log of {self.source} {how}, but everything up to {log.high_watermark} "
            "was applied here: acknowledged writes are gone from the cluster"
        )
        if view is not None and log.history.last_epoch < view.revived_epoch:
            state.emit(Reopen(f"{reason}, as was accepted when the shard was revived", Distrust.ALL))
        else:
            state.emit(Halt(reason))

    def _needs_snapshot(self, state: ReplicaState, log_start_lsn: int) -> None:
        """A log that counts for acknowledged writes is not thrown away: the node leaves the in-sync set first.

        The log of a source that reaches back to what was applied here shares a start of an epoch with this one, or
        something else was applied here.
        """
        high_watermark = state.log.high_watermark
        if not self.streaming and high_watermark and log_start_lsn <= high_watermark:
            if self.lent:
                self.useless = True
            else:
                self._diverged(state, f"begins at LSN {log_start_lsn} and shares no epoch with this one")
            return
        if self.streaming or (not self.lent and state.propose_leave()):
            return
        state.lower_floor(state.log.high_watermark)
        state.log.busy = True
        state.emit(FetchSnapshot(self.source))

    def _take(self, state: ReplicaState, frame: Frame) -> None:
        log = state.log
        if not self.streaming:
            return
        if frame.lsn > log.end_lsn:
            if self._gap_since is None:
                self._gap_since = state.now
        elif frame.lsn == log.end_lsn and frame.end_lsn > frame.lsn:
            self._gap_since = None
            state.emit(AppendFrame(frame.lsn, frame.end_lsn))
            log.append(frame.end_lsn, self._history)
        self._hw = max(self._hw, frame.high_watermark)
        self._show(state)
        if frame.end_lsn == frame.lsn and state.now - self._reported_at >= state.timings.heartbeat_s * 0.4:
            self.report(state)

    def _show(self, state: ReplicaState) -> None:
        if not self.lent and state.log.raise_high_watermark(self._hw):
            state.emit(AdvanceHighWatermark(state.log.high_watermark))

    def durable(self, state: ReplicaState) -> None:
        if self.streaming:
            self.report(state)
            self._show(state)

    def report(self, state: ReplicaState) -> None:
        if self._session is not None:
            lsn = state.log.durable_lsn
            self._reported_at = state.now
            state.send(self.source, Progress(self._session, self.epoch, state.record.incarnation, lsn))

    def broken(self, state: ReplicaState) -> None:
        """The session is over; a late copy of its ``Welcome`` is not to be heeded a second time."""
        self.streaming = False
        self._again_s = state.timings.retry_s
        self._session = None

    def resume(self, state: ReplicaState) -> None:
        """The log was cut or replaced."""
        self._heard_at = state.now
        self.hello(state)

    def tick(self, state: ReplicaState) -> None:
        if not self.streaming:
            if state.due(("hello", self.source), self._again_s):
                self._again_s = min(2 * self._again_s, _LONGEST_RETRIES * state.timings.retry_s)
                self.hello(state)
        elif self.silent(state):
            self.broken(state)
        elif self._gap_since is not None and state.now - self._gap_since >= state.timings.retry_s:
            self.hello(state)

    def silent(self, state: ReplicaState) -> bool:
        """Whether the source was not heard of for too long."""
        return not state.log.busy and state.now - self._heard_at >= state.timings.replica_timeout_s

    def fresh(self, now: float, timeout_s: float) -> bool:
        """Whether frames of the source came lately."""
        return self.streaming and now - self._heard_at < timeout_s
