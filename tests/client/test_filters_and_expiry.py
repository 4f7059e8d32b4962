"""Picking by tag, type and condition, and messages that expire, as users of a node see them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from lsmq import (
    Client,
    Consumer,
    InvalidFilter,
    InvalidRequest,
    Message,
    Producer,
    PushConsumer,
    TransactionalProducer,
    WorkQueue,
)
from lsmq.sync import Client as BlockingClient
from lsmq.sync import Consumer as BlockingConsumer
from lsmq.sync import Producer as BlockingProducer
from support.group_topic import numbers, take
from support.node_process import NodeProcess
from support.waiting import clock_passes, comes_true


async def fill(client: Client, topic: str, count: int = 60, queues: int = 4, **options: Any) -> None:
    """Message ``n`` stands in queue ``n % queues`` with tag ``n % 3``, type ``n % 2`` and property ``n``."""
    await client.create_topic(topic, queues=queues, **options)
    async with Producer(client, topic) as producer:
        for number in range(count):
            await producer.send(
                f"{number}",
                queue=number % queues,
                tag=f"tag {number % 3}",
                type=f"type {number % 2}",
                properties={"n": str(number)},
            )


async def nothing_more(consumer: Consumer) -> bool:
    return await consumer.poll(timeout_ms=150) == []


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"tag": "tag 1"}, lambda n: n % 3 == 1),
        ({"tag": ["tag 1", "tag 2"], "type": "type 0"}, lambda n: n % 3 != 0 and n % 2 == 0),
        (
            {"filter": "n BETWEEN 10 AND 19 OR tag = 'tag 0' AND n > 50"},
            lambda n: 10 <= n < 20 or (n % 3 == 0 and n > 50),
        ),
        ({"tag": "no such"}, lambda n: False),
    ],
)
async def test_a_consumer_gets_what_it_picks_and_its_positions_are_at_the_end(
    shared_node: NodeProcess, topic_name: str, options: Any, wanted: Any
) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name)
        expected = [number for number in range(60) if wanted(number)]
        async with Consumer(client, topic_name, wait_ms=50, **options) as consumer:
            assert numbers(await take(consumer, len(expected))) == expected if expected else True
            assert await nothing_more(consumer)
            assert dict(consumer.positions) == dict.fromkeys(range(4), 15)


async def test_messages_show_their_type_and_when_they_expire(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            sent = await producer.send_and_wait("x", type="refund", ttl_ms=60_000)
            await producer.send_and_wait("y")
        async with Consumer(client, topic_name) as consumer:
            first, second = await take(consumer, 2)
        assert (first.type, first.expires_ms) == ("refund", first.stored_ms + 60_000)
        assert (second.type, second.expires_ms) == (None, None)
        assert await client.message(sent.id) == first


async def test_moments_and_subpriorities_by_all_ways_to_send(shared_node: NodeProcess, topic_name: str) -> None:
    until = time.time_ns() // 1_000_000 + 3_600_000
    options: Any = {"expires_at_ms": until, "priority": 1, "subpriority": 9}
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one", **options)
            await (await producer.send_batch(["rows", "more"], expires_at_ms=[until, 0], priorities=1, subpriorities=9))
            for name, value in (("expires_at_ms", until - 2 * 3_600_000), ("subpriority", 256), ("subpriority", "9")):
                with pytest.raises(InvalidRequest, match=name) as refused:
                    await producer.send("x", **{**options, name: value})
                assert refused.value.details["field"] == name
            with pytest.raises(InvalidRequest, match="row 1: expires_at_ms is 5, which is over"):
                await producer.send_batch(["a", "b"], expires_at_ms=[until, 5])
        async with (
            TransactionalProducer(client, f"{topic_name}-tx", check=lambda _: "commit") as transactions,
            transactions.transaction() as transaction,
        ):
            await transaction.send(topic_name, "in a transaction", **options)
        async with Consumer(client, topic_name) as consumer:
            found = {message.text(): message for message in await take(consumer, 4)}
        assert {message.subpriority for message in found.values()} == {9}
        assert {text: message.expires_ms for text, message in found.items()} == {
            **dict.fromkeys(("one", "rows", "in a transaction"), until),
            "more": None,
        }

    def blocking() -> None:
        with BlockingClient(shared_node.url) as client, BlockingProducer(client, topic_name) as producer:
            producer.send_and_wait("blocking", **options)
            with pytest.raises(InvalidRequest, match="which is over"):
                producer.send("x", expires_at_ms=1)
            assert (
                client.find_messages(topic_name, filter="subpriority = 9", limit=100).messages[-1].expires_ms == until
            )

    await asyncio.to_thread(blocking)


async def test_a_group_commits_past_what_it_does_not_pick(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name)
        picks: Any = {"filter": "n < 20", "group": f"{topic_name}-g", "wait_ms": 50}
        async with Consumer(client, topic_name, **picks) as consumer:
            assert numbers(await take(consumer, 20)) == list(range(20))
            assert await nothing_more(consumer)
            await consumer.commit()
        assert await client.committed_offsets(picks["group"], topic_name) == dict.fromkeys(range(4), 15)
        async with Consumer(client, topic_name, **picks) as consumer:
            assert await nothing_more(consumer)


async def test_a_long_poll_goes_on_past_what_is_not_picked(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client, aiohttp.ClientSession() as http:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name, linger_ms=0) as producer:
            url = f"{shared_node.url}/v1/topics/{topic_name}/queues/0/messages"
            poll = asyncio.create_task(_json(http, url, offset=0, wait_ms=20_000, tag="wanted"))
            for number in range(5):
                await producer.send_and_wait(f"{number}", tag="other")
            assert not poll.done()
            await producer.send_and_wait("here", tag="wanted")
            answer = await poll
            assert [message["body"] for message in answer["messages"]] == ["here"]
            assert answer["next_offset"] == 6
            await producer.send_and_wait("late", tag="other")
            answer = await _json(http, url, offset=6, wait_ms=100, tag="wanted || unwanted")
            assert (answer["messages"], answer["next_offset"]) == ([], 7)


async def _json(http: aiohttp.ClientSession, url: str, status: int = 200, **params: Any) -> Any:
    async with http.get(url, params=params) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def test_a_condition_that_cannot_be_read_is_refused_with_its_position_on_both_sides(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client, aiohttp.ClientSession() as http:
        await client.create_topic(topic_name)
        with pytest.raises(InvalidFilter, match="character 9") as refused:
            Consumer(client, topic_name, filter="region =")
        url = f"{shared_node.url}/v1/topics/{topic_name}/queues/0/messages"
        answer = await _json(http, url, 400, filter="region =")
        assert answer["error"]["code"] == "invalid_filter"
        assert answer["error"]["position"] == refused.value.details["position"] == 8
        body = {"queues": [0], "offsets": [0], "filter": "priority = 'x'"}
        async with http.post(f"{shared_node.url}/v1/topics/{topic_name}/fetch", json=body) as posted:
            assert posted.status == 400 and "priority is a number" in await posted.text()


async def test_messages_of_the_api_may_have_a_type_and_a_time_to_live(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client, aiohttp.ClientSession() as http:
        await client.create_topic(topic_name)
        url = f"{shared_node.url}/v1/topics/{topic_name}/messages"
        document = {
            "messages": [{"body": "a", "type": "t", "ttl_ms": 86_400_000}, {"body": "b", "type": None, "ttl_ms": None}]
        }
        async with http.post(url, json=document) as answer:
            assert answer.status == 200
        read = await _json(http, f"{shared_node.url}/v1/topics/{topic_name}/queues/0/messages")
        first, second = read["messages"]
        assert (first["type"], first["expires_ms"]) == ("t", first["stored_ms"] + 86_400_000)
        assert "type" not in second and "expires_ms" not in second
        for ttl_ms in (0, -5, 1.5, "1s", 10**15):
            async with http.post(url, json={"messages": [{"body": "a", "ttl_ms": ttl_ms}]}) as answer:
                error = (await answer.json())["error"]
                assert answer.status == 400 and error["field"] == "messages[0].ttl_ms"


async def test_expired_messages_are_delivered_by_no_way(shared_node: NodeProcess, topic_name: str) -> None:
    group = f"{topic_name}-g"
    async with Client(shared_node.url) as client, aiohttp.ClientSession() as http:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name) as producer:
            gone = [await producer.send_and_wait(f"gone {n}", queue=n % 2, ttl_ms=1) for n in range(4)]
            kept = [await producer.send_and_wait(f"kept {n}", queue=n % 2) for n in range(4)]
        url = f"{shared_node.url}/v1/topics/{topic_name}/queues/0/messages"

        async def is_over() -> bool:
            return len((await _json(http, url))["messages"]) == 2

        await comes_true(is_over, "what has expired is not read")
        async with Consumer(client, topic_name) as consumer:
            assert {message.id for message in await take(consumer, 4)} == {each.id for each in kept}
            assert await nothing_more(consumer)
        async with Consumer(client, topic_name, group=group) as consumer:
            assert len(await take(consumer, 4)) == 4 and await nothing_more(consumer)
        async with PushConsumer(client, topic_name, group=f"{group}-push") as pushed:
            assert {message.id for message in await _take(pushed, 4)} == {each.id for each in kept}
            assert await pushed.poll(timeout_ms=150) == []
        async with WorkQueue(client, topic_name, group=f"{group}-work") as work:
            tasks = [await anext(aiter(work)) for _ in kept]
            assert {task.message.id for task in tasks} == {each.id for each in kept}
        async with http.get(f"{shared_node.url}/v1/messages/{gone[0].id}") as answer:
            assert answer.status == 404


async def test_a_pushed_group_is_sent_what_it_picks_and_the_rest_counts_as_handled(
    shared_node: NodeProcess, topic_name: str
) -> None:
    group = f"{topic_name}-g"
    async with Client(shared_node.url) as client:
        await fill(client, topic_name)
        picks: Any = {"tag": ["tag 0", "tag 1"], "filter": "n < 30"}
        async with PushConsumer(client, topic_name, group=group, **picks) as consumer:
            found = await _take(consumer, 20)
            assert sorted(numbers(found)) == [number for number in range(30) if number % 3 != 2]
            assert await consumer.poll(timeout_ms=150) == []
            consumer.ack()
        committed = await client.committed_offsets(group, topic_name)
        assert all(committed[message.queue] > message.offset for message in found)
        async with Producer(client, topic_name) as producer:
            for queue in range(4):
                await producer.send_and_wait("other", queue=queue, tag="tag 2")
        async with PushConsumer(client, topic_name, group=group, **picks) as consumer:

            async def is_at_the_end() -> bool:
                return await client.committed_offsets(group, topic_name) == dict.fromkeys(range(4), 16)

            await consumer.start()
            await comes_true(is_at_the_end, "the group stands behind what it does not pick")
            assert await consumer.poll(timeout_ms=50) == []
        with pytest.raises(InvalidRequest, match="say it"):
            PushConsumer(client, topic_name, group=group, tag="a||b")


async def _take(consumer: PushConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += await consumer.poll(timeout_ms=10_000)
    return found


async def test_a_delayed_message_begins_to_live_when_it_comes(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("later", delay_ms=1_200, ttl_ms=60_000, type="t")
            await producer.send_and_wait("now", ttl_ms=60_000, type="t")
        async with Consumer(client, topic_name, type="t") as consumer:
            first, second = await take(consumer, 2)
        assert (first.text(), second.text(), second.type) == ("now", "later", "t")
        assert second.stored_ms >= first.stored_ms + 1_000
        assert second.expires_ms == second.stored_ms + 60_000


async def test_the_topics_time_to_live_may_be_changed(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("a")
            await client.alter_topic(topic_name, ttl_ms=60_000)
            await producer.send_and_wait("b")
            await client.alter_topic(topic_name, ttl_ms=None)
            await producer.send_and_wait("c")
        async with Consumer(client, topic_name) as consumer:
            found = [message.expires_ms is None for message in await take(consumer, 3)]
        assert found == [True, False, True]


async def test_queues_with_names_are_picked_from_and_expire_too(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name) as producer:
            for number in range(30):
                kind = "even" if number % 2 == 0 else "odd"
                await producer.send(f"{number}", queue=f"agents.{number % 3}", type=kind, properties={"n": str(number)})
            await producer.send_and_wait("gone", queue="agents.0", type="even", ttl_ms=1)
        picks: Any = {"type": "even", "filter": "n >= 10", "wait_ms": 50}
        clock_passes(time.time_ns() // 1_000_000 + 1)
        async with Consumer(client, topic_name, pattern="agents.*", **picks) as consumer:
            found = await take(consumer, 10)
            assert sorted(numbers(found)) == list(range(10, 30, 2))
            assert {message.queue_name for message in found} == {"agents.0", "agents.1", "agents.2"}
            assert await nothing_more(consumer)
            async with Producer(client, topic_name) as producer:
                await producer.send_and_wait("31", queue="agents.9", type="odd", properties={"n": "31"})
                await producer.send_and_wait("32", queue="agents.9", type="even", properties={"n": "32"})
            assert numbers(await take(consumer, 1)) == [32]
        async with Consumer(client, topic_name, group=f"{topic_name}-g", **picks) as consumer:
            assert sorted(numbers(await take(consumer, 11))) == [*range(10, 30, 2), 32]
            assert await nothing_more(consumer)
            await consumer.commit()
        async with Consumer(client, topic_name, group=f"{topic_name}-g", **picks) as consumer:
            assert await nothing_more(consumer)


async def test_the_topics_time_to_live_is_kept_and_shown(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        topic = await client.create_topic(topic_name, ttl_ms=3_600_000)
        assert topic.options["ttl_ms"] == 3_600_000
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("a")
            await producer.send_and_wait("b", ttl_ms=60_000)
        async with Consumer(client, topic_name) as consumer:
            lives = [
                message.expires_ms - message.stored_ms for message in await take(consumer, 2) if message.expires_ms
            ]
        assert lives == [3_600_000, 60_000]


@pytest.mark.parametrize("options", [{"ttl_ms": 0}, {"ttl_ms": True}, {"ttl_ms": "1s"}, {"type": 3}])
async def test_what_no_message_can_have_is_refused_by_name(
    shared_node: NodeProcess, topic_name: str, options: Any
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            with pytest.raises(InvalidRequest, match=next(iter(options))):
                await producer.send("x", **options)


def test_the_blocking_face_picks_and_expires_too(shared_node: NodeProcess, topic_name: str) -> None:
    with BlockingClient(shared_node.url) as client:
        client.create_topic(topic_name, ttl_ms=3_600_000)
        with BlockingProducer(client, topic_name) as producer:
            for number in range(10):
                producer.send(f"{number}", type="even" if number % 2 == 0 else "odd", properties={"n": str(number)})
        with BlockingConsumer(client, topic_name, type="even", filter="n > 3") as consumer:
            found: list[Message] = []
            while len(found) < 3:
                found += consumer.poll(timeout_ms=10_000)
        assert [json.loads(message.text()) for message in found] == [4, 6, 8]
        assert all(message.expires_ms is not None for message in found)


async def test_a_message_may_be_for_one_of_the_groups_and_all_else_is_for_all(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            for number, recipient in enumerate((None, "billing", "audit", "nobody", None)):
                await producer.send(f"{number}", properties={} if recipient is None else {"recipient": recipient})
        for group, expected in (("billing", [0, 1, 4]), ("audit", [0, 2, 4])):
            name = f"{topic_name}-{group}"
            picks = f"recipient IS NULL OR recipient = '{group}'"
            async with Consumer(client, topic_name, group=name, filter=picks, wait_ms=50) as consumer:
                assert numbers(await take(consumer, 3)) == expected
                await consumer.commit()
            assert await client.committed_offsets(name, topic_name) == {0: 5}, "what is for others counts as handled"
