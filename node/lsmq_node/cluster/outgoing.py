"""The connection that a node dials to a peer and sends over, again and again (see :mod:`.links`)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from lsmq_coordinator.auth import ANSWER_HEADER, START_HEADER
from lsmq_coordinator.errors import NotAuthenticated
from lsmq_coordinator.names import Names
from lsmq_coordinator.parts import UNSEEN, Part, kept
from lsmq_coordinator.tls import reason as tls_reason

from .seals import Seal

#: A connection with so much waiting to be sent is dropped.
MAX_QUEUED_BYTES = 64 * 1024 * 1024
#: With so much waiting, log is better not added.
CONGESTED_BYTES = 4 * 1024 * 1024
MAX_BACKOFF_S = 0.1
PROTOCOL = "lsmq-replication"
_MIN_BACKOFF_S = 0.01
_DIAL_TIMEOUT_S = 1.0
_USER_TIMEOUT_MS = 2_000
_MAX_ANSWER_BYTES = 64 * 1024
_WRITE_BYTES = 256 * 1024
_log = structlog.get_logger("lsmq.cluster")


@dataclass(frozen=True, slots=True)
class Dial:
    """How to reach a peer: a request that is valid once, the check of the proof in its answer, and what seals the
    messages that follow. ``learn`` is told the start that a refusal names; True where another dial may be accepted.
    ``holds``: whether the peer is still to be reached there."""

    host: str
    port: int
    request: bytes
    check: Callable[[str | None], None]
    learn: Callable[[str | None], bool]
    holds: Callable[[], bool]
    seal: Seal
    tls: ssl.SSLContext | None = None


class StartedAnew(ConnectionError):
    """The peer was started since we asked it last: dial again."""


class OutgoingConnection(asyncio.Protocol):
    """One connection: first a request and its answer in HTTP, then messages, outwards only."""

    def __init__(self, dial: Dial, on_writable: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.paused = False
        loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.seal = dial.seal
        self.holds = dial.holds
        self._dial = dial
        self._on_writable = on_writable
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # Of TLS a limit of nothing would be reached by nothing.
        transport.set_write_buffer_limits(high=0 if self._dial.tls is None else 1)
        set_up(transport)
        transport.write(self._dial.request)

    def data_received(self, data: bytes) -> None:
        if self.accepted.done():
            return
        self._answer += data
        if b"\r\n\r\n" in self._answer or len(self._answer) > _MAX_ANSWER_BYTES:
            try:
                self._check(self._answer)
                self.accepted.set_result(None)
            except (NotAuthenticated, ConnectionError) as error:
                self.accepted.set_exception(error)

    def _check(self, answer: bytes) -> None:
        lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        status = lines[0].split(" ")[1:2]
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if status == ["401"] and self._dial.learn(fields.get(START_HEADER.lower())):
            raise StartedAnew
        if status != ["101"]:
            raise ConnectionError(f"it answered {lines[0]!r}")
        self._dial.check(fields.get(ANSWER_HEADER.lower()))

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(exc or ConnectionResetError("the connection was closed"))
        if not self.lost.done():
            self.lost.set_result(None)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Outgoing:
    """``on_broken`` is called once for each connection that was accepted and ended."""

    def __init__(
        self,
        peer: str,
        dial: Callable[[], Dial | None],
        on_broken: Callable[[str], None],
        names: Names,
        part: Part = UNSEEN,
    ) -> None:
        self.queued_bytes = 0
        self._peer = peer
        self._dial = dial
        self._on_broken = on_broken
        self._names = names
        self._unsealed: deque[tuple[bytes, bytes | memoryview]] = deque()  # while there is no connection
        self._queue: deque[bytes | memoryview] = deque()
        self._offset = 0  # of the first in the queue
        self._wanted = asyncio.Event()
        self._stream: OutgoingConnection | None = None
        self._scheduled = False
        self._refused = ""
        self._part = part
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(kept(part, self._run), name=f"link to {peer}")

    def send(self, head: bytes, payload: bytes | memoryview) -> None:
        self.queued_bytes += len(head) + len(payload)
        if self._stream is None:
            self._unsealed.append((head, payload))
            self._wanted.set()
        else:
            self._seal(self._stream, head, payload)
        if self._stream is not None and not self._scheduled:
            # After the handlers that are ready in this turn of the loop, so that messages share a system call.
            self._scheduled = True
            self._loop.call_soon(self._flush)
        if self.queued_bytes > MAX_QUEUED_BYTES:
            _log.warning("link_dropped", peer=self._peer, queued_bytes=self.queued_bytes)
            self._drop()
            if self._stream is not None:
                self._stream.abort()

    def _seal(self, stream: OutgoingConnection, head: bytes, payload: bytes | memoryview) -> None:
        code = stream.seal.next(head, payload)
        self._queue.append(head + code)
        if len(payload):
            self._queue.append(payload)
        self.queued_bytes += len(code)

    def _drop(self) -> None:
        self._unsealed.clear()
        self._queue.clear()
        self.queued_bytes = self._offset = 0

    def _flush(self) -> None:
        self._scheduled = False
        stream, queue = self._stream, self._queue
        while queue and stream is not None and not stream.paused and stream.transport is not None:
            # A small message goes in one piece with what follows it: each piece may wake the peer.
            parts, size = [], 0
            while queue and size < _WRITE_BYTES:
                part = memoryview(queue[0])[self._offset : self._offset + _WRITE_BYTES - size]
                parts.append(part)
                size += len(part)
                self._offset += len(part)
                if self._offset == len(queue[0]):
                    queue.popleft()
                    self._offset = 0
            self.queued_bytes -= size
            stream.transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def look(self) -> None:
        """Give up a connection to where the peer is no more."""
        if self._stream is not None and not self._stream.holds():
            self._stream.abort()

    def end(self) -> None:
        """There is no such peer any more."""
        self._task.cancel()
        self._part.gone()

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        backoff = _MIN_BACKOFF_S
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            stream = await self._connect()
            if stream is None:
                self._drop()
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_S)
                continue
            backoff = _MIN_BACKOFF_S
            self._stream = stream
            while self._unsealed:
                self._seal(stream, *self._unsealed.popleft())
            try:
                self._flush()
                self.look()
                await stream.lost
            finally:
                self._stream = None
                stream.abort()
            self._drop()
            self._on_broken(self._peer)

    async def _connect(self) -> OutgoingConnection | None:
        try:
            return await self._try_to_connect()
        except StartedAnew:
            pass
        try:
            return await self._try_to_connect()
        except StartedAnew:
            return None

    async def _try_to_connect(self) -> OutgoingConnection | None:
        """None where it failed, which is told of. Raises ``StartedAnew``."""
        dial = self._dial()
        if dial is None:
            return None
        stream = OutgoingConnection(dial, self._flush)
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                address = await self._names.address(dial.host)
                secure: dict[str, Any] = {} if dial.tls is None else {"ssl": dial.tls, "server_hostname": dial.host}
                await self._loop.create_connection(lambda: stream, address, dial.port, **secure)
                await stream.accepted
        except StartedAnew:
            stream.abort()
            raise
        except (OSError, TimeoutError, NotAuthenticated) as error:
            stream.abort()
            reason = tls_reason(error)
            if reason != self._refused:
                self._refused = reason
                _log.info("link_refused", peer=self._peer, reason=reason)
            return None
        except BaseException:
            stream.abort()
            raise
        self._refused = ""
        return stream


def set_up(transport: asyncio.BaseTransport) -> None:
    """Send at once; and take a connection for broken when what is sent is not received."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
