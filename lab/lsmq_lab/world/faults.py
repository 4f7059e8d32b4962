"""What befalls a cluster, as a plan that is drawn from a seed, can be printed, and can be made smaller.

Faults end with the plan's end, when everything is mended and everybody is started. What destroys what a disk held
befalls one machine at a time, while all others have everything: more may lose what was acknowledged. Until that machine
has come back somebody stays who knows what it had.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

from lsmq import Client, ClusterAdmin
from lsmq.errors import LsmqError, UnknownTopic

from .disk import UNLIMITED_BYTES
from .scheduler import SimulatedProcess
from .simulated_cluster import SimulatedCluster, SimulatedNode

#: What may happen, and how often beside the rest.
_KINDS = {
    "kill": 4,
    "power": 4,
    "power at step": 3,
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
    "lose tail": 1,
    "flip bit": 1,
}
#: What an operator does beside that, where there is a node more than replicas.
_MEMBERSHIP = {"move": 4, "transfer": 3, "drain": 2}
DESTRUCTIVE = ("fail sync", "lose disk", "set back", "lose tail", "flip bit")
#: After that a node may have forgotten what it knew of others, or nobody hears of it.
_SILENCING = (*DESTRUCTIVE, "kill", "power", "power at step", "stop", "pause", "cut", "isolate", "full")
_PATIENCE_S = 0.2
_OPERATOR_DEADLINE_MS = 1_000
#: In so much time, or less, as many faults come.
_USUAL_S = 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` befalls ``node`` (towards ``other`` where it takes two) at ``at_s``, for ``lasting_s``.

    Node 0 is whoever leads shard 0 then.
    """

    at_s: float
    kind: str
    node: int
    other: int = 0
    lasting_s: float = 0.0

    def __str__(self) -> str:
        towards = f" n{self.other}" if self.kind in ("cut", "reset", "move") else ""
        who = f"n{self.node}" if self.node else "leader"
        return f"{self.at_s:.3f} {self.kind} {who}{towards} for {self.lasting_s:.3f} s"


def drawn(chance: Random, nodes: int, begin_s: float, end_s: float, *, membership: bool = False) -> list[Fault]:
    """A plan. With ``membership`` the last node joins while it lasts, and an operator moves things about."""
    kinds = list(_KINDS)
    # Runs are of different weather: not everything happens in each.
    chosen = [kind for kind in kinds if chance.random() < 0.7] or kinds
    weights = [_KINDS[kind] for kind in chosen]
    plan, hurry = [], max(1.0, _USUAL_S / end_s)
    if membership:
        chosen += _MEMBERSHIP
        weights += _MEMBERSHIP.values()
        plan.append(Fault(round((begin_s + chance.random()) / hurry, 4), "join", nodes, 1))
    at = begin_s / hurry + chance.expovariate(2.0 * hurry)
    pace = chance.choice((1.0, 2.0, 4.0)) * hurry
    while at < end_s:
        node = chance.randint(1, nodes)
        other = chance.choice([number for number in range(1, nodes + 1) if number != node])
        lasting = min(end_s - at, chance.choice((0.05, 0.3, 1.0)) * (0.5 + chance.random()))
        plan.append(Fault(round(at, 4), chance.choices(chosen, weights)[0], node, other, round(lasting, 4)))
        at += chance.expovariate(pace)
    return sorted(plan, key=lambda fault: fault.at_s)


@dataclass(frozen=True, slots=True)
class _Testimony:
    """``life`` of a node's replica is over, and its disk is not what it was; ``witnesses`` know what it had."""

    node: str
    life: tuple[int, int]
    witnesses: list[SimulatedProcess | None]


class Weather:
    """Brings a plan over a cluster, whose times count from now."""

    def __init__(self, cluster: SimulatedCluster, plan: list[Fault]) -> None:
        self.cluster, self.plan = cluster, plan
        self.over = False
        self.done: list[Fault] = []
        #: Machines whose daemon may have stopped a shard or itself for good.
        self.hurt: set[str] = set()
        self.destroyed = 0
        #: Who has yet to tell how far the logs of a disk went, by shard: those of disks that were destroyed.
        self._testimonies: dict[int, list[_Testimony]] = {}
        self.mending = 0
        self.ordered = 0
        self._drained: set[str] = set()
        self._grown = 0
        for fault in plan:
            cluster.world.scheduler.call_later(fault.at_s, lambda fault=fault: self._befall(fault))  # type: ignore[misc]

    def _befall(self, fault: Fault) -> None:
        if self.over:
            return
        cluster = self.cluster
        node = cluster.nodes[fault.node - 1] if fault.node else cluster.leader()
        hit = [node, cluster.nodes[fault.other - 1]] if fault.kind == "cut" else [node]
        if fault.kind in _SILENCING and any(map(self._silences, hit)):
            return
        if fault.kind in DESTRUCTIVE:
            if not all(each.up for each in cluster.nodes) or not cluster.whole() or self._open_testimonies():
                return
            self._name_witnesses(node)
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
            disk.capacity_bytes, disk.sync_s = UNLIMITED_BYTES, (0.0001, 0.002)
            disk.heal()
            if node.process is not None and node.process.paused:
                node.process.resume()
            if node.id in self.hurt and node.up:
                self._start_again(node)
            node.start()
        for id in sorted(self._drained):
            self._order(f"undrain {id}", lambda client, id=id: ClusterAdmin(client).undrain(id), tries=100)  # type: ignore[misc]

    def _start_again(self, node: SimulatedNode) -> None:
        self.mending += 1

        def again() -> None:
            if self._silences(node):
                self.cluster.world.scheduler.call_later(_PATIENCE_S, again)
                return
            self.mending -= 1
            node.kill()
            node.start()

        again()

    def _name_witnesses(self, node: SimulatedNode) -> None:
        """Of what a disk had that is destroyed now: other replicas, as far as they know of high watermarks."""
        state = self.cluster.state()
        for shard in state.shards.values() if state is not None else ():
            start = shard.start_of(node.id)
            if start is None:
                continue
            others = {
                other: replica.high_watermark
                for other, replica in self.cluster.replicas()
                if replica.shard == shard.id and other is not node and other.wanted
            }
            most = max(others.values(), default=0)
            lives = [other.process for other, lsn in others.items() if lsn == most]
            self._testimonies.setdefault(shard.id, []).append(_Testimony(node.id, start.life, lives))

    def _silences(self, node: SimulatedNode) -> bool:
        """Whether nobody would be left who knows how far a log of a disk went that was destroyed."""
        return any(
            [life for life in testimony.witnesses if life is not None and life.alive] == [node.process]
            for testimony in self._open_testimonies()
        )

    def _open_testimonies(self) -> list[_Testimony]:
        """Those of disks that nobody has judged yet: no start from what they have by now was registered."""
        state = self.cluster.state()
        for id, testimonies in self._testimonies.items():
            shard = None if state is None else state.shards.get(id)
            for testimony in list(testimonies):
                start = None if shard is None else shard.start_of(testimony.node)
                if start is not None and start.life != testimony.life:
                    testimonies.remove(testimony)
        return [testimony for testimonies in self._testimonies.values() for testimony in testimonies]

    def _order(self, what: str, order: Callable[[Client], Awaitable[object]], *, tries: int = 1) -> None:
        """An operator asks for something, and goes on though it is refused."""
        world = self.cluster.world
        self.ordered += 1
        process = world.process(f"operator{self.ordered}", f"10.0.3.{self.ordered}", steady_s=20_000.0)

        async def ask() -> None:
            async with Client(self.cluster.urls, deadline_ms=_OPERATOR_DEADLINE_MS) as client:
                for _ in range(tries):
                    try:
                        await order(client)
                    except LsmqError as error:
                        self.cluster.note(f"refused: {what}: {error.code}: {error.message}")
                        await asyncio.sleep(0.1)
                    else:
                        self.cluster.note(f"ordered: {what}")
                        return

        def main() -> None:
            try:
                world.loop_run(ask)
            except BaseException as error:
                self.cluster.broke(f"operator: {what}", error)

        world.scheduler.spawn(main, "main", process)

    def _join(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        node.start()
        return None

    def _move(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        """A shard's replicas to all but one node, and another one leads."""
        shard = int(fault.at_s * 1e4) % self.cluster.shards
        nodes = [each.id for each in self.cluster.nodes if each is not node]
        first = f"n{fault.other}"
        nodes.sort(key=lambda id: id != first)
        self._order(f"shard {shard} to {nodes}", lambda client: ClusterAdmin(client).move(shard, nodes[:3]))
        return None

    def _transfer(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        shard = int(fault.at_s * 1e4) % self.cluster.shards
        self._order(f"shard {shard} is led by {node.id}", lambda client: ClusterAdmin(client).transfer(shard, node.id))
        return None

    def _drain(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        self._drained.add(node.id)
        self._order(f"drain {node.id}", lambda client: ClusterAdmin(client).drain(node.id))
        return lambda: self._order(f"undrain {node.id}", lambda client: ClusterAdmin(client).undrain(node.id))

    def _replace(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        """Another node takes its vote."""
        new = f"n{fault.other}"
        order = f"{new} takes the vote of {node.id}"
        self._order(order, lambda client: ClusterAdmin(client).replace_voter(node.id, new), tries=100)
        return None

    def _grow(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        """There is a shard more, and topics use it whose clients do not count queues, nor rank messages over all."""
        self._grown += 1
        shards = self.cluster.shards + self._grown

        async def grow(client: Client) -> None:
            await ClusterAdmin(client).grow_shards(shards)
            for topic in ("orders", "jobs", "ledger"):
                with suppress(UnknownTopic):
                    await client.spread_topic(topic)

        self._order(f"there are {shards} shards", grow, tries=200)
        return None

    def _kill(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        node.kill()
        return node.start

    def _power(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        node.cut_power()
        return node.start

    def _power_at_step(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        """Before one of the next things that are done to its disk."""
        scheduler, lasting_s = self.cluster.world.scheduler, fault.lasting_s

        def cut() -> None:
            if not self.over and node.up:
                self.cluster.note(f"power off at a step of {node.id}")
                node.cut_power()
                scheduler.call_later(lasting_s, lambda: None if self.over else node.start())

        def instead() -> None:
            if scheduler.current is not None and scheduler.process is node.process:
                scheduler.call_later(0.0, cut)
                scheduler.park()  # for ever

        node.disk.at(int(lasting_s * 1e4) % 100 + 1, instead=instead)
        return None

    def _stop(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        node.stop()
        return node.start

    def _pause(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        process = node.process
        if process is None:
            return None
        process.pause()
        return process.resume

    def _cut(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        there = node.host, self.cluster.nodes[fault.other - 1].host
        self.cluster.world.network.cut(*there)
        return lambda: self.cluster.world.network.mend(*there)

    def _isolate(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
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

    def _reset(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        self.cluster.world.network.reset(node.host, self.cluster.nodes[fault.other - 1].host)
        return None

    def _hang_up(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        """On all clients: what was asked may be done, and the answer is lost."""
        for host in self.cluster.client_hosts:
            self.cluster.world.network.reset(node.host, host)
        return None

    def _slow(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        node.disk.sync_s = (0.02, 0.5)
        return lambda: setattr(node.disk, "sync_s", (0.0001, 0.002))

    def _full(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        self.hurt.add(node.id)
        node.disk.capacity_bytes = 0
        return lambda: setattr(node.disk, "capacity_bytes", UNLIMITED_BYTES)

    def _clock(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        wrong = (-100.0, -1.0, 3.0, 5_000.0)[int(fault.lasting_s * 1e4) % 4]
        self.cluster.clocks_were_wrong = True
        node.wrong_s += wrong
        if node.process is not None:
            node.process.wrong_s = node.wrong_s

        def right() -> None:
            node.wrong_s -= wrong
            if node.process is not None:
                node.process.wrong_s = node.wrong_s

        return right

    def _fail_sync(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        self.hurt.add(node.id)
        node.disk.at(1, errno.EIO, ("sync",))
        return None

    def _lose_disk(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        node.lose_disk()
        return node.start

    def _copy_disk(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        node.backup = node.disk.copy()
        return None

    def _set_back(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        node.set_back()
        return node.start

    def _lose_tail(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        """The last bytes of the logs, although they were synced."""
        node.lose_tail()
        return node.start

    def _flip_bit(self, node: SimulatedNode, fault: Fault) -> Callable[[], object] | None:
        self.cluster.on_disk_change(node, False)
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
