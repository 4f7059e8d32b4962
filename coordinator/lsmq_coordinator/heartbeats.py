"""What nodes tell the leader of the control plane ten times a second, and what it answers. Plain values on the wire.

A node that is not ``well`` says so and is not heard otherwise: it is dead to the cluster, and everybody can read why.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from .clocks import deviations
from .election import ReplicaProgress

#: Of a node's problems the first so many are told, each cut to so many characters.
MAX_PROBLEMS = 16
MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """``life`` of ``node`` runs.

    Attributes:
        well: Whether it may be given work. A node whose own voter has stopped follows no decision, so that it must
            not keep what it was given.
        progress: What its replicas hold, by shard; None: unknown.
        leased: Whether it holds a lease.
        clock_ms: By how much its wall clock is ahead of that of the control plane's leader; None: not measured.
        problems: What is wrong with it, in words.
        sizes: Bytes that each of its replicas takes, by shard; told now and then, None in between.
        raft: ``host:port`` at which it would be reached if it voted; None: of a release that takes no voter's place.
        grows: Whether it is of a release that knows of shards that came after the founding.
        forgets: Whether it is of a release that forgets nodes that were removed, where there is no room for others.
    """

    node: str
    life: str
    progress: Mapping[int, ReplicaProgress] | None = None
    well: bool = True
    leased: bool = True
    clock_ms: float | None = None
    problems: tuple[str, ...] = ()
    sizes: Mapping[int, int] | None = None
    raft: str | None = None
    grows: bool = True
    forgets: bool = True

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "life": self.life,
            "progress": None if self.progress is None else {id: list(held) for id, held in self.progress.items()},
            "well": self.well,
            "leased": self.leased,
            "clock_ms": self.clock_ms,
            "problems": list(self.problems),
            "sizes": self.sizes,
            "raft": self.raft,
            "grows": self.grows,
            "forgets": self.forgets,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> NodeHeartbeat:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        progress, clock_ms, sizes = fields["progress"], fields["clock_ms"], fields.get("sizes")
        raft = fields.get("raft")
        return cls(
            str(fields["node"]),
            str(fields["life"]),
            None if progress is None else {int(id): ReplicaProgress(*map(int, held)) for id, held in progress.items()},
            bool(fields["well"]),
            bool(fields["leased"]),
            None if clock_ms is None else float(clock_ms),
            told(fields["problems"]),
            None if sizes is None else {int(id): int(size) for id, size in sizes.items()},
            None if raft is None else str(raft),
            bool(fields.get("grows", False)),
            bool(fields.get("forgets", False)),
        )


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the leader tells a node it heard.

    Attributes:
        version: Of the agreed state known to the leader.
        lease_age_s: How long ago a majority is known to have followed it.
        alive: Whether the node counts as alive, and is given a lease; not for a life that is not, or no longer, its.
        living: All nodes held alive.
        leaderless: Of each shard that nobody has led for a while, why that is.
        problems: Of each node that has any, what it said last.
        clocks_ms: By how much each node's wall clock is ahead of the cluster's middle one.
        now_ms: The leader's wall clock, to measure another by.
        revivable: Of the leaderless shards where nobody was elected just now, in which epoch that is so; None from a
            leader of a release that does not say it.
    """

    version: int
    lease_age_s: float
    alive: bool
    living: frozenset[str]
    leaderless: Mapping[int, str] = field(default_factory=dict)
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clocks_ms: Mapping[str, float] = field(default_factory=dict)
    now_ms: float = 0.0
    revivable: Mapping[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "lease_age_ms": min(self.lease_age_s, 1e6) * 1000,
            "alive": self.alive,
            "living": sorted(self.living),
            "leaderless": dict(self.leaderless),
            "revivable": None if self.revivable is None else dict(self.revivable),
            "problems": {node: list(found) for node, found in self.problems.items()},
            "clocks_ms": dict(self.clocks_ms),
            "now_ms": self.now_ms,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> HeartbeatAnswer:
        return cls(
            fields["version"],
            fields["lease_age_ms"] / 1000,
            fields["alive"],
            frozenset(fields["living"]),
            {int(id): why for id, why in fields["leaderless"].items()},
            {node: tuple(found) for node, found in fields["problems"].items()},
            fields["clocks_ms"],
            fields["now_ms"],
            fields.get("revivable"),
        )


class Told:
    """What each node said last of itself, for the leader of the control plane to tell all. Bounded by the nodes."""

    def __init__(self) -> None:
        #: By node, of those that have any.
        self.problems: Mapping[str, tuple[str, ...]] = {}
        self.clocks_ms: Mapping[str, float] = {}
        self._ahead_ms: dict[str, float] = {}

    def heard(self, beat: NodeHeartbeat, *, member: bool = True) -> None:
        """``problems`` and ``clocks_ms`` are made anew where they change: many are answered with the same.

        ``member``: of a node that was removed, and runs on, the clock counts for nobody's.
        """
        if self.problems.get(beat.node, ()) != beat.problems:
            self.problems = {**self.problems, beat.node: beat.problems}
            if not beat.problems:
                self.problems = {node: said for node, said in self.problems.items() if said}
        if member and beat.clock_ms is not None and self._ahead_ms.get(beat.node) != beat.clock_ms:
            self._ahead_ms[beat.node] = beat.clock_ms
            self.clocks_ms = deviations(self._ahead_ms)

    def set_nodes(self, nodes: Set[str], members: Set[str]) -> None:
        """Forget what others than ``nodes`` said, and clocks of others than ``members``, which were not removed."""
        if not self._ahead_ms.keys() <= members or not self.problems.keys() <= nodes:
            self._ahead_ms = {node: ms for node, ms in self._ahead_ms.items() if node in members}
            self.problems = {node: said for node, said in self.problems.items() if node in nodes}
            self.clocks_ms = deviations(self._ahead_ms)


def told(problems: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """As much of them as is told."""
    return tuple(str(problem)[:MAX_PROBLEM_CHARS] for problem in problems[:MAX_PROBLEMS])
