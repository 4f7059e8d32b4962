"""Whoever closes what somebody else is closing already waits for the same end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from lsmq import (
    Client,
    ClientClosed,
    Consumer,
    GroupProducer,
    Message,
    Producer,
    PushConsumer,
    Task,
    Topic,
    TransactionalProducer,
    WorkQueue,
    sync,
)
from lsmq._heartbeats import HeartbeatThread
from lsmq._retries import Deadline
from lsmq.groups import Group
from lsmq.transactions import ProducerGroup
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, comes_true, eventually


class Closeable(Protocol):
    async def close(self) -> None: ...


Maker = Callable[[Client, str], Closeable]


async def _use(thing: Closeable, client: Client, topic: str) -> None:
    """Have it do something that closing it has to wait for."""
    match thing:
        case Producer():
            await thing.send("while it is closed")
        case PushConsumer():
            await thing.poll(1)
            thing.ack()
        case Consumer() | WorkQueue():
            await thing.poll(1)
        case TransactionalProducer():
            await thing.transaction().send(topic, "never decided")


MAKERS: dict[str, Maker] = {
    "producer": lambda client, topic: Producer(client, topic, linger_ms=0),
    "consumer": lambda client, topic: Consumer(client, topic, group="closing"),
    "push": lambda client, topic: PushConsumer(client, topic, group="closing-push"),
    "work": lambda client, topic: WorkQueue(client, topic, "closing-work"),
    "transactions": lambda client, topic: TransactionalProducer(client, "closing"),
}


@pytest.mark.parametrize("what", MAKERS)
async def test_a_second_close_waits_for_the_first(shared_node: NodeProcess, topic_name: str, what: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await (await producer.send_many(["one", "two"]))
        thing = MAKERS[what](client, topic_name)
        await _use(thing, client, topic_name)
        first = asyncio.create_task(thing.close())
        await asyncio.sleep(0)  # It has begun.
        assert not first.done()
        await thing.close()
        assert first.done()
        await first


async def test_a_callback_that_closes_its_consumer_again_does_not_wait_for_itself(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        closed: list[str] = []

        async def close(queues: object) -> None:
            await consumer.close()
            closed.append("again")

        consumer = Consumer(client, topic_name, group=topic_name, on_revoked=close)
        async with asyncio.timeout(60), consumer:
            assert consumer.assignment
        assert closed == ["again"]


async def test_a_callback_may_close_its_consumer(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)

        async def close(queues: object) -> None:
            await first.close()

        first = Consumer(client, topic_name, group=topic_name, on_revoked=close)
        await first.start()
        async with Consumer(client, topic_name, group=topic_name) as second:
            await comes_true(lambda: second.assignment == {topic_name: (range(4),)}, "the first has gone")
        async with asyncio.timeout(60):
            await first.close()


def test_a_blocking_callback_that_closes_its_consumer_again_does_not_wait_for_itself(
    shared_node: NodeProcess, topic_name: str
) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        closed: list[str] = []

        def close(queues: object) -> None:
            consumer.close()
            closed.append("again")

        consumer = sync.Consumer(client, topic_name, group=topic_name, on_revoked=close)
        consumer.close()
        assert closed == ["again"]


async def test_what_a_handler_closed_is_committed_when_the_block_is_left(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=8)
        async with Producer(client, topic_name) as producer:
            for number in range(40):
                await producer.send(f"{number}", queue=number % 8)
        handled: list[str] = []

        async def handle(message: Message) -> None:
            handled.append(message.id)
            if len(handled) == 40:
                await consumer.close()

        async with PushConsumer(client, topic_name, group="from-inside") as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=4))
            await comes_true(lambda: len(handled) == 40, "all are handled")
        assert sum((await client.committed_offsets("from-inside", topic_name)).values()) == 40
        await running


async def test_a_work_queue_is_closed_when_what_it_settled_is_settled(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await (await producer.send_many(f"{number}" for number in range(20)))
        tasks: list[Task] = []
        async with WorkQueue(client, topic_name, "settling") as work:
            tasks += await work.poll(1)
            first = asyncio.create_task(work.close())
            await asyncio.sleep(0)
        assert first.done()
        async with WorkQueue(client, topic_name, "settling") as work:
            rest: list[Task] = []
            while len(rest) < 19:
                rest += await work.poll(20, timeout_ms=10_000)
            assert all(task.deliveries == 1 for task in rest)


@pytest.mark.parametrize("moment", ["before it asks", "while it joins"])
async def test_what_is_closed_while_it_starts_holds_no_queues(
    shared_node: NodeProcess, topic_name: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be a member for ever, of queues that nobody reads."""
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        name = "coordinator" if moment == "before it asks" else "fence"
        begun, go_on = asyncio.Event(), asyncio.Event()
        do = getattr(Group, name)

        async def late(group: Group, *arguments: object, **options: object) -> object:
            begun.set()
            await go_on.wait()
            return await do(group, *arguments, **options)

        monkeypatch.setattr(Group, name, late)
        consumer = Consumer(client, topic_name, group=topic_name)
        running = asyncio.create_task(consumer.run(print))
        await begun.wait()
        monkeypatch.undo()
        await asyncio.gather(consumer.close(), asyncio.sleep(0))
        go_on.set()
        await asyncio.wait_for(running, PATIENCE_S)
        async with Consumer(client, topic_name, group=topic_name) as other:
            await comes_true(lambda: other.assignment == {topic_name: (range(4),)}, "it has all queues")
        assert client._heartbeats is None


async def test_a_push_consumer_that_is_closed_while_it_starts_is_sent_nothing(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one")
        begun, go_on, fresh = asyncio.Event(), asyncio.Event(), client._router.topic

        async def late(name: str, deadline: Deadline) -> Topic:
            begun.set()
            await go_on.wait()
            return await fresh(name, deadline)

        monkeypatch.setattr(client._router, "topic", late)
        consumer = PushConsumer(client, topic_name, group=topic_name)
        running = asyncio.create_task(consumer.run(print))
        await begun.wait()
        monkeypatch.undo()
        closing = asyncio.create_task(consumer.close())
        go_on.set()
        await asyncio.wait_for(asyncio.gather(closing, running), PATIENCE_S)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("lsmq push")]
        async with PushConsumer(client, topic_name, group=topic_name) as other:
            assert [message.text() for message in await other.poll(1, timeout_ms=20_000)] == ["one"]


async def test_whoever_sends_as_a_producer_is_closed_that_is_just_starting_is_told(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        begun, go_on, fresh = asyncio.Event(), asyncio.Event(), client.topic

        async def late(name: str) -> Topic:
            begun.set()
            await go_on.wait()
            return await fresh(name)

        monkeypatch.setattr(client, "topic", late)
        producer, of_group = Producer(client, topic_name), GroupProducer(client, topic_name, "g")
        works = (
            producer.send("x"),
            producer.send_many(["x"]),
            producer.send_batch(["x"]),
            of_group.send("x", position=1),
        )
        sending = [asyncio.ensure_future(work) for work in works]
        await begun.wait()
        await producer.close()
        await of_group.close()
        go_on.set()
        told = await asyncio.gather(*sending, return_exceptions=True)
        assert [type(error) for error in told] == [ClientClosed] * 4


MADE: dict[str, Callable[[Client, str], AbstractAsyncContextManager[object]]] = {
    "consumer": lambda client, topic: Consumer(client, topic, queues=[0, 1]),
    "member": lambda client, topic: Consumer(client, topic, group=topic),
    "names": lambda client, topic: Consumer(client, f"{topic}-names", pattern="**", start="latest"),
    "push": lambda client, topic: PushConsumer(client, topic, group=f"{topic}-push"),
    "producer": lambda client, topic: GroupProducer(client, topic, topic),
}


@pytest.mark.parametrize("what", MADE)
async def test_what_is_cancelled_while_it_starts_leaves_nothing_behind(
    shared_node: NodeProcess, topic_name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a timeout: whoever leaves a block before it has begun has nothing that he could close."""

    async def use(client: Client) -> None:
        async with MADE[what](client, topic_name):
            await asyncio.Event().wait()

    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        await client.create_topic(f"{topic_name}-names", queues="named")
        followed, before = client._router._refresher._followed, {task.get_name() for task in asyncio.all_tasks()}
        begun, follow = asyncio.Event(), client._router.follow

        def noted(topic: str) -> None:
            follow(topic)
            begun.set()

        monkeypatch.setattr(client._router, "follow", noted)
        for steps in range(12):
            begun.clear()
            using = asyncio.create_task(use(client))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            for _ in range(steps):
                await asyncio.sleep(0)
            using.cancel()
            with pytest.raises(asyncio.CancelledError):
                await using
            assert not followed
            left = {task.get_name() for task in asyncio.all_tasks()} - before
            assert not [name for name in left if name.startswith("lsmq ") and name != "lsmq routes"]


async def test_a_client_whose_closing_is_cancelled_leaves_nothing_behind(
    shared_node: NodeProcess, topic_name: str
) -> None:
    for steps in range(1, 9):
        before = asyncio.all_tasks()
        client = Client(shared_node.url)
        await client.create_topic(topic_name)
        closing = asyncio.create_task(client.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert client._transport._session is None
        await comes_true(lambda before=before: not asyncio.all_tasks() - before, "no task goes on")


def is_over(thread: HeartbeatThread | None) -> bool:
    assert thread is not None
    return not thread._thread._thread.is_alive()


async def test_members_of_a_client_that_is_closed_first_leave(shared_node: NodeProcess, topic_name: str) -> None:
    """They would be members for as long as the process lives, of queues that nobody reads."""
    left = Client(shared_node.url)
    await left.create_topic(topic_name, queues=4)
    consumer = Consumer(left, topic_name, group=topic_name)
    await consumer.start()
    producer = TransactionalProducer(left, topic_name)
    await producer.start()
    thread = left._heartbeats
    await left.close()
    assert is_over(thread)
    for use in (consumer.poll, producer.transaction().__aenter__):
        with pytest.raises(ClientClosed):
            await use()
    async with Client(shared_node.url) as client:
        assert not (await Group(client, topic_name).describe()).members
        assert not (await ProducerGroup(client, topic_name).describe())["members"]
        async with Consumer(client, topic_name, group=topic_name) as other:
            await comes_true(lambda: other.assignment == {topic_name: (range(4),)}, "it has all queues")
    await consumer.close()
    await producer.close()


async def test_who_has_a_static_id_keeps_the_place_when_the_client_is_closed_first(
    shared_node: NodeProcess, topic_name: str
) -> None:
    left = Client(shared_node.url)
    await left.create_topic(topic_name)
    consumer = Consumer(left, topic_name, group=topic_name, static_id="one")
    await consumer.start()
    await left.close()
    await consumer.close()
    async with Client(shared_node.url) as client:
        assert [member.static_id for member in (await Group(client, topic_name).describe()).members] == ["one"]


def test_a_member_whose_event_loop_is_closed_leaves_no_thread(shared_node: NodeProcess, topic_name: str) -> None:
    async def begin() -> HeartbeatThread | None:
        client = Client(shared_node.url)
        await client.create_topic(topic_name)
        await Consumer(client, topic_name, group=topic_name, session_ms=1_000).start()
        await TransactionalProducer(client, topic_name, session_ms=1_000).start()
        await client._transport.close()  # Nobody is warned of connections that are left open.
        return client._heartbeats  # Nobody closes the client, and the process lives.

    thread = asyncio.run(begin())
    eventually(lambda: is_over(thread), "it has ended")


def test_a_blocking_client_that_is_closed_first_leaves_no_thread(shared_node: NodeProcess, topic_name: str) -> None:
    client = sync.Client(shared_node.url)
    client.create_topic(topic_name)
    consumer = sync.Consumer(client, topic_name, group=topic_name)
    thread = client._async._heartbeats
    client.close()
    assert is_over(thread) and consumer.member_id
