"""No task of a client dies unseen: whichever is killed, it is begun anew, or the application is told."""

from __future__ import annotations

import ast
import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

import lsmq
from lsmq import (
    Client,
    Consumer,
    LsmqError,
    Producer,
    PushConsumer,
    Task,
    Topic,
    TransactionalProducer,
    WorkQueue,
    push_streams,
)
from lsmq._receipts import PendingBatch
from lsmq._settler import Settler
from lsmq._shard_sender import ShardSender
from lsmq.background_tasks import BackgroundTasks
from support.node_process import NodeProcess
from support.waiting import comes_true

#: Where tasks are made by those who wait for them in the same function. All others are begun by a BackgroundTasks.
AWAITED = {
    "background_tasks.py": {"begin", "unless", "until"},
    "_handler_lanes.py": {"_over"},
    "_pop_loop.py": {"run"},
    "_router.py": {"ask_any"},
    "client.py": {"_together"},
}


def functions_that_make_tasks(path: Path) -> set[str]:
    found = set()
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in ast.walk(function):
                name = getattr(call.func, "attr", "") if isinstance(call, ast.Call) else ""
                if name in ("create_task", "ensure_future") and getattr(call.func.value, "id", "") == "asyncio":  # type: ignore[attr-defined]
                    found.add(function.name)
    return found


def test_tasks_are_begun_where_they_are_watched() -> None:
    root = Path(lsmq.__file__).parent
    made = {path.name: names for path in root.glob("*.py") if (names := functions_that_make_tasks(path))}
    assert made == AWAITED


Use = Callable[[], Awaitable[object]]


@asynccontextmanager
async def reading(client: Client, topic: str) -> AsyncIterator[Use]:
    async with Consumer(client, topic, group=secrets.token_hex(4)) as consumer:
        yield lambda: consumer.poll(timeout_ms=50)


@asynccontextmanager
async def running(client: Client, topic: str) -> AsyncIterator[Use]:
    async with Consumer(client, topic, group=secrets.token_hex(4)) as consumer:
        run = asyncio.create_task(consumer.run(lambda message: None))
        yield lambda: asyncio.wait_for(asyncio.shield(run), 0.05)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


@asynccontextmanager
async def pushed(client: Client, topic: str) -> AsyncIterator[Use]:
    async with PushConsumer(client, topic, group=secrets.token_hex(4)) as consumer:
        yield lambda: consumer.poll(timeout_ms=50)


@asynccontextmanager
async def working(client: Client, topic: str) -> AsyncIterator[Use]:
    async with WorkQueue(client, topic, secrets.token_hex(4)) as work:
        await work.poll(1, 50)
        yield lambda: work.poll(1, timeout_ms=50)


@asynccontextmanager
async def sending(client: Client, topic: str) -> AsyncIterator[Use]:
    async with Producer(client, topic) as producer:
        await producer.send_and_wait("first")
        yield lambda: producer.send_and_wait("again")


@asynccontextmanager
async def in_transactions(client: Client, topic: str) -> AsyncIterator[Use]:
    async with TransactionalProducer(client, secrets.token_hex(4)) as producer:

        async def use() -> None:
            async with producer.transaction() as transaction:
                await transaction.send(topic, "one")

        await use()
        yield use


def tasks_of(client: Client) -> dict[asyncio.Task[object], asyncio.AbstractEventLoop]:
    here = asyncio.get_running_loop()
    found = dict.fromkeys(asyncio.all_tasks(), here)
    thread = client._heartbeats
    if thread is not None:
        found |= dict.fromkeys(asyncio.all_tasks(thread._thread._loop), thread._thread._loop)
    return {task: loop for task, loop in found.items() if task.get_name().startswith("lsmq ")}


@pytest.mark.parametrize("made", [reading, running, pushed, working, sending, in_transactions])
async def test_each_task_that_is_killed_is_begun_anew_or_told_of(
    shared_node: NodeProcess, topic_name: str, made: Callable[[Client, str], AbstractAsyncContextManager[Use]]
) -> None:
    killed: set[str] = set()

    async def kill_another() -> bool:
        """False when each has had its turn."""
        async with Client(shared_node.url) as client:
            await client.create_topic(topic_name, queues=2)
            with suppress(LsmqError):  # Closing what broke may say so again.
                async with made(client, topic_name) as use:
                    await comes_true(lambda: bool(tasks_of(client)), "there are tasks")
                    await asyncio.sleep(0.05)  # Which of them there are is not told by anything: more begin soon.
                    left = {task: loop for task, loop in tasks_of(client).items() if task.get_name() not in killed}
                    if not left:
                        return False
                    victim, loop = next(iter(left.items()))
                    name = victim.get_name()
                    killed.add(name)
                    loop.call_soon_threadsafe(victim.cancel)
                    await comes_true(victim.done, f"{name} is dead")

                    async def is_known() -> bool:
                        try:
                            await use()
                        except TimeoutError:
                            pass
                        except LsmqError:
                            return True
                        return any(task.get_name() == name for task in tasks_of(client))

                    await comes_true(is_known, f"the death of {name} is known")
        return True

    while await kill_another():
        pass
    assert len(killed) >= 2, killed


async def test_a_task_that_raises_or_returns_early_is_told_of() -> None:
    told: list[Exception] = []
    background = BackgroundTasks(told.append)

    async def break_it() -> None:
        raise ValueError("it broke")

    background.begin(break_it(), "breaks")
    background.begin(asyncio.sleep(0), "was to last", lasting=True)
    background.begin(asyncio.sleep(0), "is done")
    await comes_true(lambda: not background, "all are over")
    assert [str(error) for error in told] == [
        "it broke",
        "the task 'was to last' returned although there was more to do",
    ]
    with pytest.raises(ValueError, match="it broke"):
        await background.until(asyncio.sleep(60))


async def test_a_stream_whose_ping_cannot_be_sent_is_made_anew(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([True, True])

    async def ping(self: aiohttp.ClientWebSocketResponse, message: bytes = b"") -> None:
        if next(failures, False):
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(push_streams, "QUIET_S", 0.05)
    monkeypatch.setattr(aiohttp.ClientWebSocketResponse, "ping", ping)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with PushConsumer(client, topic_name, group=topic_name) as consumer:
            await comes_true(lambda: consumer.reconnects >= 2, "the stream was made anew")
            async with Producer(client, topic_name) as producer:
                await producer.send_and_wait("after it")
            assert [message.text() for message in await consumer.poll()] == ["after it"]


async def test_acknowledgements_that_cannot_be_sent_end_the_stream(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = push_streams.PushLink._flush
    failures = iter([True])

    async def fail_once(self: push_streams.PushLink, socket: aiohttp.ClientWebSocketResponse) -> None:
        if next(failures, False):
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        await flush(self, socket)

    monkeypatch.setattr(push_streams.PushLink, "_flush", fail_once)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("twice")
        async with PushConsumer(client, topic_name, group=topic_name, credit=1) as consumer:
            await consumer.poll()
            consumer.ack()
            assert [message.text() for message in await consumer.poll()] == ["twice"]
            consumer.ack()
        assert await client.committed_offsets(topic_name, topic_name) == {0: 1}


async def test_an_unexpected_error_fails_one_batch_and_no_other(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = ShardSender._deliver
    failures = iter([True])

    async def break_once(self: ShardSender, batch: PendingBatch) -> None:
        if next(failures, False):
            raise KeyError("a defect")
        await deliver(self, batch)

    monkeypatch.setattr(ShardSender, "_deliver", break_once)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            with pytest.raises(LsmqError, match="broke, which is a defect of LSMQ: KeyError"):
                await producer.send_and_wait("the first")
            assert (await producer.send_and_wait("the second")).offset == 0


async def test_who_acknowledges_is_told_of_an_unexpected_error(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_it(*given: object, **more: object) -> list[LsmqError | None]:
        raise KeyError("a defect")

    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one")
        async with WorkQueue(client, topic_name, topic_name) as work:
            (task,) = await work.poll(1)
            with monkeypatch.context() as patched:
                patched.setattr(Settler, "settle", break_it)
                with pytest.raises(LsmqError, match="acknowledging broke"):
                    await task.ack()
            await task.ack()


async def test_a_handler_that_is_cancelled_by_itself_ends_no_worker(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        topic: Topic = await client.create_topic(topic_name)
        async with Producer(client, topic.name) as producer:
            await producer.send_and_wait("one")
        work = WorkQueue(client, topic_name, topic_name)
        seen = []

        async def handle(task: Task) -> None:
            seen.append(task.message.text())
            if len(seen) == 1:
                raise asyncio.CancelledError
            await work.close()

        await work.run(handle)
        assert seen == ["one", "one"]
