"""A worker that is stopped takes nothing that it does not handle, and gives back what it has not begun."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import Any

import pytest

from lsmq import Client, DeadLetters, Producer, Task, Topic, WorkQueue
from lsmq._transport import Response
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess
from support.python_process import PythonProcess
from support.waiting import PATIENCE_S, comes_true

WORKER = """
import signal
import sys
from lsmq.sync import Client, WorkQueue

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
url, topic, concurrency = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Client(url) as client:
    def handle(task):
        print("begin", task.text(), flush=True)
        sys.stdin.read(1)
        print("end", task.text(), flush=True)

    WorkQueue(client, topic, "g").run(handle, concurrency=concurrency)
"""


async def filled(client: Client, topic: str, count: int) -> None:
    await client.create_topic(topic, queues=4)
    async with Producer(client, topic) as producer:
        for number in range(count):
            await producer.send(f"{number}", queue=number % 4)


async def is_held(client: Client, topic: str) -> list[str]:
    async with WorkQueue(client, topic, "g") as work:
        return [held.id for held in await work.held()]


async def all_of(client: Client, topic: str, count: int) -> dict[str, int]:
    """What another worker gets within moments, and how often each was delivered."""
    found: dict[str, int] = {}
    async with WorkQueue(client, topic, "g") as work:
        while len(found) < count:
            for task in await work.poll(100, timeout_ms=20_000):
                found[task.text()] = task.deliveries
                await task.ack()
    return found


@pytest.mark.parametrize(("concurrency", "sent"), [(1, signal.SIGINT), (3, signal.SIGINT), (3, signal.SIGTERM)])
async def test_ctrl_c_ends_what_is_begun_and_takes_nothing_more(
    shared_node: NodeProcess, topic_name: str, concurrency: int, sent: signal.Signals
) -> None:
    """So does whatever else the handler of a signal raises: mostly ``SystemExit``."""
    async with Client(shared_node.url) as client:
        await filled(client, topic_name, 20)
        arguments = ["-c", WORKER, shared_node.url, topic_name, str(concurrency)]
        with PythonProcess(arguments, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
            assert worker.stdin is not None and worker.stdout is not None
            begun = [await asyncio.to_thread(worker.stdout.readline) for _ in range(concurrency)]
            assert all(line.startswith("begin ") for line in begun)
            worker.send_signal(sent)
            worker.stdin.close()  # The handlers, which wait for that, end.
            said = await asyncio.to_thread(worker.stdout.readlines)
        done = {line.split()[1] for line in said if line.startswith("end ")}
        assert {line.split()[1] for line in begun} <= done, said
        assert await is_held(client, topic_name) == []
        left = await all_of(client, topic_name, 20 - len(done))
        assert left.keys() == {f"{number}" for number in range(20)} - done, "what was handled is settled"
        assert set(left.values()) == {1}, "what was not begun counts as not delivered"


async def test_who_cancels_it_has_nothing_held_and_may_go_on(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await filled(client, topic_name, 20)
        async with WorkQueue(client, topic_name, "g") as work:
            begun: list[str] = []

            async def handle(task: Task) -> None:
                begun.append(task.text())
                await asyncio.Event().wait()

            running = asyncio.create_task(work.run(handle, concurrency=2))
            await comes_true(lambda: len(begun) == 2, "both have one")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert await work.held() == []
            (task,) = await work.poll(1, timeout_ms=20_000)
            assert task.deliveries == 1
            await task.ack()
        assert set((await all_of(client, topic_name, 19)).values()) == {1}


async def test_who_polls_goes_on_when_somebody_else_runs_it_no_more(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await filled(client, topic_name, 4)
        async with WorkQueue(client, topic_name, "g") as work:
            begun: dict[str, list[str]] = {"first": [], "second": []}

            async def runs(name: str) -> None:
                async def handle(task: Task) -> None:
                    begun[name].append(task.text())
                    if name == "first":
                        await asyncio.Event().wait()

                await work.run(handle)

            first = asyncio.create_task(runs("first"))
            await comes_true(lambda: len(begun["first"]) == 1, "it has one")
            second = asyncio.create_task(runs("second"))
            await comes_true(lambda: len(begun["second"]) == 3, "it has the rest")
            first.cancel()
            await comes_true(lambda: len(begun["second"]) == 4, "the other goes on, with what was given back")
            polling = asyncio.create_task(work.poll(1))
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            async with Producer(client, topic_name) as producer:
                await producer.send("later")
            (task,) = await polling
            assert task.text() == "later"
            await task.ack()


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_what_is_on_its_way_to_a_worker_that_ends_is_given_back(
    shared_node: NodeProcess, topic_name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq._pop_loop._AT_ONCE_S", PATIENCE_S)
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client, Client(shared_node.url) as direct:
        await filled(client, topic_name, 4)
        proxy.delay("pop", 0.5)
        async with WorkQueue(client, topic_name, "g", visibility_ms=600_000) as work:
            await work.configure()

            async def handle(task: Task) -> None:
                raise AssertionError("there is nothing for it")

            taking = asyncio.create_task(work.run(handle) if how == "cancelled" else work.poll(1))
            while not await is_held(direct, topic_name):
                pass
            if how == "cancelled":
                taking.cancel()
            else:
                await work.close()
            await asyncio.gather(taking, return_exceptions=True)
            assert await is_held(direct, topic_name) == []
        assert set((await all_of(direct, topic_name, 4)).values()) == {1}


@pytest.mark.parametrize("who", ["run", "handler"])
async def test_what_is_being_acknowledged_is_not_given_back_by_who_is_cancelled(
    shared_node: NodeProcess, topic_name: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done: somebody else would do it once more."""
    async with Client(shared_node.url) as client:
        await filled(client, topic_name, 2)
        ask, asked, go_on = client._router.ask_leader, asyncio.Event(), asyncio.Event()

        async def late(topic: Topic, shard: int, method: str, path: str, **options: Any) -> Response:
            if path.endswith("/ack"):
                asked.set()
                await go_on.wait()
            return await ask(topic, shard, method, path, **options)

        monkeypatch.setattr(client._router, "ask_leader", late)
        done: list[str] = []

        async def handle(task: Task) -> None:
            done.append(task.text())
            if who == "handler":
                await task.ack()

        async with WorkQueue(client, topic_name, "g") as work:
            running = asyncio.create_task(work.run(handle, concurrency=2))
            await comes_true(lambda: len(done) == 2 and asked.is_set(), "both are done")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            go_on.set()
        async with WorkQueue(client, topic_name, "g") as work:
            assert [task.text() for task in await work.poll(2, timeout_ms=1_000)] == []


class Unsayable(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize("error", [FileNotFoundError("no file 'caf\udce9'"), Unsayable()])
async def test_a_worker_goes_on_whatever_the_error_of_a_handler_says(
    shared_node: NodeProcess, topic_name: str, error: Exception
) -> None:
    """Names of files that are no UTF-8 are text with halves of surrogate pairs in Python."""
    async with Client(shared_node.url) as client, WorkQueue(client, topic_name, "g") as work:
        await filled(client, topic_name, 4)
        await work.configure(max_deliveries=1)
        done: list[str] = []

        async def handle(task: Task) -> None:
            if task.text() == "0":
                raise error
            done.append(task.text())

        running = asyncio.create_task(work.run(handle))
        letters = DeadLetters(client, f"{topic_name}.dlq")

        async def all_done() -> bool:
            assert not running.done()
            return len(done) == 3 and letters.name in {topic.name for topic in await client.topics()}

        await comes_true(all_done, "the others are done, and that one is a dead letter")
        await work.close()
        await running
        (letter,) = [letter async for letter in letters.read()]
        assert letter.reason.startswith(type(error).__name__) and "\udce9" not in letter.reason
