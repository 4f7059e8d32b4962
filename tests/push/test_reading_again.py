"""Pushed queues while the disk is full: what was sent stays sent, what was acknowledged is committed when it can be."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from api.in_process import Session, node_of, with_node
from lsmq.errors import Unavailable
from lsmq_node.api.offsets import drop_offsets, reset_offsets
from lsmq_node.broker import Broker
from lsmq_node.cluster.disk_thread import DiskThread
from lsmq_node.groups import GroupService
from lsmq_node.push.feed import Feed
from lsmq_node.storage.segments import SegmentFiles
from support.waiting import comes_true

from .streams import HeldStream


async def send(session: Session, *bodies: str) -> None:
    messages = [{"queue": 0, "body": body} for body in bodies]
    assert (await session.post("/v1/topics/t/messages", json={"messages": messages})).status == 200


def test_an_acknowledgement_that_is_dropped_for_want_of_space_counts_and_nothing_comes_again(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "no space left")

    async def test(session: Session, broker: Broker) -> None:
        store = broker.topology.port(0).store
        topic = await broker.topic("t")

        def committed() -> int:
            return int(store.committed_offsets("g", topic.id, np.array((0,)))[0])

        await send(session, "0", "1", "2", "3")
        async with session.ws_connect("/v1/groups/g/push", params={"topic": "t"}, protocols=("lsmq.json",)) as socket:
            stream = HeldStream(socket)
            first, second, third, last = await stream.messages(4, ack=False)
            [before] = node_of(session).push.shards()
            with patch.object(SegmentFiles, "prepare", side_effect=full):
                await stream.ack(first, second)
                await comes_true(lambda: not before.is_current, "the commit was dropped, with its round")
                await stream.ack(third)
            await comes_true(lambda: committed() == 3, "what was acknowledged meanwhile is committed as well")
            [after] = node_of(session).push.shards()
            assert after is not before and after.part is before.part
            await stream.ack(last)
            await comes_true(lambda: committed() == 4, "it goes on")

            async def is_taken() -> bool:  # A look at the disk that began before may still find it full.
                found = await session.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "4"}]})
                return found.status == 200

            await comes_true(is_taken, "there is space")
            assert [message["body"] for message in await stream.messages(1)] == ["4"]
        await comes_true(lambda: not node_of(session).push.shards(), "the feed goes with its last stream")
        assert not node_of(session).push._left

    with_node(tmp_path, test)


def test_what_a_subscriber_has_acknowledged_just_now_goes_with_its_group(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        node, store = node_of(session), broker.topology.port(0).store
        await send(session, "0", "1")
        document = {"topic": "t", "queues": [0], "offsets": [2]}
        with patch.object(DiskThread, "kick_soon"):
            committing = asyncio.create_task(session.post("/v1/groups/g%2Fnorth/offsets", json=document))
            await comes_true(lambda: store.stats().waiting_bytes, "it is in line")
            dropping = asyncio.create_task(drop_offsets(SimpleNamespace(node=node), "g", 0))
            for _ in range(20):
                await asyncio.sleep(0)  # It looks for what is to be dropped.
        await send(session, "2")
        assert (await committing).status == 200
        await dropping
        assert store.groups() == []

    with_node(tmp_path, test)


@pytest.mark.parametrize("how", ["reset", "dropped"])
def test_a_stream_that_begins_as_offsets_are_set_begins_again_whoever_sets_them_is_gone(
    tmp_path: Path, how: str
) -> None:
    async def test(session: Session, broker: Broker) -> None:
        node, store, topic = node_of(session), broker.topology.port(0).store, await broker.topic("t")
        await send(session, "0", "1")
        document = {"topic": "t", "queues": [0], "offsets": [2]}
        assert (await session.post("/v1/groups/g/offsets", json=document)).status == 200
        name = "commit" if how == "reset" else "forget_offsets"
        put, streams, nothing_is_stored = getattr(node.groups, name), list[HeldStream](), ExitStack()
        is_open = asyncio.Event()

        async def put_behind_a_stream(service: GroupService, *given: Any, **named: Any) -> None:
            socket = await session.ws_connect("/v1/groups/g/push", params={"topic": "t"}, protocols=("lsmq.json",))
            streams.append(HeldStream(socket))
            await streams[0].owns([0, 2])
            nothing_is_stored.enter_context(patch.object(DiskThread, "kick_soon"))
            is_open.set()
            await put(*given, **named)

        call: Any = SimpleNamespace(node=node)
        with patch.object(GroupService, name, put_behind_a_stream):
            zero = np.zeros(1, np.int64)
            setting = asyncio.create_task(
                reset_offsets(call, "g", topic, zero.astype(np.uint32), zero)
                if how == "reset"
                else drop_offsets(call, "g", 0)
            )
            await is_open.wait()
            await comes_true(lambda: store.stats().waiting_bytes, "it is in line")
            setting.cancel()
            await asyncio.wait([setting])
        nothing_is_stored.close()
        await send(session, "2")
        assert (await streams[0].until("end"))["reset"]
        await streams[0].socket.close()
        async with session.ws_connect("/v1/groups/g/push", params={"topic": "t"}, protocols=("lsmq.json",)) as socket:
            assert [message["body"] for message in await HeldStream(socket).messages(3)] == ["0", "1", "2"]

    with_node(tmp_path, test)


def test_feeds_are_looked_through_only_where_leadership_or_a_part_has_changed(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        push = node_of(session).push
        async with AsyncExitStack() as sockets:
            for _ in range(3):
                params = {"topic": "t", "mode": "broadcast"}
                socket = await sockets.enter_async_context(
                    session.ws_connect("/v1/groups/all/push", params=params, protocols=("lsmq.json",))
                )
                await HeldStream(socket).owns([0, 2])
            push.look()
            with patch.object(Feed, "refresh", autospec=True, side_effect=Feed.refresh) as refreshed:
                for _ in range(5):
                    push.look()
                assert refreshed.call_count == 0
                [one, *_] = push.shards()
                one.break_off(Unavailable("it is read again", sent=False))
                await comes_true(lambda: one not in push.shards() and len(push.shards()) == 3, "it was begun again")
                assert refreshed.call_count >= 3

    with_node(tmp_path, test)
