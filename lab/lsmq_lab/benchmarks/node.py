"""``lsmq bench node``: a node over the loopback interface, beside a Redis list in the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsmq import Client
from lsmq_lab.benchmarks.callable import CallableBench
from lsmq_lab.benchmarks.environment import describe, environment
from lsmq_lab.benchmarks.isolate import scratch
from lsmq_lab.benchmarks.node_clients import TOPIC, Share, rate_of, run_shares
from lsmq_lab.benchmarks.node_servers import (
    LSMQ,
    NATIVE_CLIENTS,
    NATIVE_PIPELINE,
    PAIRS,
    REDIS,
    TLS_PAIRS,
    Server,
    Setup,
    missing,
    redis_native,
    running,
)
from lsmq_lab.benchmarks.node_ways import WAYS_TOPIC, measure_ways, ways_table
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

OPTIONS = (
    Option("messages", 300_000, "Messages of each measurement, over all its clients.", quick=20_000),
    Option("message_bytes", 58, "Size of a message.", low=16),
    Option("in_flight", 10_000, "Messages of one client that wait for their acknowledgement, at most."),
    Option("writers", 4, "Clients of the second write."),
    Option("readers", 5, "Clients that read, each its own queue or list."),
    Option("repeat", 3, "Repetitions; the servers take turns.", quick=1),
    Option("tls", False, "Beside itself without TLS, and not beside Redis: what TLS costs."),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
SetupPairs = Sequence[tuple[Setup, Setup]]
_FIGURES = ("write_1", "write_n", "read_n")


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Write with one client, write with several, read with several: each server on fresh files."""
    pairs = TLS_PAIRS if values["tls"] else PAIRS
    remedies = [] if values["tls"] else missing()
    for remedy in remedies:
        progress(remedy)
    setups = [setup for pair in pairs for setup in pair if setup.server == LSMQ or not remedies]
    taken: dict[Setup, list[dict[str, float]]] = {setup: [] for setup in setups}
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        progress(describe(facts))
        for repetition in range(values["repeat"]):
            for setup in setups:
                progress(f"{repetition + 1}/{values['repeat']}: {setup}")
                with scratch(str(directory)) as place:
                    taken[setup].append(_measure(values, setup, place / "server"))
    servers = [{"server": setup.server, "durability": setup.promise, **spreads(runs)} for setup, runs in taken.items()]
    result: dict[str, Any] = {
        "bench": "node",
        "environment": facts,
        "options": dict(values),
        "missing": remedies,
        "servers": servers,
        "ratios": _ratios(servers, pairs),
    }
    return BenchReport(result, _tables(result, pairs), [*(_TLS_NOTES if values["tls"] else _NOTES), *remedies])


def _measure(values: Mapping[str, Any], setup: Setup, directory: Path) -> dict[str, float]:
    queues = tuple(range(values["readers"]))
    with running(setup, directory) as server:
        if setup.server == LSMQ:
            asyncio.run(_create_topic(server.address, len(queues)))
        one = run_shares([_share(values, setup, server, True, queues, values["messages"])])
        writers = _split(values["messages"], values["writers"])
        several = run_shares([_share(values, setup, server, True, queues, count) for count in writers])
        # What was written lies evenly in the queues but for the rounding of each writer's share.
        written = sum(each.messages for each in (*one, *several))
        readable = written // len(queues) - values["writers"] - 1
        read = run_shares([_share(values, setup, server, False, (queue,), readable) for queue in queues])
        more = None
        if setup.server == REDIS:
            more = redis_native(server.address, values["message_bytes"], values["messages"])
        else:
            more = measure_ways(values, server, queues)
        return (more or {}) | {
            "write_1": rate_of(one),
            "write_n": rate_of(several),
            "read_n": rate_of(read),
            "peak_resident_bytes": float(server.peak_resident_bytes()),
            "disk_bytes": float(server.disk_bytes()),
        }


def _share(
    values: Mapping[str, Any],
    setup: Setup,
    server: Server,
    writes: bool,
    queues: tuple[int, ...],
    messages: int,
) -> Share:
    return Share(setup.server, server.address, writes, queues, messages, values["message_bytes"], values["in_flight"])


def _split(total: int, parts: int) -> list[int]:
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


async def _create_topic(url: str, queues: int) -> None:
    async with Client(url) as client:
        for topic in (TOPIC, WAYS_TOPIC):
            await client.create_topic(topic, queues=queues)


def _ratios(servers: list[dict[str, Any]], pairs: SetupPairs) -> dict[str, float | None]:
    """Ours over what it stands beside, figure by figure."""
    by_setup = {(each["server"], each["durability"]): each for each in servers}
    return {
        f"{name}/{ours.promise}/{theirs.promise}": ratio(
            by_setup[ours.server, ours.promise][name],
            beside[name] if (beside := by_setup.get((theirs.server, theirs.promise))) is not None else None,
        )
        for ours, theirs in pairs
        for name in _FIGURES
    }


def _tables(result: dict[str, Any], pairs: SetupPairs) -> list[TextTable]:
    options, ratios = result["options"], result["ratios"]
    table = TextTable(
        f"{options['messages']:,} messages of {options['message_bytes']} bytes, {options['in_flight']:,} in flight",
        (
            "server",
            "write, 1 client",
            f"write, {options['writers']} clients",
            f"read, {options['readers']} clients",
            "peak memory",
            "disk",
        ),
        [],
    )
    for each in result["servers"]:
        table.rows.append(
            (
                f"{each['server']} {each['durability']}",
                *(rate_text(each[name]) for name in _FIGURES),
                mebibytes_text(each["peak_resident_bytes"]["median"]),
                mebibytes_text(each["disk_bytes"]["median"]),
            )
        )
    for ours, theirs in pairs:
        figures = (ratio_text(ratios[f"{name}/{ours.promise}/{theirs.promise}"]) for name in _FIGURES)
        table.rows.append((f"{ours}, {theirs} = 1", *figures, "", ""))
    native = TextTable(
        f"Redis under its own client in C: {NATIVE_CLIENTS} clients, pipelines of {NATIVE_PIPELINE}",
        ("server", "LPUSH", "RPOP"),
        [
            (
                f"{each['server']} {each['durability']}",
                rate_text(each["native_write"]),
                rate_text(each["native_read"]),
            )
            for each in result["servers"]
            if "native_write" in each
        ],
    )
    return [table, ways_table(result["servers"]), *([native] if native.rows else [])]


_NOTES = [
    "Clients are Python processes on the same machine; the servers take turns; medians (least-greatest).",
    "lsmq: one Producer a client, a message a send; readers commit their offsets after each poll. Way by way: "
    "send_many and send_batch are given half of the messages in flight at a time.",
    "redis: a list a queue, pipelines of LPUSH as long as the messages in flight, and of 1,000 RPOP to read; "
    "redis-py with hiredis. The Python client is what holds Redis back here: see what redis-benchmark gets.",
    "lsmq sync and redis always acknowledge after fdatasync; lsmq async after write(2), with fdatasync "
    "bounded by time and bytes; redis everysec has one a second.",
]

_TLS_NOTES = [
    *_NOTES[:2],
    "TLS 1.3, in the process of the node and in each client's; without it a backlog leaves by sendfile.",
]

BENCH = CallableBench(
    name="node",
    description="A node over the socket: writes and reads by several clients; beside a Redis list.",
    options=OPTIONS,
    run=run,
)
