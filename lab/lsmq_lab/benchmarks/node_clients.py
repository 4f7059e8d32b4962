"""The clients of the node benchmark: each a process that connects, waits for the start, and does its share."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lsmq import BatchReceipt, Client, Consumer, Producer, Receipt, Receipts
from lsmq_lab.benchmarks.client_processes import run_clients, start
from lsmq_lab.benchmarks.node_servers import REDIS

TOPIC = "bench"
GROUP = "bench"
POP_PIPELINE = 1_000


@dataclass(frozen=True, slots=True)
class Share:
    """What one client does: ``messages`` of ``message_bytes`` to or from ``queues``, in turn.

    ``in_flight``: how many may wait for their acknowledgement when writing. ``way``: by which method of the client.
    """

    server: str
    address: str
    writes: bool
    queues: tuple[int, ...]
    messages: int
    message_bytes: int
    in_flight: int
    way: str = ""
    topic: str = TOPIC


@dataclass(frozen=True, slots=True)
class ClientOutcome:
    """When a client began and ended, how many messages it read or had acknowledged, and its processor time."""

    began_ns: int
    ended_ns: int
    messages: int
    processor_ns: int = 0


def run_shares(shares: Sequence[Share]) -> list[ClientOutcome]:
    """Run every share in a process of its own, all from one moment on. Raises :class:`BenchFailed`."""
    return [ClientOutcome(**found) for found in run_clients(child, [asdict(share) for share in shares])]


def rate_of(outcomes: Sequence[ClientOutcome]) -> float:
    """Messages a second of all clients together, from the first that began to the last that ended."""
    spent_ns = max(each.ended_ns for each in outcomes) - min(each.began_ns for each in outcomes)
    return sum(each.messages for each in outcomes) * 1e9 / max(1, spent_ns)


def child() -> None:
    """The child's whole life."""
    fields = json.loads(sys.argv[1])
    share = Share(**fields | {"queues": tuple(fields["queues"])})
    if share.server == REDIS:
        outcome = _redis_write(share) if share.writes else _redis_read(share)
    else:
        outcome = asyncio.run(_LSMQ_WAYS.get(share.way, _lsmq_write if share.writes else _lsmq_read)(share))
    print(json.dumps(asdict(outcome)), flush=True)


def _bodies(share: Share) -> list[bytes]:
    random = os.urandom(share.message_bytes // 2 * 64).hex().encode()
    return [random[at : at + share.message_bytes] for at in range(0, 64 * (share.message_bytes // 2), 7)]


async def _lsmq_write(share: Share) -> ClientOutcome:
    bodies, queues = _bodies(share), share.queues
    waiting: deque[Receipt] = deque()
    async with Client(share.address) as client, Producer(client, share.topic) as producer:
        began_ns, processor_ns = start(), time.process_time_ns()
        for number in range(share.messages):
            if len(waiting) == share.in_flight:
                await waiting.popleft()
            body = bodies[number % len(bodies)]
            waiting.append(await producer.send(body, queue=queues[number % len(queues)]))
        await producer.flush()
        while waiting:
            await waiting.popleft()
        return ClientOutcome(began_ns, time.monotonic_ns(), share.messages, time.process_time_ns() - processor_ns)


async def _lsmq_read(share: Share) -> ClientOutcome:
    count = 0
    # The consumer is made after the start: it fetches ahead from its first moment.
    began_ns, processor_ns = start(), time.process_time_ns()
    async with (
        Client(share.address) as client,
        Consumer(client, share.topic, queues=share.queues, group=GROUP) as consumer,
    ):
        while count < share.messages:
            count += len(await consumer.poll(5_000))
            await consumer.commit()
        return ClientOutcome(began_ns, time.monotonic_ns(), count, time.process_time_ns() - processor_ns)


async def _lsmq_write_portions(share: Share) -> ClientOutcome:
    """``send_many`` or ``send_batch``: half of what may be in flight at a time, each to the next queue."""
    portion = max(1, share.in_flight // 2)
    bodies = (_bodies(share) * (portion // 64 + 1))[:portion]
    payload = b"".join(bodies)
    waiting: deque[Receipts | BatchReceipt] = deque()
    async with Client(share.address) as client, Producer(client, share.topic) as producer:
        began_ns, processor_ns = start(), time.process_time_ns()
        for first in range(0, share.messages, portion):
            if len(waiting) == 2:
                await waiting.popleft().wait()
            count, queue = min(portion, share.messages - first), share.queues[first // portion % len(share.queues)]
            if share.way == "send_many":
                waiting.append(await producer.send_many(bodies[:count], queue=queue))
            else:
                rows = memoryview(payload)[: count * share.message_bytes]
                waiting.append(await producer.send_batch(rows, lengths=share.message_bytes, queues=queue))
        while waiting:
            await waiting.popleft().wait()
        return ClientOutcome(began_ns, time.monotonic_ns(), share.messages, time.process_time_ns() - processor_ns)


async def _lsmq_read_batches(share: Share) -> ClientOutcome:
    count = 0
    began_ns, processor_ns = start(), time.process_time_ns()
    async with (
        Client(share.address) as client,
        Consumer(client, share.topic, queues=share.queues, group=f"{GROUP}-batches") as consumer,
    ):
        while count < share.messages:
            count += len(await consumer.poll_batch() or ())
            await consumer.commit()
        return ClientOutcome(began_ns, time.monotonic_ns(), count, time.process_time_ns() - processor_ns)


_LSMQ_WAYS = {
    "send_many": _lsmq_write_portions,
    "send_batch": _lsmq_write_portions,
    "poll_batch": _lsmq_read_batches,
}


def _redis_write(share: Share) -> ClientOutcome:
    client, bodies = _redis(share), _bodies(share)
    keys = [f"{TOPIC}-{queue}" for queue in share.queues]
    began_ns = start()
    for first in range(0, share.messages, share.in_flight):
        pipeline = client.pipeline(transaction=False)
        for number in range(first, min(first + share.in_flight, share.messages)):
            pipeline.lpush(keys[number % len(keys)], bodies[number % len(bodies)])
        pipeline.execute()
    return ClientOutcome(began_ns, time.monotonic_ns(), share.messages)


def _redis_read(share: Share) -> ClientOutcome:
    client = _redis(share)
    keys = [f"{TOPIC}-{queue}" for queue in share.queues]
    count = 0
    began_ns = start()
    for key in _turns(keys):
        pipeline = client.pipeline(transaction=False)
        for _ in range(POP_PIPELINE):
            pipeline.rpop(key)
        count += sum(body is not None for body in pipeline.execute())
        if count >= share.messages:
            break
    return ClientOutcome(began_ns, time.monotonic_ns(), count)


def _turns(keys: Sequence[str]) -> Iterator[str]:
    while True:
        yield from keys


def _redis(share: Share) -> Any:
    # Imported by name: an optional package.
    connect: Callable[..., Any] = importlib.import_module("redis").Redis
    client = connect(port=int(share.address))
    client.ping()
    return client
