"""Reading messages as JSON or msgpack objects: by queue and offset, or by id."""

from __future__ import annotations

import asyncio
import re

import numpy as np
from aiohttp import web

from lsmq.errors import (
    Forbidden,
    InvalidFilter,
    InvalidQueueName,
    NotLeader,
    OffsetOutOfRange,
    ReadElsewhere,
    TopicReplaced,
    Unavailable,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.record_batch import parse_message_id
from lsmq_node.broker import ReadFrom, ReadRequest
from lsmq_node.broker.names import queue_replaced
from lsmq_node.rights import ResourceKind
from lsmq_node.storage import StoredTopic

from . import schemas
from .codec import answer, answer_format, encode
from .filters import FILTER_PARAMETERS, filter_of_query
from .rendering import RENDERED_TIMES, render
from .routing import FROM, Call, Content, Parameter, Routes
from .schema import Limit, integer

_ID = re.compile("[0-9a-f]{32}")

ROUTES = Routes("messages")
_OFFSET = {"anyOf": [schemas.OFFSET, {"enum": ["earliest", "latest"]}]}
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
        Parameter("offset", _OFFSET, "First offset wanted. Without it 0, or where queues are named the earliest."),
        Parameter("max", _MAX, "At most this many messages."),
        Parameter("max_bytes", _MAX_BYTES, "About this many bytes; one message comes whatever its size."),
        Parameter("wait_ms", schemas.WAIT_MS, "How long to wait for the first message when there is none yet."),
        *FILTER_PARAMETERS,
    ),
    errors=(
        UnknownTopic,
        UnknownQueue,
        InvalidQueueName,
        InvalidFilter,
        OffsetOutOfRange,
        NotLeader,
        ReadElsewhere,
        TopicReplaced,
    ),
)
async def read_messages(call: Call) -> web.StreamResponse:
    """Read messages of one queue, long polling if asked to.

    With `tag`, `type` or `filter` only those are given that it picks; the next offset is behind all that were looked
    at. An answer without messages may then come before the wait is over: go on at its next offset.
    """
    query = call.query
    broker, source = call.broker, ReadFrom(query["from"])
    topic = await call.topic()
    began = asyncio.get_running_loop().time()
    queue, called = await call.queue_number(topic, source, min(query["wait_ms"], broker.config.max_wait_ms))
    waited_ms = int((asyncio.get_running_loop().time() - began) * 1000)
    offset, limit = query["offset"], query["max"]
    if offset is None:
        offset = "earliest" if topic.named else 0
    if isinstance(offset, str):
        bounds = await broker.offsets(topic, np.array((queue,)), source)
        offset = int(bounds[0 if offset == "earliest" else 1][0])
    request = ReadRequest(
        topic=topic,
        queue=queue,
        offset=offset,
        max_records=limit,
        max_bytes=query["max_bytes"],
        wait_ms=max(0, query["wait_ms"] - waited_ms),
        source=source,
        filter=filter_of_query(query),
    )
    try:
        found = await broker.read(request, call.hold)
    except OffsetOutOfRange as error:
        if not isinstance(called, str):
            raise
        earliest, latest = error.details["earliest"], error.details["latest"]
        raise OffsetOutOfRange(
            f"offset {offset} is not in queue {called!r} of topic {topic.name!r}, which has the offsets {earliest} to "
            f"{latest}, the last not included; begin there, or at 'earliest'",
            **{**error.details, "queue": called},
        ) from error
    if not found:
        return answer(call.request, {"messages": [], "next_offset": offset})
    form, own = answer_format(call.request), 0
    if isinstance(called, str):  # While this was held its queue may have been deleted, and the number be another's.
        named = (await broker.names.names_of(topic, (queue,), source)).get(queue)
        if named is None or named.name != called:
            raise queue_replaced(topic, called)
        own = named.earliest

    def pack() -> bytes:
        messages, next_offset = render(found, topic.id, queue, offset, limit, form)
        if topic.named:
            messages = [{**message, "queue": called} for message in messages if message["offset"] >= own]
        return encode({"messages": messages, "next_offset": next_offset}, form)

    call.hold.resize_within(RENDERED_TIMES * found.size_bytes)
    return web.Response(body=await broker.in_readers(pack), headers={"Content-Type": form.value})


def _check_may_read(call: Call, topic: StoredTopic) -> None:
    """Raises ``Forbidden``, without the topic's name: ids can be guessed."""
    try:
        call.asker.check_named(ResourceKind.TOPIC, topic.name)
    except Forbidden:
        raise Forbidden(f"{call.asker.name} may not read the topic of that message", right="read topic") from None


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
    if topic_id >> 30 == 1:  # As ids of delayed messages begin, and those of no topic.
        raise UnknownMessage(
            f"{identity} is the id of a delayed message, which has another once it is in its queue; ask for it with "
            "GET /v1/topics/{topic}/delayed/{id} until then",
            id=identity,
        )
    try:
        topic = await broker.topic_by_id(topic_id)
        _check_may_read(call, topic)
        request = ReadRequest(
            topic=topic, queue=queue, offset=offset, max_records=1, max_bytes=1, source=ReadFrom(call.query["from"])
        )
        found = await broker.read(request, call.hold)
        if not found and not broker.topology.leadership(broker.shard_of(topic, queue)).here:
            raise Unavailable(f"this follower has queue {queue} up to offset {offset} so far", latest=offset)
    except UnknownTopic as error:
        raise UnknownMessage(f"no message has the id {identity}: its topic was deleted", id=identity) from error
    except UnknownQueue as error:
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
    if topic.named:
        named = (await broker.names.names_of(topic, (queue,), request.source)).get(queue)
        if named is None or offset < named.earliest:
            raise UnknownMessage(f"no message has the id {identity}: its queue was deleted", id=identity)
        messages[0]["queue"] = named.name
    return answer(call.request, {"topic": topic.name, **messages[0]})
