"""``lsmq bench latency``: how long a message takes from the producer to the consumer when little is going on.

One message at a time, at a steady low rate, into random queues of a topic on three replicas; one consumer has all its
queues, by long poll or by push. The time counts from when the message was due to be sent until the application has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping
from typing import Any

from lsmq import Client, Consumer, Producer, PushConsumer
from lsmq.topics import Ack

from ..local_cluster import LocalCluster, found_plan
from .callable import CallableBench
from .environment import cpu_seconds, describe, environment
from .isolate import run_case, scratch
from .report import QUICK, BenchReport, Option, TellProgress, TextTable, percentile_ms, spreads

OPTIONS = (
    Option("rate", 200, "Messages a second."),
    Option("message_bytes", 200, "Size of a message.", low=16),
    Option("seconds", 8, "Length of each measurement.", quick=1),
    Option("many_queues", 100_000, "Queues of the largest topic.", quick=2_000),
    Option("nodes", 3, "Nodes of the cluster, with a replica each."),
    Option("repeat", 3, "Repetitions; the cases take turns.", quick=1),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
_FACES = ("long poll", "push")
_ACKS = ("leader", "quorum")
_PARTS = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
_CPU = ("leader CPU", "follower CPU", "client CPU")
_WARM_UP_S = 1.0
_SETTLE_S = 0.5


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Measure every case in turn."""
    counts = sorted({1, min(1_000, values["many_queues"]), values["many_queues"]})
    cases = [(face, queues, ack) for queues in counts for face in _FACES for ack in _ACKS]
    taken: dict[tuple[str, int, str], list[dict[str, float]]] = {case: [] for case in cases}
    sizes = {"rate": values["rate"], "each": values["message_bytes"], "seconds": float(values["seconds"])}
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        progress(describe(facts))
        plan = found_plan(nodes=values["nodes"], shards=1, replicas=values["nodes"])
        cluster = LocalCluster.found(directory / "cluster", plan, detached=False)
        try:
            urls = ",".join(node.url for node in cluster.up().nodes)
            for repetition in range(values["repeat"]):
                for case in cases:
                    face, queues, ack = case
                    pids = {node.id: node.pid for node in cluster.status().nodes if node.pid is not None}
                    leader = str(cluster.status().shards[0].leader)
                    used = {node: -cpu_seconds(pid) for node, pid in pids.items()}
                    found = run_case(measure, urls=urls, face=face, queues=queues, ack=ack, **sizes)
                    messages = values["rate"] * (values["seconds"] + _WARM_UP_S)
                    cpu_ms = {node: 1000 * (used[node] + cpu_seconds(pid)) / messages for node, pid in pids.items()}
                    led = cpu_ms.pop(leader, 0.0)
                    taken[case].append(
                        {**found, "leader_cpu_ms": led, "follower_cpu_ms": max(cpu_ms.values(), default=0.0)}
                    )
                    progress(
                        f"{repetition + 1}/{values['repeat']}: {face}, {queues:,} queues, ack={ack}: "
                        f"p99 {found['receive_p99_ms']:.1f} ms"
                    )
        finally:
            cluster.down()
    result = {
        "bench": "latency",
        "environment": facts,
        "options": dict(values),
        "cases": [
            {"face": face, "queues": queues, "ack": ack, **spreads(runs)} for (face, queues, ack), runs in taken.items()
        ],
    }
    return BenchReport(result, [_table(result)], [describe(facts), *_NOTES])


def measure(urls: str, face: str, queues: int, ack: Ack, rate: int, each: int, seconds: float) -> dict[str, float]:
    """One case, in a process of its own: producer and consumer share its event loop."""

    async def work() -> dict[str, float]:
        produced: list[float] = []
        received: list[float] = []
        warm_up, count = int(rate * _WARM_UP_S), int(rate * (seconds + _WARM_UP_S))
        due = [0.0] * count
        choose = random.Random(queues)

        async def send(producer: Producer, number: int) -> None:
            body = f"{number} ".encode().ljust(each, b"x")
            await producer.send_and_wait(body, queue=choose.randrange(queues))
            if number >= warm_up:
                produced.append(time.monotonic() - due[number])

        async with Client(urls) as client, contextlib.AsyncExitStack() as stack:
            topic = f"q{queues}"
            await client.create_topic(topic, queues=queues)
            producer = await stack.enter_async_context(Producer(client, topic, linger_ms=0, ack=ack))
            consumer: Consumer | PushConsumer = await stack.enter_async_context(_consumer(client, topic, face))

            async def take() -> None:
                seen = 0
                while seen < count:
                    for message in await consumer.poll():
                        number = int(message.body.split(b" ", 1)[0])
                        seen += 1
                        if number >= warm_up:
                            received.append(time.monotonic() - due[number])
                    if isinstance(consumer, PushConsumer):
                        consumer.ack()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(take())
                await asyncio.sleep(_SETTLE_S)  # A stream that begins at the latest message is to have begun.
                used = time.process_time()
                began = time.monotonic()
                for number in range(count):
                    due[number] = began + number / rate
                    await asyncio.sleep(max(0.0, due[number] - time.monotonic()))
                    tasks.create_task(send(producer, number))
        return {
            "client_cpu_ms": 1000 * (time.process_time() - used) / count,
            **{
                f"{kind}_{name}_ms": percentile_ms(times, part)
                for kind, times in (("receive", received), ("produce", produced))
                for name, part in _PARTS.items()
            },
        }

    return asyncio.run(work())


def _consumer(client: Client, topic: str, face: str) -> Consumer | PushConsumer:
    if face == "push":
        return PushConsumer(client, topic, group="latency", mode="broadcast", start="latest")
    return Consumer(client, topic, start="latest")


def _table(result: Mapping[str, Any]) -> TextTable:
    options = result["options"]
    table = TextTable(
        f"{options['rate']:,} messages/s of {options['message_bytes']:,} bytes; ms from produce to receive",
        ("consumer", "its queues", "ack", *(f"receive {name}" for name in _PARTS), "produce p50", "produce p99", *_CPU),
        [],
    )
    for each in result["cases"]:
        names = [f"receive_{name}_ms" for name in _PARTS] + ["produce_p50_ms", "produce_p99_ms"]
        cpu = (f"{each[f'{name.split()[0]}_cpu_ms']['median']:.1f}" for name in _CPU)
        table.rows.append(
            (each["face"], f"{each['queues']:,}", each["ack"], *(_text(each[name]) for name in names), *cpu)
        )
    return table


def _text(figures: Mapping[str, float]) -> str:
    return f"{figures['median']:.1f} ({figures['min']:.1f}-{figures['max']:.1f})"


_NOTES = [
    "Milliseconds from when a message was due to be sent, so that waiting counts; the producer and the consumer are "
    "one process, which shares the machine with all nodes.",
    "CPU of the leader's process, a follower's and the client's, for each message: where the machine has other work, "
    "times say more about that.",
    "A message is shown once all replicas in sync have it on their disks, whatever ack says; ack is when the producer "
    "hears of it.",
    "Cases take turns on the same cluster; medians (least-greatest) of the repetitions.",
]

BENCH = CallableBench(
    name="latency",
    description="From the producer to the consumer at a low rate: by long poll and by push, over one queue and many.",
    options=OPTIONS,
    run=run,
)
