"""The push consumer against a real node."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
from collections import Counter
from collections.abc import Callable

import msgpack
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lsmq import Client, GroupModeMismatch, Message, Producer, PushConsumer, StreamReplaced, TopicReplaced, UnknownTopic
from lsmq import sync as blocking
from lsmq.groups import Group
from lsmq.push_streams import PROTOCOL, PushLink
from lsmq.topics import Topic
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, comes_true


async def fill(client: Client, topic: str, count: int, queues: int = 4) -> None:
    await client.create_topic(topic, queues=queues)
    async with Producer(client, topic) as producer:
        for queue in range(queues):
            await (await producer.send_many((f"{number}" for number in range(count // queues)), queue=queue))


def bodies(messages: list[Message]) -> Counter[tuple[int, str]]:
    return Counter((message.queue, message.text()) for message in messages)


async def test_messages_are_read_and_acknowledged(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 400)
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            found: list[Message] = []
            async for message in consumer:
                found.append(message)
                consumer.ack(message)
                if len(found) == 100:
                    break
            while len(found) < 400:
                found += await consumer.poll(50)
                consumer.ack()
            assert await consumer.poll(timeout_ms=50) == []
            assert consumer.assignment == (range(4),)
        assert await client.committed_offsets(topic_name, topic_name) == dict.fromkeys(range(4), 100)
        assert max(bodies(found).values()) == 1 and len(bodies(found)) == 400
        for queue in range(4):
            offsets = [message.offset for message in found if message.queue == queue]
            assert offsets == sorted(offsets)


async def test_what_was_not_acknowledged_comes_again(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 40)
        async with PushConsumer(client, topic_name, group=topic_name, credit=8) as consumer:
            first = await consumer.poll()
            while len(first) < 8:
                first += await consumer.poll()
            assert await consumer.poll(timeout_ms=100) == []
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            found: list[Message] = []
            while len(found) < 40:
                found += await consumer.poll()
        assert len(bodies(found)) == 40


@pytest.mark.parametrize("order", ["queue", "key", "none"])
async def test_a_handler_gets_each_message_once(shared_node: NodeProcess, topic_name: str, order: str) -> None:
    name = f"{topic_name}-{order}"
    async with Client(shared_node.url) as client:
        await fill(client, name, 400)
        async with PushConsumer(client, name, group=name, credit=50) as consumer:
            handled: list[Message] = []

            async def handle(message: Message) -> None:
                await asyncio.sleep(0.0005)
                handled.append(message)
                if len(handled) == 400:
                    await consumer.close()

            await consumer.run(handle, concurrency=8, order=order)  # type: ignore[arg-type]
        assert len(handled) == len(bodies(handled)) == 400
        assert await client.committed_offsets(name, name) == dict.fromkeys(range(4), 100)


async def test_a_gap_is_never_acknowledged(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 20, queues=1)
        handled: list[int] = []
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:

            async def handle(message: Message) -> None:
                if message.offset == 5:
                    await comes_true(lambda: len(handled) == 19, "all others are handled")
                    raise ValueError("the fifth")
                handled.append(message.offset)

            with pytest.raises(ValueError, match="the fifth"):
                await consumer.run(handle, concurrency=4, order="none")
            again = await consumer.poll()
            assert again[0].offset == 5
        assert await client.committed_offsets(topic_name, topic_name) == {0: 5}


async def test_subscribers_share_a_topic_and_nothing_is_lost_when_one_goes(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 0, queues=8)
        handled: list[Message] = []
        consumers = [PushConsumer(client, topic_name, group=topic_name, credit=20) for _ in range(3)]

        async def handle(message: Message) -> None:
            await asyncio.sleep(0.001)
            handled.append(message)

        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                await consumer.start()
                tasks.create_task(consumer.run(handle, concurrency=2))
            await comes_true(
                lambda: sorted(sum(map(len, consumer.assignment)) for consumer in consumers) == [2, 3, 3],
                "the queues are shared",
            )
            async with Producer(client, topic_name, linger_ms=1) as producer:
                for number in range(600):
                    await producer.send(f"{number}", queue=number % 8)
                    if number == 300:
                        await consumers[0].close()
                    if number % 50 == 0:
                        await asyncio.sleep(0.01)
            await comes_true(lambda: len(bodies(handled)) == 600, "all messages are handled")
            for consumer in consumers:
                await consumer.close()
        assert len(handled) == 600  # Whoever is closed finishes what it has in its hands, and the rest is not handled.
        committed = await client.committed_offsets(topic_name, topic_name)
        assert sum(committed.values()) == 600


async def test_subscribers_that_come_and_go_handle_everything_once_and_in_order(
    shared_node: NodeProcess, topic_name: str
) -> None:
    rng = random.Random(7)
    count, queues = 1_500, 12
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 0, queues=queues)
        handled: list[Message] = []
        busy: set[int] = set()

        async def handle(message: Message) -> None:
            assert message.queue not in busy, "two have the queue"
            busy.add(message.queue)
            await asyncio.sleep(0.001)
            busy.remove(message.queue)
            handled.append(message)

        async def come_and_go() -> None:
            while len(handled) < count:
                async with PushConsumer(client, topic_name, group=topic_name, credit=rng.randint(1, 30)) as consumer:
                    running = asyncio.create_task(consumer.run(handle, concurrency=3))
                    wanted = min(count, len(handled) + rng.randint(1, 200))
                    await comes_true(lambda wanted=wanted: len(handled) >= wanted, "they go on")  # type: ignore[misc]
                    await consumer.close()
                    await running

        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(come_and_go())
            async with Producer(client, topic_name, linger_ms=1) as producer:
                for number in range(count):
                    await producer.send(f"{number}", queue=rng.randrange(queues))
        assert len(handled) == len({message.id for message in handled}) == count
        reached = [0] * queues
        for message in handled:
            assert message.offset == reached[message.queue]
            reached[message.queue] += 1
        committed = await client.committed_offsets(topic_name, topic_name)
        assert [committed.get(queue, 0) for queue in range(queues)] == reached


async def test_queues_that_a_topic_grows_are_sent_too(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 40)
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            found: list[Message] = []
            while len(found) < 40:
                found += await consumer.poll()
                consumer.ack()
            await client.grow_topic(topic_name, 6)
            await comes_true(lambda: consumer.assignment == (range(6),), "all six are sent")
            async with Producer(client, topic_name) as producer:
                await producer.send_and_wait("new", queue=5)
            (message,) = await consumer.poll()
            assert (message.queue, message.text()) == (5, "new")


async def test_broadcast(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 40)
        for name in ("one", "two"):
            async with PushConsumer(client, topic_name, group="b", mode="broadcast", subscriber=name) as consumer:
                found: list[Message] = []
                while len(found) < 40:
                    found += await consumer.poll()
                    consumer.ack()
            assert sum((await client.committed_offsets(f"b/{name}", topic_name)).values()) == 40


async def test_errors_are_raised_by_the_next_read(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        with pytest.raises(UnknownTopic):
            async with PushConsumer(client, "nothing", group="g"):
                pass
        await fill(client, topic_name, 0)
        await Group(client, topic_name).declare("clustered")
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            with pytest.raises(GroupModeMismatch):
                await consumer.poll()
        async with PushConsumer(client, topic_name, group="e", subscriber="a") as former:
            await comes_true(lambda: bool(former.assignment), "it has queues")
            async with PushConsumer(client, topic_name, group="e", subscriber="a"):
                with pytest.raises(StreamReplaced):
                    await former.poll()
        async with PushConsumer(client, topic_name, group="e") as consumer:
            await comes_true(lambda: bool(consumer.assignment), "it has queues")
            await client.delete_topic(topic_name)
            await client.create_topic(topic_name, queues=4)
            with pytest.raises((TopicReplaced, UnknownTopic)):
                await consumer.poll()


async def test_what_comes_again_after_a_reset_is_not_acknowledged_with_what_was_handed_out_before(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 40, queues=1)
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            found: list[Message] = []
            while len(found) < 40:
                found += await consumer.poll(40)
            consumer.ack(*found[:-1])
            await client.commit_offsets(topic_name, topic_name, {0: 0}, reset=True)
            await comes_true(lambda: consumer._buffer.positions == {0: 0}, "it has come again")
            consumer.ack(found[-1])  # It was being handled all the while.
            again: list[Message] = []
            while len(again) < 40:
                again += await consumer.poll(40)
            assert [message.offset for message in again] == list(range(40))
            consumer.ack(*again)
        assert await client.committed_offsets(topic_name, topic_name) == {0: 40}


async def test_a_reset_is_followed(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name, 40)
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            handled: list[Message] = []
            running = asyncio.create_task(consumer.run(handled.append))
            await comes_true(lambda: len(handled) == 40, "all are handled")
            await client.commit_offsets(topic_name, topic_name, dict.fromkeys(range(4), 5), reset=True)
            await comes_true(lambda: len(handled) == 60, "what was reset comes again")
            await consumer.close()
            await running


async def test_a_node_that_dies_and_comes_back_is_found_again(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node().start()
    async with Client(node.url) as client:
        await fill(client, "t", 400)
        async with PushConsumer(client, "t", group="g") as consumer:
            found: list[Message] = []
            while len(found) < 400:
                found += await consumer.poll()
            consumer.ack(*[message for message in found if message.queue < 2])
            await comes_true(lambda: _are_committed(client), "it is committed")
            await asyncio.to_thread(node.kill9)
            await asyncio.to_thread(node.start)
            again: list[Message] = []
            while len(again) < 200:
                again += await consumer.poll()
            assert {message.queue for message in again} == {2, 3}
            assert consumer.reconnects > 0


async def test_a_subscriber_without_a_name_is_warned_that_it_begins_anew(
    make_node: Callable[..., NodeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node().start()
    async with Client(node.url) as client:
        await fill(client, "t", 40)
        named = PushConsumer(client, "t", group="b", mode="broadcast", subscriber="one")
        async with named, PushConsumer(client, "t", group="b", mode="broadcast") as nameless:
            for consumer in (named, nameless):
                found: list[Message] = []
                while len(found) < 40:
                    found += await consumer.poll()
                consumer.ack()
            assert "begin anew" not in caplog.text
            await asyncio.to_thread(node.kill9)
            await asyncio.to_thread(node.start)
            again: list[Message] = []
            while len(again) < 40:
                again += await nameless.poll()
            assert caplog.text.count("4 queues of topic 't' begin anew at the earliest message") == 1


async def _are_committed(client: Client) -> bool:
    return await client.committed_offsets("g", "t") == {0: 100, 1: 100}


def test_the_blocking_face(shared_node: NodeProcess, topic_name: str) -> None:
    with blocking.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=4)
        with blocking.Producer(client, topic_name) as producer:
            producer.send_many(f"{number}" for number in range(100)).wait()
        with blocking.PushConsumer(client, topic_name, group=topic_name) as consumer:
            first = next(consumer)
            consumer.ack(first)
            found = [first]
            while len(found) < 50:
                found += consumer.poll(50 - len(found))
            consumer.ack()
            assert consumer.assignment == (range(4),)
        with blocking.PushConsumer(client, topic_name, group=topic_name) as consumer:

            def handle(message: Message) -> None:
                found.append(message)
                if len(found) == 100:
                    consumer.close()

            consumer.run(handle)
        assert len({message.id for message in found}) == 100
        assert sum(client.committed_offsets(topic_name, topic_name).values()) == 100


async def test_who_closes_is_warned_where_the_node_does_not_say_that_all_is_committed(
    make_node: Callable[..., NodeProcess], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node().start()
    async with Client(node.url) as client:
        await fill(client, "t", 40)
        for answers in (True, False):
            consumer = PushConsumer(client, "t", group=f"{answers}")
            await consumer.poll()
            consumer.ack()
            if not answers:
                monkeypatch.setattr("lsmq.push_streams._CLOSE_S", 0.5)
                node.signal(signal.SIGSTOP)
            await consumer.close()
            assert ("may come again" in caplog.text) is not answers
        node.signal(signal.SIGCONT)


async def test_a_stream_that_opens_as_it_is_closed_is_closed_too() -> None:
    """The node would take its subscriber for one that lives."""

    class Socket:
        closed = False

        async def close(self) -> None:
            self.closed = True

    class Opening:
        async def websocket(self, *_: object, **__: object) -> tuple[Socket, Callable[[], bool]]:
            await link.close()
            return socket, lambda: False

    socket, topic = Socket(), Topic("t", 1, 1, {}, 0, ())
    link = PushLink(Opening(), "http://n1", topic, lambda *_: None, lambda: None)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        await link.run("/push", {}, 1.0)
    assert socket.closed


async def test_all_that_is_acknowledged_is_said_by_who_closes_also_where_the_node_has_not_read_the_half() -> None:
    reads, heard, count = asyncio.Event(), dict[int, int](), 100_000

    async def hold(request: web.Request) -> web.WebSocketResponse:
        """A node that is busy with something else."""
        assert request.transport is not None
        request.transport.pause_reading()  # type: ignore[attr-defined]
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        held = web.WebSocketResponse(protocols=(PROTOCOL,))
        await held.prepare(request)
        await held.send_bytes(msgpack.packb({"queues": [[0, count]]}))
        await reads.wait()
        request.transport.resume_reading()  # type: ignore[attr-defined]
        async for frame in held:
            heard.update(msgpack.unpackb(frame.data)["ack"])
        return held

    application = web.Application()
    application.router.add_get("/push", hold)
    topic = Topic("t", 1, count, {}, 0, ())
    async with TestServer(application) as server, Client(url := str(server.make_url("")).rstrip("/")) as client:
        link = PushLink(client._transport, url, topic, lambda *_: None, lambda: None)
        running = asyncio.create_task(link.run("/push", {}, PATIENCE_S))
        await comes_true(lambda: link.is_open, "the stream is open")
        assert link._socket is not None
        link._socket.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        for queue in range(count):
            link.acknowledge(queue, 7)
        await comes_true(lambda: not link._acks, "they are on their way")
        closing = asyncio.create_task(link.close())
        for _ in range(20):
            await asyncio.sleep(0)
        reads.set()
        await closing
        await running
    assert heard == dict.fromkeys(range(count), 7)
