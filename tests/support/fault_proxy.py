"""An HTTP proxy before one node that loses answers, cuts connections, delays and refuses, as told.

It names itself in the routes that pass through, so that a client stays behind it. Faults are queued per
path ending and used up one a request, in order; without one left, requests pass.
"""

from __future__ import annotations

import asyncio
import io
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Self

import aiohttp
import msgpack
from aiohttp import web

MSGPACK = "application/msgpack"
_HOP_HEADERS = {"transfer-encoding", "content-length", "connection", "host", "keep-alive", "date", "server"}


class FaultProxy:
    """``async with FaultProxy(node.url) as proxy``: clients use ``proxy.url``."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream.rstrip("/")
        self.url = ""
        self.requests: dict[str, int] = defaultdict(int)
        self.bodies: dict[str, list[bytes]] = defaultdict(list)
        self._faults: dict[str, deque[Callable[[web.Request], Any]]] = defaultdict(deque)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    # Faults, for requests whose path ends in `ending`

    def lose_answers(self, ending: str, times: int = 1) -> None:
        """The node carries the request out; the connection breaks before the answer."""

        async def lose(request: web.Request) -> web.StreamResponse:
            await self._forward(request)
            return self._cut(request)

        self._faults[ending].extend([lose] * times)

    def cut(self, ending: str, times: int = 1) -> None:
        """The connection breaks before the node sees the request."""

        async def cut(request: web.Request) -> web.StreamResponse:
            await request.read()
            return self._cut(request)

        self._faults[ending].extend([cut] * times)

    def delay(self, ending: str, seconds: float, times: int = 1) -> None:
        """The node carries the request out; the answer takes its time."""

        async def delay(request: web.Request) -> web.StreamResponse:
            answer = await self._forward(request)
            await asyncio.sleep(seconds)
            return answer

        self._faults[ending].extend([delay] * times)

    def refuse(self, ending: str, status: int, error: dict[str, Any] | None, times: int = 1) -> None:
        """Answer an error in the node's place; without one, a page that no node would write."""

        async def refuse(request: web.Request) -> web.StreamResponse:
            await request.read()
            if error is None:
                return web.Response(text="<html>Bad Gateway</html>", content_type="text/html", status=status)
            return web.json_response({"error": error}, status=status)

        self._faults[ending].extend([refuse] * times)

    def say(self, ending: str, answer: bytes, times: int = 1, *, carried_out: bool = False) -> None:
        """Say these bytes in the place of a node that has ``carried_out`` the request, or not, and hang up."""

        async def say(request: web.Request) -> web.StreamResponse:
            await (self._forward(request) if carried_out else request.read())
            assert request.transport is not None
            request.transport.write(answer)
            request.transport.close()
            return web.Response()

        self._faults[ending].extend([say] * times)

    def corrupt(self, ending: str, times: int = 1) -> None:
        """Flip a bit in the middle of the answer."""

        async def corrupt(request: web.Request) -> web.StreamResponse:
            answer = await self._forward(request)
            assert isinstance(answer.body, bytes)
            damaged = bytearray(answer.body)
            damaged[len(damaged) // 2] ^= 1
            return web.Response(status=answer.status, headers=answer.headers, body=bytes(damaged))

        self._faults[ending].extend([corrupt] * times)

    # Passing on

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        ending = request.path.rpartition("/")[2]
        self.requests[ending] += 1
        self.bodies[ending].append(await request.read())
        if self._faults[ending]:
            answer: web.StreamResponse = await self._faults[ending].popleft()(request)
            return answer
        return await self._forward(request)

    async def _forward(self, request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_HEADERS}
        try:
            async with self._session.request(
                request.method, self.upstream + request.path_qs, headers=headers, data=io.BytesIO(await request.read())
            ) as answer:
                body = await answer.read()
                kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_HEADERS}
                return web.Response(status=answer.status, headers=kept, body=self._renamed(answer.content_type, body))
        except aiohttp.ClientError:
            assert request.transport is not None
            request.transport.abort()
            raise

    def _renamed(self, content_type: str, body: bytes) -> bytes:
        if content_type == MSGPACK and body:
            packed: bytes = msgpack.packb(self._rename(msgpack.unpackb(body)))
            return packed
        if content_type == "application/json":
            return body.replace(self.upstream.encode(), self.url.encode())
        return body

    def _rename(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._rename(field) for name, field in value.items()}
        if isinstance(value, list):
            return [self._rename(item) for item in value]
        return self.url if value == self.upstream else value

    @staticmethod
    def _cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
