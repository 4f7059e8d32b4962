"""Whether a cluster is well: what its nodes say of themselves and of each other, judged by pure code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from lsmq._reading import read
from lsmq.admin import ClusterInfo, NodeInfo, ShardInfo
from lsmq.client import Client
from lsmq.errors import LsmqError

#: A node that has not answered by then is told to be silent.
SILENCE_S: Final = 3.0
_NOT_READY: Final = 503
#: So many shards are named of those that a node is behind in.
_NAMED: Final = 10
_HELP: Final = "docs/operations.md says what to do when"


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a node says of itself. ``silent`` says why it said nothing."""

    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    silent: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something is not well: ``where``, ``what``, and what to do (``remedy``)."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what.rstrip('.')}. {self.remedy}"

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


async def ask_node(client: Client, url: str, path: str, timeout_s: float, params: Mapping[str, str]) -> Any:
    """One request to this node and no other, not tried again. Raises ``LsmqError``."""
    answer = await client._transport.request(
        "GET", url + path, timeout_s=timeout_s, params=params, also=(_NOT_READY,) if path == "/readyz" else ()
    )
    return answer.value()


async def readiness(client: Client, url: str, timeout_s: float = SILENCE_S) -> Readiness:
    """Ask a node whether it is ready."""
    try:
        found = await ask_node(client, url, "/readyz", timeout_s, {})
        return Readiness(tuple(found["reasons"]), tuple(found.get("warnings", ())))
    except LsmqError as error:
        return Readiness(silent=error.message)
    except (KeyError, TypeError):
        return Readiness(silent=f"what answers at {url} is no LSMQ node")


async def examine(client: Client) -> tuple[ClusterInfo, list[Problem]]:
    """Ask a node that answers for the cluster, and each node how it is: a request a node and one more."""
    cluster = await read(client, "GET", "/v1/cluster", ClusterInfo.from_dict)
    nodes = members(client, cluster)
    said = await asyncio.gather(*(readiness(client, url) for url in nodes.values()))
    return cluster, problems(cluster, dict(zip(nodes, said, strict=True)))


def members(client: Client, cluster: ClusterInfo) -> dict[str, str]:
    """URLs of the nodes of a cluster by their ids. A node that is alone is reached as it was just now."""
    if cluster.name is None:
        return {node.id: client._router.answered_last for node in cluster.nodes}
    return {node.id: node.url.rstrip("/") for node in cluster.nodes if node.state != "removed"}


def problems(cluster: ClusterInfo, said: Mapping[str, Readiness]) -> list[Problem]:
    """What is not well, the worst first; nothing when all is. ``said``: by node."""
    nodes = [node for node in cluster.nodes if node.id in said]
    found = [problem for shard in cluster.shards for problem in _leaderless(shard)]
    if cluster.name is not None and cluster.control_leader is None:
        remedy = "A majority of the voters must run and reach each other"
        found.insert(0, Problem("cluster", "nobody leads its control plane, and it cannot change", remedy))
    found += [problem for node in nodes for problem in _silent(node, said[node.id])]
    found += [Problem(f"node {node.id}", reason, _HELP) for node in nodes for reason in said[node.id].reasons]
    found += _behind(cluster)
    remedy = "They are moved apart by themselves once a node on another host is there: lsmq node list"
    found += [Problem(f"shard {shard.id}", shard.misplaced, remedy) for shard in cluster.shards if shard.misplaced]
    found += [Problem(f"node {node.id}", warning, _HELP) for node in nodes for warning in said[node.id].warnings]
    return found


def _silent(node: NodeInfo, said: Readiness) -> Iterator[Problem]:
    where = f"node {node.id}"
    if said.silent is not None:
        remedy = f"Start it, or see why {node.url} cannot be reached from here"
        yield Problem(where, f"does not answer ({said.silent})", remedy)
        for told in node.problems:  # What it could not say itself it has said to the others.
            yield Problem(where, told, _HELP)
    elif node.alive is False and not said.reasons:
        yield Problem(where, "answers here, and the control plane does not hear of it", "See whether nodes reach it")


def _leaderless(shard: ShardInfo) -> Iterator[Problem]:
    if shard.leader is None:
        what = f"has no leader: {shard.problem}" if shard.problem else "has no leader"
        remedy = "One is elected in seconds once enough of its replicas run: lsmq shard list"
        yield Problem(f"shard {shard.id}", what, "See lsmq shard list" if shard.problem else remedy)


def _behind(cluster: ClusterInfo) -> Iterator[Problem]:
    behind: dict[str, list[int]] = {}
    for shard in cluster.shards:
        for node in out_of_sync(shard):
            behind.setdefault(node, []).append(shard.id)
    for node, shards in sorted(behind.items()):
        named = ", ".join(map(str, shards[:_NAMED])) + (", ..." if len(shards) > _NAMED else "")
        what = f"{len(shards)} of its replicas {'is' if len(shards) == 1 else 'are'} not in sync (shard {named})"
        yield Problem(f"node {node}", what, "They catch up by themselves while it runs: lsmq shard list")


def out_of_sync(shard: ShardInfo) -> Sequence[str]:
    """Nodes whose replicas are not in sync, and are not just being filled."""
    return [node for node in shard.replicas if node not in shard.in_sync and node not in shard.adding]
