"""Redis: a list a queue, ``appendfsync always``, RPUSH and LPOP by pipelines of redis-py."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...node_servers import REDIS, Setup, missing
from ...node_servers import running as redis_running
from .system import ClientLoad, LoadOutcome, Running, Stopwatch, System, loop_tasks

_POPS = 1_000


def write(load: ClientLoad) -> LoadOutcome:
    client, bodies = _client(load), load.bodies()
    clock = Stopwatch()
    for first in range(0, load.messages, load.in_flight):
        pipeline = client.pipeline(transaction=False)
        for number in range(first, min(first + load.in_flight, load.messages)):
            pipeline.rpush(f"{(load.first + number) % load.queues}", bodies[number % len(bodies)])
        pipeline.execute()
    return clock.outcome(load.messages)


def read(load: ClientLoad) -> LoadOutcome:
    client, count = _client(load), 0
    queues = load.end - load.first
    each = max(1, load.messages // queues)
    at = 0
    clock = Stopwatch()
    while count < load.messages:
        pipeline = client.pipeline(transaction=False)
        for _ in range(max(1, _POPS // each)):
            pipeline.lpop(f"{load.first + at % queues}", min(each, _POPS))
            at += 1
        count += sum(len(found) for found in pipeline.execute() if found)
    return clock.outcome(count)


def loop(load: ClientLoad) -> LoadOutcome:
    async def work() -> LoadOutcome:
        redis = importlib.import_module("redis.asyncio")
        clients = [redis.Redis(port=int(load.address), single_connection_client=True) for _ in range(load.in_flight)]
        for client in clients:
            await client.initialize()
        names = [f"{load.topic_of(task)}-{load.queue_of(task)}" for task in range(load.in_flight)]
        try:
            return await loop_tasks(load, lambda task, body: clients[task].rpush(names[task], body))
        finally:
            for client in clients:
                await client.aclose()

    return asyncio.run(work())


def _client(load: ClientLoad) -> Any:
    client = importlib.import_module("redis").Redis(port=int(load.address))
    client.ping()
    return client


def _lacks() -> str | None:
    remedies = missing()
    return "; ".join(remedies) or None


@contextmanager
def _running(directory: Path) -> Iterator[Running]:
    with redis_running(Setup(REDIS, "always"), directory) as server:
        yield Running(server.address, (server.pid,), directory)


def _prepare(address: str, queues: int, topics: int) -> None:
    """A list is there with its first message."""


SYSTEM = System("redis", __name__, "after fdatasync (appendfsync always)", _lacks, _running, _prepare)
