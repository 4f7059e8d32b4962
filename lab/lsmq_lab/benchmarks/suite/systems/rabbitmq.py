"""RabbitMQ: a quorum queue a queue, on one node, with publisher confirms."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...report import BenchFailed
from ...server_processes import free_port, listens, started
from .system import ClientLoad, LoadOutcome, Running, Stopwatch, System, loop_tasks

_BINARIES = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
_PREFETCH = 2_000
_TIMEOUT_S = 120.0


class _Publisher:
    """A connection of pika's for asyncio, and what waits for its confirm, by delivery tag."""

    def __init__(self, load: ClientLoad) -> None:
        self._load = load
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._tag = 0

    async def connect(self) -> Any:
        pika = importlib.import_module("pika")
        adapter = importlib.import_module("pika.adapters.asyncio_connection").AsyncioConnection
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        parameters = pika.ConnectionParameters(port=int(self._load.address))
        connection = adapter(
            parameters,
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
        )
        await opened
        channel_opened: asyncio.Future[Any] = loop.create_future()
        self.channel = connection.channel(on_open_callback=channel_opened.set_result)
        await channel_opened
        confirmed: asyncio.Future[Any] = loop.create_future()
        self.channel.confirm_delivery(self._confirm, callback=confirmed.set_result)
        await confirmed
        self._properties = pika.BasicProperties(delivery_mode=2)
        return connection

    def publish(self, name: str, body: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tag += 1
        self._waiting.append((self._tag, future))
        self.channel.basic_publish("", name, body, self._properties)
        return future

    def _confirm(self, frame: Any) -> None:
        method = frame.method
        if type(method).__name__ == "Nack":
            raise BenchFailed("RabbitMQ refused a message")
        if method.multiple:
            while self._waiting and self._waiting[0][0] <= method.delivery_tag:
                self._waiting.popleft()[1].set_result(None)
            return
        for at, (tag, future) in enumerate(self._waiting):
            if tag == method.delivery_tag:
                future.set_result(None)
                del self._waiting[at]
                return


def write(load: ClientLoad) -> LoadOutcome:
    async def work() -> LoadOutcome:
        publisher = _Publisher(load)
        connection = await publisher.connect()
        bodies, waiting = load.bodies(), deque[asyncio.Future[None]]()
        clock = Stopwatch()
        for number in range(load.messages):
            if len(waiting) == load.in_flight:
                await waiting.popleft()
            waiting.append(publisher.publish(f"{(load.first + number) % load.queues}", bodies[number % len(bodies)]))
        while waiting:
            await waiting.popleft()
        outcome = clock.outcome(load.messages)
        connection.close()
        return outcome

    return asyncio.run(work())


def loop(load: ClientLoad) -> LoadOutcome:
    async def work() -> LoadOutcome:
        publisher = _Publisher(load)
        connection = await publisher.connect()
        names = [f"{task % load.topics if load.topics else load.queue_of(task)}" for task in range(load.in_flight)]
        outcome = await loop_tasks(load, lambda task, body: publisher.publish(names[task], body))
        connection.close()
        return outcome

    return asyncio.run(work())


def read(load: ClientLoad) -> LoadOutcome:
    pika = importlib.import_module("pika")
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=int(load.address)))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=_PREFETCH)
    count = 0

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal count
        count += 1
        if not count % (_PREFETCH // 4) or count >= load.messages:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if count >= load.messages:
            channel.stop_consuming()

    clock = Stopwatch()
    for queue in range(load.first, load.end):
        channel.basic_consume(f"{queue}", take)
    channel.start_consuming()
    outcome = clock.outcome(count)
    connection.close()
    return outcome


def lacks() -> str | None:
    """What keeps it from being measured."""
    if importlib.util.find_spec("pika") is None:
        return 'the RabbitMQ client is not installed: pip install "lsmq[peers]"'
    if _binary() is None:
        return "rabbitmq-server is not on PATH: apt-get install rabbitmq-server"
    return None


def _binary() -> str | None:
    # A package's own script may ask to be run by another user; what it runs does not.
    return next((found for name in _BINARIES if (found := shutil.which(name))), None)


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    """A node over fresh files, with a port mapper of its own."""
    port, mapper, distribution = free_port(), free_port(), free_port()
    directory.mkdir(parents=True)
    environment = {
        "HOME": str(directory),
        "ERL_EPMD_PORT": f"{mapper}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": f"{port}",
        "RABBITMQ_DIST_PORT": f"{distribution}",
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(directory / "config"),
    }
    (directory / "plugins").write_text("[].\n")
    binary = _binary()
    assert binary is not None
    try:
        log = directory / "server.log"
        with started([binary], log, lambda: listens(port), environment=environment) as pid:
            deadline = time.monotonic() + _TIMEOUT_S
            while not (directory / "pid").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            own = int((directory / "pid").read_text()) if (directory / "pid").exists() else pid
            yield Running(f"{port}", (own,), directory)
    finally:
        # The port mapper was started beside the node, and does not end with it.
        if mapping := shutil.which("epmd"):
            subprocess.run([mapping, "-kill"], env={**os.environ, **environment}, capture_output=True, timeout=30)


def _prepare(address: str, queues: int, topics: int) -> None:
    pika = importlib.import_module("pika")
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=int(address)))
    channel = connection.channel()
    for number in range(topics or queues):
        channel.queue_declare(f"{number}", durable=True, arguments={"x-queue-type": "quorum"})
    connection.close()


SYSTEM = System(
    "rabbitmq",
    __name__,
    "after fsync (quorum queues, publisher confirms)",
    lacks,
    running,
    _prepare,
    most_queues=1_000,
    stops="a process and a log of its own for each quorum queue: a review is advised above 5,000",
)
