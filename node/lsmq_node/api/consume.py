"""Reading messages as JSON or msgpack objects: by queue and offset, or by id."""

from __future__ import annotations

import re

import numpy as np
from aiohttp import web

from lsmq.errors import (
    NotLeader,
    OffsetOutOfRange,
    ReadElsewhere,
    TopicReplaced,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.record_batch import parse_message_id
from lsmq_node.broker import ReadFrom, ReadRequest
from lsmq_node.config import NodeConfig

from . import schemas
from .codec import answer, answer_format, encode
from .rendering import RENDERED_TIMES, render
from .routing import Call, Content, Parameter, Route, path_parameters

_ID = re.compile("[0-9a-f]{32}")


async def read_queue(call: Call) -> web.StreamResponse:
    """GET /v1/topics/{topic}/queues/{queue}/messages"""
    query = call.query
    broker, source = call.broker, ReadFrom(query["from"])
    topic, queue = await call.topic(call.path("topic")), call.path("queue")
    offset, limit = query["offset"], query["max"]
    if isinstance(offset, str):
        broker.admission.queue(topic, queue)
        bounds = await broker.offsets(topic, np.array((queue,)), source)
        offset = int(bounds[0 if offset == "earliest" else 1][0])
    request = ReadRequest(
        topic=topic,
        queue=queue,
        offset=offset,
        max_records=limit,
        max_bytes=query["max_bytes"],
        wait_ms=query["wait_ms"],
        source=source,
    )
    found = await broker.read(request, call.hold)
    if not found:
        return answer(call.request, {"messages": [], "next_offset": offset})
    form = answer_format(call.request)

    def pack() -> bytes:
        messages, next_offset = render(found, topic.id, queue, offset, limit, form)
        return encode({"messages": messages, "next_offset": next_offset}, form)

    call.hold.resize_within(RENDERED_TIMES * found.size_bytes)
    return web.Response(body=await broker.in_readers(pack), headers={"Content-Type": form.value})


async def get_message(call: Call) -> web.StreamResponse:
    """GET /v1/messages/{id}"""
    broker, identity = call.broker, call.path("id")
    if _ID.fullmatch(identity) is None:
        raise UnknownMessage(f"{identity!r} is not a message id, which has 32 hex digits", id=identity)
    topic_id, queue, offset = parse_message_id(identity)
    try:
        topic = await broker.topic_by_id(topic_id)
        request = ReadRequest(
            topic=topic, queue=queue, offset=offset, max_records=1, max_bytes=1, source=ReadFrom(call.query["from"])
        )
        found = await broker.read(request, call.hold)
    except (UnknownTopic, UnknownQueue) as error:
        raise UnknownMessage(f"no message has the id {identity}: {error.message}", id=identity) from error
    except OffsetOutOfRange as error:
        raise UnknownMessage(
            f"no message has the id {identity}: its queue has the offsets {error.details.get('earliest')} to "
            f"{error.details.get('latest')}, the last not included",
            id=identity,
        ) from error
    form = answer_format(call.request)
    messages, _ = await broker.in_readers(lambda: render(found, topic.id, queue, offset, 1, form))
    if not messages or messages[0]["offset"] != offset:
        raise UnknownMessage(f"no message has the id {identity}: it was deleted or never written", id=identity)
    return answer(call.request, {"topic": topic.name, **messages[0]})


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module."""
    count = config.max_messages_per_request
    size = config.max_response_bytes
    parameters = (
        Parameter(
            "offset",
            "query",
            {"anyOf": [schemas.OFFSET, {"enum": ["earliest", "latest"]}], "default": 0},
            "First offset wanted.",
        ),
        Parameter(
            "max",
            "query",
            {"type": "integer", "minimum": 1, "maximum": count, "default": min(100, count)},
            "At most this many messages.",
        ),
        Parameter(
            "max_bytes",
            "query",
            {"type": "integer", "minimum": 1, "maximum": size, "default": size},
            "About this many bytes; one message comes whatever its size.",
        ),
        Parameter(
            "wait_ms",
            "query",
            {"type": "integer", "minimum": 0, "maximum": config.max_wait_ms, "default": 0},
            "How long to wait for the first message when there is none yet.",
        ),
    )
    by_id = {
        **schemas.MESSAGE,
        "properties": {"topic": schemas.TEXT, **schemas.MESSAGE["properties"]},
        "required": ["topic", *schemas.MESSAGE["required"]],
    }
    return (
        Route(
            "GET",
            "/v1/topics/{topic}/queues/{queue}/messages",
            "readMessages",
            "messages",
            "Read messages of one queue, long polling if asked to",
            read_queue,
            {200: Content("Messages in offset order; none when the wait was over.", schemas.MESSAGES)},
            parameters=(*path_parameters("topic", "queue", "from"), *parameters),
            errors=(UnknownTopic, UnknownQueue, OffsetOutOfRange, NotLeader, ReadElsewhere, TopicReplaced),
        ),
        Route(
            "GET",
            "/v1/messages/{id}",
            "getMessage",
            "messages",
            "One message by its id",
            get_message,
            {200: Content("The message.", by_id)},
            parameters=path_parameters("id", "from"),
            errors=(UnknownMessage, NotLeader, ReadElsewhere),
        ),
    )
