"""What programs hold of the network: ``socket.socket``, and what waits for many of them to be ready.

asyncio's loop waits in a :class:`Selector`, Raft's transport in a :class:`Poller`.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Callable, Mapping
from typing import Any, Self

from .network import Address, Endpoint, Network, os_error
from .scheduler import Fiber


def sockets_of(network: Network) -> type[Any]:
    """``socket.socket`` for a world."""

    class Socket:
        def __init__(
            self,
            family: int = socket.AF_INET,
            type: int = socket.SOCK_STREAM,
            proto: int = 0,
            fileno: int | None = None,
        ) -> None:
            self.family, self.type, self.proto = socket.AF_INET, socket.SOCK_STREAM, 0
            self._end: Endpoint | None = (
                network.endpoints[fileno] if fileno is not None else Endpoint(network, network.scheduler.process)
            )

        @property
        def _endpoint(self) -> Endpoint:
            if self._end is None:
                raise os_error(errno.EBADF)
            return self._end

        def __repr__(self) -> str:
            end = self._end
            return "<socket closed>" if end is None else f"<socket {end.local} {end.remote}>"

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        def fileno(self) -> int:
            return -1 if self._end is None else self._end.fd

        def detach(self) -> int:
            fd = self.fileno()
            self._end = None
            return fd

        def close(self) -> None:
            end, self._end = self._end, None
            if end is not None:
                network.close(end)

        def shutdown(self, how: int) -> None:
            end = self._endpoint
            if not end.connected:
                raise os_error(errno.ENOTCONN)
            if how != socket.SHUT_RD and not end.finished and end.peer is not None:
                peer, end.finished = end.peer, True
                network.carry(end, lambda: network._end(peer))

        def setblocking(self, flag: bool) -> None:
            """Nothing ever blocks."""

        def settimeout(self, timeout: float | None) -> None:
            """Nothing ever blocks."""

        def gettimeout(self) -> float:
            return 0.0

        def setsockopt(self, level: int, option: int, value: int | bytes, *_: object) -> None:
            if (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) and isinstance(value, int):
                self._endpoint.user_timeout_s = value / 1000

        def getsockopt(self, level: int, option: int, *_: object) -> int:
            if (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR):
                return self._endpoint.error
            return 0

        def bind(self, address: Address) -> None:
            host, port = address[0], address[1] or network.take_port()
            if (host, port) in network.listeners:
                raise os_error(errno.EADDRINUSE)
            self._endpoint.local = host, port

        def listen(self, backlog: int = 0) -> None:
            end = self._endpoint
            assert end.local is not None
            if end.local in network.listeners:
                raise os_error(errno.EADDRINUSE)
            end.listening = True
            network.listeners[end.local] = end

        def accept(self) -> tuple[Any, Address]:
            end = self._endpoint
            if not end.backlog:
                raise BlockingIOError(errno.EAGAIN, "would block")
            accepted = end.backlog.popleft()
            assert accepted.remote is not None
            return Socket(fileno=accepted.fd), accepted.remote

        def connect(self, address: Address) -> None:
            network.connect(self._endpoint, (address[0], address[1]))

        def connect_ex(self, address: Address) -> int:
            try:
                self.connect(address)
            except OSError as error:
                return error.errno or errno.EIO
            return 0

        def getsockname(self) -> Address:
            return self._endpoint.local or ("0.0.0.0", 0)

        def getpeername(self) -> Address:
            end = self._endpoint
            if end.remote is None or not (end.connected or end.eof or end.error):
                raise os_error(errno.ENOTCONN)
            return end.remote

        def send(self, content: Any, flags: int = 0) -> int:
            return network.send(self._endpoint, bytes(content))

        def sendmsg(self, buffers: Any, *_: object) -> int:
            return network.send(self._endpoint, b"".join(bytes(buffer) for buffer in buffers))

        def recv(self, most: int, flags: int = 0) -> bytes:
            return network.read(self._endpoint, most)

        def recv_into(self, buffer: Any, most: int = 0, flags: int = 0) -> int:
            view = memoryview(buffer)
            piece = network.read(self._endpoint, most or len(view))
            view[: len(piece)] = piece
            return len(piece)

    return Socket


class SocketWatch:
    """Waits, in one thread, for any of many sockets to be ready."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.wanted: dict[int, int] = {}  # what of a descriptor
        self._maybe: dict[int, None] = {}
        self._fiber: Fiber | None = None
        self._poked = False

    def watch(self, fd: int, events: int) -> None:
        end = self.network.endpoints.get(fd)
        if end is not None and fd not in self.wanted:
            end.watchers.append(self._changed)
        self.wanted[fd] = events
        self._maybe[fd] = None

    def leave(self, fd: int) -> None:
        if self.wanted.pop(fd, None) is not None:
            end = self.network.endpoints.get(fd)
            if end is not None and self._changed in end.watchers:
                end.watchers.remove(self._changed)
        self._maybe.pop(fd, None)

    def _changed(self, end: Endpoint) -> None:
        if end.fd in self.wanted:
            self._maybe[end.fd] = None
            if self._fiber is not None:
                self.network.scheduler.wake(self._fiber)

    def poke(self) -> None:
        """End the wait. From any thread."""
        self._poked = True
        if self._fiber is not None:
            self.network.scheduler.wake(self._fiber)

    def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """``(descriptor, events)`` of all that are ready."""
        scheduler = self.network.scheduler
        scheduler.step_aside()
        ready = self._ready()
        if not ready and not self._poked and (timeout_s is None or timeout_s > 0):
            self._fiber = scheduler.current
            scheduler.park(timeout_s)
            self._fiber = None
            ready = self._ready()
        self._poked = False
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        found = []
        for fd in list(self._maybe):
            end, wanted = self.network.endpoints.get(fd), self.wanted[fd]
            events = 0
            if end is not None:
                events |= selectors.EVENT_READ if end.readable else 0
                events |= selectors.EVENT_WRITE if end.writable else 0
            events &= wanted
            if events:
                found.append((fd, events))
            else:
                del self._maybe[fd]
        return found


class Selector(selectors.BaseSelector):
    """What asyncio's loop waits in."""

    def __init__(self, network: Network) -> None:
        self.watch = SocketWatch(network)
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"{fd} is registered")
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self.watch.watch(fd, events)
        return key

    def _fd_of(self, fileobj: Any) -> int:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd < 0:  # closed meanwhile
            fd = next((key.fd for key in self._keys.values() if key.fileobj is fileobj), -1)
        return fd

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = self._fd_of(fileobj)
        key = self._keys.pop(fd)
        self.watch.leave(fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = self._fd_of(fileobj)
        if fd not in self._keys:
            raise KeyError(f"{fileobj!r} is not registered")
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self.watch.watch(fd, events)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [(self._keys[fd], events) for fd, events in self.watch.wait(timeout)]

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        fd = self._fd_of(fileobj)
        if fd not in self._keys:
            raise KeyError(f"{fileobj!r} is not registered")
        return self._keys[fd]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        for fd in list(self._keys):
            self.watch.leave(fd)
        self._keys.clear()


class Poller:
    """What Raft's transport waits in: pysyncobj's interface."""

    def __init__(self, network: Network) -> None:
        self.watch = SocketWatch(network)
        self._callbacks: dict[int, Callable[[int, int], None]] = {}

    def subscribe(self, descr: int, callback: Callable[[int, int], None], eventMask: int) -> None:
        self._callbacks[descr] = callback
        self.watch.watch(descr, eventMask)

    def unsubscribe(self, descr: int) -> None:
        self._callbacks.pop(descr, None)
        self.watch.leave(descr)

    def poll(self, timeout: float) -> None:
        for fd, events in self.watch.wait(timeout):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback(fd, events)


class Notifier:
    """pysyncobj's pipe to itself, for a :class:`Poller`."""

    def __init__(self, poller: Poller, callback: object = None) -> None:
        self._poller = poller
        self._PipeNotifier__pipeR = self._PipeNotifier__pipeW = -1

    def notify(self) -> None:
        self._poller.watch.poke()
