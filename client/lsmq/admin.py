"""Looking at a cluster and changing it: nodes, shards, replicas, leaders.

Changes are agreed at once and carried out by the cluster itself; :meth:`ClusterAdmin.overview` shows how far they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsmq._paths import quoted
from lsmq._reading import read
from lsmq.client import Client


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node. ``alive`` is None where the node that was asked does not know. ``problems`` are in its own words. One
    that ``only_votes`` was founded to hold nothing: its ``state`` is that of one that is drained."""

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
    only_votes: bool = False

    @property
    def condition(self) -> str:
        """``active``, ``only votes``, ``draining`` while it has replicas, then ``drained``, ``removed``."""
        if self.state != "draining":
            return self.state
        return "draining" if self.replicas else "only votes" if self.only_votes else "drained"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard. ``adding`` are replicas being filled, ``target`` those it is to have when a move is done. ``problem``
    says why nobody leads it and what helps, ``misplaced`` what is wrong with where its replicas are; None while all is
    well. A ``pinned`` shard was placed by people: the cluster moves it only away from nodes that are gone or
    draining."""

    id: int
    leader: str | None
    epoch: int
    in_sync: tuple[str, ...]
    replicas: tuple[str, ...]
    adding: tuple[str, ...]
    target: tuple[str, ...]
    problem: str | None = None
    pinned: bool = False
    misplaced: str | None = None


@dataclass(frozen=True, slots=True)
class VoterChange:
    """``new`` takes the vote of ``old`` in the control plane. ``step``: ``filling`` while it is sent the log,
    ``joining`` the same when the old one votes no more, ``leaving`` while both vote."""

    old: str
    new: str
    step: str


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster at one ``version`` of its agreed state. ``name`` is None for a node of its own. While
    ``moves_paused`` no replica is added anywhere. ``voter_change`` is None while nobody takes anybody's vote.
    ``home_shards`` are those it was made with; None: a release that knows of no others says nothing."""

    name: str | None
    version: int
    control_leader: str | None
    nodes: tuple[NodeInfo, ...]
    shards: tuple[ShardInfo, ...]
    moves_paused: bool = False
    voter_change: VoterChange | None = None
    home_shards: int | None = None

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
                node.get("only_votes", False),
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
                shard.get("pinned", False),
                shard.get("misplaced"),
            )
            for shard in fields["shards"]
        )
        agreed = fields["cluster"], fields["version"], fields["control_leader"]
        change = fields.get("voter_change")
        taking = None if change is None else VoterChange(change["old"], change["new"], change["step"])
        paused, home_shards = fields.get("moves_paused", False), fields.get("home_shards")
        return cls(*agreed, nodes, shards, paused, taking, home_shards)

    def replicas_on(self, node: str) -> list[ShardInfo]:
        """The shards that have a replica on the node."""
        return [shard for shard in self.shards if node in shard.replicas]


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """What a shard is to have instead of what it has; the first of each is the preferred leader. ``why``: ``rebuild``
    where a node is gone, ``replicas``, ``bytes``, ``leaders`` or ``load`` where these are uneven. ``size_bytes``: what
    is to be copied, about; None where that is not known."""

    shard: int
    former: tuple[str, ...]
    replicas: tuple[str, ...]
    why: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class AwayNode:
    """A node that is not heard, for how many seconds, and in how many its replicas are made again at others; None: not
    by itself."""

    node: str
    away_s: float
    rebuilt_in_s: float | None


@dataclass(frozen=True, slots=True)
class AwayVoter:
    """``old``, which is not heard, is to give its vote in the control plane to ``new``, not sooner than in so many
    seconds; None: not by itself. ``new`` is None where nobody is there for it. ``waits_for`` says what holds it back
    and what helps, None where nothing does."""

    old: str
    new: str | None
    in_s: float | None
    waits_for: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cluster is about to move by itself: ``moves`` in order, ``more`` where there are more than it shows.
    ``moving``: shards whose move has begun, whoever asked for it. ``voters``: those that are to be replaced. While it
    is ``paused`` nothing of it begins."""

    version: int
    paused: bool
    moves: tuple[PlannedMove, ...]
    more: bool
    moving: tuple[int, ...]
    away: tuple[AwayNode, ...]
    voters: tuple[AwayVoter, ...] = ()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Plan:
        moves = tuple(
            PlannedMove(move["shard"], tuple(move["from"]), tuple(move["to"]), move["why"], move["bytes"])
            for move in fields["moves"]
        )
        away = tuple(AwayNode(away["node"], away["away_s"], away["rebuilt_in_s"]) for away in fields["away"])
        voters = tuple(
            AwayVoter(each["old"], each["new"], each["in_s"], each["waits_for"]) for each in fields.get("voters", ())
        )
        return cls(fields["version"], fields["paused"], moves, fields["more"], tuple(fields["moving"]), away, voters)


@dataclass(frozen=True, slots=True)
class NewShard:
    """A shard that there would be; the first of its ``replicas`` leads first."""

    id: int
    replicas: tuple[str, ...]


class ClusterAdmin:
    """Commands for a cluster, through any of its nodes.

    All raise ``InvalidRequest`` with the reason when the cluster refuses, and ``Unavailable`` while fewer than a
    majority of the voters can be reached.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def overview(self) -> ClusterInfo:
        """The cluster as the node that answers knows it."""
        return await read(self._client, "GET", "/v1/cluster", ClusterInfo.from_dict)

    async def plan(self) -> Plan:
        """What the cluster is about to move by itself, and which voters it is about to replace, made by the leader of
        its control plane now."""
        return await read(self._client, "GET", "/v1/cluster/plan", Plan.from_dict)

    async def plan_growth(self, shards: int) -> list[NewShard]:
        """The shards that would be new if there were ``shards`` in all, and where they would lie now."""
        return await read(
            self._client,
            "GET",
            f"/v1/cluster/growth?shards={shards}",
            lambda found: [NewShard(shard["id"], tuple(shard["replicas"])) for shard in found["shards"]],
        )

    async def grow_shards(self, shards: int) -> None:
        """Have ``shards`` in all, in a cluster or a node of its own; nothing happens where there are.

        Topics lie where they did until :meth:`.Client.spread_topic`, new ones on all shards. Refused while a node is
        gone or runs a release that knows nothing of it; shards never get fewer.
        """
        await self._client.ask("PUT", "/v1/cluster/shards", {"shards": shards})

    async def pause_moves(self) -> None:
        """Add no replica anywhere until :meth:`resume_moves`, whoever asked for it; what is being filled is. No
        voter is replaced meanwhile but by :meth:`replace_voter`."""
        await self._client.ask("POST", "/v1/cluster/moves/pause")

    async def resume_moves(self) -> None:
        """Go on with moves that were paused."""
        await self._client.ask("DELETE", "/v1/cluster/moves/pause")

    async def drain(self, node: str) -> None:
        """Have all replicas of a node moved to others; it gets no new ones."""
        await self._client.ask("POST", f"{_node_path(node)}/drain")

    async def undrain(self, node: str) -> None:
        """Let a node have replicas again."""
        await self._client.ask("DELETE", f"{_node_path(node)}/drain")

    async def remove(self, node: str) -> None:
        """Take a drained node out for good; its id is not used again."""
        await self._ask("DELETE", _node_path(node), "unknown_node")

    async def replace_voter(self, old: str, new: str) -> None:
        """Have the node ``new`` take the vote of ``old`` in the control plane, which may be gone. The newcomer is sent
        the control plane's log first; ``voter_change`` of the overview says how far it is."""
        await self._ask("POST", f"{_voter_path(old)}/replace", "replaced", value={"by": new})

    async def keep_voter(self, old: str) -> None:
        """Call off that another node takes the vote of ``old``, as long as that one does not vote yet."""
        await self._ask("DELETE", f"{_voter_path(old)}/replace", "no_change")

    async def _ask(self, method: str, path: str, done: str, **request: Any) -> None:
        """Where an attempt whose answer was lost has done it, the next one is refused for the reason ``done``."""
        deadline = self._client._deadline()
        await self._client._router.ask_any(method, path, deadline=deadline, accept_reasons=(done,), **request)

    async def move(self, shard: int, replicas: Sequence[str]) -> None:
        """Have ``shard`` held by these nodes and no others; the first leads when it can. It is pinned there."""
        await self._client.ask("PUT", f"/v1/cluster/shards/{shard}/replicas", {"replicas": list(replicas)})

    async def cancel_move(self, shard: int) -> None:
        """Leave the replicas of ``shard`` as they are now."""
        await self._client.ask("DELETE", f"/v1/cluster/shards/{shard}/replicas")

    async def transfer(self, shard: int, node: str) -> None:
        """Hand the leadership of ``shard`` to a replica in sync. It is pinned there."""
        await self._client.ask("PUT", f"/v1/cluster/shards/{shard}/leader", {"node": node})

    async def unpin(self, shard: int) -> None:
        """Let the cluster move ``shard``, which people placed, as it sees fit."""
        await self._client.ask("DELETE", f"/v1/cluster/shards/{shard}/pin")

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


def _voter_path(node: str) -> str:
    return f"/v1/cluster/voters/{quoted(node)}"
