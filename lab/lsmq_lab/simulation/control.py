"""The control plane: a linearizable store of the shard's state that may be slow or away, and an elector.

The store changes by compare-and-set commands only, as the daemon's Raft state does. The elector takes a node for
dead that sent no heartbeat for ``node_timeout_s``, and chooses leaders from the in-sync set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lsmq_node.replication import UNCLAIMED, ControlView, Member, RegisteredStart, ReplicaRecord
from lsmq_node.replication.identity import recognises

from .world import Options, World

#: So long after another could lead a leader must still ask for it.
SURE_S = 0.4


@dataclass(slots=True)
class Heartbeat:
    """The last one of a node."""

    at: float
    incarnation: int
    start: int
    life: int


class ControlPlane:
    """The shard's state and who may change it how. ``published`` is called with each new state."""

    def __init__(self, world: World, options: Options, replicas: frozenset[str], min_in_sync: int) -> None:
        self._world = world
        self._options = options
        self.view = ControlView(0, 0, None, frozenset(), replicas, min_in_sync)
        if world.chance(0.5):
            # A new shard with its first leader from the configuration.
            unclaimed = frozenset(Member(node, UNCLAIMED) for node in replicas)
            self.view = ControlView(1, 1, world.random.choice(sorted(replicas)), unclaimed, replicas, min_in_sync)
        self.past: list[ControlView] = [self.view]
        self.away = False
        #: Up to where each incarnation is known to have had the log on its disk.
        self.floors: dict[Member, int] = {}
        self._heartbeats: dict[str, Heartbeat] = {}
        self._replaceable = 0, 0.0, 0.0  # an epoch, and when its leader first and last asked for another
        self.published: Callable[[ControlView], None] = lambda view: None
        self._ended: dict[str, int] = {}  # the life of each node that is known to have ended last
        self._went_back = False

    # Commands.

    def _change(self, view: ControlView) -> None:
        self.view = replace(view, version=self.view.version + 1)
        self.past.append(self.view)
        self._world.note("control", self.view)
        self.published(self.view)

    def set_in_sync(self, node: str, epoch: int, expected_version: int, members: frozenset[Member]) -> None:
        view = self.view
        current = (view.leader, view.epoch, view.version) == (node, epoch, expected_version)
        nodes = {member.node for member in members}
        if not current or node not in nodes or not nodes <= view.replicas or len(nodes) != len(members):
            return
        trusted = {start.node for start in view.starts if Member(start.node, start.incarnation) in members}
        changed = replace(view, in_sync=members, adding=view.adding - nodes, distrusted=view.distrusted - trusted)
        self._change(changed)

    def leave_in_sync(self, member: Member, expected_version: int) -> None:
        """The only member cannot leave: then nobody would be left who may lead."""
        view = self.view
        if view.version != expected_version or member not in view.in_sync or len(view.in_sync) == 1:
            return
        leader = None if view.leader == member.node else view.leader
        self._change(replace(view, in_sync=view.in_sync - {member}, leader=leader))

    def set_replicas(self, replicas: frozenset[str]) -> None:
        """One replica more, or one less: never the leader, and ``min_in_sync`` members must remain."""
        view = self.view
        remaining = frozenset(member for member in view.in_sync if member.node in replicas)
        if self.away or view.epoch == 0 or len(remaining) < view.min_in_sync or view.leader not in replicas:
            return
        adding = (view.adding | (replicas - view.replicas)) & replicas
        starts = frozenset(start for start in view.starts if start.node in replicas)
        distrusted = view.distrusted & replicas
        self._change(
            replace(view, replicas=replicas, in_sync=remaining, adding=adding, starts=starts, distrusted=distrusted)
        )

    def register_start(self, node: str, disk: ReplicaRecord, durable_lsn: int) -> str | None:
        """A start of the node's disk, which knows what ``disk`` says; why it is refused, or None."""
        view, known, latest = self.view, self.view.start_of(node), disk.starts[-1]
        refusal = self.refusal(node, disk, durable_lsn)
        if node not in view.replicas or refusal is not None:
            return refusal
        confirmed = disk.registered >= latest.number
        start = RegisteredStart(node, disk.incarnation, latest.number, latest.token, confirmed)
        if known is not None and known.confirmed and known == start._replace(confirmed=True):
            return None  # What it said before it was confirmed came again.
        if start == known:
            return None
        another = known is None or known.incarnation != start.incarnation
        leads = view.leader == node and view.leading is None
        self._change(
            replace(
                view,
                starts=frozenset(other for other in view.starts if other.node != node) | {start},
                distrusted=view.distrusted | {node} if disk.went_back and another else view.distrusted,
                leading=start.life if leads else view.leading,
            )
        )
        return None

    def refusal(self, node: str, disk: ReplicaRecord, durable_lsn: int) -> str | None:
        """Why a disk is not what it was, or None."""
        known, listed = self.view.start_of(node), self.view.listed(node)
        if known is not None and known.incarnation == disk.incarnation:
            forgot = not recognises(disk.starts, disk.registered, known)
        else:
            forgot = disk.registered > 0 or (known is not None and listed == disk.incarnation)
        if forgot:
            return "the disk went back"
        latest = disk.starts[-1]
        repeated = known is not None and known[1:4] == (disk.incarnation, latest.number, latest.token)
        floor_lsn = self.floors.get(Member(node, disk.incarnation), 0)
        if durable_lsn < floor_lsn and not repeated:
            return f"the log ends at LSN {durable_lsn}, before {floor_lsn}"
        return None

    def elect(self, candidate: Member, above_epoch: int, suspects: frozenset[Member]) -> None:
        """A new epoch with a leader from the in-sync set. Suspects leave it, unless fewer than ``min_in_sync`` remain.

        With fewer nothing can be acknowledged anyway; but who leaves may not be elected, and if the one that remains
        were to lose its disk, everything acknowledged would rest on replicas that nobody may choose.
        """
        view = self.view
        in_sync = view.in_sync or frozenset({candidate})
        assert candidate in in_sync, "a leader is chosen from the in-sync set"
        remaining = in_sync - suspects
        if len(remaining) < view.min_in_sync:
            remaining = in_sync
        start = view.start_of(candidate.node)
        assert start is not None and start.confirmed, "a leader is elected in the life that is registered"
        epoch = max(view.epoch, above_epoch) + 1
        self._change(replace(view, epoch=epoch, leader=candidate.node, leading=start.life, in_sync=remaining))

    def go_back(self) -> None:
        """What must never happen to a Raft log, but did: committed changes are lost."""
        self._went_back = True
        back = self._world.random.randint(1, min(6, len(self.past)))
        self.view = self.past[-back]
        self.floors.clear()
        self._world.note("control", "WENT BACK")
        self._world.note("control", self.view)

    # Liveness and election.

    def return_from_absence(self) -> None:
        """A new Raft leader: it has heard of nobody yet, and waits as long as it would for anybody."""
        self.away = False
        for heartbeat in self._heartbeats.values():
            heartbeat.at = self._world.now

    def heard(self, node: str, incarnation: int, start: int, high_watermark: int, life: int) -> bool:
        """Whether it is of the life that the node is in, as far as is known: else it gets no lease.

        Members of the in-sync set hold all below any high watermark: it bounds what their disks come back with.
        """
        former = self._heartbeats.get(node)
        if self._ended.get(node) == life or (former is not None and former.life > life):
            return False
        self._heartbeats[node] = Heartbeat(self._world.now, incarnation, start, life)
        if self.view.listed(node) == incarnation:
            for member in self.view.in_sync:
                self.floors[member] = max(self.floors.get(member, 0), high_watermark)
        return True

    def is_alive(self, node: str) -> bool:
        heartbeat = self._heartbeats.get(node)
        return heartbeat is not None and self._world.now - heartbeat.at <= self._options.node_timeout_s

    def look(self) -> None:
        """What the elector does each few milliseconds."""
        view = self.view
        if not self.away and view.distrusted and self._may_trust(view):
            self._change(replace(view, distrusted=frozenset()))
            view = self.view
        if not self.away and (view.leader is None or not self.is_alive(view.leader)):
            self._elect_somebody(view.epoch)

    def _may_trust(self, view: ControlView) -> bool:
        """Who lives besides those that went back stands for a majority of voters: the control plane has forgotten
        nothing. When it did, and takes all disks for older copies, people have to say that it may go on."""
        others = view.replicas - view.distrusted
        return any(self.is_alive(node) for node in others) or (self._went_back and not others)

    def died(self, node: str, life: int) -> None:
        """It is proven that a life of a node has ended: its lease need not be waited for."""
        self._ended[node] = life
        heartbeat = self._heartbeats.get(node)
        if heartbeat is not None and heartbeat.life == life:
            heartbeat.at = float("-inf")
            self.look()

    def asked(self, above_epoch: int) -> None:
        """A replica says that epochs up to this one cannot be led."""
        if not self.away and self.view.epoch <= above_epoch:
            self._elect_somebody(above_epoch)

    def asked_elsewhere(self, node: str, epoch: int) -> None:
        """The leader of the epoch hears too few of the others: replaced where enough live that could acknowledge, when
        it asks again after that was so."""
        view, now = self.view, self._world.now
        living = [replica for replica in view.replicas - view.adding - {node} if self.is_alive(replica)]
        if self.away or (view.leader, view.epoch) != (node, epoch) or len(living) < view.min_in_sync:
            return
        if self._replaceable[0] != epoch or now - self._replaceable[2] > 2 * SURE_S:
            self._replaceable = epoch, now, now
        self._replaceable = epoch, self._replaceable[1], now
        if now - self._replaceable[1] >= SURE_S:
            self._elect_somebody(epoch, other_than=node)

    def transfer(self) -> None:
        """Hand the leadership over, though the leader is well."""
        if not self.away and self.view.leader is not None:
            self._elect_somebody(self.view.epoch, other_than=self.view.leader)

    def _elect_somebody(self, above_epoch: int, other_than: str | None = None) -> None:
        view = self.view
        if view.in_sync:
            members = sorted(view.in_sync)
        else:
            members = [Member(node, beat.incarnation) for node, beat in sorted(self._heartbeats.items())]
            members = [member for member in members if member.node in view.replicas]
        fit = [member for member in members if member.node != other_than and self._may_lead(member)]
        if fit:
            suspects = frozenset(member for member in view.in_sync if not self.is_alive(member.node))
            self.elect(self._world.random.choice(fit), above_epoch, suspects)

    def _may_lead(self, member: Member) -> bool:
        """Whether the member lives, in the life that is registered, and under the incarnation that is listed."""
        start, heartbeat = self.view.start_of(member.node), self._heartbeats.get(member.node)
        if start is None or heartbeat is None or not self.is_alive(member.node):
            return False
        lives = start.confirmed and (heartbeat.incarnation, heartbeat.start) == start.life
        return lives and member.incarnation in (UNCLAIMED, start.incarnation)
