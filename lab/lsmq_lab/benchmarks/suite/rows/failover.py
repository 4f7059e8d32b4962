"""Failover as a curve: how long a shard acknowledges nothing when its leader is killed, stopped or cut off."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ....drills import DRILLS
from ....drills.harness import has_tls, run_local
from ...report import BenchFailed, Option
from .. import kafka_failover, rocketmq_failover
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, figure

_DRILLS = {"kill -9": "kill-leader", "pause": "pause-leader", "cut off": "partition-leader"}
KAFKA, ROCKETMQ = "kafka", "rocketmq"
_PARTS = (1, 10, 25, 50, 75, 90, 95, 99, 100)
_P50_MS, _P99_MS = 200.0, 500.0


def run(place: Path, drill: str, values: Values) -> dict[str, float]:
    """So many rounds of a drill. Raises :class:`BenchFailed` when it finds anything wrong."""
    # Without TLS, which half of the seeds have: it has a price of its own.
    seed = random.randrange(2**31)
    seed += has_tls(drill, seed)
    report = run_local(DRILLS[drill], rounds=values["failovers"], seed=seed, directory=place / "drill")
    if not report.ok:
        raise BenchFailed(f"the drill {drill} failed: {[*report.failures, *report.findings][:3]}")
    return {**_curve(report.refused.all_ms), "lost": float(report.lost)}


def kafka(place: Path, settings: Mapping[str, str], values: Values) -> dict[str, float]:
    """The same with three brokers of Kafka."""
    return _curve(kafka_failover.kill_leaders(place, values["failovers"], settings))


def rocketmq(place: Path, settings: rocketmq_failover.Settings, values: Values) -> dict[str, float]:
    """The same with a group of three brokers of RocketMQ."""
    return _curve(rocketmq_failover.kill_masters(place, values["failovers"], settings))


def _curve(rising_ms: Sequence[float]) -> dict[str, float]:
    count = len(rising_ms)
    parts = {f"p{part}_ms": rising_ms[max(0, -(-count * part // 100) - 1)] for part in _PARTS}
    return {**parts, "count": float(count)}


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    found = [Case(f"{LSMQ}, {name}", LSMQ, partial(run, drill=drill, values=values)) for name, drill in _DRILLS.items()]
    theirs: list[tuple[str, str, Callable[[Path], dict[str, float]]]] = [
        (KAFKA, "defaults", partial(kafka, settings={}, values=values)),
        (KAFKA, "its best", partial(kafka, settings=kafka_failover.BEST, values=values)),
        (ROCKETMQ, "defaults", partial(rocketmq, settings=rocketmq_failover.DEFAULTS, values=values)),
        (ROCKETMQ, "its best", partial(rocketmq, settings=rocketmq_failover.BEST, values=values)),
    ]
    return found + [Case(f"{peer}, kill -9, {name}", peer, measure) for peer, name, measure in theirs if peer in peers]


def _targets(values: Values) -> list[FigureTarget]:
    silence = "a node that is silent has the time of its lease before another may lead"
    return [
        FigureTarget(
            f"{name}: {part} without an acknowledgement",
            figure(f"{LSMQ}, {name}", f"{part}_ms"),
            goal,
            "ms",
            at_most=True,
            because="" if drill == "kill-leader" else silence,
        )
        for name, drill in _DRILLS.items()
        for part, goal in (("p50", _P50_MS), ("p99", _P99_MS))
    ]


ROW = Row(
    name="failover",
    title="from the fault to the first write of the successor",
    work="Three nodes, producers and consumers at work; the leader of a shard is killed, stopped or cut off, again and "
    "again. How long a client had nothing acknowledged by a shard that was hit, in each round. `lsmq drill` has the "
    "rest.",
    options=(Option("failovers", 100, "Rounds of each fault.", quick=1),),
    cases=_cases,
    columns=(
        FigureColumn("p50_ms", "p50", "ms"),
        FigureColumn("p90_ms", "p90", "ms"),
        FigureColumn("p99_ms", "p99", "ms"),
        FigureColumn("p100_ms", "most", "ms"),
        FigureColumn("count", "shards hit", ""),
        FigureColumn("lost", "messages lost", ""),
    ),
    targets=_targets,
    plots=(
        Plot(
            "p50_ms",
            "time without an acknowledgement, by its share",
            "ms",
            "of a hundred",
            tuple((part, f"p{part}_ms") for part in _PARTS),
        ),
    ),
    peers=(KAFKA, ROCKETMQ),
    notes=(
        "lsmq: every round is checked: a run that lost, doubled or reordered anything fails instead of giving figures.",
        "kafka: three brokers that are controllers as well, twelve partitions, three replicas, two of them in sync at "
        "least; its best: broker.session.timeout.ms=1000, broker.heartbeat.interval.ms=200.",
        "rocketmq: a group of three brokers, one queue, flushDiskType=SYNC_FLUSH, allAckInSyncStateSet=true, "
        "minInSyncReplicas=2; slaves confirm a message before they sync it. Masters are killed at random moments, as "
        "timers decide. Its controllers are in three name servers, which nobody kills. Its best: "
        f"{rocketmq_failover.BEST.text()}.",
    ),
)
