"""Push in a cluster whose nodes are killed, paused and stopped under the streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from lsmq import Client, Message, Producer, PushConsumer
from lsmq_node.local_cluster import LocalCluster, found_plan
from support.waiting import comes_true

from .streams import HeldStream, held

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("push-cluster")]

QUEUES = 12
CREDIT = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}
    cluster = LocalCluster.found(tmp_path_factory.mktemp("push") / "c", found_plan(zookeeper="none", settings=settings))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(delete=True)


def url_of(cluster: LocalCluster, number: int) -> str:
    return cluster.plan.nodes[number].url


def leader(cluster: LocalCluster, shard: int) -> str:
    found = cluster.status().shards[shard].leader
    assert found is not None
    return found


class Crowd:
    """Subscribers that handle what a producer sends, until told to stop."""

    def __init__(self, client: Client, topic: str, subscribers: int) -> None:
        self.client = client
        self.topic = topic
        self.handled: list[Message] = []
        self.sent = 0
        self.stop = False
        self.consumers = [
            PushConsumer(client, topic, group=topic, subscriber=f"s{number}", credit=CREDIT)
            for number in range(subscribers)
        ]

    async def handle(self, message: Message) -> None:
        await asyncio.sleep(0.001)
        self.handled.append(message)

    async def produce(self) -> None:
        async with Producer(self.client, self.topic, linger_ms=1) as producer:
            while not self.stop:
                receipts = [await producer.send(f"{self.sent + n}", queue=n) for n in range(QUEUES)]
                for receipt in receipts:
                    await receipt
                self.sent += QUEUES
                await asyncio.sleep(0.005)

    async def go_on(self, count: int = 300) -> None:
        """Return when so many more were sent and all that was sent before is handled."""
        wanted = self.sent + count
        await comes_true(lambda: self.sent >= wanted, "messages are sent", 40)
        await comes_true(lambda: len({message.id for message in self.handled}) >= wanted, "they are handled", 40)

    def check(self) -> None:
        """Nothing is lost; what came twice was not acknowledged; the first time everything came in order."""
        times = Counter(message.id for message in self.handled)
        assert len(times) == self.sent
        assert sum(count - 1 for count in times.values()) <= 3 * 3 * CREDIT
        reached: dict[int, int] = {}
        for message in self.handled:
            expected = reached.get(message.queue, 0)
            assert message.offset <= expected, "a message was passed over"
            reached[message.queue] = max(expected, message.offset + 1)


async def _are_committed(client: Client, topic: str, count: int) -> bool:
    return sum((await client.committed_offsets(topic, topic)).values()) == count


@pytest.mark.parametrize("trouble", ["kill", "pause", "stop"])
async def test_subscribers_go_on_when_a_leader_goes(cluster: LocalCluster, trouble: str) -> None:
    topic = f"work-{trouble}"
    async with Client([node.url for node in cluster.plan.nodes]) as client:
        await client.create_topic(topic, queues=QUEUES)
        crowd = Crowd(client, topic, subscribers=3)
        async with asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(crowd.produce())
            for consumer in crowd.consumers:
                tasks.create_task(consumer.run(crowd.handle, concurrency=4))
            await crowd.go_on()
            await comes_true(
                lambda: sorted(sum(map(len, consumer.assignment)) for consumer in crowd.consumers) == [4, 4, 4],
                "the queues are shared evenly",
            )
            node = leader(cluster, 0)
            await asyncio.to_thread({"kill": cluster.kill, "pause": cluster.pause, "stop": cluster.stop}[trouble], node)
            await crowd.go_on()
            if trouble == "pause":
                await asyncio.to_thread(cluster.resume, node)
            else:
                await asyncio.to_thread(cluster.start, node)
            await crowd.go_on()
            crowd.stop = True
            await producing
            await comes_true(lambda: _are_committed(client, topic, crowd.sent), "all are handled and committed")
            for consumer in crowd.consumers:
                await consumer.close()
        crowd.check()
        async with PushConsumer(client, topic, group=topic) as consumer:
            await comes_true(lambda: sum(map(len, consumer.assignment)) == QUEUES, "all queues are there")
            assert await consumer.poll(timeout_ms=200) == []
    await asyncio.to_thread(cluster.wait_ready)


async def test_any_node_gives_all_queues_over_one_stream(cluster: LocalCluster) -> None:
    topic = "anywhere"
    async with Client([node.url for node in cluster.plan.nodes]) as client:
        await client.create_topic(topic, queues=QUEUES)
        producer = Producer(client, topic)

        async def send(count: int) -> set[str]:
            receipts = [await producer.send(f"{n}", queue=n % QUEUES) for n in range(count)]
            return {(await receipt).id for receipt in receipts}

        async def takes(stream: HeldStream, wanted: set[str]) -> None:
            found: set[str] = set()
            while not wanted <= found:
                found |= {message["id"] for message in await stream.messages(1)}

        sent = await send(60)
        here = leader(cluster, 0)
        url = next(node.url for node in cluster.plan.nodes if node.id == here)
        async with held(url, topic, subscriber="page") as stream:
            await takes(stream, sent)
            await takes(stream, await send(60))
            other = next(node for node in cluster.plan.nodes if node.id != here)
            await asyncio.to_thread(cluster.kill, other.id)
            await takes(stream, await send(60))
            await stream.owns([0, QUEUES])
            await takes(stream, await send(60))
        await asyncio.to_thread(cluster.start, other.id)
        committed = await client.committed_offsets("pushed", topic)
        assert committed == dict.fromkeys(range(QUEUES), 20)
        # A subscriber that comes to another node with the same name takes its place.
        async with held(url, topic, subscriber="page") as former, held(other.url, topic, subscriber="page") as stream:
            assert (await former.until("end"))["code"] == "stream_replaced"
            await takes(stream, await send(60))
        await producer.close()
    await asyncio.to_thread(cluster.wait_ready)
