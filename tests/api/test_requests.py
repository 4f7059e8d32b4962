"""Requests as values, without HTTP: what a node does and takes is the same whatever protocol asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsmq.errors import (
    InvalidBatch,
    InvalidRequest,
    LsmqError,
    ShuttingDown,
    TooManyMessages,
    TopicReplaced,
    Unavailable,
    UnknownFetchSession,
    UnknownQueue,
)
from lsmq.record_batch import BatchBuilder, split_batches
from lsmq_node.broker import BROKER_PRODUCERS, DeleteRequest, Fetched, FetchRequest, Hold, ProduceRequest, ReadRequest
from lsmq_node.config import NodeConfig
from lsmq_node.node import Node, running_node
from lsmq_node.storage import StoredTopic, TopicOptions
from support.waiting import comes_true

Test = Callable[[Node, StoredTopic, Hold], Awaitable[None]]
LIMITS: dict[str, Any] = {"max_records": 100, "max_bytes": 1 << 20}


def with_topic(data: Path, test: Test, **settings: Any) -> None:
    """Run the test on a node of this process with a topic of four queues in two shards, for one client."""

    async def run() -> None:
        config = NodeConfig(data=data, shards=2, segment_bytes=1 << 20, memtable_bytes=4 << 20, **settings)
        async with running_node(config) as node:
            topic, _ = await node.broker.create_topic("t", 4, TopicOptions())
            with node.broker.budget.hold("somebody") as hold:
                await asyncio.wait_for(test(node, topic, hold), 30)
            await node.retire()

    asyncio.run(run())


def packed(*messages: tuple[int, bytes], **producer: int) -> bytes:
    builder = BatchBuilder()
    for queue, body in messages:
        builder.add(queue, body)
    return builder.build(**producer)


async def send(node: Node, topic: StoredTopic, hold: Hold, *messages: tuple[int, bytes]) -> list[int]:
    part = await node.broker.unpack(topic, packed(*messages), hold)
    (appended,) = await node.broker.produce(ProduceRequest(topic, (part,)))
    return [int(offset) for offset in appended.offsets]


def bodies(topic: StoredTopic, found: Fetched) -> list[bytes]:
    rows = ((batch, row) for batch in split_batches(found.load(), source="a test") for row in batch.rows(topic.id))
    return [bytes(batch.payload[row[4] : row[5]]) for batch, row in rows]


def test_what_was_produced_is_read_fetched_and_gone_on_with(tmp_path: Path) -> None:
    async def test(node: Node, topic: StoredTopic, hold: Hold) -> None:
        broker = node.broker
        assert await send(node, topic, hold, (0, b"a"), (1, b"b")) == [0, 0]
        assert await send(node, topic, hold, (3, b"c")) == [0]
        read = await broker.read(ReadRequest(topic=topic, queue=1, offset=0, **LIMITS), hold)
        assert bodies(topic, read) == [b"b"]
        wanted = {"queues": np.arange(4, dtype=np.uint32), "offsets": np.zeros(4, np.int64)}
        first = await broker.fetch(FetchRequest(topic=topic, **wanted, keep=True, **LIMITS), hold)
        assert sorted(bodies(topic, first)) == [b"a", b"b", b"c"] and first.session is not None
        await send(node, topic, hold, (2, b"d"))
        following = FetchRequest(topic=topic, session=first.session, **LIMITS)
        second = await broker.fetch(following, hold)
        assert bodies(topic, second) == [b"d"] and second.session not in (None, first.session)
        with pytest.raises(UnknownFetchSession):  # A token is good once.
            await broker.fetch(following, hold)
        await broker.delete(DeleteRequest(topic, np.array([0]), np.array([1]), before=True))
        earliest, latest = await broker.offsets(topic, np.arange(4))
        assert (earliest.tolist(), latest.tolist()) == ([1, 0, 0, 0], [1, 1, 1, 1])

    with_topic(tmp_path, test)


def test_no_request_has_more_than_the_limits_whoever_makes_it(tmp_path: Path) -> None:
    async def test(node: Node, topic: StoredTopic, hold: Hold) -> None:
        admission = node.broker.admission
        greedy: dict[str, Any] = {"max_records": 10**9, "max_bytes": 10**12, "wait_ms": 10**9}
        read = ReadRequest(topic=topic, queue=0, offset=0, **greedy)
        bounded = replace(read, max_records=5, max_bytes=1 << 16, wait_ms=7)
        assert admission.read(read) == bounded
        assert admission.read(bounded) is bounded
        queues = np.arange(4, dtype=np.uint32)
        fetch = admission.fetch(FetchRequest(topic=topic, queues=queues, offsets=np.zeros(4, np.int64), **greedy))
        assert (fetch.max_records, fetch.max_bytes, fetch.wait_ms) == (5, 1 << 16, 7)

    with_topic(tmp_path, test, max_messages_per_request=5, max_response_bytes=1 << 16, max_wait_ms=7)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"short", InvalidBatch),
        (packed((0, b"x")) + b"y", InvalidBatch),
        (packed(*[(0, b"x")] * 6), TooManyMessages),
        (packed((0, b"x"), producer_id=BROKER_PRODUCERS, sequence=0), InvalidBatch),
        (packed((0, b"x"), producer_id=7, sequence=0, position=2**63), InvalidBatch),
        (packed((0, b"x"), producer_id=7, sequence=0, position=2**64 - 1), InvalidBatch),
        (packed((0, b"x"), (3, b"y")), InvalidRequest),  # queues of two shards
        (packed((0, b"x"), (4, b"y")), UnknownQueue),
    ],
    ids=[
        "too short",
        "more than one",
        "too many",
        "the broker's producer",
        "no such position",
        "the greatest number",
        "two shards",
        "no such queue",
    ],
)
def test_a_batch_that_may_not_be_sent_is_refused_before_it_is_stored(
    tmp_path: Path, body: bytes, error: type[LsmqError]
) -> None:
    async def test(node: Node, topic: StoredTopic, hold: Hold) -> None:
        with pytest.raises(error):
            await node.broker.unpack(topic, body, hold)
        _, latest = await node.broker.offsets(topic, np.arange(4))
        assert not latest.any()

    with_topic(tmp_path, test, max_messages_per_request=5)


def test_queues_that_are_not_there_or_too_many_are_refused(tmp_path: Path) -> None:
    async def test(node: Node, topic: StoredTopic, hold: Hold) -> None:
        broker = node.broker
        for queues, error in (([0, 4], UnknownQueue), ([0, 1, 2], InvalidRequest)):
            wanted = {"queues": np.array(queues, np.uint32), "offsets": np.zeros(len(queues), np.int64)}
            with pytest.raises(error):
                await broker.fetch(FetchRequest(topic=topic, **wanted, **LIMITS), hold)
        with pytest.raises(UnknownQueue):
            await broker.read(ReadRequest(topic=topic, queue=4, offset=0, **LIMITS), hold)
        with pytest.raises(InvalidRequest, match="each queue needs its offset"):
            await broker.delete(DeleteRequest(topic, np.array([0, 1]), np.array([0])))

    with_topic(tmp_path, test, max_queues_per_request=2)


def test_who_means_another_topic_of_the_name_is_told(tmp_path: Path) -> None:
    async def test(node: Node, topic: StoredTopic, hold: Hold) -> None:
        assert await node.broker.topic("t", topic.id) == topic
        with pytest.raises(TopicReplaced):
            await node.broker.topic("t", topic.id - 1)
        with pytest.raises(Unavailable):
            await node.broker.topic("t", topic.id + 1)

    with_topic(tmp_path, test)


def test_a_node_that_stops_takes_no_writes_and_answers_reads_that_are_held(tmp_path: Path) -> None:
    async def test(node: Node, topic: StoredTopic, hold: Hold) -> None:
        broker = node.broker
        part = await broker.unpack(topic, packed((0, b"x")), hold)
        held = asyncio.create_task(
            broker.read(ReadRequest(topic=topic, queue=0, offset=0, wait_ms=20_000, **LIMITS), hold)
        )
        await comes_true(lambda: broker.waiters.count == 1, "it is held")
        await node.begin_stop()
        assert not await held
        with pytest.raises(ShuttingDown):
            await broker.produce(ProduceRequest(topic, (part,)))
        with pytest.raises(ShuttingDown):
            await broker.create_topic("u", 1, TopicOptions())

    with_topic(tmp_path, test)
