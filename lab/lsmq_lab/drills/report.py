"""The outcome of a drill, as a value, as JSON and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lsmq_lab.history import AnomalyKind, Verdict

_DUPLICATES = (AnomalyKind.STORED_TWICE, AnomalyKind.RECEIVED_TWICE)
_ORDER = (AnomalyKind.STORED_OUT_OF_ORDER, AnomalyKind.OUT_OF_ORDER, AnomalyKind.SKIPPED)
_NAMED = (AnomalyKind.LOST, *_DUPLICATES, *_ORDER, AnomalyKind.WENT_BACK)


@dataclass(frozen=True, slots=True)
class OutageTimes:
    """Milliseconds without an acknowledgement of a shard, client-side, one a shard and round; ``all_ms`` rising."""

    count: int
    p50_ms: float
    max_ms: float
    all_ms: tuple[float, ...] = ()

    @classmethod
    def of(cls, seconds: Sequence[float]) -> OutageTimes:
        if not seconds:
            return cls(0, 0.0, 0.0)
        rising_ms = tuple(round(each * 1000, 1) for each in sorted(seconds))
        return cls(len(seconds), round(statistics.median(seconds) * 1000, 1), rising_ms[-1], rising_ms)

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.0f} ms, max {self.max_ms:.0f} ms ({self.count})" if self.count else "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """A drill's figures. ``refused`` from a fault until the affected shards acknowledged again, ``mended`` while what
    was broken came back and leaders were spread again. ``failures``: what ended the drill early."""

    drill: str
    rounds: int
    rounds_done: int
    seed: int
    nodes: int
    shards: int
    seconds: float
    acknowledged: int = 0
    unknown: int = 0
    unknown_stored: int = 0
    lost: int = 0
    duplicates: int = 0
    order_violations: int = 0
    offsets_went_back: int = 0
    other_anomalies: int = 0
    replicas_compared: int = 0
    replicas_differ: int = 0
    refused: OutageTimes = field(default_factory=lambda: OutageTimes(0, 0.0, 0.0))
    mended: OutageTimes = field(default_factory=lambda: OutageTimes(0, 0.0, 0.0))
    findings: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    directory: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all rounds were done and nothing was lost, doubled, reordered, gone back or different."""
        bad = (
            self.lost
            + self.duplicates
            + self.order_violations
            + self.offsets_went_back
            + self.other_anomalies
            + self.replicas_differ
        )
        return not bad and not self.failures and self.rounds_done == self.rounds and self.acknowledged > 0

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("refused", "mended"):
            times: OutageTimes = values.pop(name)
            values |= {f"{name}_count": times.count, f"{name}_p50_ms": times.p50_ms, f"{name}_max_ms": times.max_ms}
            values[f"{name}_ms"] = list(times.all_ms)
        for name in ("findings", "failures", "notes"):
            values[name] = list(values[name])
        return {"ok": self.ok, **values}


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """A verdict's part of a report."""

    def count(kinds: Sequence[AnomalyKind]) -> int:
        return sum(verdict.count(kind) for kind in kinds)

    return {
        "acknowledged": verdict.acknowledged,
        "unknown": verdict.unknown,
        "unknown_stored": verdict.unknown_stored,
        "lost": verdict.count(AnomalyKind.LOST),
        "duplicates": count(_DUPLICATES),
        "order_violations": count(_ORDER),
        "offsets_went_back": verdict.count(AnomalyKind.WENT_BACK),
        "other_anomalies": count([kind for kind in AnomalyKind if kind not in _NAMED]),
        "findings": tuple(str(anomaly) for anomaly in verdict.anomalies),
    }


def print_report(report: DrillReport) -> None:
    """A table on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    rows = {
        "drill": f"{report.drill}, {report.rounds_done} of {report.rounds} rounds, seed {report.seed}",
        "cluster": f"{report.nodes} nodes, {report.shards} shards; {report.seconds:.0f} s in all",
        "acknowledged writes": f"{report.acknowledged:,}",
        "without an answer": f"{report.unknown:,}, of which {report.unknown_stored:,} are stored",
        "acknowledged and lost": report.lost,
        "duplicates": report.duplicates,
        "order violations": report.order_violations,
        "offsets that went back": report.offsets_went_back,
        "other anomalies": report.other_anomalies,
        "replicas that differ": f"{report.replicas_differ} of {report.replicas_compared}",
        "writes refused": str(report.refused),
        "while mending": str(report.mended),
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    console.print(table)
    for line in (*report.findings, *report.failures, *report.notes):
        console.print(f"  {line}", markup=False)
    verdict = "nothing was lost" if report.ok else "FAILED"
    console.print(f"[bold {'green' if report.ok else 'red'}]{verdict}[/]")
    if report.directory is not None:
        console.print(f"logs and data: {report.directory}", markup=False)
