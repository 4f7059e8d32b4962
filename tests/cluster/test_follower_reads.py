"""Backlogs read from followers of a real cluster: far readers are sent there, come back, and survive either's death."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import xxhash

from lsmq import Client, Consumer, Producer
from lsmq.record_batch import Message, message_id
from lsmq_lab.history import History, Verdict
from lsmq_lab.history import Reading as Received
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import comes_true, eventually

QUEUES = 4
BODY_BYTES = 2_000
MESSAGES = 4_000  # 8 MB, of which memory holds 1 MiB
SLOW = {"max_bytes": 100_000, "prefetch_bytes": 100_000}
SETTINGS = {
    "max_message_bytes": 256 << 10,
    "memtable_bytes": 1 << 20,
    "segment_bytes": 1 << 20,
    "backlog_redirect_bytes": 1 << 20,
    "cluster.ack_timeout_ms": 2_000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("followers") / "cluster"
    with running_cluster(__name__, directory, shards=1, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def whole(cluster: LocalCluster) -> Iterator[None]:
    yield
    for node in cluster.plan.nodes:
        if cluster.process(node.id).pid is not None:
            cluster.resume(node.id)
    cluster.up()


class Story:
    """What one topic was sent and one reader got, in the terms of the history checker."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.history = History()
        self.reading: Received = self.history.reading("reader")
        self.sent = 0
        self.got = 0

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.cluster.plan.nodes]

    def client(self) -> Client:
        return Client(self.urls, deadline_ms=120_000, request_timeout_ms=30_000)

    async def begin(self, client: Client) -> None:
        in_sync(self.cluster)
        await client.create_topic(self.topic, queues=QUEUES)
        await self.send(client, MESSAGES)

    async def send(self, client: Client, count: int) -> None:
        first, self.sent = self.sent, self.sent + count
        bodies = [f"{number} ".encode().ljust(BODY_BYTES, b"x") for number in range(first, first + count)]
        async with Producer(client, self.topic) as producer:
            places = [await producer.send(body, queue=at % QUEUES) for at, body in enumerate(bodies, first)]
            await producer.flush()
            sent = [await place for place in places]
        self.history.acknowledged(
            [one.queue for one in sent],
            [one.offset for one in sent],
            [str(one.queue) for one in sent],
            list(range(first, first + count)),
            digests=[_signed(body) for body in bodies],
        )

    async def read(self, consumer: Consumer, until: int) -> None:
        while self.got < until:
            messages = await consumer.poll(until - self.got)
            self.got += len(messages)
            self.reading.received(
                [one.queue for one in messages],
                [one.offset for one in messages],
                [str(one.queue) for one in messages],
                [_number(one) for one in messages],
                digests=[_signed(one.body) for one in messages],
            )

    def verdict(self) -> Verdict:
        return self.history.check()


def _number(message: Message) -> int:
    return int(message.body.split(b" ", 1)[0])


def _signed(body: bytes) -> int:
    return xxhash.xxh64_intdigest(body) >> 1


def ask(url: str, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and document of this very node, without following to elsewhere."""
    opener = urllib.request.build_opener(_Stay)
    request = urllib.request.Request(url, headers={"Lsmq-Forward": "refuse", **headers})
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, answer.headers, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, json.load(error)


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def shard(cluster: LocalCluster) -> Any:
    """As a node shows it that knows the cluster."""
    found: list[Any] = []

    def known() -> bool:
        running = [node for node in cluster.plan.nodes if cluster.process(node.id).pid is not None]
        answers = (ask(f"{node.url}/v1/cluster") for node in running)
        found.extend(document["shards"][0] for status, _, document in answers if status == 200)
        return bool(found)

    eventually(known, "a node knows the cluster")
    return found[0]


def in_sync(cluster: LocalCluster) -> None:
    eventually(lambda: len(shard(cluster)["in_sync"]) == 3, "all replicas are in sync")


def counter(cluster: LocalCluster, node: str, name: str) -> float:
    with urllib.request.urlopen(f"{cluster.plan.node(node).url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name}_total")).split()[1])


def follower_reads(cluster: LocalCluster) -> dict[str, float]:
    return {
        node.id: counter(cluster, node.id, "lsmq_follower_reads")
        for node in cluster.plan.nodes
        if cluster.process(node.id).pid is not None
    }


def in_use(cluster: LocalCluster, before: dict[str, float]) -> str:
    """The follower that has answered since."""
    after = follower_reads(cluster)
    return max(before, key=lambda node: after[node] - before[node])


def test_a_far_reader_is_sent_to_a_follower_and_comes_back(cluster: LocalCluster) -> None:
    async def run() -> None:
        story = Story(cluster, "far")
        async with story.client() as client:
            await story.begin(client)
            leader, before = shard(cluster)["leader"], follower_reads(cluster)
            sent_elsewhere = counter(cluster, leader, "lsmq_queues_sent_elsewhere")
            async with Consumer(client, story.topic, max_bytes=200_000) as consumer:
                await story.read(consumer, MESSAGES // 2)
                await asyncio.gather(story.send(client, 400), story.read(consumer, MESSAGES))
                await story.read(consumer, story.sent)
                # Caught up: whatever comes now comes from the leader.
                after = follower_reads(cluster)
                for _ in range(3):
                    await asyncio.gather(story.send(client, QUEUES), story.read(consumer, story.sent + QUEUES))
            assert counter(cluster, leader, "lsmq_queues_sent_elsewhere") > sent_elsewhere
            assert after[leader] == before[leader]
            assert sum(after.values()) > sum(before.values()) + 10
            assert follower_reads(cluster) == after
        assert story.verdict().ok, story.verdict().anomalies

    asyncio.run(run())


def test_a_far_reader_of_queues_by_name_is_sent_to_a_follower_and_comes_back(cluster: LocalCluster) -> None:
    """Of queues that a pattern means; others are deleted, and come, meanwhile."""
    sent: dict[str, list[int]] = {}
    got: dict[str | None, list[int]] = {}

    async def send(producer: Producer, names: list[str], count: int) -> None:
        for number in range(count):
            name = names[number % len(names)]
            numbers = sent.setdefault(name, [])
            await producer.send(f"{len(numbers)} ".encode().ljust(BODY_BYTES, b"x"), queue=name)
            numbers.append(len(numbers))
        await producer.flush()

    async def read(consumer: Consumer, until: int) -> None:
        while sum(map(len, got.values())) < until:
            for message in await consumer.poll():
                got.setdefault(message.queue_name, []).append(_number(message))

    def count() -> int:
        return sum(len(numbers) for name, numbers in sent.items() if name.startswith("q."))

    async def run() -> None:
        names, topic = [f"q.{at}" for at in range(QUEUES)], "far-named"
        in_sync(cluster)
        async with (
            Client([node.url for node in cluster.plan.nodes], deadline_ms=120_000) as client,
            Producer(client, topic) as producer,
        ):
            await send(producer, [*names, "other"], MESSAGES)
            leader, before = shard(cluster)["leader"], follower_reads(cluster)
            async with Consumer(client, topic, pattern="q.*", max_bytes=200_000) as consumer:
                await read(consumer, count() // 3)
                assert sum(follower_reads(cluster).values()) > sum(before.values())
                await client.delete_queue(topic, "other")
                await send(producer, [*names, "q.new"], 400)
                await read(consumer, count())
                after = follower_reads(cluster)
                for _ in range(3):
                    await send(producer, names, QUEUES)
                    await read(consumer, count())
        assert after[leader] == before[leader]
        assert sum(after.values()) > sum(before.values()) + 10
        assert follower_reads(cluster) == after, "caught up: whatever comes now comes from the leader"
        assert got == {name: numbers for name, numbers in sent.items() if name != "other"}

    async def begin() -> None:
        async with Client([node.url for node in cluster.plan.nodes]) as client:
            await client.create_topic("far-named", queues="named")

    asyncio.run(begin())
    asyncio.run(run())


def test_who_wants_no_follower_gets_none_and_who_wants_one_always_does(cluster: LocalCluster) -> None:
    async def run() -> None:
        leaders, followers = Story(cluster, "chosen"), Story(cluster, "chosen")
        async with leaders.client() as client:
            await leaders.begin(client)
            before = follower_reads(cluster)
            async with Consumer(client, "chosen", read_from="leader") as consumer:
                await leaders.read(consumer, MESSAGES)
            assert follower_reads(cluster) == before
            async with Consumer(client, "chosen", read_from="follower") as consumer:
                followers.history = leaders.history
                followers.reading = leaders.history.reading("followers")
                await followers.read(consumer, MESSAGES)
                caught_up = follower_reads(cluster)
                await asyncio.gather(leaders.send(client, QUEUES), followers.read(consumer, MESSAGES + QUEUES))
                after = follower_reads(cluster)
            async with Consumer(client, "chosen", start=dict.fromkeys(range(QUEUES), MESSAGES // QUEUES)) as last:
                await leaders.read(last, leaders.sent)
        leader = shard(cluster)["leader"]
        assert sum(after.values()) > sum(caught_up.values()) > sum(before.values())
        assert after[leader] == before[leader]
        assert leaders.verdict().ok, leaders.verdict().anomalies

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.part(3)
@pytest.mark.xdist_group("follower-reads")
@pytest.mark.parametrize("victim", ["leader", "follower"])
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_backlog_is_read_though_a_node_fails(cluster: LocalCluster, victim: str, fault: str) -> None:
    async def run() -> None:
        story = Story(cluster, f"{victim}-{fault}")
        async with story.client() as client:
            await story.begin(client)
            before, leader = follower_reads(cluster), shard(cluster)["leader"]
            async with Consumer(client, story.topic, **SLOW) as consumer:
                await story.read(consumer, MESSAGES // 4)
                node = leader if victim == "leader" else in_use(cluster, before)
                assert node != leader or victim == "leader"
                (cluster.kill if fault == "kill" else cluster.pause)(node)
                await story.read(consumer, MESSAGES // 2)
                await asyncio.gather(story.send(client, 200), story.read(consumer, MESSAGES // 2 + 200))
                if fault == "kill":
                    cluster.start(node)
                else:
                    cluster.resume(node)
                await asyncio.gather(story.send(client, 200), story.read(consumer, MESSAGES))
                await story.read(consumer, story.sent)
        assert story.verdict().ok, story.verdict().anomalies

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.xdist_group("follower-reads")
def test_what_a_follower_has_is_read_though_no_leader_can_be_elected(cluster: LocalCluster) -> None:
    """The reader begins after the leader and the other follower died, and gets all that was acknowledged."""

    async def run() -> None:
        story = Story(cluster, "orphaned")
        async with story.client() as client:
            await story.begin(client)
            leader = shard(cluster)["leader"]
            last, other = (node.id for node in cluster.plan.nodes if node.id != leader)
            base = f"{cluster.plan.node(last).url}/v1/topics/{story.topic}/queues/0"
            end = MESSAGES // QUEUES
            # An acknowledged write is on its disk; that it counts comes with the next heartbeat.
            eventually(lambda: ask(f"{base}/messages?from=any&offset={end}")[0] == 200, "it knows how far it may show")
            cluster.kill(leader)
            cluster.kill(other)
            async with Consumer(client, story.topic, read_from="auto") as consumer:
                await story.read(consumer, MESSAGES)
            eventually(
                lambda: ask(f"{base}/messages?from=any&offset={end}")[0] in (421, 503),
                "without a leader nobody says that there is nothing more",
            )
            status, _, page = ask(f"{base}/messages?from=any&offset={end - 1}")
            assert (status, len(page["messages"])) == (200, 1)
        assert story.verdict().ok, story.verdict().anomalies

    asyncio.run(run())


def test_from_says_who_is_to_answer(cluster: LocalCluster) -> None:
    async def run() -> None:
        async with Client([node.url for node in cluster.plan.nodes]) as client:
            in_sync(cluster)
            topic = await client.create_topic("asked", queues=1)
            async with Producer(client, "asked") as producer:
                await producer.send_and_wait("x", queue=0)
            assert topic.routes[0].leader is not None

    asyncio.run(run())
    route = ask(f"{cluster.plan.nodes[0].url}/v1/topics/asked")[2]["routes"][0]
    leader, followers = route["leader"], route["followers"]
    assert sorted([leader, *followers]) == sorted(node.url for node in cluster.plan.nodes)
    path = "/v1/topics/asked/queues/0/messages"
    for source, status in {"leader": 200, "follower": 307, "any": 200, "auto": 200}.items():
        assert ask(f"{leader}{path}?from={source}")[0] == status
    _, headers, document = ask(f"{leader}{path}?from=follower&offset=earliest")
    assert document["error"]["code"] == "read_elsewhere"
    assert (document["error"]["url"], document["error"]["shard"]) in [(url, 0) for url in followers]
    assert headers["Location"] == f"{document['error']['url']}{path}?from=follower&offset=earliest"
    with urllib.request.urlopen(f"{leader}{path}?from=follower") as followed:
        assert followed.url.startswith(tuple(followers))
    for url in followers:
        eventually(lambda url=url: ask(f"{url}{path}?from=any")[2]["next_offset"] == 1, "it is replicated")  # type: ignore[misc]
        for source, status in {"leader": 421, "follower": 200, "any": 200, "auto": 200}.items():
            assert ask(f"{url}{path}?from={source}")[0] == status
        status, _, document = ask(f"{url}{path}?from=any&offset=9")
        assert (status, document["error"]["retriable"]) == (503, True), "it may come yet"
        assert ask(f"{url}{path}?from=any&offset=latest")[2]["next_offset"] == 1
    assert ask(f"{leader}{path}?from=moon")[0] == 400


def test_a_follower_does_not_say_that_there_is_not_what_it_may_not_have_got_yet(cluster: LocalCluster) -> None:
    async def run() -> tuple[int, list[Any]]:
        async with Client([node.url for node in cluster.plan.nodes]) as client:
            in_sync(cluster)
            topic = await client.create_topic("later", queues=1)
            named = await client.create_topic("by-name", queues="named")
            return topic.id, [named.routes[0].leader, *named.routes[0].followers]

    topic_id, (leader, *followers) = asyncio.run(run())
    for source in ("any", "auto", "follower"):
        message = f"/v1/messages/{message_id(topic_id, 0, 0)}?from={source}"
        queue = f"/v1/topics/by-name/queues/none/messages?from={source}"
        for url in followers:
            status, _, document = ask(f"{url}{message}")
            assert (status, document["error"]["retriable"]) == (503, True)
            status, _, document = ask(f"{url}{queue}")
            assert (status, document["error"]["leader"]) == (421, leader)
            assert ask(f"{url}{queue}", **{"Lsmq-Forward": "pass"})[0] == 404, "its leader says so"
        assert ask(f"{leader}{queue}")[0] == 404
    assert ask(f"{leader}/v1/messages/{message_id(topic_id, 0, 0)}?from=any")[0] == 404


class Members:
    """Members of one group that work off a story's backlog, and what they handled, in the order they did."""

    def __init__(self, story: Story, client: Client, tasks: asyncio.TaskGroup) -> None:
        self.handled: list[Message] = []
        self._story = story
        self._client = client
        self._tasks = tasks

    async def join(self) -> Consumer:
        consumer = Consumer(self._client, self._story.topic, group=self._story.topic, session_ms=20_000, **SLOW)
        await consumer.start()
        self._tasks.create_task(consumer.run(self._handle, concurrency=QUEUES))
        return consumer

    async def _handle(self, message: Message) -> None:
        await asyncio.sleep(0.004)
        self.handled.append(message)

    async def go_on(self, count: int) -> None:
        await self.come_to(len(self.handled) + count)

    async def come_to(self, total: int) -> None:
        await comes_true(lambda: len(self.handled) >= total, f"{total} messages are handled")

    async def shared_by(self, *consumers: Consumer) -> None:
        def shared() -> bool:
            return sum(len(part) for one in consumers for part in one.assignment.get(self._story.topic, ())) == QUEUES

        await comes_true(lambda: shared() and all(one.assignment for one in consumers), "the queues are shared")


@pytest.mark.slow
@pytest.mark.xdist_group("follower-reads")
def test_queues_change_hands_while_they_are_read_at_a_follower(cluster: LocalCluster) -> None:
    """Members come, go and stay, and the follower they read at stands still meanwhile: each message is handled once."""

    async def run() -> None:
        story = Story(cluster, "members")
        async with story.client() as client, asyncio.TaskGroup() as tasks:
            await story.begin(client)
            before, members = follower_reads(cluster), Members(story, client, tasks)
            first = await members.join()
            await members.go_on(200)
            second = await members.join()
            await members.shared_by(first, second)
            shared = follower_reads(cluster)
            await members.go_on(200)
            assert sum(follower_reads(cluster).values()) > sum(shared.values()) > sum(before.values())
            follower = in_use(cluster, before)
            cluster.pause(follower)
            third = await members.join()
            await members.shared_by(first, second, third)
            cluster.resume(follower)
            await members.go_on(200)
            await second.close()
            await members.shared_by(first, third)
            await members.go_on(200)
            assert len(members.handled) < MESSAGES, "the backlog was too small for all that"
            await asyncio.gather(story.send(client, QUEUES), members.come_to(MESSAGES + QUEUES))
            for one in (first, third):
                await one.close()
            committed = await client.committed_offsets(story.topic, story.topic)
        for queue in range(QUEUES):
            offsets = [message.offset for message in members.handled if message.queue == queue]
            assert offsets == list(range(MESSAGES // QUEUES + 1)), f"queue {queue}: a message was lost, or came twice"
            assert committed[queue] == len(offsets)
        assert sorted(_number(message) for message in members.handled) == list(range(story.sent))

    asyncio.run(run())
