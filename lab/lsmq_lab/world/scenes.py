"""Aimed plans: what befalls whom at which moment, for what the weather of seeds would meet too rarely.

A *scene* is a function that is given a :class:`Scene` and yields what it waits for before it goes on::

    def follower_dies(scene: Scene) -> Script:
        scene.one.kill()
        yield scene.left(scene.one)

It begins when three replicas of one shard are in sync, hold the same, and nothing is under way: ``leader`` leads then,
``one`` and ``other`` follow. Afterwards all is mended, and the cluster must become whole again, with all that was
acknowledged. Nothing is written but what the scene asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from lsmq import Client, Consumer, Producer
from lsmq.errors import LsmqError
from lsmq_node.cluster.replica import Replica
from lsmq_node.cluster.shell import Shell
from lsmq_node.replication import ControlView, ReplicaAction, ReplicaCore
from lsmq_node.replication import actions as act
from lsmq_node.replication.messages import ReplicaMessage
from lsmq_node.storage.wal import segment_name

from .medium import DirectoryNode
from .protocol import Protocol
from .simulated_cluster import SimulatedCluster, SimulatedNode

SceneCondition = Callable[[], bool]
Script = Iterator[SceneCondition]

#: So long any of a scene's moments may be waited for.
_LIMIT_S = 6.0
_LOOK_S = 0.001
_DEADLINE_MS = 3_000
_SHARD = 0
_TOPIC = "orders"


class Writer:
    """An application that sends what it is told to, one message at a time, and remembers what was acknowledged."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster, self.host = cluster, "10.0.1.1"
        self.acknowledged: list[int] = []
        self.sent = 0  # whatever became of it
        self.ready = False
        self._wanted = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()
        process = cluster.world.process("writer", self.host, steady_s=5_000.0)
        cluster.world.scheduler.spawn(self._main, "main", process)

    @property
    def idle(self) -> bool:
        return self.ready and self.sent == self._wanted

    def write(self, count: int) -> None:
        self._wanted += count
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told.set)

    def _main(self) -> None:
        try:
            self.cluster.world.loop_run(self._live)
        except BaseException as error:
            self.cluster.broke("the writer", error)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Client(self.cluster.urls, deadline_ms=_DEADLINE_MS) as client:
            while True:
                try:
                    await client.create_topic(_TOPIC, queues=1, exist_ok=True)
                    break
                except LsmqError:
                    await asyncio.sleep(0.1)
            async with Producer(client, _TOPIC, deadline_ms=_DEADLINE_MS, linger_ms=0) as producer:
                self.ready = True
                while True:
                    await self._told.wait()
                    self._told.clear()
                    while self.sent < self._wanted:
                        await self._send(producer, self.sent)
                        self.sent += 1

    async def _send(self, producer: Producer, number: int) -> None:
        try:
            await producer.send_and_wait(f"{number} {'x' * 200}")
        except LsmqError as error:
            self.cluster.note(f"unknown {number}: {error.code}")
        else:
            self.acknowledged.append(number)

    async def read_back(self) -> None:
        """What was acknowledged is there, once, in order."""
        async with Client(self.cluster.urls) as client:
            end = (await client.offsets(_TOPIC)).latest[0]
            found: list[int] = []
            async with Consumer(client, _TOPIC, wait_ms=200) as consumer:
                while len(found) < end:
                    messages = await consumer.poll(500, timeout_ms=5_000)
                    if not messages:
                        break
                    found += [int(message.text().split()[0]) for message in messages]
        lost = sorted(set(self.acknowledged) - set(found))
        twice = sorted({number for number in found if found.count(number) > 1})
        for wrong, numbers in (("acknowledged and lost", lost), ("stored twice", twice)):
            if numbers:
                self.cluster.problems.append(f"{wrong}: {numbers}")
        if len(found) != end or found != sorted(found):
            self.cluster.problems.append(f"of {end} messages these came, in this order: {found}")


class Scene:
    """What a scene sees and does. A condition is of the moment it is asked at; one of what happens counts from when it
    was made."""

    def __init__(self, cluster: SimulatedCluster, protocol: Protocol) -> None:
        self.cluster, self.protocol = cluster, protocol
        self.world = cluster.world
        self.writer = Writer(cluster)
        self.leader, self.one, self.other = cluster.nodes
        self.over = False
        self._silent: set[tuple[str, str]] = set()
        self._blind: set[str] = set()
        self._late_s: dict[tuple[str, str], float] = {}
        self._leaves: dict[tuple[str, str], float] = {}  # when the last message does
        self._script: Script | None = None
        self._waits: SceneCondition = self.settled
        self._since = self.world.now
        self._watches: list[Callable[[SimulatedNode, ReplicaAction], None]] = []
        protocol.on_action = self._acted

    # How it goes on

    def play(self, scene: Callable[[Scene], Script]) -> None:
        """Begin, as soon as everything is settled."""

        def whole() -> Script:
            yield self.settled
            self.write(3)
            yield self.settled
            self.leader = self.cluster.leader()
            self.one, self.other = (node for node in self.cluster.nodes if node is not self.leader)
            self.cluster.note(f"SCENE leader {self.leader.id}")
            yield from scene(self)
            self.mend()
            yield self.settled

        self._script = whole()
        self._go_on()
        self._look()

    def _look(self) -> None:
        self._step()
        if not self.over and not self.cluster.problems:
            self.world.scheduler.call_later(_LOOK_S, self._look)

    def _acted(self, node: SimulatedNode, shard: int, action: ReplicaAction) -> None:
        for watch in self._watches:
            watch(node, action)
        if not self.over and self._waits():
            self.world.scheduler.call_later(0.0, self._step)  # Between threads.

    def _step(self) -> None:
        while not self.over and self._waits():
            self._go_on()
        if not self.over and self.world.now - self._since > _LIMIT_S:
            self.over = True
            self.cluster.problems.append(f"not within {_LIMIT_S:.0f} s: {self._waits.__qualname__}")

    def _go_on(self) -> None:
        assert self._script is not None
        self._watches.clear()
        self._since = self.world.now
        try:
            self._waits = next(self._script)
        except StopIteration:
            self.over = True
        else:
            self.cluster.note(f"SCENE waits for {self._waits.__qualname__}")

    @contextmanager
    def installed(self) -> Iterator[None]:
        sends = Shell._send

        def send(shell: Shell, peer: str, message: ReplicaMessage, payload: bytes | memoryview) -> None:
            link = shell.node, peer
            if link in self._silent:
                return
            until = self.world.now + self._late_s.get(link, 0.0)
            self._leaves[link] = until = max(until, self._leaves.get(link, 0.0))
            if until > self.world.now:  # What follows stays behind it.
                loop = asyncio.get_running_loop()
                loop.call_later(until - self.world.now, sends, shell, peer, message, payload)
            else:
                sends(shell, peer, message, payload)

        views, leases = Replica.viewed, Replica.leased

        def viewed(replica: Replica, view: ControlView) -> None:
            if replica.node not in self._blind:
                views(replica, view)

        def leased(replica: Replica, valid_until: float, view: ControlView) -> None:
            if replica.node not in self._blind:
                leases(replica, valid_until, view)

        with ExitStack() as scope:
            scope.enter_context(patch.object(Shell, "_send", send))
            scope.enter_context(patch.object(Replica, "viewed", viewed))
            scope.enter_context(patch.object(Replica, "leased", leased))
            yield

    # What it sees

    def core(self, node: SimulatedNode) -> ReplicaCore | None:
        if not node.up or node.broker is None:
            return None
        member: Any = node.broker.topology
        replica = member.replicas.get(_SHARD)
        return None if replica is None else replica._shell.core

    def end(self, node: SimulatedNode) -> int:
        """Up to where a replica's log is durable, as far as it knows itself."""
        core = self.core(node)
        return 0 if core is None else core.log.durable_lsn

    @property
    def committed(self) -> int:
        return self.protocol.committed_lsn(_SHARD)

    def listed(self, node: SimulatedNode) -> bool:
        """Whether it is in the in-sync set, under whatever incarnation."""
        return any(member.node == node.id for member in self.protocol.in_sync(_SHARD))

    @property
    def epoch(self) -> int:
        """The highest that a replica has accepted."""
        return max(core.epoch for core in map(self.core, self.cluster.nodes) if core is not None)

    def settled(self) -> bool:
        """All are in sync and know the same to be committed, and the writer has nothing more to do."""
        if not self.writer.idle or not self.cluster.whole():
            return False
        logs = [core.log for core in map(self.core, self.cluster.nodes) if core is not None]
        ends = {lsn for log in logs for lsn in (log.end_lsn, log.durable_lsn, log.high_watermark)}
        return len(logs) == len(self.cluster.nodes) and len(ends) == 1

    def written(self) -> bool:
        """Whatever was to be written is."""
        return self.writer.idle

    def after(self, seconds: float) -> SceneCondition:
        end = self.world.now + seconds

        def time_has_passed() -> bool:
            return self.world.now >= end

        return time_has_passed

    def rises(self) -> SceneCondition:
        """More is committed."""
        before = self.committed

        def high_watermark_rises() -> bool:
            return self.committed > before

        return high_watermark_rises

    def left(self, node: SimulatedNode) -> SceneCondition:
        def has_left() -> bool:
            return not self.listed(node)

        return has_left

    def holds(self, node: SimulatedNode, lsn: int) -> SceneCondition:
        """Its log is durable up to there."""

        def log_is_durable() -> bool:
            return self.end(node) >= lsn

        return log_is_durable

    def longer(self, node: SimulatedNode) -> SceneCondition:
        """Its log is durable beyond where it is now."""
        return self.holds(node, self.end(node) + 1)

    def serves(self, *nodes: SimulatedNode) -> SceneCondition:
        """Any of them."""

        def serves_the_shard() -> bool:
            return any(core is not None and core.serving for core in map(self.core, nodes))

        return serves_the_shard

    def acts(self, node: SimulatedNode) -> SceneCondition:
        """Its start is registered, and known to be."""

        def start_is_registered() -> bool:
            core = self.core(node)
            return core is not None and core.registered

        return start_is_registered

    def did(
        self, node: SimulatedNode, kind: type, where: Callable[[Any], bool] = lambda action: True
    ) -> SceneCondition:
        """It is about to do something, or to send a message, of that kind."""
        seen = [False]

        def watch(actor: SimulatedNode, action: ReplicaAction) -> None:
            what = action.message if isinstance(action, act.Send) else action
            if actor is node and isinstance(what, kind) and where(what):
                seen[0] = True

        self._watches.append(watch)

        def does() -> bool:
            return seen[0]

        does.__qualname__ = f"{node.id} {kind.__name__}"
        return does

    # What it does

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.cluster.problems.append(f"not so: {what}")

    def write(self, count: int = 1) -> None:
        self.writer.write(count)

    def silence(self, source: SimulatedNode, *targets: SimulatedNode) -> None:
        """Nothing of replication comes from one node to others; Raft and everything else does."""
        self._silent |= {(source.id, target.id) for target in targets}

    def late(self, source: SimulatedNode, target: SimulatedNode, seconds: float) -> None:
        """What is of replication leaves so much later."""
        self._late_s[source.id, target.id] = seconds

    def blind(self, node: SimulatedNode) -> None:
        """Its replica hears nothing of the control plane any more."""
        self._blind.add(node.id)

    def hang_up(self, node: SimulatedNode) -> None:
        """On the writer: what it asked for may be done, and it is not told."""
        self.world.network.reset(node.host, self.writer.host)

    def hear(self) -> None:
        """All connections are mended."""
        self._blind.clear()
        self._silent.clear()
        self.world.network.mend()
        self._late_s.clear()

    def isolate(self, node: SimulatedNode) -> None:
        for other in self.cluster.nodes:
            if other is not node:
                self.world.network.cut(node.host, other.host)
                self.world.network.cut(other.host, node.host)

    def power_cut(self) -> None:
        """Of all."""
        for node in self.cluster.nodes:
            node.cut_power()

    def copies(self) -> dict[str, DirectoryNode]:
        """Of all disks."""
        return {node.id: node.disk.copy() for node in self.cluster.nodes}

    def control_goes_back(self, copies: dict[str, DirectoryNode]) -> None:
        """To when these copies were made: what must never happen to a Raft log. All machines are off."""
        for node in self.cluster.nodes:
            node.disk.become(copies[node.id], only="data/raft")
        self.protocol.control_went_back()

    def shard_goes_back(self, node: SimulatedNode, copied: DirectoryNode) -> None:
        """The shard's directory becomes its copy; what the machine holds of the control plane's log stays."""
        self.cluster.on_disk_change(node, False)
        node.cut_power()
        node.disk.become(copied, only=f"data/shard-{_SHARD}")

    def shard_is_lost(self, node: SimulatedNode) -> None:
        """Nothing is left of the shard's directory; what the machine holds of the control plane's log stays."""
        self.cluster.on_disk_change(node, True)
        node.cut_power()
        data = DirectoryNode(durable={f"shard-{_SHARD}": DirectoryNode()})
        node.disk.become(DirectoryNode(durable={"data": data}), only=f"data/shard-{_SHARD}")

    def lose_tail(self, node: SimulatedNode, lsn: int) -> None:
        """Its machine goes off, and what was synced beyond ``lsn`` is gone."""
        self.cluster.on_disk_change(node, False)
        node.cut_power()
        size = self.cluster.segment_bytes
        name = segment_name(lsn - lsn % size)
        node.disk.erase(f"{node.disk.root}/data/shard-{_SHARD}/wal/{name}", lsn % size)

    def mend(self) -> None:
        self.hear()
        for node in self.cluster.nodes:
            node.disk.slow = None
            if node.process is not None and node.process.paused:
                node.process.resume()
            node.start()
