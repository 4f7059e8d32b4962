"""``lsmq bench work``: consumers of a work queue take and acknowledge messages one by one; how many, and how soon.

The same messages, in a topic of a few queues and in one of very many of which most are idle, are taken by one consumer
and by several: of a work queue, and beside it by plain consumers, which commit offsets. A Redis stream with a consumer
group does what a work queue does. Then one message at a time: how long until a waiting consumer has it.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from lsmq import Client, Consumer, Message, Producer, WorkQueue

from .callable import CallableBench
from .environment import describe, environment, resident_bytes
from .isolate import run_case, scratch
from .node_servers import LSMQ, REDIS, Setup, missing, running
from .report import (
    QUICK,
    BenchFailed,
    BenchReport,
    Option,
    TellProgress,
    TextTable,
    percentile_ms,
    rate_text,
    ratio,
    ratio_text,
    spread,
    spreads,
)

WORK, PLAIN, STREAM = "work queue", "plain consumer", "redis stream"
OPTIONS = (
    Option("messages", 100_000, "Messages to take.", quick=2_000),
    Option("message_bytes", 200, "Size of a message.", low=16),
    Option("few_queues", 16, "Queues of the small topic."),
    Option("many_queues", 1_000_000, "Queues of the large topic.", quick=2_000),
    Option("busy_queues", 1_000, "Queues of the large topic that have messages.", quick=100),
    Option("consumers", 4, "Consumers at a time, beside one alone.", quick=2),
    Option("batch", 500, "Messages that are asked for, and acknowledged, at a time."),
    Option("rate", 100, "Messages a second, for the latency."),
    Option("seconds", 8, "Length of the measurement of latency.", quick=1),
    Option("repeat", 3, "Repetitions; the cases take turns.", quick=1),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
_IDLE_MS = 1_000
_READY_S = 3.0
_SETTLE_S = 0.5
_HELD = 20_000
_PAGE = 1_000
_PARTS = {"p50": 0.5, "p99": 0.99}


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Measure every case in turn."""
    remedies = missing()
    drained: dict[tuple[str, int, int], list[float]] = {}
    waited: dict[tuple[str, int], list[dict[str, float]]] = {}
    memory: dict[int, dict[str, float]] = {}
    counts = (1, values["consumers"])
    sizes = {"messages": values["messages"], "each": values["message_bytes"], "batch": values["batch"]}
    slow = {"each": values["message_bytes"], "rate": values["rate"], "seconds": float(values["seconds"])}
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        progress(describe(facts))
        with running(Setup(LSMQ, "sync"), directory / "node") as server:
            for queues in (values["few_queues"], values["many_queues"]):
                busy = min(values["busy_queues"], queues)
                run_case(fill, address=server.address, queues=queues, busy=busy, **sizes)
                memory[queues] = _memory(server.address, server.pid, queues, values)
                for repetition in range(values["repeat"]):
                    for face in (WORK, PLAIN):
                        for count in counts:
                            name = f"{face.split()[0]}-{count}-{repetition}"
                            rate = _drain(server.address, face, count, values, queues=queues, group=name)
                            drained.setdefault((face, queues, count), []).append(rate)
                            progress(f"{face}, {queues:,} queues, {count} consumers: {rate_text(spread([rate]))}")
                        found = run_case(measure, address=server.address, face=face, queues=queues, **slow)
                        waited.setdefault((face, queues), []).append(found)
        if not remedies:
            with running(Setup(REDIS, "always"), directory / "redis") as server:
                run_case(fill_stream, address=server.address, **sizes)
                for repetition in range(values["repeat"]):
                    for count in counts:
                        group = f"{count}-{repetition}"
                        rate = _drain(server.address, STREAM, count, values, queues=1, group=group)
                        drained.setdefault((STREAM, 1, count), []).append(rate)
                        progress(f"{STREAM}, {count} consumers: {rate_text(spread([rate]))}")
    cases = [
        {"face": face, "queues": queues, "consumers": count, "messages_per_s": spread(rates)}
        for (face, queues, count), rates in drained.items()
    ]
    latencies = [{"face": face, "queues": queues, **spreads(runs)} for (face, queues), runs in waited.items()]
    result = {
        "bench": "work",
        "environment": facts,
        "options": dict(values),
        "missing": remedies,
        "cases": cases,
        "latencies": latencies,
        "memory": [{"queues": queues, **figures} for queues, figures in memory.items()],
        "ratios": _ratios(cases),
    }
    return BenchReport(result, _tables(result), [describe(facts), *_NOTES, *remedies])


def _drain(address: str, face: str, count: int, values: Mapping[str, Any], *, queues: int, group: str) -> float:
    """Messages a second of ``count`` consumers together, each in a process of its own."""
    start_s = time.monotonic() + _READY_S
    with ThreadPoolExecutor(count) as threads:
        shares = [
            threads.submit(
                run_case,
                drain,
                address=address,
                face=face,
                queues=queues,
                group=group,
                batch=values["batch"],
                start_s=start_s,
                part=part,
                parts=count,
            )
            for part in range(count)
        ]
        found = [share.result() for share in shares]
    taken = sum(each["messages"] for each in found)
    if taken != values["messages"]:
        raise BenchFailed(f"{count} consumers ({face}) took {taken:,} of {values['messages']:,} messages")
    began_s = min(each["began_s"] for each in found)  # A busy machine may need longer to start the processes.
    return float(taken / (max(each["ended_s"] for each in found) - began_s))


def _memory(address: str, pid: int, queues: int, values: Mapping[str, Any]) -> dict[str, float]:
    """What the node's memory grows by when a work queue begins on a topic, and by each message in flight."""
    at_first = resident_bytes(pid)
    run_case(hold, address=address, queues=queues, count=1)
    begun = resident_bytes(pid)
    held = min(_HELD, values["messages"] // 2)
    run_case(hold, address=address, queues=queues, count=held)
    grown = resident_bytes(pid) - begun
    return {"begun_bytes": float(begun - at_first), "in_flight_bytes": max(0.0, grown / held)}


# Cases, each in a process of its own


def _topic(queues: int) -> str:
    return f"q{queues}"


def fill(address: str, queues: int, busy: int, messages: int, each: int, batch: int) -> dict[str, Any]:
    """Make the topic, and its messages: in ``busy`` of its queues, drawn at random."""

    async def work() -> None:
        chosen = random.Random(queues).sample(range(queues), busy)
        async with Client(address) as client:
            await client.create_topic(_topic(queues), queues=queues)
            async with Producer(client, _topic(queues)) as producer:
                for number in range(messages):
                    await producer.send(_body(number, each), queue=chosen[number % busy])
                await producer.flush()

    asyncio.run(work())
    return {}


def fill_stream(address: str, messages: int, each: int, batch: int) -> dict[str, Any]:
    """The same messages in one Redis stream."""
    redis = _redis(address)
    for first in range(0, messages, batch):
        pipeline = redis.pipeline(transaction=False)
        for number in range(first, min(first + batch, messages)):
            pipeline.xadd(STREAM, {"body": _body(number, each)})
        pipeline.execute()
    return {}


def hold(address: str, queues: int, count: int) -> dict[str, Any]:
    """Have messages delivered, and settle none of them."""

    async def work() -> None:
        async with Client(address) as client:
            path, taken = "/v1/groups/held/pop", 0
            while taken < count:
                wanted = {"topic": _topic(queues), "max": min(_PAGE, count - taken), "visibility_ms": 600_000}
                taken += len((await client.ask("POST", path, wanted))["messages"])

    asyncio.run(work())
    return {}


def drain(
    address: str, face: str, queues: int, group: str, batch: int, start_s: float, part: int, parts: int
) -> dict[str, Any]:
    """From ``start_s`` on, take and settle messages until there are no more for a second; how many, until when."""
    count, began_s, ended_s = 0, start_s, start_s

    async def start() -> None:
        nonlocal began_s
        await asyncio.sleep(start_s - time.monotonic())
        began_s = time.monotonic()

    def settled(messages: int) -> None:
        nonlocal count, ended_s
        count, ended_s = count + messages, time.monotonic()

    async def work() -> None:
        async with Client(address) as client:
            if face == WORK:
                async with WorkQueue(client, _topic(queues), group, max_messages=batch, visibility_ms=600_000) as queue:
                    await start()
                    while tasks := await queue.poll(batch, timeout_ms=_IDLE_MS):
                        await asyncio.gather(*(task.ack() for task in tasks))
                        settled(len(tasks))
                return
            mine = range(part, queues, parts)
            await start()
            async with Consumer(client, _topic(queues), queues=mine, group=group, start="earliest") as consumer:
                while messages := await consumer.poll(batch, timeout_ms=_IDLE_MS * (1 if count else 10)):
                    await consumer.commit()
                    settled(len(messages))

    if face == STREAM:
        redis = _redis(address)
        asyncio.run(start())
        _drain_stream(redis, group, batch, part, settled)
    else:
        asyncio.run(work())
    return {"messages": count, "began_s": began_s, "ended_s": ended_s}


def _drain_stream(redis: Any, group: str, batch: int, part: int, settled: Callable[[int], None]) -> None:
    with suppress(importlib.import_module("redis").exceptions.ResponseError):  # Another consumer may have made it.
        redis.xgroup_create(STREAM, group, id="0")
    while found := redis.xreadgroup(group, f"consumer-{part}", {STREAM: ">"}, count=batch, block=_IDLE_MS):
        ids = [id for id, _ in found[0][1]]
        redis.xack(STREAM, group, *ids)
        settled(len(ids))


def measure(address: str, face: str, queues: int, each: int, rate: int, seconds: float) -> dict[str, float]:
    """One message at a time, to a consumer that waits: until it has it, and until that is settled."""
    received: list[float] = []
    settled: list[float] = []
    count = int(rate * seconds)
    due = [0.0] * count
    topic = f"{_topic(queues)}-slow"
    choose = random.Random(queues)

    async def settle(messages: Iterable[Message], how: Iterable[Awaitable[None]]) -> None:
        times = [due[int(message.body.split(b" ", 1)[0])] for message in messages]
        received.extend(time.monotonic() - began for began in times)
        await asyncio.gather(*how)
        settled.extend(time.monotonic() - began for began in times)

    async def take(client: Client) -> None:
        if face == WORK:
            async with WorkQueue(client, topic, "waits") as queue:
                while len(settled) < count:
                    tasks = await queue.poll(100, timeout_ms=_IDLE_MS)
                    await settle([task.message for task in tasks], [task.ack() for task in tasks])
            return
        async with Consumer(client, topic, start="latest", group="plain", queues=range(queues)) as consumer:
            while len(settled) < count:
                messages = await consumer.poll(100, timeout_ms=_IDLE_MS)
                await settle(messages, [consumer.commit()])

    async def work() -> None:
        async with Client(address) as client:
            await client.create_topic(topic, queues=queues)
            async with Producer(client, topic, linger_ms=0) as producer, asyncio.TaskGroup() as tasks:
                tasks.create_task(take(client))
                await asyncio.sleep(_SETTLE_S)
                began = time.monotonic()
                for number in range(count):
                    due[number] = began + number / rate
                    await asyncio.sleep(max(0.0, due[number] - time.monotonic()))
                    await producer.send(_body(number, each), queue=choose.randrange(queues))
            await client.delete_topic(topic)

    asyncio.run(work())
    return {
        f"{kind}_{name}_ms": percentile_ms(times, part)
        for kind, times in (("receive", received), ("settle", settled))
        for name, part in _PARTS.items()
    }


def _body(number: int, each: int) -> bytes:
    return f"{number} ".encode().ljust(each, b"x")


def _redis(port: str) -> Any:
    return importlib.import_module("redis").Redis(port=int(port))


# The report


def _ratios(cases: list[dict[str, Any]]) -> dict[str, float | None]:
    """The work queue's rate over the plain consumers', and over the Redis stream's, of as many consumers."""
    rates = {(each["face"], each["queues"], each["consumers"]): each["messages_per_s"] for each in cases}
    found: dict[str, float | None] = {}
    for (face, queues, count), figures in rates.items():
        if face == WORK:
            found[f"{PLAIN}/{queues}/{count}"] = ratio(figures, rates.get((PLAIN, queues, count)))
            found[f"{STREAM}/{queues}/{count}"] = ratio(figures, rates.get((STREAM, 1, count)))
    return found


def _tables(result: dict[str, Any]) -> list[TextTable]:
    options, ratios = result["options"], result["ratios"]
    rates = TextTable(
        f"{options['messages']:,} messages of {options['message_bytes']} bytes, taken and settled",
        ("", "queues", "consumers", "messages", f"{PLAIN} = 1", f"{STREAM} = 1"),
        [],
    )
    for each in result["cases"]:
        key = f"{each['queues']}/{each['consumers']}"
        beside = [ratio_text(ratios[f"{face}/{key}"]) if each["face"] == WORK else "" for face in (PLAIN, STREAM)]
        rates.rows.append(
            (each["face"], f"{each['queues']:,}", str(each["consumers"]), rate_text(each["messages_per_s"]), *beside)
        )
    names = [f"{kind}_{name}_ms" for kind in ("receive", "settle") for name in _PARTS]
    waits = TextTable(
        f"{options['rate']:,} messages/s; ms from when each was due to be sent",
        ("", "queues", *(name.removesuffix("_ms").replace("_", " ") for name in names)),
        [
            (each["face"], f"{each['queues']:,}", *(f"{each[name]['median']:.1f}" for name in names))
            for each in result["latencies"]
        ],
    )
    memory = TextTable(
        "Memory of the node",
        ("", "queues", "MiB when the work queue begins", "bytes a message in flight"),
        [
            (WORK, f"{each['queues']:,}", f"{each['begun_bytes'] / 2**20:.1f}", f"{each['in_flight_bytes']:.0f}")
            for each in result["memory"]
        ],
    )
    return [rates, waits, memory]


_NOTES = [
    "One node, which acknowledges after fdatasync. In a work queue each message is acknowledged for itself; plain "
    "consumers share the queues out and commit offsets after each poll.",
    "A Redis stream: one key, XREADGROUP and XACK, appendfsync always.",
    "Consumers are Python processes on the same machine; cases take turns; medians (least-greatest).",
]

BENCH = CallableBench(
    name="work",
    description="Work queues: messages taken and acknowledged by one consumer and several, over few queues and many "
    "idle ones, beside plain consumers and a Redis stream; latency and memory.",
    options=OPTIONS,
    run=run,
)
