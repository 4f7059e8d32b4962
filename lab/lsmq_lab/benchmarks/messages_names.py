"""Queues by name over the network: one against many, making them against writing to them, and what each takes.

The same messages go to one queue, and to many with one each: first while the names are new, then once they are there.
Batches are packed before, with names in an order of their own, so that what is measured is the node.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from lsmq import Client
from lsmq.queue_names import SEPARATOR
from lsmq.record_batch import BatchBuilder, Column, Flag, split_batches

from .environment import cpu_seconds, resident_bytes
from .isolate import run_case
from .message_case import Measured, MessageCase
from .node_servers import LSMQ, Setup, running
from .report import Option, TellProgress, TextTable

_TOPIC = "names"
_BATCH = 5_000
_CONNECTIONS = 4
_READ_BYTES = 8 << 20
#: What is there for a reader of all queues: so many bytes of each, and no less than nodes have for it.
_SESSION_BYTES, _LEAST_SESSION_BYTES = 32, 64 << 20
_WAYS = ("new names", "names that are there", "read by pattern")
_Figures = dict[str, dict[str, float]]


def run(values: Mapping[str, Any], directory: Path, progress: TellProgress) -> Measured:
    """One queue and many, each on a node of its own."""
    names, messages, each = values["names"], values["name_messages"], values["message_bytes"]
    figures: dict[str, _Figures] = {}
    memory: dict[str, dict[str, float]] = {}
    room = max(_LEAST_SESSION_BYTES, _SESSION_BYTES * names)
    setup = Setup(LSMQ, "sync", settings=(("LSMQ_MAX_FETCH_SESSION_BYTES", f"{room}"),))
    for count in (1, names):
        found: _Figures = {}
        place = directory / f"{count}"
        with running(setup, place) as server:
            for way in _WAYS:
                before = cpu_seconds(server.pid)
                options = {"address": server.address, "names": count, "messages": messages, "each": each}
                measured = run_case(read if way == _WAYS[2] else send, **options)
                spent_s = cpu_seconds(server.pid) - before
                done = measured.pop("messages")
                found[way] = {"messages_per_s": done / measured["seconds"], "node_us": 1e6 * spent_s / done}
                progress(f"{count:,} queues, {way}: {found[way]['node_us']:.2f} us of the node a message")
            made = resident_bytes(server.pid)
        began = time.monotonic()
        with running(setup, place) as server:
            ready_s, idle = time.monotonic() - began, resident_bytes(server.pid)
            began = time.monotonic()
            run_case(one, address=server.address, names=count)
            first_s = time.monotonic() - began
            memory[f"{count}"] = {
                "made": made,
                "idle": idle,
                "used": resident_bytes(server.pid),
                "ready_s": ready_s,
                "first_s": first_s,
            }
        figures[f"{count}"] = found
    for key in ("made", "used"):
        memory[f"{names}"][f"{key}_each"] = (memory[f"{names}"][key] - memory["1"][key]) / names
    return Measured({"ways": figures, "memory": memory}, [_rates(values, figures), _resident(values, memory)], _NOTES)


def name_of(number: int) -> str:
    """As agents and users have them: 20 bytes."""
    return f"agents.{number:07d}.inbox"


def packed(names: Sequence[str], each: int) -> bytes:
    """A batch with a message for each of the names, which may repeat, as it is sent."""
    builder, places, body = BatchBuilder(), {name: at for at, name in enumerate(dict.fromkeys(names))}, b"x" * each
    for name in names:
        builder.add_packed(places[name], body)
    joined = SEPARATOR.join(places).encode()
    return len(joined).to_bytes(4, "little") + joined + builder.build()


def send(address: str, names: int, messages: int, each: int) -> dict[str, float]:
    """In a process of its own: messages to the names in turn, in an order of their own."""
    order = list(range(names))
    random.Random(1).shuffle(order)
    called = [name_of(order[at % names]) for at in range(messages)]
    batches = [packed(called[at : at + _BATCH], each) for at in range(0, messages, _BATCH)]

    async def work() -> float:
        async with Client(address) as client:
            await client.create_topic(_TOPIC, queues="named", exist_ok=True)
        headers = {"Content-Type": "application/vnd.lsmq.named-batch"}
        async with aiohttp.ClientSession() as session:

            async def one_connection() -> None:
                while batches:
                    url = f"{address}/v1/topics/{_TOPIC}/batches"
                    async with session.post(url, data=batches.pop(), headers=headers) as answer:
                        await answer.read()
                        answer.raise_for_status()

            began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_CONNECTIONS):
                    tasks.create_task(one_connection())
            return time.monotonic() - began

    return {"messages": float(messages), "seconds": asyncio.run(work())}


def read(address: str, names: int, messages: int, each: int) -> dict[str, float]:
    """In a process of its own: all messages of all queues, by a pattern."""

    async def work() -> float:
        left = 2 * messages  # they were sent twice
        value: dict[str, Any] = {"pattern": "**", "start": "earliest", "keep": True}
        async with aiohttp.ClientSession() as session:
            began = time.monotonic()
            while left > 0:
                limits = {"max_bytes": _READ_BYTES, "wait_ms": 10_000}
                async with session.post(f"{address}/v1/topics/{_TOPIC}/fetch", json=value | limits) as answer:
                    body = await answer.read()
                    answer.raise_for_status()
                    value = {"session": answer.headers["Lsmq-Fetch-Session"]}
                for batch in split_batches(body, verify=False):
                    flags = batch.column(Column.FLAGS)[0] if Column.FLAGS in batch.directory else 0
                    left -= 0 if flags & (Flag.POSITION | Flag.NAMES) else batch.record_count
            return time.monotonic() - began

    return {"messages": 2.0 * messages, "seconds": asyncio.run(work())}


def one(address: str, names: int) -> dict[str, float]:
    """In a process of its own: what was sent last, of one queue."""

    async def work() -> None:
        async with Client(address) as client:
            assert (await client.queue(_TOPIC, name_of(names - 1))).latest > 0

    asyncio.run(work())
    return {}


def _rates(values: Mapping[str, Any], figures: Mapping[str, _Figures]) -> TextTable:
    many = f"{values['names']}"
    table = TextTable(
        f"{values['name_messages']:,} messages of {values['message_bytes']:,} bytes, {_BATCH:,} a batch",
        ("", "1 queue/s", f"{values['names']:,} queues/s", "node us, 1", "node us, many", "ratio"),
        [],
    )
    for way in _WAYS:
        single, several = figures["1"][way], figures[many][way]
        rates = (f"{found['messages_per_s']:,.0f}" for found in (single, several))
        costs = (f"{found['node_us']:.2f}" for found in (single, several))
        table.rows.append((way, *rates, *costs, f"{several['node_us'] / single['node_us']:.2f}"))
    return table


def _resident(values: Mapping[str, Any], memory: Mapping[str, Mapping[str, float]]) -> TextTable:
    found = memory[f"{values['names']}"]
    table = TextTable(f"{values['names']:,} names of {len(name_of(0))} bytes", ("", "figure"), [])
    table.rows.append(("resident a queue, as made", f"{found['made_each']:.0f} bytes"))
    table.rows.append(("resident a queue, after a restart and its first use", f"{found['used_each']:.0f} bytes"))
    table.rows.append(("start until ready", f"{found['ready_s']:.1f} s"))
    table.rows.append(("first use of the names", f"{found['first_s']:.1f} s"))
    return table


_NOTES = [
    "Names: resident is the node's own memory (RssAnon) beside that of a node with the same messages in one queue. "
    "Node us: of CPU, a message; the ratio is of these.",
]

CASE = MessageCase(
    options=(
        Option("names", 1_000_000, "Queues by name, beside one.", quick=5_000),
        Option("name_messages", 1_000_000, "Messages that are sent to them, twice.", quick=10_000),
    ),
    run=run,
)
