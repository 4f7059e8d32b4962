"""Push in a cluster whose nodes are killed, paused and stopped under the streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq import Client, ClusterAdmin, Message, Producer, PushConsumer
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import comes_true

from .streams import HeldStream, held

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("push-cluster")]

QUEUES = 12
CREDIT = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}
    with running_cluster(__name__, tmp_path_factory.mktemp("push") / "c", settings=settings) as cluster:
        yield cluster


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
        await comes_true(lambda: self.sent >= wanted, "messages are sent")
        await comes_true(lambda: len({message.id for message in self.handled}) >= wanted, "they are handled")

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


@pytest.mark.part(2)
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


async def test_queues_with_names_are_pushed_by_a_node_that_comes_to_lead_more_of_them(tmp_path: Path) -> None:
    names, topic = [f"agents.{number}" for number in range(200)], "named"
    with running_cluster(__name__, tmp_path / "c", settings={"cluster.even_out": False}) as cluster:
        async with Client([node.url for node in cluster.plan.nodes]) as client:
            moved, stays = (await client.create_topic(topic, queues="named")).routes[:2]
            producer = Producer(client, topic)
            found: Counter[str] = Counter()

            async def send() -> None:
                for receipt in [await producer.send("x", queue=name) for name in names]:
                    await receipt

            async def handle(message: Message) -> None:
                assert message.queue_name is not None
                found[message.queue_name] += 1

            home, node = (
                next(node.id for node in cluster.plan.nodes if node.url == route.leader) for route in (moved, stays)
            )
            consumer = PushConsumer(client, topic, group=topic)
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(consumer.run(handle))
                for sent in range(1, 7):
                    await send()
                    await comes_true(lambda sent=sent: all(found[name] >= sent for name in names), "all is pushed")
                    if sent % 2:
                        await ClusterAdmin(client).transfer(moved.shard, node if sent % 4 == 1 else home)
                await consumer.close()
                await running
            await producer.close()


async def test_who_has_come_to_a_node_that_leads_no_more_hears_who_does(cluster: LocalCluster) -> None:
    """Nothing else would come of that stream, and routes are looked at every so often only."""
    topic = "led-elsewhere"
    urls = {node.id: node.url for node in cluster.plan.nodes}
    async with Client(list(urls.values()), refresh_s=3_600) as client:
        made = await client.create_topic(topic, queues=1)
        (shard,) = {route.shard for route in made.routes}
        leads = leader(cluster, shard)
        other = next(url for id, url in urls.items() if id != leads)
        client._router.table.learn_leader(shard, other, client._router.table.leadership(shard).epoch)
        async with PushConsumer(client, topic, group=topic) as consumer, Producer(client, topic) as producer:
            await producer.send_and_wait("hello")
            assert [message.text() for message in await consumer.poll(timeout_ms=60_000)] == ["hello"]
        async with held(other, topic, scope="node") as stream:
            ((found, epoch, url),) = await stream.until("leaders")
            assert (found, url) == (shard, urls[leads]) and epoch >= 1


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


async def _relayed(cluster: LocalCluster, client: Client, topic: str) -> str:
    """Make a topic whose queues all three nodes lead, with ten messages in each; a node to hold streams to."""
    await asyncio.to_thread(cluster.wait_ready)
    await comes_true(lambda: len({leader(cluster, shard) for shard in range(3)}) == 3, "each node leads a shard")
    await client.create_topic(topic, queues=QUEUES)
    async with Producer(client, topic) as producer:
        for receipt in [await producer.send(f"{n}", queue=n % QUEUES) for n in range(10 * QUEUES)]:
            await receipt
    return url_of(cluster, 0)


async def test_the_credit_is_that_of_all_leaders_together(cluster: LocalCluster) -> None:
    async with Client([node.url for node in cluster.plan.nodes]) as client:
        url = await _relayed(cluster, client, "one-credit")
        for credit in (1, 5):
            async with held(url, "one-credit", group=f"credit-{credit}", credit=credit) as stream:
                first = await stream.messages(credit, ack=False)
                assert len(first) == credit
                while stream.queues != [[0, QUEUES]]:  # until all leaders send
                    kind, value = await stream.frame()
                    assert kind == "queues", value
                await stream.nothing(1.0)
                await stream.ack(*first)
                seen = {message["queue"] for message in first + await stream.messages(4 * QUEUES)}
                shards = {(await client.topic("one-credit")).route(queue).shard for queue in seen}
                assert shards == {0, 1, 2}, "each leader has its turn"


async def test_credit_counts_what_is_stored_of_messages_and_all_of_it(cluster: LocalCluster) -> None:
    """As it does where no other node is asked: whoever acknowledges many at a time would wait for ever for the last."""
    async with Client([node.url for node in cluster.plan.nodes]) as client:
        url = await _relayed(cluster, client, "stored")
        group = {"group": "stored", "credit": 10_000}
        async with held(url, "stored", **group) as stream:
            await stream.messages(10 * QUEUES)
            async with Producer(client, "stored") as producer:
                await producer.send_many([b"x"] * 5_000)
            await stream.messages(5_000, ack=False)
            async with Producer(client, "stored") as producer:
                for receipt in [await producer.send(b"", properties={"p": "x" * 20_000}) for _ in range(120)]:
                    await receipt
            await stream.say(credit_bytes=8 << 20)
            await stream.messages(120, ack=False)


async def test_a_passed_on_stream_that_acknowledges_nothing_ends_and_sends_nothing_twice(cluster: LocalCluster) -> None:
    async with Client([node.url for node in cluster.plan.nodes]) as client:
        url = await _relayed(cluster, client, "silent")
        async with held(url, "silent", credit=40, ack_timeout_ms=1_500) as stream:
            got: list[str] = []
            while True:
                kind, value = await stream.frame()
                if kind == "messages":
                    got += [message["id"] for message in value]
                if kind in ("end", "closed"):
                    break
            assert (kind, value["code"]) == ("end", "slow_consumer")
            assert len(got) == len(set(got)) == 40
        async with held(url, "silent", credit=1_000) as stream:
            again = [message["id"] for message in await stream.messages(10 * QUEUES)]
            assert len(again) == len(set(again)) == 10 * QUEUES
            assert set(got) <= set(again)


async def test_a_reset_ends_a_passed_on_stream_and_says_so(cluster: LocalCluster) -> None:
    async with Client([node.url for node in cluster.plan.nodes]) as client:
        url = await _relayed(cluster, client, "set-back")
        async with held(url, "set-back") as stream:
            await stream.messages(10 * QUEUES)
            await client.commit_offsets("pushed", "set-back", {0: 0}, reset=True)
            end = await stream.until("end")
            assert (end["code"], end["reset"]) == ("unavailable", True)


async def test_acknowledgements_of_a_leader_that_is_gone_are_answered_or_count(cluster: LocalCluster) -> None:
    async with Client([node.url for node in cluster.plan.nodes]) as client:
        url = await _relayed(cluster, client, "gone")
        here = next(node.id for node in cluster.plan.nodes if node.url == url)
        other = next(leader(cluster, shard) for shard in range(3) if leader(cluster, shard) != here)
        async with held(url, "gone", credit=1_000) as stream:
            first = await stream.messages(10 * QUEUES, ack=False)
            assert stream.queues == [[0, QUEUES]]
            await asyncio.to_thread(cluster.kill, other)
            while stream.queues == [[0, QUEUES]]:
                await stream.frame()
            lost = set(range(QUEUES)) - {queue for low, high in stream.queues for queue in range(low, high)}
            await stream.ack(*first)
            late: set[int] = set()
            again: list[dict[str, Any]] = []
            while stream.queues != [[0, QUEUES]] or len(again) < 10 * len(lost):
                kind, value = await stream.frame()
                if kind == "late":
                    late |= {queue for queue, _ in value}
                elif kind == "messages":
                    again += value
                    await stream.ack(*value)
                assert kind not in ("end", "closed"), value
            assert late == lost == {message["queue"] for message in again}, "none was dropped in silence"
            assert len({message["id"] for message in again}) == len(again) == 10 * len(lost), "once again, not more"
        await comes_true(lambda: _all_committed(client, "gone"), "what was acknowledged is committed")
        await asyncio.to_thread(cluster.start, other)
    await asyncio.to_thread(cluster.wait_ready)


async def _all_committed(client: Client, topic: str) -> bool:
    return await client.committed_offsets("pushed", topic) == dict.fromkeys(range(QUEUES), 10)
