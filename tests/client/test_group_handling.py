"""Members of consumer groups against a real node: handlers, what is committed, and how queues are given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from lsmq import (
    Client,
    Consumer,
    Message,
    Producer,
    StaleGeneration,
    Topic,
    Unavailable,
)
from lsmq._member_state import AssignmentChange
from lsmq.groups import Group, Ranges
from support.group_topic import Handler, fill, filled, numbers, queues_of, take
from support.node_process import NodeProcess
from support.waiting import comes_true

# Handling


async def test_handlers_run_in_parallel_and_never_two_of_a_queue(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client:
        handler = Handler(0.005)
        async with Consumer(client, topic_name, group=topic_name) as consumer:
            running = asyncio.create_task(consumer.run(handler, concurrency=4))
            await comes_true(lambda: len(handler.handled) == 80, "all is handled")
        await running
        assert handler.most == 4 and not handler.together
        for queue in range(8):
            assert [m.offset for m in handler.handled if m.queue == queue] == list(range(10))
        assert await client.committed_offsets(topic_name, topic_name) == dict.fromkeys(range(8), 10)


@pytest.mark.parametrize(("order", "most"), [("queue", 1), ("key", 3), ("none", 5)])
async def test_order_says_what_is_handled_at_a_time(
    shared_node: NodeProcess, topic_name: str, order: Any, most: int
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=1)
        async with Producer(client, topic_name) as producer:
            for number in range(60):
                await producer.send(f"{number}", key=f"{number % 3}")
        handler = Handler(0.002)
        async with Consumer(client, topic_name, group=topic_name) as consumer:
            running = asyncio.create_task(consumer.run(handler, concurrency=5, order=order))
            await comes_true(lambda: len(handler.handled) == 60, "all is handled")
        await running
        assert handler.most == most
        if order != "none":
            for key in range(3):
                assert [m.offset for m in handler.handled if m.key == f"{key}"] == list(range(key, 60, 3))
        assert await client.committed_offsets(topic_name, topic_name) == {0: 60}


@pytest.mark.parametrize("order", ["queue", "key", "none"])
async def test_a_gap_is_never_committed(shared_node: NodeProcess, topic_name: str, order: Any) -> None:
    """One message hangs. What lies behind it in its queue is not committed, however much of it is handled."""
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name) as producer:
            for number in range(600):
                await producer.send(f"{number}", queue=number % 2, key=f"{number % 6}")
        release = asyncio.Event()
        handled: list[int] = []

        async def handle(message: Message) -> None:
            if message.body == b"100":
                await release.wait()
            handled.append(int(message.body))

        async def committed() -> dict[int, int]:
            return await client.committed_offsets(topic_name, topic_name)

        async with Consumer(client, topic_name, group=topic_name) as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=3, order=order))
            # The other queue is not held up, although messages wait that would fill the window.
            await comes_true(lambda: len([n for n in handled if n % 2]) == 300, "the other queue is handled")

            async def is_committed() -> bool:
                return (await committed()) == {0: 50, 1: 300}

            await comes_true(is_committed, "all of one queue is committed, and the other to its gap")
            behind = [n for n in handled if n % 2 == 0 and n > 100]
            assert (not behind) if order == "queue" else all(n % 6 != 4 for n in behind if order == "key")
            release.set()
            await comes_true(lambda: len(handled) == 600, "all is handled")
        await running
        assert sorted(handled) == list(range(600)), "each once, although some were put back"
        if order == "queue":
            assert [n for n in handled if n % 2 == 0] == list(range(0, 600, 2))
        assert await committed() == {0: 300, 1: 300}


async def test_what_a_failing_handler_left_is_not_committed(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name, queues=2, count=40) as client:
        handled: list[Message] = []

        def fail(message: Message) -> None:
            if message.body == b"11":
                raise ValueError("cannot")
            handled.append(message)

        async with Consumer(client, topic_name, group=topic_name) as consumer:
            with pytest.raises(ValueError, match="cannot"):
                await consumer.run(fail, concurrency=2, order="none")
            committed = await client.committed_offsets(topic_name, topic_name)
            assert committed[1] == 5
            assert dict(consumer.positions)[1] == 5
            rest = await take(consumer, 40 - sum(committed.values()))
            assert set(numbers(handled + rest)) == set(range(40))


async def test_a_handler_may_close_its_consumer(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client:
        handled: list[Message] = []
        consumer = Consumer(client, topic_name, group=topic_name)

        async def handle(message: Message) -> None:
            handled.append(message)
            if len(handled) == 10:
                await consumer.close()

        await consumer.run(handle)
        assert len(handled) == 10
        assert sum((await client.committed_offsets(topic_name, topic_name)).values()) == 10
        assert (await Group(client, topic_name).describe()).members == ()


# Giving up


@pytest.mark.part(3)
async def test_a_queue_changes_hands_after_its_handler_and_its_commit(
    shared_node: NodeProcess, topic_name: str
) -> None:
    """Two members come and go during traffic: each message is handled once, each queue in order."""
    async with filled(shared_node, topic_name, count=0) as client:
        handler, all_came, sent = Handler(0.002), asyncio.Event(), 0

        async def send() -> None:
            nonlocal sent
            while not all_came.is_set():
                await fill(client, topic_name, range(sent, sent + 80), 8)
                sent += 80

        sending = asyncio.create_task(send())
        async with Consumer(client, topic_name, group=topic_name) as first:
            tasks = [asyncio.create_task(first.run(handler, concurrency=3))]
            for _ in range(3):
                async with (
                    Consumer(client, topic_name, group=topic_name) as second,
                    Consumer(client, topic_name, group=topic_name) as third,
                ):
                    tasks += [asyncio.create_task(one.run(handler, concurrency=3)) for one in (second, third)]
                    await comes_true(
                        lambda third=third: len(queues_of(third.assignment)) >= 2, "the third has its share"
                    )
                    handled = len(handler.handled)
                    await comes_true(lambda handled=handled: len(handler.handled) > handled, "work goes on")
            all_came.set()
            await sending
            await comes_true(lambda: len(handler.handled) >= sent, "all is handled")
        await asyncio.gather(*tasks)
        assert numbers(handler.handled) == list(range(sent)) and not handler.together
        for queue in range(8):
            assert [m.offset for m in handler.handled if m.queue == queue] == list(range(sent // 8))
        assert await client.committed_offsets(topic_name, topic_name) == dict.fromkeys(range(8), sent // 8)


@pytest.mark.parametrize("how", ["another joins", "it is closed"])
async def test_nothing_is_handled_again_that_was_handled_before_what_waits_behind_its_key(
    shared_node: NodeProcess, topic_name: str, how: str
) -> None:
    """Two queues, of each of which the third message is handled first."""
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name) as producer:
            for key in ("slow", "slow", "fast", "slow"):
                for queue in (0, 1):
                    await producer.send_and_wait(key, queue=queue, key=f"{key} {queue}")
        go_on, handled = asyncio.Event(), list[tuple[int, int]]()

        async def handle(message: Message) -> None:
            if message.body == b"slow":
                await go_on.wait()
            handled.append((message.queue, message.offset))

        first, second = (Consumer(client, topic_name, group=topic_name) for _ in range(2))
        running = [asyncio.create_task(first.run(handle, concurrency=4, order="key"))]
        await comes_true(lambda: sorted(handled) == [(0, 2), (1, 2)], "what is behind others' keys is handled")
        if how == "another joins":
            running.append(asyncio.create_task(second.run(handle, concurrency=4, order="key")))
            await comes_true(lambda: second.waiting_for == 1, "it waits for its queue")
            go_on.set()
            await comes_true(lambda: len(handled) >= 8, "all is handled")
        else:
            running.append(asyncio.create_task(first.close()))
            await asyncio.sleep(0)
            go_on.set()
        await asyncio.gather(first.close(), second.close())
        await asyncio.gather(*running)
        left = [3] if how == "another joins" else []
        assert [[offset for queue, offset in handled if queue == each] for each in (0, 1)] == [[2, 0, 1, *left]] * 2
        assert await client.committed_offsets(topic_name, topic_name) == dict.fromkeys((0, 1), 3 + len(left))


async def test_who_leaves_as_the_group_goes_on_commits_what_was_handled(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last commit names a generation that is over, as two others have shared anew: it is sent again with theirs."""
    async with filled(shared_node, topic_name) as client, Client(shared_node.url) as other:
        first, second, third = (Consumer(each, topic_name, group=topic_name) for each in (client, other, other))
        commit, handled, release = Client._commit_offsets, list[Message](), asyncio.Event()
        refused: list[str] = []

        async def handle(message: Message) -> None:
            handled.append(message)
            if len(handled) == 40:
                await release.wait()

        async def late(of: Client, *what: Any, **how: Any) -> None:
            if of is client and not queues_of(third.assignment):
                await third.start()
                await comes_true(lambda: queues_of(third.assignment), "the third has some of the second")
            try:
                await commit(of, *what, **how)
            except StaleGeneration as error:
                refused.append(error.code)
                raise

        async with second:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(first.run(handle))
                await comes_true(lambda: len(handled) == 40, "the last one is in hand")
                monkeypatch.setattr(Client, "_commit_offsets", late)
                tasks.create_task(first.close())
                await comes_true(lambda: first._closed, "it is being closed")
                release.set()
            own = {message.queue for message in handled}
            assert refused and len(own) == 4
            found = await other.committed_offsets(topic_name, topic_name)
            assert {queue: found[queue] for queue in own} == dict.fromkeys(own, 10)
            await third.close()


async def test_callbacks_come_before_reading_and_before_giving_up(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name, queues=2, count=20) as client:
        told: list[tuple[str, list[int]]] = []

        async def assigned(queues: Mapping[str, Ranges]) -> None:
            told.append(("assigned", queues_of(queues)))
            await asyncio.sleep(0.05)
            for queue in queues_of(queues):
                first.seek(queue, 8)

        async def revoked(queues: Mapping[str, Ranges]) -> None:
            told.append(("revoked", queues_of(queues)))
            await first.commit()

        first = Consumer(client, topic_name, group=topic_name, on_assigned=assigned, on_revoked=revoked)
        async with first:
            assert [m.offset for m in await take(first, 4)] == [8, 9, 8, 9]
            assert told == [("assigned", [0, 1])]
            async with Consumer(client, topic_name, group=topic_name) as second:
                await asyncio.sleep(0.1)
                assert queues_of(second.assignment) == [], "the application has not let go yet"
                assert await first.poll(timeout_ms=0) == []
                await comes_true(lambda: queues_of(second.assignment) != [], "the second has one")
                (kept,), (moved,) = queues_of(first.assignment), queues_of(second.assignment)
                assert told[1:] == [("revoked", [moved])]
                assert dict(second.positions) == {moved: 10}, "the callback has committed"
        assert told[-1] == ("revoked", sorted([kept, moved])) or told[-1] == ("revoked", [kept])


async def test_a_handler_that_never_returns_is_told_and_not_waited_for(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with filled(shared_node, topic_name) as client:
        group = Group(client, topic_name)
        cancelled: list[Message] = []
        handled: list[Message] = []

        async def hang(message: Message) -> None:
            if message.offset == 5:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(message)
            handled.append(message)

        first = Consumer(client, topic_name, group=topic_name, max_handler_ms=500)
        async with first:
            running = asyncio.create_task(first.run(hang, concurrency=8))

            async def is_stalled() -> bool:
                return any(member.stalled for member in (await group.describe()).members)

            await comes_true(is_stalled, "the group knows of it")
            warned = [line for line in (await client.ask("GET", "/readyz"))["warnings"] if topic_name in line]
            assert warned == [f"group {topic_name}: 1 of 1 members are stalled: {first.member_id}"]
            assert len(queues_of(first.assignment)) == 8, "and the member keeps its place"
            handler = Handler()
            async with Consumer(client, topic_name, group=topic_name) as second:
                other = asyncio.create_task(second.run(handler))
                await comes_true(lambda: len(queues_of(second.assignment)) == 4, "the second has its half")
                given = set(queues_of(second.assignment))
                await comes_true(lambda: len(handler.handled) == 20, "what hung is handled by the second")
                assert {m.queue for m in cancelled} >= given
                assert {m.offset for m in handler.handled} == {5, 6, 7, 8, 9}
            await other
        await running
        committed = await client.committed_offsets(topic_name, topic_name)
        assert {queue: committed[queue] for queue in given} == dict.fromkeys(given, 10)
        assert all(committed[queue] == 5 for queue in committed if queue not in given)


async def test_a_handler_that_blocks_the_event_loop_keeps_its_place(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name, queues=2, count=4) as client:
        handled: list[int] = []

        def block(message: Message) -> None:
            if message.body == b"0":
                time.sleep(1.5)  # more than a session
            handled.append(int(message.body))

        async with Consumer(client, topic_name, group=topic_name, session_ms=1_000) as consumer:
            before = (await Group(client, topic_name).describe()).generation
            running = asyncio.create_task(consumer.run(block))
            await comes_true(lambda: len(handled) == 4, "all is handled")
            described = await Group(client, topic_name).describe()
            assert [member.id for member in described.members] == [consumer.member_id]
            assert described.generation == before, "its session did not end"
        await running
        assert sorted(handled) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["poll", "poll_batch", "iteration"])
async def test_who_keeps_the_event_loop_busy_is_handed_nothing_of_a_queue_that_is_lost(
    shared_node: NodeProcess, topic_name: str, how: str
) -> None:
    """As long as there are messages reading waits for nothing, and so nothing else has its turn."""
    async with (
        filled(shared_node, topic_name, queues=2, count=40) as client,
        Consumer(client, topic_name, group=topic_name) as consumer,
    ):
        await comes_true(lambda: sum(consumer._reader.loops[topic_name].positions.fetch) == 40, "all is here")
        (message,) = await consumer.poll(1)
        lost = message.queue
        assert consumer._membership is not None
        consumer._membership._tell_from_thread(AssignmentChange(lost={topic_name: (range(lost, lost + 1),)}))
        found: list[tuple[int, int]] = []
        while len(found) < 20:
            if how == "poll":
                found += [(message.queue, message.offset) for message in await consumer.poll(7)]
            elif how == "iteration":
                message = await anext(consumer)
                found.append((message.queue, message.offset))
            else:
                batch = await consumer.poll_batch(7)
                assert batch is not None
                found += zip(batch.queues.tolist(), batch.offsets.tolist(), strict=True)
        assert found == [(1 - lost, offset) for offset in range(20)]


async def test_what_cannot_be_committed_of_one_topic_keeps_no_other_from_being_finished_when_it_is_closed(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(shared_node, topic_name, queues=1, count=4) as client:
        other = f"{topic_name}-2"
        await client.create_topic(other)
        await fill(client, other, range(1), 1)
        commit, begun, ended, told = client._commit_offsets, set[str](), list[str](), asyncio.Event()

        async def refused(group: str, topic: Topic, *rest: Any, **options: Any) -> None:
            if topic.name == topic_name:
                if topic_name in ended:
                    told.set()
                raise Unavailable("not now")
            await commit(group, topic, *rest, **options)

        async def handle(message: Message) -> None:
            begun.add(message.topic)
            await comes_true(lambda: consumer._closed, "it is closed")
            if message.topic == other:
                await told.wait()
                for _ in range(20):
                    await asyncio.sleep(0)  # Whoever closes it has heard of that, too.
            ended.append(message.topic)

        consumer = Consumer(client, [topic_name, other], group=topic_name)
        await consumer.start()
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await comes_true(lambda: len(begun) == 2, "both are at work")
        monkeypatch.setattr(client, "_commit_offsets", refused)
        with pytest.raises(Unavailable):
            await consumer.close()
        assert ended == [topic_name, other]
        await asyncio.gather(running, return_exceptions=True)
        assert await client.committed_offsets(topic_name, other) == {0: 1}
