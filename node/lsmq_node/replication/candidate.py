"""Taking over an epoch: promises first, then the most complete tail among them, then the EPOCH entry.

The control plane chose this replica from the in-sync set, so it holds every acknowledged write if the control plane
is right. The promises make that true even if it was set back to an earlier state: they meet every set of
``min_in_sync`` replicas, and the greatest log among them is pulled before anything is appended.
"""

from __future__ import annotations

from .actions import AskElection, BeginEpoch
from .control import ControlView
from .history import LogPosition
from .messages import Hello, Promise, PromiseRefusal, PromiseRequest
from .pulling import FromSource, Puller
from .state import ReplicaState


class Candidate:
    """Collects promises for ``epoch`` until the EPOCH entry may be appended."""

    __slots__ = ("_begun", "_promises", "_since", "_ticked_at", "epoch", "hellos", "puller")

    def __init__(self, state: ReplicaState, epoch: int, hellos: dict[str, Hello]) -> None:
        assert state.bound, "an epoch is persisted before anything is asked for it"
        self.epoch = epoch
        self.hellos = hellos  # of those who follow already, answered when the epoch has begun
        self.puller: Puller | None = None
        self._promises: dict[str, Promise] = {}
        self._begun = False
        self._since = self._ticked_at = state.now
        self._ask(state)
        self.proceed(state)

    def _ask(self, state: ReplicaState) -> None:
        """Ask all whose promise does not count yet: not given, or in a life that is over."""
        if state.view is not None and state.due("promises"):
            for node in sorted(state.view.replicas - {state.node} - self.counted(state, state.view).keys()):
                state.send(node, PromiseRequest(self.epoch, state.record.life))

    def promised(self, state: ReplicaState, sender: str, promise: Promise) -> None:
        self._promises[sender] = promise
        self.proceed(state)

    def refused(self, state: ReplicaState, refusal: PromiseRefusal) -> None:
        """Another leader was accepted for this epoch or a higher one: this one can no longer be led by all."""
        if refusal.seen_epoch >= self.epoch and state.due("ask"):
            state.emit(AskElection(max(refusal.seen_epoch, self.epoch)))

    def counted(self, state: ReplicaState, view: ControlView) -> dict[str, Promise]:
        """The promises that count, see :meth:`ControlView.may_promise`."""
        own = Promise(self.epoch, state.record.life, state.log.position)
        return {
            node: promise
            for node, promise in {**self._promises, state.node: own}.items()
            if view.may_promise(node, promise.life)
        }

    def proceed(self, state: ReplicaState) -> None:
        """Go as far as promises and log allow."""
        if state.view is None or state.log.busy or self._begun:
            return
        counted = self.counted(state, state.view)
        if len(counted) < state.view.promises_needed:
            return
        source, best = max(counted.items(), key=lambda item: (item[1].position, item[0]))
        if best.position > state.log.position:
            if not self._pulls(best.position):
                self.puller = Puller(state, source, self.epoch, lent_by=best.life.incarnation)
            return
        self.puller = None
        self._begun = True
        state.emit(BeginEpoch(self.epoch, state.record.life))

    def _pulls(self, best: LogPosition) -> bool:
        """Whether a tail as good as the best is being pulled already."""
        return self.puller is not None and self._promises[self.puller.source].position >= best

    def from_source(self, state: ReplicaState, sender: str, message: FromSource) -> None:
        if self.puller is not None and sender == self.puller.source:
            self.puller.receive(state, message)
            if self.puller.useless:
                self.broken(state, sender)
            self.proceed(state)

    def durable(self, state: ReplicaState) -> None:
        if self.puller is not None:
            self.puller.durable(state)

    def broken(self, state: ReplicaState, peer: str) -> None:
        """A promiser whose tail cannot be had counts no more: others must make up the number."""
        if self.puller is not None and self.puller.source == peer:
            self.puller = None
            del self._promises[peer]
            self.proceed(state)

    def resume(self, state: ReplicaState) -> None:
        if self.puller is not None:
            self.puller.resume(state)
        else:
            self.proceed(state)

    def tick(self, state: ReplicaState) -> None:
        slept = state.now - self._ticked_at
        self._ticked_at = state.now
        if slept > state.timings.replica_timeout_s / 2:
            self._since += slept
        if self._begun:
            return
        self._ask(state)
        if self.puller is not None:
            self.puller.tick(state)
            if self.puller.silent(state):
                self.broken(state, self.puller.source)
        self.proceed(state)
        self._give_up(state)

    def _give_up(self, state: ReplicaState) -> None:
        """Whoever promises may not be heard here: then another may lead."""
        view = state.view
        if self._begun or view is None or state.now - self._since <= state.timings.deaf_s:
            return
        if len(self.counted(state, view)) < view.promises_needed:
            state.ask_elsewhere(self.epoch)
