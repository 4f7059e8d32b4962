"""Drills in which a node is not what it looks like: it seems dead and lives, lives and cannot work, or is wrong."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from lsmq import Client
from lsmq_lab.believed import NO_ANSWER, opener

from .harness import Drill, DrillRun, led_by

_SKEW_S = 40.0
_TOPICS_BEYOND_A_BLOCK = 40
_FULL_S = 10.0
_SEEN_TIMEOUT_S = 30.0
_PROBE_S = 0.01
_ASK_TIMEOUT_S = 2.0
_SPREAD_S = 5.0  # Longer than it is quiet before leaders are given back.
#: What one node that comes and goes may cost: elections and changes of in-sync sets in the time that a drill looks.
_MOST_CHANGES = 8


async def _overview(run: DrillRun) -> dict[str, Any]:
    return await run.administer("GET", "/v1/cluster")


async def _seen(run: DrillRun, node: str, wanted: str) -> None:
    """Wait until the cluster's page says what is wrong with a node."""
    async with asyncio.timeout(_SEEN_TIMEOUT_S):
        while True:
            if any(wanted in problem for problem in _entry(await _overview(run), node)["problems"]):
                return
            await asyncio.sleep(0.1)


def _entry(overview: Mapping[str, Any], node: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in overview["nodes"] if entry["id"] == node)
    return found


def _post(url: str, document: Mapping[str, Any]) -> bool:
    """Whether that very node took it, and passed it on to no other."""
    headers = {"Content-Type": "application/json", "Lsmq-Forward": "refuse"}
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    try:
        with opener().open(request, timeout=_ASK_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except NO_ANSWER:
        return False


@asynccontextmanager
async def _one_answers(run: DrillRun, former: str, shard: int) -> AsyncIterator[None]:
    """Inside, a leader is replaced: of what it is asked after its successor has answered it must take nothing, with
    whatever ``ack``."""
    topic = f"asked-{run.round}"
    async with Client(list(run.faults.urls)) as client:
        routes = (await client.create_topic(topic, queues=len((await run.status()).shards))).routes
    queue = next(route.first for route in routes if route.shard == shard)
    document = {"messages": [{"queue": queue, "body": "who takes this?"}], "ack": "leader"}
    taken: dict[str, list[tuple[float, float]]] = {}

    async def ask(node: str, url: str) -> None:
        while True:
            began = time.monotonic()
            if await asyncio.to_thread(_post, f"{url}/v1/topics/{topic}/messages", document):
                taken.setdefault(node, []).append((began, time.monotonic()))
            await asyncio.sleep(_PROBE_S)

    tasks = [asyncio.create_task(ask(node, url)) for node, url in zip(run.faults.nodes, run.faults.urls, strict=True)]
    try:
        yield
        await run.until(lambda _: bool(taken.keys() - {former}), "its successor takes what it is asked itself")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    succeeded = min(answers[0][1] for node, answers in taken.items() if node != former)
    late = [began for began, _ in taken.get(former, []) if began > succeeded]
    assert not late, f"{former} took {len(late)} messages after its successor had answered"


async def _reject_port(run: DrillRun) -> None:
    node, shards = await run.any_leader()
    async with _one_answers(run, node, shards[0]):
        run.tell(f"the port of {node}, which leads shards {shards}, answers the others with RST")
        async with run.outage(shards, of=node):
            await run.faults.reject(node)
        await run.steady()
    await run.refuses(node, shards[0])
    async with run.mending():
        await run.faults.heal()


async def _clock_skew(run: DrillRun) -> None:
    node, _ = await run.any_leader()
    ahead_s = run.random.choice((-_SKEW_S, _SKEW_S))
    run.tell(f"restarting {node} with a clock that is {ahead_s:+.0f} s off")
    async with run.mending():
        await run.faults.skew_clock(node, ahead_s)
    await _seen(run, node, "clock")
    before = await _overview(run)
    measured_s = _entry(before, node)["clock_ms"] / 1000
    assert abs(measured_s - ahead_s) < 1.0, f"{node} is {ahead_s} s off, and {measured_s} s are told"
    await run.steady(_SPREAD_S)
    changes = (await _overview(run))["version"] - before["version"]
    assert changes <= _MOST_CHANGES, f"a wrong clock cost {changes} changes of the cluster's state"
    async with run.mending():
        await run.faults.stop(node)
        await run.faults.start([node])


async def _full_disk_voter(run: DrillRun) -> None:
    status = await run.status()
    node = next((node for node in ("n3",) if led_by(status, node)), None)
    assert node is not None, "the node with the small disk leads at the beginning of a round"
    shards = led_by(status, node)
    run.tell(f"filling the disk of {node}, which votes and leads shards {shards}, for {_FULL_S:.0f} s")
    filled = time.monotonic()
    async with run.outage(shards, of=node):
        await run.faults.fill_disk(node)
        # A voter writes when there is something to agree on; a little fits into the last block that its journal has.
        async with Client(list(run.faults.urls)) as client:
            for number in range(_TOPICS_BEYOND_A_BLOCK):
                await client.create_topic(f"made-while-full-{run.round}-{number}", queues=4)
    try:
        await _seen(run, node, "voter")
    except TimeoutError:
        if not run.faults.can_fill(node):
            run.notes.append("without the right to mount, the voter's disk was not full")
        else:
            raise
    assert not _entry(await _overview(run), node)["alive"], f"{node} follows no decision, and still counts as alive"
    await asyncio.sleep(max(0.0, filled + _FULL_S - time.monotonic()))
    async with run.mending():
        await run.faults.free_disk(node)


DRILLS = (
    Drill(
        name="reject-port",
        summary="the port of a node that leads answers RST while it lives; nobody is followed before its lease is over",
        round=_reject_port,
        proxied=True,
    ),
    Drill(
        name="clock-skew",
        summary="a node's clock is 40 s wrong: it is named, and nothing else comes of it",
        round=_clock_skew,
    ),
    Drill(
        name="full-disk-voter",
        summary="the disk of a node that votes and leads is full for 10 s; it says so, is replaced, and goes on",
        round=_full_disk_voter,
        small_disk="n3",
        settings={"min_free_bytes": 32 * 1024 * 1024},
    ),
)
