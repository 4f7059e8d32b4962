"""The part of the control plane's leader: it watches the nodes, elects leaders of shards, moves replicas.

Runs on every voter and acts only while that voter leads. All it does are compare-and-set commands, so that two
overseers that both believe to lead cannot do harm: only one of them can commit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lsmq.errors import LsmqError

from .deaf_leaders import DeafLeaders
from .election import Progress, choose_candidate, leader_counts, may_lead, spread_leaders
from .errors import NoControlLeader, NotControlLeader
from .liveness import FailureDetector, LivenessTiming
from .names import Names
from .raft_control import RaftControl
from .reassignment import handover, next_steps
from .shard_commands import MAX_EPOCH
from .state import ClusterState, NodeState

#: Whether nobody listens at an address: True, False, or None when that could not be found out.
Probe = Callable[[str], Awaitable[bool | None]]
#: What each node reported last of its replicas, by shard.
Reports = Mapping[str, Mapping[int, Progress]]


@dataclass(frozen=True, slots=True)
class OverseerTiming:
    """Seconds."""

    tick_s: float = 0.05
    liveness: LivenessTiming = LivenessTiming()  # noqa: RUF009
    #: Leaders are spread only when nothing changed for so long, one shard at a time.
    settle_s: float = 2.0
    probe_timeout_s: float = 0.25
    #: An election that replicas ask for is held at most so often for one shard.
    ask_interval_s: float = 0.1
    #: The control plane's leader resigns when too few nodes could call it for so long.
    resign_s: float = 1.0
    #: Commands that changed nothing are not repeated sooner: each costs an entry of the log.
    repeat_s: float = 1.0
    command_timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the leader tells a node it heard. ``lease_age_s``: how long ago a majority is known to have followed
    it. ``alive`` is False for a node that was just found gone; ``living`` are all nodes held alive."""

    version: int
    lease_age_s: float
    alive: bool
    living: frozenset[str]


class Overseer:
    """Start :meth:`run` as a task of the daemon's task group."""

    def __init__(
        self,
        raft: RaftControl,
        *,
        timing: OverseerTiming = OverseerTiming(),
        probe: Probe | None = None,
        spread: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._raft, self._timing, self._clock, self._spread = raft, timing, clock, spread
        self._probe = probe or self._connect
        self._names = Names()
        self._detector = FailureDetector(timing.liveness)
        self._reports: dict[str, Mapping[int, Progress]] = {}
        #: Shards whose epochs up to the one given cannot be led, and when each was last helped.
        self._asked: dict[int, int] = {}
        self._helped: dict[int, float] = {}
        self._deaf = DeafLeaders()
        self._reached_at = clock()
        self._submitted: tuple[int, list[dict[str, Any]], float] = (-1, [], 0.0)
        self._term = -1
        self._changed_at = clock()
        self._epochs: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._probes: set[asyncio.Task[None]] = set()
        #: Elections committed since the start, for metrics.
        self.elections = 0

    @property
    def alive(self) -> frozenset[str]:
        """Nodes held alive; meaningful on the leader only."""
        return self._detector.alive

    # What nodes report

    def heartbeat(self, node: str, instance: str, progress: Mapping[int, Progress] | None) -> HeartbeatAnswer:
        """A node says that it runs, and what its replicas hold (None: unknown). Raises when not the leader."""
        self._require_leader()
        alive = self._detector.heartbeat(node, instance, self._clock())
        if alive and progress is not None:
            self._reports[node] = dict(progress)
        age_s = max(0.0, time.monotonic() - self._raft.lease)
        return HeartbeatAnswer(self._raft.state.version, age_s, alive, self._detector.alive)

    def suspect(self, node: str) -> None:
        """A node lost its connection to ``node``. Raises when this voter does not lead."""
        self._require_leader()
        if self._detector.suspect(node, self._clock()):
            self._start_probe(node)

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

    def _start_probe(self, node: str) -> None:
        known = self._raft.state.nodes.get(node)
        if known is None:
            return
        task = asyncio.create_task(self._examine(node, known.internal_url))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    def _require_leader(self) -> None:
        raft = self._raft
        if not raft.is_leader:
            leader = raft.leader
            if leader is None or leader == raft.config.node:
                raise NoControlLeader("no leader of the control plane is ready")
            raise NotControlLeader(f"node {leader!r} leads the control plane", leader=leader)
        self._begin_leadership()

    async def _examine(self, node: str, url: str) -> None:
        refused = await self._probe(url)
        self._detector.probed(node, refused is True, self._clock())
        self._wake.set()

    async def _connect(self, url: str) -> bool | None:
        address = urlsplit(url)
        try:
            async with asyncio.timeout(self._timing.probe_timeout_s):
                _, writer = await asyncio.open_connection(
                    await self._names.address(address.hostname or ""), address.port
                )
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return None
        writer.close()
        return False

    # What is done about it

    async def run(self) -> None:
        """Until cancelled."""
        end = self._raft.on_status(lambda _: self._wake.set())
        try:
            while True:
                if self._raft.is_leader:
                    await self._oversee()
                else:
                    self._term = -1
                try:
                    async with asyncio.timeout(self._timing.tick_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            end()
            for task in self._probes:
                task.cancel()

    def _begin_leadership(self) -> None:
        term = self._raft.status.term
        if term != self._term:
            self._term = term
            self._reports, self._asked, self._deaf = {}, {}, DeafLeaders()
            self._reached_at = self._clock()
            self._submitted = (-1, [], 0.0)
            self._changed_at = self._clock()
            self._detector.begin(_members(self._raft.state), self._clock())
            # Who died together with the former leader need not be waited for.
            for node in sorted(self._detector.alive):
                if self._detector.suspect(node, self._clock()):
                    self._start_probe(node)

    async def _oversee(self) -> None:
        self._begin_leadership()
        state, now = self._raft.state, self._clock()
        self._detector.set_nodes(_members(state), now)
        verdicts = self._detector.tick(now)
        for node in verdicts.probe:
            self._start_probe(node)
        if verdicts.died or verdicts.returned:
            self._changed_at = now
        epochs = {id: shard.epoch for id, shard in state.shards.items()}
        if epochs != self._epochs:  # a node may have handed its shards over: nothing is taken back at once
            self._epochs, self._changed_at = epochs, now
        alive = self._detector.alive
        if not self._is_reached(state, alive, now):
            return
        successors = self._deaf.successors(state, alive, self._reports, now)
        commands = failovers(state, alive, self._reports, self._due(state, now), successors) + departures(state, alive)
        if not commands:
            commands = next_steps(state, alive)
        if not commands and self._spread and now - self._changed_at >= self._timing.settle_s:
            commands = transfers(state, alive, self._reports)
        version, former, at = self._submitted
        if not commands or ((version, former) == (state.version, commands) and now - at < self._timing.repeat_s):
            return
        self._submitted = (state.version, commands, now)
        self._changed_at = now
        await self._submit(commands)

    def _is_reached(self, state: ClusterState, alive: Set[str], now: float) -> bool:
        """Whether enough of the voters were heard; else nothing is judged, and another one is to lead soon.

        Raft reaches them, or this voter would not lead: they live, and cannot call it. A leader cut off from them in
        both directions ends by itself.
        """
        config = self._raft.config
        voters = set(config.voters) & set(_members(state))
        unheard = voters - alive - {config.node}
        if 2 * len(unheard) < len(config.voters):
            self._reached_at = now
            return True
        if now - self._reached_at > self._timing.resign_s:
            self._reached_at = now
            logging.getLogger(__name__).warning(
                "the control plane's leader resigns: it does not hear %s", sorted(unheard)
            )
            self._raft.resign()
        return False

    def _due(self, state: ClusterState, now: float) -> dict[int, int]:
        """Elections that were asked for and may be held now."""
        self._asked = {id: above for id, above in self._asked.items() if state.shards[id].epoch <= above}
        due = {
            id: above
            for id, above in self._asked.items()
            if now - self._helped.get(id, float("-inf")) >= self._timing.ask_interval_s
        }
        self._helped |= dict.fromkeys(due, now)
        return due

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


def departures(state: ClusterState, alive: frozenset[str]) -> list[dict[str, Any]]:
    """A ``leave_in_sync`` for every dead member of a set whose leader lives, where enough stay: quorum writes need not
    wait until the leader itself has missed it for long enough."""
    commands = []
    for id in sorted(state.shards):
        shard = state.shards[id]
        dead = [member for member in shard.in_sync if member.node not in alive]
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
    ``successors`` are to lead the shards whose leader lives and hears too few.
    """
    loads = leader_counts(state, alive)
    commands = []
    for id in sorted(state.shards):
        shard, above = state.shards[id], (asked or {}).get(id, 0)
        known = {node: shards[id] for node, shards in reports.items() if id in shards}
        if shard.leader not in alive or above >= shard.epoch:
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


def transfers(state: ClusterState, alive: frozenset[str], reports: Reports | None = None) -> list[dict[str, Any]]:
    """The next step towards leaders where they should be, as an ``elect``; empty when there is none to take.

    Nobody is given a shard that it does not report: its replica does not work. Nor one of whose epoch it has nothing
    yet: perhaps nobody can call it, and then it could not lead.
    """
    unfit = set()
    for node, shards in (reports or {}).items():
        for shard in state.replicas_on(node):
            report = shards.get(shard.id)
            if report is None or report.epoch < shard.epoch or not may_lead(shard, node, report):
                unfit.add((shard.id, node))
    return [handover(state.shards[step.shard], step.target) for step in spread_leaders(state, alive, unfit)]
