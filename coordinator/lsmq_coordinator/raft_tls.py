"""TLS between voters: a socket that encrypts, for a poller that knows of bytes alone.

It stands where pysyncobj has a socket that does not block, and answers as one: with ``BlockingIOError`` where there is
nothing to be had now. What is to be sent before the handshake is done waits here, so that nobody polls for a socket
that can always be written to; whoever owns the connection ends it when the handshake takes too long.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable

from .tls import reason

_MAX_EARLY_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024


class TlsSocket:
    """One side of a connection. ``host`` is whom the dialler means to reach, None for who was dialled."""

    def __init__(
        self, opened: socket.socket, context: ssl.SSLContext, host: str | None, refused: Callable[[str], None]
    ) -> None:
        """``refused`` is told why a handshake failed."""
        self._socket = opened
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=host is None, server_hostname=host)
        self._refused = refused
        self._early = b""
        self._unsent = b""
        self._ready = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def getsockopt(self, level: int, option: int) -> int:
        return self._socket.getsockopt(level, option)

    def close(self) -> None:
        self._socket.close()

    def send(self, content: bytes) -> int:
        """All of it, or none: raises ``BlockingIOError`` while what came before has not left."""
        self._flush()
        if self._unsent:
            raise _not_now()
        if not self._ready:
            self._shake_hands()
        if not self._ready:
            if len(self._early) + len(content) > _MAX_EARLY_BYTES:
                raise _not_now()
            self._early += content
            return len(content)
        self._tls.write(content)
        self._flush()
        return len(content)

    def recv(self, size: int) -> bytes:
        """What has come, which may be more than ``size``; b"" at the end. Raises ``BlockingIOError``, ``OSError``."""
        encrypted = self._socket.recv(_READ_BYTES)
        if not encrypted:
            return b""
        self._incoming.write(encrypted)
        if not self._ready:
            self._shake_hands()
            if not self._ready:
                raise _not_now()
        found = []
        try:
            while part := self._tls.read(_READ_BYTES):
                found.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return b"".join(found)
        except ssl.SSLError as error:  # Such as the word of a server that it does not believe this side.
            self._refused(reason(error))
            raise ConnectionAbortedError(errno.ECONNABORTED, reason(error)) from error
        self._flush()
        if not found:
            raise _not_now()
        return b"".join(found)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()
            self._refused(reason(error))
            raise ConnectionAbortedError(errno.ECONNABORTED, reason(error)) from error
        self._ready = True
        if self._early:
            self._tls.write(self._early)
            self._early = b""
        self._flush()

    def _flush(self) -> None:
        self._unsent += self._outgoing.read()
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]


def _not_now() -> BlockingIOError:
    return BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
