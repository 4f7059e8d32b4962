"""Leaders of shards whose disks are full. Without a clock: times are seconds, passed in.

Such a leader takes no writes. It is replaced once its disk was full for long enough, by a replica in sync with room, if
as many as a write needs have room besides it: else nothing would be won, and it stays and refuses writes.

Who was full is not given the shard, nor given it back, before there has been room for long: what fills a disk goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from .election import Flaw, ReplicaProgress, choose_successor
from .state import ClusterState

Reports = Mapping[str, Mapping[int, ReplicaProgress]]


@dataclass(frozen=True, slots=True)
class FullTiming:
    """Seconds."""

    #: A leader is replaced when its disk has been full for so long.
    sure_s: float = 2.0
    #: A disk at its limit fills and empties by turns: it is full until there has been room for so long.
    room_s: float = 5.0
    #: Nobody is to lead whose disk was full so short a time ago.
    calm_s: float = 60.0


@dataclass(slots=True)
class _Full:
    since: float
    last: float


class FullDisks:
    """One for each leadership of the control plane. Bounded by the replicas of the cluster."""

    def __init__(self, timing: FullTiming = FullTiming()) -> None:
        self._timing = timing
        self._full: dict[tuple[int, str], _Full] = {}

    def look(self, alive: Set[str], reports: Reports, now: float) -> None:
        """Note who is full by what the living reported last."""
        for node in sorted(alive & reports.keys()):
            for shard, report in reports[node].items():
                if report.flawed & Flaw.FULL:
                    known = self._full.setdefault((shard, node), _Full(now, now))
                    if now - known.last > self._timing.room_s:
                        known.since = now
                    known.last = now
        self._full = {replica: full for replica, full in self._full.items() if now - full.last < self._timing.calm_s}

    @property
    def unfit(self) -> Set[tuple[int, str]]:
        """Shards and nodes that are not to lead them."""
        return self._full.keys()

    def successors(self, state: ClusterState, alive: Set[str], reports: Reports, now: float) -> dict[int, str]:
        """Who is to lead now, for each shard whose leader of today is full and that has somebody with room."""
        found = {}
        for (id, node), full in self._full.items():
            shard = state.shards.get(id)
            if shard is None or shard.leader != node or node not in alive:
                continue
            if full.last < now or now - full.since < self._timing.sure_s:
                continue
            known = {other: shards[id] for other, shards in reports.items() if id in shards}
            resting = {other for other in shard.replicas if (id, other) in self._full}
            successor = choose_successor(shard, alive - {node}, known, state.settings.min_in_sync, resting)
            if successor is not None:
                found[id] = successor
        return found
