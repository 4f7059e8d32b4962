"""Delayed messages on a real cluster whose leaders are killed: all that was acknowledged comes, once, and not early."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest

from lsmq import Client, Consumer, DelayedMessages, Message, Producer, Schedules, Sent
from lsmq.schedules import list_schedules
from lsmq_lab.local_cluster import LocalCluster

pytestmark = pytest.mark.slow

QUEUES = 6
HOUR_MS = 3_600_000


def urls(cluster: LocalCluster) -> list[str]:
    return [node.url for node in cluster.plan.nodes]


@pytest.mark.part(2)
async def test_each_comes_once_though_leaders_are_killed_and_some_are_cancelled(cluster: LocalCluster) -> None:
    chance = random.Random(7)
    sent: dict[int, Sent] = {}
    cancelled: set[int] = set()
    over, progress = asyncio.Event(), asyncio.Condition()
    async with Client(urls(cluster)) as client:
        await client.create_topic("t", queues=QUEUES)
        await client.create_topic("n", queues="named")

        async def produce() -> None:
            number = 0
            async with Producer(client, "t", linger_ms=1) as producer, Producer(client, "n", linger_ms=1) as named:
                while not over.is_set():
                    receipts = []
                    for _ in range(50):
                        delay_ms = chance.choice((0, 5, 200, 1500, 4000))
                        queue = number % QUEUES
                        if number % 2:
                            sending = named.send(f"{number}", queue=f"q{queue}", delay_ms=delay_ms)
                        else:
                            sending = producer.send(f"{number}", queue=queue, delay_ms=delay_ms)
                        receipts.append((number, await sending))
                        number += 1
                    for each, receipt in receipts:
                        sent[each] = await receipt
                    async with progress:
                        progress.notify_all()
                    await cancel([each for each, _ in receipts if chance.random() < 0.02])
            for one in (producer, named):
                assert (one.stats.failed, one.stats.lost_state) == (0, 0)

        async def cancel(some: list[int]) -> None:
            for number in some:
                due_ms = sent[number].due_ms
                if due_ms is not None and due_ms > _wall_ms() + 2500:
                    await DelayedMessages(client, "n" if number % 2 else "t").cancel(sent[number].id)
                    cancelled.add(number)

        async def many_more() -> None:
            before = len(sent)
            async with progress:
                await progress.wait_for(lambda: len(sent) >= before + 1500)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            for _ in range(2):
                await many_more()
                status = await asyncio.to_thread(cluster.status)
                victim = next(shard.leader for shard in status.shards if shard.leader is not None)
                await asyncio.to_thread(cluster.kill, victim)
                await many_more()
                await asyncio.to_thread(cluster.start, victim)
                await asyncio.to_thread(cluster.wait_ready)
            over.set()
        expected = len(sent) - len(cancelled)
        found: list[Message] = []
        async with (
            Consumer(client, "t", queues=range(QUEUES), start="earliest") as consumer,
            Consumer(client, "n", start="earliest") as named,
        ):
            ours = sum(number % 2 == 0 for number in sent.keys() - cancelled)
            for reader, all_of_it in ((consumer, ours), (named, expected)):
                while len(found) < all_of_it:
                    found += await reader.poll(timeout_ms=20_000)
                found += await reader.poll(timeout_ms=500)
        counts = Counter(int(message.text()) for message in found)
        assert max(counts.values()) == 1, "none came twice"
        assert set(counts) == set(sent) - cancelled, "none is lost, and none that was cancelled came"
        assert cancelled, "some were cancelled"
        for message in found:
            due_ms = sent[int(message.text())].due_ms
            assert due_ms is None or message.stored_ms >= due_ms, "none came early"
            assert message.queue_name in (None, sent[int(message.text())].queue_name)
        for topic in ("t", "n"):
            assert [each async for each in DelayedMessages(client, topic).read()] == []


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_any_node_lists_and_cancels_what_others_keep(cluster: LocalCluster) -> None:
    async with Client(urls(cluster)) as client:
        await client.create_topic("t", queues=QUEUES)
        async with Producer(client, "t") as producer:
            sent = [
                await producer.send_and_wait(f"{number}", queue=number % QUEUES, delay_ms=HOUR_MS + number)
                for number in range(24)
            ]
    for turn, url in enumerate(urls(cluster)):
        async with Client(url) as client:
            delayed = DelayedMessages(client, "t")
            listed = [each.id async for each in delayed.read()]
            assert listed == [each.id for each in sent], "in the order in which they are due, of all shards"
            await delayed.cancel(sent.pop(turn).id)
            moved = await delayed.reschedule(sent[0].id, delay_ms=2 * HOUR_MS)
            sent = [*sent[1:], moved]


async def test_any_node_keeps_lists_and_deletes_schedules(cluster: LocalCluster) -> None:
    nodes = urls(cluster)
    async with Client(nodes) as client:
        await client.create_topic("t", queues=QUEUES)
    for number in range(QUEUES):
        async with Client(nodes[number % 3]) as client:
            await Schedules(client, "t").put(f"s{number}", "@yearly", f"{number}", queue=number)
            moved = await Schedules(client, "t").put("moves", "@daily", f"{number}", queue=number)
            assert moved.message.queue == number
    for number, url in enumerate(nodes):
        async with Client(url) as client:
            schedules = Schedules(client, "t")
            names = [each.name async for each in schedules.read()]
            assert names == ["moves", *(f"s{each}" for each in range(number, QUEUES))]
            assert (await schedules.get("moves")).message.text() == str(QUEUES - 1)
            listed, _ = await list_schedules(client)
            assert [each.name for each in listed if each.message.topic == "t"] == names
            await schedules.delete(f"s{number}")
