"""The clients of the node benchmark: each a process that connects, waits for the start, and does its share.

A client prints ``ready``, reads a line, works, and prints when it began and ended, in nanoseconds of the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import IO, Any

from lsmq import Client, Consumer, Producer, Receipt
from lsmq_lab.benchmarks.node_servers import REDIS
from lsmq_lab.benchmarks.report import BenchFailed

TOPIC = "bench"
GROUP = "bench"
POP_PIPELINE = 1_000


@dataclass(frozen=True, slots=True)
class Share:
    """What one client does: ``messages`` of ``message_bytes`` to or from ``queues``, in turn.

    ``in_flight``: how many may wait for their acknowledgement when writing.
    """

    server: str
    address: str
    writes: bool
    queues: tuple[int, ...]
    messages: int
    message_bytes: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """When a client began and ended, and how many messages it read or had acknowledged."""

    began_ns: int
    ended_ns: int
    messages: int


def run_shares(shares: Sequence[Share]) -> list[Outcome]:
    """Run every share in a process of its own, all from one moment on. Raises :class:`BenchFailed`."""
    with ExitStack() as stack:
        children: list[subprocess.Popen[str]] = []
        for share in shares:
            child = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import child; child()", json.dumps(asdict(share))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(_reap, child)
            children.append(child)
        for child in children:
            if _pipe(child.stdout).readline() != "ready\n":
                raise BenchFailed("a client of the benchmark failed before it began; its error stands above")
        for child in children:
            _pipe(child.stdin).write("go\n")
            _pipe(child.stdin).flush()
        outcomes = []
        for child in children:
            line = _pipe(child.stdout).readline()
            if not line:
                raise BenchFailed("a client of the benchmark failed; its error stands above")
            outcomes.append(Outcome(**json.loads(line)))
        return outcomes


def rate_of(outcomes: Sequence[Outcome]) -> float:
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
        outcome = asyncio.run(_lsmq_write(share) if share.writes else _lsmq_read(share))
    print(json.dumps(asdict(outcome)), flush=True)


def _start() -> int:
    print("ready", flush=True)
    sys.stdin.readline()
    return time.monotonic_ns()


def _bodies(share: Share) -> list[bytes]:
    random = os.urandom(share.message_bytes // 2 * 64).hex().encode()
    return [random[at : at + share.message_bytes] for at in range(0, 64 * (share.message_bytes // 2), 7)]


async def _lsmq_write(share: Share) -> Outcome:
    bodies, queues = _bodies(share), share.queues
    waiting: deque[Receipt] = deque()
    async with Client(share.address) as client, Producer(client, TOPIC) as producer:
        began_ns = _start()
        for number in range(share.messages):
            if len(waiting) == share.in_flight:
                await waiting.popleft()
            body = bodies[number % len(bodies)]
            waiting.append(await producer.send(body, queue=queues[number % len(queues)]))
        await producer.flush()
        while waiting:
            await waiting.popleft()
        return Outcome(began_ns, time.monotonic_ns(), share.messages)


async def _lsmq_read(share: Share) -> Outcome:
    count = 0
    # The consumer is made after the start: it fetches ahead from its first moment.
    began_ns = _start()
    async with (
        Client(share.address) as client,
        Consumer(client, TOPIC, queues=share.queues, group=GROUP) as consumer,
    ):
        while count < share.messages:
            count += len(await consumer.poll(5_000))
            await consumer.commit()
        return Outcome(began_ns, time.monotonic_ns(), count)


def _redis_write(share: Share) -> Outcome:
    client, bodies = _redis(share), _bodies(share)
    keys = [f"{TOPIC}-{queue}" for queue in share.queues]
    began_ns = _start()
    for first in range(0, share.messages, share.in_flight):
        pipeline = client.pipeline(transaction=False)
        for number in range(first, min(first + share.in_flight, share.messages)):
            pipeline.lpush(keys[number % len(keys)], bodies[number % len(bodies)])
        pipeline.execute()
    return Outcome(began_ns, time.monotonic_ns(), share.messages)


def _redis_read(share: Share) -> Outcome:
    client = _redis(share)
    keys = [f"{TOPIC}-{queue}" for queue in share.queues]
    count = 0
    began_ns = _start()
    for key in _turns(keys):
        pipeline = client.pipeline(transaction=False)
        for _ in range(POP_PIPELINE):
            pipeline.rpop(key)
        count += sum(body is not None for body in pipeline.execute())
        if count >= share.messages:
            break
    return Outcome(began_ns, time.monotonic_ns(), count)


def _turns(keys: Sequence[str]) -> Iterator[str]:
    while True:
        yield from keys


def _redis(share: Share) -> Any:
    # Imported by name: an optional package.
    connect: Callable[..., Any] = importlib.import_module("redis").Redis
    client = connect(port=int(share.address))
    client.ping()
    return client


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _reap(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()
