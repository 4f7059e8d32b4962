"""Consumers of a work queue in processes of their own, to be killed at any moment, that write down what they do.

A record is a file of lines, each one write, so that it is whole though the process is killed a moment later. Times are
of the monotonic clock, which all processes of a machine share.

    B <time> <queue> <offset> <until> <key> <sequence> <digest>     a delivery has begun; hidden until then, at least
    H <time> <queue> <offset>                                       handled, about to be acknowledged
    A <time> <queue> <offset>                                       the acknowledgement was answered
    F <time> <queue> <offset>                                       failed, about to be given back
    N <time> <queue> <offset> <from> <until>                        given back, to rest between these
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lsmq import Client, Task, WorkQueue
from lsmq.errors import ReceiptExpired

from .columns import fields_of

VISIBILITY_MS = 4_000
#: Longer than messages are hidden while they are worked on: that must not make them come twice.
REST_MS = 4_500
MAX_DELIVERIES = 6
RETRY_FIRST_MS = 100

_DEADLINE_MS = 120_000
_WAIT_MS = 1_000
_CONCURRENCY = 16
_HANDLE_S = 0.01
_POISON_EVERY = 211
_REST_EVERY = 97


class Poison(Exception):
    """Nobody can handle this message."""


def is_poison(sequence: int) -> bool:
    return sequence % _POISON_EVERY == 0


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A line of a record. ``until`` is 0, and ``key``, ``sequence``, ``digest`` empty, where the line has none."""

    at: float
    kind: str
    worker: str
    queue: int
    offset: int
    since: float = 0.0
    until: float = 0.0
    key: str = ""
    sequence: int = -1
    digest: int = 0


def read_events(worker: str, path: Path) -> list[WorkerEvent]:
    """The lines of a record. One that was cut off is passed over."""
    events: list[WorkerEvent] = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        kind, at, queue, offset, *more = line.decode().split(" ")
        place = (float(at), kind, worker, int(queue), int(offset))
        match kind, more:
            case "B", [until, key, sequence, digest]:
                events.append(WorkerEvent(*place, 0.0, float(until), key, int(sequence), int(digest)))
            case "N", [since, until]:
                events.append(WorkerEvent(*place, float(since), float(until)))
            case _:
                events.append(WorkerEvent(*place))
    return events


class _Worker:
    def __init__(self, record: Path) -> None:
        self._file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._rng = random.Random()

    def close(self) -> None:
        os.close(self._file)

    def _write(self, kind: str, task: Task, *more: object) -> None:
        fields = (kind, time.monotonic(), task.message.queue, task.message.offset, *more)
        os.write(self._file, (" ".join(map(str, fields)) + "\n").encode())

    async def handle(self, task: Task) -> None:
        key, sequence, digest = fields_of(task.message.body)
        self._write("B", task, time.monotonic() + task.remaining_ms / 1000, key, sequence, digest)
        await asyncio.sleep(self._rng.uniform(0, _HANDLE_S))
        if is_poison(sequence):
            self._write("F", task)
            raise Poison
        if sequence % _REST_EVERY == 0 and task.deliveries == 1:
            await self._rest(task)
            return
        self._write("H", task)
        try:
            await task.ack()
        except ReceiptExpired:
            raise
        except Exception:
            self._write("F", task)  # It will be given back.
            raise
        self._write("A", task)

    async def _rest(self, task: Task) -> None:
        self._write("F", task)
        asked_at = time.monotonic()
        await task.nack(delay_ms=REST_MS)
        self._write("N", task, time.monotonic(), asked_at + REST_MS / 1000)


async def _main(urls: Sequence[str], topic: str, group: str, record: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    worker = _Worker(Path(record))
    async with (
        Client(list(urls), deadline_ms=_DEADLINE_MS) as client,
        WorkQueue(client, topic, group, wait_ms=_WAIT_MS) as work,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(work.run(worker.handle, concurrency=_CONCURRENCY))
        await stopping.wait()
        await work.close()
    worker.close()


def main() -> None:
    """A consumer of its own process, until SIGTERM. Its options are the first argument."""
    logging.getLogger("lsmq").setLevel(logging.ERROR)  # Handlers that fail are what this is about.
    asyncio.run(_main(**json.loads(sys.argv[1])))
