"""Work queues: what order by key, fair turns and priorities cost and give, beside a work queue without any of them.

The same messages of many keys are taken and acknowledged under each way to order them. Then, for each, how long a few
messages wait that are sent behind a backlog: of another tenant, or of a higher priority.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsmq import Client, Producer, Task, WorkQueue

from .environment import cpu_seconds
from .isolate import run_case
from .message_case import Measured, MessageCase
from .node_servers import LSMQ, Setup, running
from .report import Option, TellProgress, TextTable

_QUEUES = 16
_LATE = 100
_IDLE_MS = 2_000
#: By name: how the work queue is configured, and what the late messages have that the backlog has not.
_WAYS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "as they come": ({}, {}),
    "a queue each": ({}, {"queue": _QUEUES - 1}),
    "order by key": ({"order": "key"}, {}),
    "fair by tag": ({"fair_by": "tag"}, {"tag": "late"}),
    "by priority": ({"order": "priority"}, {"priority": 9}),
}


def run(values: Mapping[str, Any], directory: Path, progress: TellProgress) -> Measured:
    """Each way on a node of its own."""
    figures: dict[str, dict[str, float]] = {}
    for name in _WAYS:
        place = directory / name.replace(" ", "-")
        with running(Setup(LSMQ, "sync"), place) as server:
            fill_options = {
                "address": server.address,
                "name": name,
                "count": values["turn_messages"],
                "keys": values["turn_keys"],
                "each": values["message_bytes"],
            }
            run_case(fill, **fill_options)
            before = cpu_seconds(server.pid)
            found = run_case(drain, address=server.address, name=name, workers=values["turn_workers"])
            spent_s = cpu_seconds(server.pid) - before
            if found["taken"] != values["turn_messages"] + _LATE:
                raise AssertionError(f"{name}: {found['taken']:,.0f} messages came")
            figures[name] = {**found, "node_us": 1e6 * spent_s / found["taken"]}
        progress(f"{name}: {figures[name]['node_us']:.0f} us of the node a message")
    return Measured(figures, [_table(values, figures)], _NOTES)


def fill(address: str, name: str, count: int, keys: int, each: int) -> dict[str, float]:
    """In a process of its own: a backlog of one tenant in all queues but the last, and a few messages behind it."""

    async def work() -> None:
        async with Client(address) as client:
            await client.create_topic("turns", queues=_QUEUES)
            async with Producer(client, "turns") as producer:
                for number in range(count):
                    key = number % keys
                    body = f"{number} ".encode().ljust(each, b"x")
                    await producer.send(body, key=f"{key}", queue=key % (_QUEUES - 1), tag="backlog")
                await producer.flush()
                late: dict[str, Any] = {"queue": 0, **_WAYS[name][1]}
                for number in range(_LATE):
                    await producer.send(b"late", **{"key": f"late {number}", **late})
                await producer.flush()

    asyncio.run(work())
    return {}


def drain(address: str, name: str, workers: int) -> dict[str, float]:
    """In a process of its own: take and acknowledge everything; the place at which the last of the late ones came."""
    taken = late = last_late = 0
    began = ended = 0.0

    async def work() -> None:
        nonlocal began, taken, late, last_late
        async with Client(address) as client, WorkQueue(client, "turns", "bench", max_messages=workers) as queue:
            await queue.configure(visibility_ms=600_000, **_WAYS[name][0])
            began = time.monotonic()

            async def settle(tasks: list[Task]) -> None:
                nonlocal ended
                await asyncio.gather(*(task.ack() for task in tasks))
                ended = time.monotonic()

            async with asyncio.TaskGroup() as settling:
                while tasks := await queue.poll(workers, timeout_ms=_IDLE_MS):
                    for task in tasks:
                        taken += 1
                        if task.message.body == b"late":
                            late += 1
                            last_late = taken
                    settling.create_task(settle(tasks))

    asyncio.run(work())
    return {
        "taken": float(taken),
        "messages_per_s": taken / (ended - began),
        "late": float(late),
        "passed_by": float(last_late - late),
    }


def _table(values: Mapping[str, Any], figures: Mapping[str, Mapping[str, float]]) -> TextTable:
    count, keys = values["turn_messages"], values["turn_keys"]
    table = TextTable(
        f"{count:,} messages of {keys:,} keys, {values['turn_workers']:,} taken at a time; {_LATE} sent behind them",
        ("", "messages/s", "node us a message", "came before the last of the late ones"),
        [],
    )
    for name, found in figures.items():
        passed = f"{found['passed_by']:,.0f}"
        table.rows.append((name, f"{found['messages_per_s']:,.0f}", f"{found['node_us']:.0f}", passed))
    return table


_NOTES = [
    "Turns: the late messages stand behind a backlog in its queue ('as they come'), or in a queue of their own; each "
    "has a key of its own, and they have a tag or a priority. The last column counts messages of the backlog that came "
    "before them.",
]

CASE = MessageCase(
    options=(
        Option("turn_messages", 50_000, "Messages of the backlog, for turns.", quick=3_000),
        Option("turn_keys", 1_000, "Their keys.", quick=100),
        Option("turn_workers", 500, "Messages asked for at a time.", quick=100),
    ),
    run=run,
)
