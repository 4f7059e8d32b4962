"""Ports for servers that tests start."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody uses now. Somebody may before they are bound."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            held.append(socket.create_server(("127.0.0.1", 0)))
        return [server.getsockname()[1] for server in held]
    finally:
        for server in held:
            server.close()
