"""Acknowledgements that come when a stream is over: its queues are another one's by then."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp

from api.in_process import Session, node_of, with_node
from lsmq_node.broker import Broker
from lsmq_node.cluster.disk_thread import DiskThread
from support.waiting import PATIENCE_S

from .streams import HeldStream


async def send(session: Session, *bodies: str) -> None:
    messages = [{"queue": 0, "body": body} for body in bodies]
    assert (await session.post("/v1/topics/t/messages", json={"messages": messages})).status == 200


async def event(response: aiohttp.ClientResponse, kind: str) -> Any:
    """The value of the next server-sent event of this kind."""
    while await response.content.readline() != b"event: %b\n" % kind.encode():
        pass
    return json.loads((await response.content.readline()).removeprefix(b"data: "))


def test_what_a_stream_acknowledges_after_another_one_took_its_place_counts_no_more(tmp_path: Path) -> None:
    """Until all that it acknowledged before is committed, it is still known."""

    async def test(session: Session, broker: Broker) -> None:
        path, query = "/v1/groups/g/push", {"topic": "t", "subscriber": "a"}
        await send(session, "0", "1", "2", "3")
        events = await session.get(path, params=query, headers={"Accept": "text/event-stream"})
        former = f"{path}/{(await event(events, 'stream'))['id']}"
        assert len(await event(events, "messages")) == 4
        [stream] = node_of(session).push.streams_of("g")
        with patch.object(DiskThread, "kick_soon"):  # Nothing is committed.
            assert (await session.post(former, json={"ack": [[0, 0]]})).status == 200
            async with session.ws_connect(path, params=query, protocols=("lsmq.json",)) as socket:
                again = await HeldStream(socket).messages(3, ack=False)
                assert [message["offset"] for message in again] == [1, 2, 3]
                answer = await session.post(former, json={"ack": [[0, 3]]})
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_stream")
                [led] = node_of(session).push.shards()
                assert led.part.pending == {0: 1}, "what the other one has is not committed"
                stream.acknowledge([(0, 3)])  # as over a connection that is behind
                assert led.part.pending == {0: 1}
        await send(session, "4")

    with_node(tmp_path, test)


def test_a_stream_is_closed_cleanly_only_when_all_that_it_acknowledged_is_durable(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await send(session, "0", "1")
        for is_kept in (True, False):
            socket = await session.ws_connect("/v1/groups/g/push", params={"topic": "t"}, protocols=("lsmq.json",))
            stream = HeldStream(socket)
            [message, *_] = await stream.messages(1, ack=False)
            with nullcontext() if is_kept else patch.object(DiskThread, "kick_soon"):
                await stream.ack(message)
                await socket.close()
            assert socket.close_code == (1000 if is_kept else 1013)
        await send(session, "2")

    with_node(tmp_path, test)


def test_a_stream_is_closed_at_once_though_others_of_its_group_go_on_acknowledging(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        path, query = "/v1/groups/g/push", {"topic": "t"}
        await send(session, "0")
        async with session.ws_connect(path, params=query, protocols=("lsmq.json",)) as socket:
            await HeldStream(socket).messages(1)
            [feed] = node_of(session).push._feeds.values()
            [led] = node_of(session).push.shards()
            with patch("lsmq_node.push.feed._FLUSH_S", 10 * PATIENCE_S):
                led.acknowledged(0, 1)
                flushing = asyncio.create_task(feed.flush())
                async with asyncio.timeout(PATIENCE_S):
                    while not flushing.done():
                        led.acknowledged(0, 1)
                        await asyncio.sleep(0)
            await flushing

    with_node(tmp_path, test)
