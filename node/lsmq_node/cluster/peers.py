"""Requests of nodes to each other for what their clients want: signed, over the internal port.

``POST /internal/peers/{operation}``: a msgpack map in, one out; errors as the control plane's. The signature is checked
before a byte of the body is read, and the body is bounded (see :mod:`lsmq_coordinator.auth`).

``/internal/api/...``: a client's request that came to a node which does not lead the shard, passed on as it is to the
one that does. What stands behind the prefix is the path of the API; the answer is the API's, whole and signed. The body
is read by the handler, within the node's limits and its budget, and checked against the signature there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack
from aiohttp import web

from lsmq.errors import ConnectionFailed, InvalidRequest, LsmqError, Unavailable
from lsmq_coordinator.auth import ANSWER_HEADER, START_HEADER, ClusterSecret
from lsmq_coordinator.control_http import MAX_ANSWER_BYTES, ControlHttp, Unreachable
from lsmq_coordinator.errors import NotAuthenticated
from lsmq_coordinator.http_status import status_of
from lsmq_coordinator.tls import Certificates
from lsmq_node.broker.peers import Answering, AnsweringPassed, PassedBack, PassedOn

MSGPACK = "application/msgpack"
PATH = "/internal/peers/"
#: Before the path of a client's request that is passed on.
API = "/internal/api"
#: A body from so many bytes on is unpacked in a thread.
_LARGE_BYTES = 64 * 1024
#: How often it is looked whether the node that passed a request on still waits for its answer.
_WATCH_S = 0.5
#: Of an answer, what belongs to the connection between the nodes and not to the client's.
_OWN_HEADERS = frozenset(
    header.lower() for header in (ANSWER_HEADER, START_HEADER, "Connection", "Content-Length", "Date", "Server")
)


class ClusterPeers:
    """Loop thread only. Add :meth:`routes` to an application behind ``auth_middleware``; start it, and close it."""

    def __init__(
        self,
        secret: ClusterSecret,
        leader_url: Callable[[int], str | None],
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        tls: Certificates | None = None,
    ) -> None:
        """``leader_url``: the internal URL of the leader of a shard, None while there is none."""
        self._http = ControlHttp(secret, tls=tls)
        # With connections of their own: requests of clients are held for as long as these like. They count them.
        self._passing = ControlHttp(secret, connections=0, max_answer_bytes=max_answer_bytes, tls=tls)
        self._leader_url = leader_url
        self._handlers: dict[str, Answering] = {}
        self._passed: AnsweringPassed | None = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{PATH}{{operation}}", self._answer),
            web.route("*", f"{API}/{{path:.*}}", self._answer_passed),
        ]

    async def __aenter__(self) -> None:
        await self._http.start()
        await self._passing.start()

    async def __aexit__(self, *error: object) -> None:
        await self._passing.close()
        await self._http.close()

    def answer(self, operation: str, handler: Answering) -> None:
        self._handlers[operation] = handler

    async def ask(self, shard: int, operation: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        url = self._leader(shard)
        try:
            return await self._http.call(url, "POST", PATH + operation, body, timeout_s)
        except Unreachable as error:
            raise _failed(error, url) from error

    def answer_passed_on(self, handler: AnsweringPassed) -> None:
        self._passed = handler

    async def pass_on(self, shard: int, request: PassedOn, timeout_s: float) -> PassedBack:
        url, path = self._leader(shard), API + request.path
        try:
            answer = await self._passing.exchange(url, request.method, path, request.body, request.headers, timeout_s)
        except Unreachable as error:
            raise _failed(error, url) from error
        except NotAuthenticated as error:  # Between nodes: to the client it says nothing of what it may.
            raise Unavailable(f"nodes of the cluster do not trust each other: {error.message}") from error
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _OWN_HEADERS}
        return PassedBack(answer.status, headers, answer.body)

    def _leader(self, shard: int) -> str:
        url = self._leader_url(shard)
        if url is None:
            raise Unavailable(f"shard {shard} has no leader now", shard=shard, sent=False)
        return url

    async def _answer_passed(self, request: web.Request) -> web.StreamResponse:
        """Answer as long as the node that passed it on is there: its client may be gone."""
        if self._passed is None:
            error = Unavailable("this node is starting", sent=False)
            return _packed({"error": error.to_dict()}, status_of(error))
        answering = asyncio.ensure_future(self._passed(request, request.raw_path.removeprefix(API)))
        try:
            while not answering.done() and request.transport is not None:
                await asyncio.wait((answering,), timeout=_WATCH_S)
        finally:
            answering.cancel()
        answer: web.StreamResponse = await answering
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            body = await request.read()
            asked = await asyncio.to_thread(_unpack, body) if len(body) >= _LARGE_BYTES else _unpack(body)
            handler = self._handlers.get(request.match_info["operation"])
            if handler is None:
                raise Unavailable(f"this node does not answer {request.path} yet", sent=False)
            return _packed(await handler(asked))
        except LsmqError as error:
            return _packed({"error": error.to_dict()}, status_of(error))
        except (KeyError, TypeError, ValueError) as error:
            refused = InvalidRequest(f"{type(error).__name__}: {error}")
            return _packed({"error": refused.to_dict()}, status_of(refused))


def _failed(error: Unreachable, url: str) -> ConnectionFailed:
    perhaps = "it may have been done; " if error.sent else ""
    return ConnectionFailed(
        f"{error.message}; {perhaps}ask again: a leader that is gone is replaced", url=url, sent=error.sent
    )


def _unpack(body: bytes) -> dict[str, Any]:
    asked = msgpack.unpackb(body)
    if not isinstance(asked, dict):
        raise InvalidRequest("the body must be a msgpack map")
    return asked


def _packed(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgpack.packb(content), content_type=MSGPACK)
