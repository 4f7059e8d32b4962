"""The client, and the producer through faults, against real nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from lsmq import (
    Client,
    ClientClosed,
    ConnectionFailed,
    Consumer,
    InvalidTopicName,
    LsmqError,
    MessageTooLarge,
    Producer,
    TopicExists,
    Unavailable,
    UnknownMessage,
    UnknownQueue,
    UnknownTopic,
)
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess
from support.waiting import clock_passes, comes_true


async def stored(client: Client, topic: str, count: int) -> list[bytes]:
    """The first ``count`` bodies of a topic, and proof that there are no more."""
    async with Consumer(client, topic, start="earliest") as consumer:
        bodies: list[bytes] = []
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll()]
        assert await consumer.poll(timeout_ms=200) == []
    offsets = await client.offsets(topic)
    assert sum(offsets.latest) == len(bodies)
    return bodies


async def test_topics_are_created_found_and_deleted(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        made = await client.create_topic(topic_name, queues=7, retention_ms=60_000)
        assert (made.name, made.queues, made.options["retention_ms"]) == (topic_name, 7, 60_000)
        assert made.route(6).leader == shared_node.url
        assert await client.create_topic(topic_name, queues=7, retention_ms=60_000) == made
        with pytest.raises(TopicExists):
            await client.create_topic(topic_name, queues=8)
        with pytest.raises(TopicExists):
            await client.create_topic(topic_name, queues=7, retention_ms=60_000, exist_ok=False)
        assert made in await client.topics()
        assert await client.topic(topic_name) == made
        await client.delete_topic(topic_name)
        with pytest.raises(UnknownTopic):
            await client.topic(topic_name)
        with pytest.raises(UnknownTopic):
            await client.delete_topic(topic_name)
        await client.delete_topic(topic_name, missing_ok=True)
        with pytest.raises(InvalidTopicName):
            await client.create_topic("not a/topic?")


async def test_offsets_and_messages_are_found(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=5)
        async with Producer(client, topic_name) as producer:
            first = await producer.send_and_wait(
                b"\xff\x00", key="k", tag="t", queue=3, properties={"a": "b"}, priority=2
            )
            found = await client.message(first.id)
            clock_passes(found.stored_ms)
            second = await producer.send_and_wait("later", queue=3)
        assert (found.topic, found.queue, found.offset, found.id) == (topic_name, 3, 0, first.id)
        assert (found.body, found.key, found.tag, found.priority) == (b"\xff\x00", "k", "t", 2)
        assert found.properties == {"a": "b"}
        later = await client.message(second.id)
        assert later.stored_ms > found.stored_ms
        offsets = await client.offsets(topic_name, [3, 0], at_time=later.stored_ms)
        assert (list(offsets.queues), list(offsets.latest), list(offsets.at_time)) == ([0, 3], [0, 2], [0, 1])
        assert len(await client.offsets(topic_name)) == 5
        with pytest.raises(UnknownQueue, match="queues 0 to 4"):
            await client.offsets(topic_name, [5])
        for unknown in (second.id[:-1] + "9", "nonsense", "a/b"):
            with pytest.raises(UnknownMessage):
                await client.message(unknown)
        assert (await client.status())["uptime_s"] > 0


async def test_a_lost_answer_stores_once(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as direct, FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name, queues=4)
        async with Producer(client, topic_name) as producer:
            proxy.lose_answers("batches", times=3)
            first = await producer.send_and_wait("only once", key="a")
            proxy.lose_answers("batches")
            second = await producer.send_and_wait("and this", key="a")
        assert proxy.requests["batches"] == 6
        assert len(set(proxy.bodies["batches"])) == 2  # Retries are the same bytes.
        assert (first.offset, second.offset) == (0, 1)
        assert await stored(direct, topic_name, 2) == [b"only once", b"and this"]


async def test_an_answer_that_comes_too_late_stores_once(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as direct, FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        proxy.delay("batches", 1.0)
        async with Producer(client, topic_name, request_timeout_ms=200) as producer:
            assert (await producer.send_and_wait("only once")).offset == 0
        assert proxy.requests["batches"] == 2
        assert await stored(direct, topic_name, 1) == [b"only once"]


async def test_faults_of_all_kinds_leave_every_message_stored_once_and_in_order(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as direct, FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name, queues=1)
        not_leader = {"code": "not_leader", "message": "ask another", "retriable": True, "refresh_route": True}
        async with Producer(client, topic_name, batch_bytes=1000) as producer:
            for _ in range(2):
                proxy.lose_answers("batches")
                proxy.cut("batches")
                proxy.refuse("batches", 503, {"code": "store_busy", "message": "busy", "retriable": True})
                proxy.refuse("batches", 421, not_leader)
                proxy.refuse("batches", 502, None)
            await (await producer.send_many(f"{number}" for number in range(400)))
        assert await stored(direct, topic_name, 400) == [f"{number}".encode() for number in range(400)]


async def test_a_refused_batch_fails_and_the_next_is_stored(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, max_message_bytes=100)
        async with Producer(client, topic_name, max_message_bytes=1000) as producer:
            with pytest.raises(MessageTooLarge):
                await producer.send_and_wait("x" * 500)
            await producer.send_and_wait("small")
        async with Producer(client, topic_name) as producer:
            with pytest.raises(MessageTooLarge, match="allows 100"):
                await producer.send("x" * 101)  # The topic's own limit is known before it is sent.
        assert await stored(client, topic_name, 1) == [b"small"]


async def test_messages_of_90_kb_and_of_the_limit_pass(shared_node: NodeProcess, topic_name: str) -> None:
    sizes = [90_000, 1 << 20, 1]
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            for size in sizes:
                await producer.send(b"x" * size)
            with pytest.raises(MessageTooLarge):
                await producer.send(b"x" * ((1 << 20) + 1))
        assert [len(body) for body in await stored(client, topic_name, 3)] == sizes


async def progress(consumed: list[tuple[int, int, bytes]]) -> None:
    wanted = len(consumed) + 500
    await comes_true(lambda: len(consumed) >= wanted, "500 more messages are consumed")


async def test_a_client_goes_on_after_the_node_was_killed(node: NodeProcess) -> None:
    """Every message whose receipt came is stored, once and in order, across two kills."""
    async with Client(node.url) as client:
        await client.create_topic("flights", queues=8)
        sent: list[str] = []
        stop = asyncio.Event()

        async def produce() -> None:
            async with Producer(client, "flights", linger_ms=1, batch_bytes=2000, max_buffer_bytes=20_000) as producer:
                while not stop.is_set():
                    body = f"{len(sent)}"
                    sent.append(body)
                    await producer.send(body, queue=int(body) % 8)
                    await asyncio.sleep(0)

        consumed: list[tuple[int, int, bytes]] = []

        async def consume() -> None:
            async with Consumer(client, "flights", start="earliest") as consumer:
                while not stop.is_set() or len(consumed) < len(sent):
                    messages = await consumer.poll(timeout_ms=100)
                    consumed.extend((m.queue, m.offset, m.body) for m in messages)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
            for _ in range(2):
                await progress(consumed)
                await asyncio.to_thread(node.kill9)
                await comes_true(lambda: bool(client._outages._since), "the client has noticed")
                await asyncio.to_thread(node.start)
            await progress(consumed)
            stop.set()
    assert Counter(body for _, _, body in consumed) == Counter(body.encode() for body in sent)
    for queue in range(8):
        mine = [(offset, int(body)) for held, offset, body in consumed if held == queue]
        assert [offset for offset, _ in mine] == list(range(len(mine)))
        assert [number for _, number in mine] == sorted(number for _, number in mine)


async def test_another_node_is_asked_when_the_first_cannot_be_reached(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(["http://127.0.0.1:9", shared_node.url]) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("x")
        assert await stored(client, topic_name, 1) == [b"x"]


async def test_a_node_that_cannot_be_reached_is_an_error_after_the_deadline() -> None:
    async with Client("http://127.0.0.1:9", deadline_ms=200) as client:
        with pytest.raises(ConnectionFailed, match=r"no success within 0\.2 s.*127\.0\.0\.1:9"):
            await client.topics()


async def test_answers_that_are_not_a_nodes_are_told_apart(shared_node: NodeProcess) -> None:
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url, deadline_ms=300) as client:
        proxy.refuse("topics", 404, None)
        with pytest.raises(LsmqError):
            await client.topics()
        proxy.refuse("topics", 502, None, times=100)
        with pytest.raises(Unavailable, match="502"):
            await client.topics()


@pytest.mark.parametrize("ending", ["topics", "offsets"])
async def test_control_requests_survive_a_cut_connection(
    shared_node: NodeProcess, topic_name: str, ending: str
) -> None:
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        proxy.cut(ending, times=2)
        proxy.lose_answers(ending)
        await client.topics()
        await client.offsets(topic_name)
        assert proxy.requests[ending] == 4


async def test_a_delete_whose_answer_was_lost_succeeds(shared_node: NodeProcess, topic_name: str) -> None:
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        proxy.lose_answers(topic_name)
        await client.delete_topic(topic_name)
        proxy.lose_answers(topic_name)
        made = await client.create_topic(topic_name, queues=2, exist_ok=False)
        assert made.queues == 2


async def test_a_closed_client_refuses(shared_node: NodeProcess) -> None:
    client = Client(shared_node.url)
    await client.topics()
    await client.close()
    with pytest.raises(ClientClosed):
        await client.topics()


async def test_the_producer_learns_of_an_unknown_topic_at_the_start(shared_node: NodeProcess) -> None:
    async with Client(shared_node.url) as client:
        with pytest.raises(UnknownTopic):
            async with Producer(client, "no-such-topic"):
                pass


async def test_batches_of_a_node_with_several_shards_go_where_they_belong(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(shards=3).start()
    async with Client(node.url) as client:
        topic = await client.create_topic("wide", queues=30)
        assert len({route.shard for route in topic.routes}) == 3
        async with Producer(client, "wide") as producer:
            sent = await (await producer.send_many((f"{number}", f"{number}") for number in range(300)))
        assert len({topic.route(place.queue).shard for place in sent}) == 3
        assert sorted(await stored(client, "wide", 300)) == sorted(f"{n}".encode() for n in range(300))
