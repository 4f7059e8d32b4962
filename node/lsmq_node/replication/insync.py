"""Who belongs in the in-sync set: pure rules over what the leader knows of its peers."""

from __future__ import annotations

from dataclasses import dataclass

from .control import UNCLAIMED, ControlView, Member, Timings
from .messages import Session
from .shipping import OutgoingStream


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
    session: Session | None = None
    stream: OutgoingStream | None = None
    durable_lsn: int = 0

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


def hears_enough(view: ControlView, own: Member, peers: dict[str, Peer], now: float, timings: Timings) -> bool:
    """Whether of the in-sync set so many were heard within ``deaf_s``, the leader itself included, that they could
    acknowledge something. A set of too few is no reason to doubt one's ears."""
    heard = {own.node} | {node for node, peer in peers.items() if now - peer.heard_at <= timings.deaf_s}
    count = sum(member.node in heard for member in view.in_sync)
    return count >= min(view.min_in_sync, len(view.in_sync))


def desired_in_sync(
    view: ControlView, own: Member, peers: dict[str, Peer], joined_lsn: int, now: float, timings: Timings
) -> frozenset[Member]:
    """The in-sync set as it should be.

    A member stays while it keeps up. A replica joins when it is durable up to ``joined_lsn``: the high watermark
    *and* the EPOCH entry of this leader. The high watermark alone is not enough: a new leader may know a lower one
    than the last leader acknowledged by (KAFKA-7128).

    The set is never shrunk below ``min_in_sync``: nothing is acknowledged by fewer anyway, and whoever is listed still
    holds everything acknowledged and may be elected (what KIP-966 keeps a second list for). Only members that no
    longer exist are dropped in any case: those of another incarnation than their node now has.
    """
    fit: set[Member] = {own}
    exist: set[Member] = {own}
    for node in view.replicas - {own.node}:
        peer = peers.get(node)
        listed = view.listed(node)
        if peer is None or peer.incarnation == UNCLAIMED:
            if listed is not None:
                exist.add(Member(node, listed))
                if peer is None or not peer.is_late(now, timings):
                    fit.add(Member(node, listed))
            continue
        member = Member(node, peer.incarnation)
        if listed == peer.incarnation:
            exist.add(member)
            if not peer.is_late(now, timings):
                fit.add(member)
        elif peer.stream is not None and peer.durable_lsn >= joined_lsn and not peer.is_late(now, timings):
            fit.add(member)
    if len(fit) >= view.min_in_sync:
        return frozenset(fit)
    return frozenset(fit | exist)
