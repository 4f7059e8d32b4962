"""An address may come to be a node's of another cluster, where a topic has the same name and even the same id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lsmq import Client, Consumer, LsmqError, Message, Producer, TopicReplaced
from support.node_process import NodeProcess


async def bodies(url: str) -> list[str]:
    async with Client(url) as client, Consumer(client, "t", start="earliest") as consumer:
        return [message.text() for message in await consumer.poll(100, timeout_ms=300)]


async def exchanged(one: NodeProcess, other: NodeProcess) -> None:
    """The other cluster's node, with a topic of the same name and id, has the address of the first from now on."""
    port = one.port
    async with Client(other.start().url) as client:
        assert (await client.create_topic("t", queues=4)).id == 1
    other.stop()
    one.stop()
    other.port = port
    other.start()


async def test_what_is_meant_for_one_cluster_is_not_stored_in_another(make_node: Callable[..., NodeProcess]) -> None:
    one, other = make_node().start(), make_node()
    async with Client(one.url, refresh_s=3600) as client:
        assert (await client.create_topic("t", queues=4)).id == 1
        single, together = Producer(client, "t"), Producer(client, "t")
        async with single, together:
            await single.send_and_wait("for the first", queue=0)
            await together.send_and_wait("for the first", queue=1)
            await exchanged(one, other)
            with pytest.raises(TopicReplaced):
                await single.send_and_wait("not for the other", queue=0)
            for producer in (single, together):
                with pytest.raises(TopicReplaced):
                    await producer.send_and_wait("not for the other", queue=1)
    assert await bodies(other.url) == []


async def test_a_consumer_does_not_go_on_in_another_cluster(make_node: Callable[..., NodeProcess]) -> None:
    one, other = make_node().start(), make_node()
    async with Client(one.url, refresh_s=3600) as client:
        await client.create_topic("t", queues=4)
        async with Consumer(client, "t", start="latest") as consumer:
            await consumer.poll(1, timeout_ms=1)
            await exchanged(one, other)
            async with Client(one.url) as of_the_other, Producer(of_the_other, "t") as producer:
                await producer.send_and_wait("of another cluster", queue=0)
            heard: list[Message] = []
            with pytest.raises(LsmqError) as caught:
                while True:
                    heard += await consumer.poll(1, timeout_ms=200)
            assert isinstance(caught.value, TopicReplaced) and heard == []
