"""Topics: create, describe, delete, and the bounds of their queues."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from operator import attrgetter
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from lsmq.errors import (
    InvalidQueueName,
    InvalidRequest,
    InvalidTopicName,
    NotLeader,
    TooManyQueues,
    TooManyTopics,
    TopicExists,
    TopicReplaced,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.queue_names import NAMED, SLOTS
from lsmq_node.broker import Maker
from lsmq_node.broker.topology import KeysAtSpread
from lsmq_node.rights import Action, ResourceKind
from lsmq_node.storage import StoredTopic, TopicOptions
from lsmq_node.storage.topic_options import MOVING

from . import schemas
from .arrays import parse_ranges
from .codec import answer
from .many_queues import QueueColumns, read_queues
from .pages import PAGE, page
from .queues import own_options
from .routing import QUEUES, Call, Content, Parameter, Routes
from .schema import check, text

#: Each is looked up in its queue's blocks.
MAX_QUEUES_AT_TIME = 100_000
#: On a page of topics: they are made and encoded while nobody else has a turn.
_MOST_TOPICS = 1_000
#: And about so many routes.
_MOST_ROUTES = 10_000
_WILDCARD_HOSTS = ("0.0.0.0", "::", "")

ROUTES = Routes("topics")
_NAMES = Parameter("names", text(default=""), "Only these, with commas between them, as far as they are there.")
_TIME_MS = Parameter("time_ms", schemas.TIME_MS, "Also say the first offset stored at or after this time.")


def topic_object(call: Call, topic: StoredTopic) -> dict[str, Any]:
    """A topic as the API shows it, with its routes."""
    return {
        "name": topic.name,
        "id": topic.id,
        "queues": NAMED if topic.named else topic.queues,
        **({"named": True} if topic.named else {}),
        **({"made_by": topic.options.made_by} if topic.options.made_by is not None else {}),
        "options": {name: value for name, value in topic.options.set().items() if name != "named"},
        "revision": topic.options.revision,
        "created_ms": topic.created_ms,
        "max_message_bytes": call.broker.admission.max_message_bytes(topic),
        "max_batch_bytes": call.broker.config.max_batch_bytes,
        "routes": [
            {
                "first": part.first,
                "end": part.end,
                "shard": part.shard,
                "leader": own_url(call) if led.here else led.url,
                "epoch": led.epoch,
                "followers": list(call.broker.topology.followers(part.shard)),
            }
            for part in call.broker.ranges(topic)
            for led in (call.broker.topology.leadership(part.shard),)
        ],
    }


def own_url(call: Call) -> str:
    """How this caller reaches this node: as configured, or as it is listening, or as the caller did."""
    config = call.broker.config
    if config.advertised_url is None and config.host in _WILDCARD_HOSTS:
        return f"{call.request.scheme}://{call.request.headers.get('Host') or f'{config.host}:{config.port}'}"
    return config.public_url


@ROUTES.put(
    "/v1/topics/{topic}",
    Content("Created, durably.", schemas.TOPIC, status=201),
    Content("It was there already, with the same options.", schemas.TOPIC),
    request=Content("Number of queues and options.", schemas.CREATE_TOPIC),
    errors=(InvalidTopicName, TopicExists, TooManyTopics, TooManyQueues),
)
async def create_topic(call: Call) -> web.StreamResponse:
    """Create a topic."""
    document = await call.checked_document()
    queues = document.pop("queues")
    if queues == NAMED:
        queues, document["named"] = SLOTS, True
    if document.pop("order", None) == "strict":
        if document.get("named"):
            raise InvalidRequest(
                "order is 'strict', which says where keys go; where queues are named each message names its own",
                field="order",
            )
        document["key_queues"] = document.get("key_queues") or queues
    options = TopicOptions.from_dict(document)
    _check_may_move(call, document)
    topic, created = await call.broker.create_topic(call.path("topic"), queues, options, Maker.asking())
    return answer(call.request, topic_object(call, topic), 201 if created else 200)


def _check_may_move(call: Call, options: dict[str, Any]) -> None:
    """Whoever has messages moved to a topic must be one who may write to it. Raises ``Forbidden``."""
    for option in MOVING:
        if options.get(option) is not None:
            call.asker.check(ResourceKind.TOPIC, options[option], Action.WRITE)


@ROUTES.put(
    "/v1/topics/{topic}/queues",
    Content("It has them, durably.", schemas.TOPIC),
    request=Content("How many it is to have.", schemas.GROW_TOPIC),
    errors=(UnknownTopic, TopicReplaced, TooManyQueues),
)
async def grow_topic(call: Call) -> web.StreamResponse:
    """Give a topic more queues."""
    document = await call.checked_document()
    topic = await call.broker.grow_topic((await call.topic()).name, document["queues"])
    return answer(call.request, topic_object(call, topic))


@ROUTES.post(
    "/v1/topics/{topic}/spread",
    Content("It is spread, durably.", schemas.TOPIC),
    request=Content("What becomes of keys.", schemas.SPREAD_TOPIC),
    errors=(UnknownTopic, TopicReplaced, TooManyQueues),
)
async def spread_topic(call: Call) -> web.StreamResponse:
    """Have a topic use shards that came after it.

    It gets new queues there, as many on each as it has on those it lies on. Queues that there are stay where they are,
    with all messages and offsets. The same again does nothing.
    """
    document = await call.checked_document()
    topic = await call.broker.spread_topic((await call.topic()).name, KeysAtSpread(document["keys"]))
    return answer(call.request, topic_object(call, topic))


@ROUTES.patch(
    "/v1/topics/{topic}",
    Content("Changed, durably; leaders obey it within a moment.", schemas.TOPIC),
    request=Content("The options to change.", schemas.ALTER_TOPIC),
    errors=(UnknownTopic, TopicReplaced, InvalidTopicName),
)
async def alter_topic(call: Call) -> web.StreamResponse:
    """Change options of a topic.

    What is left out stays; null takes an option away. What has expired by a new limit goes within
    `retention_interval_ms`.
    """
    document = await call.document()
    for field in schemas.UNALTERABLE.keys() & document.keys() if isinstance(document, dict) else ():
        raise InvalidRequest(f"{field} of a topic cannot be changed here: {schemas.UNALTERABLE[field]}", field=field)
    check(document, call.schema, "")
    _check_may_move(call, document)
    topic = await call.broker.alter_topic((await call.topic()).name, document)
    return answer(call.request, topic_object(call, topic))


@ROUTES.get("/v1/topics", Content("By name.", schemas.TOPICS), parameters=(*PAGE, _NAMES))
async def list_topics(call: Call) -> web.StreamResponse:
    """All topics, or some by name.

    A page has up to 1,000, and with many shards fewer. Those asked for by name are shown as this node knows them.
    """
    sees, names = call.asker.sees, call.query["names"]
    if names:
        found = map(call.broker.topology.topics.find, set(names.split(",")))
        known: Iterable[StoredTopic] = [topic for topic in found if topic is not None]
    else:
        known = await call.broker.topics()
    most = min(_MOST_TOPICS, max(1, _MOST_ROUTES // call.broker.topology.shard_count))
    topics, following = page(call, known, attrgetter("name"), lambda topic: sees(ResourceKind.TOPIC, topic.name), most)
    return answer(call.request, {"topics": [topic_object(call, topic) for topic in topics], "next": following})


@ROUTES.get("/v1/topics/{topic}", Content("The topic.", schemas.TOPIC), errors=(UnknownTopic,))
async def get_topic(call: Call) -> web.StreamResponse:
    """One topic, with its routes."""
    return answer(call.request, topic_object(call, await call.broker.topic(call.path("topic"))))


@ROUTES.get(
    "/v1/topics/{topic}/usage",
    Content("Over all shards.", schemas.USAGE),
    parameters=(Parameter("groups", schemas.COUNT, "List at most so many groups. Left out: all of them."),),
    errors=(UnknownTopic, TopicReplaced, NotLeader, Unavailable),
)
async def get_topic_usage(call: Call) -> web.StreamResponse:
    """How much a topic holds, and what has gone of it by itself."""
    found = await call.node.limits.usage(await call.topic())
    groups = [group for group in found.groups if call.asker.sees(ResourceKind.GROUP, group)]
    most = call.query["groups"]
    usage = {"messages": found.messages, "bytes": found.size_bytes, "dropped": found.gone, "refused": found.refused}
    listed = sorted(groups) if most is None else nsmallest(most, groups)
    return answer(call.request, {**usage, "groups": listed, "group_count": len(groups)})


@ROUTES.delete("/v1/topics/{topic}", Content("Deleted, durably.", status=204), errors=(UnknownTopic, TopicReplaced))
async def delete_topic(call: Call) -> web.StreamResponse:
    """Delete a topic and its messages."""
    topic = await call.topic()
    await call.broker.delete_topic(topic.name, topic.id)
    return web.Response(status=204)


@ROUTES.get(
    "/v1/topics/{topic}/queues/{queue}",
    Content("`earliest` is the first offset kept, `latest` the next to be written.", schemas.BOUNDS),
    parameters=(_TIME_MS,),
    errors=(UnknownTopic, UnknownQueue, InvalidQueueName, NotLeader, TopicReplaced),
)
async def get_queue(call: Call) -> web.StreamResponse:
    """Bounds of one queue."""
    query = call.query
    topic = await call.topic()
    queue, called = await call.queue_number(topic)
    (earliest,), (latest,) = await call.broker.offsets(topic, np.array((queue,)))
    bounds = {"queue": called, "earliest": int(earliest), "latest": int(latest)}
    if topic.named:
        bounds |= {"name": called, "count": int(latest - earliest), "number": queue}
    bounds |= own_options(call, topic, called)
    if query["time_ms"] is not None:
        (found,) = await call.broker.offsets_for_time(topic, np.array((queue,)), query["time_ms"])
        bounds["offset"] = int(found)
    return answer(call.request, bounds)


@ROUTES.get(
    "/v1/topics/{topic}/offsets",
    Content("Lists of one length, in the order asked for.", schemas.OFFSETS),
    parameters=(QUEUES, _TIME_MS),
    errors=(UnknownTopic, NotLeader, TopicReplaced),
)
async def get_offsets(call: Call) -> web.StreamResponse:
    """Bounds of many queues, whichever nodes lead them."""
    query = call.query
    topic = await call.topic()
    queues = parse_ranges(query["queues"] or "", topic, call.broker.admission)
    if query["time_ms"] is not None and len(queues) > MAX_QUEUES_AT_TIME:
        raise InvalidRequest(
            f"queues names {len(queues)} queues, the limit with time_ms is {MAX_QUEUES_AT_TIME} a request; ask in "
            "parts",
            field="queues",
            limit=MAX_QUEUES_AT_TIME,
        )

    async def read(some: NDArray[np.int64]) -> QueueColumns:
        earliest, latest = await call.broker.offsets(topic, some)
        columns = {"queues": some, "earliest": earliest, "latest": latest}
        if query["time_ms"] is not None:
            columns["at_time"] = await call.broker.offsets_for_time(topic, some, query["time_ms"])
        return columns

    return await call.answer_columns(await read_queues(call, topic, queues, read))
