"""What must hold of a cluster at every moment, looked at from outside of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lsmq.errors import UnknownQueue
from lsmq_node.cluster.replica import Replica

from .simulated_cluster import SimulatedCluster, SimulatedNode

_EVERY_S = 0.005


class Checks:
    """Looks every few milliseconds, until :meth:`end`."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.looks = 0
        self.serving = 0
        self._leaders: dict[tuple[int, int], str] = {}  # who serves a shard in an epoch: one life
        self._shown: dict[int, int] = {}  # the highest high watermark of a shard that a leader served with
        self._ended = False
        self._told: set[str] = set()
        self._next()

    def end(self) -> None:
        self._ended = True

    def _next(self) -> None:
        if not self._ended:
            self.cluster.world.scheduler.call_later(_EVERY_S, self._look)

    def _fail(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self.cluster.problems.append(what)
            self.cluster.note(f"BROKE {what}")

    def _look(self) -> None:
        self.looks += 1
        leading: dict[int, str] = {}
        for node, replica in self.cluster.replicas():
            assert node.process is not None
            if not replica.serving or node.process.paused:
                continue
            core: Any = replica._shell.core
            if core is None or not core.may_answer(node.process.monotonic()):
                continue
            self.serving += 1
            shard, life = replica.shard, f"{node.process.name} {replica.life}"
            if shard in leading:
                self._fail(f"shard {shard} is served by {leading[shard]} and {life} at once")
            leading[shard] = life
            former = self._leaders.setdefault((shard, replica.epoch), life)
            if former != life:
                self._fail(f"shard {shard} is served in epoch {replica.epoch} by {former} and by {life}")
            self._look_at_high_watermark(node, replica)
        for name, error in self.cluster.world.scheduler.crashes:
            self._fail(f"thread {name} ended: {type(error).__name__}: {error}")
        self._next()

    def _look_at_high_watermark(self, node: SimulatedNode, replica: Replica) -> None:
        shard, now = replica.shard, replica.high_watermark
        before = self._shown.get(shard, 0)
        if now < before:
            self._fail(f"the high watermark of shard {shard} went back from {before} to {now} at {node.id}")
        self._shown[shard] = max(before, now)


def compare_stores(cluster: SimulatedCluster, expiring: Collection[str] = ()) -> list[str]:
    """What differs between the stores of a shard's replicas, which are in sync and hear nothing new.

    Of ``expiring`` topics only where queues begin and end: what has expired each says by its own clock.
    """
    found = []
    contents: dict[int, dict[str, Any]] = {}
    state = cluster.state()
    assert state is not None
    for node, replica in list(cluster.replicas()):
        # It has given its place to another node just now, or was given one, and is being filled.
        if node.id not in state.shards[replica.shard].in_sync_nodes:
            continue

        def content(replica: Replica = replica) -> Any:
            store = replica.store
            queues = {}
            for topic in sorted(store.topics(), key=lambda topic: topic.name):
                for queue in range(topic.queues):
                    try:
                        first, end = store.bounds(topic.id, queue)
                    except UnknownQueue:  # It is another shard's.
                        continue
                    start = end if topic.name in expiring else first
                    queues[topic.name, queue] = first, end, store.read_bytes(topic.id, queue, start, 1 << 20)
            return queues

        contents.setdefault(replica.shard, {})[node.id] = cluster.world.run(content, process=node.process)
    for shard, by_node in sorted(contents.items()):
        (first, wanted), *others = sorted(by_node.items())
        for node_id, queues in others:
            for place in sorted(wanted.keys() | queues.keys()):
                one, other = wanted.get(place), queues.get(place)
                if one != other and one is not None and other is not None:
                    found.append(
                        f"shard {shard}: {place} of {first} has {one[:2]} and {len(one[2])} records, of {node_id} "
                        f"{other[:2]} and {len(other[2])}"
                    )
                elif one != other:
                    found.append(f"shard {shard}: {place} is not known at {first if one is None else node_id}")
    return found
