"""A group whose coordinator dies: members go on, keep their queues, and handle each message once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from lsmq import Client, Consumer, Message, Producer
from lsmq.errors import FencedMember, UnknownMember
from lsmq.groups import Group
from lsmq_lab.local_cluster import LocalCluster
from support.waiting import comes_true

pytestmark = pytest.mark.slow

QUEUES = 12
MEMBERS = 3
TOPIC = "work"


class Crowd:
    """Members that handle what a producer sends, until told to stop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.handled: list[Message] = []
        self.sent = 0
        self.consumers: list[Consumer] = []
        self.stop = False

    async def handle(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.handled.append(message)

    async def produce(self) -> None:
        async with Producer(self.client, TOPIC, linger_ms=1) as producer:
            while not self.stop:
                receipts = [
                    await producer.send(f"{self.sent + n}", queue=(self.sent + n) % QUEUES) for n in range(QUEUES)
                ]
                for receipt in receipts:
                    await receipt
                self.sent += QUEUES
                await asyncio.sleep(0.005)

    async def go_on(self, count: int = 600) -> None:
        """Return when so many more are handled."""
        wanted = len(self.handled) + count
        await comes_true(lambda: len(self.handled) >= wanted, f"{wanted} messages are handled")


@pytest.mark.part(2)
async def test_the_coordinator_dies_and_no_member_loses_a_queue(cluster: LocalCluster) -> None:
    async with Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000) as client:
        await client.create_topic(TOPIC, queues=QUEUES)
        crowd, group = Crowd(client), Group(client, TOPIC)
        async with asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(crowd.produce())
            for _ in range(MEMBERS):
                crowd.consumers.append(Consumer(client, TOPIC, group=TOPIC, session_ms=3_000))
                await crowd.consumers[-1].start()
                tasks.create_task(crowd.consumers[-1].run(crowd.handle, concurrency=4))
            await crowd.go_on()
            await comes_true(lambda: not any(one.waiting_for for one in crowd.consumers), "all have their shares")
            before = await group.describe()
            shares = [consumer.assignment for consumer in crowd.consumers]
            for _ in range(2):
                leader = (await group.coordinator()).leader
                (node,) = [node.id for node in cluster.plan.nodes if node.url == leader]
                await asyncio.to_thread(cluster.kill, node)
                await crowd.go_on()
                await asyncio.to_thread(cluster.start, node)
                await crowd.go_on()
            after = await group.describe()
            assert (after.generation, len(after.members)) == (before.generation, MEMBERS)
            assert [consumer.assignment for consumer in crowd.consumers] == shares
            crowd.stop = True
            await producing
            await comes_true(lambda: len(crowd.handled) >= crowd.sent, "all is handled")
            for consumer in crowd.consumers:
                await consumer.close()
        assert set(Counter(int(message.body) for message in crowd.handled).values()) == {1}
        assert len(crowd.handled) == crowd.sent
        for queue in range(QUEUES):
            offsets = [message.offset for message in crowd.handled if message.queue == queue]
            assert offsets == list(range(len(offsets)))
        committed = await client.committed_offsets(TOPIC, TOPIC)
        assert sum(committed.values()) == crowd.sent
        assert (await group.describe()).members == ()


async def test_leaders_of_queues_ask_the_coordinator_who_may_commit_and_go_on_without_it(cluster: LocalCluster) -> None:
    topic = "owned"
    async with Client([node.url for node in cluster.plan.nodes], deadline_ms=20_000) as client:
        await client.create_topic(topic, queues=QUEUES)
        async with Producer(client, topic) as producer:
            for receipt in [await producer.send("x", queue=n % QUEUES) for n in range(3 * QUEUES)]:
                await receipt
        async with Consumer(client, topic, group=topic, session_ms=60_000) as consumer:
            await comes_true(
                lambda: sum(map(len, consumer.assignment.get(topic, ()))) == QUEUES, "all queues are its own"
            )
            group = Group(client, topic)
            found = await group.describe()
            everywhere = dict.fromkeys(range(QUEUES), 1)
            for queue in range(QUEUES):
                with pytest.raises(UnknownMember):
                    await group.commit(topic, {queue: 3}, member="zz", epoch=10**9)
                with pytest.raises(FencedMember):
                    await group.commit(topic, {queue: 3}, member=consumer.member_id, epoch=10**9)
            await group.commit(topic, everywhere, member=consumer.member_id, epoch=found.generation)
            assert await client.committed_offsets(topic, topic) == everywhere

            coordinator = await group.coordinator()
            (node,) = [node.id for node in cluster.plan.nodes if node.url == coordinator.leader]
            routes = (await client.topic(topic)).routes
            others = {
                queue: 2
                for route in routes
                if route.leader != coordinator.leader
                for queue in range(route.first, route.end)
            }
            assert others, "queues whose leader is not the coordinator"
            await asyncio.to_thread(cluster.kill, node)
            await group.commit(topic, others, member=consumer.member_id, epoch=found.generation, deadline_ms=2_000)
            await group.commit(
                topic, dict.fromkeys(range(QUEUES), 3), member=consumer.member_id, epoch=found.generation
            )
            await asyncio.to_thread(cluster.start, node)
            assert set((await client.committed_offsets(topic, topic)).values()) == {3}
    await asyncio.to_thread(cluster.wait_ready)
