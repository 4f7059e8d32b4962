"""The load: producers that write to whom they take for the leader, and consumers that read from anybody."""

from __future__ import annotations

from functools import partial

from .cluster import Cluster, Write


class Clients:
    """``writes`` are all that were made, with their outcomes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.writes: list[Write] = []
        self.stopped = False
        self._pace_s = cluster.world.random.choice((0.005, 0.02, 0.05))
        self._leader_share = cluster.world.random.choice((0.0, 0.3))

    def start(self) -> None:
        self._world.after(0.1, self._write_one)
        self._world.after(0.1, self._read_one)

    def _write_one(self) -> None:
        if self.stopped:
            return
        cluster, world = self._cluster, self._world
        random = world.random
        write = Write(len(self.writes) + 1, random.randint(1, 40), "quorum")
        if world.chance(self._leader_share):
            write.ack = "leader"
        self.writes.append(write)
        known = cluster.control.view.leader
        name = known if known is not None and random.random() < 0.8 else random.choice(cluster.names)
        replica = cluster.replicas[name]
        world.after(0.001 * random.random(), partial(replica.when_awake, partial(replica.write, write)))
        world.after(self._pace_s * 2 * random.random(), self._write_one)

    def _read_one(self) -> None:
        if self.stopped:
            return
        cluster, world = self._cluster, self._world
        replica = cluster.replicas[world.random.choice(cluster.names)]
        if (
            replica.core is not None
            and replica.paused_until <= world.now
            and replica.core.may_show(replica.clock, found=True)
        ):
            cluster.monitor.read(replica)
        world.after(0.05 * world.random.random(), self._read_one)
