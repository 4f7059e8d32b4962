"""A node full of sleepers: queues, held polls and groups that do nothing, and what they take."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lsmq import Client

from ...environment import cpu_seconds, resident_bytes
from ...node_servers import LSMQ, Setup, running
from ...report import BenchFailed, Option
from ..row import Case, FigureColumn, FigureTarget, Plot, Row, Values, figure

_TOPIC, _GROUP = "sleepers", "sleeper"
#: Connections from one address of the loopback network: it has about 28,000 ports to call from.
_AN_ADDRESS = 20_000
_FILES_BESIDE = 1_000
_AT_ONCE = 200
_COMMITS_AT_ONCE = 100
_HELD_MS = 3_600_000
_MOST_PERCENT = 1.0
_TIMEOUT_S = 300.0
_ALL = "everything asleep"


def run(place: Path, queues: int, polls: int, groups: int, settle: int, seconds: int) -> dict[str, float]:
    """Make them, let them settle, and look at the node's processor time and memory."""
    settings = {
        "LSMQ_MAX_CONNECTIONS": str(4 * polls + 1_000),
        "LSMQ_MAX_WAITERS": str(polls + 1_000),
        "LSMQ_MAX_WAIT_MS": str(_HELD_MS),
        "LSMQ_ADDRESS_SHARE_PERCENT": "100",
    }
    with (
        _files(2 * polls + _FILES_BESIDE),
        running(Setup(LSMQ, "sync", settings=tuple(settings.items())), place / "node") as node,
    ):
        return asyncio.run(_sleep(node.address, node.pid, queues, polls, groups, settle, seconds))


async def _sleep(
    address: str, pid: int, queues: int, polls: int, groups: int, settle: int, seconds: int
) -> dict[str, float]:
    before_mib = resident_bytes(pid) / 2**20
    async with Client(address, deadline_ms=int(_TIMEOUT_S * 1000)) as client:
        await client.create_topic(_TOPIC, queues=queues)
        for first in range(0, groups, _COMMITS_AT_ONCE):
            async with asyncio.TaskGroup() as tasks:
                for number in range(first, min(first + _COMMITS_AT_ONCE, groups)):
                    tasks.create_task(client.commit_offsets(f"{_GROUP}-{number}", _TOPIC, {number % queues: 0}))
        writers = await _hold(address, polls, queues)
        deadline = time.monotonic() + _TIMEOUT_S
        while (held := (await client.status())["waiters"]) < polls:
            if time.monotonic() > deadline:
                raise BenchFailed(f"the node holds {held:,} of {polls:,} polls")
            await asyncio.sleep(0.2)
    await asyncio.sleep(settle)
    used_s, began = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    percent = 100 * (cpu_seconds(pid) - used_s) / (time.monotonic() - began)
    after_mib = resident_bytes(pid) / 2**20
    for writer in writers:
        writer.close()
    return {"processor_percent": percent, "memory_mib": after_mib, "grown_mib": after_mib - before_mib}


async def _hold(address: str, polls: int, queues: int) -> list[asyncio.StreamWriter]:
    """As many connections, each with a long poll of one queue that stays empty."""
    port = int(address.rpartition(":")[2])
    writers: list[asyncio.StreamWriter] = []

    async def one(number: int) -> None:
        local = f"127.0.{1 + number // _AN_ADDRESS}.1"
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(local, 0))
        path = f"/v1/topics/{_TOPIC}/queues/{number % queues}/messages?offset=0&wait_ms={_HELD_MS}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.removeprefix('http://')}\r\n\r\n".encode())
        writers.append(writer)

    for first in range(0, polls, _AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            for number in range(first, min(first + _AT_ONCE, polls)):
                tasks.create_task(one(number))
    return writers


@contextmanager
def _files(count: int) -> Iterator[None]:
    """This process and what it starts may have so many files open. Raises :class:`BenchFailed` where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count <= soft:
        yield
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(count, hard)))
    except (ValueError, OSError) as error:
        raise BenchFailed(
            f"the polls need {count:,} open files, and {hard:,} are allowed: raise ulimit -n, or hold fewer "
            f"(--sizes polls={max(1, (hard - _FILES_BESIDE) // 2)})"
        ) from error
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(count, hard)))


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    settle, seconds = values["settle"], values["seconds"]
    sizes = {
        "nothing": (1, 1, 1),
        "queues": (values["queues"], 1, 1),
        "queues, groups": (values["queues"], 1, values["groups"]),
        _ALL: (values["queues"], values["polls"], values["groups"]),
    }
    return [
        Case(name, LSMQ, partial(run, queues=queues, polls=polls, groups=groups, settle=settle, seconds=seconds))
        for name, (queues, polls, groups) in sizes.items()
    ]


def _targets(values: Values) -> list[FigureTarget]:
    asleep = figure(_ALL, "processor_percent")
    return [FigureTarget("processor of an idle node", asleep, _MOST_PERCENT, "%", at_most=True)]


ROW = Row(
    name="sleepers",
    title="a node full of sleepers",
    work="Queues of one topic, groups with a committed offset, and connections that each hold a long poll of an empty "
    "queue. Then nothing is done, and the node's processor time and memory are looked at.",
    options=(
        Option("queues", 1_000_000, "Queues.", quick=1_000),
        Option("polls", 100_000, "Held polls, each on a connection of its own.", quick=50),
        Option("groups", 10_000, "Groups.", quick=20),
        Option("settle", 30, "Seconds between what was made and the measurement: lags are counted once.", quick=1),
        Option("seconds", 10, "Length of the measurement.", quick=1),
    ),
    cases=_cases,
    columns=(
        FigureColumn("processor_percent", "processor", "%"),
        FigureColumn("memory_mib", "memory", "MiB"),
        FigureColumn("grown_mib", "beyond an empty node", "MiB"),
    ),
    targets=_targets,
    plots=(Plot("grown_mib", "memory beyond that of an empty node", "MiB"),),
)
