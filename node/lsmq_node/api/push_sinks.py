"""The connections of held streams: WebSocket and server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from lsmq.errors import LsmqError, ShuttingDown, SlowConsumer
from lsmq_node.broker import Fetched
from lsmq_node.push import HeldStream
from lsmq_node.push.held import Packed, Spans

from . import push_schemas as schemas
from .codec import Format, decode, encode
from .rendering import render_spans
from .schema import check

NamesByNumber = Mapping[int, str] | None

PING_S = 20.0
SILENT_S = 60.0
END_S = 2.0


class WebSocketSink:
    """Frames of JSON text or msgpack."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request, form: Format) -> None:
        self._socket = socket
        self._request = request
        self.form = form
        self._kind = WSMsgType.BINARY if form is Format.MSGPACK else WSMsgType.TEXT
        self._heard_at = asyncio.get_running_loop().time()

    @property
    def binary(self) -> bool:
        return self.form is Format.MSGPACK

    def pack(self, found: Fetched, topic_id: int, spans: Spans, names: NamesByNumber) -> Packed:
        return _pack(found, topic_id, spans, names, self.form, self.note)

    def note(self, kind: str, value: Any) -> bytes:
        return encode({kind: value}, self.form)

    async def send(self, frame: bytes) -> None:
        await self._socket.send_frame(frame, self._kind)

    async def ping(self) -> None:
        if asyncio.get_running_loop().time() - self._heard_at > SILENT_S:
            raise SlowConsumer(f"nothing was heard for {SILENT_S:g} s, not even an answer to a ping")
        await self._socket.ping()

    async def read(self, stream: HeldStream) -> None:
        """Hear the subscriber until it is gone."""
        while True:
            frame = await self._socket.receive()
            self._heard_at = asyncio.get_running_loop().time()
            match frame.type:
                case WSMsgType.TEXT | WSMsgType.BINARY:
                    form = Format.MSGPACK if frame.type is WSMsgType.BINARY else Format.JSON
                    body = frame.data if isinstance(frame.data, bytes) else frame.data.encode()
                    heed(stream, decode(body, form))
                case WSMsgType.PING:
                    await self._socket.pong(frame.data)
                case WSMsgType.PONG:
                    pass
                case _:
                    return

    async def finish(self, error: LsmqError | None) -> None:
        """Say why it ends, and end it."""
        try:
            async with asyncio.timeout(END_S):
                if error is None:
                    await self._socket.close()
                    return
                await self.send(self.note("end", error.to_dict()))
                code = WSCloseCode.TRY_AGAIN_LATER if error.retriable else WSCloseCode.POLICY_VIOLATION
                if isinstance(error, ShuttingDown):
                    code = WSCloseCode.GOING_AWAY
                await self._socket.close(code=code, message=error.code.encode())
        except (TimeoutError, ConnectionError):
            pass
        if self._request.transport is not None and not self._socket.closed:
            self._request.transport.abort()


class EventSink:
    """Server-sent events, in JSON. Acknowledgements come in requests of their own."""

    binary = False

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    def pack(self, found: Fetched, topic_id: int, spans: Spans, names: NamesByNumber) -> Packed:
        return _pack(found, topic_id, spans, names, Format.JSON, self.note)

    def note(self, kind: str, value: Any) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(value, Format.JSON))

    async def send(self, frame: bytes) -> None:
        await self._response.write(frame)

    async def ping(self) -> None:
        await self.send(b": ping\n\n")

    async def read(self, stream: HeldStream) -> None:
        """There is nothing to hear; that the subscriber is gone cancels the request."""
        await asyncio.Event().wait()

    async def finish(self, error: LsmqError | None) -> None:
        """Say why it ends, and end it."""
        try:
            async with asyncio.timeout(END_S):
                if error is not None:
                    await self.send(self.note("end", error.to_dict()))
                await self._response.write_eof()
        except (TimeoutError, ConnectionError):
            pass


AnySink = WebSocketSink | EventSink


def _pack(
    found: Fetched, topic_id: int, spans: Spans, names: NamesByNumber, form: Format, note: Callable[[str, Any], bytes]
) -> Packed:
    messages, sent = [], []
    for message, size in render_spans(found, topic_id, spans, form):
        messages.append(message)
        sent.append((message["queue"], message["offset"], size))
        if names is not None:
            number = message["queue"]
            message["queue"], message["number"] = names[number], number
    return Packed(note("messages", messages), sent)


def heed(stream: HeldStream, document: Any) -> None:
    """What a subscriber says. Raises ``InvalidRequest``."""
    check(document, schemas.ACKNOWLEDGE, "")
    stream.acknowledge([(queue, offset) for queue, offset in document.get("ack", ())])
    if "credit" in document or "credit_bytes" in document:
        ledger = stream.ledger
        stream.set_credit(document.get("credit", ledger.credit), document.get("credit_bytes", ledger.credit_bytes))
