"""Ports that nobody listens on now, many in a row."""

from __future__ import annotations

import socket
from pathlib import Path

from lsmq import runtime
from lsmq.errors import AddressInUse

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000
_TRIES = 1_000


def free_block(host: str, count: int) -> int:
    """The first of ``count`` free ports in a row. Raises ``AddressInUse``.

    Below those that the system gives to connections, so that none of these takes one while its process is being started
    again.
    """
    try:
        end = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        end = 32_768
    last = max(_FIRST + 2 * count, end) - count
    for _ in range(_TRIES):
        first = runtime.random.randrange(_FIRST, last)
        if all(_is_free(host, port) for port in range(first, first + count)):
            return first
    raise AddressInUse(f"no {count} ports in a row are free between {_FIRST} and {last + count}; name one with --port")


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True
