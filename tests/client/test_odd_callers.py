"""Callers that use what they should not: from another event loop, after the end, by a name that is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lsmq import Client, ClientClosed, Consumer, Group, InvalidRequest, Producer, UnknownQueue, sync
from support.node_process import NodeProcess


async def sent(client: Client, topic: str) -> None:
    async with Producer(client, topic) as producer:
        await producer.send_and_wait("a")


async def read(client: Client, topic: str) -> None:
    async with Consumer(client, topic, start="earliest") as consumer:
        await consumer.poll()


async def listed(client: Client, topic: str) -> None:
    await client.topics()


async def committed(client: Client, topic: str) -> None:
    await client.commit_offsets(f"g-{topic}", topic, {0: 0})


@pytest.mark.parametrize("use", [listed, sent, read, committed])
def test_a_client_in_another_event_loop_says_so(
    shared_node: NodeProcess, topic_name: str, use: Callable[[Client, str], Coroutine[Any, Any, None]]
) -> None:
    client = Client(shared_node.url)

    async def first() -> None:
        await client.create_topic(topic_name)
        await sent(client, topic_name)

    with asyncio.Runner() as one:
        one.run(first())
        with asyncio.Runner() as other, pytest.raises(InvalidRequest, match="event loop in which it was first used"):
            other.run(use(client, topic_name))
        one.run(use(client, topic_name))
        one.run(client.close())


async def test_a_producer_in_the_event_loop_of_another_thread_says_so(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            with pytest.raises(InvalidRequest, match="event loop in which it was first used"):
                await asyncio.to_thread(lambda: asyncio.run(producer.send_and_wait("a")))
            await producer.send_and_wait("b")


def test_a_list_that_is_read_on_after_its_client_was_closed_says_so(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        found = sync.Schedules(client, topic_name).read()
    with pytest.raises(ClientClosed):
        next(found)


@pytest.mark.parametrize("name", ["\ud800", None, 7])
async def test_a_name_that_is_none_is_refused(shared_node: NodeProcess, name: Any) -> None:
    async with Client(shared_node.url) as client:
        for call in (client.topic(name), Group(client, "g").lag(name)):
            with pytest.raises(InvalidRequest, match="is no name"):
                await call
        with pytest.raises(InvalidRequest, match="is no name"):
            Group(client, name)


@pytest.mark.parametrize("queues", [["alice"], [0, "1"], [None], [[0]], [1.5], "01", 1])
async def test_queues_that_are_no_numbers_are_refused_by_name(
    shared_node: NodeProcess, topic_name: str, queues: Any
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        async with Consumer(client, topic_name) as consumer:
            for choose in (consumer.pause, consumer.resume):
                with pytest.raises(InvalidRequest, match=r"queues? is .*; it must be a (whole number|list of numbers)"):
                    choose(queues)
        for call in (client.offsets(topic_name, queues), client.purge_topic(topic_name, queues=queues)):
            with pytest.raises(InvalidRequest, match=r"queues? is .*; it must be a (whole number|list of numbers)"):
                await call


async def test_queues_are_said_in_any_order_and_by_ranges(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        for queues in ([3, 1, 1], range(3, 0, -2), {1, 3}, range(1, 4, 2)):
            assert list((await client.offsets(topic_name, queues)).queues) == [1, 3]
            async with Producer(client, topic_name) as producer:
                for queue in range(4):
                    await producer.send("a", queue=queue)
            assert await client.purge_topic(topic_name, queues=queues) == 2
        with pytest.raises(UnknownQueue):
            await client.offsets(topic_name, [-1])


async def test_a_name_in_place_of_a_number_is_told_where_the_number_is(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        await client.declare_queue(topic_name, "alice")
        for call in (
            client.offsets(topic_name, ["alice"]),  # type: ignore[list-item]
            client.commit_offsets(f"g-{topic_name}", topic_name, {"alice": 0}),  # type: ignore[dict-item]
        ):
            with pytest.raises(InvalidRequest, match=r"client\.queue\(\) says"):
                await call
        number = (await client.queue(topic_name, "alice")).number
        assert list((await client.offsets(topic_name, [number])).earliest) == [0]


@pytest.mark.parametrize("name", [1, "1"])
async def test_a_single_queue_that_has_a_number_is_told_where_numbers_go(
    shared_node: NodeProcess, topic_name: str, name: Any
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        for call in (
            client.queue(topic_name, name),
            client.declare_queue(topic_name, name),
            client.trim_queue(topic_name, name, 0),
            client.delete_queue(topic_name, name),
        ):
            with pytest.raises(InvalidRequest, match=r"have numbers, not names: offsets\(\)"):
                await call
