"""A held stream as a test sees it: frame by frame."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgpack

from lsmq._sockets import ClientSockets

WAIT_S = 20.0


class HeldStream:
    """One WebSocket, in JSON or msgpack. Remembers what it was told of queues and of the stream."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.stream: dict[str, Any] = {}
        self.queues: list[list[int]] = []
        self.end: dict[str, Any] | None = None

    async def frame(self, wait_s: float = WAIT_S) -> tuple[str, Any]:
        """The next frame: its kind and value; ``closed`` and the code when there are no more."""
        frame = await self.socket.receive(timeout=wait_s)
        if frame.type is aiohttp.WSMsgType.TEXT:
            found = json.loads(frame.data)
        elif frame.type is aiohttp.WSMsgType.BINARY:
            found = msgpack.unpackb(frame.data)
        else:
            return "closed", self.socket.close_code
        ((kind, value),) = found.items()
        if kind != "messages":
            setattr(self, kind, value)
        return kind, value

    async def until(self, kind: str) -> Any:
        """The value of the next frame of this kind."""
        while True:
            found, value = await self.frame()
            if found == kind:
                return value
            assert found != "closed", self.end

    async def messages(self, count: int, *, ack: bool = True) -> list[dict[str, Any]]:
        """At least so many messages; acknowledged as they come, unless told not to."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            batch = await self.until("messages")
            found += batch
            if ack:
                await self.ack(*batch)
        return found

    async def ack(self, *messages: dict[str, Any]) -> None:
        await self.say(ack=[[message["queue"], message["offset"]] for message in messages])

    async def say(self, **document: Any) -> None:
        if self.socket.protocol == "lsmq.msgpack":
            await self.socket.send_bytes(msgpack.packb(document))
        else:
            await self.socket.send_str(json.dumps(document))

    async def owns(self, *queues: list[int]) -> None:
        """Return once these ranges are what it is sent."""
        while self.queues != list(queues):
            await self.until("queues")

    async def nothing(self, wait_s: float = 0.3) -> None:
        """No message comes."""
        try:
            while True:
                kind, value = await self.frame(wait_s)
                assert kind not in ("messages", "closed"), value
        except TimeoutError:
            return


@asynccontextmanager
async def held(
    url: str, topic: str, group: str = "pushed", *, protocol: str = "lsmq.json", origin: str | None = None, **query: Any
) -> AsyncIterator[HeldStream]:
    # As the client does it: where the cluster speaks TLS, it is believed by the authority in the environment.
    believed = ssl.create_default_context(cafile=os.environ["LSMQ_CA"]) if url.startswith("https:") else True
    sockets = ClientSockets()
    connector = aiohttp.TCPConnector(ssl=believed, socket_factory=sockets.make)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            params = {"topic": topic, **{name: str(value) for name, value in query.items()}}
            path = f"{url}/v1/groups/{group}/push"
            async with session.ws_connect(path, params=params, protocols=protocol.split(), origin=origin) as socket:
                yield HeldStream(socket)
    finally:
        await sockets.closed()
