"""Signed requests between nodes: msgpack out, msgpack or an error of ``lsmq.errors`` back; or bytes, as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgpack
from yarl import URL

from lsmq.errors import ConnectionFailed, LsmqError, from_dict

from .auth import ANSWER_HEADER, START_HEADER, ClusterSecret, Signer
from .errors import ControlStopped, NoControlLeader, NodeRuns, NotAuthenticated, NotControlLeader
from .http_status import status_of
from .names import Names
from .tls import Certificates

MAX_ANSWER_BYTES = 64 << 20
_ATTEMPTS = 2  # the first may be for an earlier start of the node
_OWN_ERRORS: dict[str, type[LsmqError]] = {
    kind.code: kind for kind in (NoControlLeader, NotControlLeader, NodeRuns, ControlStopped, NotAuthenticated)
}


class Unreachable(ConnectionFailed):
    """No answer. ``sent`` is False when the request cannot have reached the node."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Exchanged:
    """An answer that has proved the secret, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ControlHttp:
    """A session for requests inside the cluster."""

    def __init__(
        self,
        secret: ClusterSecret,
        *,
        connections: int = 64,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        tls: Certificates | None = None,
    ) -> None:
        """``connections``: the most at a time; who asks for more waits."""
        self._tls = tls
        self._signer = Signer(secret)
        self._session: aiohttp.ClientSession | None = None
        self._connections = connections
        self._max_answer_bytes = max_answer_bytes

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(
            keepalive_timeout=30, limit=self._connections, resolver=Names(), use_dns_cache=False
        )
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, url: str, method: str, path: str, body: Any, timeout: float) -> dict[str, Any]:
        """The answer's map. Raises the error it carries, ``Unreachable`` or ``NotAuthenticated``."""
        content = b"" if body is None else msgpack.packb(body)
        headers = {"Content-Type": "application/msgpack"}
        answer = await self.exchange(url, method, path, content, headers, timeout)
        return _decoded(url, answer.status, answer.body)

    async def exchange(
        self, url: str, method: str, path: str, content: bytes, headers: Mapping[str, str], timeout: float
    ) -> Exchanged:
        """The answer, errors included, to ``content`` as it is. Raises ``Unreachable`` or ``NotAuthenticated``."""
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(url, method, path, content, headers)
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"{url} cannot be reached: {error}", sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{url} gave no answer: {type(error).__name__}: {error}", sent=True) from error
        except TimeoutError:
            raise Unreachable(f"{url} gave no answer within {timeout:.1f} s", sent=True) from None

    async def _exchange(
        self, url: str, method: str, path: str, content: bytes, headers: Mapping[str, str]
    ) -> Exchanged:
        assert self._session is not None, "not started"
        host = urlsplit(url).netloc
        for _ in range(_ATTEMPTS):
            signed = self._signer.sign(method, path, host, content)
            async with self._session.request(
                method,
                URL(url.rstrip("/") + path, encoded=True),
                data=content,
                headers={**headers, **signed.headers, "Host": host},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None),
                ssl=True if self._tls is None else self._tls.client,
            ) as answer:
                if (answer.content_length or 0) > self._max_answer_bytes:
                    raise Unreachable(f"{url} answered {answer.content_length} bytes", sent=True)
                received = await answer.read()
            if answer.status != status_of(NotAuthenticated):
                self._signer.check_answer(signed, answer.status, answer.headers.get(ANSWER_HEADER), received)
                return Exchanged(answer.status, answer.headers, received)
            # A node that cannot tell that we are of the cluster cannot sign its answer either.
            if not self._signer.learn(signed, answer.headers.get(START_HEADER)):
                break
        raise NotAuthenticated(f"{url} refuses this node: {received[:500].decode(errors='replace')}")


def _decoded(url: str, status: int, received: bytes) -> dict[str, Any]:
    try:
        content = msgpack.unpackb(received, strict_map_key=False)
    except ValueError as error:
        raise LsmqError(f"{url} answered {status} with something that is not msgpack") from error
    if status < 400:
        answer: dict[str, Any] = content
        return answer
    fields = dict(content["error"])
    kind = _OWN_ERRORS.get(fields.get("code", ""))
    if kind is None:
        raise from_dict(fields)
    message = str(fields.pop("message", ""))
    for name in ("code", "retriable", "refresh_route"):
        fields.pop(name, None)
    raise kind(message, **fields)
