"""Who the processes of a machine are: the configuration of each, from the one that was given. Pure, but for ports."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.cluster_nodes import Founder, VoterAddresses
from lsmq_node.config import InvalidConfig, NodeConfig

from .ports import free_block

MAX_PROCESSES = 64
#: Each process listens on the ports of the first plus so many times its place.
PORTS_PER_PROCESS = 10
#: Votes beside two processes, and holds nothing.
CONTROL = "control"
SECRET_FILE = "secret"
#: The name of the cluster that a node of its own becomes, and the label of its machine.
OWN_NAME = "local"
_HOST = "127.0.0.1"
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_WILDCARDS = ("0.0.0.0", "::", "")


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedProcess:
    """One of the processes: its name is its id in the cluster."""

    name: str
    config: NodeConfig
    #: Others need its vote as they stop, and it holds nothing: it goes last.
    last: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Founded:
    """How a node of its own was, or is to be, founded: with so many processes, and shards for good."""

    processes: int
    shards: int

    @property
    def voters(self) -> tuple[str, ...]:
        """Three of them, one of which may die at any moment."""
        return ("p0", "p1", CONTROL if self.processes == 2 else "p2")


def cores(quota: Path = _CPU_QUOTA) -> int:
    """How many this process may use: those it may run on, and in a container no more than it is given time of."""
    count = len(os.sched_getaffinity(0))
    try:
        used, period = quota.read_text().split()
        count = min(count, max(1, round(int(used) / int(period))))
    except (OSError, ValueError):  # No control group, or one without a limit, which says "max".
        pass
    return min(count, MAX_PROCESSES)


def names(config: NodeConfig, count: int, founded: Founded | None) -> list[str]:
    """The processes in the order of their ports; those of a node of its own are ``founded``."""
    if config.cluster is not None:
        first = config.cluster.node
        return [first, *(f"{first}.{place}" for place in range(1, count))]
    assert founded is not None
    found = [f"p{number}" for number in range(count)]
    if CONTROL in founded.voters:
        found.insert(2, CONTROL)
    return found


def data_of(config: NodeConfig, name: str) -> tuple[Path, ...]:
    """The disks of a process: a directory on each. The first of a cluster's member has those that it had before there
    were others."""
    if config.cluster is not None and config.cluster.node == name:
        return config.disks
    return tuple(disk / name for disk in config.disks)


def planned(config: NodeConfig, count: int, founded: Founded | None) -> list[PlannedProcess]:
    """The processes, with their configurations. Raises ``InvalidConfig``; ``AddressInUse`` where no ports are free."""
    chosen = names(config, count, founded)
    if config.cluster is None:
        assert founded is not None
        configs = _of_its_own(config, chosen, founded)
    else:
        founders = _with_processes(config.cluster, count)
        cluster = dataclasses.replace(config.cluster, founders=founders)
        configs = [_member(config, cluster, place, name) for place, name in enumerate(chosen)]
    configs = _administered(configs, config.admin_port)
    for each in configs:
        each.validate()
    return [PlannedProcess(name, each, last=name == CONTROL) for name, each in zip(chosen, configs, strict=True)]


def _administered(configs: list[NodeConfig], admin_port: int | None) -> list[NodeConfig]:
    """Each with a port for administration, so much above that of the first as its other ports are."""
    if not admin_port:
        return configs
    others = {port for each in configs if each.cluster for port in (each.cluster.internal_port, each.cluster.raft_port)}
    others |= {each.port for each in configs}
    ports = [admin_port + PORTS_PER_PROCESS * place for place in range(len(configs))]
    if taken := others.intersection(ports):
        raise InvalidConfig(
            f"admin_port is {admin_port}, those of other processes are {PORTS_PER_PROCESS}, "
            f"{2 * PORTS_PER_PROCESS}, ... above, and {min(taken)} is a port of one of them already: choose "
            f"another one, such as {configs[0].port + PORTS_PER_PROCESS - 1}",
            setting="admin_port",
        )
    return [dataclasses.replace(each, admin_port=port) for each, port in zip(configs, ports, strict=True)]


# A node of its own


def _of_its_own(config: NodeConfig, chosen: list[str], founded: Founded) -> list[NodeConfig]:
    """A cluster on this machine. Its inner ports are reached from here alone.

    Its times are long. A process that ends is known at once by its proof of death, and one that hangs has no replica
    that could take over: so a busy machine costs no elections.
    """
    if config.port == 0:
        config = dataclasses.replace(config, port=free_block(config.host, PORTS_PER_PROCESS * len(chosen)))
    if config.advertised_url is None and config.host in _WILDCARDS:
        raise InvalidConfig(
            f"host is {config.host!r}, and clients are sent to the process that has what they want, by its URL: set "
            f"advertised_url to how they reach port {config.port} of this machine; the other processes are at the "
            f"ports {PORTS_PER_PROCESS}, {2 * PORTS_PER_PROCESS}, ... above",
            setting="advertised_url",
        )
    inner = config.port + 1
    nodes: dict[str, Founder] = {}
    for place, name in enumerate(chosen):
        step = PORTS_PER_PROCESS * place
        addresses = {
            "url": shifted(config.public_url, step, "advertised_url"),
            "internal_url": f"http://{_HOST}:{inner + step}",
            "host": OWN_NAME,
        }
        if name in founded.voters:
            nodes[name] = VoterAddresses(raft=f"{_HOST}:{inner + 1 + step}", only_votes=name == CONTROL, **addresses)
        else:
            nodes[name] = Founder(**addresses)
    found = []
    for place, name in enumerate(chosen):
        step = PORTS_PER_PROCESS * place
        first, *further = data_of(config, name)
        cluster = ClusterConfig(
            name=OWN_NAME,
            node=name,
            shards=founded.shards,
            replicas=1,
            min_in_sync=1,
            secret_file=config.data / SECRET_FILE,
            internal_port=inner + step,
            raft_port=inner + 1 + step,
            voters={name: node for name, node in nodes.items() if isinstance(node, VoterAddresses)},
            founders={name: node for name, node in nodes.items() if not isinstance(node, VoterAddresses)},
            lease_ms=800,
            node_timeout_ms=1000,
            replica_timeout_ms=1000,
            replica_lag_ms=2000,
        )
        found.append(
            dataclasses.replace(
                config,
                data=first,
                further_data=tuple(further),
                port=config.port + step,
                advertised_url=nodes[name].url,
                shards=1,
                processes=1,
                cluster=cluster,
            )
        )
    return found


# A member of a cluster


def _member(config: NodeConfig, cluster: ClusterConfig, place: int, name: str) -> NodeConfig:
    """The process of this place of a member: its data, ports and URLs, and the label of its machine."""
    step = PORTS_PER_PROCESS * place
    if step and 0 in (config.port, cluster.internal_port):
        raise InvalidConfig(
            "port and cluster.internal_port must be named where a member has several processes: others find these at "
            f"the ports {PORTS_PER_PROCESS}, {2 * PORTS_PER_PROCESS}, ... above",
            setting="port",
        )
    first, *further = data_of(config, name)
    entry = cluster.voters.get(cluster.node) or cluster.founders.get(cluster.node)
    own = dataclasses.replace(
        cluster,
        node=name,
        host="" if entry is not None and not step else (entry and entry.host) or cluster.host or cluster.node,
        rack=cluster.rack or (entry.rack if entry is not None else ""),
        internal_port=cluster.internal_port + step,
        internal_url=_moved(cluster.advertised_internal_url, step, cluster, "cluster.internal_url"),
    )
    return dataclasses.replace(
        config,
        data=first,
        further_data=tuple(further),
        port=config.port + step,
        advertised_url=_moved(config.public_url, step, cluster, "advertised_url"),
        processes=1,
        cluster=own,
    )


def _moved(url: str, step: int, cluster: ClusterConfig, what: str) -> str:
    return shifted(url, step, what) if step else url


def _with_processes(cluster: ClusterConfig, count: int) -> Mapping[str, Founder]:
    """The other processes of all machines that shards are founded on, beside those that are named: the same on all
    nodes if ``processes`` is."""
    found = dict(cluster.founders)
    for id, node in cluster.holders.items():
        for place in range(1, count):
            step = PORTS_PER_PROCESS * place
            found[f"{id}.{place}"] = Founder(
                url=shifted(node.url, step, f"the url of {id}"),
                internal_url=shifted(node.internal_url, step, f"the internal_url of {id}"),
                host=node.host or id,
                rack=node.rack,
            )
    return found


def shifted(url: str, step: int, what: str) -> str:
    """The URL with a port so much higher. Raises ``InvalidConfig`` for one that names no port."""
    parsed = urlsplit(url.rstrip("/"))
    if parsed.port is None:
        raise InvalidConfig(
            f"{what} is {url!r}, and the processes of a machine are told apart by their ports: let it name the port",
            setting=what,
        )
    host = f"[{parsed.hostname}]" if ":" in (parsed.hostname or "") else parsed.hostname
    return parsed._replace(netloc=f"{host}:{parsed.port + step}").geturl()
