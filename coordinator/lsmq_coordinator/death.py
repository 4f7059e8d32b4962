"""Proof that a node's process has ended, so that nobody waits for the lease of the dead.

Nobody is followed before the last lease that could hold is over. A process that has ended holds none; but nothing
that its port does or its connections suffer tells that it has ended: all of it may also be done by what lies between.
So each process of a cluster signs a **death notice** for itself as it starts, and leaves it with a :mod:`~.sentinel`, a
small process beside it, which gives it to the voters when the kernel says that the process is gone.

A notice names the node and the *life*: a random name that each start of a process gives itself. A life is part of
what the cluster agrees on before it is given a lease (``register_node``), so a notice, however late, by whatever way
and however often it comes, condemns nobody but the life that it is for. A later life is agreed on when the one before
is proven to be over, or was silent for longer than any lease lasts: that it asks proves nothing, since it may be a
second process with a copy of the data directory.

::

    POST /death     Lsmq-Death: HMAC-SHA256 in hex, under a key of its own, over "node\\nlife"
    {"node": "n1", "life": "6f0c.."}

Not supported: a proof where machine, container or both processes are lost at once. The lease then runs out.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import sentinel
from .auth import ClusterSecret
from .errors import NotAuthenticated
from .parts import UNSEEN, Part
from .tls import TlsFiles

PATH = "/death"
HEADER = "Lsmq-Death"
MAX_NOTICE_BYTES = 1_024
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_STEADY_S = 10.0
#: What passes by itself.
_WANT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """``life`` of ``node`` has ended."""

    node: str
    life: str

    def to_bytes(self) -> bytes:
        return json.dumps({"node": self.node, "life": self.life}).encode()

    def signature(self, secret: ClusterSecret) -> str:
        return self._signature(secret.key("death"))

    def _signature(self, key: bytes) -> str:
        return hmac.new(key, f"{self.node}\n{self.life}".encode(), hashlib.sha256).hexdigest()

    @classmethod
    def verified(cls, content: bytes, signature: str | None, secret: ClusterSecret) -> DeathNotice:
        """The notice that a request brought. Raises ``NotAuthenticated``."""
        try:
            fields = json.loads(content)
            notice = cls(str(fields["node"]), str(fields["life"]))
            expected = [notice._signature(key) for key in secret.keys("death")]
        except (ValueError, KeyError, TypeError):
            raise NotAuthenticated("a death notice names a node and a life, in JSON") from None
        if not any(hmac.compare_digest((signature or "").encode(), each.encode()) for each in expected):
            raise NotAuthenticated("the death notice does not prove the cluster secret")
        return notice


class Sentinel:
    """Keeps a sentinel beside this process: started again when it ends before its time."""

    def __init__(
        self,
        notice: DeathNotice,
        secret: ClusterSecret,
        voters: Mapping[str, str],
        *,
        patience_s: float,
        part: Part = UNSEEN,
        tls: TlsFiles | None = None,
    ) -> None:
        """``voters``: ids to internal URLs. The notice is offered to each for ``patience_s``: after the node's timeout
        nobody needs it."""
        content = notice.to_bytes().decode()
        lines = [
            f"POST {PATH} HTTP/1.1",
            "Host: lsmq",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            f"{HEADER}: {notice.signature(secret)}",
        ]
        self._node = notice.node
        files = [] if tls is None else [path for path in (tls.cert, tls.key, tls.ca) if path is not None]
        self._order: dict[str, Any] = {
            "pid": os.getpid(),
            "targets": self._targets(voters),
            "request": "\r\n".join([*lines, "", content]),
            "patience_s": patience_s,
            "tls": [str(path.absolute()) for path in files],
        }
        self._part = part
        #: It was ended so that another one takes its place.
        self._aimed = False
        #: Of the sentinel; None while there is none.
        self.pid: int | None = None

    def _targets(self, voters: Mapping[str, str]) -> list[list[Any]]:
        addresses = [urlsplit(url) for voter, url in sorted(voters.items()) if voter != self._node]
        return [[address.hostname, address.port or 80] for address in addresses]

    def aim(self, voters: Mapping[str, str]) -> None:
        """Others vote now: another sentinel, which tells them, takes the place of the one there is."""
        targets = self._targets(voters)
        if targets != self._order["targets"]:
            self._order["targets"] = targets
            if self.pid is not None:
                self._aimed = True
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

    async def run(self) -> None:
        """Until cancelled. The sentinel stays then: this process is about to end."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_PAUSE_S
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (OSError, AttributeError) as error:
            if not (isinstance(error, OSError) and error.errno in _WANT):
                self._part.stopped(f"this system does not tell of the end of a process (pidfd_open: {error})")
                await asyncio.Event().wait()
        while True:
            began = loop.time()
            try:
                self.pid = self._start()
            except OSError as error:
                why = f"cannot be started: {error.strerror}"
            else:
                self._part.running()
                why = f"ended with {await self._ended(self.pid)}"
                self.pid = None
            if self._aimed:
                self._aimed = False
                continue
            if loop.time() - began > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            self._part.retrying(f"{why}; a death of this process would be noticed when its lease is over")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _start(self) -> int:
        reading, writing = os.pipe()
        try:
            null = [(os.POSIX_SPAWN_OPEN, stream, "/dev/null", os.O_WRONLY, 0) for stream in (1, 2)]
            command = [sys.executable, "-I", "-S", str(Path(sentinel.__file__))]
            pid = os.posix_spawn(
                command[0],
                command,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), *null],
                setsid=True,
            )
            with suppress(BrokenPipeError):
                os.write(writing, json.dumps(self._order).encode() + b"\n")
            return pid
        finally:
            os.close(reading)
            os.close(writing)

    async def _ended(self, pid: int) -> str:
        """How the child ended, once it has."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            process = os.pidfd_open(pid)
        except OSError as error:  # There is to be one that is watched, and no other beside it.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return f"{_reaped(pid)}, since it cannot be watched: {error.strerror}"
        loop.add_reader(process, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(process)
            os.close(process)
        return _reaped(pid)


def _reaped(pid: int) -> str:
    """Of a child that has ended."""
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return "a code that somebody else was told, as where SIGCHLD is ignored"
    return f"signal {-code}" if code < 0 else f"code {code}"
