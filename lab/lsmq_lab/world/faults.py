"""What befalls a cluster, as a plan that is drawn from a seed, can be printed, and can be made smaller.

Faults end with the plan's end, when everything is mended and everybody is started. What destroys what a disk held
befalls one machine at a time, while all others have everything: more may lose what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from .cluster import Cluster, Node

#: What may happen, and how often beside the rest.
_KINDS = {
    "kill": 4,
    "power": 4,
    "stop": 2,
    "pause": 3,
    "cut": 4,
    "isolate": 3,
    "reset": 2,
    "hang up": 2,
    "slow": 2,
    "full": 1,
    "clock": 1,
    "fail sync": 1,
    "lose disk": 1,
    "copy disk": 2,
    "set back": 1,
    "flip bit": 1,
}
DESTRUCTIVE = ("fail sync", "lose disk", "set back", "flip bit")


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` befalls ``node`` (towards ``other`` where it takes two) at ``at_s``, for ``lasting_s``."""

    at_s: float
    kind: str
    node: int
    other: int = 0
    lasting_s: float = 0.0

    def __str__(self) -> str:
        towards = f" n{self.other}" if self.kind in ("cut", "reset") else ""
        return f"{self.at_s:.3f} {self.kind} n{self.node}{towards} for {self.lasting_s:.3f} s"


def drawn(chance: Random, nodes: int, begin_s: float, end_s: float) -> list[Fault]:
    """A plan."""
    kinds = list(_KINDS)
    # Runs are of different weather: not everything happens in each.
    chosen = [kind for kind in kinds if chance.random() < 0.7] or kinds
    weights = [_KINDS[kind] for kind in chosen]
    plan = []
    at = begin_s + chance.expovariate(2.0)
    pace = chance.choice((1.0, 2.0, 4.0))
    while at < end_s:
        node = chance.randint(1, nodes)
        other = chance.choice([number for number in range(1, nodes + 1) if number != node])
        lasting = min(end_s - at, chance.choice((0.05, 0.3, 1.0)) * (0.5 + chance.random()))
        plan.append(Fault(round(at, 4), chance.choices(chosen, weights)[0], node, other, round(lasting, 4)))
        at += chance.expovariate(pace)
    return plan


class Weather:
    """Brings a plan over a cluster."""

    def __init__(self, cluster: Cluster, plan: list[Fault]) -> None:
        self.cluster, self.plan = cluster, plan
        self.over = False
        self.done: list[Fault] = []
        #: Machines whose daemon may have stopped a shard or itself for good.
        self.hurt: set[str] = set()
        self.destroyed = 0
        for fault in plan:
            cluster.world.scheduler.call_at(fault.at_s, lambda fault=fault: self._befall(fault))  # type: ignore[misc]

    def _befall(self, fault: Fault) -> None:
        if self.over:
            return
        cluster, node = self.cluster, self.cluster.nodes[fault.node - 1]
        if fault.kind in DESTRUCTIVE:
            if not all(each.up for each in cluster.nodes) or not cluster.whole():
                return
            self.destroyed += 1
        self.done.append(fault)
        cluster.note(f"FAULT {fault}")
        later = cluster.world.scheduler.call_later
        end = getattr(self, f"_{fault.kind.replace(' ', '_')}")(node, fault)
        if end is not None:
            later(fault.lasting_s, lambda: None if self.over else end())

    def mend(self) -> None:
        """All is well again, and everybody is started."""
        self.over = True
        cluster = self.cluster
        cluster.note("MEND")
        cluster.world.network.mend()
        for node in cluster.nodes:
            disk = node.disk
            disk.full, disk.failing, disk.sync_s = False, 0, (0.0001, 0.002)
            if node.process is not None and node.process.paused:
                node.process.resume()
            if node.id in self.hurt and node.up:
                node.kill()
            node.start()

    def _kill(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        node.kill()
        return node.start

    def _power(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        node.cut_power()
        return node.start

    def _stop(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        node.stop()
        return node.start

    def _pause(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        process = node.process
        if process is None:
            return None
        process.pause()
        return process.resume

    def _cut(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        there = node.host, self.cluster.nodes[fault.other - 1].host
        self.cluster.world.network.cut(*there)
        return lambda: self.cluster.world.network.mend(*there)

    def _isolate(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        network = self.cluster.world.network
        pairs = [
            pair
            for other in self.cluster.nodes
            if other is not node
            for pair in ((node.host, other.host), (other.host, node.host))
        ]
        for pair in pairs:
            network.cut(*pair)

        def whole() -> None:
            for pair in pairs:
                network.mend(*pair)

        return whole

    def _reset(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        self.cluster.world.network.reset(node.host, self.cluster.nodes[fault.other - 1].host)
        return None

    def _hang_up(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        """On all clients: what was asked may be done, and the answer is lost."""
        for host in self.cluster.client_hosts:
            self.cluster.world.network.reset(node.host, host)
        return None

    def _slow(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        node.disk.sync_s = (0.02, 0.5)
        return lambda: setattr(node.disk, "sync_s", (0.0001, 0.002))

    def _full(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        self.hurt.add(node.id)
        node.disk.full = True
        return lambda: setattr(node.disk, "full", False)

    def _clock(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        wrong = (-100.0, -1.0, 3.0, 5_000.0)[int(fault.lasting_s * 1e4) % 4]
        node.wrong_s += wrong
        if node.process is not None:
            node.process.wrong_s = node.wrong_s

        def right() -> None:
            node.wrong_s -= wrong
            if node.process is not None:
                node.process.wrong_s = node.wrong_s

        return right

    def _fail_sync(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        self.hurt.add(node.id)
        node.disk.failing = 1
        return None

    def _lose_disk(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        node.lose_disk()
        return node.start

    def _copy_disk(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        node.backup = node.disk.copy()
        return None

    def _set_back(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        node.set_back()
        return node.start

    def _flip_bit(self, node: Node, fault: Fault) -> Callable[[], object] | None:
        node.cut_power()
        at = node.disk.flip_bit(self.cluster.world.random, lambda path: "/shard-" in path)
        self.cluster.note(f"flipped a bit at {node.id} {at}")
        return node.start


def smaller(plan: list[Fault]) -> list[list[Fault]]:
    """Plans to try instead: without halves, quarters .. and single faults, then with shorter ones."""
    found = []
    size = len(plan) // 2
    while size:
        found += [plan[:at] + plan[at + size :] for at in range(0, len(plan), size)]
        size //= 2
    found += [
        [*plan[:at], replace(fault, lasting_s=round(fault.lasting_s / 2, 4)), *plan[at + 1 :]]
        for at, fault in enumerate(plan)
        if fault.lasting_s > 0.1
    ]
    return found
