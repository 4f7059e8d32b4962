"""The queues of a topic one by one: listed and declared by name, deleted, trimmed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from aiohttp import web

from lsmq.errors import (
    DiskFull,
    InvalidQueueName,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    TooManyQueues,
    TopicReplaced,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
)
from lsmq_node.broker import DeleteRequest
from lsmq_node.broker.queue_lists import need_names
from lsmq_node.broker.top_queues import MAX_READ, RankedBy
from lsmq_node.storage import StoredTopic

from . import schemas
from .codec import answer
from .pages import PAGE
from .routing import Call, Content, Parameter, Routes
from .schema import flag, integer, list_of, object_of, text

ROUTES = Routes("queues")
_ROW = object_of(
    {
        "name": schemas.TEXT,
        "earliest": schemas.OFFSET,
        "latest": schemas.OFFSET,
        "count": schemas.COUNT,
        "number": schemas.NUMBER,
    },
)
_TOP_ROW = object_of(
    {
        "queue": {**schemas.QUEUE_OR_NAME, "description": "Its name, or its number where it has none."},
        "number": schemas.NUMBER,
        "earliest": schemas.OFFSET,
        "latest": schemas.OFFSET,
        "count": schemas.COUNT,
        "in_per_s": {"type": ["number", "null"], "description": "Messages that came in the last second; by rate only."},
        "oldest_ms": integer(0, description="When its first message was stored; null: it is empty.", null=True),
    }
)
_TOP = object_of(
    {
        "queues": list_of(_TOP_ROW),
        "with_messages": integer(0, description="How many queues of the topic have any."),
        "partial": flag(f"A shard has more than {MAX_READ:,} queues with messages: of these by age, the deepest."),
    }
)
_BY = Parameter(
    "by",
    {"type": "string", "enum": [by.value for by in RankedBy], "default": RankedBy.DEPTH.value},
    "`depth`: those with the most messages; `rate`: those that most messages came to in the last second, for which the "
    "answer waits; `age`: those whose first message is the oldest.",
)
_TOP_LIMIT = Parameter("limit", integer(1, schemas.LISTED, default=100), "At most so many.")
_WRITE_ERRORS = (UnknownTopic, InvalidQueueName, NotLeader, NotEnoughReplicas, TopicReplaced, DiskFull)


def _row(name: str, earliest: int, latest: int, number: int) -> dict[str, Any]:
    return {"name": name, "earliest": earliest, "latest": latest, "count": latest - earliest, "number": int(number)}


@ROUTES.get(
    "/v1/topics/{topic}/queues",
    Content(
        "In order of their names. `count` is what lies between `earliest` and `latest`.",
        object_of({"queues": list_of(_ROW), "next": schemas.NEXT}),
    ),
    parameters=(*PAGE, Parameter("prefix", text(default=""), "Only names that begin so.")),
    errors=(UnknownTopic, TopicReplaced, Unavailable),
)
async def list_queues(call: Call) -> web.StreamResponse:
    """List the queues of a topic with named queues, over all shards."""
    topic, query = await call.topic(), call.query
    need_names(topic)
    rows = await call.broker.queue_lists.page(topic, query["prefix"], query["after"], query["limit"] + 1)
    some = rows[: query["limit"]]
    following = some[-1][0] if len(rows) > len(some) else None
    return answer(call.request, {"queues": [_row(*row) for row in some], "next": following})


@ROUTES.get(
    "/v1/topics/{topic}/top-queues",
    Content("The first ones of all shards.", _TOP),
    parameters=(_BY, _TOP_LIMIT),
    errors=(UnknownTopic, TopicReplaced, Unavailable),
)
async def list_top_queues(call: Call) -> web.StreamResponse:
    """Find the queues with the most messages, the busiest, or those with the oldest.

    By depth and by rate all queues are looked at, which costs some milliseconds for a million.
    """
    topic, query = await call.topic(), call.query
    found = await call.broker.top_queues.rank(topic, RankedBy(query["by"]), query["limit"])
    queues = [{**asdict(each), "count": max(each.latest - each.earliest, 0)} for each in found.queues]
    return answer(call.request, {"queues": queues, "with_messages": found.count, "partial": found.partial})


@ROUTES.put(
    "/v1/topics/{topic}/queues/{queue}",
    Content("It is there, durably.", schemas.BOUNDS, status=201),
    Content("It was there already.", schemas.BOUNDS),
    errors=(*_WRITE_ERRORS, TooManyQueues),
)
async def declare_queue(call: Call) -> web.StreamResponse:
    """Make a queue of a topic with named queues before anything is sent to it."""
    topic = await call.topic()
    need_names(topic)
    name = call.queue_name()
    made = await call.broker.queue_lists.declare(topic, name)
    return answer(call.request, await describe(call, topic, name), 201 if made else 200)


async def describe(call: Call, topic: StoredTopic, name: str) -> dict[str, Any]:
    """A queue by its name, as the API shows it."""
    number = await call.broker.names.number(topic, name)
    (earliest,), (latest,) = await call.broker.offsets(topic, np.array((number,)))
    return {"queue": name, **_row(name, int(earliest), int(latest), number), **own_options(call, topic, name)}


def own_options(call: Call, topic: StoredTopic, queue: int | str) -> dict[str, Any]:
    """What a queue whose shard is led here has of its own, as the API shows it."""
    found = call.broker.own_options.of(topic, queue).to_dict()
    return {"options": found} if found else {}


@ROUTES.patch(
    "/v1/topics/{topic}/queues/{queue}",
    Content("Changed, durably.", schemas.BOUNDS),
    request=Content("The options to change.", schemas.ALTER_QUEUE),
    errors=(*_WRITE_ERRORS, UnknownQueue, TooManyQueues),
)
async def alter_queue(call: Call) -> web.StreamResponse:
    """Have a queue keep more or less than its topic says.

    What is left out stays; null has an option follow the topic again. What has expired by a new limit goes within
    `retention_interval_ms`. Options go with the queue when it is deleted; one with a name is not forgotten while it has
    any.
    """
    topic, changes = await call.topic(), await call.checked_document()
    queue = call.queue(topic)
    await call.broker.own_options.alter(topic, queue, changes)
    if isinstance(queue, str):
        return answer(call.request, await describe(call, topic, queue))
    (earliest,), (latest,) = await call.broker.offsets(topic, np.array((queue,)))
    bounds = {"queue": queue, "earliest": int(earliest), "latest": int(latest)}
    return answer(call.request, bounds | own_options(call, topic, queue))


@ROUTES.delete(
    "/v1/topics/{topic}/queues/{queue}",
    Content("Deleted, durably.", status=204),
    errors=(*_WRITE_ERRORS, UnknownQueue),
)
async def delete_queue(call: Call) -> web.StreamResponse:
    """Delete a queue of a topic with named queues, and its messages.

    One that is made under its name later is another.
    """
    topic = await call.topic()
    need_names(topic)
    await call.broker.queue_lists.delete(topic, call.queue_name())
    return web.Response(status=204)


@ROUTES.post(
    "/v1/topics/{topic}/queues/{queue}/trim",
    Content("Gone, durably, for every group.", schemas.BOUNDS),
    request=Content("Up to where.", object_of({"before": schemas.OFFSET})),
    errors=(*_WRITE_ERRORS, UnknownQueue, OffsetOutOfRange),
)
async def trim_queue(call: Call) -> web.StreamResponse:
    """Delete all messages of a queue below an offset."""
    topic = await call.topic()
    document = await call.checked_document()
    if topic.named:
        name = call.queue_name()
        await call.broker.queue_lists.trim(topic, name, document["before"])
        return answer(call.request, await describe(call, topic, name))
    queue, called = await call.queue_number(topic)
    where = np.array((queue,), np.uint32), np.array((document["before"],), np.int64)
    await call.broker.delete(DeleteRequest(topic, *where, before=True))
    (earliest,), (latest,) = await call.broker.offsets(topic, where[0])
    return answer(call.request, {"queue": called, "earliest": int(earliest), "latest": int(latest)})
