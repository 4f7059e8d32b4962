"""Deleting messages: single ones by tombstones, the beginning of queues by moving where they start."""

from __future__ import annotations

import numpy as np
from aiohttp import web

from lsmq.errors import (
    DiskFull,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    UnknownQueue,
    UnknownTopic,
)
from lsmq_node.broker import DeleteRequest
from lsmq_node.config import NodeConfig

from . import schemas
from .arrays import integers
from .codec import answer
from .routing import Call, Content, Route, path_parameters
from .schema import Schema
from .schemas import _object, _packed


def _schema(config: NodeConfig) -> Schema:
    limit = config.max_messages_per_request
    return _object(
        {
            "queues": _packed(schemas.QUEUE, "u32 little-endian, one after another", limit),
            "offsets": _packed(schemas.OFFSET, "i64 little-endian, as many as queues", limit),
            "before": {
                "type": "boolean",
                "default": False,
                "description": "Delete all messages of each queue below its offset, instead of the one there. Cheaper.",
            },
        },
        required=("queues", "offsets"),
    )


async def delete_messages(call: Call) -> web.StreamResponse:
    """POST /v1/topics/{topic}/delete"""
    topic = await call.topic(call.path("topic"))
    document = await call.checked_document()
    queues = integers(document["queues"], 4, "queues").astype(np.uint32)
    offsets = integers(document["offsets"], 8, "offsets")
    await call.broker.delete(DeleteRequest(topic, queues, offsets, document["before"]))
    return answer(call.request, {"deleted": len(queues)})


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module."""
    return (
        Route(
            "POST",
            "/v1/topics/{topic}/delete",
            "deleteMessages",
            "messages",
            "Delete messages by queue and offset",
            delete_messages,
            {
                200: Content(
                    "Deleted, durably, for every group; their space comes back with merges.",
                    _object({"deleted": schemas.COUNT}),
                )
            },
            description="At the leader of the queues' shards. What was deleted before is no error.",
            parameters=path_parameters("topic"),
            request=Content("Which.", _schema(config)),
            errors=(UnknownTopic, UnknownQueue, OffsetOutOfRange, NotLeader, NotEnoughReplicas, DiskFull),
        ),
    )
