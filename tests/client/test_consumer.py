"""The consumer against a real node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from lsmq import (
    Client,
    ClientClosed,
    Consumer,
    CorruptFile,
    InvalidBatch,
    InvalidRequest,
    Message,
    OffsetOutOfRange,
    Producer,
    PushConsumer,
    UnknownQueue,
    UnknownTopic,
    WorkQueue,
)
from lsmq.errors import UnknownFetchSession
from lsmq.record_batch import Column, encode_batch
from support.fault_proxy import FaultProxy
from support.group_topic import numbers, take
from support.node_process import NodeProcess
from support.waiting import clock_passes, comes_true


@asynccontextmanager
async def filled(
    node: NodeProcess, topic: str, *, queues: int = 4, count: int = 40
) -> AsyncIterator[tuple[Client, Producer]]:
    """A topic in which message ``n`` has the body ``n`` and stands in queue ``n % queues``."""
    async with Client(node.url) as client:
        await client.create_topic(topic, queues=queues)
        async with Producer(client, topic) as producer:
            for number in range(count):
                await producer.send(f"{number}", queue=number % queues)
            await producer.flush()
            yield client, producer


async def nothing_more(consumer: Consumer) -> bool:
    return await consumer.poll(timeout_ms=100) == []


async def test_a_message_that_cannot_be_read_is_named_and_can_be_passed(
    shared_node: NodeProcess, topic_name: str
) -> None:
    header = b"\xc1 is no msgpack"
    unreadable = encode_batch(1, {Column.LENGTH: len(header) + 1, Column.HEADER_LENGTH: len(header)}, header + b"x")
    async with (
        filled(shared_node, topic_name, queues=1, count=2) as (client, producer),
        aiohttp.ClientSession() as http,
    ):
        url = f"{shared_node.url}/v1/topics/{topic_name}/batches"
        async with http.post(url, data=unreadable, headers={"Content-Type": "application/vnd.lsmq.batch"}) as answer:
            assert answer.status == 200
        await producer.send_and_wait("2")
        async with Consumer(client, topic_name) as consumer:
            assert numbers(await take(consumer, 2)) == [0, 1]
            for _ in range(2):
                with pytest.raises(InvalidBatch, match=r"offset 2 of queue 0.*go on at offset 3") as refused:
                    await consumer.poll()
            consumer.seek(0, refused.value.details["offset"] + 1)
            assert numbers(await take(consumer, 1)) == [2]


async def test_all_queues_are_read_in_order_and_new_messages_follow(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as (client, producer), Consumer(client, topic_name) as consumer:
        messages = await take(consumer, 40)
        assert numbers(messages) == list(range(40))
        for queue in range(4):
            assert [m.offset for m in messages if m.queue == queue] == list(range(10))
        assert all(m.topic == topic_name and m.stored_ms > 1_600_000_000_000 for m in messages)
        assert dict(consumer.positions) == {0: 10, 1: 10, 2: 10, 3: 10}
        waiting = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0.05)
        sent = await producer.send_and_wait("40", queue=2)
        (late,) = await waiting
        assert (late.queue, late.offset, late.id) == (2, 10, sent.id)


async def test_iteration_hands_out_one_by_one_and_ends_when_closed(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as (client, _):
        consumer = Consumer(client, topic_name, queues=[1])
        offsets = []
        async for message in consumer:
            offsets.append(message.offset)
            assert consumer.positions[1] == message.offset + 1
            if message.offset == 9:
                await consumer.close()
        assert offsets == list(range(10))
        with pytest.raises(ClientClosed):
            await consumer.poll()


async def test_small_answers_bring_everything_once(shared_node: NodeProcess, topic_name: str) -> None:
    """Answers that end within a batch, and a buffer that holds one answer at a time."""
    async with filled(shared_node, topic_name, count=300) as (client, _):
        async with Consumer(client, topic_name, max_messages=7, prefetch_bytes=1) as consumer:
            messages = await take(consumer, 300)
            assert await nothing_more(consumer)
        async with Consumer(client, topic_name, max_bytes=1, wait_ms=0) as consumer:
            assert numbers(await take(consumer, 300)) == numbers(messages) == list(range(300))


async def test_messages_come_out_of_table_files_without_what_was_not_asked_for(
    make_node: Callable[..., NodeProcess],
) -> None:
    """After a flush answers are whole blocks, with records of other queues, offsets and topics in them."""
    node = make_node(memtable_bytes=64 * 1024, max_message_bytes=32 * 1024, sendfile_min_bytes=0).start()
    async with Client(node.url) as client:
        for topic in ("one", "two"):
            await client.create_topic(topic, queues=20)
        for start in range(0, 6000, 1000):
            for topic in ("one", "two"):
                async with Producer(client, topic, batch_bytes=16_000) as producer:
                    for number in range(start, start + 1000):
                        await producer.send(f"{topic} {number} " + "x" * 50, queue=number % 20)
        queues = [3, 4, 11]
        starts = {3: 150, 4: 0, 11: 299}
        async with Consumer(client, "two", queues=queues, start=starts, max_messages=40) as consumer:
            messages = await take(consumer, 150 + 300 + 1)
            assert await nothing_more(consumer)
        for queue in queues:
            mine = [message for message in messages if message.queue == queue]
            assert [message.offset for message in mine] == list(range(starts[queue], 300))
            assert [m.text().split()[:2] for m in mine] == [["two", f"{m.offset * 20 + queue}"] for m in mine]


async def test_every_way_to_start(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as (client, producer):
        async with Consumer(client, topic_name, start="earliest") as consumer:
            stored_ms = max(message.stored_ms for message in await take(consumer, 40))
        moment = datetime.fromtimestamp((stored_ms + 1) / 1000, UTC)
        clock_passes(stored_ms)
        for number in range(40, 44):
            await producer.send(f"{number}", queue=number % 4)
        await producer.flush()
        starts: list[tuple[Any, list[int]]] = [
            ("earliest", list(range(44))),
            (moment, [40, 41, 42, 43]),
            (int(moment.timestamp() * 1000), [40, 41, 42, 43]),
            ({0: 9, 1: 11, 2: 10, 3: 8}, [35, 36, 39, 40, 42, 43]),
        ]
        for start, expected in starts:
            async with Consumer(client, topic_name, start=start) as consumer:
                assert numbers(await take(consumer, len(expected))) == expected
                assert await nothing_more(consumer)
        async with Consumer(client, topic_name, start="latest") as consumer:
            assert await nothing_more(consumer)
            await producer.send_and_wait("44")
            assert numbers(await take(consumer, 1)) == [44]


async def test_a_group_goes_on_where_it_committed(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as (client, producer):
        group = f"{topic_name}-group"
        async with Consumer(client, topic_name, group=group) as consumer:
            first = await take(consumer, 15)
            await consumer.commit()
            expected = {queue: offset for queue, offset in consumer.positions.items() if offset > 0}
            uncommitted = await take(consumer, 5)
        assert await client.committed_offsets(group, topic_name) == expected
        assert group in await client.groups()
        async with Consumer(client, topic_name, group=group) as consumer:
            rest = await take(consumer, 25)
            assert await nothing_more(consumer)
            assert numbers(first + rest) == list(range(40))
            assert {m.id for m in uncommitted} <= {m.id for m in rest}
            await consumer.commit()
            await consumer.commit({0: 3})
            assert (await client.committed_offsets(group, topic_name))[0] == 10
            await consumer.commit({0: 3}, reset=True)
            await producer.send_and_wait("40", queue=0)
        assert (await client.committed_offsets(group, topic_name))[0] == 3
        async with Consumer(client, topic_name, group=f"{group}-2", uncommitted="latest") as consumer:
            assert await nothing_more(consumer)
        async with Consumer(client, topic_name) as consumer:
            with pytest.raises(InvalidRequest, match="group"):
                await consumer.commit()


async def test_only_queues_that_moved_are_committed(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name, queues=1000, count=3) as (client, producer):
        async with (
            FaultProxy(shared_node.url) as proxy,
            Client(proxy.url) as behind,
            Consumer(behind, topic_name, group=topic_name) as consumer,
        ):
            await take(consumer, 3)
            await consumer.commit()
            await consumer.commit()
            await producer.send_and_wait("x", queue=999)
            await take(consumer, 1)
            proxy.lose_answers("offsets")
            await consumer.commit()
        posts = [body for body in proxy.bodies["offsets"] if body]
        assert len(posts) == 3 and all(len(body) < 200 for body in posts)
        assert await client.committed_offsets(topic_name, topic_name) == {0: 1, 1: 1, 2: 1, 999: 1}


async def test_seeking_goes_anywhere_and_drops_what_was_buffered(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as (client, _), Consumer(client, topic_name, queues=[2, 3]) as consumer:
        await take(consumer, 7)
        consumer.seek(2, 8)
        consumer.seek(3, 2)
        assert dict(consumer.positions) == {2: 8, 3: 2}
        messages = await take(consumer, 10)
        assert await nothing_more(consumer)
        assert [m.offset for m in messages if m.queue == 2] == [8, 9]
        assert [m.offset for m in messages if m.queue == 3] == list(range(2, 10))
        await consumer.seek_to_time(0, [2])
        assert [m.offset for m in await take(consumer, 10)] == list(range(10))
        for queue, offset in ((0, 0), (2, -1)):
            with pytest.raises((UnknownQueue, InvalidRequest)):
                consumer.seek(queue, offset)


async def test_a_commit_after_a_seek_back_goes_back(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        filled(shared_node, topic_name, queues=1) as (client, _),
        Consumer(client, topic_name, group=topic_name) as consumer,
    ):
        await take(consumer, 40)
        await consumer.commit()
        consumer.seek(0, 5)
        await take(consumer, 2)
        await consumer.commit()
        assert await client.committed_offsets(topic_name, topic_name) == {0: 7}


async def test_a_seek_ends_a_long_poll_that_is_held(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        filled(shared_node, topic_name) as (client, _),
        Consumer(client, topic_name, start="latest", wait_ms=30_000) as consumer,
    ):
        assert await nothing_more(consumer)
        consumer.seek(0, 9)
        async with asyncio.timeout(5):
            assert numbers(await take(consumer, 1)) == [36]


async def test_an_answer_that_comes_as_somebody_seeks_moves_nothing(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        filled(shared_node, topic_name, queues=1, count=3) as (client, producer),
        Consumer(client, topic_name, wait_ms=30_000) as consumer,
    ):
        attempt, seeks = client._router.attempt, False

        async def seeking(*given: Any, **request: Any) -> Any:
            nonlocal seeks
            answer = await attempt(*given, **request)
            if seeks and answer.body and given[4].endswith("/fetch"):
                seeks = False
                consumer.seek(0, 1)
            return answer

        client._router.attempt = seeking  # type: ignore[method-assign]
        assert numbers(await take(consumer, 3)) == [0, 1, 2]
        for number in (3, 4):  # With the first one the long poll is over that may have begun before.
            seeks = number == 4
            await producer.send_and_wait(f"{number}")
            assert numbers(await take(consumer, 1)) == [3 if number == 3 else 1]
        assert numbers(await take(consumer, 3)) == [2, 3, 4]


async def test_offsets_out_of_range_are_met_as_the_policy_says(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name, queues=1, count=10) as (client, producer):
        with pytest.raises(OffsetOutOfRange, match="offsets 0 to 10, not 99") as caught:
            async with Consumer(client, topic_name, start={0: 99}, on_out_of_range="error"):
                pass
        assert (caught.value.details["earliest"], caught.value.details["latest"]) == (0, 10)
        async with Consumer(client, topic_name, start={0: 99}) as consumer:
            assert numbers(await take(consumer, 10)) == list(range(10))
            consumer.seek(0, 50)
            assert numbers(await take(consumer, 10)) == list(range(10))
        async with Consumer(client, topic_name, start={0: 99}, on_out_of_range="latest") as consumer:
            assert await nothing_more(consumer)
            await producer.send_and_wait("10")
            assert numbers(await take(consumer, 1)) == [10]
        async with Consumer(client, topic_name, on_out_of_range="error") as consumer:
            consumer.seek(0, 50)
            for _ in range(2):
                with pytest.raises(OffsetOutOfRange):
                    await consumer.poll()
            consumer.seek(0, 9)
            assert numbers(await take(consumer, 2)) == [9, 10]


@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
async def test_messages_that_were_deleted_one_by_one_are_passed_over_whatever_the_policy_says(
    shared_node: NodeProcess, topic_name: str, policy: Any
) -> None:
    async with filled(shared_node, topic_name, queues=1, count=10) as (client, _):
        await client.delete_messages(topic_name, [(0, offset) for offset in (0, 4, 5, 9)])
        async with Consumer(client, topic_name, on_out_of_range=policy) as consumer:
            assert numbers(await take(consumer, 6)) == [1, 2, 3, 6, 7, 8]
            assert await nothing_more(consumer)


async def test_a_queue_that_was_emptied_ahead_of_a_consumer_is_met_as_the_policy_says(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with filled(shared_node, topic_name, queues=1, count=5) as (client, producer):
        consumers = {
            policy: Consumer(client, topic_name, on_out_of_range=policy, max_messages=5, prefetch_bytes=1)
            for policy in ("earliest", "latest", "error")
        }
        for consumer in consumers.values():
            await consumer.start()
            await take(consumer, 1)
        for number in range(5, 10):
            await producer.send_and_wait(f"{number}")
        await client.trim_topic(topic_name, {0: 10})
        for consumer in consumers.values():
            assert numbers(await take(consumer, 4)) == [1, 2, 3, 4]
        with pytest.raises(OffsetOutOfRange, match="offsets 10 to 10, not 5"):
            await take(consumers["error"], 1)
        for policy in ("earliest", "latest"):
            assert await nothing_more(consumers[policy])
        await producer.send_and_wait("10")
        for policy in ("earliest", "latest"):
            assert numbers(await take(consumers[policy], 1)) == [10]
        for consumer in consumers.values():
            await consumer.close()


async def test_retention_that_overtakes_a_consumer_is_met_as_the_policy_says(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(memtable_bytes=64 * 1024, max_message_bytes=32 * 1024, retention_interval_ms=100).start()
    async with Client(node.url) as client:
        await client.create_topic("short", queues=1, retention_bytes=100_000)
        async with Producer(client, "short", batch_bytes=16_000) as producer:

            async def fill() -> int:
                for _ in range(20):
                    await (await producer.send_many([b"x" * 900] * 100))

                async def is_trimmed() -> int | None:
                    (earliest,) = (await client.offsets("short")).earliest
                    return earliest if earliest > 100 else None

                earliest = await comes_true(is_trimmed, "the first messages are gone")
                assert earliest is not None
                return earliest

            async def overtaken(policy: Any) -> Consumer:
                """A consumer that stopped reading near the start, and whose next offset is gone."""
                consumer = Consumer(client, "short", on_out_of_range=policy, max_messages=5, prefetch_bytes=1)
                await consumer.start()
                return consumer

            await (await producer.send_many([b"x"] * 5))
            consumers = {policy: await overtaken(policy) for policy in ("earliest", "latest", "error")}
            for consumer in consumers.values():
                await take(consumer, 1)
            earliest = await fill()
            for consumer in consumers.values():
                assert [message.offset for message in await take(consumer, 4)] == [1, 2, 3, 4]
            (message,) = await take(consumers["earliest"], 1)
            assert message.offset >= earliest
            with pytest.raises(OffsetOutOfRange, match="not 5"):
                await take(consumers["error"], 1)
            assert await nothing_more(consumers["latest"])
            sent = await producer.send_and_wait("x")
            (message,) = await take(consumers["latest"], 1)
            assert message.offset == sent.offset
            for consumer in consumers.values():
                await consumer.close()


async def test_faults_on_the_way_lose_and_double_nothing(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        filled(shared_node, topic_name, count=200) as (_, _),
        FaultProxy(shared_node.url) as proxy,
        Client(proxy.url) as client,
    ):
        for _ in range(2):
            proxy.cut("fetch")
            proxy.lose_answers("fetch")
            proxy.refuse("fetch", 421, {"code": "not_leader", "message": "ask another", "retriable": True})
        async with Consumer(client, topic_name, max_messages=20) as consumer:
            assert numbers(await take(consumer, 200)) == list(range(200))
            assert await nothing_more(consumer)


async def test_a_damaged_answer_is_never_handed_out(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        filled(shared_node, topic_name) as (_, _),
        FaultProxy(shared_node.url) as proxy,
        Client(proxy.url) as client,
    ):
        proxy.corrupt("fetch")
        async with Consumer(client, topic_name) as consumer:
            with pytest.raises(CorruptFile, match="checksum"):
                await consumer.poll()
            assert numbers(await take(consumer, 40)) == list(range(40))


async def test_an_error_that_does_not_pass_is_told_and_the_consumer_can_go_on(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with (
        filled(shared_node, topic_name) as (_, _),
        FaultProxy(shared_node.url) as proxy,
        Client(proxy.url) as client,
        Consumer(client, topic_name, deadline_ms=200) as consumer,
    ):
        await take(consumer, 40)
        proxy.cut("fetch", times=100)
        consumer.seek(0, 5)
        with pytest.raises(Exception, match="broke before the answer"):
            await consumer.poll()
        proxy._faults.clear()
        assert len(await take(consumer, 5)) == 5


async def test_a_topic_that_is_deleted_under_a_consumer_is_an_error(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        filled(shared_node, topic_name) as (client, _),
        Consumer(client, topic_name, wait_ms=100) as consumer,
    ):
        await take(consumer, 40)
        await client.delete_topic(topic_name)
        with pytest.raises(UnknownTopic):
            while True:
                await consumer.poll(timeout_ms=5000)


async def test_the_buffer_is_bounded(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await (await producer.send_many([b"x" * 10_000] * 300))
        async with (
            FaultProxy(shared_node.url) as proxy,
            Client(proxy.url) as behind,
            Consumer(behind, topic_name, max_bytes=50_000, prefetch_bytes=200_000) as consumer,
        ):
            await take(consumer, 1)
            await comes_true(lambda: consumer._reader.buffer.size_bytes >= 150_000, "the buffer is full")
            for _ in range(5):  # Had it gone on reading, more requests would have come by now.
                await behind.topic(topic_name)
            assert proxy.requests["fetch"] <= 6
            assert consumer._reader.buffer.size_bytes <= 200_000 + 100_000
            await take(consumer, 299)


async def test_one_request_follows_many_queues(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=100_000)
        async with (
            FaultProxy(shared_node.url) as proxy,
            Client(proxy.url) as behind,
            Consumer(behind, topic_name) as consumer,
            Producer(client, topic_name) as producer,
        ):
            await comes_true(lambda: proxy.requests["fetch"] > 0, "it has asked")
            for _ in range(5):  # Had it asked for each queue, more requests would have come by now.
                await behind.topic(topic_name)
            asked = proxy.requests["fetch"]
            for number in range(10):
                await producer.send(f"{number}", queue=number * 10_007 % 100_000)
            await producer.flush()
            assert numbers(await take(consumer, 10)) == list(range(10))
            assert asked == 1 and proxy.requests["fetch"] <= 12


async def test_a_node_that_has_forgotten_what_it_was_asked_before_is_told_again(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with (
        filled(shared_node, topic_name, queues=40, count=40) as (client, producer),
        Consumer(client, topic_name) as consumer,
    ):
        attempt, unknown = client._router.attempt, 0

        async def forgotten(*given: Any, **request: Any) -> Any:
            nonlocal unknown
            try:
                if "session" in request.get("value", {}):
                    request["value"] = {**request["value"], "session": "0" * 32}
                return await attempt(*given, **request)
            except UnknownFetchSession:
                unknown += 1
                raise

        client._router.attempt = forgotten  # type: ignore[method-assign]
        assert sorted(numbers(await take(consumer, 40))) == list(range(40))
        for number in range(40, 60):
            await producer.send_and_wait(f"{number}")
            assert numbers(await take(consumer, 1)) == [number]
        assert unknown and await nothing_more(consumer)


async def test_run_calls_the_handler_in_order_per_queue_and_commits(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as (client, _):
        seen: list[Message] = []
        running = most = 0

        async def handle(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            seen.append(message)
            if len(seen) == 40:
                await consumer.commit()
                closing.set()

        closing = asyncio.Event()
        consumer = Consumer(client, topic_name, group=topic_name)
        task = asyncio.create_task(consumer.run(handle, concurrency=4))
        await closing.wait()
        await consumer.close()
        await task
        assert most == 4
        for queue in range(4):
            assert [m.offset for m in seen if m.queue == queue] == list(range(10))
        assert await client.committed_offsets(topic_name, topic_name) == dict.fromkeys(range(4), 10)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_messages_that_a_failing_handler_left_are_handed_out_again(
    shared_node: NodeProcess, topic_name: str, concurrency: int
) -> None:
    async with filled(shared_node, topic_name) as (client, _):
        handled: list[Message] = []

        def handle(message: Message) -> None:
            if len(handled) == 17:
                raise ValueError("cannot")
            handled.append(message)

        async with Consumer(client, topic_name, group=topic_name) as consumer:
            with pytest.raises(ValueError, match="cannot"):
                await consumer.run(handle, concurrency=concurrency)
            again = await take(consumer, 40 - 17)
            assert await nothing_more(consumer)
        assert numbers(handled + again) == list(range(40))
        committed = await client.committed_offsets(topic_name, topic_name)
        assert sum(committed.values()) == 17


@pytest.mark.parametrize(
    "options",
    [
        {"start": "sometime"},
        {"start": "committed"},
        {"on_out_of_range": "ignore"},
        {"uncommitted": "never"},
        {"uncommitted": "latest"},
        {"max_messages": 0},
        {"wait_ms": -1},
    ],
)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Consumer(Client(), "t", **options)


async def test_asking_for_no_message_is_refused_and_not_waited_for(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as (client, _), Consumer(client, topic_name) as consumer:
        for nothing in (0, -1):
            with pytest.raises(InvalidRequest, match=f"max_messages is {nothing}"):
                await consumer.poll(nothing)
        for other in (
            consumer,
            WorkQueue(client, topic_name, topic_name),
            PushConsumer(client, topic_name, group=topic_name),
        ):
            with pytest.raises(InvalidRequest, match="max_messages is 0"):
                await other.poll(0)
            for never in (float("nan"), -1, "1"):
                with pytest.raises(InvalidRequest, match=r"timeout_ms is .*; it must be a number of 0 or more"):
                    await other.poll(timeout_ms=never)  # type: ignore[arg-type]


async def test_queues_that_the_topic_does_not_have_are_refused(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as (client, _):
        with pytest.raises(UnknownQueue):
            await Consumer(client, topic_name, queues=[4]).start()
        with pytest.raises(InvalidRequest, match="at least one queue"):
            await Consumer(client, topic_name, queues=[]).start()
