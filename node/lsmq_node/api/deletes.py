"""Deleting messages: single ones by tombstones, the beginning of queues, or of all of a topic, by moving where they
start."""

from __future__ import annotations

from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from lsmq.errors import (
    DiskFull,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    TopicReplaced,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.topics import parse_ranges
from lsmq_node.broker import DeleteRequest, TrimRequest
from lsmq_node.storage import StoredTopic

from . import schemas
from .arrays import integers
from .codec import answer
from .many_queues import write_queues
from .routing import Call, Content, Routes

ROUTES = Routes("messages")


@ROUTES.post(
    "/v1/topics/{topic}/delete",
    Content("Deleted, durably, for every group; their space comes back with merges.", schemas.DELETED),
    request=Content("Which.", schemas.DELETE_MESSAGES),
    errors=(UnknownTopic, TopicReplaced, UnknownQueue, OffsetOutOfRange, NotLeader, NotEnoughReplicas, DiskFull),
)
async def delete_messages(call: Call) -> web.StreamResponse:
    """Delete messages by queue and offset.

    Of each shard all of them, or none. What was deleted before is no error.
    """
    topic = await call.topic()
    document = await call.checked_document()
    queues = integers(document["queues"], 4, "queues").astype(np.uint32)
    offsets = integers(document["offsets"], 8, "offsets")
    call.broker.admission.delete(DeleteRequest(topic, queues, offsets))

    async def delete(some: NDArray[np.uint32], at: NDArray[np.int64]) -> None:
        await call.broker.delete(DeleteRequest(topic, some, at, document["before"]))

    await write_queues(call, topic, document, (queues, offsets), delete)
    return answer(call.request, {"deleted": len(queues)})


@ROUTES.post(
    "/v1/topics/{topic}/trim",
    Content("Gone, durably, for every group.", schemas.TRIMMED),
    request=Content("Up to where.", schemas.TRIM),
    errors=(UnknownTopic, TopicReplaced, UnknownQueue, OffsetOutOfRange, NotEnoughReplicas, DiskFull, Unavailable),
)
async def trim_topic(call: Call) -> web.StreamResponse:
    """Delete the beginning of queues.

    At any node, for all shards. A large topic takes several requests: until `next` is null.
    """
    topic, document = await call.topic(), await call.checked_document()
    before_ms, offset = document.get("before_ms"), document.get("offset")
    if (before_ms is None) == (offset is None):
        raise InvalidRequest(
            "say before_ms or offset, one of the two; to delete all there is, purge", field="before_ms"
        )
    if offset is not None and document.get("queues") is None:
        raise InvalidRequest("offset needs queues: an offset counts within a queue", field="queues")
    return await _trim(call, topic, document, offset, before_ms)


@ROUTES.post(
    "/v1/topics/{topic}/purge",
    Content("Gone, durably, for every group.", schemas.TRIMMED),
    request=Content("Of which queues.", schemas.PURGE),
    errors=(UnknownTopic, TopicReplaced, UnknownQueue, NotEnoughReplicas, DiskFull, Unavailable),
)
async def purge_topic(call: Call) -> web.StreamResponse:
    """Delete all messages that are there now; the topic, its offsets and its groups stay.

    At any node, for all shards. A large topic takes several requests: until `next` is null.
    """
    topic, document = await call.topic(), await call.checked_document()
    return await _trim(call, topic, document, None, None)


async def _trim(
    call: Call, topic: StoredTopic, document: dict[str, Any], offset: int | None, before_ms: int | None
) -> web.StreamResponse:
    shard, row = (document.get("after") or "0:0").split(":")
    runs = _runs(document.get("queues"), topic)
    found = await call.node.trims.trim(TrimRequest(topic, offset, before_ms, runs, (int(shard), int(row))))
    following = None if found.following is None else "{}:{}".format(*found.following)
    return answer(call.request, {"messages": found.messages, "next": following})


def _runs(text: str | None, topic: StoredTopic) -> tuple[tuple[int, int], ...]:
    """The ranges of queues of ``0-99,200``, sorted and apart."""
    if text is None:
        return ()
    if topic.named:
        raise InvalidRequest(
            f"queues is given, and topic {topic.name!r} has named queues; trim one by its name with "
            "POST /v1/topics/{topic}/queues/{queue}/trim, or leave it out",
            field="queues",
        )
    try:
        ranges = sorted((part.start, part.stop) for part in parse_ranges(text))
    except ValueError as error:
        raise InvalidRequest(f"queues: {error}", field="queues") from error
    runs: list[tuple[int, int]] = []
    for first, end in ranges:
        if end > topic.queues:
            raise UnknownQueue(
                f"topic {topic.name!r} has no queue {end - 1}; its queues are 0 to {topic.queues - 1}",
                topic=topic.name,
                queue=end - 1,
                queues=topic.queues,
            )
        if runs and first <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((first, end))
    return tuple(runs)
