"""The sentinel: a process beside a node's that sees it end, and says so to the voters. See :mod:`~.death`.

Run by path with ``python -I -S``, and so made of the standard library alone: it must be small, start at once, and have
no reason to end. It is the node's child, and gets its order as one line of JSON on standard input::

    {"pid": 4711, "targets": [["127.0.0.1", 7601], ..], "request": "POST /death ...", "patience_s": 1.0,
     "tls": []}

``request`` is the notice, signed by the node itself beforehand: the sentinel knows no secret, and what it does is
to keep the notice back until it is true. It is true when the kernel says so: a pidfd is readable once all threads
of the process have ended, whatever ended it; a process that is stopped or stuck in the kernel has not ended.

``tls`` names the files of certificate, key and authority where the voters want TLS. They are read when the node has
ended, and only then is the module for it loaded.

The signals that end a terminal's or a service's processes are not heeded: the sentinel ends a moment after its node, or
when it is killed; then the node starts another one.

Not supported: anything but Linux; a death of both at once, by the loss of the machine, the power or the container. Then
the lease of the node has to run out.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

_RETRY_S = 0.03


def _await_end(pid: int) -> None:
    """Returns when the parent, which was ``pid``, has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    # Asked after the opening: who has this number now is the parent, or the parent has ended.
    if os.getppid() == pid:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        ended.poll()


def _securing(files: list[str]) -> Any:
    """What encrypts a connection to a host."""
    if not files:
        return lambda connection, host: connection
    import ssl

    cert, key, authority = files
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(cert, key)
    return lambda connection, host: context.wrap_socket(connection, server_hostname=host)


def _tell(target: tuple[str, int], secure: Any, request: bytes, deadline: float) -> None:
    """Give the notice to one voter, until it has it or its time is over."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            with (
                socket.create_connection(target, timeout=left) as plain,
                secure(plain, target[0]) as connection,
            ):
                connection.settimeout(left)
                connection.sendall(request)
                if connection.recv(16).startswith(b"HTTP/1.1 "):
                    return
        except OSError:
            pass
        time.sleep(_RETRY_S)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    order = json.loads(sys.stdin.readline())
    request = order["request"].encode()
    _await_end(order["pid"])
    deadline = time.monotonic() + order["patience_s"]
    secure = _securing(order["tls"])
    for host, port in order["targets"]:
        threading.Thread(target=_tell, args=((host, port), secure, request, deadline)).start()


if __name__ == "__main__":
    main()
