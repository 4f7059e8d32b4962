"""``lsmq bench console``: what each page of the console asks for, over a topic of a million queues, a million names and
a thousand groups: how long it takes until the page has it all, and what it costs the node while the page is open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from lsmq import Client, Producer
from lsmq_lab.benchmarks import messages_names
from lsmq_lab.benchmarks.callable import CallableBench
from lsmq_lab.benchmarks.environment import cpu_seconds, describe, environment
from lsmq_lab.benchmarks.isolate import run_case, scratch
from lsmq_lab.benchmarks.node_servers import LSMQ, Setup, running
from lsmq_lab.benchmarks.report import QUICK, BenchReport, Option, TellProgress, TextTable, percentile_ms

OPTIONS = (
    Option("queues", 1_000_000, "Queues of a topic, each with a message, and as many names of another.", quick=2_000),
    Option("groups", 1_000, "Consumer groups of the first topic.", quick=20),
    Option("loads", 50, "How often each page is loaded.", quick=3),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
TOPIC, NAMES = "many", "names"  # the second as the benchmark of names has it
LIMIT_MS = 300
_PORTION = 50_000


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """What it asks for, each after the one before, and how often again while it is open; 0: once. ``watches_ms`` is
    what it waits for by its own wish."""

    name: str
    asks: tuple[str, ...]
    again_ms: int = 0
    watches_ms: int = 0


def pages_of(queues: int, groups: int) -> tuple[ConsolePage, ...]:
    """Of the console, over so many queues and groups."""
    topic, named, last = f"/v1/topics/{TOPIC}", f"/v1/topics/{NAMES}", queues - 1
    group = f"/v1/groups/group-{groups - 1}"
    own, usage, prefix = topic, f"{topic}/usage", messages_names.name_of(queues // 2)[:-8]
    return (
        ConsolePage("before each page", ("/v1/whoami",)),
        ConsolePage("Overview", ("/v1/history",), 5_000),
        ConsolePage("Topics", ("/v1/topics?limit=100",)),
        ConsolePage("a topic, by number", (own, usage, f"{topic}/offsets?queues=0-{min(99, last)}")),
        ConsolePage("its last queues", (own, usage, f"{topic}/offsets?queues={max(0, last - 99)}-{last}")),
        ConsolePage("its deepest", (own, usage, f"{topic}/top-queues?by=depth&limit=100")),
        ConsolePage("its oldest", (own, usage, f"{topic}/top-queues?by=age&limit=100")),
        ConsolePage("its busiest", (own, usage, f"{topic}/top-queues?by=rate&limit=100"), 0, 1_000),
        ConsolePage("names", (named, f"{named}/usage", f"{named}/queues?limit=100")),
        ConsolePage("names by prefix", (named, f"{named}/queues?limit=100&prefix={prefix}")),
        ConsolePage("names, deepest", (f"{named}/top-queues?by=depth&limit=100",)),
        ConsolePage("a queue", (f"{topic}/queues/{last}", f"{topic}/queues/{last}/messages?offset=0&max=50&wait_ms=0")),
        ConsolePage("What comes later", (f"{topic}/delayed?max=100", f"{topic}/schedules?max=100")),
        ConsolePage("Groups", ("/v1/groups?limit=100",)),
        ConsolePage("a group", (f"{group}/lag?topic={TOPIC}", f"{group}/lag/history?topic={TOPIC}"), 5_000),
        ConsolePage("Producers", ("/v1/producer-groups?limit=100",)),
        ConsolePage("Cluster", ("/v1/cluster",), 3_000),
        ConsolePage("a shard", ("/v1/cluster",), 1_000),
        ConsolePage("Backups", ("/v1/backups",), 1_000),
    )


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """On one node, filled once."""
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        progress(describe(facts))
        with running(Setup(LSMQ, "sync"), directory / "server") as server:
            sizes = {name: values[name] for name in ("queues", "groups")}
            progress(f"{values['queues']:,} queues are filled")
            run_case(fill, address=server.address, **sizes)
            progress(f"{values['queues']:,} names are made")
            run_case(
                messages_names.send, address=server.address, names=values["queues"], messages=values["queues"], each=20
            )
            pages = []
            for page in pages_of(**sizes):
                before_s = cpu_seconds(server.pid)
                taken = asyncio.run(_load(server.address, page, values["loads"]))
                used_s = (cpu_seconds(server.pid) - before_s) / values["loads"]
                pages.append(
                    {
                        "page": page.name,
                        "median_ms": percentile_ms(taken, 0.5),
                        "p99_ms": percentile_ms(taken, 0.99),
                        "watches_ms": page.watches_ms,
                        "node_ms": 1e3 * used_s,
                        "open_percent": 1e5 * used_s / page.again_ms if page.again_ms else None,
                    }
                )
                progress(f"{page.name}: {pages[-1]['median_ms']:.1f} ms")
    late = [each["page"] for each in pages if each["median_ms"] - each["watches_ms"] > LIMIT_MS]
    result = {"bench": "console", "environment": facts, "options": dict(values), "pages": pages, "late": late}
    return BenchReport(result, [_table(result)], [*_NOTES, f"over {LIMIT_MS} ms: {', '.join(late) or 'none'}"])


def fill(address: str, queues: int, groups: int) -> dict[str, Any]:
    """In a process of its own: a message in each queue, and groups that have read some of them."""

    async def work() -> None:
        async with Client(address, deadline_ms=120_000) as client:
            await client.create_topic(TOPIC, queues=queues)
            async with Producer(client, TOPIC) as producer:
                for first in range(0, queues, _PORTION):
                    count = min(_PORTION, queues - first)
                    rows = np.arange(first, first + count)
                    await (await producer.send_batch(b"x" * 20 * count, lengths=20, queues=rows)).wait()
            for number in range(groups):
                await client.commit_offsets(f"group-{number}", TOPIC, {number % queues: 1})

    asyncio.run(work())
    return {}


async def _load(address: str, page: ConsolePage, loads: int) -> list[float]:
    taken = []
    async with aiohttp.ClientSession() as session:
        for number in range(loads + 1):  # the first one warms what is behind
            began = time.monotonic()
            for path in page.asks:
                async with session.get(address + path) as answer:
                    await answer.read()
                    answer.raise_for_status()
            if number:
                taken.append(time.monotonic() - began)
    return taken


def _table(result: dict[str, Any]) -> TextTable:
    options = result["options"]
    table = TextTable(
        f"{options['queues']:,} queues, as many names, {options['groups']:,} groups; {options['loads']} loads",
        ("page", "there after (p50)", "p99", "of the node, a load", "of a core while open"),
        [],
    )
    for each in result["pages"]:
        waits = " and the second that it watches" if each["watches_ms"] else ""
        median, p99 = (each[name] - each["watches_ms"] for name in ("median_ms", "p99_ms"))
        open_ = "-" if each["open_percent"] is None else f"{each['open_percent']:.2f} %"
        table.rows.append(
            (each["page"], f"{median:.1f} ms{waits}", f"{p99:.1f} ms", f"{each['node_ms']:.1f} ms", open_)
        )
    return table


_NOTES = [
    "The requests that a page makes, one after another, over one connection, until the last byte; drawing is the "
    "browser's.",
    "of the node: processor time of its process. A page that asks once costs nothing while it is open.",
]

BENCH = CallableBench(
    name="console",
    description="The pages of the console over a million queues: how long, and what they cost.",
    options=OPTIONS,
    run=run,
)
