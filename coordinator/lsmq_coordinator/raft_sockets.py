"""What the sockets between voters need of the operating system: to notice dead peers, and to resolve names aside."""

from __future__ import annotations

import ipaddress
import socket

from lsmq import runtime

_DEAD_PEER_MS = 3_000
_ASK_AGAIN_S = 1.0


def find_dead_peers(opened: socket.socket) -> None:
    """Have the kernel end the connection when the peer is gone, whether or not something is to be sent."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)


class Lookup:
    """The IPv4 address of a host. A name is resolved in a thread of its own: a slow name server must not stop ticks."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._ip: str | None = None
        self._asked = float("-inf")
        self._asking = False

    @property
    def ip(self) -> str | None:
        """Never blocks: the answer before, while a new one is being looked for; None when there is none yet."""
        try:
            return str(ipaddress.ip_address(self._host))
        except ValueError:
            pass
        if not self._asking and runtime.monotonic() - self._asked > _ASK_AGAIN_S:
            self._asking = True
            runtime.Thread(target=self._resolve, name="raft-resolve", daemon=True).start()
        return self._ip

    def _resolve(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, socket.AF_INET, socket.SOCK_STREAM)
            self._ip = str(found[0][4][0])
        except OSError:
            self._ip = None
        finally:
            self._asked, self._asking = runtime.monotonic(), False
