"""Work queues: how long messages wait beside a backlog that is not theirs, and what they waited without it.

Messages come at a steady rate, and consumers take what is to be had at a pace of their own. First nothing else is
there; then a backlog of lower priority, or of another tenant, from which the consumers take as much as they can beside.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from lsmq import Client, Producer, WorkQueue

from .isolate import run_case
from .message_case import Measured, MessageCase
from .node_servers import LSMQ, Setup, running
from .report import Option, TellProgress, TextTable, percentile_ms

_TOPIC, _GROUP = "waits", "bench"
_BATCH = 10_000
_PACE_S = 0.01
_VISIBILITY_MS = 600_000
#: What waits has been looked at when so many pops in a row were answered within their pace.
_SETTLED_POPS = 100
_PARTS = {"p50": 0.5, "p99": 0.99}
#: By name: how the work queue is configured; the topic's queues, None for those that are asked for; what the backlog
#: has and what those that wait have. These each choose a queue, where there is none said.
_WAYS: Mapping[str, tuple[Mapping[str, Any], int | None, Mapping[str, Any], Mapping[str, Any]]] = {
    "by priority": ({"order": "priority"}, 16, {"priorities": 1}, {"priority": 200}),
    "fair by queue": ({}, None, {"queues": 0}, {}),
    "fair by tag": ({"fair_by": "tag"}, 16, {"tags": "large"}, {"tag": "small"}),
}


def run(values: Mapping[str, Any], directory: Path, progress: TellProgress) -> Measured:
    """Each way on a node of its own, without the backlog and with it."""
    figures: dict[str, dict[str, Any]] = {}
    load = {
        "rate": values["wait_rate"],
        "seconds": float(values["seconds"]),
        "each": values["message_bytes"],
        "taken": values["wait_taken"],
    }
    for name in _WAYS:
        queues = _WAYS[name][1] or values["wait_queues"]
        with running(Setup(LSMQ, "sync"), directory / name.replace(" ", "-")) as server:
            options = {"address": server.address, "name": name, "queues": queues, **load}
            alone = run_case(measure, **options)
            run_case(fill, address=server.address, name=name, count=values["wait_backlog"], each=load["each"])
            beside = run_case(measure, **options)
        ratio = beside["p99_ms"] / alone["p99_ms"]
        figures[name] = {"queues": queues, "alone": alone, "beside": beside, "ratio": ratio}
        progress(f"{name}: p99 {alone['p99_ms']:.1f} ms alone, {beside['p99_ms']:.1f} beside the backlog")
    return Measured({"backlog": values["wait_backlog"], "ways": figures}, [_table(values, figures)], _NOTES)


def fill(address: str, name: str, count: int, each: int) -> dict[str, float]:
    """In a process of its own: the backlog."""

    async def work() -> None:
        async with Client(address) as client, Producer(client, _TOPIC) as producer:
            for first in range(0, count, _BATCH):
                some = min(_BATCH, count - first)
                await producer.send_batch(b"x" * (each * some), lengths=each, **_WAYS[name][2])
            await producer.flush()

    asyncio.run(work())
    return {}


def measure(address: str, name: str, queues: int, rate: int, seconds: float, each: int, taken: int) -> dict[str, float]:
    """In a process of its own: send at a rate, take at a pace, and say how long what was sent here waited."""
    settings, _, _, own = _WAYS[name]
    waited: list[float] = []
    others = 0
    count, quick, settled = int(rate * seconds), 0, asyncio.Event()
    groups = f"{address}/v1/groups/{_GROUP}"

    async def settle(session: aiohttp.ClientSession, receipts: list[str]) -> None:
        async with session.post(f"{groups}/ack", json={"topic": _TOPIC, "receipts": receipts}) as answer:
            answer.raise_for_status()

    async def take(session: aiohttp.ClientSession, settling: asyncio.TaskGroup) -> None:
        nonlocal others, quick
        at = time.monotonic()
        while len(waited) < count:
            at = max(at + _PACE_S, time.monotonic())
            await asyncio.sleep(at - time.monotonic())
            wanted = {"topic": _TOPIC, "max": taken, "wait_ms": 0, "visibility_ms": _VISIBILITY_MS}
            async with session.post(f"{groups}/pop", json=wanted) as answer:
                answer.raise_for_status()
                found = (await answer.json())["messages"]
            now = time.monotonic_ns()
            quick = quick + 1 if now / 1e9 - at < _PACE_S else 0
            if quick >= _SETTLED_POPS:
                settled.set()
            for message in found:
                if message["body"].startswith("x"):
                    others += 1
                else:
                    waited.append((now - int(message["body"].split()[0])) / 1e9)
            if found:
                settling.create_task(settle(session, [message["receipt"] for message in found]))

    async def work() -> None:
        chance = random.Random(5)
        async with Client(address) as client, aiohttp.ClientSession() as session:
            await client.create_topic(_TOPIC, queues=queues, exist_ok=True)
            await WorkQueue(client, _TOPIC, _GROUP).configure(**settings)
            async with Producer(client, _TOPIC, linger_ms=0) as producer, asyncio.TaskGroup() as tasks:
                tasks.create_task(take(session, tasks))
                await settled.wait()
                began = time.monotonic()
                for number in range(count):
                    await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                    body = f"{time.monotonic_ns()} ".encode().ljust(each, b".")
                    await producer.send(body, queue=chance.randrange(1, queues), **own)

    asyncio.run(work())
    return {"others": float(others), **{f"{part}_ms": percentile_ms(waited, share) for part, share in _PARTS.items()}}


def _table(values: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]) -> TextTable:
    table = TextTable(
        f"{values['wait_rate']:,} messages/s beside a backlog of {values['wait_backlog']:,}; ms from sending to the "
        "consumer",
        ("", "queues", "p50 alone", "p99 alone", "p50 beside", "p99 beside", "p99 ratio", "taken of it"),
        [],
    )
    for name, found in figures.items():
        times = (f"{found[when][part]:.1f}" for when in ("alone", "beside") for part in ("p50_ms", "p99_ms"))
        rest = f"{found['ratio']:.2f}", f"{found['beside']['others']:,.0f}"
        table.rows.append((name, f"{found['queues']:,}", *times, *rest))
    return table


_NOTES = [
    f"Waits: consumers take up to wait_taken messages every {1000 * _PACE_S:.0f} ms, in both cases, so that a message "
    "waits half of that at least. Measuring begins when the leader has looked at the backlog. What they take of that "
    "beside has its own price: with a larger wait_taken this is what is measured.",
]

CASE = MessageCase(
    options=(
        Option("wait_backlog", 1_000_000, "Messages of the backlog, for waits.", quick=5_000),
        Option("wait_queues", 100_000, "Queues, of which the backlog has one, for turns of queues.", quick=500, low=2),
        Option("wait_rate", 200, "Messages a second that come beside it."),
        Option(
            "wait_taken", 8, "Messages that consumers take at once, 100 times a second: each of two tenants has half."
        ),
    ),
    run=run,
)
