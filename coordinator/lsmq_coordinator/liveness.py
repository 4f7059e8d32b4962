"""Who is alive: a failure detector without clock or sockets. Times are seconds on a monotonic clock, passed in.

The leader of the control plane feeds it. A node is dead when it was not heard for ``node_timeout_s``, which is longer
than any lease it may still hold; or at once when its death is *proven* (:mod:`~.death`): a process that has ended holds
no lease. Nothing else counts. That nobody listens at its port proves nothing: a firewall answers so, a moved address, a
service without endpoints, while the node goes on.

A detector that was not ticked for a while was paused together with its process, and heard nobody because of
that: it gives all nodes a new start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LivenessTiming:
    """Seconds."""

    node_timeout_s: float = 0.5
    #: Not ticked for so long means paused.
    pause_s: float = 0.3
    #: Who died is given no leadership back before it has lived for so long; twice as long each time it dies again
    #: within ``calm_s`` of its return.
    steady_s: float = 2.0
    longest_steady_s: float = 300.0
    calm_s: float = 600.0


@dataclass(slots=True)
class _Node:
    heard: float
    #: A sign of life came last, well or not.
    beat: float
    alive: bool = True
    #: It was heard in this leadership: who was not, only counts as alive for as long as it may still be.
    spoke: bool = False
    returned: float = float("-inf")
    steady_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What changed since the last tick."""

    died: frozenset[str] = frozenset()
    returned: frozenset[str] = frozenset()


@dataclass(slots=True)
class FailureDetector:
    """Begin it with each leadership; then feed heartbeats and proven deaths, and tick it often."""

    timing: LivenessTiming = LivenessTiming()
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _ticked: float = float("-inf")
    _returned: set[str] = field(default_factory=set)
    _died: set[str] = field(default_factory=set)

    def begin(self, nodes: Iterable[str], now: float) -> None:
        """A leadership begins: nobody was heard yet, everybody has the full time to be."""
        self._nodes = {node: _Node(heard=now, beat=now) for node in nodes}
        self._returned, self._died = set(), set()
        self._ticked = now

    def set_nodes(self, nodes: Iterable[str], now: float) -> None:
        """The nodes of the cluster, as agreed. A new one counts as alive from now."""
        wanted = set(nodes)
        for node in sorted(wanted - self._nodes.keys()):
            self._nodes[node] = _Node(heard=now, beat=now)
        for node in self._nodes.keys() - wanted:
            del self._nodes[node]

    @property
    def alive(self) -> frozenset[str]:
        return frozenset(node for node, seen in self._nodes.items() if seen.alive)

    @property
    def heard(self) -> frozenset[str]:
        """Those held alive that were heard in this leadership."""
        return frozenset(node for node, seen in self._nodes.items() if seen.alive and seen.spoke)

    def heartbeat(self, node: str, now: float, *, well: bool = True) -> bool:
        """The life of a node that the cluster knows was heard; one that is not well runs, and does not live. Whether it
        counts as alive."""
        seen = self._nodes.get(node)
        if seen is None:
            return False
        seen.beat = now
        if not well:
            return False
        seen.heard, seen.spoke = now, True
        if not seen.alive:
            seen.alive, seen.returned = True, now
            self._returned.add(node)
        return True

    def may_run(self, node: str, now: float) -> bool:
        """Whether the life of a node that the cluster knows gave a sign too lately to be taken for over."""
        seen = self._nodes.get(node)
        return seen is not None and now - seen.beat <= self.timing.node_timeout_s

    def died(self, node: str) -> None:
        """The death of that life is proven. Its heartbeats, which may have been under way, must not be fed any more."""
        seen, timing = self._nodes.get(node), self.timing
        if seen is not None and seen.alive:
            restless = self._ticked - seen.returned < timing.calm_s
            wanted_s = 2 * seen.steady_s if restless else timing.steady_s
            seen.alive, seen.steady_s = False, min(max(wanted_s, timing.steady_s), timing.longest_steady_s)
            self._died.add(node)

    def away(self, now: float) -> dict[str, float]:
        """For how many seconds each node that does not live was not heard; in an earlier leadership does not count."""
        return {node: now - seen.heard for node, seen in self._nodes.items() if not seen.alive}

    def restless(self, now: float) -> frozenset[str]:
        """Nodes that returned too short a time ago to be given leadership back, for how often they died lately."""
        return frozenset(node for node, seen in self._nodes.items() if now - seen.returned < seen.steady_s)

    def tick(self, now: float) -> Verdicts:
        """Let time pass. Gives each change once."""
        if now - self._ticked > self.timing.pause_s:
            for seen in self._nodes.values():
                seen.beat = now
                if seen.alive:
                    seen.heard = now
        self._ticked = now
        for node, seen in self._nodes.items():
            if now - seen.heard > self.timing.node_timeout_s:
                self.died(node)
        verdicts = Verdicts(frozenset(self._died), frozenset(self._returned))
        self._died, self._returned = set(), set()
        return verdicts
