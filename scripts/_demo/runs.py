"""The two runs: workers started, followed and stopped around a cluster that lives, or loses a leader on the way."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lsmq import Client
from lsmq.topics import Route

from .cluster import DemoCluster, Kill
from .display import Display
from .workers import (
    Receipts,
    ReceiveTask,
    Sends,
    SendTask,
    Signals,
    load_receipts,
    load_sends,
    receive,
    send,
)

TICK_S = 0.05
# A run in which nothing moves for so long goes on to its end; the check then says what is missing.
STALL_S = 15.0
# Consumers go on for so long after the last expected message, so that one that comes twice is seen.
SETTLE_S = 1.0


class WorkerFailed(Exception):
    """A sending or receiving process ended with an error, which it printed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all runs share. Rows ``[0, live_from)`` go at full speed, the rest ``live_rate`` a second."""

    table: Path
    limit: int | None
    row_count: int
    live_from: int
    live_rate: int
    queue_count: int
    consumer_count: int
    directory: Path


@dataclass(frozen=True, slots=True)
class FirstRun:
    """Backlog in, backlog out, then the paced part."""

    sends: Sends
    receipts: list[Receipts]
    reading_began_ns: int


@dataclass(frozen=True, slots=True)
class SecondRun:
    """Sent and followed at once, through a kill; then read again from the beginning by new consumers.

    ``back_ns``: when the killed node was started again, on the monotonic clock.
    """

    sends: Sends
    followed: list[Receipts]
    read_again: list[Receipts]
    kill: Kill
    back_ns: int
    routes: tuple[Route, ...]
    rejoin_s: float
    reading_began_ns: int


def first_run(cluster: DemoCluster, plan: Plan, display: Display) -> FirstRun:
    """Everything in, everything out by several consumers, then the last rows while they listen."""
    topic = _create_topic(cluster, "flights", plan)
    with Crew(cluster, plan, topic, sender=True) as crew:
        crew.wait_ready()
        display.note(f"a backlog of {plan.live_from:,} flights, as fast as they go")
        crew.start_sending()
        with display.bars({"sent": plan.live_from}) as bars:
            crew.follow(lambda: bars.update("sent", crew.sent), lambda: crew.sent >= plan.live_from)
        display.note(f"{plan.consumer_count} consumers read the backlog")
        began_ns = crew.start_receiving()
        with display.bars({"received": plan.live_from}) as bars:
            crew.follow(lambda: bars.update("received", crew.received), lambda: crew.received >= plan.live_from)
        live = plan.row_count - plan.live_from
        display.note(f"{live:,} flights live, {plan.live_rate:,} a second")
        crew.send_live()
        with display.bars({"received": live}) as bars:
            crew.follow(
                lambda: bars.update("received", crew.received - plan.live_from),
                lambda: crew.received >= plan.row_count,
            )
        crew.settle()
        return FirstRun(crew.sends(), crew.receipts(), began_ns)


def second_run(cluster: DemoCluster, plan: Plan, display: Display) -> SecondRun:
    """Everything once more, sent and followed at once; a leader is killed when half is acknowledged."""
    topic = _create_topic(cluster, "flights-again", plan)
    routes = asyncio.run(_routes(cluster, topic))
    plan_at_once = replace(plan, live_from=plan.row_count)
    with Crew(cluster, plan_at_once, topic, sender=True) as crew:
        crew.wait_ready()
        crew.start_receiving()
        crew.start_sending()
        with display.bars({"sent": plan.row_count, "received": plan.row_count}) as bars:

            def show() -> None:
                bars.update("sent", crew.sent)
                bars.update("received", crew.received)

            crew.follow(show, lambda: crew.sent >= plan.row_count // 2)
            at_kill = crew.sent
            kill = cluster.kill_a_leader()
            shards = ", ".join(map(str, kill.shards))
            display.note(f"killed {kill.node} with -9, leader of shard {shards}, after {at_kill:,} flights")
            crew.follow(show, lambda: crew.sent >= plan.row_count * 3 // 4)
            display.note(f"and started it again after {crew.sent:,}; it catches up beside the stream")
            back_ns = time.monotonic_ns()
            with ThreadPoolExecutor(1) as starter:
                started = starter.submit(cluster.start_again, kill.node)
                crew.follow(
                    show, lambda: crew.sent >= plan.row_count and crew.received >= plan.row_count and started.done()
                )
                started.result()
        crew.settle()
        rejoin_s = cluster.wait_in_sync()
        sends, followed = crew.sends(), crew.receipts()
    display.note("new consumers read everything again, from the beginning")
    with Crew(cluster, plan_at_once, topic, sender=False) as crew:
        crew.wait_ready()
        began_ns = crew.start_receiving()
        with display.bars({"received": plan.row_count}) as bars:
            crew.follow(lambda: bars.update("received", crew.received), lambda: crew.received >= plan.row_count)
        crew.settle()
        return SecondRun(sends, followed, crew.receipts(), kill, back_ns, routes, rejoin_s, began_ns)


class Crew:
    """One sending process (or none) and the receiving ones, each with a share of the queues.

    A context: on leaving it no process is left, whatever happened.
    """

    def __init__(self, cluster: DemoCluster, plan: Plan, topic: str, *, sender: bool) -> None:
        self._cluster = cluster
        context = multiprocessing.get_context("spawn")
        count = plan.consumer_count + 1
        counters = context.Array("q", count, lock=False)
        ready = [context.Event() for _ in range(count)]
        self._live, self._stop = context.Event(), context.Event()
        self._send_signals = Signals(counters, ready, context.Event(), self._live, self._stop)
        self._receive_signals = Signals(counters, ready, context.Event(), self._live, self._stop)
        self._counters = counters
        self._ready = ready if sender else ready[1:]
        prefix = f"{topic}-{time.monotonic_ns()}"
        self._send_output = plan.directory / f"{prefix}-sent.npz"
        self._receive_outputs = [plan.directory / f"{prefix}-received-{i}.npz" for i in range(plan.consumer_count)]
        self._processes: list[Any] = []
        if sender:
            rows = (plan.table, plan.limit, plan.live_from, plan.live_rate)
            task = SendTask(cluster.url, topic, *rows, self._send_output)
            self._processes.append(context.Process(target=send, args=(task, self._send_signals, 0)))
        for index, output in enumerate(self._receive_outputs):
            first, end = (plan.queue_count * part // plan.consumer_count for part in (index, index + 1))
            share = ReceiveTask(cluster.url, topic, first, end, output)
            self._processes.append(context.Process(target=receive, args=(share, self._receive_signals, index + 1)))

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()

    @property
    def sent(self) -> int:
        """Messages acknowledged so far."""
        return int(self._counters[0])

    @property
    def received(self) -> int:
        """Messages received so far, by all consumers together."""
        return sum(self._counters[1:])

    def wait_ready(self) -> None:
        """Until every process is connected and has what it needs."""
        for event in self._ready:
            while not event.wait(TICK_S):
                self._check()

    def start_sending(self) -> None:
        """Let the sender begin."""
        self._send_signals.go.set()

    def start_receiving(self) -> int:
        """Let the consumers begin; the moment, in nanoseconds of the monotonic clock."""
        began_ns = time.monotonic_ns()
        self._receive_signals.go.set()
        return began_ns

    def send_live(self) -> None:
        """Let the sender go on to the paced part."""
        self._live.set()

    def follow(self, show: Callable[[], None], done: Callable[[], bool]) -> None:
        """Call ``show`` now and then until ``done``, or until nothing has moved for a long time.

        Raises :class:`WorkerFailed`, and ``ClusterFailed`` when a node dies by itself.
        """
        moved, seen = time.monotonic(), (-1, -1)
        while not done():
            show()
            self._check()
            now = (self.sent, self.received)
            if now != seen:
                moved, seen = time.monotonic(), now
            elif time.monotonic() - moved > STALL_S:
                break
            time.sleep(TICK_S)
        show()

    def settle(self) -> None:
        """Wait for stragglers, stop the consumers, and wait for every process to leave its columns."""
        time.sleep(SETTLE_S)
        self._cluster.sample_memory()
        self._live.set()
        self._stop.set()
        for process in self._processes:
            while process.is_alive():
                process.join(TICK_S)
                self._check()
        self._check()

    def sends(self) -> Sends:
        """What the sender saw."""
        return load_sends(self._send_output)

    def receipts(self) -> list[Receipts]:
        """What the consumers were handed, one entry each."""
        return [load_receipts(output) for output in self._receive_outputs]

    def _check(self) -> None:
        self._cluster.check_alive()
        for process in self._processes:
            if process.exitcode not in (None, 0):
                raise WorkerFailed(f"a worker process ended with exit code {process.exitcode}; see above")


def _create_topic(cluster: DemoCluster, name: str, plan: Plan) -> str:
    async def create() -> None:
        async with Client(cluster.url) as client:
            await client.create_topic(name, queues=plan.queue_count)

    asyncio.run(create())
    return name


async def _routes(cluster: DemoCluster, topic: str) -> tuple[Route, ...]:
    async with Client(cluster.url) as client:
        return (await client.topic(topic)).routes
