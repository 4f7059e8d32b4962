"""Failover as a curve: how long a shard acknowledges nothing when its leader is killed, stopped or cut off."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from ....drills import DRILLS
from ....drills.harness import run_local
from ...report import BenchFailed, Option
from ..row import LSMQ, Case, Column, Plot, Row, Target, Values, figure

_DRILLS = {"kill -9": "kill-leader", "pause": "pause-leader", "cut off": "partition-leader"}
_PARTS = (1, 10, 25, 50, 75, 90, 95, 99, 100)
_P50_MS, _P99_MS = 200.0, 500.0


def run(place: Path, drill: str, values: Values) -> dict[str, float]:
    """So many rounds of a drill. Raises :class:`BenchFailed` when it finds anything wrong."""
    report = run_local(
        DRILLS[drill], rounds=values["failovers"], seed=random.randrange(2**31), directory=place / "drill"
    )
    if not report.ok:
        raise BenchFailed(f"the drill {drill} failed: {[*report.failures, *report.findings][:3]}")
    times = report.refused.all_ms
    return {
        **{f"p{part}_ms": times[max(0, -(-len(times) * part // 100) - 1)] for part in _PARTS},
        "count": float(len(times)),
        "lost": float(report.lost),
    }


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return [Case(f"{LSMQ}, {name}", LSMQ, partial(run, drill=drill, values=values)) for name, drill in _DRILLS.items()]


def _targets(values: Values) -> list[Target]:
    silence = "a node that is silent has the time of its lease before another may lead"
    return [
        Target(
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
        Column("p50_ms", "p50", "ms"),
        Column("p90_ms", "p90", "ms"),
        Column("p99_ms", "p99", "ms"),
        Column("p100_ms", "most", "ms"),
        Column("count", "shards hit", ""),
        Column("lost", "messages lost", ""),
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
    notes=("Every round is checked: a run that lost, doubled or reordered anything fails instead of giving figures.",),
    gaps=("kafka, rocketmq: clusters of three are not started here, so their failover is not beside it",),
)
