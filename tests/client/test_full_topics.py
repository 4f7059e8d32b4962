"""Topics that are full, as producers and the command meet them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lsmq import Client, Consumer, Producer
from lsmq.messages import key_hash
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import comes_true


def command(node: NodeProcess, *arguments: str, given: str = "") -> str:
    ran = run_python("-m", "lsmq", *arguments, "--url", node.url, input=given, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


async def test_batches_are_no_larger_than_the_topic_may_hold(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queue_max_messages=6, delete_consumed=True)
        async with Producer(client, topic_name, linger_ms=1_000, deadline_ms=60_000) as producer:
            receipts = [producer.send_nowait(b"x") for _ in range(7)]
            assert [(await receipt).offset for receipt in receipts[:6]] == list(range(6))
            await client.trim_topic(topic_name, {0: 1})
            assert (await receipts[6]).offset == 6


async def test_batches_are_no_larger_than_a_queue_may_hold_bytes(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        topic = await client.create_topic(topic_name, queue_max_bytes=4_000)
        assert topic.options["queue_max_bytes"] == 4_000
        async with Producer(client, topic_name, linger_ms=1_000, deadline_ms=60_000) as producer:
            receipts = [producer.send_nowait(b"x" * 900) for _ in range(5)]
            assert [(await receipt).offset for receipt in receipts[:4]] == list(range(4))
            await client.trim_topic(topic_name, {0: 1})
            assert (await receipts[4]).offset == 4


@pytest.mark.parametrize("way", ["one", "many", "batch"])
async def test_a_batch_has_as_many_of_each_queue_as_that_may_hold(
    shared_node: NodeProcess, topic_name: str, way: str
) -> None:
    """And not as many in all: a limit of few messages a queue is not one of what is sent at once."""
    queues = np.repeat(np.arange(200), 3)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=200, queue_max_messages=3)
        async with Producer(client, topic_name, linger_ms=1_000, deadline_ms=60_000) as producer:
            if way == "one":
                for queue in queues.tolist():
                    producer.send_nowait(b"x", queue=queue)
            elif way == "batch":
                await producer.send_batch([b"x"] * len(queues), queues=queues)
            else:
                keys = {key_hash(f"k{number}") % 200: f"k{number}" for number in range(4_000)}
                await producer.send_many([(keys[queue], b"x") for queue in queues.tolist()])
            await producer.flush()
            assert producer.stats.stored == 1
            await client.trim_topic(topic_name, {7: 3})
            bodies = [b"x"] * 4  # Of which one finds no room yet.
            sent = producer.send_batch(bodies, queues=7) if way == "batch" else producer.send_many(bodies, queue=7)
            last = await sent
            await comes_true(lambda: producer.stats.stored == 2, "three are stored")
            await client.trim_topic(topic_name, {7: 4})
            await last
            assert producer.stats.stored == 3


@pytest.mark.parametrize("way", ["many", "keyed", "batch"])
async def test_messages_that_are_larger_than_a_batch_are_sent_once_each_by_themselves(
    shared_node: NodeProcess, topic_name: str, way: str
) -> None:
    bodies = [bytes([at]) * (3_000 if at % 3 else 10) for at in range(9)]
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name, batch_bytes=1_024, linger_ms=1_000) as producer:
            if way == "batch":
                await producer.send_batch(bodies)
            else:
                await producer.send_many([("k", each) for each in bodies] if way == "keyed" else bodies)
            await producer.flush()
        async with Consumer(client, topic_name) as consumer:
            found: list[bytes] = []
            while len(found) < len(bodies):
                found += [message.body for message in await consumer.poll(100)]
        assert found == bodies
        assert (await client.topic_usage(topic_name)).messages == len(bodies)


@pytest.mark.parametrize("named", [False, True])
async def test_a_message_that_finds_no_room_is_said_to_be_dropped(
    shared_node: NodeProcess, topic_name: str, named: bool
) -> None:
    async with Client(shared_node.url) as client:
        queue: int | str = "full" if named else 0
        await client.create_topic(
            topic_name, queues="named" if named else 1, queue_max_messages=2, overflow="drop_newest"
        )
        async with Producer(client, topic_name) as producer:
            sent = [await (await producer.send(b"x", queue=queue)) for _ in range(3)]
        assert [(each.offset, each.dropped, each.duplicate) for each in sent] == [
            (0, False, False),
            (1, False, False),
            (-1, True, False),
        ]
        assert (sent[2].id, sent[2].due_ms, sent[2].queue_name) == ("", None, "full" if named else None)
        usage = await client.topic_usage(topic_name)
        assert (usage.messages, usage.dropped["overflow"]) == (2, 1)
    shown = command(shared_node, "produce", topic_name, "--receipts", "--queue", str(queue), given="z\n")
    assert json.loads(shown) == {"queue": queue, "offset": None, "id": None, "dropped": True}
