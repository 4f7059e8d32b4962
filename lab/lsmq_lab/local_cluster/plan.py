"""What a local cluster consists of: its nodes and their ports, and the configuration of each. Kept as a JSON file."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lsmq.errors import AddressInUse, InvalidRequest
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.cluster_nodes import VoterAddresses
from lsmq_node.cluster_zookeeper import TLS_SCHEME
from lsmq_node.config import NodeConfig

from .errors import ClusterNotFound

HOST = "127.0.0.1"
FORMAT = 1
PORTS_PER_NODE = 10
MAX_NODES = 32

_PLAN_FILE = "cluster.json"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """A node and the ports it listens on. Where a proxy stands in front of an inner port, others dial the proxy's."""

    id: str
    voter: bool
    port: int
    internal_port: int
    raft_port: int
    internal_proxy_port: int | None = None
    raft_proxy_port: int | None = None
    tls: bool = False

    @property
    def _scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{HOST}:{self.port}"

    @property
    def internal_url(self) -> str:
        """As the other nodes know it."""
        return f"{self._scheme}://{HOST}:{self.internal_proxy_port or self.internal_port}"

    @property
    def raft_address(self) -> str:
        """As the other nodes know it."""
        return f"{HOST}:{self.raft_proxy_port or self.raft_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperPlan:
    """Where clients find routes: ``local`` runs one with the cluster, ``none`` has none, ``hosts`` is somebody's."""

    kind: str
    hosts: str = ""
    ports: tuple[int, ...] = ()

    @property
    def shows_certificates(self) -> bool:
        """Whether the cluster's own authority is that of its ZooKeeper and of all who come there."""
        return self.kind == "local" and self.hosts.startswith(TLS_SCHEME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """A cluster as founded; ``nodes`` come and go, and ``last_number`` is of the last id that was given to one.

    ``settings`` are all nodes', those of the table ``[cluster]`` as ``cluster.NAME``.
    """

    name: str
    shards: int
    replicas: int
    min_in_sync: int
    zookeeper: ZooKeeperPlan
    nodes: tuple[NodePlan, ...]
    last_number: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    tls: bool = False

    def node(self, id: str) -> NodePlan:
        """Raises ``InvalidRequest`` naming the nodes there are."""
        for node in self.nodes:
            if node.id == id:
                return node
        raise InvalidRequest(f"there is no node {id!r}; the nodes are {', '.join(node.id for node in self.nodes)}")

    @property
    def ports(self) -> frozenset[int]:
        """All that its processes listen on, or will when they run."""
        of_nodes = {
            port
            for node in self.nodes
            for port in (node.port, node.internal_port, node.raft_port, node.internal_proxy_port, node.raft_proxy_port)
            if port is not None
        }
        return frozenset((*of_nodes, *self.zookeeper.ports))

    def next_port(self) -> int:
        """The first of ten behind those of all nodes of which the plan has none: a local ZooKeeper has some there."""
        port = max(node.port for node in self.nodes) + PORTS_PER_NODE
        while not self.ports.isdisjoint(range(port, port + PORTS_PER_NODE)):
            port += PORTS_PER_NODE
        return port

    @property
    def voters(self) -> tuple[NodePlan, ...]:
        return tuple(node for node in self.nodes if node.voter)

    def with_new_node(self, ports: list[int]) -> ClusterPlan:
        """One more node at the end, which does not vote. An id is never given twice: a cluster does not take back
        one that it has removed."""
        number = self.last_number + 1
        node = plan_node(f"n{number}", ports, voter=False, proxied=False, tls=self.tls)
        return replace(self, nodes=(*self.nodes, node), last_number=number)

    def without_node(self, id: str) -> ClusterPlan:
        return replace(self, nodes=tuple(node for node in self.nodes if node.id != id))

    def node_config(self, node: NodePlan, directory: Path) -> NodeConfig:
        """The configuration of one node; ``directory`` is the cluster's. Raises ``InvalidConfig``."""
        own = {name: value for name, value in self.settings.items() if not name.startswith("cluster.")}
        table = {
            "name": self.name,
            "node": node.id,
            "shards": self.shards,
            "replicas": self.replicas,
            "min_in_sync": self.min_in_sync,
            "secret_file": directory / "secret",
            "tls_ca": directory / "tls" / "ca.crt" if self.tls else None,
            "internal_host": HOST,
            "internal_port": node.internal_port,
            "internal_url": None if node.voter else node.internal_url,
            "raft_port": node.raft_port,
            "zookeeper": self.zookeeper.hosts,
            "voters": {
                voter.id: VoterAddresses(url=voter.url, internal_url=voter.internal_url, raft=voter.raft_address)
                for voter in self.voters
            },
        }
        files = {"cert": f"{node.id}.crt", "key": f"{node.id}.key", "ca": "ca.crt"}
        tls = {f"tls_{name}": directory / "tls" / file for name, file in files.items()}
        if self.zookeeper.shows_certificates:
            table |= {f"zookeeper_{name}": file for name, file in tls.items()}
        asked = {
            name.removeprefix("cluster."): value for name, value in self.settings.items() if name.startswith("cluster.")
        }
        given = {name: value for name, value in table.items() if value is not None}
        cluster = ClusterConfig.load({"plan": given, "--set": asked})
        if self.tls:
            own = {**tls, **own}
        return NodeConfig.load(
            data=directory / node.id / "data",
            host=HOST,
            port=node.port,
            advertised_url=None if node.voter else node.url,
            cluster=cluster,
            **own,
        )

    def write(self, directory: Path) -> None:
        """Keep it in the cluster's directory, replacing what was there."""
        temporary = directory / f"{_PLAN_FILE}.new"
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")
        temporary.replace(directory / _PLAN_FILE)
        _register(directory)

    @classmethod
    def exists(cls, directory: Path) -> bool:
        return (directory / _PLAN_FILE).exists()

    @classmethod
    def read(cls, directory: Path) -> ClusterPlan:
        """Raises ``ClusterNotFound``."""
        file = directory / _PLAN_FILE
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError as error:
            raise ClusterNotFound(
                f"there is no cluster in {directory}; start one: lsmq cluster up --dir {directory}"
            ) from error
        except (OSError, ValueError) as error:
            raise ClusterNotFound(f"{file} cannot be read: {error}") from error
        if found.pop("format", None) != FORMAT:
            raise ClusterNotFound(f"{file} is of another version of lsmq")
        zookeeper = found.pop("zookeeper")
        return cls(
            **{**found, "nodes": tuple(NodePlan(**node) for node in found["nodes"])},
            zookeeper=ZooKeeperPlan(**{**zookeeper, "ports": tuple(zookeeper["ports"])}),
        )

    def difference(self, **asked: Any) -> str | None:
        """The first of what was asked for (None: nothing was) that this cluster has otherwise, in words."""
        has = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        has |= {"nodes": len(self.voters), "zookeeper": self.zookeeper.kind}
        for name, value in asked.items():
            if value is not None and value != has[name]:
                return f"it has {name} {has[name]}, not {value}"
        return None


def found_plan(
    *,
    nodes: int = 3,
    shards: int = 3,
    replicas: int = 3,
    min_in_sync: int | None = None,
    name: str = "lsmq",
    zookeeper: str = "none",
    base_port: int | None = None,
    settings: Mapping[str, Any] | None = None,
    proxied: bool = False,
    tls: bool = False,
) -> ClusterPlan:
    """A plan for a new cluster on ports that are free now. Up to five nodes vote: the largest of 1, 3, 5 there are.

    ``tls`` has all speak TLS, a local ZooKeeper too, with certificates of an authority of the cluster's own.
    ``proxied`` plans a proxy before each inner port, for who wants to cut nodes off from each other.

    Raises:
        InvalidRequest: numbers that make no cluster.
        AddressInUse: with ``base_port``, naming the port.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise InvalidRequest(f"nodes is {nodes}; it must be 1 to {MAX_NODES}")
    if replicas > nodes:
        raise InvalidRequest(f"replicas is {replicas}, and there are {nodes} nodes to put them on")
    voters = max(count for count in (1, 3, 5) if count <= nodes)
    if replicas > voters:
        raise InvalidRequest(
            f"replicas is {replicas}, and a cluster of {nodes} nodes is founded on {voters} of them, which vote; "
            f"{_remedy(replicas)}"
        )
    zookeeper_ports = 3 if zookeeper == "local" else 0
    ports = choose_ports(nodes * PORTS_PER_NODE + zookeeper_ports, base_port)
    match zookeeper:
        case "none":
            zookeeper_plan = ZooKeeperPlan(kind="none")
        case "local":
            own = tuple(ports[-zookeeper_ports:])
            zookeeper_plan = ZooKeeperPlan(kind="local", hosts=f"{TLS_SCHEME if tls else ''}{HOST}:{own[0]}", ports=own)
        case hosts:
            zookeeper_plan = ZooKeeperPlan(kind="hosts", hosts=hosts)
    return ClusterPlan(
        name=name,
        shards=shards,
        replicas=replicas,
        min_in_sync=min_in_sync or replicas // 2 + 1,
        zookeeper=zookeeper_plan,
        nodes=tuple(
            plan_node(
                f"n{number + 1}", ports[number * PORTS_PER_NODE :], voter=number < voters, proxied=proxied, tls=tls
            )
            for number in range(nodes)
        ),
        last_number=nodes,
        settings=dict(settings or {}),
        tls=tls,
    )


def _remedy(replicas: int) -> str:
    """For more replicas than voters: nodes that join later can only be given replicas when they are there."""
    nodes = "three" if replicas <= 3 else "five"
    return f"found it on {nodes} nodes, or with fewer replicas and add others by 'lsmq shard move'"


def plan_node(id: str, ports: list[int], *, voter: bool, proxied: bool, tls: bool = False) -> NodePlan:
    """A node on the first of ``ports``."""
    return NodePlan(
        id=id,
        voter=voter,
        port=ports[0],
        internal_port=ports[1],
        raft_port=ports[2],
        internal_proxy_port=ports[3] if proxied else None,
        raft_proxy_port=ports[4] if proxied else None,
        tls=tls,
    )


def choose_ports(count: int, base_port: int | None = None) -> list[int]:
    """``count`` ports in a row that nobody listens on now, from ``base_port`` or anywhere.

    Those from anywhere lie below what the system gives to outgoing connections, and belong to no other cluster of this
    user that there is: none of these takes a port while its node is down. Raises ``AddressInUse``.
    """
    if base_port is not None:
        ports = list(range(base_port, base_port + count))
        taken = _first_taken(ports)
        if taken is not None:
            raise AddressInUse(
                f"port {taken} is in use; choose another --base-port ({count} ports from there are needed), or leave "
                "it out",
                port=taken,
            )
        return ports
    try:
        ephemeral = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        ephemeral = 32_768
    last = max(_FIRST_PORT + 2 * count, ephemeral) - count
    others = _ports_of_clusters()
    for _ in range(1_000):
        first = random.randrange(_FIRST_PORT, last)
        ports = list(range(first, first + count))
        if others.isdisjoint(ports) and _first_taken(ports) is None:
            return ports
    raise AddressInUse(f"no {count} ports in a row are free between {_FIRST_PORT} and {last + count}")


def _first_taken(ports: Iterable[int]) -> int | None:
    for port in ports:
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            return port
    return None


def _registry() -> Path:
    """A link to the directory of each cluster of this user, and of those that are gone since somebody looked."""
    return Path(tempfile.gettempdir()) / f"lsmq-clusters-{os.getuid()}"


def _register(directory: Path) -> None:
    """Who cannot has its ports to itself only while it listens on them, as ever."""
    link = _registry() / hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:32]
    with suppress(OSError):
        link.parent.mkdir(mode=0o700, exist_ok=True)
        link.symlink_to(directory.resolve())


def _ports_of_clusters() -> set[int]:
    """Also of those that do not run now. Forgets the clusters that are gone."""
    ports: set[int] = set()
    with suppress(OSError):
        for link in _registry().iterdir():
            try:
                ports |= ClusterPlan.read(link).ports
            except (ClusterNotFound, LookupError, TypeError):  # It is gone, or of another version.
                link.unlink(missing_ok=True)
    return ports
