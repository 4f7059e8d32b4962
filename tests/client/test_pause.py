"""Queues that an application pauses: nothing of them is handed out, and they stay its own."""

from __future__ import annotations

import asyncio

import pytest

from lsmq import Client, ClientClosed, Consumer, Message, Producer, UnknownQueue, sync
from support.node_process import NodeProcess

QUEUES = 4
EACH = 50


async def fill(client: Client, topic: str) -> None:
    await client.create_topic(topic, queues=QUEUES)
    async with Producer(client, topic) as producer:
        for number in range(EACH * QUEUES):
            await producer.send(f"{number}", queue=number % QUEUES)


async def take(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += await consumer.poll(count - len(found), timeout_ms=20_000)
    return found


def in_order(messages: list[Message], topic: str) -> None:
    """All of them, each once, in order within their queues."""
    offsets: dict[int, list[int]] = {}
    for message in messages:
        offsets.setdefault(message.queue, []).append(message.offset)
    assert offsets == {queue: list(range(EACH)) for queue in range(QUEUES)}


async def test_nothing_is_handed_out_of_paused_queues_until_they_are_resumed(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name)
        async with Consumer(client, topic_name, max_messages=30) as consumer:
            first = await take(consumer, 10)
            consumer.pause([1, 2])
            consumer.pause([2])
            assert consumer.paused == {topic_name: (range(1, 3),)}
            before = sum(message.queue in (1, 2) for message in first)
            found = first + await take(consumer, 2 * EACH - (len(first) - before))
            assert all(message.queue in (0, 3) for message in found[len(first) :])
            assert await consumer.poll(timeout_ms=100) == []
            assert consumer.assignment == {topic_name: (range(QUEUES),)}
            consumer.resume([2])
            assert consumer.paused == {topic_name: (range(1, 2),)}
            found += await take(consumer, EACH - sum(message.queue == 2 for message in found))
            consumer.resume()
            consumer.resume()
            assert consumer.paused == {}
            found += await take(consumer, QUEUES * EACH - len(found))
            in_order(found, topic_name)


async def test_all_is_paused_and_a_poll_that_waits_goes_on_when_it_is_resumed(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name)
        async with Consumer(client, topic_name) as consumer:
            consumer.pause()
            waiting = asyncio.create_task(take(consumer, QUEUES * EACH))
            await asyncio.sleep(0)
            consumer.seek(0, EACH - 1)
            assert consumer.paused == {topic_name: (range(QUEUES),)}, "a seek resumes nothing"
            consumer.seek(0, 0)
            consumer.resume(topic=topic_name)
            in_order(await waiting, topic_name)


async def test_a_queue_that_is_not_read_is_not_paused(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=QUEUES)
        async with Consumer(client, topic_name, queues=[0, 2]) as consumer:
            for queues in ([1], range(4), [0, 9], [-5], [-5, 0], range(-5, 1)):
                with pytest.raises(UnknownQueue):
                    consumer.pause(queues)
            assert consumer.paused == {}
            consumer.pause([2, 0])
            assert consumer.paused == {topic_name: (range(1), range(2, 3))}


async def test_before_it_has_begun_there_is_nothing_to_pause(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        for queues in (None, [0]):
            with pytest.raises(ClientClosed, match="not started"):
                Consumer(client, topic_name).pause(queues)


@pytest.mark.parametrize("order", ["queue", "key", "none"])
async def test_handlers_begin_nothing_of_queues_that_are_paused(
    shared_node: NodeProcess, topic_name: str, order: str
) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name)
        handled: list[Message] = []
        seen: list[Message] = []

        async def handle(message: Message) -> None:
            assert message.queue not in paused
            handled.append(message)
            if len(handled) == 40:
                paused.update((0, 1))
                consumer.pause(paused)
            if len(paused) and sum(m.queue in (2, 3) for m in handled) == 2 * EACH:
                seen.extend(handled)
                paused.clear()
                consumer.resume()
            if len(handled) == QUEUES * EACH:
                await consumer.close()

        paused: set[int] = set()
        consumer = Consumer(client, topic_name, group=topic_name)
        await consumer.run(handle, concurrency=3, order=order)  # type: ignore[arg-type]
        in_order(sorted(handled, key=lambda message: (message.queue, message.offset)), topic_name)
        assert 0 < len(seen) < QUEUES * EACH
        assert await client.committed_offsets(topic_name, topic_name) == dict.fromkeys(range(QUEUES), EACH)


async def test_a_member_keeps_its_place_and_queues_that_come_back_are_not_paused(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client, Client(shared_node.url) as other:
        await fill(client, topic_name)
        async with Consumer(client, topic_name, group=topic_name, session_ms=1_000) as consumer:
            consumer.pause()
            async with Consumer(other, topic_name, group=topic_name) as second:
                while second.waiting_for or len(second.assignment.get(topic_name, ())) == 0:
                    assert await consumer.poll(timeout_ms=10) == []
                kept = consumer.assignment[topic_name]
                assert consumer.paused == {topic_name: kept}
                taken = await take(second, 2 * EACH)
                await second.commit()
            while len({queue for part in consumer.assignment[topic_name] for queue in part}) < QUEUES:
                assert await consumer.poll(timeout_ms=10) == []
            assert consumer.paused == {topic_name: kept}, "only what never went is paused still"
            assert {message.queue for message in taken}.isdisjoint(queue for part in kept for queue in part)
            consumer.resume()
            in_order(taken + await take(consumer, 2 * EACH), topic_name)


async def test_queues_can_be_paused_as_soon_as_they_come(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await fill(client, topic_name)

        def pause(queues: object) -> None:
            consumer.pause()

        consumer = Consumer(client, topic_name, group=topic_name, on_assigned=pause)
        async with consumer:
            assert await consumer.poll(timeout_ms=100) == []
            assert consumer.paused == consumer.assignment == {topic_name: (range(QUEUES),)}
            consumer.resume()
            in_order(await take(consumer, QUEUES * EACH), topic_name)


def test_a_blocking_consumer_hands_out_nothing_that_it_has_read_ahead(
    shared_node: NodeProcess, topic_name: str
) -> None:
    with sync.Client(shared_node.url) as client:
        asyncio.run(_fill(shared_node.url, topic_name))
        with sync.Consumer(client, topic_name, group=topic_name) as consumer:
            found = [next(consumer)]
            consumer.pause([1, 2, 3])
            assert consumer.paused == {topic_name: (range(1, 4),)}
            while messages := consumer.poll(timeout_ms=200):
                assert {message.queue for message in messages} == {0}
                found += messages
            assert consumer.positions[0] == EACH and sum(consumer.positions.values()) == len(found)
            consumer.resume([1, 2, 3])
            while len(found) < QUEUES * EACH:
                found += consumer.poll()
            in_order(found, topic_name)
            assert consumer.paused == {}


async def _fill(url: str, topic: str) -> None:
    async with Client(url) as client:
        await fill(client, topic)
