"""Held streams: WebSocket and server-sent events. ``docs/push.md`` describes what goes over them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import structlog
from aiohttp import web

from lsmq.errors import (
    GroupModeMismatch,
    InvalidRequest,
    LsmqError,
    OriginNotAllowed,
    TopicReplaced,
    Unavailable,
    UnknownStream,
    UnknownTopic,
)
from lsmq.queue_names import NAMED
from lsmq_node.groups import Mode
from lsmq_node.push import Acknowledge, HeldStream, PushStart, StreamOptions
from lsmq_node.push.options import MAX_CREDIT, MAX_CREDIT_BYTES
from lsmq_node.rights import ResourceKind

from . import push_schemas as schemas
from .asker import Asker
from .codec import Format, answer
from .filters import FILTER_PARAMETERS, filter_of_query
from .group_schemas import MEMBER_ID
from .pages import PAGE, page
from .push_sinks import END_S, PING_S, AnySink, EventSink, WebSocketSink, heed
from .routing import TOPIC, Call, Content, Parameter, Routes
from .schema import integer, text

_log = structlog.get_logger("lsmq.push")

EVENTS_TYPE = "text/event-stream"
JSON_PROTOCOL, MSGPACK_PROTOCOL = "lsmq.json", "lsmq.msgpack"
_MAX_FRAME_BYTES = 512 * 1024  # of the subscriber's: room for the most acknowledgements of one frame
_WRITE_BUFFER_BYTES = 16 * 1024
_SEND_BUFFER_BYTES = 128 * 1024  # The system would take megabytes for a consumer that does not read.
_RETRY_MS = 1_000
_SHOWN = 100
_MODES = {"clustered": Mode.PUSH, "broadcast": Mode.BROADCAST}

ROUTES = Routes("push")
_PATH = "/v1/groups/{group}/push"
_STREAM = Parameter("stream", text(pattern="[0-9a-f]{32}"), "Id of the stream.")
_PARAMETERS = (
    TOPIC,
    Parameter(
        "mode",
        {"enum": list(_MODES), "default": "clustered"},
        "`clustered`: the group's subscribers share the queues. `broadcast`: each is sent everything.",
    ),
    Parameter(
        "subscriber",
        MEMBER_ID,
        "Name of the subscriber: a new stream takes the place of its former one, and in a broadcast group it has "
        "offsets of its own. Without one, a broadcast stream keeps none.",
    ),
    Parameter("start", {"enum": list(PushStart), "default": "earliest"}, "Where to begin when nothing is committed."),
    Parameter("credit", integer(1, MAX_CREDIT, default=1_000), "Most messages not acknowledged."),
    Parameter(
        "credit_bytes",
        integer(1, MAX_CREDIT_BYTES, default=1024 * 1024),
        "Most bytes of them; a larger message comes alone.",
    ),
    Parameter(
        "ack",
        {"enum": list(Acknowledge), "default": "explicit"},
        "`sent`: messages count as handled once the connection has taken them.",
    ),
    Parameter(
        "ack_timeout_ms",
        integer(0, 86_400_000, default=300_000),
        "End the stream when messages wait for an acknowledgement and none has come for so long. 0: never.",
    ),
    Parameter(
        "scope",
        {"enum": ["topic", "node"], "default": "topic"},
        "`topic`: all queues, whichever node leads them. `node`: those that this node leads.",
    ),
    *FILTER_PARAMETERS,
    Parameter(
        "Sec-WebSocket-Protocol",
        {"enum": [JSON_PROTOCOL, MSGPACK_PROTOCOL]},
        f"Of a WebSocket: how frames are written, `{JSON_PROTOCOL}` where nothing is said.",
        header=True,
    ),
)


def _check_protocol(request: web.Request) -> None:
    """Raises ``InvalidRequest`` where subprotocols are asked for, and none of them is ours."""
    asked = ",".join(request.headers.getall("Sec-WebSocket-Protocol", ()))
    if asked and not {name.strip() for name in asked.split(",")} & {JSON_PROTOCOL, MSGPACK_PROTOCOL}:
        raise InvalidRequest(
            f"Sec-WebSocket-Protocol is {asked[:_SHOWN]!r}; ask for {JSON_PROTOCOL} or {MSGPACK_PROTOCOL}, or leave it "
            f"out, which is {JSON_PROTOCOL}",
            field="Sec-WebSocket-Protocol",
        )


@ROUTES.get(
    _PATH,
    Content("A WebSocket, with the subprotocol `lsmq.json` or `lsmq.msgpack`.", status=101),
    Content("Server-sent events.", text(), (EVENTS_TYPE,)),
    parameters=_PARAMETERS,
    errors=(UnknownTopic, TopicReplaced, GroupModeMismatch, OriginNotAllowed),
    is_stream=True,
)
async def push(call: Call) -> web.StreamResponse:
    """Hold a stream of messages.

    docs/push.md describes what goes over it. On a WebSocket errors are told in its last frame.
    """
    request = call.request
    _check_protocol(request)
    websocket = web.WebSocketResponse(
        protocols=(JSON_PROTOCOL, MSGPACK_PROTOCOL),
        autoping=False,
        autoclose=False,
        compress=False,
        timeout=END_S,
        max_msg_size=_MAX_FRAME_BYTES,
        writer_limit=1,
    )
    ready = websocket.can_prepare(request)
    if ready:
        await websocket.prepare(request)
        form = Format.MSGPACK if ready.protocol == MSGPACK_PROTOCOL else Format.JSON
        sink = WebSocketSink(websocket, request, form)
        _bound_buffer(request)
        try:
            stream = await _open(call, sink)
        except LsmqError as error:
            await sink.finish(call.told(error))
        else:
            await sink.finish(await _serve(call, stream, sink))
        return websocket
    if EVENTS_TYPE not in request.headers.get("Accept", ""):
        raise InvalidRequest(f"this is a stream: ask for a WebSocket, or with Accept: {EVENTS_TYPE}", field="Accept")
    response = web.StreamResponse(
        headers={"Content-Type": EVENTS_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    events = EventSink(response)
    refused: LsmqError | None = None
    try:
        stream = await _open(call, events)
    except LsmqError as error:
        if not error.retriable:
            raise
        refused = error  # Browsers come again after an answer of 200, and after no other.
    try:
        await response.prepare(request)
        _bound_buffer(request)
        await response.write(b"retry: %d\n\n" % _RETRY_MS)
    except BaseException:
        if refused is None:
            with suppress(Unavailable):
                await call.node.push.close(stream)
        raise
    await events.finish(refused or await _serve(call, stream, events))
    return response


def _bound_buffer(request: web.Request) -> None:
    """Sending waits for the connection almost at once: what waits in memory is a frame, and little in the system's."""
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        connection = request.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


async def _open(call: Call, sink: AnySink) -> HeldStream:
    """The stream that was asked for; :func:`_serve` closes it."""
    query = call.query
    topic = await call.topic(query["topic"])
    options = StreamOptions(
        _MODES[query["mode"]],
        query["subscriber"],
        PushStart(query["start"]),
        query["credit"],
        query["credit_bytes"],
        Acknowledge(query["ack"]),
        query["ack_timeout_ms"],
        query["scope"] == "topic",
        filter_of_query(query),
    )
    stream = await call.node.push.open(call.path("group"), topic, sink, options, call.asker.token)
    _log.info("stream_opened", stream=stream.id, group=call.path("group"), topic=topic.name, remote=call.request.remote)
    return stream


async def _serve(call: Call, stream: HeldStream, sink: AnySink) -> LsmqError | None:
    """Serve a stream to its end; why it ended, or None when the subscriber went."""
    reason: LsmqError | None = None
    try:
        await sink.send(sink.note("stream", _greeting(stream)))
        reason = await _run(stream, sink, call.asker)
    except ConnectionError:
        pass
    finally:
        code = None if reason is None else reason.code
        _log.info("stream_closed", stream=stream.id, reason=code, unacknowledged=stream.ledger.open_count)
        try:
            await call.node.push.close(stream)
        except Unavailable as error:  # Whoever closes his stream hears by the code that it did not end well.
            reason = reason or error
    return None if reason is None else call.told(reason)


def _greeting(stream: HeldStream) -> dict[str, Any]:
    topic = stream.topic
    return {
        "id": stream.id,
        "group": stream.group,
        "subscriber": stream.options.subscriber,
        "topic": {"name": topic.name, "id": topic.id, "queues": NAMED if topic.named else topic.queues},
        "credit": stream.ledger.credit,
        "credit_bytes": stream.ledger.credit_bytes,
    }


async def _run(stream: HeldStream, sink: AnySink, asker: Asker) -> LsmqError | None:
    """Send and hear until one of the two ends, or the asker may not any more; why, or None when the subscriber went."""
    sending = asyncio.create_task(stream.run())
    ends = (sink.read(stream), _keep_alive(sink), stream.over.wait(), asker.barred())
    others = [asyncio.create_task(work) for work in ends]
    try:
        await asyncio.wait([sending, *others], return_when=asyncio.FIRST_COMPLETED)
        if stream.over.is_set() and not sending.done():
            await asyncio.wait([sending], timeout=END_S)
        for task in (sending, *others):
            if task.done() and isinstance(error := task.exception(), LsmqError):
                return error
            if task.done() and error is not None and not isinstance(error, ConnectionError):
                raise error
        return stream.ended
    finally:
        for task in (sending, *others):
            task.cancel()
        await asyncio.gather(sending, *others, return_exceptions=True)


async def _keep_alive(sink: AnySink) -> None:
    while True:
        await asyncio.sleep(PING_S)
        await sink.ping()


@ROUTES.post(
    f"{_PATH}/{{stream}}",
    Content("Heard; commits follow.", schemas.ACKNOWLEDGED),
    parameters=(_STREAM,),
    request=Content("What is handled.", schemas.ACKNOWLEDGE),
    errors=(UnknownStream, OriginNotAllowed),
)
async def acknowledge_push(call: Call) -> web.StreamResponse:
    """Acknowledge messages of a stream, or change its credit.

    For server-sent events; at the node that holds the stream.
    """
    document = await call.checked_document()
    stream = call.node.push.stream(call.path("stream"), call.path("group"))
    heed(stream, document)
    return answer(call.request, {"unacknowledged": stream.ledger.open_count})


@ROUTES.get(
    "/v1/groups/{group}/streams",
    Content("Each with its share of the queues led here, by id.", schemas.STREAMS),
    parameters=PAGE,
)
async def list_push_streams(call: Call) -> web.StreamResponse:
    """Streams of a group that this node sends to, of those topics that one may describe."""
    now, sees = asyncio.get_running_loop().time(), call.asker.sees
    found, following = page(
        call,
        call.node.push.streams_of(call.path("group")),
        lambda stream: stream.id,
        lambda stream: sees(ResourceKind.TOPIC, stream.topic.name),
    )
    streams = [
        {
            "id": stream.id,
            "subscriber": stream.options.subscriber,
            "topic": stream.topic.name,
            "mode": "broadcast" if stream.options.mode is Mode.BROADCAST else "clustered",
            "queues": len(stream.feed.owned(stream.number)),
            "unacknowledged": stream.ledger.open_count,
            "credit": stream.ledger.credit,
            "silent_ms": round(1000 * (now - stream.progress_at)) if stream.ledger.open_count else 0,
        }
        for stream in found
    ]
    return answer(call.request, {"streams": streams, "next": following})
