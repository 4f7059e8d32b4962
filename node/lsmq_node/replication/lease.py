"""The control lease: until when a leader may answer, and whether the control plane still is what it was."""

from __future__ import annotations

from .actions import AskElection
from .events import LeaseGranted
from .state import ReplicaState


class EpochLease:
    """The last lease of an epoch.

    Whoever elects another leader waits longer than the lease lasts, or has the old leader's word: every member of
    the new in-sync set has left the old leader before the new one serves. What remains is an old leader that goes on
    asking: the answer tells it of the new epoch, and then does not extend its lease.
    """

    __slots__ = ("_behind_since", "_epoch", "_until")

    def __init__(self) -> None:
        self._epoch = 0
        self._until = float("-inf")
        self._behind_since: float | None = None

    def holds(self, epoch: int, now: float) -> bool:
        return epoch == self._epoch and now < self._until

    def granted(self, state: ReplicaState, lease: LeaseGranted) -> None:
        """Extend it, if it is of this replica's epoch. The state it was granted for has been seen."""
        view, record = lease.view, state.record
        contradicts = view.epoch == record.epoch and view.leader not in (None, record.leader)
        if view.epoch == record.epoch and not contradicts:
            rises = view.epoch > self._epoch
            self._until = lease.valid_until if rises else max(self._until, lease.valid_until)
            self._epoch = view.epoch
        if view == state.view and not contradicts and view.epoch >= record.epoch:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = state.now
        elif state.now - self._behind_since > state.timings.replica_lag_s and state.due("ask"):
            # Not a late answer: the control plane has lost what it had committed, or has committed something else.
            state.emit(AskElection(record.epoch))
