"""What kazoo's client connects and waits with, for nodes and for clients of theirs: by TLS where there is a context.

kazoo has TLS of its own, which this does not use: it makes a context for each connection, of any version of TLS, with
the system's authorities beside those that were named.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from .errors import LsmqError

#: Before hosts that are to be reached by TLS.
TLS_SCHEME = "tls://"


class KazooHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads; knows the connection, so that it can be cut."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """``tls`` is asked for each connection, in kazoo's thread; it checks the name of the server."""
        super().__init__()
        self._tls = tls
        self._connection: socket.socket | None = None
        #: Why the last attempt to connect by TLS failed; None where it did not.
        self.refused: OSError | None = None
        #: Whether the last attempt to connect came to somebody who takes connections, by TLS where that is wanted.
        self.reached = False

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        self.reached = False
        if self._tls is None:
            self._connection = super().create_connection(*arguments, **options)
        else:
            self._connection = self._secured(self._tls, options["address"], options["hostname"], options["timeout"])
        self.reached = True
        return self._connection

    def _secured(
        self, tls: Callable[[], ssl.SSLContext], address: tuple[str, int], name: str, timeout_s: float
    ) -> ssl.SSLSocket:
        connection = None
        try:
            context = tls()
            connection = socket.create_connection(address, timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = context.wrap_socket(connection, server_hostname=name)
        except (OSError, LsmqError) as error:
            if connection is not None:
                connection.close()
            # kazoo tries again after what the system refuses, and after nothing else.
            self.refused = error if isinstance(error, OSError) else OSError(error.message)
            raise self.refused from error
        self.refused = None
        return secured

    def select(self, reading: Any, *others: Any, **options: Any) -> Any:
        """Answers that came in one piece of TLS with others are not in the socket any more, and are no less there."""
        waiting = [one for one in reading if isinstance(one, ssl.SSLSocket) and one.pending()]
        return (waiting, [], []) if waiting else super().select(reading, *others, **options)

    def cut(self) -> None:
        """Wake whoever waits for an answer that will not come."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
