"""Sockets to listen on, taken before anything slow begins."""

from __future__ import annotations

import errno
import socket

from lsmq.errors import AddressInUse

BACKLOG = 1024


def listening_socket(host: str, port: int, option: str) -> socket.socket:
    """A socket that listens. Raises :class:`AddressInUse` with what to do about it, naming the ``option`` to change."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise AddressInUse(f"host {host!r} is no address of this machine: {error.strerror}", host=host) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Taken now, so that a second node finds out before it opens its data directory.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            text = f"port {port} of {host} is in use; stop who has it, or choose another with {option}"
        elif error.errno == errno.EACCES:
            text = f"port {port} of {host} needs privileges; choose one above 1023 with {option}"
        else:
            text = f"cannot listen on {host} port {port}: {error.strerror}; choose another address"
        raise AddressInUse(text, host=host, port=port) from error
    return listener
