"""Giving promises: to follow nobody of a lower epoch any more, persisted before it is said."""

from __future__ import annotations

from lsmq_coordinator.lives import LifeId

from .messages import Promise, PromiseRefusal, PromiseRequest
from .state import ReplicaState


class PromiseDesk:
    """Answers candidates. One promise an epoch: to a second candidate of the same epoch it is refused, also to another
    life of the same node."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: tuple[str, LifeId, int] | None = None

    def receive(self, state: ReplicaState, sender: str, request: PromiseRequest) -> None:
        if request.epoch > state.record.epoch:
            state.bind(request.epoch, sender, request.life)
        record = state.record
        if (request.epoch, sender, request.life) == (record.epoch, record.leader, record.leading):
            self._asked = sender, request.life, request.epoch
            self.answer(state)
        else:
            refusal = PromiseRefusal(request.epoch, record.epoch, record.leader)
            state.send(sender, refusal)

    def answer(self, state: ReplicaState) -> None:
        """Give the promise that is asked for, once it is persisted.

        The position is that of what is durable: what may still be lost with the power is not promised.
        """
        if self._asked is None or not state.bound:
            return
        sender, life, epoch = self._asked
        self._asked = None
        if (epoch, sender, life) == (state.record.epoch, state.record.leader, state.record.leading):
            state.send(sender, Promise(epoch, state.record.life, state.log.durable_position))
