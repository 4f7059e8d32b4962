"""Who belongs in the in-sync set: pure rules over what the leader knows of its peers.

The leader owns the set: it alone proposes who leaves and who joins, by what it hears itself. (Besides, an election
leaves out who is dead, and the control plane takes out who is proven to have ended.) Who leaves again and again must
have kept up for ever longer before it joins again: a day of flapping is some thousand changes and not a million.
"""

from __future__ import annotations

from dataclasses import dataclass

from lsmq_coordinator.lives import UNCLAIMED, InSyncMember

from .control import ControlView, Timings
from .messages import ReplicaSession
from .shipping import OutgoingStream

#: Who left for the second time within so long of joining is made to wait twice as long as the last time.
CALM_S = 600.0
LONGEST_PAUSE_S = 30.0


@dataclass(slots=True)
class Peer:
    """What a leader knows of one replica in its epoch.

    ``durable_lsn`` is a promise of ``incarnation`` alone: another one starts from nothing. A peer had caught up at
    ``caught_up_at`` when it has since reported all that the leader had written then (``mark_lsn`` at ``mark_at``).
    """

    heard_at: float
    caught_up_at: float
    mark_at: float
    mark_lsn: int
    incarnation: int = UNCLAIMED
    session: ReplicaSession | None = None
    stream: OutgoingStream | None = None
    durable_lsn: int = 0
    #: Since when it has not been late, as far as looked at; None while it is.
    steady_since: float | None = None
    #: So long it must be steady to join.
    pause_s: float = 0.0
    #: When it joined the set; infinity while it is not, or not to be, in it.
    joined_at: float = float("-inf")

    def look(self, now: float, timings: Timings) -> None:
        """To be called at each tick."""
        if self.is_late(now, timings):
            self.steady_since = None
        elif self.steady_since is None:
            self.steady_since = now

    def left(self, now: float, timings: Timings) -> None:
        """It is proposed out of the set for being late."""
        if self.joined_at == float("inf"):
            return
        restless = now - self.joined_at < CALM_S
        self.pause_s = min(max(2 * self.pause_s if restless else 0.0, timings.replica_lag_s), LONGEST_PAUSE_S)
        self.steady_since, self.joined_at = None, float("inf")

    def is_steady(self, now: float) -> bool:
        return self.pause_s == 0 or (self.steady_since is not None and now - self.steady_since >= self.pause_s)

    def reported(self, durable_lsn: int, end_lsn: int, now: float) -> None:
        self.heard_at = now
        self.durable_lsn = max(self.durable_lsn, durable_lsn)
        if self.durable_lsn >= self.mark_lsn:
            self.caught_up_at = self.mark_at
            self.mark_lsn, self.mark_at = end_lsn, now
        if self.durable_lsn >= end_lsn:
            self.caught_up_at = now

    def slept(self, seconds: float) -> None:
        """The leader itself stood still: nobody could be heard."""
        self.heard_at += seconds
        self.caught_up_at += seconds
        self.mark_at += seconds

    def is_late(self, now: float, timings: Timings) -> bool:
        return now - self.heard_at > timings.replica_timeout_s or now - self.caught_up_at > timings.replica_lag_s


def hears_enough(view: ControlView, own: InSyncMember, peers: dict[str, Peer], now: float, timings: Timings) -> bool:
    """Whether of the in-sync set so many were heard within ``deaf_s``, the leader itself included, that they could
    acknowledge something. A set of too few is no reason to doubt one's ears."""
    heard = {own.node} | {node for node, peer in peers.items() if now - peer.heard_at <= timings.deaf_s}
    count = sum(member.node in heard for member in view.in_sync)
    return count >= min(view.min_in_sync, len(view.in_sync))


def desired_in_sync(
    view: ControlView, own: InSyncMember, peers: dict[str, Peer], joined_lsn: int, now: float, timings: Timings
) -> frozenset[InSyncMember]:
    """The in-sync set as it should be.

    A member stays while it keeps up. A replica joins when it is durable up to ``joined_lsn``: the high watermark
    *and* the EPOCH entry of this leader. The high watermark alone is not enough: a new leader may know a lower one
    than the last leader acknowledged by (KAFKA-7128).

    A replica that left before joins when it has been steady for long enough, but at once where it is needed.

    The set is never shrunk below ``min_in_sync``: nothing is acknowledged by fewer anyway, and whoever is listed still
    holds everything acknowledged and may be elected (what KIP-966 keeps a second list for). Only members that no
    longer exist are dropped in any case: those of another incarnation than their node now has.
    """
    fit: set[InSyncMember] = {own}
    restless: set[InSyncMember] = set()
    exist: set[InSyncMember] = {own}
    for node in view.replicas - {own.node}:
        peer = peers.get(node)
        listed = view.listed(node)
        if peer is None or peer.incarnation == UNCLAIMED:
            if listed is not None:
                exist.add(InSyncMember(node, listed))
                if peer is None or not peer.is_late(now, timings):
                    fit.add(InSyncMember(node, listed))
            continue
        member = InSyncMember(node, peer.incarnation)
        if listed == peer.incarnation:
            exist.add(member)
            if not peer.is_late(now, timings):
                fit.add(member)
        elif peer.stream is not None and peer.durable_lsn >= joined_lsn and not peer.is_late(now, timings):
            (fit if peer.is_steady(now) else restless).add(member)
    if len(fit) < view.min_in_sync:
        fit |= restless
    if len(fit) >= view.min_in_sync:
        return frozenset(fit)
    return frozenset(fit | exist)
