"""Filters and expiry on a real cluster: the same after a leader was killed, on followers, and over a relayed stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lsmq import Client, Consumer, Message, Producer, PushConsumer
from lsmq_lab.local_cluster import LocalCluster
from support.group_topic import take
from support.waiting import comes_true

pytestmark = pytest.mark.slow

QUEUES = 6
PICKS: Any = {"type": "wanted", "filter": "n >= 100"}


async def fill(client: Client, first: int, count: int) -> None:
    async with Producer(client, "t") as producer:
        for number in range(first, first + count):
            await producer.send(
                f"{number}",
                queue=number % QUEUES,
                type="wanted" if number % 3 == 0 else "other",
                properties={"n": str(number)},
                **({"ttl_ms": 1} if number % 2 == 0 else {"ttl_ms": 3_600_000}),
            )


def wanted(end: int) -> set[str]:
    return {f"{number}" for number in range(100, end) if number % 3 == 0 and number % 2}


async def test_filters_and_expiry_outlive_a_leader_and_hold_on_followers(cluster: LocalCluster) -> None:
    urls = [node.url for node in cluster.plan.nodes]
    async with Client(urls) as client:
        await client.create_topic("t", queues=QUEUES)
        await fill(client, 0, 300)
        group: Any = {"group": "g", "wait_ms": 200, **PICKS}
        async with Consumer(client, "t", **group) as consumer:
            first = await take(consumer, len(wanted(300)))
            assert {message.text() for message in first} == wanted(300)
            status = await asyncio.to_thread(cluster.wait_ready)
            victim = next(shard.leader for shard in status.shards if shard.leader is not None)
            await asyncio.to_thread(cluster.kill, victim)
            await fill(client, 300, 300)
            second = await take(consumer, len(wanted(600)) - len(first))
            assert {message.text() for message in [*first, *second]} == wanted(600)
            await consumer.commit()
        await asyncio.to_thread(cluster.start, victim)
        await asyncio.to_thread(cluster.wait_ready)

        for source in ("leader", "follower"):
            async with Consumer(client, "t", read_from=source, wait_ms=200, **PICKS) as consumer:  # type: ignore[arg-type]
                found = await take(consumer, len(wanted(600)))
                assert {message.text() for message in found} == wanted(600)
                assert await consumer.poll(timeout_ms=300) == []

        async with PushConsumer(client, "t", group="pushed", **PICKS) as pushed:
            sent: list[Message] = []
            while len(sent) < len(wanted(600)):
                sent += await pushed.poll(timeout_ms=20_000)
            assert {message.text() for message in sent} == wanted(600)
            pushed.ack()

        async with Consumer(client, "t", **group) as consumer:

            async def is_at_the_end() -> bool:
                assert await consumer.poll(timeout_ms=100) == []
                await consumer.commit()
                return await client.committed_offsets("g", "t") == dict.fromkeys(range(QUEUES), 100)

            await comes_true(is_at_the_end, "the group stands at the end")
