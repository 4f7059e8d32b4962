"""The processes that send and receive. Each keeps what happened in columns and leaves them in a file.

Times are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq import Client, Consumer, Producer
from lsmq.errors import LsmqError

from .flights import Flights, digest_of, read_flights, sequence_of

CHUNK = 250  # sends between two turns of the event loop
POLL_MESSAGES = 5_000
POLL_TIMEOUT_MS = 200
# Longer than any restart: a send that is not answered by then is given up and reported as unknown.
SEND_DEADLINE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Signals:
    """How the run talks to its workers: counters they raise (one each), and events they wait for."""

    counters: Any  # multiprocessing.Array("q"), written by one worker at each index
    ready: list[Event]  # set by the worker of the same index
    go: Event
    live: Event
    stop: Event


@dataclass(frozen=True, slots=True)
class SendTask:
    """Rows ``[0, live_from)`` as fast as they go, then, on ``live``, the rest at ``live_rate`` a second."""

    url: str
    topic: str
    table: Path
    limit: int | None
    live_from: int
    live_rate: int
    output: Path


@dataclass(frozen=True, slots=True)
class ReceiveTask:
    """Follow queues ``[first, end)`` from their beginning until told to stop."""

    url: str
    topic: str
    first: int
    end: int
    output: Path


@dataclass(frozen=True, slots=True)
class Sends:
    """What the sender saw, a row a message. ``queue`` is -1 where no answer came.

    ``sent_ns``: when the message was handed to the producer; in the paced part, when it was *due*, so that a
    sender held up by a slow answer counts as waiting.
    """

    queue: NDArray[np.int64]
    offset: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    acknowledged_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Receipts:
    """What one consumer was handed, in order. ``received_ns``: when the call that brought it returned."""

    queue: NDArray[np.int64]
    offset: NDArray[np.int64]
    key: list[str | None]
    sequence: NDArray[np.int64]
    digest: NDArray[np.uint64]
    received_ns: NDArray[np.int64]


def load_sends(path: Path) -> Sends:
    """Read what :func:`send` left."""
    with np.load(path) as columns:
        return Sends(**{name: columns[name] for name in Sends.__slots__})


def load_receipts(path: Path) -> Receipts:
    """Read what :func:`receive` left."""
    with np.load(path) as columns:
        fields = {name: columns[name] for name in Receipts.__slots__ if name != "key"}
        return Receipts(key=[key or None for key in columns["key"].tolist()], **fields)


def send(task: SendTask, signals: Signals, index: int) -> None:
    """Body of the sending process."""
    flights = read_flights(task.table, task.limit)
    asyncio.run(_Sender(flights, lambda count: _set(signals.counters, index, count)).run(task, signals, index))


def receive(task: ReceiveTask, signals: Signals, index: int) -> None:
    """Body of a receiving process."""
    asyncio.run(_receive(task, signals, index))


class _Sender:
    """Sends rows and collects their answers, in two tasks, so that neither waits for the other."""

    def __init__(self, flights: Flights, progress: Callable[[int], None]) -> None:
        self._flights = flights
        self._progress = progress
        count = len(flights)
        self._queue = [-1] * count
        self._offset = [-1] * count
        self._sent_ns = [0] * count
        self._acknowledged_ns = [0] * count
        self._answered = 0
        self._waiting: asyncio.Queue[tuple[int, Sequence[Any]] | None] = asyncio.Queue()

    async def run(self, task: SendTask, signals: Signals, index: int) -> None:
        async with (
            Client(task.url) as client,
            Producer(client, task.topic, deadline_ms=SEND_DEADLINE_MS) as producer,
        ):
            signals.ready[index].set()
            await asyncio.to_thread(signals.go.wait)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._collect())
                await self._send_at_once(producer, 0, task.live_from)
                await self._flush(producer)
                if task.live_from < len(self._flights):
                    await asyncio.to_thread(signals.live.wait)
                    await self._send_paced(producer, task.live_from, task.live_rate)
                    await self._flush(producer)
                self._waiting.put_nowait(None)
        np.savez(
            task.output,
            queue=np.array(self._queue, np.int64),
            offset=np.array(self._offset, np.int64),
            sent_ns=np.array(self._sent_ns, np.int64),
            acknowledged_ns=np.array(self._acknowledged_ns, np.int64),
        )

    async def _send_at_once(self, producer: Producer, first: int, end: int) -> None:
        keys, tags, bodies = self._flights.keys, self._flights.tags, self._flights.bodies
        clock, sent_ns = time.monotonic_ns, self._sent_ns
        for start in range(first, end, CHUNK):
            futures = []
            for row in range(start, min(start + CHUNK, end)):
                sent_ns[row] = clock()
                futures.append(await producer.send(bodies[row], key=keys[row], tag=tags[row]))
            self._waiting.put_nowait((start, futures))
            await asyncio.sleep(0)

    async def _send_paced(self, producer: Producer, first: int, rate: int) -> None:
        flights = self._flights
        began = time.monotonic_ns()
        for row in range(first, len(flights)):
            due_ns = began + (row - first) * 1_000_000_000 // rate
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            self._sent_ns[row] = due_ns
            future = await producer.send(flights.bodies[row], key=flights.keys[row], tag=flights.tags[row])
            self._waiting.put_nowait((row, (future,)))

    async def _flush(self, producer: Producer) -> None:
        """A send that failed is the collector's to note, and must not end the process."""
        with suppress(LsmqError):
            await producer.flush()

    async def _collect(self) -> None:
        while (chunk := await self._waiting.get()) is not None:
            start, futures = chunk
            for row, future in enumerate(futures, start):
                try:
                    sent = await future
                except LsmqError:
                    continue
                self._queue[row] = sent.queue
                self._offset[row] = sent.offset
                self._acknowledged_ns[row] = time.monotonic_ns()
                self._answered += 1
            self._progress(self._answered)


async def _receive(task: ReceiveTask, signals: Signals, index: int) -> None:
    queue: list[int] = []
    offset: list[int] = []
    key: list[str | None] = []
    body: list[bytes] = []
    polls: list[tuple[int, int]] = []
    signals.ready[index].set()
    await asyncio.to_thread(signals.go.wait)
    # Made only now: a consumer fetches ahead from its first moment, and what it fetched before the clock
    # started would make it look faster than it is.
    queues = range(task.first, task.end)
    async with (
        Client(task.url) as client,
        Consumer(client, task.topic, queues=queues, start="earliest") as consumer,
    ):
        while not signals.stop.is_set():
            messages = await consumer.poll(POLL_MESSAGES, timeout_ms=POLL_TIMEOUT_MS)
            if not messages:
                continue
            polls.append((time.monotonic_ns(), len(messages)))
            queue += [message.queue for message in messages]
            offset += [message.offset for message in messages]
            key += [None if message.key is None else str(message.key) for message in messages]
            body += [message.body for message in messages]
            _set(signals.counters, index, len(body))
    np.savez(
        task.output,
        queue=np.array(queue, np.int64),
        offset=np.array(offset, np.int64),
        key=np.array([name or "" for name in key], np.str_),
        sequence=np.array([sequence_of(each) for each in body], np.int64),
        digest=np.array([digest_of(each) for each in body], np.uint64),
        received_ns=np.repeat(*(np.array([poll[i] for poll in polls], np.int64) for i in (0, 1))),
    )


def _set(counters: Any, index: int, count: int) -> None:
    counters[index] = count
