"""Many workers of one process: a task wakes one of them, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from unittest import mock

from lsmq import Client, Producer, Task, WorkQueue
from lsmq._pop_loop import PopLoop, Waiting
from support.node_process import NodeProcess
from support.waiting import comes_true

WORKERS = 300
TASKS = 10


async def test_a_task_wakes_one_idle_worker_and_not_all(shared_node: NodeProcess) -> None:
    handled: list[str] = []

    async def handle(task: Task) -> None:
        handled.append(task.text())

    async with Client(shared_node.url) as client:
        await client.create_topic("wq-many-workers", queues=1)
        async with (
            WorkQueue(client, "wq-many-workers", "wq-many-workers") as work,
            Producer(client, "wq-many-workers") as producer,
        ):
            running = asyncio.create_task(work.run(handle, concurrency=WORKERS))
            await comes_true(lambda: len(work._changed._futures) >= WORKERS, "all are idle")
            looking = mock.patch.object(PopLoop, "look", autospec=True, side_effect=PopLoop.look)
            with looking as looked:
                for number in range(TASKS):
                    await producer.send_and_wait(f"{number}")
                    await comes_true(lambda number=number: len(handled) > number, "it is handled")  # type: ignore[misc]
            assert looked.call_count < WORKERS
            assert sorted(handled) == sorted(map(str, range(TASKS)))
            await comes_true(lambda: len(work._changed._futures) >= WORKERS, "all are idle again")
            await work.close()
            await running


async def test_whoever_is_cancelled_as_it_is_woken_leaves_its_turn_to_the_next() -> None:
    waiting, looked = Waiting(), []

    async def wait(name: str) -> None:
        await waiting.wait()
        looked.append(name)

    tasks = {name: asyncio.create_task(wait(name)) for name in "abcde"}
    await asyncio.sleep(0)
    waiting.wake_one()
    tasks["a"].cancel()
    tasks["c"].cancel()
    await asyncio.wait((tasks["a"], tasks["b"], tasks["c"]))
    assert looked == ["b"]
    waiting.wake_one()
    await tasks["d"]
    assert looked == ["b", "d"]
    waiting.wake()
    await tasks["e"]
    waiting.wake_one()
    assert not waiting._futures
