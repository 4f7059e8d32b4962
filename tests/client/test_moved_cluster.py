"""What expires, or is dropped at a limit, on a real cluster whose leaders are killed: each letter comes."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from lsmq import Client, Message, Producer, UnknownTopic
from lsmq.dead_letters import DeadLetters
from lsmq_lab.local_cluster import LocalCluster
from support.waiting import comes_true

pytestmark = pytest.mark.slow

QUEUES = 6
COUNT = 3_000


def urls(cluster: LocalCluster) -> list[str]:
    return [node.url for node in cluster.plan.nodes]


async def letters(client: Client, topic: str) -> list[Message]:
    try:
        return [letter.message async for letter in DeadLetters(client, topic).read()]
    except UnknownTopic:
        return []


@pytest.mark.part(2)
async def test_no_letter_is_lost_though_leaders_are_killed_while_messages_are_moved(cluster: LocalCluster) -> None:
    async with Client(urls(cluster)) as client:
        await client.create_topic("t", queues=QUEUES, expired_to="late")
        await client.create_topic(
            "full", queues=QUEUES, dropped_to="over", queue_max_messages=10, overflow="drop_oldest"
        )
        async with Producer(client, "t") as producer, Producer(client, "full") as full:
            receipts = [
                await each.send(f"{number}", queue=number % QUEUES, **more)
                for number in range(COUNT)
                for each, more in ((producer, {"ttl_ms": 1 + number * 10}), (full, {}))
            ]
            for receipt in receipts:
                await receipt
        wanted = {
            "late": {f"{number}" for number in range(COUNT)},
            "over": {f"{number}" for number in range(COUNT - 10 * QUEUES)},
        }
        for least in (COUNT // 4, COUNT // 2):

            async def come(least: int = least) -> bool:
                return len(await letters(client, "late")) >= least

            await comes_true(come, f"{least} are moved")
            status = await asyncio.to_thread(cluster.status)
            victim = next(shard.leader for shard in status.shards if shard.leader is not None)
            await asyncio.to_thread(cluster.kill, victim)
            await asyncio.to_thread(cluster.start, victim)
            await asyncio.to_thread(cluster.wait_ready)
        for name, bodies in wanted.items():

            async def all_come(name: str = name, bodies: set[str] = bodies) -> bool:
                return {letter.text() for letter in await letters(client, name)} == bodies

            await comes_true(all_come, f"all of {name} are there")
            found = await letters(client, name)
            assert max(Counter(letter.text() for letter in found).values()) <= 2
            assert {letter.properties["lsmq-dlq-queue"] for letter in found} == {str(queue) for queue in range(QUEUES)}
            topic = await client.topic(name)
            assert len({topic.route(letter.queue).shard for letter in found}) > 1, "each in the shard it comes from"
        usage = await client.topic_usage("t")
        assert (usage.messages, usage.dropped["lapsed"]) == (0, COUNT)
        assert (await client.topic_usage("full")).messages == 10 * QUEUES
