"""Numbers and times at their ends in both faces of the client: refused by name, and never taken for another one."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from lsmq import Client, Consumer, InvalidRequest, Producer, WorkQueue, sync
from lsmq._wire_values import to_ms
from support.node_process import NodeProcess

NO_OFFSETS: list[Any] = [-1, 2**63, 2**64, 10**400, True, False, 1.5, math.nan, math.inf, "0", None]
NO_TIMES: list[Any] = [-1, 0, -0.0, True, math.nan, -math.inf, "5"]
NO_COUNTS: list[Any] = [0, -1, math.nan, math.inf, True, "1"]
NO_STARTS: list[Any] = [b"", [], 1.5, True, math.nan]

Call = Callable[[Client, str, Any], Awaitable[object]]


async def _seek(client: Client, topic: str, offset: Any) -> None:
    async with Consumer(client, topic) as consumer:
        consumer.seek(0, offset)


async def _begin(client: Client, topic: str, offset: Any) -> None:
    async with Consumer(client, topic, queues=[0], start={0: offset}):
        pass


@pytest.mark.parametrize("offset", NO_OFFSETS, ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda client, topic, offset: client.delete_messages(topic, [(0, 0), (0, offset)]),
        lambda client, topic, offset: client.trim_topic(topic, {0: offset}),
        lambda client, topic, offset: client.commit_offsets("g", topic, {0: offset}),
        _seek,
        _begin,
    ],
    ids=["delete", "trim", "commit", "seek", "start"],
)
async def test_what_is_no_offset_is_refused_by_name(
    shared_node: NodeProcess, topic_name: str, call: Call, offset: object
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name) as producer:
            await producer.send_many([b"0", b"1"], queue=0)
        with pytest.raises(InvalidRequest, match="offset"):
            await call(client, topic_name, offset)
        assert (await client.offsets(topic_name)).earliest == [0, 0]
        async with Consumer(client, topic_name, queues=[0]) as consumer:
            assert [message.body for message in await consumer.poll()] == [b"0", b"1"]


async def test_true_is_no_queue_and_numbers_of_numpy_are(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name) as producer:
            for wrong in (True, 1.0, math.nan):
                with pytest.raises(InvalidRequest, match="queue"):
                    await producer.send(b"x", queue=wrong)  # type: ignore[arg-type]  # Which is what is tried.
                with pytest.raises(InvalidRequest, match="queue"):
                    await client.delete_messages(topic_name, [(wrong, 0)])  # type: ignore[list-item]
            sent = await (await producer.send(b"x", queue=np.int64(1)))  # type: ignore[arg-type]
            assert (sent.queue, sent.offset) == (1, 0)
        await client.trim_topic(topic_name, {np.uint32(1): np.int64(1)})  # type: ignore[dict-item]
        assert (await client.offsets(topic_name)).earliest == [0, 1]


async def test_numbers_that_no_request_can_have_are_refused_by_their_field(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        for number in (2**64, -(2**63) - 1, 10**30):
            with pytest.raises(InvalidRequest, match="retention_ms"):
                await client.create_topic(topic_name, queues=1, retention_ms=number)
        with pytest.raises(InvalidRequest, match="surrogate"):
            await client.create_topic(topic_name, queues=1, expired_to="\ud800")
        assert topic_name not in [topic.name for topic in await client.topics()]


@pytest.mark.parametrize("wrong", NO_TIMES, ids=repr)
def test_waits_that_are_none_are_refused_and_not_taken_for_others(wrong: Any) -> None:
    for name in ("deadline_ms", "request_timeout_ms", "connect_timeout_ms", "refresh_s"):
        with pytest.raises(InvalidRequest, match=name):
            Client("http://127.0.0.1:1", **{name: wrong})
    with sync.Client("http://127.0.0.1:1") as client:
        for name in ("deadline_ms", "request_timeout_ms"):
            with pytest.raises(InvalidRequest, match=name):
                sync.Producer(client, "t", **{name: wrong})


async def test_waits_may_be_of_no_time_or_endless_and_are_numbers() -> None:
    client = Client("http://127.0.0.1:1", deadline_ms=math.inf, request_timeout_ms=np.int64(5))  # type: ignore[arg-type]
    for wrong in (math.nan, -1, True, "1", math.inf):
        with pytest.raises(InvalidRequest, match="linger_ms"):
            Producer(client, "t", linger_ms=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="wait_ms"):
            Consumer(client, "t", wait_ms=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="wait_ms"):
            WorkQueue(client, "t", "g", wait_ms=wrong)  # type: ignore[arg-type]
    for name in ("max_messages", "max_bytes", "prefetch_bytes"):
        for wrong in NO_COUNTS:
            with pytest.raises(InvalidRequest, match=name):
                Consumer(client, "t", **{name: wrong})
    for wrong in NO_STARTS:
        with pytest.raises(InvalidRequest, match="start"):
            Consumer(client, "t", start=wrong)
    await client.close()


def test_every_millisecond_is_the_one_that_was_given() -> None:
    for ms in (0, 1, 999, 1_001, 13_057, 2**31, 1_700_000_000_001, 253_402_300_799_999, -1, -62_135_596_800_000):
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        assert to_ms(moment) == ms == to_ms(moment.astimezone(timezone(timedelta(hours=0)))) == to_ms(ms)
    for wrong in (1.5, math.nan, True, "2026-01-01", None):
        with pytest.raises(InvalidRequest, match="no time"):
            to_ms(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no time"):
        to_ms(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))))
