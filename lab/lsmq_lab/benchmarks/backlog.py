"""``lsmq bench backlog``: what a reader far behind costs those at the end of the log.

A live producer and a consumer at the end run at a steady rate on a cluster of three nodes. Beside them a reader drains
a backlog of the same shard over and over, at a rate of its own. Four cases take turns of a few seconds: no such reader;
one that the leader sends to a follower; in its place one that needs as much processor time and reads nothing, which
shows what this machine makes of a busy neighbour; and a reader that insists on the leader, as all would without the
redirect. The live clients and the reader go on from turn to turn, each in one process: what disturbs the machine for a
minute, and their own start, meets all cases alike.

A redirect moves work from one machine to another, which cannot be seen where both are one. So cores stand in for
machines: the leader and the live clients have one half of the cores to themselves, the followers and the reader of the
backlog the other (``machines``). What they still share is the disk, and the memory.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from lsmq import Client, Consumer, Producer

from ..local_cluster import LocalCluster, found_plan
from .callable import CallableBench
from .environment import cpu_seconds, describe, environment, pin
from .isolate import run_case, scratch
from .report import (
    QUICK,
    BenchFailed,
    BenchReport,
    Option,
    TellProgress,
    TextTable,
    percentile_ms,
    ratio,
    ratio_text,
    spreads,
)

OPTIONS = (
    Option("backlog_mib", 512, "Size of the backlog that is drained.", quick=24),
    Option("backlog_message_bytes", 4_000, "Size of one of its messages.", low=64),
    Option("drain_mib_s", 40, "The reader drains it at this rate, over and over; 0: as fast as it can.", low=0),
    Option("live_rate", 200, "Live messages a second, each sent and received alone."),
    Option("live_message_bytes", 200, "Size of a live message.", low=16),
    Option("seconds", 3, "Length of each turn.", quick=1),
    Option("turns", 6, "Turns of each case in a repetition, measured together.", quick=2),
    Option("rest_seconds", 8, "Rest after the backlog is written: what it has to be merged is over then.", quick=1),
    Option("memtable_mib", 16, "Memory for messages at each node; what is older is read from files.", quick=2),
    Option(
        "replicas", 3, "Nodes, each with a replica; every one has a write on its disk before it is acknowledged.", low=2
    ),
    Option("machines", "split", "split: cores for the leader, and others for the followers; shared: all for all."),
    Option("repeat", 5, "Repetitions, each with all turns of all cases.", quick=1),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
_BACKLOG, _LIVE = "backlog", "live"
_QUEUES = 8
_NODES = 3  # that vote, at least
_UNDISTURBED, _REDIRECTED, _NEIGHBOUR, _LEADER = "undisturbed", "redirect", "busy neighbour", "no redirect"
_READ_FROM: dict[str, Any] = {_REDIRECTED: "auto", _LEADER: "leader"}
CASES = (_UNDISTURBED, _REDIRECTED, _NEIGHBOUR, _LEADER)
_LATENCIES = ("produce_p50_ms", "produce_p99_ms", "receive_p50_ms", "receive_p99_ms")
_LATENCY_TITLES = ("produce p50", "produce p99", "receive p50", "receive p99")
_CORES = ("leader_cores", "follower_cores")
_START_S = 2.5  # until all processes of a repetition are there
_SETTLE_S = 1.0  # of each turn: not measured
_IN_FLIGHT = 2_000
_LOWEST_PRIORITY = 19
_BUSY_S = 0.002
_POLL_MS = 500
_MIB = 1 << 20


class CaseTurn(NamedTuple):
    """A case from ``begin`` on, by the monotonic clock; once it has settled it is measured for ``seconds``."""

    case: str
    begin: float
    seconds: float

    @property
    def end(self) -> float:
        return self.begin + _SETTLE_S + self.seconds


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Fill the backlog once, then measure every case in turn."""
    near, far = _halves(values["machines"])
    taken: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    memtable_bytes = values["memtable_mib"] * _MIB
    settings = {
        "memtable_bytes": memtable_bytes,
        "max_message_bytes": min(_MIB, memtable_bytes // 4),
        "backlog_redirect_bytes": memtable_bytes,
    }
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        progress(describe(facts))
        plan = found_plan(
            nodes=max(_NODES, values["replicas"]), shards=1, replicas=values["replicas"], settings=settings
        )
        cluster = LocalCluster.found(directory / "cluster", plan, detached=False)
        try:
            urls = ",".join(node.url for node in cluster.up().nodes)
            began = time.monotonic()
            run_case(fill, urls=urls, size_bytes=values["backlog_mib"] * _MIB, each=values["backlog_message_bytes"])
            progress(f"a backlog of {values['backlog_mib']} MiB after {time.monotonic() - began:.0f} s")
            time.sleep(values["rest_seconds"])
            for repetition in range(values["repeat"]):
                for case, figures in _repetition(values, urls, cluster, near, far).items():
                    taken[case].append(figures)
                    p99 = figures["receive_p99_ms"]
                    progress(f"{repetition + 1}/{values['repeat']}: {case}: p99 to receive {p99:.1f} ms")
        finally:
            cluster.down()
    cases: list[dict[str, Any]] = [{"case": case, **spreads(runs)} for case, runs in taken.items()]
    ratios = {
        f"{name}/{each['case']}": ratio(each[name], cases[0][name])
        for each in cases[1:]
        for name in (*_LATENCIES, *_CORES)
    }
    result = {
        "bench": "backlog",
        "environment": facts,
        "options": dict(values),
        "cases": cases,
        "ratios": ratios,
    }
    return BenchReport(result, [_table(result)], _NOTES)


def _halves(machines: str) -> tuple[list[int], list[int]]:
    """The cores of the leader and the live clients, and those of the followers and the reader of the backlog."""
    cores = sorted(os.sched_getaffinity(0))
    if machines not in ("split", "shared"):
        raise BenchFailed(f"machines is {machines!r}; it must be split or shared")
    if machines == "shared" or len(cores) < 2:
        return cores, cores
    return cores[: len(cores) // 2], cores[len(cores) // 2 :]


def _repetition(
    values: Mapping[str, Any], urls: str, cluster: LocalCluster, near: Sequence[int], far: Sequence[int]
) -> dict[str, dict[str, float]]:
    """The live clients in one process, the reader of the backlog in another; the figures of each case."""
    seconds = float(values["seconds"])
    status = cluster.status()
    leader = str(status.shards[0].leader)
    pids = {node.id: node.pid for node in status.nodes if node.pid is not None}
    for node, pid in pids.items():
        pin(pid, near if node == leader else far)
    begin = time.monotonic() + _START_S
    turns = [
        CaseTurn(case, begin + number * (_SETTLE_S + seconds), seconds)
        for number, case in enumerate(CASES * values["turns"])
    ]
    used: dict[str, dict[str, float]] = {case: dict.fromkeys(pids, 0.0) for case in CASES}
    with ThreadPoolExecutor(2) as pool:
        living = pool.submit(
            lambda: run_case(
                live,
                urls=urls,
                cores=list(near),
                turns=turns,
                rate=values["live_rate"],
                each=values["live_message_bytes"],
            )
        )
        reading = pool.submit(
            lambda: run_case(beside, urls=urls, cores=list(far), turns=turns, rate=values["drain_mib_s"] * _MIB)
        )
        for turn in turns:
            for moment, sign in ((turn.begin + _SETTLE_S, -1), (turn.end, 1)):
                time.sleep(max(0.0, moment - time.monotonic()))
                for node, pid in pids.items():
                    used[turn.case][node] += sign * cpu_seconds(pid)
        latencies, reader = living.result(), reading.result()
    measured_s = seconds * values["turns"]
    found = {}
    for case in CASES:
        cores = {node: cpu_s / measured_s for node, cpu_s in used[case].items()}
        led = cores.pop(leader, 0.0)
        found[case] = {
            **latencies[case],
            **reader[case],
            "leader_cores": led,
            "follower_cores": max(cores.values()),
        }
    return found


# What runs in processes of its own


def fill(urls: str, size_bytes: int, each: int) -> dict[str, Any]:
    """Make both topics and write the backlog."""

    async def write() -> None:
        async with Client(urls, deadline_ms=120_000) as client:
            await client.create_topic(_LIVE)
            await client.create_topic(_BACKLOG, queues=_QUEUES)
            body = os.urandom(each)
            async with Producer(client, _BACKLOG, linger_ms=1) as producer:
                for number in range(size_bytes // each):
                    receipt = await producer.send(body, queue=number % _QUEUES)
                    if number % _IN_FLIGHT == 0:
                        await receipt
                await producer.flush()

    asyncio.run(write())
    return {}


def live(urls: str, cores: Sequence[int], turns: Sequence[Any], rate: int, each: int) -> dict[str, Any]:
    """Send one message at a time, at a rate, and receive it: how long each took from when it was due, by case.

    Each is due at a moment of its own slot: at even distances they could keep step with the reader's requests.
    """
    pin(os.getpid(), cores)
    schedule = [CaseTurn(*turn) for turn in turns]

    async def work() -> dict[str, Any]:
        begin, count = schedule[0].begin, int(rate * (schedule[-1].end - schedule[0].begin))
        produced: dict[str, list[float]] = {case: [] for case in CASES}
        received: dict[str, list[float]] = {case: [] for case in CASES}
        each_s = schedule[0].end - begin
        moments = random.Random(count)
        due_at = [begin + (number + moments.random()) / rate for number in range(count)]

        def add(to: dict[str, list[float]], number: int) -> None:
            due = due_at[number]
            turn = schedule[min(int((due - begin) / each_s), len(schedule) - 1)]
            if due >= turn.begin + _SETTLE_S:
                to[turn.case].append(time.monotonic() - due)

        async def send(producer: Producer, number: int) -> None:
            await producer.send_and_wait(f"{number} ".encode().ljust(each, b"x"))
            add(produced, number)

        async with (
            Client(urls) as client,
            Producer(client, _LIVE, linger_ms=0) as producer,
            Consumer(client, _LIVE, start="latest") as consumer,
        ):

            async def take() -> None:
                last = -1
                while last < count - 1:
                    for message in await consumer.poll():
                        last = int(message.body.split(b" ", 1)[0])
                        add(received, last)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(take())
                for number, due in enumerate(due_at):
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    tasks.create_task(send(producer, number))
        return {
            case: {
                "produce_p50_ms": percentile_ms(produced[case], 0.5),
                "produce_p99_ms": percentile_ms(produced[case], 0.99),
                "receive_p50_ms": percentile_ms(received[case], 0.5),
                "receive_p99_ms": percentile_ms(received[case], 0.99),
            }
            for case in CASES
        }

    return asyncio.run(work())


def beside(urls: str, cores: Sequence[int], turns: Sequence[Any], rate: int) -> dict[str, Any]:
    """Drain the backlog at ``rate`` bytes a second (0: without limit), or be a busy neighbour, or nothing: by turns.

    Says of each case what was drained, and the share of a core it took.
    """
    pin(os.getpid(), cores)
    _only_idle_time()  # What it does with the messages is its own affair, on a machine of its own.

    async def work() -> dict[str, Any]:
        took = dict.fromkeys(CASES, 0.0)
        used = dict.fromkeys(CASES, 0.0)
        taken = dict.fromkeys(CASES, 0)
        async with Client(urls) as client:
            backlog = Backlog(client, (await client.offsets(_BACKLOG)).latest)
            for turn in (CaseTurn(*each) for each in turns):
                await asyncio.sleep(max(0.0, turn.begin - time.monotonic()))
                began, cpu_s = time.monotonic(), time.process_time()
                if turn.case in _READ_FROM:
                    taken[turn.case] += await backlog.drain(_READ_FROM[turn.case], rate, turn.end)
                elif turn.case == _NEIGHBOUR:
                    burn(used[_REDIRECTED] / took[_REDIRECTED], turn.end)
                took[turn.case] += time.monotonic() - began
                used[turn.case] += time.process_time() - cpu_s
        return {
            case: {
                "drained_mib_s": taken[case] / _MIB / took[case] if taken[case] else 0.0,
                "reader_cores": used[case] / took[case] if case != _UNDISTURBED else 0.0,
            }
            for case in CASES
        }

    return asyncio.run(work())


class Backlog:
    """It is read from its begin to its end, again and again; every turn goes on where the last one stopped."""

    def __init__(self, client: Client, ends: Sequence[int]) -> None:
        self._client = client
        self._ends = ends
        self._positions: dict[int, int] = {}

    async def drain(self, read_from: Any, rate: int, until: float) -> int:
        """Bytes that were read until then."""
        began, taken = time.monotonic(), 0
        while time.monotonic() < until:
            async with Consumer(self._client, _BACKLOG, read_from=read_from) as consumer:
                for queue, offset in self._positions.items():
                    consumer.seek(queue, offset)
                while time.monotonic() < until:
                    messages = await consumer.poll(timeout_ms=_POLL_MS)
                    taken += sum(len(message.body) for message in messages)
                    self._positions = dict(consumer.positions)
                    if all(self._positions[queue] >= end for queue, end in enumerate(self._ends)):
                        self._positions = {}
                        break
                    if rate:
                        await asyncio.sleep(max(0.0, min(began + taken / rate, until) - time.monotonic()))
        return taken


def burn(share: float, until: float) -> None:
    """Need this share of a core, as a reader of the backlog does, for nothing."""
    began, used = time.monotonic(), time.process_time()
    while (now := time.monotonic()) < until:
        if time.process_time() - used < share * (now - began):
            busy_until = time.process_time() + _BUSY_S
            while time.process_time() < busy_until:
                pass
        else:
            time.sleep(_BUSY_S)


def _only_idle_time() -> None:
    """Run when nobody else wants to, and make way at once for whoever does."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_LOWEST_PRIORITY)


# The report


def _table(result: dict[str, Any]) -> TextTable:
    options = result["options"]
    table = TextTable(
        f"{options['live_rate']:,} live messages/s on one shard of {options['replicas']} replicas; a backlog of "
        f"{options['backlog_mib']:,} MiB in the same shard",
        ("backlog reader", "drained, MiB/s", *_LATENCY_TITLES, "leader's CPU", "a follower's"),
        [],
    )
    for each in result["cases"]:
        drained = each["drained_mib_s"]["median"]
        figures = (_ms_text(each[name]) for name in _LATENCIES)
        cores = (f"{100 * each[name]['median']:.0f} %" for name in _CORES)
        table.rows.append((each["case"], f"{drained:.0f}" if drained else "-", *figures, *cores))
        if each["case"] != _UNDISTURBED:
            ratios = (ratio_text(result["ratios"][f"{name}/{each['case']}"]) for name in (*_LATENCIES, *_CORES))
            table.rows.append((f"  {_UNDISTURBED} = 1", "", *ratios))
    return table


def _ms_text(figures: Mapping[str, float]) -> str:
    return f"{figures['median']:.1f} ms ({figures['min']:.1f}-{figures['max']:.1f})"


_NOTES = [
    "Milliseconds from when a message was due to be sent, so that waiting counts; ack=quorum, on the disks of all "
    "replicas.",
    "redirect: the reader asks the leader and is sent to a follower. no redirect: it asks the leader to answer it all "
    "(read_from='leader'). busy neighbour: in the reader's place one that needs as much processor time and reads "
    "nothing; what that costs is the machine's doing.",
    "machines=split: the leader and the live clients run on one half of the cores, the followers and the reader on the "
    "other, as on machines of their own; disk and memory they still share. machines=shared: what the follower uses is "
    "missing elsewhere. The reader itself runs when nobody else wants to.",
    "CPU: of the leader's process and of the busiest follower's, in hundredths of a core.",
    "Cases take turns of a few seconds on the same cluster; of a repetition, what all turns of a case have together; "
    "medians (least-greatest) of the repetitions.",
]

BENCH = CallableBench(
    name="backlog",
    description="What a consumer far behind costs the others: sent to a follower, and reading from the leader.",
    options=OPTIONS,
    run=run,
)
