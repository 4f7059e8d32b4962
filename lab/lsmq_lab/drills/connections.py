"""Which process is at the other end of a TCP connection on this machine: asked of the kernel, by sock_diag(7).

A question costs some microseconds. Reading ``/proc/net/tcp``, the usual way, costs milliseconds where there are many
connections.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_TCP_ESTABLISHED = 1

# nlmsghdr: length, type, flags, sequence, port id.
_HEADER = struct.Struct("=IHHII")
# inet_diag_req_v2 up to the socket id: family, protocol, extensions, padding, states.
_REQUEST = struct.Struct("=BBBxI")
# inet_diag_sockid: ports and addresses in network order, interface, cookie (all ones: any).
_SOCKET_ID = struct.Struct("!HH4s12x4s12x4x8s")
# inet_diag_msg around the socket id: family, state, timer, retransmissions; expiry, queues, user, inode.
_ANSWER = struct.Struct("=BBBB48x4x4x4x4xI")
_ANY_COOKIE = b"\xff" * 8
_ANSWER_BYTES = 4096


def holder(host: str, source_port: int, target_port: int, pids: Iterable[int]) -> int | None:
    """Which of these processes opened the connection from ``source_port`` to ``target_port`` of ``host``, if it is
    still established."""
    inode = _inode(host, source_port, target_port)
    if not inode:
        return None
    wanted = f"socket:[{inode}]"
    return next((pid for pid in pids if _holds(pid, wanted)), None)


def _inode(host: str, source_port: int, target_port: int) -> int | None:
    address = socket.inet_aton(host)
    body = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << _TCP_ESTABLISHED)
    body += _SOCKET_ID.pack(source_port, target_port, address, address, _ANY_COOKIE)
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.sendall(header + body)
        answer = kernel.recv(_ANSWER_BYTES)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None  # An error: there is no such connection.
    _, state, _, _, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return int(inode) if state == _TCP_ESTABLISHED else None


def _holds(pid: int, file: str) -> bool:
    """Whether a process has a file open, by the name that ``/proc`` gives it."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(entry.readlink()) == file:
                    return True
    return False
