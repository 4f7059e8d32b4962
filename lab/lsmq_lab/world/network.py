"""Sockets between addresses, as the product and its libraries use them: TCP, not blocking.

Bytes arrive in order, late, and in pieces that are not those they were sent in. Between two addresses either direction
can be cut: what is sent then arrives when it is mended, as TCP sends again, unless the sender's
``TCP_USER_TIMEOUT`` is over first, or the connection is gone. A process that was killed resets its connections; a
machine without power says nothing until it is up again, and then resets what comes for connections it has forgotten.

Not supported: datagrams, blocking calls, names (addresses are given as numbers).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial

from .scheduler import Scheduler, SimulatedProcess

#: What a direction of a connection holds: on the way, and received and not read.
WINDOW_BYTES = 256 << 10
_FIRST_FD = 1 << 20
_FIRST_PORT = 30_000  # of those who dial
_SYN_AGAIN_S = 1.0
_CONNECT_S = 60.0

Address = tuple[str, int]


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Endpoint:
    """What the operating system has of a socket."""

    def __init__(self, network: Network, process: SimulatedProcess) -> None:
        self.network, self.process = network, process
        self.fd = network.take_fd(self)
        self.local: Address | None = None
        self.remote: Address | None = None
        self.peer: Endpoint | None = None
        self.listening = False
        self.backlog: deque[Endpoint] = deque()
        self.connecting = self.connected = False
        self.received = bytearray()
        self.on_way = 0  # bytes, to the peer
        self.eof = self.finished = self.closed = False
        self.error = 0
        self.user_timeout_s = 0.0
        self.arrives = 0.0  # when the last of what was sent does
        self.watchers: list[Callable[[Endpoint], None]] = []

    def changed(self) -> None:
        for watcher in self.watchers:
            watcher(self)

    @property
    def readable(self) -> bool:
        return bool(self.received or self.eof or self.error or self.backlog)

    @property
    def writable(self) -> bool:
        if self.error:
            return True
        peer = self.peer
        return self.connected and (peer is None or self.on_way + len(peer.received) < WINDOW_BYTES)

    def fail(self, number: int) -> None:
        """The connection is broken, on this side."""
        if not self.closed and not self.error and not self.listening:
            self.error, self.connected, self.connecting = number, False, False
            self.changed()


class Network:
    """All addresses of a world. ``delay_s`` is drawn for each piece between the two."""

    def __init__(self, scheduler: Scheduler, *, delay_s: tuple[float, float] = (0.0001, 0.002)) -> None:
        self.scheduler, self.delay_s = scheduler, delay_s
        self.random = scheduler.random.__class__(scheduler.random.getrandbits(64))
        self.endpoints: dict[int, Endpoint] = {}
        self.listeners: dict[Address, Endpoint] = {}
        #: Directions that are cut, from host to host.
        self.cuts: set[tuple[str, str]] = set()
        #: Machines without power.
        self.dark: set[str] = set()
        self._fds = _FIRST_FD
        self._ports = _FIRST_PORT
        self._undelivered: dict[tuple[str, str], list[Callable[[], None]]] = {}

    def take_fd(self, endpoint: Endpoint) -> int:
        self._fds += 1
        self.endpoints[self._fds] = endpoint
        return self._fds

    def take_port(self) -> int:
        self._ports += 1
        return self._ports

    # What a test does

    def cut(self, source: str, target: str) -> None:
        self.cuts.add((source, target))

    def mend(self, source: str | None = None, target: str | None = None) -> None:
        """A direction, or all."""
        mended = [cut for cut in sorted(self.cuts) if source is None or cut == (source, target)]
        for cut in mended:
            self.cuts.discard(cut)
            self.scheduler.call_later(self.delay_s[1], partial(self._deliver_late, cut))

    def reset(self, one: str, other: str, *, dialled_by: str | None = None) -> None:
        """Break the connections between two machines, on both sides: all, or those that one of them dialled."""
        for endpoint in list(self.endpoints.values()):
            if endpoint.peer is None or {endpoint.process.host, endpoint.peer.process.host} != {one, other}:
                continue
            assert endpoint.local is not None and endpoint.remote is not None
            dialler = endpoint.local if endpoint.local[1] > _FIRST_PORT else endpoint.remote
            if dialled_by in (None, dialler[0]):
                endpoint.fail(errno.ECONNRESET)

    def killed(self, process: SimulatedProcess) -> None:
        """The operating system closes what the process had, and tells the others."""
        for endpoint in [each for each in self.endpoints.values() if each.process is process]:
            self.close(endpoint, reset=True)

    def lost_power(self, process: SimulatedProcess) -> None:
        """Nobody is told."""
        for endpoint in [each for each in self.endpoints.values() if each.process is process]:
            self._forget(endpoint)

    # What sockets do

    def _forget(self, endpoint: Endpoint) -> None:
        endpoint.closed = True
        endpoint.connected = endpoint.connecting = False
        self.endpoints.pop(endpoint.fd, None)
        if endpoint.listening and endpoint.local is not None and self.listeners.get(endpoint.local) is endpoint:
            del self.listeners[endpoint.local]

    def close(self, endpoint: Endpoint, *, reset: bool = False) -> None:
        if endpoint.closed:
            return
        peer, unread = endpoint.peer, bool(endpoint.received)
        self._forget(endpoint)
        for waiting in endpoint.backlog:
            self.close(waiting, reset=True)
        if peer is None or endpoint.local is None or endpoint.remote is None:
            return
        if reset or unread or endpoint.error:
            self.carry(endpoint, lambda: peer.fail(errno.ECONNRESET))
        elif not endpoint.finished:
            self.carry(endpoint, lambda: self._end(peer))
        endpoint.changed()

    def _end(self, endpoint: Endpoint) -> None:
        endpoint.eof = True
        endpoint.changed()

    def carry(self, source: Endpoint, deliver: Callable[[], None]) -> None:
        """Bring something to the other side of a connection, after all that went before it."""
        assert source.local is not None and source.remote is not None
        now = self.scheduler.now
        source.arrives = max(source.arrives, now + self.random.uniform(*self.delay_s))
        direction = source.local[0], source.remote[0]

        def arrive() -> None:
            if direction in self.cuts or direction in self._undelivered:  # behind what was sent before
                self._undelivered.setdefault(direction, []).append(deliver)
            else:
                deliver()

        self.scheduler.call_at(source.arrives, arrive)

    def _deliver_late(self, direction: tuple[str, str]) -> None:
        """What arrived while it was cut, and since it was mended."""
        if direction not in self.cuts:
            for deliver in self._undelivered.pop(direction, ()):
                deliver()

    def send(self, endpoint: Endpoint, content: bytes) -> int:
        if endpoint.error:
            number, endpoint.error = endpoint.error, errno.EPIPE
            raise os_error(number)
        peer = endpoint.peer
        if not endpoint.connected or peer is None or endpoint.finished:
            raise os_error(errno.EPIPE if endpoint.finished else errno.ENOTCONN)
        room = WINDOW_BYTES - endpoint.on_way - len(peer.received)
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "would block")
        content = bytes(content[:room])
        if len(content) > 1 and self.random.random() < 0.1:
            half = len(content) // 2
            self._send_piece(endpoint, peer, content[:half])
            self._send_piece(endpoint, peer, content[half:])
        else:
            self._send_piece(endpoint, peer, content)
        return len(content)

    def _send_piece(self, endpoint: Endpoint, peer: Endpoint, piece: bytes) -> None:
        endpoint.on_way += len(piece)
        delivered = False

        def deliver() -> None:
            nonlocal delivered
            delivered = True
            endpoint.on_way -= len(piece)
            if peer.closed:
                if peer.process.host not in self.dark:
                    self.carry(peer, lambda: endpoint.fail(errno.ECONNRESET))
                return
            peer.received += piece
            peer.changed()

        self.carry(endpoint, deliver)
        if endpoint.user_timeout_s:
            assert endpoint.local is not None and endpoint.remote is not None
            there, back = (endpoint.local[0], endpoint.remote[0]), (endpoint.remote[0], endpoint.local[0])

            def look() -> None:
                if not delivered or back in self.cuts or there in self.cuts:
                    endpoint.fail(errno.ETIMEDOUT)

            if there in self.cuts or back in self.cuts or peer.closed:
                self.scheduler.call_later(endpoint.user_timeout_s, look)

    def read(self, endpoint: Endpoint, most: int) -> bytes:
        if endpoint.received:
            piece = bytes(endpoint.received[:most])
            del endpoint.received[:most]
            if endpoint.peer is not None:
                endpoint.peer.changed()
            return piece
        if endpoint.error:
            number, endpoint.error = endpoint.error, 0
            endpoint.eof = True
            raise os_error(number)
        if endpoint.eof:
            return b""
        raise BlockingIOError(errno.EAGAIN, "would block")

    def connect(self, endpoint: Endpoint, target: Address) -> None:
        """Raises ``BlockingIOError``: it is under way."""
        host = endpoint.process.host
        endpoint.local = endpoint.local or (host, self.take_port())
        endpoint.remote = target
        endpoint.connecting = True
        started = self.scheduler.now

        def ask() -> None:
            if endpoint.closed or not endpoint.connecting:
                return
            there = (host, target[0])
            if there in self.cuts or target[0] in self.dark or there[::-1] in self.cuts:
                if self.scheduler.now - started > _CONNECT_S:
                    endpoint.fail(errno.ETIMEDOUT)
                else:
                    self.scheduler.call_later(_SYN_AGAIN_S, ask)
                return
            listener = self.listeners.get(target)
            if listener is None or len(listener.backlog) >= 1024:
                self.carry_back(endpoint, lambda: endpoint.fail(errno.ECONNREFUSED))
                return
            other = Endpoint(self, listener.process)
            other.local, other.remote, other.peer, other.connected = target, endpoint.local, endpoint, True
            endpoint.peer = other
            listener.backlog.append(other)
            listener.changed()
            self.carry(other, lambda: self._connected(endpoint))

        self.scheduler.call_later(self.random.uniform(*self.delay_s), ask)
        raise BlockingIOError(errno.EINPROGRESS, "in progress")

    def carry_back(self, endpoint: Endpoint, deliver: Callable[[], None]) -> None:
        self.scheduler.call_later(self.random.uniform(*self.delay_s), deliver)

    def _connected(self, endpoint: Endpoint) -> None:
        if endpoint.connecting:
            endpoint.connecting, endpoint.connected = False, True
            endpoint.changed()
