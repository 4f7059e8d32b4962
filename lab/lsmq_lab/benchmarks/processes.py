"""``lsmq bench processes``: what a node does in one process and in several, under a load that costs it nothing.

The load is packed beforehand: whole HTTP requests with record batches in them, which one thread writes to its sockets
again and again (:mod:`~.replay`). So what the machine has is left to the node, and two processes can be told from one
on two cores.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsmq import Client
from lsmq_lab.benchmarks import replay
from lsmq_lab.benchmarks.callable import CallableBench
from lsmq_lab.benchmarks.environment import cpu_seconds, describe, environment, resident_bytes
from lsmq_lab.benchmarks.isolate import run_case, scratch
from lsmq_lab.benchmarks.report import (
    QUICK,
    BenchFailed,
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
from lsmq_lab.benchmarks.server_processes import stop
from lsmq_node.processes.plan import PORTS_PER_PROCESS
from lsmq_node.processes.ports import free_block

OPTIONS = (
    Option("seconds", 8, "Length of each measurement.", quick=1),
    Option("processes", 2, "Compare one process with so many."),
    Option("batch", 1_000, "Messages of one request."),
    Option("message_bytes", 58, "Size of a message.", low=1),
    Option("queues", 1_200, "Queues of the topic."),
    Option("connections", 4, "Connections to the leader of each shard, one request at a time on each."),
    Option("flush", "sync", "When it acknowledges: sync, after fdatasync, or async."),
    Option("repeat", 3, "Repetitions; the cases take turns.", quick=1),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
TOPIC = "bench"


@dataclass(frozen=True, slots=True)
class _Case:
    processes: int
    shards: int

    def __str__(self) -> str:
        return f"{self.processes} process{'es' * (self.processes > 1)}, {self.shards} shard{'s' * (self.shards > 1)}"


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Each case on fresh files: as many messages as it takes in the time."""
    if values["flush"] not in ("sync", "async"):
        raise BenchFailed(f"option flush must be sync or async, not {values['flush']!r}")
    several = values["processes"]
    cases = [_Case(1, 1), _Case(1, several), _Case(several, several)]
    taken: dict[_Case, list[dict[str, float]]] = {case: [] for case in cases}
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        progress(describe(facts))
        for repetition in range(values["repeat"]):
            for case in cases:
                progress(f"{repetition + 1}/{values['repeat']}: {case}")
                with scratch(str(directory)) as place:
                    taken[case].append(_measure(values, case, place))
    found: list[dict[str, Any]] = [
        {"processes": case.processes, "shards": case.shards, **spreads(runs)} for case, runs in taken.items()
    ]
    result: dict[str, Any] = {
        "bench": "processes",
        "environment": facts,
        "options": dict(values),
        "cases": found,
        "ratios": {f"{each['processes']}/{each['shards']}": ratio(each["write"], found[0]["write"]) for each in found},
    }
    return BenchReport(result, [_table(result)], _NOTES)


def _measure(values: Mapping[str, Any], case: _Case, place: Path) -> dict[str, float]:
    with _serving(values, case, place) as (url, pid):
        asyncio.run(_create_topic(url, values["queues"]))
        pids = _family(pid)
        before = sum(map(cpu_seconds, pids))
        sizes = {name: values[name] for name in ("batch", "message_bytes", "connections", "seconds")}
        load = run_case(replay.load, url=url, topic=TOPIC, **sizes)
        used_s = sum(map(cpu_seconds, pids)) - before
        memory = sum(map(_own_bytes, pids))
    return {
        "write": load["messages"] / load["seconds"],
        "node_us": 1e6 * used_s / load["messages"],
        "load_us": 1e6 * load["cpu_seconds"] / load["messages"],
        "node_cores": used_s / load["seconds"],
        "load_cores": load["cpu_seconds"] / load["seconds"],
        "resident_bytes": float(memory),
    }


async def _create_topic(url: str, queues: int) -> None:
    async with Client(url) as client:
        await client.create_topic(TOPIC, queues=queues)


@contextmanager
def _serving(values: Mapping[str, Any], case: _Case, place: Path) -> Iterator[tuple[str, int]]:
    """``lsmq serve`` over the directory: its URL and pid."""
    port = free_block("127.0.0.1", (case.processes + 1) * PORTS_PER_PROCESS)
    command = [sys.executable, "-m", "lsmq", "serve", "--data", str(place / "data"), "--port", str(port)]
    command += ["--processes", str(case.processes), "--shards", str(case.shards), "--flush-mode", values["flush"]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LSMQ_")}
    log_path = place / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-12:])
            raise BenchFailed(f"{case} did not come up:\n{tail}")
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        stop(process)
        process.stdout.close()


def _family(pid: int) -> list[int]:
    """A process and its children. Those of a node of one process, which watch it, use nothing."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _own_bytes(pid: int) -> int:
    """What a process has in memory, but files; pages that it shares with others counted by parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return resident_bytes(pid)


def _table(result: Mapping[str, Any]) -> TextTable:
    options = result["options"]
    durable = "fdatasync" if options["flush"] == "sync" else "write"
    table = TextTable(
        f"{options['message_bytes']}-byte messages, {options['batch']:,} a request, {options['connections']} "
        f"connections a shard, {options['queues']:,} queues; acknowledged after {durable}",
        ("case", "write", "to 1 process", "node, cores", "node, us a message", "load, us a message", "memory"),
        [],
    )
    for each in result["cases"]:
        table.rows.append(
            (
                str(_Case(each["processes"], each["shards"])),
                rate_text(each["write"]),
                ratio_text(result["ratios"][f"{each['processes']}/{each['shards']}"]),
                f"{each['node_cores']['median']:.2f}",
                f"{each['node_us']['median']:.2f}",
                f"{each['load_us']['median']:.3f}",
                mebibytes_text(each["resident_bytes"]["median"]),
            )
        )
    return table


_NOTES = [
    "The load is one thread that writes requests packed beforehand, and reads of each answer its status and length.",
    "Node and load share the cores of this machine: what the load used is not there for the node.",
    "Processor time is that of all processes of the node, the one that holds the third vote included.",
    "Cases take turns on fresh files; medians (least-greatest).",
]

BENCH = CallableBench(
    name="processes",
    description="A node in one process and in several: writes from a load that is packed beforehand.",
    options=OPTIONS,
    run=run,
)
