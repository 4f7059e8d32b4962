"""Consumers and leaders die in the middle of the work: nothing is lost, and what was acknowledged never comes again."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lsmq import Client, Producer, Task, WorkQueue
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, comes_true
from support.work_process import WorkerProcess

QUEUES = 12


async def test_the_tasks_of_a_killed_consumer_come_to_others(shared_node: NodeProcess) -> None:
    topic, bodies = "wq-killed-consumer", [f"{number}" for number in range(60)]
    async with Client(shared_node.url) as client:
        await client.create_topic(topic, queues=QUEUES)
        async with Producer(client, topic) as producer:
            await (await producer.send_many(bodies))
        options = {"handle_s": 0.05, "concurrency": 4, "visibility_ms": 1_000}
        victim = WorkerProcess([shared_node.url], topic, topic, **options)
        await comes_true(lambda: len(victim.ended) >= 8, "the first consumer works")
        victim.kill9()
        heir = WorkerProcess([shared_node.url], topic, topic, **options)
        try:
            await comes_true(lambda: {*victim.ended, *heir.ended} >= set(bodies), "all is done")
        finally:
            heir.kill9()
        assert not set(victim.ended) & set(heir.begun), "what was acknowledged came again"
        assert max(Counter(heir.ended).values()) == 1


@pytest.mark.slow
async def test_a_node_that_comes_to_lead_more_is_asked_for_that_at_once(tmp_path: Path) -> None:
    """Not when the pop is over that it holds for what it led before: here in an hour."""
    with running_cluster(__name__, tmp_path / "c", settings={"max_wait_ms": 3_600_000}) as cluster:
        urls = {node.id: node.url for node in cluster.plan.nodes}
        async with AsyncExitStack() as scope:
            nodes = [await scope.enter_async_context(Client(url)) for url in urls.values()]
            client = await scope.enter_async_context(Client([*urls.values()], deadline_ms=60_000))
            route = (await client.create_topic("moved", queues=QUEUES)).routes[0]
            work = await scope.enter_async_context(WorkQueue(client, "moved", "g", wait_ms=3_600_000))

            async def all_hold() -> bool:
                return all([(await node.status())["waiters"] for node in nodes])

            waiting = asyncio.create_task(work.poll(1))
            await comes_true(all_hold, "each node holds a pop for what it leads")
            leader = next(name for name, url in urls.items() if url == route.leader)
            await asyncio.to_thread(cluster.kill, leader)
            async with Producer(client, "moved") as producer:
                await producer.send_and_wait("late", queue=route.first)
            async with asyncio.timeout(PATIENCE_S):
                (task,) = await waiting
            assert task.text() == "late"
            await task.ack()


@pytest.mark.slow
async def test_leaders_die_under_a_work_queue(cluster: LocalCluster) -> None:
    """Killed, or stopped for a while: what is acknowledged never comes again, all is done, dead letters come once."""
    topic = "work"
    async with Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000) as client:
        await client.create_topic(topic, queues=QUEUES)
        acked: Counter[str] = Counter()
        again: list[str] = []
        sent = 0
        stop = False

        async def produce() -> None:
            nonlocal sent
            async with Producer(client, topic, linger_ms=1) as producer:
                while not stop:
                    receipts = [await producer.send(f"{sent + n}") for n in range(10)]
                    for receipt in receipts:
                        await receipt
                    sent += 10
                    await asyncio.sleep(0.01)

        async def handle(task: Task) -> None:
            body = task.text()
            if body in acked:
                again.append(body)
            if int(body) % 50 == 0:
                raise ValueError("poison")
            if int(body) % 7 == 0 and task.deliveries == 1:
                await task.nack(delay_ms=20)
                return
            await task.ack()
            acked[body] += 1

        # A machine that stands still for seconds ends deliveries, too: that many must not make a dead letter of a task.
        consumers = [WorkQueue(client, topic, "g", visibility_ms=4_000) for _ in range(3)]
        await consumers[0].configure(max_deliveries=6, retry_first_ms=20)

        def done() -> set[str]:
            return {str(number) for number in range(sent) if number % 50}

        async with asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(produce())
            for consumer in consumers:
                tasks.create_task(consumer.run(handle, concurrency=8))
            for stop_it, start_it in ((cluster.kill, cluster.start), (cluster.pause, cluster.resume)):
                goal = len(acked) + 300
                await comes_true(lambda goal=goal: len(acked) >= goal, "the work goes on")  # type: ignore[misc]
                status = cluster.status()
                leader = next(shard.leader for shard in status.shards if shard.leader is not None)
                await asyncio.to_thread(stop_it, leader)  # it takes seconds, in which the consumers are to go on
                goal = len(acked) + 100
                await comes_true(lambda goal=goal: len(acked) >= goal, "the work goes on without")  # type: ignore[misc]
                await asyncio.to_thread(start_it, leader)
            stop = True
            await producing
            try:
                await comes_true(lambda: set(acked) >= done(), "all that is no poison is done")
            except AssertionError:
                left, letters = sorted(done() - set(acked)), await _letters(client, topic)
                dead = {body: letters[body] for body in left if body in letters}
                raise AssertionError(f"{left} never came to their end; of these are dead letters: {dead}") from None
            poison = {str(number) for number in range(0, sent, 50)}
            found: Counter[str] = Counter()
            async with WorkQueue(client, f"{topic}.dlq", "reader") as letters:
                while set(found) < poison:
                    got = await letters.poll(100, timeout_ms=30_000)
                    assert got, f"{poison - set(found)} are no dead letters"
                    for task in got:
                        found[task.text()] += 1
                        await task.ack()
            for consumer in consumers:
                await consumer.close()
        assert not again, "what was acknowledged came again"
        assert set(found) == poison and max(found.values()) == 1


async def _letters(client: Client, topic: str) -> dict[str, str]:
    """Why messages are dead letters."""
    found: dict[str, str] = {}
    async with WorkQueue(client, f"{topic}.dlq", "looks on") as letters:
        while got := await letters.poll(100, timeout_ms=3_000):
            found |= {task.text(): task.message.properties["lsmq-dlq-reason"] for task in got}
    return found
