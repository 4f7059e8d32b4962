"""One held stream to one node: hears it, answers pings, sends acknowledgements; and notices when it falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import msgpack

from lsmq._background import Background
from lsmq._ranges import NONE
from lsmq._transport import Transport
from lsmq.errors import ConnectionFailed, LsmqError, TimedOut, from_dict
from lsmq.group_values import Ranges, from_pairs
from lsmq.topics import Topic

PROTOCOL = "lsmq.msgpack"
QUIET_S = 5.0  # Then the node is asked whether it lives.
SILENT_S = 15.0  # Then it does not.
_LOOK_S = 1.0
_CLOSE_S = 10.0
_DROP_S = 0.2
_ACKS_A_FRAME = 5_000


class PushLink:
    """``heard`` is called with each frame's kind and value; ``look`` each second while the node is silent."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        topic: Topic,
        heard: Callable[[PushLink, str, Any], None],
        look: Callable[[], None],
    ) -> None:
        self.url = url
        self.queues: Ranges = NONE  # that the node sends here
        self.is_open = False
        self._transport = transport
        self._topic = topic
        self._heard = heard
        self._look = look
        self._acks: dict[int, int] = {}
        self._credit: dict[str, int] = {}
        self._acks_wait = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._closing = False

    async def run(self, path: str, params: Mapping[str, str], timeout_s: float) -> None:
        """Until :meth:`close`. Raises why it ended otherwise."""
        socket = self._socket = await self._transport.websocket(
            self.url + path, params=params, protocol=PROTOCOL, timeout_s=timeout_s, topic_id=self._topic.id
        )
        background = Background()
        background.begin(self._send_acks(socket), f"lsmq push acknowledgements to {self.url}", lasting=True)
        try:
            await background.until(self._listen(socket))
        except (aiohttp.ClientError, OSError) as error:
            if not self._closing:
                reason = str(error) or type(error).__name__
                raise ConnectionFailed(f"the stream from {self.url} broke: {reason}", url=self.url) from error
        finally:
            self.is_open = False
            await background.end()
            if not self._closing:  # Else whoever closes it waits for the node, too.
                with suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
                    async with asyncio.timeout(_DROP_S):
                        await socket.close()

    async def close(self) -> None:
        """Send what is acknowledged, and return when the node has committed it, or that takes too long."""
        self._closing = True
        socket = self._socket
        if socket is None or socket.closed:
            return
        with suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
            async with asyncio.timeout(_CLOSE_S):
                await self._flush(socket)
                await socket.close()

    def acknowledge(self, queue: int, offset: int) -> None:
        """What the node sent of the queue is handled up to this offset. Sent soon, together with others."""
        self._acks[queue] = offset
        self._acks_wait.set()

    def set_credit(self, credit: int, credit_bytes: int) -> None:
        """The node may send so much that is not acknowledged; 0 messages pause it."""
        self._credit = {"credit": credit, "credit_bytes": credit_bytes}
        self._acks_wait.set()

    async def _send_acks(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._acks_wait.wait()
            await asyncio.sleep(0)
            await self._flush(socket)

    async def _flush(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._acks_wait.clear()
        credit, self._credit = self._credit, {}
        if credit:
            await socket.send_bytes(msgpack.packb(credit))
        acks, self._acks = list(self._acks.items()), {}
        for start in range(0, len(acks), _ACKS_A_FRAME):
            await socket.send_bytes(msgpack.packb({"ack": acks[start : start + _ACKS_A_FRAME]}))

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        quiet_s, silent_s = QUIET_S, 0.0
        while True:
            try:
                frame = await socket.receive(timeout=quiet_s)
            except TimeoutError:
                silent_s += quiet_s
                if silent_s >= SILENT_S:
                    raise TimedOut(f"{self.url} has said nothing for {silent_s:g} s", url=self.url) from None
                if quiet_s == QUIET_S:
                    await socket.ping()
                else:
                    self._look()
                quiet_s = _LOOK_S
                continue
            quiet_s, silent_s = QUIET_S, 0.0
            match frame.type:
                case aiohttp.WSMsgType.BINARY:
                    self._take(msgpack.unpackb(frame.data))
                case aiohttp.WSMsgType.PING:
                    await socket.pong(frame.data)
                case aiohttp.WSMsgType.PONG:
                    pass
                case _ if self._closing:
                    return
                case _:
                    raise ConnectionFailed(f"the stream from {self.url} broke", url=self.url)

    def _take(self, frame: Mapping[str, Any]) -> None:
        for kind, value in frame.items():
            match kind:
                case "end":
                    raise from_dict(value)
                case "queues":
                    self.is_open = True
                    before, self.queues = self.queues, from_pairs(value)
                    self._heard(self, kind, before)
                case _:
                    self._heard(self, kind, value)


def is_reset(error: LsmqError) -> bool:
    """Whether the group's offsets were set by somebody, so that nothing known of them holds."""
    return bool(error.details.get("reset"))
