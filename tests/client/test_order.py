"""Order of a key's messages, from sending to handling, while queues, leaders and members change."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lsmq import Client, ClusterAdmin, Consumer, Message, Producer
from lsmq.errors import InvalidRequest
from lsmq.record_batch import key_hash
from lsmq_lab.history import AnomalyKind, History, Verdict
from lsmq_lab.local_cluster import LocalCluster
from support.node_process import NodeProcess
from support.waiting import comes_true

TOPIC = "keyed"
KEYS = 24
QUEUES = 4
GROWN = 15
CONCURRENCY = 5

#: Keys that share a queue are handled side by side, so that a queue's offsets come in any order.
SIDE_BY_SIDE = {AnomalyKind.WENT_BACK, AnomalyKind.SKIPPED}
#: For a moment a key's messages lie in two queues, and may be handled in any order.
MOVED = {AnomalyKind.OUT_OF_ORDER, AnomalyKind.STORED_OUT_OF_ORDER}


class Flow:
    """Messages of many keys that flow from a producer to the members of a group."""

    def __init__(self, client: Client, tasks: asyncio.TaskGroup, topic: str = TOPIC) -> None:
        self.topic = topic
        self.client = client
        self.history = History()
        self.queues: defaultdict[str, set[int]] = defaultdict(set)
        self.handled: list[Message] = []
        self.in_hand: set[str] = set()
        self.clashes: list[str] = []
        self.sent = 0
        self._tasks = tasks
        self._members: list[Consumer] = []
        self._stopping = False
        self._producing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._producing = self._tasks.create_task(self._produce())

    async def join(self) -> Consumer:
        consumer = Consumer(self.client, self.topic, group=self.topic, session_ms=20_000)
        await consumer.start()
        self._members.append(consumer)
        self._tasks.create_task(consumer.run(self._handle, concurrency=CONCURRENCY, order="key"))
        return consumer

    async def go_on(self, count: int = 240) -> None:
        wanted = len(self.handled) + count
        await comes_true(lambda: len(self.handled) >= wanted, f"{wanted} messages are handled")

    async def through(self, queues: range) -> None:
        """A message more goes through each of these, which no key has chosen."""
        async with Producer(self.client, self.topic) as producer:
            for queue in queues:
                await producer.send_and_wait("0", queue=queue, key=f"of {queue}")

        def found() -> set[int]:
            return {message.queue for message in self.handled if str(message.key).startswith("of ")}

        await comes_true(lambda: found() == set(queues), "they are handled")
        self.handled = [message for message in self.handled if not str(message.key).startswith("of ")]

    async def end(self) -> Verdict:
        """Handle all, and tell."""
        assert self._producing is not None
        self._stopping = True
        await self._producing
        await comes_true(lambda: len(self.handled) >= self.sent, "all is handled")
        for member in self._members:
            await member.close()
        reading = self.history.reading("the group, as one")
        reading.received(
            [message.queue for message in self.handled],
            [message.offset for message in self.handled],
            [str(message.key) for message in self.handled],
            [int(message.body) for message in self.handled],
        )
        assert self.clashes == [], "two messages of a key were handled at a time"
        return self.history.check()

    async def _produce(self) -> None:
        async with Producer(self.client, self.topic, linger_ms=1) as producer:
            while not self._stopping:
                numbers = range(self.sent, self.sent + KEYS)
                receipts = [await producer.send(f"{number}", key=f"k{number % KEYS}") for number in numbers]
                places = [await receipt for receipt in receipts]
                for place, number in zip(places, numbers, strict=True):
                    self.queues[f"k{number % KEYS}"].add(place.queue)
                self.history.acknowledged(
                    [place.queue for place in places],
                    [place.offset for place in places],
                    [f"k{number % KEYS}" for number in numbers],
                    numbers,
                )
                self.sent += KEYS
                await asyncio.sleep(0.005)

    async def _handle(self, message: Message) -> None:
        assert message.key is not None
        if message.key in self.in_hand:
            self.clashes.append(message.key)
        self.in_hand.add(message.key)
        await asyncio.sleep(random.uniform(0, 0.002))
        self.in_hand.discard(message.key)
        self.handled.append(message)


@pytest.fixture
def flowing(make_node: Callable[..., NodeProcess]) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[Flow]:
        node = make_node(shards=3).start()
        async with Client(node.url) as client, asyncio.TaskGroup() as tasks:
            await client.create_topic(TOPIC, queues=QUEUES, **options)
            flow = Flow(client, tasks)
            await flow.join()
            flow.begin()
            yield flow

    return make


def check(verdict: Verdict, allowed: set[AnomalyKind]) -> None:
    assert not [str(found) for found in verdict.anomalies if found.kind not in allowed]


async def grow(flow: Flow) -> None:
    topic = await flow.client.grow_topic(TOPIC, GROWN)
    assert topic.queues == GROWN and [route.end for route in topic.routes][-1] == GROWN
    await flow.go_on()


async def test_strict_order_is_kept_while_the_topic_grows_and_members_come_and_go(flowing: Callable[..., Any]) -> None:
    async with flowing(order="strict") as flow:
        await flow.go_on()
        await grow(flow)
        other = await flow.join()
        shares = (GROWN // 2, GROWN - GROWN // 2)  # Who gets the odd one depends on what the other one had by then.
        await comes_true(lambda: sum(map(len, other.assignment.get(TOPIC, ()))) in shares, "it has its share")
        await flow.go_on()
        await other.close()
        await flow.go_on()
        verdict = await flow.end()
    check(verdict, SIDE_BY_SIDE)
    assert all(len(queues) == 1 for queues in flow.queues.values())
    assert {key_hash(key) % QUEUES for key in flow.queues} == {queue for one in flow.queues.values() for queue in one}


async def test_order_of_keys_is_kept_while_shards_come_and_the_topic_is_spread(flowing: Callable[..., Any]) -> None:
    async with flowing() as flow:
        await flow.go_on()
        await ClusterAdmin(flow.client).grow_shards(5)
        await flow.go_on()
        topic = await flow.client.spread_topic(TOPIC)
        assert topic.queues == QUEUES + 2 and {route.shard for route in topic.routes} == set(range(5))
        await flow.go_on()
        await flow.through(range(QUEUES, topic.queues))
        verdict = await flow.end()
    check(verdict, SIDE_BY_SIDE)
    assert all(len(queues) == 1 for queues in flow.queues.values())


async def test_ordinary_order_is_kept_in_each_queue_while_keys_move_to_new_ones(flowing: Callable[..., Any]) -> None:
    async with flowing() as flow:
        await flow.go_on()
        await grow(flow)
        await comes_true(lambda: any(len(queues) > 1 for queues in flow.queues.values()), "keys have moved")
        await flow.go_on()
        verdict = await flow.end()
    check(verdict, SIDE_BY_SIDE | MOVED)
    assert {queue for queues in flow.queues.values() for queue in queues if queue >= QUEUES}


async def test_a_consumer_of_all_queues_reads_those_that_the_topic_grows_by(flowing: Callable[..., Any]) -> None:
    async with flowing() as flow, Consumer(flow.client, TOPIC, start="latest") as alone:
        await grow(flow)
        async with Producer(flow.client, TOPIC) as producer:
            await producer.send_and_wait("0", queue=GROWN - 1, key="k0")
            flow.sent += 1
        while not any(message.queue == GROWN - 1 for message in await alone.poll()):
            pass
        assert list(alone.positions) == list(range(GROWN))
        await flow.end()


async def test_a_group_from_the_latest_reads_new_queues_from_their_begin(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(shards=2).start()
    async with Client(node.url) as client:
        await client.create_topic(TOPIC, queues=2)
        async with Consumer(client, TOPIC, group=TOPIC, uncommitted="latest") as member, Client(node.url) as other:
            await other.grow_topic(TOPIC, 6)
            async with Producer(other, TOPIC) as producer:
                for queue in range(2, 6):
                    await producer.send_and_wait(f"{queue}", queue=queue)
            got = [message for _ in range(4) for message in await member.poll(1)]
            assert sorted(message.queue for message in got) == [2, 3, 4, 5]


async def test_a_topic_grows_for_good_and_only_grows(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(shards=3).start()
    async with Client(node.url) as client:
        before = await client.create_topic(TOPIC, queues=2)
        async with Producer(client, TOPIC) as producer:
            await producer.send_and_wait("old", queue=1)
            grown = await client.grow_topic(TOPIC, 9)
            await producer.send_and_wait("new", queue=8)
        assert grown.routes[: len(before.routes)] == before.routes, "no queue moves"
        assert await client.grow_topic(TOPIC, 9) == grown
        with pytest.raises(InvalidRequest, match="can only grow"):
            await client.grow_topic(TOPIC, 8)
    await asyncio.to_thread(node.kill9)
    await asyncio.to_thread(node.start)
    async with Client(node.url) as client:
        found = await client.topic(TOPIC)
        assert [(route.first, route.end, route.shard) for route in found.routes] == [
            (route.first, route.end, route.shard) for route in grown.routes
        ]
        async with Consumer(client, TOPIC) as consumer:
            assert sorted([(await consumer.poll(1))[0].queue for _ in range(2)]) == [1, 8]


@pytest.mark.slow
async def test_order_of_keys_is_kept_while_a_cluster_gets_shards_and_loses_a_node(cluster: LocalCluster) -> None:
    urls, topic = [node.url for node in cluster.plan.nodes], "spread-out"
    async with Client(urls, deadline_ms=60_000) as client, asyncio.TaskGroup() as tasks:
        await client.create_topic(topic, queues=QUEUES)
        flow = Flow(client, tasks, topic)
        await flow.join()
        flow.begin()
        await flow.go_on()
        await ClusterAdmin(client).grow_shards(len(cluster.status().shards) + 2)
        victim = next(shard.leader for shard in cluster.status().shards if shard.leader is not None)
        await asyncio.to_thread(cluster.kill, victim)
        spread = await client.spread_topic(topic)
        assert spread.queues > QUEUES
        await flow.go_on()
        await flow.through(range(QUEUES, spread.queues))
        await flow.join()
        await flow.go_on()
        await asyncio.to_thread(cluster.start, victim)
        await flow.go_on()
        verdict = await flow.end()
        check(verdict, SIDE_BY_SIDE)
        assert all(len(queues) == 1 for queues in flow.queues.values())


@pytest.mark.slow
async def test_strict_order_outlives_leaders_and_waits_for_new_ones(cluster: LocalCluster) -> None:
    urls = [node.url for node in cluster.plan.nodes]
    async with Client(urls, deadline_ms=60_000) as client, asyncio.TaskGroup() as tasks:
        await client.create_topic(TOPIC, queues=QUEUES, order="strict")
        flow = Flow(client, tasks)
        await flow.join()
        flow.begin()
        await flow.go_on()
        victim = next(shard.leader for shard in cluster.status().shards if shard.leader is not None)
        await asyncio.to_thread(cluster.kill, victim)
        await client.grow_topic(TOPIC, GROWN)
        await flow.go_on()
        await flow.join()
        await flow.go_on()
        await asyncio.to_thread(cluster.start, victim)
        await flow.go_on()
        verdict = await flow.end()
        check(verdict, SIDE_BY_SIDE)
        assert all(len(queues) == 1 for queues in flow.queues.values())
        assert (await client.topic(TOPIC)).queues == GROWN
