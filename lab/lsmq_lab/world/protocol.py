"""What must hold of replication, looked at where it happens: at each action that a replica's core asks for.

=============================  =======================================================================================
invariant                      meaning
=============================  =======================================================================================
one-leader-per-epoch           an epoch is begun by one life of one node
log-matching                   whom a leader ships to has the beginning of its log
fenced                         a replica that gave a promise for an epoch takes no bytes of a lower one, ever again
acknowledged-survives          who begins to serve holds all that was ever below a leader's high watermark
in-sync-holds-everything       each member of the in-sync set has on its disk all below a leader's high watermark
enough-in-sync                 no high watermark rises while the in-sync set has fewer than ``min_in_sync`` members
high-watermark-rises           it never goes back on a replica, nor from one leader to the next
nothing-above-is-shown         a follower's high watermark is never ahead of all leaders'
logs-agree                     up to the high watermark logs are equal, byte for byte
applied-is-kept                no log is cut below what was applied
acknowledged-is-kept           no member of the in-sync set cuts what was ever below a leader's high watermark
no-halt                        no replica gives up whose disk works
lost-is-another                a disk that was lost never acts as what it was
=============================  =======================================================================================

A disk's bytes are read from what the world knows to be durable of it, whatever the daemon believes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lsmq_coordinator.lives import UNCLAIMED, InSyncMember
from lsmq_coordinator.state import ClusterState
from lsmq_node.cluster.shell import Shell
from lsmq_node.replication import ReplicaAction, ReplicaCore, ReplicaRecord
from lsmq_node.replication import actions as act
from lsmq_node.replication.messages import Promise
from lsmq_node.storage.wal import segment_name

from .medium import FileNode
from .simulated_cluster import SimulatedCluster, SimulatedNode

#: So much of what is cut is compared.
_LOOK_BYTES = 32
_TAIL_BYTES = 4096
#: From a heartbeat that tells of what is committed to the confirmation of a start that was registered by it.
_REGISTERING_S = 0.25
#: A replica of a shard, at a node.
ShardReplica = tuple[int, str]


class Protocol:
    """Sees each action of each replica while :meth:`watching`."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self._committed: dict[int, bytearray] = {}  # by shard: the log below the highest high watermark of a leader
        self._shown: dict[tuple[ShardReplica, str], int] = {}  # by replica and process
        self._begun: dict[tuple[int, int], tuple[str, str]] = {}
        self._promised: dict[tuple[ShardReplica, int], int] = {}
        self._in_sync: dict[int, frozenset[InSyncMember]] = {}
        self._newest: ClusterState | None = None
        #: Incarnations that a disk has lost, or may have: nothing is asked of them until they act again.
        self._doubted: dict[ShardReplica, set[int]] = {}
        self._lost: dict[ShardReplica, set[int]] = {}
        #: Of a shard: up to where it was committed from when on.
        self._grown: dict[int, list[tuple[float, int]]] = {}
        self._matched: set[tuple[ShardReplica, str, int, int, int]] = set()
        #: Who is taken for a member that has everything, by a control plane that went back, or as nobody knows better.
        self._excused: set[ShardReplica] = set()
        #: Told of each action of a shard's replica at a node, before it is done.
        self.on_action: Callable[[SimulatedNode, int, ReplicaAction], None] = lambda node, shard, action: None

    def committed_lsn(self, shard: int) -> int:
        """The highest high watermark of a leader so far."""
        return len(self._committed.get(shard, b""))

    def in_sync(self, shard: int) -> frozenset[InSyncMember]:
        """As agreed on, as far as any node that runs knows."""
        self._in_sync_changes(shard)
        return self._in_sync.get(shard, frozenset())

    def control_went_back(self, *, epochs: bool = False) -> None:
        """The control plane holds what it held before; ``epochs``: so do disks, and epochs may be begun again."""
        for shard, committed in self._committed.items():
            for node in self.cluster.nodes:
                if self._differs((shard, node.id), 0, len(committed)) is not None:
                    self._excused.add((shard, node.id))
        self._newest = None
        self._in_sync.clear()
        if epochs:
            self._begun.clear()

    @contextmanager
    def watching(self) -> Iterator[None]:
        performs = Shell._perform

        def perform(shell: Shell, core: ReplicaCore, action: ReplicaAction) -> None:
            node = self._node()
            self._look(node, shell, core, action)
            self.on_action(node, shell.shard, action)
            performs(shell, core, action)

        with patch.object(Shell, "_perform", perform):
            yield

    def disk_changes(self, node: SimulatedNode, lost: bool) -> None:
        """Its disk is about to be lost, or to become what it was before."""
        for shard in self._newest_shards():
            start = shard.start_of(node.id)
            if start is not None:
                marked = self._lost if lost else self._doubted
                marked.setdefault((shard.id, node.id), set()).add(start.incarnation)
                self._doubted.setdefault((shard.id, node.id), set()).add(start.incarnation)

    def _node(self) -> SimulatedNode:
        node: SimulatedNode = self.cluster.world.scheduler.process.node  # type: ignore[attr-defined]
        return node

    def _fail(self, name: str, what: str) -> None:
        text = f"{name}: {what}"
        if text not in self.cluster.problems:
            self.cluster.problems.append(text)
            self.cluster.note(f"BROKE {text}")

    # What replicas do

    def _look(self, node: SimulatedNode, shell: Shell, core: ReplicaCore, action: ReplicaAction) -> None:
        place = shell.shard, node.id
        if core.registered:
            self._acts(place, core.record)
        match action:
            case act.Send(_, Promise(epoch=epoch)):
                key = place, core.record.incarnation
                self._promised[key] = max(self._promised.get(key, 0), epoch)
            case act.Ship():
                self._ships(place, action)
            case act.AppendFrame():
                promised = self._promised.get((place, core.record.incarnation), 0)
                if core.epoch < promised:
                    self._fail("fenced", f"{place} promised {promised} and follows {core.epoch}")
            case act.BeginEpoch(epoch, life):
                begun = node.id, str(life)
                former = self._begun.setdefault((shell.shard, epoch), begun)
                if former != begun:
                    self._fail("one-leader-per-epoch", f"{begun} begins {epoch} of shard {shell.shard} after {former}")
            case act.Serve(epoch):
                self._holds(place, "acknowledged-survives", f"{node.id} serves epoch {epoch}")
                shown, knows = self.committed_lsn(shell.shard), core.log.high_watermark
                if knows < shown:
                    self._fail("high-watermark-rises", f"{place} serves {epoch} and shows {knows}, leaders {shown}")
            case act.TruncateLog(lsn):
                shown = self._shown.get((place, self._process(node)), 0)
                if lsn < shown:
                    self._fail("applied-is-kept", f"{place} cuts at {lsn} and has applied up to {shown}")
                self._cuts(place, core, lsn)
            case act.Halt(reason) if shell.stopped is None:
                self._fail("no-halt", f"{place}: {reason}")
            case act.AdvanceHighWatermark(lsn):
                self._advances(node, place, core, lsn)
        self._in_sync_changes(shell.shard)

    def _ships(self, place: ShardReplica, ship: act.Ship) -> None:
        """Looked at once for each session, as far as both have written what they have."""
        session = place, ship.peer, ship.epoch, *ship.session
        if session in self._matched:
            return
        self._matched.add(session)
        begin = max(ship.lsn - _TAIL_BYTES, ship.lsn - ship.lsn % self.cluster.segment_bytes)
        logs = [self._written(each, begin, ship.lsn).rstrip(b"\0") for each in (place, (place[0], ship.peer))]
        length = min(map(len, logs))
        if logs[0][:length] != logs[1][:length]:
            self._fail(
                "log-matching", f"{place} goes on at {ship.lsn} with the log of {ship.peer}, which is another one"
            )

    def _cuts(self, place: ShardReplica, core: ReplicaCore, lsn: int) -> None:
        committed = self._committed.get(place[0], bytearray())
        member = InSyncMember(place[1], core.record.incarnation)
        if lsn < len(committed) and member in self._in_sync.get(place[0], ()):
            content = self._durable(place, lsn, min(len(committed), lsn + _LOOK_BYTES))
            if content and content == committed[lsn : lsn + len(content)]:
                self._fail("acknowledged-is-kept", f"{place} cuts at {lsn} what is committed up to {len(committed)}")

    def _acts(self, place: ShardReplica, record: ReplicaRecord) -> None:
        incarnation = record.incarnation
        if incarnation in self._lost.get(place, ()):
            self._fail("lost-is-another", f"{place} acts as {incarnation}, whose disk was lost")
        doubted = self._doubted.get(place)
        if doubted and incarnation in doubted:
            doubted.discard(incarnation)  # It is known for what it was, so it must have everything.
            if any(member == InSyncMember(place[1], incarnation) for member in self._in_sync.get(place[0], ())):
                if self._somebody_knows_better(place, record):
                    self._holds(place, "in-sync-holds-everything", f"{place} came back as {incarnation}")
                else:
                    self._excused.add(place)

    def _somebody_knows_better(self, place: ShardReplica, record: ReplicaRecord) -> bool:
        """Whether the agreed state, or a process that runs, knows that more is committed than is in a replica's log.

        Where all that knew have ended before one of them told of it nobody can: see ``docs/replication.md``.
        """
        lacks = self._differs(place, 0, len(self._committed.get(place[0], b"")))
        if lacks is None:
            return False
        starts = [start for shard in self._newest_shards() if shard.id == place[0] for start in shard.starts]
        known = [start.floor_lsn for start in starts]
        known += [
            replica.high_watermark
            for node, replica in self.cluster.replicas()
            if replica.shard == place[0] and node.id != place[1]
        ]
        for node in self.cluster.nodes:
            if node.up and node.broker is not None:
                member: Any = node.broker.topology
                overseer = member.control._overseer
                known.append(0 if overseer is None else overseer._witness._heard.get(place[0], 0))
        most = max(known, default=0)
        at_hand = record.starts[-1] if record.starts else None
        if any(start.node == place[1] and (start.number, start.token) == at_hand for start in starts):
            # What was committed while it was registered is told by the shard's leader, when the two are connected.
            most = min(most, self._committed_before(place[0], self.cluster.world.scheduler.now - _REGISTERING_S))
        return most > lacks

    def _committed_before(self, shard: int, moment_s: float) -> int:
        """What was committed then."""
        return max((lsn for at_s, lsn in self._grown.get(shard, ()) if at_s <= moment_s), default=0)

    def _advances(self, node: SimulatedNode, place: ShardReplica, core: ReplicaCore, lsn: int) -> None:
        process, shard = self._process(node), place[0]
        shown = self._shown.get((place, process), 0)
        if lsn < shown:
            self._fail("high-watermark-rises", f"{place} goes from {shown} to {lsn}")
        self._shown[place, process] = lsn
        committed = self._committed.setdefault(shard, bytearray())
        begin = len(committed)
        if core.serving or core.role.value == "leading":
            if lsn > begin:
                content = self._durable(place, begin, lsn)
                if not content.strip(b"\0"):
                    self._fail("acknowledged-survives", f"{place} shows up to {lsn} what is not on its disk")
                committed += content.ljust(lsn - begin, b"\0")
                self._grown.setdefault(shard, []).append((self.cluster.world.scheduler.now, lsn))
                self._durable_in_sync(shard, begin, lsn)
                view, members = core.view, len(self._in_sync.get(shard, ()))
                if view is not None and members < view.min_in_sync:
                    self._fail("enough-in-sync", f"shard {shard} commits {lsn} with {members} in sync")
        elif lsn > begin:
            self._fail("nothing-above-is-shown", f"{place} shows {lsn}, leaders {begin}")
        if shown < min(lsn, begin):
            self._agrees(place, shown, min(lsn, begin), "logs-agree", f"{place} shows up to {lsn}")

    # The in-sync set

    def _newest_shards(self) -> list[Any]:
        states = [
            node.broker.topology.control.state  # type: ignore[attr-defined]
            for node in self.cluster.nodes
            if node.up and node.broker is not None
        ]
        # Who knew the newest may be down: what was agreed on stays so.
        known = [] if self._newest is None else [self._newest]
        self._newest = max([*known, *states], key=lambda state: state.version, default=None)
        return list(self._newest.shards.values()) if self._newest is not None else []

    def _in_sync_changes(self, number: int) -> None:
        """Whoever is taken in has everything by then."""
        for shard in self._newest_shards():
            if shard.id == number:
                members = frozenset(shard.in_sync)
                former = self._in_sync.get(number, frozenset())
                if members != former:
                    self._in_sync[number] = members
                    for member in sorted(members - former):
                        self._member_holds(number, member, 0, len(self._committed.get(number, b"")))

    def _durable_in_sync(self, shard: int, begin: int, end: int) -> None:
        self._in_sync_changes(shard)
        for member in sorted(self._in_sync.get(shard, ())):
            self._member_holds(shard, member, begin, end)

    def _member_holds(self, shard: int, member: InSyncMember, begin: int, end: int) -> None:
        place = shard, member.node
        if member.incarnation == UNCLAIMED or member.incarnation in self._doubted.get(place, ()):
            return
        if place in self._excused:
            if self._differs(place, 0, end) is not None:
                return
            self._excused.discard(place)
        self._agrees(place, begin, end, "in-sync-holds-everything", f"{member.node} is in sync of shard {shard}")

    def _holds(self, place: ShardReplica, name: str, what: str) -> None:
        self._agrees(place, 0, len(self._committed.get(place[0], b"")), name, what)

    def _agrees(self, place: ShardReplica, begin: int, end: int, name: str, what: str) -> None:
        at = self._differs(place, begin, end)
        if at is not None:
            self._fail(name, f"{what}, and its log differs from what is committed up to {end} at LSN {at}")

    def _differs(self, place: ShardReplica, begin: int, end: int) -> int | None:
        """Where the durable log of a replica is not what is committed, as far as there are files of it."""
        committed = self._committed.get(place[0], bytearray())
        for start, content in self._segments(place, begin, end):
            if content != committed[start : start + len(content)]:
                return next(start + at for at, byte in enumerate(content) if byte != committed[start + at])
        return None

    # Disks

    def _written(self, place: ShardReplica, begin: int, end: int) -> bytes:
        """A stretch of one segment, as processes see it, as far as there is a file of it."""
        size = self.cluster.segment_bytes
        path = self._wal(place) / segment_name(begin - begin % size)
        if not path.exists() or not self.cluster.node(place[1]).up:
            return b""
        with path.open("rb") as file:
            file.seek(begin % size)
            return file.read(end - begin)

    def _wal(self, place: ShardReplica) -> Path:
        return self.cluster.node(place[1]).disk.root / f"data/shard-{place[0]}/wal"

    def _durable(self, place: ShardReplica, begin: int, end: int) -> bytes:
        return b"".join(content for _, content in self._segments(place, begin, end))

    def _segments(self, place: ShardReplica, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """What is durable of ``[begin, end)`` of a replica's log, by segment, where there are files."""
        node, wal = self.cluster.node(place[1]), self._wal(place)
        size = self.cluster.segment_bytes
        for start in range(begin - begin % size, end, size):
            file = node.disk.node(str(wal / segment_name(start)))
            if isinstance(file, FileNode):
                low, high = max(begin, start), min(end, start + size)
                yield low, bytes(file.durable[low - start : high - start]).ljust(high - low, b"\0")

    def _process(self, node: SimulatedNode) -> str:
        return node.process.name if node.process is not None else node.id
