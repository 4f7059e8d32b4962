"""Work queues on named topics: single messages of any name, dead letters that know where they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lsmq import Client, Consumer, DeadLetters, InvalidRequest, Producer, WorkQueue
from support.group_topic import take
from support.node_process import NodeProcess
from support.waiting import comes_true

NAMES = [f"jobs.{number}" for number in range(12)]


async def fill(client: Client, topic: str, *names: str) -> None:
    async with Producer(client, topic) as producer:
        for name in names:
            await producer.send(name, queue=name)


async def test_tasks_of_any_name_are_handed_out_and_settled(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client, WorkQueue(client, topic_name, topic_name) as work:
        await client.create_topic(topic_name, queues="named")
        await fill(client, topic_name, *NAMES)
        seen: dict[str, int] = {}
        while len(seen) < len(NAMES) - 1:
            for task in await work.poll(4):
                name = task.message.queue_name
                assert name == task.text() and name is not None
                if name == NAMES[3] and task.deliveries == 1:
                    await task.nack(delay_ms=0)
                    continue
                seen[name] = task.deliveries
                if len(seen) < len(NAMES):
                    await task.ack()
        await fill(client, topic_name, "jobs.new")  # A queue that was not there when work began.
        while "jobs.new" not in seen or NAMES[3] not in seen:
            for task in await work.poll(4):
                seen[task.text()] = task.deliveries
                await task.ack()
        assert seen == {**dict.fromkeys(NAMES, 1), NAMES[3]: 2, "jobs.new": 1}
        state = await work.describe()
        assert (state.undelivered, state.new, state.in_flight) == (0, 0, 0)


async def test_dead_letters_know_their_queue_by_name_and_go_back_there(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client, WorkQueue(client, topic_name, topic_name) as work:
        await client.create_topic(topic_name, queues="named")
        await client.create_topic(f"{topic_name}-taken", queues="named")
        await fill(client, topic_name, *NAMES[:2])
        with pytest.raises(InvalidRequest, match="dead letters have none"):
            await work.configure(dead_letter=f"{topic_name}-taken")
        await work.configure(max_deliveries=1)
        refused = 0
        while refused < 2:
            for task in await work.poll(2):
                await task.nack(reason="no")
                refused += 1
        letters = DeadLetters(client, f"{topic_name}.dlq")

        async def dead() -> list[Any]:
            topics = {topic.name for topic in await client.topics()}
            return [letter async for letter in letters.read()] if letters.name in topics else []

        async def both() -> bool:
            return len(await dead()) == 2

        await comes_true(both, "both are dead letters")
        found = await dead()
        assert sorted((letter.queue_name, letter.offset) for letter in found) == [(name, 0) for name in NAMES[:2]]
        assert {letter.to_dict()["queue"] for letter in found} == set(NAMES[:2])
        await letters.replay(found)
        async with Consumer(client, topic_name, start={NAMES[0]: 1}, queues=NAMES[:1]) as consumer:
            (again,) = await take(consumer, 1)
            assert (again.queue_name, again.offset, again.text()) == (NAMES[0], 1, NAMES[0])


async def test_work_goes_on_after_a_restart_and_without_queues_that_were_deleted(
    make_node: Callable[..., NodeProcess], topic_name: str
) -> None:
    node = make_node().start()
    async with Client(node.url, deadline_ms=60_000) as client:
        await client.create_topic(topic_name, queues="named")
        await fill(client, topic_name, *NAMES)
        done: set[str] = set()
        async with WorkQueue(client, topic_name, topic_name, visibility_ms=60_000) as work:
            while len(done) < 4:
                for task in await work.poll(2):
                    await task.ack()
                    done.add(task.text())
        node.kill9()
        node.start()
        (gone, *_) = (name for name in NAMES if name not in done)
        await client.delete_queue(topic_name, gone)
        async with WorkQueue(client, topic_name, topic_name, visibility_ms=60_000) as work:
            while len(done) < len(NAMES) - 1:
                for task in await work.poll(2):
                    assert task.text() not in done
                    await task.ack()
                    done.add(task.text())
            await fill(client, topic_name, gone)
            (task,) = await work.poll(2)
            assert (task.message.queue_name, task.text()) == (gone, gone)
            await task.ack()
        assert done == set(NAMES) - {gone}
