"""LSMQ as a system of the suite: a node of its own, and three nodes with three replicas of everything."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from lsmq import Client, Consumer, Producer, Receipt
from lsmq_lab.local_cluster import LocalCluster, found_plan

from ...node_servers import LSMQ, Setup
from ...node_servers import running as node_running
from .system import COMMIT_S, LOOP, READ, TOPIC, WRITE, ClientLoad, LoadOutcome, Running, Stopwatch, System, loop_tasks

NODES = 3
_DEADLINE_MS = 120_000
_ANSWER_BYTES = 4 << 20


def write(load: ClientLoad) -> LoadOutcome:
    async def work() -> LoadOutcome:
        bodies, waiting = load.bodies(), deque[Receipt]()
        async with Client(load.address) as client, Producer(client, TOPIC) as producer:
            clock = Stopwatch()
            for number in range(load.messages):
                if len(waiting) == load.in_flight:
                    await waiting.popleft()
                body = bodies[number % len(bodies)]
                waiting.append(await producer.send(body, queue=(load.first + number) % load.queues))
            await producer.flush()
            while waiting:
                await waiting.popleft()
            return clock.outcome(load.messages)

    return asyncio.run(work())


def read(load: ClientLoad) -> LoadOutcome:
    return asyncio.run(_read(load, _poll))


def read_batches(load: ClientLoad) -> LoadOutcome:
    """As columns, without an object for each message."""
    return asyncio.run(_read(load, _poll_batch))


async def _poll(consumer: Consumer) -> int:
    return len(await consumer.poll(5_000))


async def _poll_batch(consumer: Consumer) -> int:
    batch = await consumer.poll_batch(5_000)
    return 0 if batch is None else len(batch)


async def _read(load: ClientLoad, poll: Callable[[Consumer], Awaitable[int]]) -> LoadOutcome:
    """In a group of the reader's own: the next one begins at the beginning again."""
    count, clock = 0, Stopwatch()
    async with (
        Client(load.address) as client,
        Consumer(
            client,
            TOPIC,
            queues=range(load.first, load.end),
            group=f"bench-{os.getpid()}",
            max_bytes=_ANSWER_BYTES,
        ) as consumer,
    ):
        committed = time.monotonic()
        while count < load.messages:
            count += await poll(consumer)
            if time.monotonic() - committed > COMMIT_S:
                await consumer.commit()
                committed = time.monotonic()
        await consumer.commit()
        return clock.outcome(count)


def loop(load: ClientLoad) -> LoadOutcome:
    async def work() -> LoadOutcome:
        async with Client(load.address) as client, AsyncExitStack() as stack:
            names = dict.fromkeys(load.topic_of(task) for task in range(load.in_flight))
            producers = {name: await stack.enter_async_context(Producer(client, name, linger_ms=0)) for name in names}
            sends = [producers[load.topic_of(task)].send_and_wait for task in range(load.in_flight)]
            queues = [load.queue_of(task) for task in range(load.in_flight)]
            return await loop_tasks(load, lambda task, body: sends[task](body, queue=queues[task]))

    return asyncio.run(work())


def _prepare(address: str, queues: int, topics: int) -> None:
    async def make() -> None:
        async with Client(address, deadline_ms=_DEADLINE_MS) as client:
            for name, count in [(f"{TOPIC}-{number}", 1) for number in range(topics)] or [(TOPIC, queues)]:
                await client.create_topic(name, queues=count)

    asyncio.run(make())


@contextmanager
def _one(directory: Path) -> Iterator[Running]:
    with node_running(Setup(LSMQ, "sync"), directory) as server:
        yield Running(server.address, (server.pid,), directory)


@contextmanager
def _three(directory: Path) -> Iterator[Running]:
    plan = found_plan(nodes=NODES, shards=NODES, replicas=NODES)
    cluster = LocalCluster.found(directory, plan, detached=False)
    try:
        status = cluster.up()
        pids = tuple(node.pid for node in status.nodes if node.pid is not None)
        yield Running(",".join(node.url for node in status.nodes), pids, directory)
    finally:
        cluster.down()


def _nothing() -> None:
    return None


_KINDS = (WRITE, READ, LOOP, "read_batches")
SYSTEM = System("lsmq", __name__, "after fdatasync", _nothing, _one, _prepare, kinds=_KINDS)
THREE_NODES = System("lsmq3", __name__, "after fdatasync on all three replicas in sync", _nothing, _three, _prepare)
