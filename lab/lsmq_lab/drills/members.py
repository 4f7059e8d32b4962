"""Members of a consumer group that write down what they handle; in this process, or in one of their own to be killed.

A record is a file of lines: ``A <time> <queue>`` when a queue was assigned, ``H <queue> <offset> <key> <sequence>
<digest>`` when a message was handled, before it may be committed. Each line is one write: what was handled stands there
even if the process is killed a moment later.

While a file beside the record says so, each message takes long: ``crawl SECONDS`` leaves the event loop free meanwhile,
``block SECONDS`` does not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lsmq import Client, Consumer
from lsmq.groups import Ranges
from lsmq.record_batch import Message

from .columns import DrillColumns, fields_of

_DEADLINE_MS = 120_000
_WAIT_MS = 1_000
_CONCURRENCY = 3


def slowness(record: Path) -> Path:
    """The file that makes the member of a record slow."""
    return record.with_suffix(".slow")


class Recorder:
    """Writes a record."""

    def __init__(self, path: Path) -> None:
        self._slowness = slowness(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def assigned(self, queues: Mapping[str, Ranges]) -> None:
        now = time.time()
        lines = [f"A {now} {queue}\n" for ranges in queues.values() for part in ranges for queue in part]
        os.write(self._file, "".join(lines).encode())

    async def handled(self, message: Message) -> None:
        await self._take_time()
        line = ("H", message.queue, message.offset, *fields_of(message.body))
        os.write(self._file, (" ".join(map(str, line)) + "\n").encode())

    async def _take_time(self) -> None:
        try:
            how, seconds = self._slowness.read_text().split()
        except FileNotFoundError:
            how, seconds = "crawl", "0"
        if how == "block":
            time.sleep(float(seconds))  # noqa: ASYNC251 - that is what is wrong with it
        else:
            await asyncio.sleep(float(seconds))

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True)
class Tenure:
    """What one member handled of one queue between being given it and giving it up."""

    member: int
    queue: int
    began_at: float
    handled: DrillColumns = field(default_factory=DrillColumns)

    @property
    def offsets(self) -> list[int]:
        """Of what was handled, in order."""
        return self.handled.offsets


def read_record(member: int, path: Path) -> list[Tenure]:
    """The tenures of a record, in order. A line that was cut off is passed over: that message was not handled."""
    tenures: list[Tenure] = []
    current: dict[int, Tenure] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        match line.decode().split(" "):
            case ["A", at, number]:
                queue = int(number)
                current[queue] = Tenure(member, queue, float(at))
                tenures.append(current[queue])
            case ["H", number, offset, key, sequence, digest]:
                queue = int(number)
                current[queue].handled.add_fields(queue, int(offset), key, int(sequence), int(digest))
    return tenures


async def take_part(
    client: Client,
    topic: str,
    group: str,
    record: Path,
    stopping: asyncio.Event,
    *,
    session_ms: int,
    max_handler_ms: int | None = None,
) -> None:
    """Be a member, and handle messages, until ``stopping``; then leave."""
    recorder = Recorder(record)
    try:
        consumer = Consumer(
            client,
            topic,
            group=group,
            session_ms=session_ms,
            max_handler_ms=max_handler_ms,
            wait_ms=_WAIT_MS,
            on_assigned=recorder.assigned,
        )
        async with consumer, asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(recorder.handled, concurrency=_CONCURRENCY))
            await stopping.wait()
            await consumer.close()
    finally:
        recorder.close()


async def _main(urls: Sequence[str], record: str, **options: Any) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with Client(list(urls), deadline_ms=_DEADLINE_MS) as client:
        await take_part(client, record=Path(record), stopping=stopping, **options)


def main() -> None:
    """A member of its own process, until SIGTERM. Its options are the first argument."""
    asyncio.run(_main(**json.loads(sys.argv[1])))
