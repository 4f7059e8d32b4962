"""A replica that follows the leader of its epoch, or the candidate it gave its promise to."""

from __future__ import annotations

from .messages import Hello, Progress, ReplicaSession
from .pulling import FromSource, Puller
from .shipping import OutgoingStream, answer_hello
from .state import ReplicaState


class Follower:
    """Pulls from the leader; lends its own tail to a leader that still is a candidate and asks for it.

    While it lends, its log stands still: the candidate answers nobody's hello before it has begun its epoch.
    """

    __slots__ = ("_lending", "epoch", "leader", "puller")

    def __init__(self, state: ReplicaState, epoch: int, leader: str) -> None:
        self.epoch = epoch
        self.leader = leader
        self._lending: OutgoingStream | None = None
        self.puller = Puller(state, leader, epoch)

    def from_leader(self, state: ReplicaState, message: FromSource) -> None:
        self.puller.receive(state, message)
        if self.puller.streaming or state.log.busy:
            self._lending = None

    def lend(self, state: ReplicaState, hello: Hello) -> None:
        if not self.puller.streaming and not state.log.busy:
            self._lending = answer_hello(state, self.leader, hello, self.epoch)
            if self._lending is not None:
                self._lending.pump(state)

    def lent_to(self, state: ReplicaState, progress: Progress) -> None:
        if self._lending is not None and progress.session == self._lending.session:
            self._lending.reported(progress.durable_lsn, state)

    def shipped(self, state: ReplicaState, session: ReplicaSession, end_lsn: int) -> None:
        if self._lending is not None:
            self._lending.shipped(session, end_lsn, state)

    def durable(self, state: ReplicaState) -> None:
        self.puller.durable(state)

    def broken(self, state: ReplicaState) -> None:
        self._lending = None
        self.puller.broken(state)

    def resume(self, state: ReplicaState) -> None:
        """The log was cut or replaced."""
        self.puller.resume(state)

    def tick(self, state: ReplicaState) -> None:
        self.puller.tick(state)
        if self._lending is not None:
            self._lending.tick(state)
