"""What can be done to a cluster, whatever it runs on: processes of this machine here, containers in ``compose``."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from lsmq_lab.local_cluster import ClusterStatus, LocalCluster

from .compare import ReplicaDirectory
from .network import FaultNetwork

#: What is full now and then has this, and so much for what each round writes.
_SMALL_DISK_BYTES, _ROUND_BYTES = 192 * 1024 * 1024, 32 * 1024 * 1024
_FILLER = "filler"


class Faults(Protocol):
    """A cluster to hurt and heal. Methods return when the thing is done, not when the cluster has reacted."""

    @property
    def nodes(self) -> Sequence[str]: ...

    @property
    def urls(self) -> Sequence[str]:
        """Of the nodes, for clients."""

    @property
    def zookeeper(self) -> str:
        """Hosts of the cluster's own ZooKeeper; empty when it has none."""

    async def up(self) -> None:
        """Start everything, and return when all shards serve."""

    async def down(self) -> None:
        """End all nodes in order. Their files stay."""

    async def status(self) -> ClusterStatus: ...

    async def replicas(self, shard: int, nodes: Sequence[str], scratch: Path) -> list[ReplicaDirectory]:
        """The directories of a shard's replicas, once the nodes are down; fetched to ``scratch`` where they are not at
        hand."""

    async def kill(self, nodes: Iterable[str]) -> None:
        """SIGKILL, to all of them at once."""

    async def stop(self, node: str) -> None:
        """SIGTERM, and wait for the end."""

    async def start(self, nodes: Iterable[str]) -> None:
        """Start processes that are down, and wait until they answer."""

    async def pause(self, node: str) -> None: ...

    async def resume(self, node: str) -> None: ...

    async def isolate(self, nodes: Iterable[str]) -> None:
        """Cut nodes off from all others. Clients still reach both sides."""

    async def deafen(self, node: str) -> None:
        """Let no other node dial one; what it dials itself works, both ways. Clients still reach it."""

    async def reject(self, node: str) -> None:
        """Have the port of a node that lives answer other nodes with RST, as firewalls do. Clients still reach it."""

    async def heal(self) -> None:
        """Undo ``isolate``, ``deafen`` and ``reject``."""

    async def skew_clock(self, node: str, seconds: float) -> None:
        """Restart a node with a wall clock that is so far ahead; ``start`` after a stop has the right one again."""

    async def zookeeper_down(self) -> None: ...

    async def zookeeper_up(self) -> None: ...

    def can_fill(self, node: str) -> bool:
        """Whether a node has a disk of its own that can be filled; else the node is told to take its disk for full."""

    async def fill_disk(self, node: str) -> None:
        """Leave a node no room to write."""

    async def free_disk(self, node: str) -> None: ...

    async def lose_disk(self, node: str) -> None:
        """Remove all files of a node whose process is down."""

    async def copy_disk(self, node: str) -> None:
        """Copy the files of a node whose process is down. Only the latest copy is kept."""

    async def set_back(self, node: str, names: str) -> None:
        """Put what was copied in the place of what is there, for a node whose process is down: files and directories
        whose names match ``names``, a pattern as shells have it."""

    async def add_node(self) -> str:
        """Start one more node; its id."""

    async def remove_node(self, node: str) -> None:
        """End the process of a node that left the cluster, if it runs, and remove its files."""


class LocalFaults:
    """:class:`Faults` on a local cluster. What blocks runs in threads."""

    def __init__(self, cluster: LocalCluster, network: FaultNetwork | None = None) -> None:
        self.cluster = cluster
        self._network = network
        self._full: set[str] = set()

    @property
    def nodes(self) -> list[str]:
        return [node.id for node in self.cluster.plan.nodes]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.cluster.plan.nodes]

    @property
    def zookeeper(self) -> str:
        plan = self.cluster.plan.zookeeper
        return plan.hosts if plan.kind == "local" else ""

    async def up(self) -> None:
        await asyncio.to_thread(self.cluster.up)

    async def down(self) -> None:
        await asyncio.to_thread(self.cluster.down)

    async def status(self) -> ClusterStatus:
        return await asyncio.to_thread(self.cluster.status)

    async def replicas(self, shard: int, nodes: Sequence[str], scratch: Path) -> list[ReplicaDirectory]:
        return [ReplicaDirectory(node, self._data(node) / f"shard-{shard}") for node in nodes]

    async def kill(self, nodes: Iterable[str]) -> None:
        processes = [self.cluster.process(node) for node in nodes]
        for process in processes:
            process.send(signal.SIGKILL)
        for process in processes:
            await asyncio.to_thread(process.wait_end, 30.0)

    async def stop(self, node: str) -> None:
        await asyncio.to_thread(self.cluster.stop, node)

    async def start(self, nodes: Iterable[str]) -> None:
        await asyncio.gather(*(asyncio.to_thread(self.cluster.start, node) for node in nodes))

    async def pause(self, node: str) -> None:
        await asyncio.to_thread(self.cluster.pause, node)

    async def resume(self, node: str) -> None:
        self.cluster.resume(node)

    async def isolate(self, nodes: Iterable[str]) -> None:
        assert self._network is not None, "the drill must ask for a proxied cluster"
        self._network.isolate(nodes)

    async def deafen(self, node: str) -> None:
        assert self._network is not None, "the drill must ask for a proxied cluster"
        self._network.deafen(node)

    async def reject(self, node: str) -> None:
        assert self._network is not None, "the drill must ask for a proxied cluster"
        self._network.reject(node)

    async def skew_clock(self, node: str, seconds: float) -> None:
        await asyncio.to_thread(self.cluster.stop, node)
        program = ("-m", "lsmq_lab.drills.skewed_clock", str(seconds))
        await asyncio.to_thread(lambda: self.cluster.start(node, program=program))

    async def heal(self) -> None:
        assert self._network is not None
        self._network.heal()

    async def zookeeper_down(self) -> None:
        await asyncio.to_thread(self.cluster.stop_zookeeper, signal.SIGKILL)

    async def zookeeper_up(self) -> None:
        await asyncio.to_thread(self.cluster.start_zookeeper)

    async def fill_disk(self, node: str) -> None:
        """By a file that takes all of the node's own file system, where it has one; else by restarting the node
        with more free space demanded than there is."""
        filler = self._data(node) / _FILLER
        if self.can_fill(node):
            await asyncio.to_thread(_fill, filler)
            return
        await asyncio.to_thread(self.cluster.stop, node)
        settings: dict[str, Any] = {"min_free_bytes": 1024 * 1024 * 1024 * 1024}
        await asyncio.to_thread(lambda: self.cluster.start(node, settings=settings))
        self._full.add(node)

    async def free_disk(self, node: str) -> None:
        (self._data(node) / _FILLER).unlink(missing_ok=True)
        if node in self._full:
            self._full.remove(node)
            await asyncio.to_thread(self.cluster.stop, node)
            await asyncio.to_thread(self.cluster.start, node)

    async def lose_disk(self, node: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._data(node))

    async def copy_disk(self, node: str) -> None:
        await asyncio.to_thread(_copy_over, self._data(node), self._copy(node), "*")

    async def set_back(self, node: str, names: str) -> None:
        await asyncio.to_thread(_copy_over, self._copy(node), self._data(node), names)

    async def add_node(self) -> str:
        node = self.cluster.add_node()
        await asyncio.to_thread(self.cluster.start, node.id)
        return node.id

    async def remove_node(self, node: str) -> None:
        if (await self.status()).node(node).pid is not None:
            await asyncio.to_thread(self.cluster.stop, node)
        await asyncio.to_thread(self.cluster.forget_node, node)

    def can_fill(self, node: str) -> bool:
        return self._data(node).is_mount()

    def _data(self, node: str) -> Path:
        return self.cluster.directory / node / "data"

    def _copy(self, node: str) -> Path:
        return self.cluster.directory / node / "copy"


def _copy_over(source: Path, target: Path, names: str) -> None:
    """Make what matches in the target what it is in the source."""
    target.mkdir(exist_ok=True)
    for present in target.glob(names):
        shutil.rmtree(present) if present.is_dir() else present.unlink()
    for wanted in source.glob(names):
        copy: Any = shutil.copytree if wanted.is_dir() else shutil.copy2
        copy(wanted, target / wanted.name)


def mount_small_disk(directory: Path, rounds: int) -> bool:
    """A file system of its own in memory for ``directory``; whether that was allowed. Undo with :func:`unmount`."""
    directory.mkdir(parents=True, exist_ok=True)
    size = _SMALL_DISK_BYTES + rounds * _ROUND_BYTES
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "lsmq-drill", str(directory)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def unmount(directory: Path) -> None:
    subprocess.run(["umount", str(directory)], capture_output=True, check=False)


def _fill(file: Path) -> None:
    """Write until nothing more fits."""
    chunk = bytes(64 * 1024)
    with open(file, "wb", buffering=0) as target, suppress(OSError):
        while True:
            target.write(chunk)
