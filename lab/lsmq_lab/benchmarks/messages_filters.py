"""Filters over a backlog: what it costs to find much and little, by tag and by a condition.

A backlog is written once. Then it is read to its end by readers that want all of it, a tenth, a hundredth and a
ten-thousandth, each from a node that was just started: how long that takes, and how much of the files is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lsmq import Client, Consumer, Producer

from .environment import cpu_seconds
from .isolate import run_case
from .message_case import Measured, MessageCase
from .node_servers import LSMQ, Setup, metric, running
from .report import BenchFailed, Option, TellProgress, TextTable, mebibytes_text

_TOPIC = "filters"
_QUEUES = 16
_BATCH = 10_000
#: By tag: of how many messages one has it. The others have none of these.
_ONE_IN = {"tenth": 10, "hundredth": 100, "rare": 10_000}
_ALL, _BY_TAG, _BY_CONDITION = "everything", "tag", "condition"


def run(values: Mapping[str, Any], directory: Path, progress: TellProgress) -> Measured:
    """Write the backlog, then read it each way."""
    count, each = values["filter_messages"], values["message_bytes"]
    place = directory / "node"
    with running(Setup(LSMQ, "sync"), place) as server:
        run_case(fill, address=server.address, count=count, each=each)
    counts = tags_of(count)
    ways = [(_ALL, "", count)]
    ways += [(kind, tag, int((counts == tag).sum())) for tag in _ONE_IN for kind in (_BY_TAG, _BY_CONDITION)]
    figures = []
    for kind, tag, wanted in ways:
        with running(Setup(LSMQ, "sync"), place) as server:
            spent_s, read = cpu_seconds(server.pid), _read_bytes(server.pid)
            found = run_case(read_all, address=server.address, kind=kind, tag=tag, wanted=wanted)
            figure = {
                "kind": kind,
                "wanted": wanted,
                "seconds": found["seconds"],
                "node_s": cpu_seconds(server.pid) - spent_s,
                "read_bytes": _read_bytes(server.pid) - read,
            }
            figure["tables_bytes"] = metric(server.address, "lsmq_store_table_bytes")
        figures.append(figure)
        progress(f"{kind} {tag}: {wanted:,} messages in {found['seconds']:.2f} s")
    return Measured({"backlog": count, "ways": figures}, [_table(count, figures)], _NOTES)


def tags_of(count: int) -> Any:
    """The tag of each message, in their order: by chance, and always the same."""
    chosen = np.random.default_rng(3).random(count)
    tags = np.full(count, "most", "<U9")
    for tag, one_in in _ONE_IN.items():  # from the many to the few
        tags[chosen < 1 / one_in] = tag
    return tags


def fill(address: str, count: int, each: int) -> dict[str, float]:
    """In a process of its own: the backlog. Each message has its tag as a property as well."""

    async def work() -> None:
        tags = tags_of(count)
        shared = {tag: {"kind": tag} for tag in (*_ONE_IN, "most")}
        async with Client(address) as client:
            await client.create_topic(_TOPIC, queues=_QUEUES)
            async with Producer(client, _TOPIC) as producer:
                for first in range(0, count, _BATCH):
                    some = tags[first : first + _BATCH].tolist()
                    queues = [number % _QUEUES for number in range(first, first + len(some))]
                    properties = [shared[tag] for tag in some]
                    bodies = b"x" * (each * len(some))
                    await producer.send_batch(bodies, lengths=each, queues=queues, tags=some, properties=properties)
                await producer.flush()

    asyncio.run(work())
    return {}


def read_all(address: str, kind: str, tag: str, wanted: int) -> dict[str, float]:
    """In a process of its own: what is wanted of the backlog, to its end."""
    picks: dict[str, Any] = {_ALL: {}, _BY_TAG: {"tag": tag}, _BY_CONDITION: {"filter": f"kind = '{tag}'"}}[kind]

    async def work() -> float:
        async with Client(address) as client:
            latest = (await client.offsets(_TOPIC)).latest
            began = time.monotonic()
            async with Consumer(client, _TOPIC, start="earliest", **picks) as consumer:
                found = 0
                while any(consumer.positions.get(queue, 0) < end for queue, end in enumerate(latest)):
                    found += len(await consumer.poll(max_messages=100_000, timeout_ms=100))
            if found != wanted:
                raise BenchFailed(f"{kind} {tag}: {found:,} messages came, and {wanted:,} were sent")
            return time.monotonic() - began

    return {"seconds": asyncio.run(work())}


def _read_bytes(pid: int) -> int:
    """What a process has read of files and pipes so far, from the disk or not."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "rchar":
            return int(value)
    raise BenchFailed(f"/proc/{pid}/io does not say what is read")


def _table(count: int, figures: list[dict[str, Any]]) -> TextTable:
    table = TextTable(
        f"A backlog of {count:,} messages in {_QUEUES} queues, read to its end",
        ("", "share", "messages", "seconds", "node s", "read of files", "of all tables"),
        [],
    )
    for each in figures:
        share = f"{100 * each['wanted'] / count:.2f} %"
        part = f"{100 * each['read_bytes'] / max(1, each['tables_bytes']):.1f} %"
        times = f"{each['seconds']:.2f}", f"{each['node_s']:.2f}"
        table.rows.append(
            (each["kind"], share, f"{each['wanted']:,}", *times, mebibytes_text(each["read_bytes"]), part)
        )
    return table


_NOTES = [
    "Filters: each read is by a node that was just started, so that nothing is in its cache; the pages of files are in "
    "that of the system. Read of files: what everything takes is read twice, once to verify it, once to send it. A tag "
    "is answered from columns, and blocks that have none of it are not read; a condition over a property has to look "
    "into the messages.",
]

CASE = MessageCase(
    options=(Option("filter_messages", 2_000_000, "Messages of the backlog, for filters.", quick=30_000),),
    run=run,
)
