"""What a local cluster is doing: of its processes by looking at them, of its shards by asking the nodes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ..believed import NO_ANSWER, opener
from .plan import ClusterPlan, NodePlan
from .process import ProcessState

ASK_TIMEOUT_S = 1.0


class LocalNodeState(Enum):
    RUNNING = "running"  # It answers.
    STARTING = "starting"  # A process, and no answer (yet).
    PAUSED = "paused"
    STOPPED = "stopped"
    REMOVED = "removed"  # Taken out of the cluster for good, whatever its process does.


@dataclass(frozen=True, slots=True)
class NodeStatus:
    id: str
    pid: int | None
    url: str
    state: LocalNodeState


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard as the nodes agreed on it. ``leader`` is None when it has none whose process is there.

    ``serving``: the leader itself says that it takes reads and writes.
    """

    id: int
    leader: str | None
    epoch: int
    in_sync: tuple[str, ...]
    replicas: tuple[str, ...]
    serving: bool


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    nodes: tuple[NodeStatus, ...]
    shards: tuple[ShardStatus, ...]
    zookeeper: str
    control_leader: str | None = None

    def node(self, id: str) -> NodeStatus:
        return next(node for node in self.nodes if node.id == id)

    @property
    def waits_for(self) -> list[str]:
        """What keeps the cluster from serving, in words; empty when it serves."""
        silent = [node.id for node in self.nodes if node.state is LocalNodeState.STARTING]
        leaderless = [str(shard.id) for shard in self.shards if shard.leader is None]
        idle = [
            f"{shard.id} ({shard.leader})" for shard in self.shards if shard.leader is not None and not shard.serving
        ]
        return [
            *([f"no answer from {', '.join(silent)}"] if silent else []),
            *([f"no leader for shard {', '.join(leaderless)}"] if leaderless else []),
            *([f"the leader does not serve yet of shard {', '.join(idle)}"] if idle else []),
        ]

    def to_dict(self) -> dict[str, Any]:
        """As ``lsmq cluster status --json`` prints it."""
        return {
            "nodes": [{**asdict(node), "state": node.state.value} for node in self.nodes],
            "shards": [
                {**asdict(shard), "in_sync": list(shard.in_sync), "replicas": list(shard.replicas)}
                for shard in self.shards
            ],
            "zookeeper": self.zookeeper,
            "control_leader": self.control_leader,
        }


def ask(url: str, timeout: float = ASK_TIMEOUT_S, ca: Path | None = None, token: str | None = None) -> Any:
    """The JSON that a node, whose certificate is of ``ca``, answers to whoever has the token; None when it does not."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with opener(ca).open(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except (*NO_ANSWER, ValueError):
        return None


def answers(url: str, timeout: float = ASK_TIMEOUT_S, ca: Path | None = None) -> bool:
    """Whether a node answers anything at all, an error included."""
    try:
        opener(ca).open(url, timeout=timeout).close()
    except urllib.error.HTTPError as error:
        error.close()
    except NO_ANSWER:
        return False
    return True


def collect(
    plan: ClusterPlan,
    processes: Mapping[str, tuple[int | None, ProcessState]],
    ca: Path | None = None,
    timeout: float = ASK_TIMEOUT_S,
    token: str | None = None,
) -> ClusterStatus:
    """Ask all nodes at once, with a token where they want one. The latest of what they agreed on counts.

    Each says for itself what it serves.
    """
    asked = [node for node in plan.nodes if processes[node.id][1] is ProcessState.RUNNING]
    found = dict(zip((node.id for node in asked), _ask_all(asked, timeout, ca, token), strict=True))
    overviews = [overview for overview, _ in found.values() if overview is not None]
    latest = max(overviews, key=lambda overview: overview["version"], default=None)
    serving = {node: _served(status) for node, (_, status) in found.items()}
    removed = {node["id"] for node in (latest or {"nodes": ()})["nodes"] if node["state"] == "removed"}
    nodes = []
    for node in plan.nodes:
        pid, process = processes[node.id]
        answered = found.get(node.id, (None, None)) != (None, None)
        state = LocalNodeState.REMOVED if node.id in removed else _node_state(process, answered)
        nodes.append(NodeStatus(node.id, pid, node.url, state))
    return ClusterStatus(
        nodes=tuple(nodes),
        shards=tuple(_shards(plan, latest, {node.id for node in nodes if node.pid is not None}, serving)),
        zookeeper=plan.zookeeper.hosts,
        control_leader=None if latest is None else latest.get("control_leader"),
    )


def _ask_all(nodes: Sequence[NodePlan], timeout: float, ca: Path | None, token: str | None) -> list[tuple[Any, Any]]:
    if not nodes:
        return []

    def both(node: NodePlan) -> tuple[Any, Any]:
        return ask(f"{node.url}/v1/cluster", timeout, ca, token), ask(f"{node.url}/v1/status", timeout, ca, token)

    with ThreadPoolExecutor(len(nodes)) as threads:
        return list(threads.map(both, nodes))


def _node_state(state: ProcessState, answered: bool) -> LocalNodeState:
    match state:
        case ProcessState.STOPPED:
            return LocalNodeState.STOPPED
        case ProcessState.PAUSED:
            return LocalNodeState.PAUSED
        case ProcessState.RUNNING:
            return LocalNodeState.RUNNING if answered else LocalNodeState.STARTING


def _served(status: Any) -> set[int]:
    """The shards that a node says it serves as their leader."""
    shards = status.get("shards", []) if isinstance(status, dict) else []
    return {shard["shard"] for shard in shards if shard.get("serving")}


def _shards(plan: ClusterPlan, overview: Any, present: set[str], serving: Mapping[str, set[int]]) -> list[ShardStatus]:
    if overview is None or not overview["shards"]:
        return [ShardStatus(shard, None, 0, (), (), False) for shard in range(plan.shards)]
    found = []
    for shard in overview["shards"]:
        leader = shard["leader"] if shard["leader"] in present else None
        found.append(
            ShardStatus(
                id=shard["id"],
                leader=leader,
                epoch=shard["epoch"],
                in_sync=tuple(shard["in_sync"]),
                replicas=tuple(shard["replicas"]),
                serving=leader is not None and shard["id"] in serving.get(leader, ()),
            )
        )
    return sorted(found, key=lambda shard: shard.id)
