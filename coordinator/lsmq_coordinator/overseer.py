"""The part of the control plane's leader: it watches the nodes, elects leaders of shards, moves replicas, and has
other nodes vote in the place of voters that are gone.

Runs on every voter and acts only while that voter leads. All it does are compare-and-set commands, so that two
overseers that both believe to lead cannot do harm: only one of them can commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError

from .balancer import Balancer, BalanceTiming
from .commands import MAX_BATCH
from .deaf_leaders import DeafLeaders, DeafTiming
from .election import ReplicaProgress, choose_candidate, leader_counts, may_lead, spread_leaders
from .election_pace import ElectionPace
from .errors import NoControlLeader, NodeRuns, NotControlLeader
from .full_disks import FullDisks, FullTiming
from .growth import GROW_SHARDS, growth_plan, shown_plan
from .heartbeats import HeartbeatAnswer, NodeHeartbeat, Told
from .leaderless import LeaderlessShards
from .liveness import FailureDetector, LivenessTiming
from .raft_control import RaftControl
from .reassignment import handover, next_steps
from .resigning import Resigning, ResignTiming
from .shard_commands import MAX_EPOCH
from .state import MAX_NODES, ClusterState, NodeState
from .topic_room import TopicRoom
from .voter_care import VoterCare, VoterTiming
from .voter_changes import CANCEL, REPLACE
from .witness import Witness

_log = logging.getLogger(__name__)

#: For so long a new leadership waits for what the members of an in-sync set say of a shard.
HEAR_STARTS_S = 5.0
#: What each node reported last of its replicas, by shard.
Reports = Mapping[str, Mapping[int, ReplicaProgress]]


@dataclass(frozen=True, slots=True)
class OverseerTiming:
    """Seconds."""

    tick_s: float = 0.05
    liveness: LivenessTiming = LivenessTiming()  # noqa: RUF009
    #: Leaders are spread only when nothing changed for so long, one shard at a time.
    settle_s: float = 2.0
    #: When the control plane's leader resigns that too few nodes can call.
    resign: ResignTiming = ResignTiming()  # noqa: RUF009
    deaf: DeafTiming = DeafTiming()  # noqa: RUF009
    full: FullTiming = FullTiming()  # noqa: RUF009
    balance: BalanceTiming = BalanceTiming()  # noqa: RUF009
    voters: VoterTiming = VoterTiming()  # noqa: RUF009
    #: The shards of a node that lives and has held no lease for so long are led by others.
    unleased_s: float = 1.0
    #: Commands that changed nothing are not repeated sooner: each costs an entry of the log.
    repeat_s: float = 1.0
    command_timeout_s: float = 2.0


class Overseer:
    """Start :meth:`run` as a task of the daemon's task group."""

    def __init__(
        self,
        raft: RaftControl,
        *,
        timing: OverseerTiming = OverseerTiming(),
        spread: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock = clock or runtime.monotonic
        self._raft, self._timing, self._spread = raft, timing, spread
        self._detector = FailureDetector(timing.liveness)
        #: The life of each node that is known to have ended last, whoever leads: the next leader may need it at once.
        self._ended: dict[str, str] = {}
        self._reports: dict[str, Mapping[int, ReplicaProgress]] = {}
        #: Nodes heard whose release knows of shards that came after the founding.
        self._growing: set[str] = set()
        #: And those whose release forgets nodes that were removed.
        self._forgetting: set[str] = set()
        #: Shards whose epochs up to the one given cannot be led.
        self._asked: dict[int, int] = {}
        self._pace = ElectionPace()
        self._leaderless = LeaderlessShards()
        self._witness = Witness()
        raft.testify = self._testify
        self._deaf = DeafLeaders(timing.deaf)
        self._full = FullDisks(timing.full)
        self._balancer = Balancer(timing.balance)
        self._voters = VoterCare(raft, timing.voters)
        self._topic_room = TopicRoom()
        self._told = Told()
        self._unleased_since: dict[str, float] = {}
        self._resigning = Resigning(timing.resign, clock())
        self._submitted: tuple[int, list[dict[str, Any]], float] = (-1, [], 0.0)
        self._term = -1
        self._changed_at = self._led_since = clock()
        self._epochs: dict[int, int] = {}
        self._wake = asyncio.Event()
        #: Elections committed since the start, for metrics.
        self.elections = 0

    @property
    def alive(self) -> frozenset[str]:
        """Nodes held alive; meaningful on the leader only."""
        return self._detector.alive

    @property
    def heard(self) -> frozenset[str]:
        """Of those, who was heard since this voter leads."""
        return self._detector.heard

    # What nodes report

    def heartbeat(self, beat: NodeHeartbeat) -> HeartbeatAnswer:
        """A node says that it runs, and how. Raises when not the leader.

        Only the life that the cluster has agreed on is heard, and given a lease: else a leader of the control plane
        that never heard it could not tell whose death a notice proves.
        """
        self._require_leader()
        node, now = beat.node, self._clock()
        known = self._raft.state.nodes.get(node)
        agreed = known is not None and known.life == beat.life and self._ended.get(node) != beat.life
        if known is not None and agreed:
            self._told.heard(beat, member=known.state is not NodeState.REMOVED)
            self._voters.hear(node, beat.raft)
            (self._growing.add if beat.grows else self._growing.discard)(node)
            (self._forgetting.add if beat.forgets else self._forgetting.discard)(node)
        agreed = agreed and (beat.grows or not self._raft.state.has_grown)
        alive = agreed and self._detector.heartbeat(node, now, well=beat.well)
        if alive and beat.progress is not None:
            self._reports[node] = dict(beat.progress)
            self._witness.hear(self._raft.state, node, beat.progress)
            self._balancer.hear(node, beat.progress, beat.sizes, now)
        if alive and not beat.leased:
            self._unleased(node, now)
        else:
            self._unleased_since.pop(node, None)
        return HeartbeatAnswer(
            version=self._raft.state.version,
            lease_age_s=max(0.0, runtime.monotonic() - self._raft.lease),
            alive=alive,
            living=self._detector.alive,
            leaderless=self._leaderless.reasons,
            revivable=self._leaderless.epochs,
            problems=self._told.problems,
            clocks_ms=self._told.clocks_ms,
            now_ms=runtime.wall_time() * 1000,
        )

    def _unleased(self, node: str, now: float) -> None:
        """The node lives, is given leases, and holds none: what it leads, it cannot serve."""
        since = self._unleased_since.setdefault(node, now)
        for shard in self._raft.state.shards.values():
            if shard.leader == node and now - since > self._timing.unleased_s:
                self._deaf.say(shard.id, node, shard.epoch, now)

    def _testify(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """A command as the leader puts it into the log, with what it knows. Raises ``NodeRuns``, ``NoControlLeader``,
        ``TooManyTopics``.

        A start of a node is agreed on when the life before it is over: proven to be, or silent for as long as it takes
        for any lease to run out. So a second process under a node's name, by a wrong configuration or with a copy of
        its data, takes nothing from the one that runs.
        """
        if command.get("op") in (REPLACE, CANCEL):
            self._require_leader()
            self._detector.set_nodes(_members(self._raft.state), self._clock())
            return self._voters.testified(command, self._detector)
        if command.get("op") == "set_voters":
            raise InvalidRequest(f"who votes is changed by {REPLACE}")
        if command.get("op") == GROW_SHARDS:
            self._check_all_grow()
        if command.get("op") == "register_start":
            self._hear_first(command)
        if self._raft.is_leader:
            self._topic_room.check(self._raft.state, command)
        if command.get("op") != "register_node":
            return self._witness.testify(command)
        known = self._raft.state.nodes.get(str(command.get("node")))
        if known is None:
            return self._with_room(command)
        if known.life in ("", command.get("life")) or not self._raft.is_leader:
            return command
        self._begin_leadership()
        now = self._clock()
        self._detector.set_nodes(_members(self._raft.state), now)
        if self._ended.get(known.id) != known.life and self._detector.may_run(known.id, now):
            raise NodeRuns(
                f"node {known.id!r} runs already, at {known.internal_url}: this is a second process under its name. "
                "Give each node its own cluster.node and data directory. If that one has just ended, this one is taken "
                "when it was silent for long enough",
                node=known.id,
                url=known.internal_url,
            )
        return {**command, "former": known.life}

    def _with_room(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """A new node's registration. Where there is no room for it, it says which removed node gives way, the first by
        its id, once all voters are of a release that knows what that means."""
        nodes, voters = self._raft.state.nodes, self._raft.membership.voters
        removed = sorted(nodes.keys() - _members(self._raft.state)) if len(nodes) >= MAX_NODES else []
        fresh = {name: value for name, value in command.items() if name != "forget"}
        return {**fresh, "forget": removed[0]} if removed and voters.keys() <= self._forgetting else fresh

    def _hear_first(self, command: Mapping[str, Any]) -> None:
        """Raises ``NoControlLeader`` while nobody can tell how far the log of a disk was durable: a new leadership has
        heard nothing of the shard, until each other member of its in-sync set was heard, or is known to be dead. For a
        while it waits for what all of them say of the shard: they may have just started, or be about to.
        """
        shard = self._raft.state.shards.get(command.get("shard", -1))
        node, incarnation = command.get("node"), command.get("incarnation")
        if shard is None or not self._raft.is_leader or shard.listed(str(node)) != incarnation:
            return
        self._begin_leadership()
        now = self._clock()
        self._detector.set_nodes(_members(self._raft.state), now)
        known = self._raft.state.nodes.get(str(node))
        if known is not None and known.life == command.get("life"):
            self._witness.hear_start(shard, command)
        others = set(shard.in_sync_nodes) - {node}
        unheard = others & self._detector.alive - self._detector.heard
        if now - self._led_since < HEAR_STARTS_S:
            unheard |= {other for other in others if not self._witness.has_told(shard.id, other)}
        if unheard:
            raise NoControlLeader(
                "the control plane has a new leader, which has not heard yet what "
                f"{', '.join(sorted(unheard))} know of shard {shard.id}"
            )

    def died(self, node: str, life: str) -> None:
        """It is proven that a life of a node has ended. Taken by every voter, whether or not it leads."""
        members = _members(self._raft.state)
        if node in members:
            self._ended = {known: ended for known, ended in self._ended.items() if known in members} | {node: life}
            self._wake.set()

    def ask_election(self, shard: int, above_epoch: int, besides: str | None = None) -> None:
        """A replica says that epochs up to ``above_epoch`` cannot be led. Raises when this voter does not lead.

        ``besides`` leads that epoch, hears too few of the others, and is to be replaced if another can lead. Asking
        again, or when the shard has a higher epoch by now, does nothing.
        """
        self._require_leader()
        known = self._raft.state.shards.get(shard)
        if besides is not None:
            if known is not None and (known.leader, known.epoch) == (besides, above_epoch):
                self._deaf.say(shard, besides, above_epoch, self._clock())
                self._wake.set()
        elif known is not None and known.epoch <= above_epoch < MAX_EPOCH:
            self._asked[shard] = max(above_epoch, self._asked.get(shard, 0))
            self._wake.set()

    def plan(self) -> dict[str, Any]:
        """What the cluster is about to move by itself, and who is to vote in whose place, for people. Raises when not
        the leader."""
        self._require_leader()
        now = self._clock()
        return {
            **self._balancer.shown(self._raft.state, self._detector, self._full.unfit, now),
            "voters": self._voters.shown(self._detector, self._full_nodes, now),
        }

    @property
    def _full_nodes(self) -> set[str]:
        """Whose disks are full, or were a short time ago."""
        return {node for _, node in self._full.unfit}

    def growth(self, shards: int) -> dict[str, Any]:
        """Where the replicas of new shards would lie, if there are to be ``shards``. Raises when not the leader,
        ``InvalidRequest`` where there cannot be so many, or a node may be of a release that knows nothing of them."""
        self._check_all_grow()
        return shown_plan(self._raft.state, growth_plan(self._raft.state, shards, self._detector.heard))

    def _check_all_grow(self) -> None:
        self._require_leader()
        self._detector.set_nodes(_members(self._raft.state), self._clock())
        unknown = sorted(set(_members(self._raft.state)) - self._growing)
        if unheard := [node for node in unknown if node in self._detector.alive - self._detector.heard]:
            raise NoControlLeader(f"the control plane has a new leader, which has not heard {', '.join(unheard)} yet")
        if unknown:
            raise InvalidRequest(
                f"{', '.join(unknown)} may run a release that knows nothing of shards that come later: upgrade and "
                "start all nodes, or remove those that are gone for good, and then grow",
                reason="old_release",
            )

    def _require_leader(self) -> None:
        raft = self._raft
        if not raft.is_leader:
            leader = raft.leader
            if leader is None or leader == raft.config.node:
                raise NoControlLeader("no leader of the control plane is ready")
            raise NotControlLeader(f"node {leader!r} leads the control plane", leader=leader)
        self._begin_leadership()

    # What is done about it

    async def run(self) -> None:
        """Until cancelled. Where the node does not vote there is nothing to look at until it does."""
        end = self._raft.on_status(lambda _: self._wake.set())
        try:
            while True:
                await self.look()
                try:
                    async with asyncio.timeout(self._timing.tick_s if self._raft.seated else None):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            end()

    def _begin_leadership(self) -> None:
        term = self._raft.status.term
        if term != self._term:
            self._term = term
            self._reports, self._asked, self._told = {}, {}, Told()
            self._growing, self._forgetting = set(), set()
            self._voters.begin()
            self._deaf, self._full = DeafLeaders(self._timing.deaf), FullDisks(self._timing.full)
            self._balancer = Balancer(self._timing.balance)
            self._pace, self._leaderless, self._witness = ElectionPace(), LeaderlessShards(), Witness()
            self._unleased_since = {}
            self._resigning.reached(self._clock())
            self._submitted = (-1, [], 0.0)
            self._changed_at = self._led_since = self._clock()
            self._detector.begin(_members(self._raft.state), self._clock())

    async def look(self) -> None:
        """Look once, and do what is due. For :meth:`run`, and for who drives an overseer by a clock of its own."""
        self._resigning.resigned(self._raft.status.resigned_term, self._clock())
        if self._raft.is_leader:
            await self._oversee()
        else:
            self._term = -1

    async def _oversee(self) -> None:
        self._begin_leadership()
        state, now = self._raft.state, self._clock()
        members = _members(state)
        self._detector.set_nodes(members, now)
        self._told.set_nodes(state.nodes.keys(), set(members))
        self._growing.intersection_update(members)
        self._forgetting.intersection_update(members)
        for said in (self._reports, self._balancer.sizes, self._voters.addresses):
            for node in said.keys() - members:
                del said[node]
        ended = {node for node, life in self._ended.items() if node in state.nodes and state.nodes[node].life == life}
        for node in sorted(ended):
            self._detector.died(node)
        verdicts = self._detector.tick(now)
        if verdicts.died or verdicts.returned:
            self._changed_at = now
        epochs = {id: shard.epoch for id, shard in state.shards.items()}
        if epochs != self._epochs:  # a node may have handed its shards over: nothing is taken back at once
            self._epochs, self._changed_at = epochs, now
        alive = self._detector.alive
        if not self._is_reached(state, alive, now):
            return
        await self._voters.step()
        await self._voters.replace(self._detector, self._full_nodes, now)
        self._leaderless.look(state, alive, self._reports, now)
        self._full.look(alive, self._reports, now)
        relieved = self._full.successors(state, alive, self._reports, now)
        successors = {**relieved, **self._deaf.successors(state, alive, self._reports, now)}
        commands = failovers(state, alive, self._reports, self._due(state, now), successors)
        commands += departures(state, alive, ended)
        commands += restored_trust(state, self.heard, self._raft.membership.voters.keys())
        noted = self._witness.due(now, lost=bool(verdicts.died))
        commands += [] if noted is None else [noted]
        if not commands:
            commands = next_steps(state, alive, self._timing.balance.moves_at_once)
        if not commands and self._spread and now - self._changed_at >= self._timing.settle_s:
            commands = transfers(state, alive, self._reports, self._detector.restless(now), self._full.unfit)
            commands += self._balancer.due(state, self._detector, self._full.unfit, now)
        commands = commands[:MAX_BATCH]  # The next look does the rest.
        version, former, at = self._submitted
        if not commands or ((version, former) == (state.version, commands) and now - at < self._timing.repeat_s):
            return
        self._submitted = (state.version, commands, now)
        self._changed_at = now
        for id, successor in relieved.items():
            leader = state.shards[id].leader
            _log.warning("the disk of %s is full: shard %d is to be led by %s, which has room", leader, id, successor)
        await self._submit(commands)

    def _is_reached(self, state: ClusterState, alive: Set[str], now: float) -> bool:
        """Whether enough of the voters were heard; else nothing is judged, and another one is to lead soon.

        Raft reaches them, or this voter would not lead: they live, and cannot call it. A leader cut off from them in
        both directions ends by itself.
        """
        voters = self._raft.membership.voters
        unheard = voters.keys() & set(_members(state)) - alive - {self._raft.config.node}
        if 2 * len(unheard) < len(voters):
            self._resigning.reached(now)
            return True
        if self._resigning.is_due(now):
            self._resigning.resigned(self._term, now)
            self._resigning.reached(now)  # It leads on for a moment.
            _log.warning(
                "the control plane's leader resigns: it does not hear %s; the next one holds out for %.1f s",
                sorted(unheard),
                self._resigning.patience_s(now),
            )
            self._raft.resign()
        return False

    def _due(self, state: ClusterState, now: float) -> dict[int, int]:
        """Elections that were asked for and may be held now."""
        self._asked = {id: above for id, above in self._asked.items() if state.shards[id].epoch <= above}
        return {
            id: above for id, above in self._asked.items() if self._pace.is_due(state.shards[id], self._reports, now)
        }

    async def _submit(self, commands: list[dict[str, Any]]) -> None:
        try:
            result = await self._raft.submit({"op": "batch", "commands": commands}, self._timing.command_timeout_s)
        except LsmqError:
            # Leadership was lost or is in doubt. Whoever leads next looks again.
            self._submitted = (-1, [], 0.0)
            return
        outcomes = zip(commands, result.get("results", ()), strict=False)
        self.elections += sum(command["op"] == "elect" and bool(entry["ok"]) for command, entry in outcomes)


def _members(state: ClusterState) -> list[str]:
    return [node.id for node in state.nodes.values() if node.state is not NodeState.REMOVED]


def restored_trust(state: ClusterState, heard: Set[str], voters: Set[str]) -> list[dict[str, Any]]:
    """A ``trust`` for shards with replicas whose disks went back, when a majority of the voters besides their nodes is
    heard: what the control plane had committed did not go back with them."""
    doubted = {node for shard in state.shards.values() for node in shard.distrusted}
    if not doubted or 2 * len((voters & heard) - doubted) <= len(voters):
        return []
    return [
        {"op": "trust", "shard": id, "nodes": list(state.shards[id].distrusted)}
        for id in sorted(state.shards)
        if state.shards[id].distrusted
    ]


def departures(state: ClusterState, alive: Set[str], ended: Set[str]) -> list[dict[str, Any]]:
    """A ``leave_in_sync`` for every member whose process is proven to have ended, of a set whose leader lives, where
    enough stay: quorum writes need not wait until the leader itself has missed it for long enough.

    The set is its leader's otherwise, which proposes who leaves and who joins by what it hears itself: that somebody is
    not heard *here* says nothing of the connections between the two. No leader can take in again who has ended.
    """
    commands = []
    for id in sorted(state.shards):
        shard = state.shards[id]
        dead = [member for member in shard.in_sync if member.node in ended]
        if shard.leader not in alive or len(shard.in_sync) - len(dead) < state.settings.min_in_sync:
            continue
        commands += [
            {
                "op": "leave_in_sync",
                "shard": id,
                "node": member.node,
                "incarnation": member.incarnation,
                "expected_version": shard.version + place,
            }
            for place, member in enumerate(dead)
        ]
    return commands


def failovers(
    state: ClusterState,
    alive: frozenset[str],
    reports: Reports,
    asked: Mapping[int, int] | None = None,
    successors: Mapping[int, str] | None = None,
) -> list[dict[str, Any]]:
    """An ``elect`` for every shard whose leader is not alive and that has somebody in sync who is.

    The dead are suspects: they leave the in-sync set with it, see :func:`~.shard_commands.elect`. ``asked`` are shards
    whose epochs up to the one given cannot be led, whoever leads them; the same node may be elected again.
    ``successors`` are to lead the shards whose leader lives and takes no writes.
    """
    loads = leader_counts(state, alive)
    commands = []
    for id in sorted(state.shards):
        shard, above = state.shards[id], (asked or {}).get(id, 0)
        if shard.leader not in alive or above >= shard.epoch:
            known = {node: reports[node][id] for node in shard.replicas if id in reports.get(node, ())}
            candidate = choose_candidate(shard, alive, known, loads=_without_one(loads, shard.leader))
        else:
            candidate = (successors or {}).get(id)
        if candidate is None:
            continue
        if shard.leader in loads:
            loads[shard.leader] -= 1
        loads[candidate] += 1
        command = handover(shard, candidate)
        command["suspects"] = [node for node in shard.in_sync_nodes if node not in alive]
        if above >= shard.epoch:
            command["min_epoch"] = above + 1
        commands.append(command)
    return commands


def _without_one(loads: Mapping[str, int], leader: str | None) -> dict[str, int]:
    return {node: load - (node == leader) for node, load in loads.items()}


def transfers(
    state: ClusterState,
    alive: frozenset[str],
    reports: Reports | None = None,
    restless: Set[str] = frozenset(),
    unfit: Set[tuple[int, str]] = frozenset(),
) -> list[dict[str, Any]]:
    """The next step towards leaders where they should be, as an ``elect``; empty when there is none to take.

    Nobody is given a shard that it does not report: its replica does not work. Nor one of whose epoch it has nothing
    yet: perhaps nobody can call it, and then it could not lead. Nor one that comes and goes, nor who is ``unfit``.
    """
    passed_over = set(unfit)
    for shard in state.shards.values():
        for node in shard.replicas:
            if node in restless:
                passed_over.add((shard.id, node))
            elif reports is not None and node in reports:
                report = reports[node].get(shard.id)
                if report is None or report.epoch < shard.epoch or not may_lead(shard, node, report):
                    passed_over.add((shard.id, node))
    return [handover(state.shards[step.shard], step.target) for step in spread_leaders(state, alive, passed_over)]
