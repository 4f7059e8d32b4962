"""Spark into and out of a topic: the cases of ``lsmq bench spark``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ... import spark
from ...report import Option
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, over

_LIMIT = (
    "a task is an interpreter beside Spark's, started for each job, and rows cross between the two as Arrow batches"
)


def run(place: Path, system: str, values: Values) -> dict[str, float]:
    """Write and read once, after once that is not counted."""
    found: dict[str, Any] = spark.measure(system, {**values, "repeat": 1}, place, lambda line: None)
    figures = {}
    for name in ("write", "read"):
        [each] = found[name]
        figures[f"{name}_per_s"] = values["messages"] / each["s"]
        figures[f"{name}_us"] = each["cpu_s"] * 1e6 / values["messages"]
    return figures


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return [Case(name, name, partial(run, system=name, values=values)) for name in (LSMQ, *peers, "parquet")]


def _targets(values: Values) -> list[FigureTarget]:
    return [
        FigureTarget(
            f"{name} over Kafka's source, on {values['cores']} core",
            over(LSMQ, "kafka", f"{name}_per_s"),
            1.0,
            because=_LIMIT,
        )
        for name in ("write", "read")
    ]


ROW = Row(
    name="spark",
    title="Spark, beside its own Kafka source",
    work="The same rows from a Parquet file into a topic, and from it into nothing. `lsmq bench spark` has it alone.",
    options=(
        Option("messages", 500_000, "Messages that are written and read.", quick=2_000),
        Option("message_bytes", 200, "Size of a message's value; its key comes on top."),
        Option("partitions", 8, "Queues of the topic, partitions of Kafka's.", quick=2),
        Option("cores", 1, "Cores that Spark may use for tasks."),
    ),
    cases=_cases,
    columns=(
        FigureColumn("write_per_s", "write", "/s"),
        FigureColumn("read_per_s", "read", "/s"),
        FigureColumn("write_us", "Spark's processor a write", "us"),
        FigureColumn("read_us", "Spark's processor a read", "us"),
    ),
    targets=_targets,
    plots=(Plot("read_per_s", "messages read a second", "/s"),),
    peers=("kafka",),
    notes=("Kafka acknowledges without an fsync here, as lsmq bench spark has it; lsmq after fdatasync.",),
)
