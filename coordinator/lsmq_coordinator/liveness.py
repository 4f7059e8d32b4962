"""Who is alive: a failure detector without clock or sockets. Times are seconds on a monotonic clock, passed in.

The leader of the control plane feeds it. A node is dead when it was not heard for ``node_timeout_s``, or at once
when a probe finds its port closed: then the process is gone. A suspicion alone condemns nobody; it asks for a
probe. A wrong verdict costs an election, never data.

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
    #: A node not heard for so long is probed; a process that died is found so before its time is over.
    quiet_s: float = 0.2
    #: A node is probed at most so often.
    probe_interval_s: float = 0.1
    #: Heartbeats of a process found gone are not believed for so long: they may have been under way.
    distrust_s: float = 0.3
    #: Not ticked for so long means paused.
    pause_s: float = 0.3


@dataclass(slots=True)
class _Node:
    heard: float
    instance: str | None = None
    alive: bool = True
    probed: float = float("-inf")
    #: The process found gone, and until when its heartbeats are not believed.
    gone_instance: str | None = None
    distrusted_until: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a tick changed, and which nodes to probe now."""

    died: frozenset[str] = frozenset()
    returned: frozenset[str] = frozenset()
    probe: frozenset[str] = frozenset()


@dataclass(slots=True)
class FailureDetector:
    """Begin it with each leadership; then feed heartbeats, suspicions and probe results, and tick it often."""

    timing: LivenessTiming = LivenessTiming()
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _ticked: float = float("-inf")
    _returned: set[str] = field(default_factory=set)
    _died: set[str] = field(default_factory=set)

    def begin(self, nodes: Iterable[str], now: float) -> None:
        """A leadership begins: nobody was heard yet, everybody has the full time to be."""
        self._nodes = {node: _Node(heard=now) for node in nodes}
        self._returned, self._died = set(), set()
        self._ticked = now

    def set_nodes(self, nodes: Iterable[str], now: float) -> None:
        """The nodes of the cluster, as agreed. A new one counts as alive from now."""
        wanted = set(nodes)
        for node in wanted - self._nodes.keys():
            self._nodes[node] = _Node(heard=now)
        for node in self._nodes.keys() - wanted:
            del self._nodes[node]

    @property
    def alive(self) -> frozenset[str]:
        return frozenset(node for node, seen in self._nodes.items() if seen.alive)

    def heartbeat(self, node: str, instance: str, now: float) -> bool:
        """A node was heard; ``instance`` is new with each start of its process. Whether it counts as alive."""
        seen = self._nodes.get(node)
        if seen is None or (instance == seen.gone_instance and now < seen.distrusted_until):
            return False
        seen.heard, seen.instance = now, instance
        if not seen.alive:
            seen.alive = True
            self._returned.add(node)
        return True

    def suspect(self, node: str, now: float) -> bool:
        """Somebody lost a connection to the node. Whether to probe it now."""
        seen = self._nodes.get(node)
        if seen is None or not seen.alive or now - seen.probed < self.timing.probe_interval_s:
            return False
        seen.probed = now
        return True

    def probed(self, node: str, refused: bool, now: float) -> None:
        """A probe came back. Refused means that nobody listens: the process is gone."""
        seen = self._nodes.get(node)
        if seen is None or not refused:
            return
        seen.gone_instance, seen.distrusted_until = seen.instance, now + self.timing.distrust_s
        self._condemn(node, seen)

    def tick(self, now: float) -> Verdicts:
        """Let time pass. Gives each change once."""
        if now - self._ticked > self.timing.pause_s:
            for seen in self._nodes.values():
                if seen.alive:
                    seen.heard = now
        self._ticked = now
        for node, seen in self._nodes.items():
            if seen.alive and now - seen.heard > self.timing.node_timeout_s:
                self._condemn(node, seen)
        quiet = {node for node, seen in self._nodes.items() if now - seen.heard > self.timing.quiet_s}
        probe = frozenset(node for node in sorted(quiet) if self.suspect(node, now))
        verdicts = Verdicts(frozenset(self._died), frozenset(self._returned), probe)
        self._died, self._returned = set(), set()
        return verdicts

    def _condemn(self, node: str, seen: _Node) -> None:
        if seen.alive:
            seen.alive = False
            self._died.add(node)
