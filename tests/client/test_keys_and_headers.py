"""Keys of bytes, headers, empty bodies and deletions: the same whatever way a message goes in and comes out."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from api.calls import Api
from lsmq import Client, Consumer, Message, Producer, PushConsumer, TransactionalProducer, WorkQueue
from support.node_process import NodeProcess
from support.python_process import run_python

KEY = b"\xff\x00key"
HEADERS = (("trace", b"\x00\xfe"), ("kind", b"text"), ("trace", b"again"), ("", b""))

SENT: list[dict[str, Any]] = [
    {"body": b"bytes", "key": KEY},
    {"body": b"", "key": KEY},
    {"body": b""},
    {"body": b"with headers", "headers": HEADERS},
    {"body": b"all", "key": "k", "tag": "t", "properties": {"p": "q"}, "headers": HEADERS, "priority": 7},
    {"body": b"", "key": KEY, "delete": True},
    {"body": b"", "key": "k", "delete": True, "headers": HEADERS},
]


def fields(message: Message) -> dict[str, Any]:
    """What ``SENT`` says of a message, without what it leaves out."""
    found: dict[str, Any] = {"body": message.body}
    for name in ("key", "tag", "properties", "headers", "priority", "delete"):
        value = getattr(message, name)
        if value not in (None, {}, (), 0, False):
            found[name] = value
    return found


async def send_all(client: Client, topic: str) -> None:
    async with Producer(client, topic) as producer:
        for message in SENT:
            await producer.send(**message, queue=0)


async def test_a_consumer_gets_them_as_they_were_sent(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        await send_all(client, topic_name)
        async with Consumer(client, topic_name) as consumer:
            found = await consumer.poll(100)
        assert [fields(message) for message in found] == SENT
        first = await client.message(found[5].id)
        assert fields(first) == SENT[5]


async def test_bytes_and_their_text_are_one_key(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=1000)
        async with Producer(client, topic_name) as producer:
            places = [await producer.send_and_wait("x", key=key) for key in ("Zoë", "Zoë".encode(), KEY, KEY)]
    assert places[0].queue == places[1].queue and places[2].queue == places[3].queue
    by_json = Api(shared_node.url).send(topic_name, {"key_b64": base64.b64encode(KEY).decode(), "body": "x"})
    assert by_json.json()["results"][0]["queue"] == places[2].queue


@pytest.mark.parametrize("order", ["queue", "key"])
async def test_handlers_by_key_take_bytes_and_text_alike(shared_node: NodeProcess, topic_name: str, order: Any) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_many([("k", "0"), (b"k", "1"), ("k", "2")])
        async with Consumer(client, topic_name) as consumer:
            seen: list[str] = []
            done = asyncio.Event()

            async def handle(message: Message) -> None:
                await asyncio.sleep(0.01 if message.text() == "0" else 0)
                seen.append(message.text())
                if len(seen) == 3:
                    done.set()

            async with asyncio.TaskGroup() as tasks:
                run = tasks.create_task(consumer.run(handle, concurrency=4, order=order))
                await done.wait()
                run.cancel()
    assert seen == ["0", "1", "2"]


async def test_work_queues_and_dead_letters_keep_them(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        await send_all(client, topic_name)
        async with WorkQueue(client, topic_name, f"{topic_name}-g") as work:
            tasks = await work.poll(100, timeout_ms=10_000)
            assert [fields(task.message) for task in tasks] == SENT
            for task in tasks:
                await task.nack(dead_letter=True)
        async with Consumer(client, f"{topic_name}.dlq") as letters:
            found: list[Message] = []
            while len(found) < len(SENT):
                found += await letters.poll(100, timeout_ms=10_000)
        expected = [{**each, "priority": each.get("priority", 0)} for each in SENT]
        own = [replace(message, properties={"p": "q"} if "p" in message.properties else {}) for message in found]
        assert [{"priority": 0, **fields(message)} for message in own] == expected


async def test_push_delivers_them(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        await send_all(client, topic_name)
        seen: list[Message] = []
        done = asyncio.Event()

        async def handle(message: Message) -> None:
            seen.append(message)
            if len(seen) == len(SENT):
                done.set()

        consumer = PushConsumer(client, topic_name, group=f"{topic_name}-g")
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(consumer.run(handle))
            await done.wait()
            run.cancel()
        assert [fields(message) for message in seen] == SENT


async def test_transactions_carry_them(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with TransactionalProducer(client, f"{topic_name}-p") as producer, producer.transaction() as transaction:
            for message in SENT:
                await transaction.send(topic_name, **message, queue=0)
        async with Consumer(client, topic_name) as consumer:
            found: list[Message] = []
            while len(found) < len(SENT):
                found += await consumer.poll(100, timeout_ms=10_000)
        assert [fields(message) for message in found] == SENT


def test_json_has_text_where_it_can_and_base64_where_it_must(shared_node: NodeProcess, topic_name: str) -> None:
    api = Api(shared_node.url)
    api.create(topic_name, queues=1)
    messages: list[dict[str, Any]] = [
        {"key_b64": base64.b64encode(KEY).decode(), "body": ""},
        {"key": "k", "delete": True},
        {"body": "b", "headers": [{"name": "a", "value": "text"}, {"name": "a", "value_b64": "//4="}]},
    ]
    api.send(topic_name, *messages)
    found = api.get(f"/v1/topics/{topic_name}/queues/0/messages").json()["messages"]
    assert found[0]["key"] is None and found[0]["key_b64"] == messages[0]["key_b64"] and found[0]["body"] == ""
    assert (found[1]["key"], found[1]["delete"], found[1]["body"]) == ("k", True, "")
    assert found[2]["headers"] == messages[2]["headers"]
    assert "headers" not in found[0] and "delete" not in found[0]


def test_what_the_command_prints_can_be_sent_again(shared_node: NodeProcess, topic_name: str) -> None:
    api = Api(shared_node.url)
    api.create(topic_name, queues=1)

    def run(*arguments: str, stdin: bytes = b"") -> bytes:
        ran = run_python("-m", "lsmq", *arguments, "--url", shared_node.url, input=stdin)
        assert ran.returncode == 0, ran.stderr
        return bytes(ran.stdout)

    lines = [
        {"key_b64": base64.b64encode(KEY).decode(), "body": ""},
        {"key": "k", "delete": True},
        {"body": "b", "headers": [{"name": "a", "value": "text"}, {"name": "a", "value_b64": "//4="}]},
    ]
    run("produce", topic_name, "--json-lines", stdin="\n".join(map(json.dumps, lines)).encode())
    printed = [json.loads(line) for line in run("consume", topic_name, "--format", "json").splitlines()]
    again = [{name: value for name, value in found.items() if value not in (None, {})} for found in printed]
    assert [{name: value for name, value in found.items() if name in ("key_b64", "key", "body", "delete", "headers")}
            for found in again] == [lines[0], {**lines[1], "body": ""}, lines[2]]  # fmt: skip
