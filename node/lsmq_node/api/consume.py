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

from . import schemas
from .codec import answer, answer_format, encode
from .rendering import RENDERED_TIMES, render
from .routing import FROM, Call, Content, Parameter, Routes
from .schema import Limit, integer

_ID = re.compile("[0-9a-f]{32}")

ROUTES = Routes("messages")
_OFFSET = {"anyOf": [schemas.OFFSET, {"enum": ["earliest", "latest"]}], "default": 0}
_MAX = integer(1, Limit("max_messages_per_request"), default=Limit("max_messages_per_request", 100))
_MAX_BYTES = integer(1, Limit("max_response_bytes"), default=Limit("max_response_bytes"))
_WITH_TOPIC = {
    **schemas.MESSAGE,
    "properties": {"topic": schemas.TEXT, **schemas.MESSAGE["properties"]},
    "required": ["topic", *schemas.MESSAGE["required"]],
}


@ROUTES.get(
    "/v1/topics/{topic}/queues/{queue}/messages",
    Content("Messages in offset order; none when the wait was over.", schemas.MESSAGES),
    parameters=(
        FROM,
        Parameter("offset", _OFFSET, "First offset wanted."),
        Parameter("max", _MAX, "At most this many messages."),
        Parameter("max_bytes", _MAX_BYTES, "About this many bytes; one message comes whatever its size."),
        Parameter("wait_ms", schemas.WAIT_MS, "How long to wait for the first message when there is none yet."),
    ),
    errors=(UnknownTopic, UnknownQueue, OffsetOutOfRange, NotLeader, ReadElsewhere, TopicReplaced),
)
async def read_messages(call: Call) -> web.StreamResponse:
    """Read messages of one queue, long polling if asked to."""
    query = call.query
    broker, source = call.broker, ReadFrom(query["from"])
    topic, queue = await call.topic(), call.path("queue")
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


@ROUTES.get(
    "/v1/messages/{id}",
    Content("The message.", _WITH_TOPIC),
    parameters=(FROM,),
    errors=(UnknownMessage, NotLeader, ReadElsewhere),
)
async def get_message(call: Call) -> web.StreamResponse:
    """One message by its id."""
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
