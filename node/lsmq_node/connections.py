"""Who may be connected: connections are accepted up to a number, and of one address up to its share.

What is over is told so (a few bytes of HTTP, whatever was asked; under TLS nothing is said) and closed. Whoever is
still sending is heard out for a moment, a few at a time: closed with something unread, what was said would be lost on
its way. Where the system has no descriptor or memory for another connection, the next is accepted a moment later; that
is logged once in a while, not each time.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from lsmq.errors import LsmqError, TooManyConnections
from lsmq_coordinator.http_status import status_of
from lsmq_coordinator.tls import HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S, Certificates
from lsmq_node.broker.budget import client_of
from lsmq_node.trusted_proxies import NO_PROXIES, TrustedProxies

_log = structlog.get_logger("lsmq.http")

#: Connections that nodes of a cluster may have with one of them, dialled by either side.
INTERNAL_CONNECTIONS = 1_024
#: Connections of a port for administration, of one address half of them.
ADMIN_CONNECTIONS = 64
#: What ``accept`` fails with when there is no room; it passes.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S = 0.1
_LOG_EVERY_S = 60.0
_MAX_REASONS = 1_000  # OpenSSL knows fewer
_AT_ONCE = 64  # connections that are accepted in one turn of the loop
#: Who was refused is heard out for so long, up to so many bytes: a whole request of the largest that may be asked for.
_HEARD_S = 2.0
_HEARD_BYTES = 16 << 20
#: So many at a time beside all that may be connected, and no more than one for each so many of those.
_HEARD_AT_ONCE, _SEATS_FOR_ONE_HEARD = 16, 8


@dataclass(frozen=True, slots=True)
class Limits:
    """How many connections there may be, and of one address that is no proxy's."""

    most: int
    most_of_one: int
    proxies: TrustedProxies = NO_PROXIES

    @classmethod
    def of(cls, most: int, share_percent: int, proxies: TrustedProxies = NO_PROXIES) -> Limits:
        return cls(most, max(1, most * share_percent // 100), proxies)


class AcceptedSocket(socket.socket):
    """An accepted socket that says when it is closed."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        if self.on_close is not None:
            done, self.on_close = self.on_close, None
            done()


class RefusedConnection(asyncio.Protocol):
    """Says why, and passes over what is still being sent. ``gone`` is called once it is closed."""

    def __init__(self, answer: bytes, gone: Callable[[], object]) -> None:
        self._answer = answer
        self._gone = gone
        self._left_bytes = _HEARD_BYTES
        self._transport: asyncio.Transport
        self._end: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._end = asyncio.get_running_loop().call_later(_HEARD_S, transport.abort)
        transport.write(self._answer)
        transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._end.cancel()
        self._gone()

    def close(self) -> None:
        self._transport.abort()


class Doorkeeper:
    """Accepts connections of one listening socket. Loop thread only; ``start`` it, and ``close`` it."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        limits: Limits,
        tls: Certificates | None = None,
    ) -> None:
        """``make`` makes what speaks on a connection, once its handshake is done where there is ``tls``. The listener
        is the doorkeeper's from here on."""
        self.limits = limits
        self.tls = tls
        self.count = 0
        self.accepted = 0
        self.refused = 0
        self.accept_failures = 0
        self.handshake_failures = 0
        self._listener = listener
        self._make = make
        self._by_client: dict[str, int] = {}
        self._opening: set[asyncio.Task[None]] = set()
        #: Connections that were refused and are not closed yet.
        self.heard = 0
        self._refused: dict[RefusedConnection, None] = {}  # those of them that are open, the oldest first
        self._retry: asyncio.TimerHandle | None = None
        self._logged_at = float("-inf")
        self._reasons: dict[str, float] = {}  # why handshakes failed, and when that was logged
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept_some)

    def close(self) -> None:
        """Accept no more; what is connected stays. Who comes now is refused by the system, at once."""
        if self._listener.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for refused in list(self._refused):
            refused.close()
        if self.tls is not None:  # Who has not finished his handshake has asked nothing.
            for opening in self._opening:
                opening.cancel()

    def _accept_some(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                plain, address = self._listener.accept()
            except BlockingIOError:
                return
            except (InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._wait_for_room(error)
                return
            self.accepted += 1
            connection = AcceptedSocket(plain.family, plain.type, plain.proto, plain.detach())
            self._admit(connection, address[0] if isinstance(address, tuple) else None)

    def _wait_for_room(self, error: OSError) -> None:
        self.accept_failures += 1
        now = self._loop.time()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            _log.error(
                "not_accepted",
                reason=error.strerror,
                connections=self.count,
                remedy="raise the limit of open files (ulimit -n), or lower max_connections",
            )
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(_RETRY_S, self.start)

    def _admit(self, connection: AcceptedSocket, address: str | None) -> None:
        client = client_of(address)
        has = self._by_client.get(client, 0)
        own = 0 if address is not None and self.limits.proxies.has(address) else has
        if self.count >= self.limits.most or own >= self.limits.most_of_one:
            self.refused += 1
            if self.tls is not None:
                connection.close()
            elif self._may_hear_out():
                self._hear_out(connection, client, _answer(self._refusal(own)))
            else:
                _refuse(connection, _answer(self._refusal(own)))
            return
        self.count += 1
        self._by_client[client] = has + 1
        connection.on_close = lambda: self._gone(client)
        self._begin(connection, client, self._make)

    def _may_hear_out(self) -> bool:
        """Whether one more may be: in place of the one that was heard longest, where there are many."""
        if self.heard < min(_HEARD_AT_ONCE, max(1, self.limits.most // _SEATS_FOR_ONE_HEARD)):
            return True
        oldest = next(iter(self._refused), None)
        if oldest is not None:
            del self._refused[oldest]
            oldest.close()
        return oldest is not None

    def _hear_out(self, connection: AcceptedSocket, client: str, answer: bytes) -> None:
        def closed() -> None:
            self.heard -= 1

        def make() -> RefusedConnection:
            refused = RefusedConnection(answer, lambda: self._refused.pop(refused, None))
            self._refused[refused] = None
            return refused

        self.heard += 1
        connection.on_close = closed
        self._begin(connection, client, make)

    def _begin(self, connection: AcceptedSocket, client: str, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Have what is made speak on a connection, once its handshake is done where there is one."""
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection, client, make))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: AcceptedSocket, client: str, make: Callable[[], asyncio.BaseProtocol]) -> None:
        try:
            if self.tls is None:
                await self._loop.connect_accepted_socket(make, connection)
            else:
                await self._loop.connect_accepted_socket(
                    make,
                    connection,
                    ssl=self.tls.server,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                    ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
                )
        except OSError as error:  # The other side is gone again, or it and TLS do not agree.
            connection.close()
            if self.tls is not None:
                self._tell_handshake(client, self.tls.why_refused(error))
        except BaseException:
            connection.close()
            raise

    def _tell_handshake(self, client: str, reason: str) -> None:
        self.handshake_failures += 1
        now = self._loop.time()
        if now - self._reasons.get(reason, float("-inf")) >= _LOG_EVERY_S and len(self._reasons) < _MAX_REASONS:
            self._reasons[reason] = now
            _log.info("handshake_failed", client=client, reason=reason, failures=self.handshake_failures)

    def _gone(self, client: str) -> None:
        self.count -= 1
        left = self._by_client[client] - 1
        assert self.count >= 0 and left >= 0, "a connection was closed twice"
        if left:
            self._by_client[client] = left
        else:
            del self._by_client[client]

    def _refusal(self, own: int) -> TooManyConnections:
        if own >= self.limits.most_of_one:
            return TooManyConnections(
                f"your address has {own} connections, the limit (address_share_percent of max_connections); use fewer",
                limit=self.limits.most_of_one,
                sent=False,
            )
        return TooManyConnections(
            f"there are {self.count} connections, the limit (max_connections, or the limit of open files); come again",
            limit=self.limits.most,
            sent=False,
        )


def _answer(error: LsmqError) -> bytes:
    body = json.dumps({"error": error.to_dict()}).encode()
    head = (
        f"HTTP/1.1 {status_of(error)} Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _refuse(connection: AcceptedSocket, answer: bytes) -> None:
    """Of many that come at once: what has come by now is passed over, and no more."""
    with connection, suppress(OSError):
        connection.setblocking(False)
        connection.send(answer)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65_536)
