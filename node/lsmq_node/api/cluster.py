"""The cluster as operators see it and change it: nodes, shards, replicas, leaders.

Every change is a command to the control plane, which any node takes. What takes long (moving replicas) goes on by
itself after the answer; ``GET /v1/cluster`` shows how far it is.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lsmq import runtime
from lsmq_node.config import NodeConfig

from . import schemas
from .codec import answer
from .routing import Call, Content, Parameter, Route
from .topics import own_url

_NODE = Parameter("node", "path", {"type": "string"}, "Id of the node.")
_SHARD = Parameter("shard", "path", {"type": "integer", "minimum": 0, "maximum": 1_023}, "Number of the shard.")


async def get_cluster(call: Call) -> web.StreamResponse:
    """GET /v1/cluster"""
    return answer(call.request, call.broker.topology.overview(own_url(call)))


async def _administer(call: Call, command: dict[str, Any]) -> web.StreamResponse:
    result = await call.broker.topology.administer(command)
    return answer(call.request, result)


async def drain_node(call: Call) -> web.StreamResponse:
    """POST /v1/cluster/nodes/{node}/drain"""
    return await _administer(call, {"op": "drain_node", "node": call.path("node")})


async def undrain_node(call: Call) -> web.StreamResponse:
    """DELETE /v1/cluster/nodes/{node}/drain"""
    return await _administer(call, {"op": "undrain_node", "node": call.path("node")})


async def remove_node(call: Call) -> web.StreamResponse:
    """DELETE /v1/cluster/nodes/{node}"""
    return await _administer(call, {"op": "remove_node", "node": call.path("node")})


async def move_replicas(call: Call) -> web.StreamResponse:
    """PUT /v1/cluster/shards/{shard}/replicas"""
    document = await call.checked_document()
    return await _administer(call, {"op": "set_target", "shard": call.path("shard"), "replicas": document["replicas"]})


async def cancel_move(call: Call) -> web.StreamResponse:
    """DELETE /v1/cluster/shards/{shard}/replicas"""
    return await _administer(call, {"op": "cancel_target", "shard": call.path("shard")})


async def transfer_leader(call: Call) -> web.StreamResponse:
    """PUT /v1/cluster/shards/{shard}/leader"""
    document = await call.checked_document()
    return await _administer(
        call, {"op": "transfer_leader", "shard": call.path("shard"), "candidate": document["node"]}
    )


async def revive_shard(call: Call) -> web.StreamResponse:
    """POST /v1/cluster/shards/{shard}/revive"""
    document = await call.checked_document()
    command = {"op": "revive", "shard": call.path("shard"), "node": document["node"], "accept_loss": True}
    return await _administer(call, {**command, "at_ms": runtime.wall_ms()})


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module."""
    done = {200: Content("Agreed; `version` is that of the cluster's state with it.", schemas.AGREED)}
    return (
        Route(
            "GET",
            "/v1/cluster",
            "getCluster",
            "cluster",
            "Nodes and shards, with leaders and in-sync sets",
            get_cluster,
            {200: Content("As far as this node knows; `version` says which of two answers is newer.", schemas.CLUSTER)},
        ),
        Route(
            "POST",
            "/v1/cluster/nodes/{node}/drain",
            "drainNode",
            "cluster",
            "Move all replicas away from a node",
            drain_node,
            done,
            description="Goes on by itself, shard after shard, without a pause of writes longer than an election.",
            parameters=(_NODE,),
        ),
        Route(
            "DELETE",
            "/v1/cluster/nodes/{node}/drain",
            "undrainNode",
            "cluster",
            "Let a drained node have replicas again",
            undrain_node,
            done,
            parameters=(_NODE,),
        ),
        Route(
            "DELETE",
            "/v1/cluster/nodes/{node}",
            "removeNode",
            "cluster",
            "Take a drained node out of the cluster for good",
            remove_node,
            done,
            parameters=(_NODE,),
        ),
        Route(
            "PUT",
            "/v1/cluster/shards/{shard}/replicas",
            "moveReplicas",
            "cluster",
            "Say which nodes are to hold a shard",
            move_replicas,
            done,
            description="New replicas are filled first, old ones dropped when all new ones are in sync.",
            parameters=(_SHARD,),
            request=Content("Ids of nodes; the first leads when it can.", schemas.REPLICAS),
        ),
        Route(
            "DELETE",
            "/v1/cluster/shards/{shard}/replicas",
            "cancelMove",
            "cluster",
            "Give up moving a shard's replicas",
            cancel_move,
            done,
            parameters=(_SHARD,),
        ),
        Route(
            "POST",
            "/v1/cluster/shards/{shard}/revive",
            "reviveShard",
            "cluster",
            "Go on with what one replica has, and give up what others may have beyond",
            revive_shard,
            done,
            description="For a shard that nobody can lead any more, since those who have all acknowledged messages are "
            "gone for good: `problem` of the shard names them. Unclean: acknowledged messages may be lost, replicas "
            "that have more are set aside and filled from the one named. Refused while the shard is led.",
            parameters=(_SHARD,),
            request=Content("The replica to go on with.", schemas.REVIVAL),
        ),
        Route(
            "PUT",
            "/v1/cluster/shards/{shard}/leader",
            "transferLeader",
            "cluster",
            "Hand the leadership of a shard over",
            transfer_leader,
            done,
            parameters=(_SHARD,),
            request=Content("The replica in sync that is to lead.", schemas.LEADER),
        ),
    )
