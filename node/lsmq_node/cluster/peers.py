"""Requests of nodes to each other for what their clients want: signed, over the internal port.

``POST /internal/peers/{operation}``: a msgpack map in, one out; errors as the control plane's. The signature is checked
before a byte of the body is read, and the body is bounded (see :mod:`lsmq_coordinator.auth`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack
from aiohttp import web

from lsmq.errors import ConnectionFailed, InvalidRequest, LsmqError, Unavailable
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.control_http import ControlHttp, Unreachable
from lsmq_coordinator.http_status import status_of
from lsmq_node.broker.peers import Answering

MSGPACK = "application/msgpack"
PATH = "/internal/peers/"
#: A body from so many bytes on is unpacked in a thread.
_LARGE_BYTES = 64 * 1024


class ClusterPeers:
    """Loop thread only. Add :meth:`routes` to an application behind ``auth_middleware``; start it, and close it."""

    def __init__(self, secret: ClusterSecret, leader_url: Callable[[int], str | None]) -> None:
        """``leader_url``: the internal URL of the leader of a shard, None while there is none."""
        self._http = ControlHttp(secret)
        self._leader_url = leader_url
        self._handlers: dict[str, Answering] = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.post(f"{PATH}{{operation}}", self._answer)]

    async def __aenter__(self) -> None:
        await self._http.start()

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    def answer(self, operation: str, handler: Answering) -> None:
        self._handlers[operation] = handler

    async def ask(self, shard: int, operation: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        url = self._leader_url(shard)
        if url is None:
            raise Unavailable(f"shard {shard} has no leader now", shard=shard, sent=False)
        try:
            return await self._http.call(url, "POST", PATH + operation, body, timeout_s)
        except Unreachable as error:
            raise ConnectionFailed(error.message, url=url, sent=error.sent) from error

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


def _unpack(body: bytes) -> dict[str, Any]:
    asked = msgpack.unpackb(body)
    if not isinstance(asked, dict):
        raise InvalidRequest("the body must be a msgpack map")
    return asked


def _packed(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgpack.packb(content), content_type=MSGPACK)
