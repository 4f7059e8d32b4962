"""What reaches nobody, since whoever asked is gone, is no error of the node."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from aiohttp import web

from lsmq_node.api.failures import HttpConnection, failures


@pytest.mark.parametrize("error", [ConnectionResetError("Cannot write to closing transport"), ZeroDivisionError("x")])
def test_a_caller_who_is_gone_is_not_logged(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    answers: list[bytes] = []

    async def run() -> None:

        async def handler(request: web.Request) -> web.StreamResponse:
            raise error

        app = web.Application(middlewares=[failures] if isinstance(error, ConnectionError) else [])
        app.router.add_get("/", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        assert runner.server is not None
        loop, listener = asyncio.get_running_loop(), socket.create_server(("127.0.0.1", 0))
        server = await loop.create_server(lambda: HttpConnection(runner.server, loop=loop), sock=listener)
        try:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
            answers.append(await reader.read())  # to its end: the connection is closed
            writer.close()
        finally:
            server.close()
            await runner.cleanup()

    asyncio.run(run())
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    if isinstance(error, ConnectionError):
        assert answers == [b""] and not errors
    else:
        assert b" 500 " in answers[0] and len(errors) == 1
