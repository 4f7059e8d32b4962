"""Streams that end, or say what no node says: of what stands between, and of other releases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgpack
import pytest
from aiohttp import web

from lsmq import Client, Producer, PushConsumer
from lsmq.push_streams import PROTOCOL
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess


class StreamProxy(FaultProxy):
    """Passes streams on; the first ``times`` of them it answers itself with ``frames``, and closes with ``code``."""

    frames: tuple[bytes | str, ...] = ()
    code = 1000
    times = 0
    opened = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/push"):
            return await super()._handle(request)
        self.opened += 1
        held = web.WebSocketResponse(protocols=(PROTOCOL,), autoping=False)
        await held.prepare(request)
        if self.opened <= self.times:
            for frame in self.frames:
                await (held.send_str(frame) if isinstance(frame, str) else held.send_bytes(frame))
            await held.close(code=self.code)
            return held
        async with self._session.ws_connect(
            self.upstream + request.path_qs, protocols=(PROTOCOL,), autoping=False
        ) as upstream:
            pumps = [
                asyncio.create_task(_pump(held, upstream.send_bytes)),
                asyncio.create_task(_pump(upstream, held.send_bytes)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        await held.close()
        return held


async def _pump(source: Any, send: Callable[[bytes], Awaitable[None]]) -> None:
    async for frame in source:
        if frame.type is aiohttp.WSMsgType.BINARY:
            await send(frame.data)


def packed(frame: object) -> bytes:
    return bytes(msgpack.packb(frame))


@pytest.mark.parametrize(
    "frame",
    [
        "hello",
        b"",
        b"\xc1",
        packed({})[:1] + b"more",
        *map(
            packed,
            [
                5,
                {1: 2},
                {"end": "over"},
                {"queues": 5},
                {"queues": [["a", "b"]]},
                {"messages": [{}]},
                {"messages": 3},
                {"late": 1},
                {"leaders": [1]},
                {"leaders": [["a", "b", 3]]},
            ],
        ),
    ],
)
async def test_a_stream_that_says_what_no_node_says_is_begun_anew(
    shared_node: NodeProcess, topic_name: str, frame: bytes | str
) -> None:
    async with StreamProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name, queues=4)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("a")
        proxy.frames, proxy.times = (packed({"queues": [[0, 4]]}), frame), 2
        async with PushConsumer(client, topic_name, group=f"p-{topic_name}") as consumer:
            assert [message.body for message in await consumer.poll()] == [b"a"]
            consumer.ack()
        assert proxy.opened == 3


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1008, 1009, 1011, 1012, 1013, 3000, 4999])
async def test_a_stream_that_is_closed_is_begun_anew_whatever_the_code(
    shared_node: NodeProcess, topic_name: str, code: int
) -> None:
    async with StreamProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("a")
        proxy.code, proxy.times = code, 2
        async with PushConsumer(client, topic_name, group=f"p-{topic_name}") as consumer:
            assert [message.body for message in await consumer.poll()] == [b"a"]
        assert proxy.opened == 3


async def test_streams_that_end_as_soon_as_they_begin_are_not_begun_without_end(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with StreamProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        proxy.frames, proxy.times = (packed({"queues": [[0, 1]]}),), 100_000
        async with PushConsumer(client, topic_name, group=f"p-{topic_name}") as consumer:
            assert await consumer.poll(timeout_ms=1_500) == []
        assert proxy.opened < 25
