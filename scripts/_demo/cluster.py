"""The cluster under the demo: three real nodes started as ``lsmq cluster up`` starts them, watched from outside."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from lsmq.errors import LsmqError
from lsmq_lab.local_cluster import LocalCluster, found_plan
from lsmq_lab.local_cluster.zookeeper_server import ZooKeeperNotFound, find_zookeeper

NODES = 3
SHARDS = 3
IN_SYNC_TIMEOUT_S = 120.0
POLL_S = 0.05


class ClusterFailed(Exception):
    """The cluster did not start, or a node ended by itself; the message ends with its last log lines."""


@dataclass(frozen=True, slots=True)
class Kill:
    """``at_ns`` is on the monotonic clock; ``shards`` are those that the node led."""

    node: str
    shards: tuple[int, ...]
    at_ns: int


class DemoCluster:
    """Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Plans on free ports of the loopback interface; nothing runs before :meth:`start`."""
        for name in [name for name in os.environ if name.startswith("LSMQ_")]:
            del os.environ[name]  # settings of another node that the user may have there
        try:
            find_zookeeper()
            self.zookeeper = True
        except ZooKeeperNotFound:
            self.zookeeper = False
        plan = found_plan(nodes=NODES, shards=SHARDS, replicas=3, zookeeper="local" if self.zookeeper else "none")
        self._cluster = LocalCluster.found(directory / "cluster", plan)
        self._directory = directory / "cluster"
        self.url = ",".join(node.url for node in plan.nodes)
        self.peak_resident_bytes = 0
        self._down: set[str] = set()

    def start(self) -> float:
        """Start all and wait until every shard serves; seconds it took. Raises :class:`ClusterFailed`."""
        began = time.monotonic()
        try:
            self._cluster.up()
        except LsmqError as error:
            raise ClusterFailed(str(error)) from error
        return time.monotonic() - began

    def kill_a_leader(self) -> Kill:
        """Kill -9 the leader of shard 0."""
        self.sample_memory()
        shards = self._cluster.status().shards
        leader = next(shard.leader for shard in shards if shard.id == 0)
        if leader is None:
            raise ClusterFailed("shard 0 has no leader")
        led = tuple(shard.id for shard in shards if shard.leader == leader)
        self._down.add(leader)
        killed_ns = time.monotonic_ns()
        self._cluster.kill(leader)
        return Kill(leader, led, killed_ns)

    def start_again(self, node: str) -> None:
        """Start a killed node and wait until it answers."""
        self._cluster.start(node)
        self._down.discard(node)

    def wait_in_sync(self) -> float:
        """Wait until all replicas of all shards are in sync; seconds it took. Raises :class:`ClusterFailed`."""
        began = time.monotonic()
        while not all(len(shard.in_sync) == len(shard.replicas) for shard in self._cluster.status().shards):
            if time.monotonic() - began > IN_SYNC_TIMEOUT_S:
                raise ClusterFailed(f"replicas are still not in sync after {IN_SYNC_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def stop(self) -> None:
        """Stop all nodes and the ZooKeeper."""
        self._cluster.down()

    def check_alive(self) -> None:
        """Raises :class:`ClusterFailed` when a node that was not killed is gone."""
        for node in self._cluster.plan.nodes:
            process = self._cluster.process(node.id)
            if node.id not in self._down and process.pid is None:
                raise ClusterFailed(f"node {node.id} ended by itself\n{process.log_tail()}")

    def sample_memory(self) -> None:
        """Keep the greatest resident size that any node ever had."""
        for node in self._cluster.status().nodes:
            if node.pid is None:
                continue
            try:
                text = Path(f"/proc/{node.pid}/status").read_text()
            except OSError:
                continue
            fields = dict(line.split(":", 1) for line in text.splitlines())
            self.peak_resident_bytes = max(self.peak_resident_bytes, int(fields["VmHWM"].split()[0]) * 1024)

    def disk_bytes(self) -> int:
        """What the nodes' data directories occupy on the disk: allocated blocks, preallocated ones included."""
        return sum(path.stat().st_blocks * 512 for path in self._directory.glob("n*/data/**/*") if path.is_file())

    def version(self) -> str:
        """The version the nodes report."""
        url = self.url.split(",")[0]
        with urllib.request.urlopen(f"{url}/v1/status", timeout=5) as answer:
            return str(json.load(answer)["version"])
