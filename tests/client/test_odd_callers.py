"""Callers that use what they should not: from another event loop, after the end, by a name that is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lsmq import Client, ClientClosed, Consumer, Group, InvalidRequest, Producer, sync
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
