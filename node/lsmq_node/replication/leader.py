"""The leader of an epoch: ships its log, counts what is durable, keeps the in-sync set, serves.

The high watermark is the least durable LSN of all members of the in-sync set, the leader itself included, and moves
only while the set has ``min_in_sync`` members. Two rules make a change of the set safe:

- *who left still counts until the control plane has committed it*: a leader that was deposed cannot shrink the set,
  so it cannot acknowledge anything without the replicas that know of its successor;
- *who joins counts from the moment it is proposed*: the proposal may be committed long before this leader hears of
  it, and then the newcomer may be elected (KIP-497).

Connections have one direction each, so a leader may be heard by all and hear nobody. It acknowledges nothing then, and
asks for another one.
"""

from __future__ import annotations

from lsmq_coordinator.lives import UNCLAIMED, InSyncMember, LifeId

from .actions import AdvanceHighWatermark, KeepLog, ProposeInSync, Serve
from .insync import Peer, desired_in_sync, hears_enough
from .lease import EpochLease
from .messages import Hello, Progress, Rejoin, ReplicaSession, Stale, TakeNewIncarnation
from .shipping import answer_hello
from .state import ReplicaState


class Leader:
    """Leads ``epoch``, whose EPOCH entry ends at ``begun_lsn``. ``serving`` once the high watermark passed it under a
    lease: one that was paused before that does not begin on what it is told late."""

    __slots__ = (
        "_desired",
        "_kept_lsn",
        "_lease",
        "_peers",
        "_proposed",
        "_proposed_version",
        "_ticked_at",
        "begun_lsn",
        "epoch",
        "serving",
    )

    def __init__(self, state: ReplicaState, epoch: int, begun_lsn: int, lease: EpochLease) -> None:
        self._lease = lease
        self.epoch = epoch
        self.begun_lsn = begun_lsn
        self.serving = False
        self._peers: dict[str, Peer] = {}
        self._desired: frozenset[InSyncMember] = frozenset()
        self._proposed: frozenset[InSyncMember] = frozenset()
        self._proposed_version = -1
        self._ticked_at = state.now
        self._kept_lsn = -1
        self.viewed(state)

    def durable_lsns(self) -> dict[str, int]:
        """What each other replica has reported durable."""
        return {node: peer.durable_lsn for node, peer in self._peers.items()}

    # Events.

    def viewed(self, state: ReplicaState) -> None:
        """A newer view of the same epoch: the set may have changed, and replicas may have come or gone."""
        view = state.view
        assert view is not None and view.epoch == self.epoch
        if view.version > self._proposed_version:
            self._proposed = frozenset()
        now, end_lsn = state.now, state.log.end_lsn
        self._peers = {
            node: self._peers.get(node) or Peer(heard_at=now, caught_up_at=now, mark_at=now, mark_lsn=end_lsn)
            for node in sorted(view.replicas - {state.node})
        }
        for node, peer in self._peers.items():
            if view.listed(node) is None:
                peer.joined_at = float("inf")
            elif peer.joined_at == float("inf"):
                peer.joined_at = now
        self.advance(state)

    def hello(self, state: ReplicaState, sender: str, hello: Hello) -> None:
        """A follower begins a session."""
        peer = self._peers.get(sender)
        if peer is None:
            return
        if hello.epoch < self.epoch:
            state.send(sender, Stale(self.epoch, state.node, state.record.life))
            return
        assert state.view is not None, "a leader was elected"
        if not state.view.acts(sender, LifeId(hello.incarnation, hello.session.start)):
            return  # Not registered as far as is known here. It says hello again.
        known = peer.session
        if peer.incarnation != hello.incarnation:
            peer.incarnation, peer.durable_lsn, peer.session = hello.incarnation, 0, None
        elif known is not None and hello.session <= known:
            return
        elif known is not None and hello.session.start > known.start and hello.end_lsn < peer.durable_lsn:
            state.send(sender, TakeNewIncarnation(hello.session, self.epoch, peer.durable_lsn))
            return
        peer.session = hello.session
        peer.heard_at = state.now
        peer.stream = answer_hello(state, sender, hello, self.epoch)
        if peer.stream is not None and not peer.stream.pump(state):
            peer.stream.beat(state)
        self._review(state)

    def progress(self, state: ReplicaState, sender: str, progress: Progress) -> None:
        """A follower's log is durable up to there, and so far a prefix of this one: true whatever its session."""
        peer = self._peers.get(sender)
        if peer is None or peer.incarnation != progress.incarnation:
            return
        assert progress.durable_lsn <= state.log.end_lsn, f"{sender} reports what was never shipped"
        peer.reported(progress.durable_lsn, state.log.end_lsn, state.now)
        if peer.stream is not None and peer.stream.session == progress.session:
            peer.stream.reported(progress.durable_lsn, state)
        self.advance(state)
        view = state.view
        if view is not None and view.listed(sender) != peer.incarnation and peer.durable_lsn >= self._joined_lsn(state):
            self._review(state)

    def written(self, state: ReplicaState) -> None:
        for peer in self._peers.values():
            if peer.stream is not None:
                peer.stream.pump(state)

    def shipped(self, state: ReplicaState, sender: str, session: ReplicaSession, end_lsn: int) -> None:
        peer = self._peers.get(sender)
        if peer is not None and peer.stream is not None:
            peer.stream.shipped(session, end_lsn, state)

    def trimmed(self, state: ReplicaState) -> None:
        """Streams that stood before the log's new start end; the follower will be told to take a snapshot."""
        for peer in self._peers.values():
            if peer.stream is not None and peer.stream.next_lsn < state.log.start_lsn:
                state.send(peer.stream.peer, Rejoin(peer.stream.session, self.epoch))
                peer.stream = None

    def broken(self, state: ReplicaState, sender: str) -> None:
        peer = self._peers.get(sender)
        if peer is not None:
            peer.stream = None

    def tick(self, state: ReplicaState) -> None:
        slept = state.now - self._ticked_at
        self._ticked_at = state.now
        for peer in self._peers.values():
            if slept > state.timings.replica_timeout_s / 2:
                peer.slept(slept)
            peer.look(state.now, state.timings)
            if peer.stream is not None:
                peer.stream.tick(state)
        self._review(state)
        self._keep_log(state)
        view = state.view
        assert view is not None
        if not hears_enough(view, state.member, self._peers, state.now, state.timings):
            state.ask_elsewhere(self.epoch)

    # Rules.

    def _joined_lsn(self, state: ReplicaState) -> int:
        return max(state.log.high_watermark, self.begun_lsn)

    def counted(self, state: ReplicaState) -> frozenset[InSyncMember]:
        """The in-sync set as committed, and whom this leader has proposed since."""
        return state.view.in_sync | self._proposed if state.view is not None else self._proposed

    def _durable_lsn(self, state: ReplicaState, member: InSyncMember) -> int:
        if member == state.member:
            return state.log.durable_lsn
        peer = self._peers.get(member.node)
        return peer.durable_lsn if peer is not None and peer.incarnation == member.incarnation else 0

    def enough_in_sync(self, state: ReplicaState) -> bool:
        return state.view is not None and len(state.view.in_sync) >= state.view.min_in_sync

    def advance(self, state: ReplicaState) -> None:
        """Raise the high watermark as far as the rule allows; serve once it passed the EPOCH entry, under a lease."""
        if not self.enough_in_sync(state):
            return
        lsn = min(self._durable_lsn(state, member) for member in self.counted(state))
        if state.log.raise_high_watermark(lsn):
            state.emit(AdvanceHighWatermark(state.log.high_watermark))
        begun = state.log.high_watermark >= self.begun_lsn
        if begun and not self.serving and self._lease.holds(self.epoch, state.now):
            self.serving = True
            state.emit(Serve(self.epoch))

    def _review(self, state: ReplicaState) -> None:
        """Propose the in-sync set as it should be; again, until the control plane has moved on."""
        view = state.view
        assert view is not None
        desired = desired_in_sync(view, state.member, self._peers, self._joined_lsn(state), state.now, state.timings)
        if desired == view.in_sync:
            return
        repeated = (self._proposed_version, self._desired) == (view.version, desired)
        if not state.due("propose") and repeated:
            return
        if not repeated:
            for member in sorted(view.in_sync - desired - {state.member}):
                peer = self._peers.get(member.node)
                # A member of another incarnation than the node now has is gone, not late.
                if peer is not None and peer.incarnation in (UNCLAIMED, member.incarnation):
                    peer.left(state.now, state.timings)
        self._proposed_version, self._desired = view.version, desired
        self._proposed |= desired
        state.emit(ProposeInSync(self.epoch, view.version, desired))

    def _keep_log(self, state: ReplicaState) -> None:
        reading = [peer.stream.reported_lsn for peer in self._peers.values() if peer.stream is not None]
        lsn = min([state.log.high_watermark, *reading])
        if lsn != self._kept_lsn:
            self._kept_lsn = lsn
            state.emit(KeepLog(lsn))
