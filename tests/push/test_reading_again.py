"""Pushed queues while the disk is full: what was sent stays sent, what was acknowledged is committed when it can be."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import patch

import numpy as np

from api.in_process import Session, node_of, with_node
from lsmq_node.broker import Broker
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
