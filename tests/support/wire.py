"""A TCP proxy that can go silent, as a network does: nothing is closed, and nothing arrives."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

_CHUNK_BYTES = 64 * 1024


class Wire:
    """``with Wire(port) as wire``: connect to ``wire.port`` instead. In a thread of its own; call it from any."""

    def __init__(self, upstream_port: int) -> None:
        self.port = 0
        self._upstream = upstream_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._passable = asyncio.Event()
        self._passable.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *failure: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def cut(self) -> None:
        """From now on nothing passes. What was sent meanwhile arrives when it is healed, if anybody still wants it."""
        self._loop.call_soon_threadsafe(self._passable.clear)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._passable.set)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._carry(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._passable.wait()
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
            pumps = [
                asyncio.create_task(self._pump(reader, upstream)),
                asyncio.create_task(self._pump(answers, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            for side in (writer, upstream):
                if side is not None:
                    side.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._passable.wait()
                writer.write(chunk)
                await writer.drain()
