"""Deduplication ids: what they take of the rate, the processor and the memory; and that what is sent again is found.

The same messages are sent without ids, with as many bytes more as the hash of an id has, and with an id each, in turn,
some times over; of each the median counts. Then a part of the latter again, as it was sent, and once more after a
restart: each message must be answered as a repeat. Batches are made of columns and packed before, so that what is
measured is the node.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from lsmq import Client
from lsmq.batch_builder import COLUMN, encode_column, join_batch
from lsmq.record_batch import Column, Flag, split_batches

from .environment import cpu_seconds, resident_bytes
from .isolate import run_case
from .message_case import Measured, MessageCase
from .node_servers import LSMQ, Setup, metric, running
from .report import BenchFailed, Option, TellProgress, TextTable, mebibytes_text

_TOPIC = "once"
_QUEUES = 64
_BATCH = 5_000
_CONNECTIONS = 4
#: So many batches are packed, and then sent: what packing takes is not counted.
_PACKED = 400
#: One batch of so many is sent again.
_AGAIN = 20
_WAYS = _WITHOUT, _CARRIED, _WITH = "without ids", "with as many bytes more", "with an id each"
#: What the two columns of an id's hash take in a batch.
_HASH_BYTES = 16
_IDS_MEMORY = "lsmq_store_dedupe_memory_bytes"


def run(values: Mapping[str, Any], directory: Path, progress: TellProgress) -> Measured:
    """Each way on a node of its own, as often as is asked for."""
    batches, each = -(-values["once_ids"] // _BATCH), values["message_bytes"]
    place, kept = directory / "node", directory / "node-with-ids"
    found: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
    ways: dict[str, dict[str, float]] = {}
    memory: dict[str, float] = {}
    for number in range(values["once_rounds"]):
        for way in _WAYS[number % 3 :] + _WAYS[: number % 3]:  # None always comes behind the same one.
            shutil.rmtree(place, ignore_errors=True)
            with running(Setup(LSMQ, "sync"), place) as server:
                options = {"address": server.address, "each": each, "way": way}
                rounds = found[way]
                rounds.append(_measured(server.pid, first=0, end=batches, step=1, repeats=False, **options))
                progress(f"{way}, round {number + 1}: {rounds[-1]['node_us']:.2f} us of the node a message")
                memory[way] = resident_bytes(server.pid)
                if way == _WITH:
                    memory["ids"] = metric(server.address, _IDS_MEMORY)
                    again = _measured(server.pid, first=0, end=batches, step=_AGAIN, repeats=True, **options)
            if way == _WITH:
                shutil.rmtree(kept, ignore_errors=True)
                place.rename(kept)
    for way, rounds in found.items():
        ways[way] = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    ways["sent again"] = again
    began = time.monotonic()
    with running(Setup(LSMQ, "sync"), kept) as server:
        memory["start_s"] = time.monotonic() - began
        memory["restarted"], memory["restarted_ids"] = resident_bytes(server.pid), metric(server.address, _IDS_MEMORY)
        options = {"address": server.address, "each": each, "way": _WITH}
        after = _measured(server.pid, first=1, end=batches, step=_AGAIN, repeats=True, **options)
        ways["sent again after a restart"] = after
    figures: dict[str, Any] = {"ways": ways, "rounds": found, "memory": memory, "ids": batches * _BATCH}
    for name, other in (("", _WITHOUT), ("carried_", _CARRIED)):
        # Of each round by itself: what else the machine does changes from one to the next.
        pairs = list(zip(found[_WITH], found[other], strict=True))
        figures[f"{name}rate_ratio"] = statistics.median(a["messages_per_s"] / b["messages_per_s"] for a, b in pairs)
        figures[f"{name}cpu_ratio"] = statistics.median(b["node_us"] / a["node_us"] for a, b in pairs)
    return Measured(figures, [_rates(figures), _memory(figures)], _NOTES)


def _measured(pid: int, **options: Any) -> dict[str, float]:
    before = cpu_seconds(pid)
    found = run_case(send, **options)
    spent_s = cpu_seconds(pid) - before
    return {"messages_per_s": found["messages"] / found["seconds"], "node_us": 1e6 * spent_s / found["messages"]}


def packed(number: int, each: int, way: str) -> bytes:
    """Batch ``number``: the same whenever it is made, with ids that no other has, or as many bytes."""
    each += _HASH_BYTES if way == _CARRIED else 0
    columns = {
        Column.QUEUE: encode_column(Column.QUEUE, number % _QUEUES),
        Column.LENGTH: encode_column(Column.LENGTH, each),
    }
    if way == _WITH:
        chosen = np.random.default_rng(number)
        for column in (Column.DEDUPE_HIGH, Column.DEDUPE_LOW):
            values = chosen.integers(1, 1 << 64, _BATCH, np.uint64)
            columns[column] = COLUMN.pack(column, 8, 0), values.astype("<u8").tobytes()
    return join_batch(_BATCH, [columns[column] for column in sorted(columns)], b"x" * (each * _BATCH))


def send(address: str, each: int, way: str, first: int, end: int, step: int, repeats: bool) -> dict[str, float]:
    """In a process of its own. Raises ``BenchFailed`` where what should be a repeat was stored, or the reverse."""
    url = f"{address}/v1/topics/{_TOPIC}/batches"

    async def one_connection(session: aiohttp.ClientSession, batches: list[tuple[int, bytes]]) -> None:
        while batches:
            number, batch = batches.pop()
            async with session.post(url, data=batch, headers=_HEADERS) as answer:
                body = await answer.read()
                answer.raise_for_status()
            found = repeated(body)
            if found != (_BATCH if repeats else 0):
                raise BenchFailed(f"of batch {number} {found} messages were answered as repeats")

    async def work() -> float:
        seconds, numbers = 0.0, range(first, end, step)
        async with Client(address) as client:
            await client.create_topic(_TOPIC, queues=_QUEUES, dedupe_window_ms="forever", exist_ok=True)
        async with aiohttp.ClientSession() as session:
            for at in range(0, len(numbers), _PACKED):
                batches = [(number, packed(number, each, way)) for number in numbers[at : at + _PACKED]]
                began = time.monotonic()
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(_CONNECTIONS):
                        tasks.create_task(one_connection(session, batches))
                seconds += time.monotonic() - began
        return seconds

    return {"messages": float(_BATCH * len(range(first, end, step))), "seconds": asyncio.run(work())}


def repeated(body: bytes) -> int:
    """How many messages the answer says were there before."""
    return sum(bool(flags & Flag.REPEAT) for batch in split_batches(body) for flags in _flags(batch))


def _flags(batch: Any) -> Iterable[int]:
    return batch.column(Column.FLAGS) if Column.FLAGS in batch.directory else ()


def _rates(figures: Mapping[str, Any]) -> TextTable:
    table = TextTable(f"{figures['ids']:,} messages, {_BATCH:,} a batch", ("", "messages/s", "node us a message"), [])
    for name, found in figures["ways"].items():
        table.rows.append((name, f"{found['messages_per_s']:,.0f}", f"{found['node_us']:.2f}"))
    for name, prefix in (("without", ""), ("as many bytes", "carried_")):
        table.rows.append((f"rate with ids to {name}", f"{figures[prefix + 'rate_ratio']:.2f}", ""))
        table.rows.append((f"with ids to {name}, by the node's processor", f"{figures[prefix + 'cpu_ratio']:.2f}", ""))
    return table


def _memory(figures: Mapping[str, Any]) -> TextTable:
    memory, count = figures["memory"], figures["ids"]
    table = TextTable(f"Memory of {count:,} ids", ("", "figure", "an id"), [])
    for name, size in (
        ("by the node's account", memory["ids"]),
        ("the same after a restart", memory["restarted_ids"]),
        ("resident beside a node without ids", memory[_WITH] - memory[_WITHOUT]),
    ):
        table.rows.append((name, mebibytes_text(size), f"{size / count:.1f} bytes"))
    table.rows.append(("the whole node, resident after a restart", mebibytes_text(memory["restarted"]), ""))
    table.rows.append(("start until ready", f"{memory['start_s']:.1f} s", ""))
    return table


_HEADERS = {"Content-Type": "application/vnd.lsmq.batch"}
_NOTES = [
    "Once: of each way that is measured several times, in turn, the median; and so of the ratios, each of one round.",
    f"Once: of what was sent with ids, a {_AGAIN}th was sent again, and after the restart another {_AGAIN}th; all of "
    "it was answered as repeats and none stored, or the benchmark fails.",
]

CASE = MessageCase(
    options=(
        Option("once_ids", 2_000_000, "Messages with a deduplication id each, kept for ever.", quick=20_000),
        Option("once_rounds", 3, "How often each way is measured, in turn; the median counts.", quick=1),
    ),
    run=run,
)
