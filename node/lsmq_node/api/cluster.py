"""The cluster as operators see it and change it: nodes, shards, replicas, leaders.

Every change is a command to the control plane, which any node takes. What takes long (moving replicas) goes on by
itself after the answer; ``GET /v1/cluster`` shows how far it is.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lsmq import runtime

from . import cluster_schemas as schemas
from .codec import answer
from .routing import Call, Content, Parameter, Routes
from .schema import integer, text
from .topics import own_url

_NODE = Parameter("node", text(), "Id of the node.")
_SHARD = Parameter("shard", integer(0, 1_023), "Number of the shard.")

ROUTES = Routes("cluster")
_DONE = Content("Agreed; `version` is that of the cluster's state with it.", schemas.AGREED)


@ROUTES.get(
    "/v1/cluster", Content("As far as this node knows; `version` says which of two answers is newer.", schemas.CLUSTER)
)
async def get_cluster(call: Call) -> web.StreamResponse:
    """Nodes and shards, with leaders and in-sync sets."""
    return answer(call.request, call.broker.topology.overview(own_url(call)))


@ROUTES.get("/v1/cluster/plan", Content("Made by the leader of the control plane now.", schemas.PLAN))
async def get_plan(call: Call) -> web.StreamResponse:
    """What the cluster is about to move by itself, and why.

    Replicas of nodes that are away for too long, and what is uneven. A plan is made anew whenever something changed;
    nothing of it is agreed on before it begins.
    """
    return answer(call.request, await call.broker.topology.plan())


@ROUTES.get(
    "/v1/cluster/growth",
    Content("Made by the leader of the control plane now.", schemas.GROWTH),
    parameters=(Parameter("shards", integer(1, 1_024), "How many shards there would be in all.", required=True),),
)
async def get_growth(call: Call) -> web.StreamResponse:
    """Where new shards would lie, if there were to be more."""
    return answer(call.request, await call.broker.topology.plan_growth(call.query["shards"]))


@ROUTES.put("/v1/cluster/shards", _DONE, request=Content("How many there are to be in all.", schemas.GROW_SHARDS))
async def grow_shards(call: Call) -> web.StreamResponse:
    """Have more shards, in a cluster or a node of its own.

    What there is stays where it is: topics lie on the shards that they were made on until they are spread. New topics
    lie on all. Refused while a node may run a release that knows nothing of it. The same again does nothing.
    """
    document = await call.checked_document()
    return answer(call.request, await call.broker.topology.grow_shards(document["shards"]))


async def _administer(call: Call, command: dict[str, Any]) -> web.StreamResponse:
    result = await call.broker.topology.administer(command)
    return answer(call.request, result)


@ROUTES.post("/v1/cluster/moves/pause", _DONE)
async def pause_moves(call: Call) -> web.StreamResponse:
    """Add no replica anywhere until moves are resumed, whoever asked for it.

    Holds for the whole cluster, whoever leads it. Replicas that are being filled are filled, and those in whose place
    they come then go.
    """
    return await _administer(call, {"op": "pause_moves"})


@ROUTES.delete("/v1/cluster/moves/pause", _DONE)
async def resume_moves(call: Call) -> web.StreamResponse:
    """Go on with moves that were paused."""
    return await _administer(call, {"op": "resume_moves"})


@ROUTES.post("/v1/cluster/nodes/{node}/drain", _DONE, parameters=(_NODE,))
async def drain_node(call: Call) -> web.StreamResponse:
    """Move all replicas away from a node.

    Goes on by itself, shard after shard, without a pause of writes longer than an election.
    """
    return await _administer(call, {"op": "drain_node", "node": call.path("node")})


@ROUTES.delete("/v1/cluster/nodes/{node}/drain", _DONE, parameters=(_NODE,))
async def undrain_node(call: Call) -> web.StreamResponse:
    """Let a drained node have replicas again."""
    return await _administer(call, {"op": "undrain_node", "node": call.path("node")})


@ROUTES.delete("/v1/cluster/nodes/{node}", _DONE, parameters=(_NODE,))
async def remove_node(call: Call) -> web.StreamResponse:
    """Take a drained node out of the cluster for good."""
    return await _administer(call, {"op": "remove_node", "node": call.path("node")})


@ROUTES.post(
    "/v1/cluster/voters/{node}/replace",
    _DONE,
    parameters=(_NODE,),
    request=Content("The node that is to vote in its place.", schemas.SUCCESSOR),
)
async def replace_voter(call: Call) -> web.StreamResponse:
    """Have another node take a voter's place in the control plane.

    The newcomer is sent the log first, then it votes, then the old one goes; one that is not heard goes before.
    `voter_change` of the cluster shows how far it is. One change at a time.
    """
    document = await call.checked_document()
    return await _administer(call, {"op": "replace_voter", "node": call.path("node"), "by": document["by"]})


@ROUTES.delete("/v1/cluster/voters/{node}/replace", _DONE, parameters=(_NODE,))
async def keep_voter(call: Call) -> web.StreamResponse:
    """Call off that another node takes a voter's place, as long as that one does not vote yet."""
    return await _administer(call, {"op": "keep_voter", "node": call.path("node")})


@ROUTES.put(
    "/v1/cluster/shards/{shard}/replicas",
    _DONE,
    parameters=(_SHARD,),
    request=Content("Ids of nodes; the first leads when it can.", schemas.REPLICAS),
)
async def move_replicas(call: Call) -> web.StreamResponse:
    """Say which nodes are to hold a shard.

    New replicas are filled first, old ones dropped when all new ones are in sync. The shard is pinned: the cluster
    does not move it by itself any more, but away from nodes that are gone or draining.
    """
    document = await call.checked_document()
    command = {"op": "set_target", "shard": call.path("shard"), "replicas": document["replicas"]}
    return await _administer(call, {**command, "pinned": True})


@ROUTES.delete("/v1/cluster/shards/{shard}/pin", _DONE, parameters=(_SHARD,))
async def unpin_shard(call: Call) -> web.StreamResponse:
    """Let the cluster move a shard that people placed."""
    return await _administer(call, {"op": "unpin", "shard": call.path("shard")})


@ROUTES.delete("/v1/cluster/shards/{shard}/replicas", _DONE, parameters=(_SHARD,))
async def cancel_move(call: Call) -> web.StreamResponse:
    """Give up moving a shard's replicas."""
    return await _administer(call, {"op": "cancel_target", "shard": call.path("shard")})


@ROUTES.put(
    "/v1/cluster/shards/{shard}/leader",
    _DONE,
    parameters=(_SHARD,),
    request=Content("The replica in sync that is to lead.", schemas.LEADER),
)
async def transfer_leader(call: Call) -> web.StreamResponse:
    """Hand the leadership of a shard over. The shard is pinned, as by a move."""
    document = await call.checked_document()
    command = {"op": "transfer_leader", "shard": call.path("shard"), "candidate": document["node"]}
    return await _administer(call, {**command, "pinned": True})


@ROUTES.post(
    "/v1/cluster/shards/{shard}/revive",
    _DONE,
    parameters=(_SHARD,),
    request=Content("The replica to go on with.", schemas.REVIVAL),
)
async def revive_shard(call: Call) -> web.StreamResponse:
    """Go on with what one replica has, and give up what others may have beyond.

    For a shard that nobody can lead any more, since those who have all acknowledged messages are gone for good:
    `problem` of the shard names them. Unclean: acknowledged messages may be lost, replicas that have more are set
    aside and filled from the one named. Refused while the shard is led.
    """
    document = await call.checked_document()
    command = {"op": "revive", "shard": call.path("shard"), "node": document["node"], "accept_loss": True}
    return await _administer(call, {**command, "at_ms": runtime.wall_ms()})
