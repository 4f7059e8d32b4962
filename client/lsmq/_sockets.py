"""The sockets of a client's connections, so that all of them are closed when the client is; and which are used again.

aiohttp waits for none that it has let go: over TLS each of these says good-bye and waits for the node's. Where the
event loop ends before that, Python warns of a transport that nobody closed.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import aiohttp

#: Turns of the loop in which a connection that has come to its end is closed; it takes five.
_TURNS = 50


class CleanConnector(aiohttp.TCPConnector):
    """Uses no connection again on which something came that nobody has asked for: it is no answer to what is next.

    A proxy that gives up an idle connection says so on it, and one that is broken answers twice.
    """

    async def _get(self, *wanted: Any) -> Any:
        while (found := await super()._get(*wanted)) is not None:
            if found.protocol is None or not found.protocol.should_close:
                break
            found.close()
        return found


class ClientSockets:
    """Give :meth:`make` to the connector. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: list[socket.socket] = []

    def make(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket for an address as ``getaddrinfo`` gives it."""
        self._open = [each for each in self._open if each.fileno() >= 0]
        self._open.append(socket.socket(*address[:3]))
        return self._open[-1]

    async def closed(self) -> None:
        """Return once all are closed. Whoever owns them has closed the connections, and waits for no answer."""
        await asyncio.sleep(0)
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for _ in range(_TURNS):
            if all(each.fileno() < 0 for each in self._open):
                break
            await asyncio.sleep(0)
        self._open.clear()
