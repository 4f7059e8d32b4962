"""Delayed messages: how late they come while others are sent and read, and after a restart; what pending ones take.

Lateness counts from the millisecond when a message is due until an application has it that waits for it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsmq import Client, Consumer, Producer

from .environment import cpu_seconds, disk_bytes, resident_bytes
from .isolate import run_case
from .message_case import Measured, MessageCase
from .node_servers import LSMQ, Setup, running
from .report import Option, TellProgress, TextTable, mebibytes_text, percentile_ms

_QUEUES = 64
_PARTS = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
_DAY_MS = 86_400_000
_BATCH = 5_000
_SETTLE_S = 1.0


def run(values: Mapping[str, Any], directory: Path, progress: TellProgress) -> Measured:
    """Lateness on a node with little and with much pending, after a restart too; and the memory of that."""
    load = {
        "each": values["message_bytes"],
        "seconds": float(values["seconds"]),
        "rate": values["delayed_rate"],
        "live": values["live_rate"],
    }
    lateness: dict[str, dict[str, float]] = {}
    memory: dict[str, float] = {}

    def measured(name: str, address: str, pid: int) -> None:
        used = cpu_seconds(pid)
        found = run_case(late, address=address, **load)
        lateness[name] = {**found, "node_cpu_s": cpu_seconds(pid) - used}
        progress(f"{name}: p99 {found['p99_ms']:.1f} ms late")

    place = directory / "node"
    with running(Setup(LSMQ, "sync"), place) as server:
        measured("nothing else pending", server.address, server.pid)
        memory["before"] = resident_bytes(server.pid)
        run_case(fill, address=server.address, count=values["pending"], each=values["message_bytes"])
        memory["filled"] = resident_bytes(server.pid)
        memory["disk"] = disk_bytes(place)
        measured(f"{values['pending']:,} pending", server.address, server.pid)
    began = time.monotonic()
    with running(Setup(LSMQ, "sync"), place) as server:
        memory["start_s"] = time.monotonic() - began
        memory["restarted"] = resident_bytes(server.pid)
        measured("after a restart", server.address, server.pid)
        memory["after"] = resident_bytes(server.pid)
    figures = {"lateness": lateness, "memory": memory}
    return Measured(figures, [_lateness(values, lateness), _memory(values, memory)], _NOTES)


def late(address: str, each: int, seconds: float, rate: int, live: int) -> dict[str, float]:
    """In a process of its own: delayed messages beside live ones, and how late the delayed ones came."""

    async def work() -> dict[str, float]:
        taken: list[float] = []
        live_taken: list[float] = []
        chance = random.Random(1)
        count = int(rate * seconds)
        over = asyncio.Event()
        async with Client(address) as client:
            for name in ("late", "live"):
                await client.create_topic(name, queues=_QUEUES, exist_ok=True)

            async def take(consumer: Consumer) -> None:
                while len(taken) < count:
                    for message in await consumer.poll():
                        now = time.time()
                        taken.append(now - int(message.body.split(b" ", 1)[0]) / 1000)
                over.set()

            async def send_live(producer: Producer) -> None:
                while not over.is_set():
                    for _ in range(max(1, live // 100)):
                        await producer.send((b"%d " % time.time_ns()).ljust(each, b"x"))
                    await asyncio.sleep(0.01)

            async def read_live(consumer: Consumer) -> None:
                while not over.is_set():
                    for message in await consumer.poll(timeout_ms=100):
                        live_taken.append(time.time() - int(message.body.split(b" ", 1)[0]) / 1e9)

            async with (
                Consumer(client, "late", start="latest") as consumer,
                Consumer(client, "live", start="latest") as reader,
                Producer(client, "late", linger_ms=1) as producer,
                Producer(client, "live") as live_producer,
                asyncio.TaskGroup() as tasks,
            ):
                tasks.create_task(take(consumer))
                tasks.create_task(read_live(reader))
                tasks.create_task(send_live(live_producer))
                await asyncio.sleep(_SETTLE_S)
                began = time.monotonic()
                sent = []
                for number in range(count):
                    await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                    due_ms = int(time.time() * 1000) + chance.randrange(50, 3000)
                    sent.append(await producer.send((b"%d " % due_ms).ljust(each, b"x"), deliver_at_ms=due_ms))
                for receipt in sent:
                    await receipt  # raises where a message was refused, which would be waited for in vain
        return {
            f"{kind}{name}_ms": percentile_ms(times, part)
            for kind, times in (("", taken), ("live_", live_taken))
            for name, part in _PARTS.items()
        }

    return asyncio.run(work())


def fill(address: str, count: int, each: int) -> dict[str, float]:
    """In a process of its own: so many messages that are due in a day and later."""

    async def work() -> dict[str, float]:
        chance = random.Random(2)
        async with Client(address) as client:
            await client.create_topic("pending", queues=_QUEUES)
            async with Producer(client, "pending") as producer:
                for first in range(0, count, _BATCH):
                    body = chance.randbytes(each)
                    messages = [body] * min(_BATCH, count - first)
                    await producer.send_many(messages, delay_ms=_DAY_MS + chance.randrange(300 * _DAY_MS))
        return {}

    return asyncio.run(work())


def _lateness(values: Mapping[str, Any], lateness: Mapping[str, Mapping[str, float]]) -> TextTable:
    table = TextTable(
        f"{values['delayed_rate']:,} delayed messages/s beside {values['live_rate']:,} live ones; ms late",
        ("", *_PARTS, "live p50", "live p99", "node CPU s"),
        [],
    )
    for name, figures in lateness.items():
        late_ms = (f"{figures[f'{part}_ms']:.1f}" for part in (*_PARTS, "live_p50", "live_p99"))
        table.rows.append((name, *late_ms, f"{figures['node_cpu_s']:.1f}"))
    return table


def _memory(values: Mapping[str, Any], memory: Mapping[str, float]) -> TextTable:
    table = TextTable(
        f"{values['pending']:,} pending messages of {values['message_bytes']:,} bytes", ("", "figure"), []
    )
    for name, key in (
        ("node before", "before"),
        ("node with them", "filled"),
        ("node after a restart", "restarted"),
        ("and after a load", "after"),
        ("disk", "disk"),
    ):
        table.rows.append((name, mebibytes_text(memory[key])))
    table.rows.append(("start until ready", f"{memory['start_s']:.1f} s"))
    return table


_NOTES = [
    "Late: from when a message was due until the application had it, by the clock of the machine that all share; the "
    "consumer polls, and sends and reads the live load besides. Live: from sending to receiving one of the others, "
    "which linger 5 ms in the producer.",
    "Memory is the node's own (RssAnon): memtables and caches of fixed size among it, file pages not.",
]

CASE = MessageCase(
    options=(
        Option("pending", 1_000_000, "Delayed messages that are pending.", quick=20_000),
        Option("delayed_rate", 500, "Delayed messages a second that come."),
        Option("live_rate", 2_000, "Other messages a second.", quick=500),
    ),
    run=run,
)
