"""What drills do to a cluster of containers, by the commands of Docker and Compose (the plugin, or version 1).

Nodes are the containers whose environment names ``LSMQ_CLUSTER_NODE``; they are reached at the port of this machine
that their port 7600 is published on. The network they are cut off from is the one that has no way out (``internal``).

Not supported: filling a disk, since a container's volume is the host's; deafening or rejecting at a node's port, since
a network has a container or has it not; and a wrong clock, which is the host's.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsmq.errors import InvalidRequest, LsmqError
from lsmq_lab.local_cluster import ClusterPlan, ClusterStatus, NodePlan, ZooKeeperPlan
from lsmq_lab.local_cluster.process import ProcessState
from lsmq_lab.local_cluster.status import answers, collect

from .compare import ReplicaDirectory

_CLIENT_PORT = "7600/tcp"
_DATA = "/var/lib/lsmq"
_COPY = f"{_DATA}/.drill-copy"
_TOP = (_DATA, "-mindepth", "1", "-maxdepth", "1")
_START_TIMEOUT_S = 120.0
_READY_TIMEOUT_S = 180.0
_POLL_S = 0.2


class CommandFailed(LsmqError):
    """Docker or Compose said no; the message is theirs."""

    code = "command_failed"


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the project, as far as drills need it. ``port`` is where clients reach a node."""

    id: str
    service: str
    node: str | None
    port: int | None
    aliases: tuple[str, ...]


class ComposeFaults:
    """:class:`~.faults.Faults` on the containers of a Compose file."""

    def __init__(self, file: Path) -> None:
        self._compose = [*_compose_command(), "-f", str(file)]
        self._containers: dict[str, Container] = {}
        self._network = ""
        self._isolated: set[str] = set()

    @property
    def nodes(self) -> list[str]:
        return sorted(self._containers)

    @property
    def urls(self) -> list[str]:
        return [self._plan.node(node).url for node in self.nodes]

    @property
    def zookeeper(self) -> str:
        return ""  # It is not published to this machine.

    @property
    def _plan(self) -> ClusterPlan:
        """As far as asking for the status needs one."""
        return ClusterPlan(
            name="lsmq",
            shards=0,
            replicas=0,
            min_in_sync=0,
            zookeeper=ZooKeeperPlan(kind="none"),
            nodes=tuple(
                NodePlan(id=node, voter=True, port=container.port or 0, internal_port=0, raft_port=0)
                for node, container in sorted(self._containers.items())
            ),
            last_number=len(self._containers),
        )

    async def up(self) -> None:
        await self._run(*self._compose, "up", "-d")
        await self._look()
        if not self._containers:
            raise InvalidRequest("the Compose file starts no node: none has LSMQ_CLUSTER_NODE in its environment")
        deadline = asyncio.get_running_loop().time() + _READY_TIMEOUT_S
        while True:
            status = await self.status()
            if status.shards and not status.waits_for:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise CommandFailed(f"the containers are not ready: {'; '.join(status.waits_for)}")
            await asyncio.sleep(_POLL_S)

    async def down(self) -> None:
        for node in self.nodes:
            await self.stop(node)

    async def status(self) -> ClusterStatus:
        states = json.loads(await self._run("docker", "inspect", *(self._id(node) for node in self.nodes)))
        processes = {}
        for node, found in zip(self.nodes, states, strict=True):
            state = found["State"]
            running = ProcessState.PAUSED if state["Paused"] else ProcessState.RUNNING
            processes[node] = (state["Pid"], running) if state["Running"] else (None, ProcessState.STOPPED)
        return await asyncio.to_thread(collect, self._plan, processes)

    async def replicas(self, shard: int, nodes: Sequence[str], scratch: Path) -> list[ReplicaDirectory]:
        found = []
        for node in nodes:
            target = scratch / node
            target.mkdir(exist_ok=True)
            await self._run("docker", "cp", f"{self._id(node)}:{_DATA}/shard-{shard}", str(target))
            found.append(ReplicaDirectory(node, target / f"shard-{shard}"))
        return found

    async def kill(self, nodes: Iterable[str]) -> None:
        await self._run("docker", "kill", *(self._id(node) for node in nodes))

    async def stop(self, node: str) -> None:
        await self._run("docker", "stop", self._id(node))

    async def start(self, nodes: Iterable[str]) -> None:
        nodes = list(nodes)
        await self._run("docker", "start", *(self._id(node) for node in nodes))
        await self._look()
        deadline = asyncio.get_running_loop().time() + _START_TIMEOUT_S
        for node in nodes:
            while not await asyncio.to_thread(answers, f"{self._plan.node(node).url}/healthz"):
                if asyncio.get_running_loop().time() > deadline:
                    raise CommandFailed(f"{node} does not answer after {_START_TIMEOUT_S:.0f} s")
                await asyncio.sleep(_POLL_S)

    async def pause(self, node: str) -> None:
        await self._run("docker", "pause", self._id(node))

    async def resume(self, node: str) -> None:
        await self._run("docker", "unpause", self._id(node))

    async def isolate(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            await self._run("docker", "network", "disconnect", self._network, self._id(node))
            self._isolated.add(node)

    async def deafen(self, node: str) -> None:
        raise InvalidRequest("a container cannot be made deaf alone: its network connects it in both directions or not")

    async def reject(self, node: str) -> None:
        raise InvalidRequest("a container's port cannot be made to reject: its network connects it or not")

    async def skew_clock(self, node: str, seconds: float) -> None:
        raise InvalidRequest("a container's clock cannot be wrong alone: it is the host's")

    async def heal(self) -> None:
        for node in sorted(self._isolated):
            aliases = [part for alias in self._containers[node].aliases for part in ("--alias", alias)]
            await self._run("docker", "network", "connect", *aliases, self._network, self._id(node))
        self._isolated.clear()

    async def zookeeper_down(self) -> None:
        await self._run("docker", "kill", *await self._zookeepers())

    async def zookeeper_up(self) -> None:
        await self._run("docker", "start", *await self._zookeepers())

    def can_fill(self, node: str) -> bool:
        return False

    async def fill_disk(self, node: str) -> None:
        raise InvalidRequest("a container's disk cannot be filled alone: its volume is on the host's disk")

    async def free_disk(self, node: str) -> None:
        raise InvalidRequest("no disk was filled")

    async def lose_disk(self, node: str) -> None:
        await self._in_volume(node, "find", _DATA, "-mindepth", "1", "-delete")

    async def copy_disk(self, node: str) -> None:
        await self._in_volume(node, "rm", "-rf", _COPY)
        await self._in_volume(node, "mkdir", _COPY)
        await self._in_volume(node, "find", *_TOP, "!", "-path", _COPY, "-exec", "cp", "-a", "-t", _COPY, "{}", "+")

    async def set_back(self, node: str, names: str) -> None:
        there = [*_TOP, "!", "-path", _COPY, "-name", names]
        await self._in_volume(node, "find", *there, "-exec", "rm", "-rf", "{}", "+")
        copied = [_COPY, "-mindepth", "1", "-maxdepth", "1", "-name", names]
        await self._in_volume(node, "find", *copied, "-exec", "cp", "-a", "-t", _DATA, "{}", "+")

    async def _in_volume(self, node: str, program: str, *arguments: str) -> None:
        """Run a program of the node's image beside its files."""
        found = json.loads(await self._run("docker", "inspect", self._id(node)))[0]
        command = ["run", "--rm", "--user", "root", "--volumes-from", self._id(node), "--entrypoint", program]
        await self._run("docker", *command, found["Config"]["Image"], *arguments)

    async def add_node(self) -> str:
        known = set(self._containers)
        services = (await self._run(*self._compose, "--profile", "*", "config", "--services")).split()
        for service in sorted(services):
            if service.startswith("n") and service not in known:
                await self._run(*self._compose, "up", "-d", "--no-recreate", service)
                await self._look()
                added = set(self._containers) - known
                if added:
                    return added.pop()
        raise InvalidRequest("the Compose file has no node that is not started yet")

    async def remove_node(self, node: str) -> None:
        container = self._containers.pop(node)
        await self._run("docker", "rm", "--force", "--volumes", container.id)

    # Commands

    def _id(self, node: str) -> str:
        return self._containers[node].id

    async def _zookeepers(self) -> list[str]:
        ids = (await self._run(*self._compose, "ps", "-a", "-q")).split()
        found = json.loads(await self._run("docker", "inspect", *ids))
        return [
            container["Id"]
            for container in found
            if any(variable.startswith("ZOO_MY_ID=") for variable in container["Config"]["Env"])
        ]

    async def _look(self) -> None:
        """Find the project's containers and the network between nodes."""
        ids = (await self._run(*self._compose, "ps", "-q")).split()
        if not ids:
            return
        inspected = json.loads(await self._run("docker", "inspect", *ids))
        if not self._network:
            networks = sorted({name for found in inspected for name in found["NetworkSettings"]["Networks"]})
            described = json.loads(await self._run("docker", "network", "inspect", *networks))
            self._network = next((network["Name"] for network in described if network["Internal"]), networks[0])
        for found in inspected:
            container = container_from(found, self._network)
            if container.node is not None and container.port is not None:
                known = self._containers.get(container.node)
                # A container that is cut off shows no aliases: those from before count.
                if known is None or container.aliases:
                    self._containers[container.node] = container

    async def _run(self, *command: str) -> str:
        def run() -> str:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CommandFailed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
            return done.stdout

        return await asyncio.to_thread(run)


def container_from(found: Any, network: str) -> Container:
    """From what ``docker inspect`` says; aliases are those in ``network``."""
    environment = dict(variable.partition("=")[::2] for variable in found["Config"]["Env"])
    published = (found["NetworkSettings"]["Ports"] or {}).get(_CLIENT_PORT) or []
    joined = found["NetworkSettings"]["Networks"].get(network) or {}
    own = (found["Id"][:12], found["Name"].lstrip("/"))
    return Container(
        id=found["Id"],
        service=found["Config"]["Labels"].get("com.docker.compose.service", ""),
        node=environment.get("LSMQ_CLUSTER_NODE"),
        port=int(published[0]["HostPort"]) if published else None,
        aliases=tuple(alias for alias in joined.get("Aliases") or () if alias not in own),
    )


def _compose_command() -> list[str]:
    """``docker compose`` where the plugin is installed, else ``docker-compose``."""
    docker = shutil.which("docker")
    if docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        return [docker, "compose"]
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    raise InvalidRequest("Compose is not installed: neither the plugin (docker compose) nor docker-compose was found")
