"""``lsmq bench cluster``: what replication costs. One node, and three replicas of everything, in the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsmq import Client
from lsmq.topics import Ack
from lsmq_lab.benchmarks.callable import CallableBench
from lsmq_lab.benchmarks.environment import describe, disk_bytes, environment, peak_resident_bytes
from lsmq_lab.benchmarks.isolate import scratch
from lsmq_lab.benchmarks.node_clients import TOPIC, Share, rate_of, run_shares
from lsmq_lab.benchmarks.node_servers import LSMQ, Setup, running
from lsmq_lab.benchmarks.page_cache import NOTE as PAGE_CACHE_NOTE
from lsmq_lab.benchmarks.page_cache import PageCache, page_cache
from lsmq_lab.benchmarks.report import (
    QUICK,
    BenchReport,
    Option,
    TellProgress,
    TextTable,
    mebibytes_text,
    rate_text,
    ratio,
    ratio_text,
    spreads,
)
from lsmq_lab.local_cluster import LocalCluster, found_plan

OPTIONS = (
    Option("messages", 1_000_000, "Messages of each measurement, over all its clients.", quick=20_000),
    Option("message_bytes", 58, "Size of a message.", low=16),
    Option("in_flight", 40_000, "Messages of one client that wait for their acknowledgement, at most."),
    Option("writers", 4, "Clients of the second write."),
    Option("readers", 4, "Clients that read, each its own queues."),
    Option("queues", 1_200, "Queues of the topic."),
    Option("repeat", 3, "Repetitions; the cases take turns.", quick=1),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
NODES = 3
SHARDS = 3
#: Fewer messages fit into memory that is free anywhere.
_FILL_FROM_MESSAGES = 100_000
_FIGURES = ("write_1", "write_n", "read_n")


@dataclass(frozen=True, slots=True)
class ClusterCase:
    """How many nodes, and which acknowledgement."""

    nodes: int
    ack: Ack

    def __str__(self) -> str:
        return "one node" if self.nodes == 1 else f"{self.nodes} nodes, {SHARDS} shards, 3 replicas, ack={self.ack}"


CASES = (ClusterCase(1, "quorum"), ClusterCase(NODES, "quorum"), ClusterCase(NODES, "leader"))


@dataclass(frozen=True, slots=True)
class Servers:
    """What runs of a case."""

    urls: str
    pids: tuple[int, ...]
    directory: Path


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Write with one client, write with several, read with several: each case on fresh files."""
    taken: dict[ClusterCase, list[dict[str, float]]] = {case: [] for case in CASES}
    with scratch(values["directory"]) as directory, page_cache(directory) as cache:
        facts = environment(directory)
        progress(describe(facts))
        for repetition in range(values["repeat"]):
            for case in CASES:
                progress(f"{repetition + 1}/{values['repeat']}: {case}")
                with scratch(str(directory)) as place, running_case(case, place / "servers") as servers:
                    taken[case].append(measure(values, case, servers, cache))
    cases: list[dict[str, Any]] = [
        {"nodes": case.nodes, "ack": case.ack, **spreads(runs)} for case, runs in taken.items()
    ]
    alone = cases[0]
    ratios = {
        f"{name}/{each['nodes']}/{each['ack']}": ratio(each[name], alone[name])
        for each in cases[1:]
        for name in _FIGURES
    }
    result: dict[str, Any] = {
        "bench": "cluster",
        "environment": facts,
        "options": dict(values),
        "cases": cases,
        "ratios": ratios,
    }
    return BenchReport(result, [_table(result)], _NOTES)


@contextmanager
def running_case(case: ClusterCase, directory: Path) -> Iterator[Servers]:
    """Its node or nodes, over fresh files."""
    if case.nodes == 1:
        with running(Setup(LSMQ, "sync"), directory) as server:
            yield Servers(server.address, (server.pid,), directory)
        return
    cluster = LocalCluster.found(directory, found_plan(nodes=case.nodes, shards=SHARDS, replicas=3), detached=False)
    try:
        status = cluster.up()
        pids = tuple(node.pid for node in status.nodes if node.pid is not None)
        yield Servers(",".join(node.url for node in status.nodes), pids, directory)
    finally:
        cluster.down()


def measure(values: Mapping[str, Any], case: ClusterCase, servers: Servers, cache: PageCache) -> dict[str, float]:
    """Write with one client, with several, and read."""
    asyncio.run(_create_topic(servers.urls, values["queues"], case.ack))
    every = tuple(range(values["queues"]))

    def share(writes: bool, queues: tuple[int, ...], messages: int) -> Share:
        sizes = values["message_bytes"], values["in_flight"]
        return Share(LSMQ, servers.urls, writes, queues, messages, *sizes)

    total, writers, readers = values["messages"], values["writers"], values["readers"]
    filled = total >= _FILL_FROM_MESSAGES
    if filled:
        cache.fill()
    one = run_shares([share(True, every, total)])
    if filled:
        cache.fill()
    several = run_shares([share(True, every, total // writers) for _ in range(writers)])
    written = sum(each.messages for each in (*one, *several))
    parts = [every[part * len(every) // readers : (part + 1) * len(every) // readers] for part in range(readers)]
    if filled:
        cache.fill()
    # What was written lies evenly in the queues, but for the rounding of each writer's share.
    read = run_shares([share(False, part, written // readers - (writers + 1) * len(part)) for part in parts])
    return {
        "write_1": rate_of(one),
        "write_n": rate_of(several),
        "read_n": rate_of(read),
        "peak_resident_bytes": float(max(peak_resident_bytes(pid) for pid in servers.pids)),
        "disk_bytes": float(disk_bytes(servers.directory)),
    }


async def _create_topic(urls: str, queues: int, ack: Ack) -> None:
    async with Client(urls) as client:
        await client.create_topic(TOPIC, queues=queues, ack=ack)


def _table(result: dict[str, Any]) -> TextTable:
    options = result["options"]
    table = TextTable(
        f"{options['messages']:,} messages of {options['message_bytes']} bytes, {options['in_flight']:,} in flight, "
        f"{options['queues']:,} queues; every acknowledgement after fdatasync",
        (
            "case",
            "write, 1 client",
            f"write, {options['writers']} clients",
            f"read, {options['readers']} clients",
            "a node's peak memory",
            "disk of all",
        ),
        [],
    )
    for each in result["cases"]:
        case = ClusterCase(each["nodes"], each["ack"])
        sizes = (mebibytes_text(each[name]["median"]) for name in ("peak_resident_bytes", "disk_bytes"))
        table.rows.append((str(case), *(rate_text(each[name]) for name in _FIGURES), *sizes))
        if case.nodes > 1:
            found = (result["ratios"][f"{name}/{case.nodes}/{case.ack}"] for name in _FIGURES)
            table.rows.append(("  one node = 1", *map(ratio_text, found), "", ""))
    return table


_NOTES = [
    "All nodes and clients are processes of this machine and share its cores and its disk: a cluster does the work of "
    "three replicas here, which elsewhere three machines would do.",
    "Clients are Python processes, one Producer each, a message a send; readers commit their offsets after each poll.",
    "ack=quorum: on the disk of every replica in sync. ack=leader: on the leader's.",
    "Cases take turns on fresh files; medians (least-greatest).",
    PAGE_CACHE_NOTE,
]

BENCH = CallableBench(
    name="cluster",
    description="What replication costs: writes and reads on one node, and on three that replicate everything.",
    options=OPTIONS,
    run=run,
)
