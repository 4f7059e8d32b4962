"""Looking at a cluster and changing it: nodes, shards, replicas, leaders.

Changes are agreed at once and carried out by the cluster itself; :meth:`ClusterAdmin.overview` shows how far they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsmq._paths import quoted
from lsmq.client import Client


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node. ``alive`` is None where the node that was asked does not know. ``problems`` are in its own words."""

    id: str
    url: str
    voter: bool
    state: str
    alive: bool | None
    shards_led: int
    replicas: int
    problems: tuple[str, ...] = ()
    host: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard. ``adding`` are replicas being filled, ``target`` those it is to have when a move is done. ``problem``
    says why nobody leads it and what helps, ``misplaced`` what is wrong with where its replicas are; None while all is
    well."""

    id: int
    leader: str | None
    epoch: int
    in_sync: tuple[str, ...]
    replicas: tuple[str, ...]
    adding: tuple[str, ...]
    target: tuple[str, ...]
    problem: str | None = None
    misplaced: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster at one ``version`` of its agreed state. ``name`` is None for a node of its own."""

    name: str | None
    version: int
    control_leader: str | None
    nodes: tuple[NodeInfo, ...]
    shards: tuple[ShardInfo, ...]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ClusterInfo:
        nodes = tuple(
            NodeInfo(
                node["id"],
                node["url"],
                node["voter"],
                node["state"],
                node["alive"],
                node["shards_led"],
                node["replicas"],
                tuple(node.get("problems", ())),
                node.get("host"),
                node.get("rack"),
            )
            for node in fields["nodes"]
        )
        shards = tuple(
            ShardInfo(
                shard["id"],
                shard["leader"],
                shard["epoch"],
                tuple(shard["in_sync"]),
                tuple(shard["replicas"]),
                tuple(shard["adding"]),
                tuple(shard["target"]),
                shard.get("problem"),
                shard.get("misplaced"),
            )
            for shard in fields["shards"]
        )
        return cls(fields["cluster"], fields["version"], fields["control_leader"], nodes, shards)

    def replicas_on(self, node: str) -> list[ShardInfo]:
        """The shards that have a replica on the node."""
        return [shard for shard in self.shards if node in shard.replicas]


class ClusterAdmin:
    """Commands for a cluster, through any of its nodes.

    All raise ``InvalidRequest`` with the reason when the cluster refuses, and ``Unavailable`` while fewer than a
    majority of the voters can be reached.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def overview(self) -> ClusterInfo:
        """The cluster as the node that answers knows it."""
        return ClusterInfo.from_dict(await self._client.ask("GET", "/v1/cluster"))

    async def drain(self, node: str) -> None:
        """Have all replicas of a node moved to others; it gets no new ones."""
        await self._client.ask("POST", f"{_node_path(node)}/drain")

    async def undrain(self, node: str) -> None:
        """Let a node have replicas again."""
        await self._client.ask("DELETE", f"{_node_path(node)}/drain")

    async def remove(self, node: str) -> None:
        """Take a drained node out for good; its id is not used again."""
        await self._client.ask("DELETE", _node_path(node))

    async def move(self, shard: int, replicas: Sequence[str]) -> None:
        """Have ``shard`` held by these nodes and no others; the first leads when it can."""
        await self._client.ask("PUT", f"/v1/cluster/shards/{shard}/replicas", {"replicas": list(replicas)})

    async def cancel_move(self, shard: int) -> None:
        """Leave the replicas of ``shard`` as they are now."""
        await self._client.ask("DELETE", f"/v1/cluster/shards/{shard}/replicas")

    async def transfer(self, shard: int, node: str) -> None:
        """Hand the leadership of ``shard`` to a replica in sync."""
        await self._client.ask("PUT", f"/v1/cluster/shards/{shard}/leader", {"node": node})

    async def revive(self, shard: int, node: str, *, accept_loss: bool) -> None:
        """Go on with what the replica of ``shard`` at ``node`` has, although acknowledged messages may be lost.

        For a shard whose ``problem`` says that nobody can lead it, when those it names never come back. What other
        replicas have beyond is set aside at their nodes. Raises ``InvalidRequest`` for a shard that is led, or without
        ``accept_loss``.
        """
        body = {"node": node, "accept_loss": accept_loss}
        await self._client.ask("POST", f"/v1/cluster/shards/{shard}/revive", body)


def _node_path(node: str) -> str:
    return f"/v1/cluster/nodes/{quoted(node)}"
