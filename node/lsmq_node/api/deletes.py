"""Deleting messages: single ones by tombstones, the beginning of queues by moving where they start."""

from __future__ import annotations

import numpy as np
from aiohttp import web

from lsmq.errors import DiskFull, NotEnoughReplicas, NotLeader, OffsetOutOfRange, UnknownQueue, UnknownTopic
from lsmq_node.broker import DeleteRequest

from . import schemas
from .arrays import integers
from .codec import answer
from .routing import Call, Content, Routes

ROUTES = Routes("messages")


@ROUTES.post(
    "/v1/topics/{topic}/delete",
    Content("Deleted, durably, for every group; their space comes back with merges.", schemas.DELETED),
    request=Content("Which.", schemas.DELETE_MESSAGES),
    errors=(UnknownTopic, UnknownQueue, OffsetOutOfRange, NotLeader, NotEnoughReplicas, DiskFull),
)
async def delete_messages(call: Call) -> web.StreamResponse:
    """Delete messages by queue and offset.

    At the leader of the queues' shards. What was deleted before is no error.
    """
    topic = await call.topic()
    document = await call.checked_document()
    queues = integers(document["queues"], 4, "queues").astype(np.uint32)
    offsets = integers(document["offsets"], 8, "offsets")
    await call.broker.delete(DeleteRequest(topic, queues, offsets, document["before"]))
    return answer(call.request, {"deleted": len(queues)})
