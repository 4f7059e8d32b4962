"""The part of the control plane's leader: it watches the nodes, elects leaders of shards, and spreads them.

Runs on every voter and acts only while that voter leads. All it does are compare-and-set commands, so that two
overseers that both believe to lead cannot do harm: only one of them can commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lsmq.errors import LsmqError

from .election import Progress, choose_candidate, leader_counts, spread_leaders
from .errors import NoControlLeader, NotControlLeader
from .liveness import FailureDetector, LivenessTiming
from .raft_control import RaftControl
from .state import ClusterState, NodeState

#: Whether nobody listens at an address: True, False, or None when that could not be found out.
Probe = Callable[[str], Awaitable[bool | None]]


@dataclass(frozen=True, slots=True)
class OverseerTiming:
    """Seconds."""

    tick_s: float = 0.05
    liveness: LivenessTiming = LivenessTiming()  # noqa: RUF009
    #: Leaders are spread only when nothing changed for so long, one shard at a time.
    settle_s: float = 2.0
    probe_timeout_s: float = 0.25
    command_timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the leader tells a node it heard. ``lease_age_s``: how long ago a majority is known to have followed
    it. ``alive`` is False for a node that was just found gone."""

    version: int
    lease_age_s: float
    alive: bool


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
        self._detector = FailureDetector(timing.liveness)
        self._progress: dict[int, dict[str, Progress]] = {}
        self._term = -1
        self._changed_at = clock()
        self._wake = asyncio.Event()
        self._probes: set[asyncio.Task[None]] = set()
        #: Elections committed since the start, for metrics.
        self.elections = 0

    @property
    def alive(self) -> frozenset[str]:
        """Nodes held alive; meaningful on the leader only."""
        return self._detector.alive

    # What nodes report

    def heartbeat(self, node: str, instance: str, progress: Mapping[int, Progress]) -> HeartbeatAnswer:
        """A node says that it runs, and how far its shards' logs reach. Raises when this voter does not lead."""
        self._require_leader()
        alive = self._detector.heartbeat(node, instance, self._clock())
        for shard, reach in progress.items():
            self._progress.setdefault(shard, {})[node] = reach
        return HeartbeatAnswer(self._raft.state.version, max(0.0, time.monotonic() - self._raft.lease), alive)

    def suspect(self, node: str) -> None:
        """A node lost its connection to ``node``. Raises when this voter does not lead."""
        self._require_leader()
        if self._detector.suspect(node, self._clock()):
            self._start_probe(node)

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
                _, writer = await asyncio.open_connection(address.hostname, address.port)
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
            self._progress = {}
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
        alive = self._detector.alive
        commands = failovers(state, alive, self._progress)
        if not commands and self._spread and now - self._changed_at >= self._timing.settle_s:
            commands = transfers(state, alive)
        if commands:
            self._changed_at = now
            await self._submit(commands)

    async def _submit(self, commands: list[dict[str, Any]]) -> None:
        try:
            result = await self._raft.submit({"op": "batch", "commands": commands}, self._timing.command_timeout_s)
        except LsmqError:
            # Leadership was lost or is in doubt. Whoever leads next looks again.
            return
        self.elections += sum(bool(entry["ok"]) for entry in result.get("results", ()))


def _members(state: ClusterState) -> list[str]:
    return [node.id for node in state.nodes.values() if node.state is not NodeState.REMOVED]


def failovers(
    state: ClusterState, alive: frozenset[str], progress: Mapping[int, Mapping[str, Progress]]
) -> list[dict[str, Any]]:
    """An ``elect`` for every shard whose leader is not alive and that has somebody in sync who is.

    The dead leave the in-sync set with it, but never so many that fewer than ``min_in_sync`` remain: below that
    no quorum write is acknowledged anyway, and who stays may still be elected when it returns.
    """
    loads = leader_counts(state, alive)
    commands = []
    for id in sorted(state.shards):
        shard = state.shards[id]
        if shard.leader in alive:
            continue
        candidate = choose_candidate(shard, alive, progress.get(id), loads=loads)
        if candidate is None:
            continue
        loads[candidate] += 1
        dead = [node for node in shard.in_sync if node not in alive]
        spare = max(0, len(shard.in_sync) - state.settings.min_in_sync)
        dead.sort(key=lambda node, leader=shard.leader: node != leader)  # type: ignore[misc]
        commands.append(
            {
                "op": "elect",
                "shard": id,
                "candidate": candidate,
                "expected_epoch": shard.epoch,
                "suspects": dead[:spare],
            }
        )
    return commands


def transfers(state: ClusterState, alive: frozenset[str]) -> list[dict[str, Any]]:
    """The next step towards an even spread of leaders, as an ``elect``; empty when there is none to take."""
    return [
        {
            "op": "elect",
            "shard": step.shard,
            "candidate": step.target,
            "expected_epoch": state.shards[step.shard].epoch,
        }
        for step in spread_leaders(state, alive)
    ]
