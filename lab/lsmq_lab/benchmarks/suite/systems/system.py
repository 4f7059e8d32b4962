"""A system over the network: how it is started, what its clients do, and what that took."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...client_processes import run_clients, start
from ...environment import cpu_seconds, disk_bytes, peak_resident_bytes, resident_bytes
from ...report import percentile_ms
from ...server_processes import started

#: Readers that have to commit how far they are do so this often, and at their end.
COMMIT_S = 1.0
TOPIC = "bench"
WRITE, READ, LOOP = "write", "read", "loop"
_WARM_UP = 50


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What one client process does.

    ``write``: ``messages`` to ``queues`` queues in turn, of which ``in_flight`` may wait for their acknowledgement.
    ``read``: so many of the queues ``[first, end)``. ``loop``: ``in_flight`` tasks, each of which sends a message to
    its queue, waits for the acknowledgement, and sends the next; with ``topics`` each has a topic of one queue.
    """

    module: str
    address: str
    kind: str
    messages: int
    message_bytes: int
    queues: int = 1
    in_flight: int = 1
    first: int = 0
    end: int = 0
    topics: int = 0

    def bodies(self) -> list[bytes]:
        """Some that differ, and do not compress away."""
        random = os.urandom(self.message_bytes * 64)
        return [random[at : at + self.message_bytes] for at in range(0, len(random), self.message_bytes)]

    def topic_of(self, task: int) -> str:
        return f"{TOPIC}-{task % self.topics}" if self.topics else TOPIC

    def queue_of(self, task: int) -> int:
        return 0 if self.topics else task % self.queues


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """When a client began and ended, what it had acknowledged or read, its processor time, and of a loop how long an
    acknowledgement took."""

    began_ns: int
    ended_ns: int
    messages: int
    processor_ns: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """A system that runs: what its clients are given, its processes, and where its files are."""

    address: str
    pids: tuple[int, ...]
    directory: Path

    def processor_s(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def resident_bytes(self) -> int:
        return sum(map(resident_bytes, self.pids))

    def peak_resident_bytes(self) -> int:
        return sum(map(peak_resident_bytes, self.pids))

    def disk_bytes(self) -> int:
        return disk_bytes(self.directory)

    def written_bytes(self) -> int:
        """What its processes have had written to the disk so far."""
        return sum(written_bytes(pid) for pid in self.pids)


@dataclass(frozen=True, slots=True)
class System:
    """``lacks`` says what is missing here and how to get it, or None. ``prepare`` makes queues: (address, queues,
    topics). The functions of its clients are ``write``, ``read`` and ``loop`` of ``module``, and take a
    :class:`ClientLoad`.
    """

    name: str
    module: str
    #: When it acknowledges.
    promise: str
    lacks: Callable[[], str | None]
    running: Callable[[Path], AbstractContextManager[Running]]
    prepare: Callable[[str, int, int], None]
    #: More queues are not tried, and why.
    most_queues: int = 1 << 40
    stops: str = ""
    kinds: tuple[str, ...] = (WRITE, READ, LOOP)


def written_bytes(pid: int | str) -> int:
    """Bytes that a process has had written to the disk."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "write_bytes":
            return int(value)
    return 0


def measure(server: Running, loads: Sequence[ClientLoad]) -> dict[str, float]:
    """Run the loads at the same time; the figures of all of them together."""
    used_s, written = server.processor_s(), server.written_bytes()
    outcomes = [LoadOutcome(**found) for found in run_clients(child, [asdict(load) for load in loads])]
    count = sum(each.messages for each in outcomes)
    spent_s = (max(each.ended_ns for each in outcomes) - min(each.began_ns for each in outcomes)) / 1e9
    clients_us = sum(each.processor_ns for each in outcomes) / 1e3
    found = {
        "per_s": count / max(spent_s, 1e-9),
        "processor_us": ((server.processor_s() - used_s) * 1e6 + clients_us) / count,
        "client_us": clients_us / count,
        "written_bytes": (server.written_bytes() - written) / count,
        "is_remote": 1.0,
    }
    if loads[0].kind == LOOP:
        found["p50_ms"] = outcomes[0].p50_ms
        if outcomes[0].p99_ms:  # A load tool of others may not say.
            found["p99_ms"] = outcomes[0].p99_ms
        found["waits_for_each"] = float(loads[0].in_flight == 1)
    return found


def child() -> None:
    """A client's whole life."""
    load = ClientLoad(**json.loads(sys.argv[1]))
    outcome: LoadOutcome = getattr(importlib.import_module(load.module), load.kind)(load)
    print(json.dumps(asdict(outcome)), flush=True)


class Stopwatch:
    """In a client: from the start to the end."""

    def __init__(self) -> None:
        self._began_ns = start()
        self._processor_ns = time.process_time_ns()

    def outcome(self, messages: int, seconds: Sequence[float] = ()) -> LoadOutcome:
        """``seconds``: how long each acknowledgement took, of a loop."""
        ended_ns, processor_ns = time.monotonic_ns(), time.process_time_ns() - self._processor_ns
        found = (percentile_ms(seconds, 0.5), percentile_ms(seconds, 0.99)) if seconds else ()
        return LoadOutcome(self._began_ns, ended_ns, messages, processor_ns, *found)


async def loop_tasks(load: ClientLoad, send: Callable[[int, bytes], Awaitable[object]]) -> LoadOutcome:
    """The loop of a client with asyncio: ``send`` takes the number of its task, and returns at the acknowledgement."""
    bodies, seconds = load.bodies(), list[float]()
    for task in range(min(load.in_flight, _WARM_UP)):
        await send(task, bodies[0])
    clock = Stopwatch()

    async def one(task: int) -> None:
        for number in range(task, load.messages, load.in_flight):
            began = time.perf_counter()
            await send(task, bodies[number % len(bodies)])
            seconds.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as tasks:
        for task in range(load.in_flight):
            tasks.create_task(one(task))
    return clock.outcome(load.messages, seconds)


def split(total: int, parts: int) -> list[int]:
    """A total in parts that differ by one at most."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def readers(load: ClientLoad, count: int) -> list[ClientLoad]:
    """As many loads that read what was written evenly into all queues, each its own queues; with one queue, one."""
    count = min(count, load.queues)
    found = []
    for part in range(count):
        first, end = load.queues * part // count, load.queues * (part + 1) // count
        messages = load.messages * (end - first) // load.queues
        # The last round of writing may not have come to all queues.
        messages -= 0 if load.queues == 1 else min(end - first, messages // 2)
        found.append(
            ClientLoad(load.module, load.address, READ, messages, load.message_bytes, load.queues, 1, first, end)
        )
    return found


@contextmanager
def server_process(
    command: Sequence[str], directory: Path, address: str, answers: Callable[[], bool], **options: Any
) -> Iterator[Running]:
    """A server of one process over ``directory``; see :func:`..processes.started`."""
    with started(command, directory.with_suffix(".log"), answers, **options) as pid:
        yield Running(address, (pid,), directory)
