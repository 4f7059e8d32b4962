"""Loops outlive outages, and say so: in warnings that do not flood, and to a callback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from lsmq import (
    Client,
    ConnectionFailed,
    Consumer,
    Outage,
    Producer,
    PushConsumer,
    Task,
    TransactionalProducer,
    WorkQueue,
    runtime,
)
from lsmq import sync as blocking
from lsmq._outages import Attempts, Outages
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import comes_true, eventually

NOBODY = "http://127.0.0.1:9"
QUICK = {"deadline_ms": 300, "request_timeout_ms": 5_000}


class Reading:
    """Attempts at something, by a clock of their own, and what is said of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.said: list[Outage] = []
        self.attempts = Attempts(Outages(self.said.append), "reading")
        monkeypatch.setattr(runtime, "monotonic", lambda: self.now_s)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


def test_a_long_outage_is_said_after_a_second_and_then_ever_more_rarely(reading: Reading) -> None:
    said, attempts, error = reading.said, reading.attempts, ConnectionFailed("no connection")
    for _ in range(2400):
        attempts.failed(error, ("shard 1", "shard 2"))
        reading.now_s += 0.125
    assert [round(outage.lasted_ms / 1000) for outage in said] == [1, 2, 4, 8, 16, 32, 64, 124, 184, 244]
    attempts.passed(("shard 1",))
    assert not said[-1].over
    attempts.passed(("shard 2",))
    assert said[-1] == Outage("reading", 300_000, error, over=True)
    attempts.failed(error)
    attempts.passed()
    assert said[-1].lasted_ms == 300_000, "a failure that passes within a second is no outage"


def test_an_outage_has_lasted_since_its_first_failure_whichever_part_of_it_passed_last(reading: Reading) -> None:
    said, attempts, error = reading.said, reading.attempts, ConnectionFailed("no connection")
    for late in range(10):
        attempts.failed(error, (0, late))
        reading.now_s += 1
    for part in range(10):
        attempts.passed((part,))
    assert said[-1] == Outage("reading", 10_000, error, over=True)
    attempts.failed(error)
    reading.now_s += 2
    attempts.failed(error)
    attempts.passed()
    assert said[-1] == Outage("reading", 2_000, error, over=True)


def test_what_is_tried_no_more_is_forgotten() -> None:
    said: list[Outage] = []
    outages = Outages(said.append)
    with Attempts(outages, "asking", began_s=0.0) as attempts:
        attempts.failed(ConnectionFailed("no connection"))
    assert len(said) == 1 and not outages._since


def test_a_callback_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(outage: Outage) -> None:
        raise ValueError("of the application")

    Attempts(Outages(fail), "asking", began_s=0.0).failed(ConnectionFailed("no connection"))
    assert "on_outage failed" in caplog.text


async def test_loops_read_on_after_an_outage_longer_than_any_deadline(
    make_node: Callable[..., NodeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="lsmq")
    node = make_node().start()
    said: list[Outage] = []
    seen: dict[str, list[str]] = {name: [] for name in ("for", "run", "member", "work", "push")}
    async with (
        Client(node.url, on_outage=said.append, deadline_ms=300) as client,
        Client(node.url) as other,
    ):
        await other.create_topic("t")

        async def iterate() -> None:
            async with Consumer(client, "t") as consumer:
                async for message in consumer:
                    seen["for"].append(message.text())

        async def run(name: str, **options: str) -> None:
            async with Consumer(client, "t", **options) as consumer:  # type: ignore[arg-type]
                await consumer.run(lambda message: seen[name].append(message.text()))

        async def work() -> None:
            async def handle(task: Task) -> None:
                seen["work"].append(task.text())

            async with WorkQueue(client, "t", "w") as queue:
                await queue.run(handle)

        async def push() -> None:
            async with PushConsumer(client, "t", group="p") as consumer:
                await consumer.run(lambda message: seen["push"].append(message.text()))

        loops = [
            asyncio.create_task(each) for each in (iterate(), run("run"), run("member", group="m"), work(), push())
        ]
        try:
            async with Producer(other, "t") as producer:
                await producer.send_and_wait("before")
            await comes_true(lambda: all(texts == ["before"] for texts in seen.values()), "all have read")
            await asyncio.to_thread(node.kill9)
            await comes_true(lambda: bool(said) and said[-1].lasted_ms > 2_000, "the outage is long")
            assert not [task for task in loops if task.done()]
            await asyncio.to_thread(node.start)
            async with Producer(other, "t") as producer:
                await producer.send_and_wait("after")
            await comes_true(lambda: all("after" in texts for texts in seen.values()), "all read on")
            await comes_true(lambda: said[-1].over, "it is over")
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
    warnings = [record for record in caplog.records if "has had no success" in record.message]
    assert 2 <= len(warnings) <= 12


async def test_a_deadline_that_is_given_ends_a_loop() -> None:
    async with Client(NOBODY, deadline_ms=100) as client:
        for loop in (
            Consumer(client, "t", deadline_ms=200),
            PushConsumer(client, "t", group="g", deadline_ms=200),
            WorkQueue(client, "t", "g", deadline_ms=200),
        ):
            with pytest.raises(ConnectionFailed):
                async for _ in loop:
                    pass


async def test_a_consumer_may_be_there_before_its_node(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node().start()
    await asyncio.to_thread(node.kill9)
    async with Client(node.url, deadline_ms=100) as client:
        consumer = Consumer(client, "t")
        starting = asyncio.create_task(consumer.start())
        await comes_true(lambda: bool(client._outages._since), "it has tried")
        assert not starting.done()
        starting.cancel()


def test_the_blocking_client_tells_in_a_thread_that_may_ask() -> None:
    said: list[list[str]] = []
    with blocking.Client(NOBODY, deadline_ms=4_000, on_outage=lambda _: said.append(client.urls)) as client:
        with pytest.raises(ConnectionFailed):
            client.topics()
        eventually(lambda: bool(said), "it was told")


def test_the_command_says_at_once_that_nobody_is_there_and_tries_on() -> None:
    ended = run_python("-m", "lsmq", "topic", "list", "--url", NOBODY, "--timeout", "3s", text=True)
    first, *_, hint = ended.stderr.strip().splitlines()
    assert (
        "GET /v1/topics has had no success for 1." in first
        and "no connection to http://127.0.0.1:9: Connection refused" in first
    )
    assert ended.returncode == 1 and "is a node running there?" in hint and "lsmq status" in hint


async def test_heartbeats_that_fail_do_not_flood_the_log(
    make_node: Callable[..., NodeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="lsmq")
    node = make_node().start()

    def said(level: int) -> int:
        return sum(record.levelno == level and "no heartbeat" in record.message for record in caplog.records)

    async with Client(node.url) as patient, Client(node.url, deadline_ms=100) as client:
        await patient.create_topic("t")
        async with (
            Consumer(client, "t", group="g") as consumer,
            TransactionalProducer(client, "g", session_ms=1_000, deadline_ms=30_000),
        ):
            assert consumer.assignment
            await asyncio.to_thread(node.kill9)
            # Of the member and of the producer, each for itself: what is not said is counted.
            await comes_true(lambda: said(logging.DEBUG) >= 6, "most of it is not said")
            assert 2 <= said(logging.WARNING) < said(logging.DEBUG)
            await asyncio.to_thread(node.start)


@pytest.mark.slow
async def test_who_waits_where_nothing_comes_outlives_a_second_outage(tmp_path: Path) -> None:
    """Long polls that are held for longer than the deadline, between two restarts, have not failed all that time."""
    node = NodeProcess(tmp_path / "data").start()
    clock, options = asyncio.get_running_loop().time, {"deadline_ms": 10_000, "wait_ms": 25_000}
    done = list[str]()
    try:
        async with Client(node.url) as client:
            await client.create_topic("idle")
            async with (
                WorkQueue(client, "idle", "workers", **options) as work,
                Consumer(client, "idle", start="earliest", **options) as consumer,
            ):

                async def handle(task: Task) -> None:
                    done.append(task.text())
                    await task.ack()

                async def held() -> bool:
                    return bool((await client.ask("GET", "/v1/status"))["waiters"] == 2)

                working, reading = asyncio.create_task(work.run(handle)), asyncio.create_task(consumer.poll())
                for wait_s in (0, 11):
                    await comes_true(held, "both are held")
                    until = clock() + wait_s
                    await comes_true(lambda until=until: clock() >= until, "the deadline has passed")  # type: ignore[misc]
                    await asyncio.to_thread(node.kill9)
                    await asyncio.to_thread(node.start)
                async with Producer(client, "idle") as producer:
                    await producer.send_and_wait("x")
                assert [message.text() for message in await reading] == ["x"]
                await comes_true(lambda: done == ["x"] or working.done(), "it is worked on")
                await work.close()
                await working
    finally:
        node.kill9()
