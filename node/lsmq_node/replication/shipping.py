"""One stream of frames to one peer: what was sent, what the peer has, what may still be under way."""

from __future__ import annotations

from .actions import Ship
from .history import common_end
from .messages import Hello, ReplicaSession, TakeSnapshot, Welcome
from .state import ReplicaState


class OutgoingStream:
    """Ships the log to a peer whose log was found to be a prefix of this one.

    Frames leave as soon as bytes are written, before they are synced here (pipelined), one ``Ship`` at a time, and
    at most ``window_bytes`` ahead of what the peer reported durable. The high watermark goes with them, or
    at the next tick: nobody waits for a follower to apply, and a frame for it alone costs as much as one with bytes.
    """

    __slots__ = ("_in_flight", "_sent_at", "_told_lsn", "epoch", "next_lsn", "peer", "reported_lsn", "session")

    def __init__(self, peer: str, session: ReplicaSession, epoch: int, lsn: int) -> None:
        self.peer = peer
        self.session = session
        self.epoch = epoch
        self.next_lsn = lsn
        self.reported_lsn = lsn
        self._in_flight = False
        self._sent_at = float("-inf")
        self._told_lsn = -1

    def pump(self, state: ReplicaState) -> bool:
        """Ship what there is, if the window allows; whether something is under way."""
        if self._in_flight:
            return True
        limit_lsn = min(state.log.end_lsn, self.reported_lsn + state.timings.window_bytes)
        if self.next_lsn >= limit_lsn:
            return False
        self._in_flight = True
        self._ship(state, limit_lsn)
        return True

    def beat(self, state: ReplicaState) -> None:
        """An empty frame: the leader is there, and this is the high watermark."""
        if not self._in_flight:
            self._ship(state, self.next_lsn)

    def tick(self, state: ReplicaState) -> None:
        if self.pump(state):
            return
        quiet = state.now - self._sent_at >= state.timings.heartbeat_s * 0.5
        if quiet or self._told_lsn < state.log.high_watermark:
            self.beat(state)

    def shipped(self, session: ReplicaSession, end_lsn: int, state: ReplicaState) -> None:
        if session == self.session and self._in_flight:
            self._in_flight = False
            self.next_lsn = end_lsn
            self.pump(state)

    def reported(self, durable_lsn: int, state: ReplicaState) -> None:
        if durable_lsn > self.reported_lsn:
            self.reported_lsn = durable_lsn
            self.pump(state)

    def _ship(self, state: ReplicaState, limit_lsn: int) -> None:
        self._sent_at = state.now
        self._told_lsn = state.log.high_watermark
        state.emit(Ship(self.peer, self.session, self.epoch, self.next_lsn, limit_lsn, state.log.high_watermark))


def answer_hello(state: ReplicaState, peer: str, hello: Hello, epoch: int) -> OutgoingStream | None:
    """Compare logs and answer; a stream when the peer's log is a prefix of this one.

    A longer log is told where to cut. A log that ends before this one begins, or that shares no epoch with it, needs
    a snapshot.
    """
    log = state.log
    resume_lsn = common_end(log.history, log.end_lsn, hello.history, hello.end_lsn)
    if resume_lsn is None or resume_lsn < log.start_lsn:
        state.send(peer, TakeSnapshot(hello.session, epoch, log.start_lsn))
        return None
    state.send(peer, Welcome(hello.session, epoch, state.record.incarnation, log.history, resume_lsn))
    if resume_lsn < hello.end_lsn:
        return None
    return OutgoingStream(peer, hello.session, epoch, resume_lsn)
