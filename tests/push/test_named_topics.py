"""Streams of named topics: subscribers share the queues there are, and those that come."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import aiohttp
import pytest

from lsmq import Client, InvalidRequest, Message, Producer, PushConsumer
from lsmq.groups import Group
from support.coroutine_tests import pytest_pyfunc_call
from support.group_topic import take
from support.node_process import NodeProcess
from support.waiting import comes_true

__all__ = ["pytest_pyfunc_call"]


async def fill(client: Client, topic: str, names: range, *bodies: str) -> None:
    async with Producer(client, topic) as producer:
        for body in bodies:
            for name in names:
                await producer.send(body, queue=f"agents.{name}")


def by_name(messages: list[Message]) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = defaultdict(list)
    for message in messages:
        found[message.queue_name].append(message.text())
    return found


async def test_what_is_pushed_says_its_queue_and_new_queues_are_pushed_too(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        await fill(client, topic_name, range(20), "0", "1")
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            first = await take(consumer, 40)  # type: ignore[arg-type]
            assert by_name(first) == {f"agents.{name}": ["0", "1"] for name in range(20)}
            await fill(client, topic_name, range(3_000), "2")  # Most of them are new.
            second: list[Message] = []
            while len(second) < 3_000:
                consumer.ack()
                second += await consumer.poll()
            assert by_name(second) == {f"agents.{name}": ["2"] for name in range(3_000)}
            consumer.ack()
        assert (await Group(client, topic_name).lag(topic_name)).lag == 0
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            await fill(client, topic_name, range(1), "3")
            assert by_name(await take(consumer, 1)) == {"agents.0": ["3"]}  # type: ignore[arg-type]


async def test_subscribers_share_queues_and_what_one_leaves_goes_to_the_other(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        await fill(client, topic_name, range(40), "0")
        handled: list[Message] = []
        async with PushConsumer(client, topic_name, group=topic_name) as one:
            running = asyncio.create_task(one.run(handled.append, concurrency=4))
            async with PushConsumer(client, topic_name, group=topic_name) as other:
                beside = asyncio.create_task(other.run(handled.append, concurrency=4))
                await comes_true(lambda: len(handled) == 40, "all are handled")
                await comes_true(lambda: sum(map(len, other.assignment)) == 20, "each has half")
                await fill(client, topic_name, range(100), "1")
                await comes_true(lambda: len(handled) == 140, "all are handled")
                await comes_true(lambda: sum(map(len, other.assignment)) == 50, "new queues are shared out")
            await beside
            await fill(client, topic_name, range(100), "2")
            await comes_true(lambda: len(handled) == 240, "all are handled")
        await running
        expected = {f"agents.{name}": (["0"] if name < 40 else []) + ["1", "2"] for name in range(100)}
        assert by_name(handled) == expected


async def test_a_frame_has_the_name_and_the_number_to_acknowledge(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client, aiohttp.ClientSession() as http:
        await client.create_topic(topic_name, queues="named")
        await fill(client, topic_name, range(2), "0")
        url = f"{shared_node.url}/v1/groups/{topic_name}/push?topic={topic_name}"
        async with http.ws_connect(url, protocols=("lsmq.json",)) as socket:
            assert (await socket.receive_json())["stream"]["topic"]["queues"] == "named"
            got: list[dict[str, object]] = []
            while len(got) < 2:
                got += (await socket.receive_json()).get("messages", ())
            assert sorted((one["queue"], one["offset"]) for one in got) == [("agents.0", 0), ("agents.1", 0)]
            await socket.send_json({"ack": [[one["number"], one["offset"]] for one in got]})
            numbers = [one["number"] for one in got]

            async def committed() -> bool:
                return await client.committed_offsets(topic_name, topic_name) == dict.fromkeys(numbers, 1)

            await comes_true(committed, "both are committed")


async def test_what_would_skip_queues_that_come_is_refused(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        await fill(client, topic_name, range(2), "0")
        async with PushConsumer(client, topic_name, group=topic_name, start="latest") as kept:
            with pytest.raises(InvalidRequest, match="begins at its first message"):
                await kept.poll()
        async with PushConsumer(
            client, topic_name, group=f"{topic_name}-b", mode="broadcast", start="latest"
        ) as consumer:
            await comes_true(lambda: len(consumer.assignment) > 0, "it has its queues")
            await fill(client, topic_name, range(3), "1")
            assert by_name(await take(consumer, 3)) == {f"agents.{name}": ["1"] for name in range(3)}  # type: ignore[arg-type]
