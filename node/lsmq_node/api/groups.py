"""Consumer groups: their committed offsets, which are as durable as messages."""

from __future__ import annotations

from aiohttp import web

from lsmq.errors import NotEnoughReplicas, NotLeader, TopicReplaced, UnknownQueue, UnknownTopic
from lsmq_node.config import NodeConfig

from . import schemas
from .arrays import parse_ranges, queue_offsets
from .codec import answer
from .routing import Call, Content, Parameter, Route, path_parameters


async def commit_offsets(call: Call) -> web.StreamResponse:
    """POST /v1/groups/{group}/offsets"""
    group = call.path("group")
    document = await call.checked_document()
    topic = await call.topic(document["topic"])
    queues, offsets = queue_offsets(document, call.broker.config.max_queues_per_request)
    reset = document.get("reset", False)
    await call.broker.commit_offsets(group, topic, queues, offsets, reset=reset)
    return answer(call.request, {"committed": len(queues)})


async def get_offsets(call: Call) -> web.StreamResponse:
    """GET /v1/groups/{group}/offsets"""
    query = call.query
    group, topic = call.path("group"), await call.topic(query["topic"])
    limit = call.broker.config.max_queues_per_request
    wanted = None if query["queues"] is None else parse_ranges(query["queues"], topic, limit)
    queues, offsets = await call.broker.committed_offsets(group, topic, wanted)
    return answer(call.request, {"queues": queues.tolist(), "offsets": offsets.tolist()})


async def list_groups(call: Call) -> web.StreamResponse:
    """GET /v1/groups"""
    return answer(call.request, {"groups": call.broker.groups()})


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module."""
    group = path_parameters("group")
    topic = Parameter("topic", "query", {"type": "string"}, "Name of the topic.", required=True)
    queues = Parameter("queues", "query", {"type": "string"}, "Such as `0-99,200`. Without it, all queues.")
    return (
        Route(
            "GET",
            "/v1/groups",
            "listGroups",
            "groups",
            "All consumer groups with committed offsets",
            list_groups,
            {200: Content("Names.", schemas.GROUPS)},
        ),
        Route(
            "POST",
            "/v1/groups/{group}/offsets",
            "commitOffsets",
            "groups",
            "Commit offsets of a group",
            commit_offsets,
            {200: Content("Stored, as durably as messages.", schemas.COMMIT_ANSWER)},
            parameters=group,
            request=Content("The next offset to read of each queue.", schemas.commit(config)),
            errors=(UnknownTopic, UnknownQueue, NotLeader, NotEnoughReplicas, TopicReplaced),
        ),
        Route(
            "GET",
            "/v1/groups/{group}/offsets",
            "getCommittedOffsets",
            "groups",
            "Committed offsets of a group",
            get_offsets,
            {200: Content("Those queues that have one.", schemas.COMMITTED)},
            parameters=(*group, topic, queues),
            errors=(UnknownTopic, NotLeader, TopicReplaced),
        ),
    )
