"""Many topics at a time, as in the patent: one message of 1 KiB under way in each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...report import Option
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, over
from ..systems import system
from ..systems.system import LOOP, ClientLoad, System, measure

_COUNTS = (16, 32, 64, 128, 256)
_AHEAD_FROM = 32
_PEERS = ("kafka", "rabbitmq", "redis", "nats")


def run(place: Path, measured: System, topics: int, values: Values) -> dict[str, float]:
    """One client with a task a topic."""
    with measured.running(place / "server") as server:
        measured.prepare(server.address, 1, topics)
        load = ClientLoad(
            measured.module,
            server.address,
            LOOP,
            max(values["messages"], 4 * topics),
            values["message_bytes"],
            in_flight=topics,
            topics=topics,
        )
        return measure(server, [load])


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return list(_each_case(values, peers))


def _each_case(values: Values, peers: tuple[str, ...]) -> Iterator[Case]:
    for topics in _counts(values):
        for name in (LSMQ, *peers):
            measured = system(name)
            yield Case(
                f"{name}, {topics} topics",
                name,
                partial(run, measured=measured, topics=topics, values=values),
                x=topics,
            )


def _counts(values: Values) -> list[int]:
    return [count for count in _COUNTS if count <= values["most_topics"]]


def _targets(values: Values) -> list[FigureTarget]:
    return [
        FigureTarget(
            f"{figure.removesuffix('_ms')} of {topics} topics over {peer}'s",
            over(f"{LSMQ}, {topics} topics", f"{peer}, {topics} topics", figure),
            1.0,
            at_most=True,
            case=f"{LSMQ}, {topics} topics",
        )
        for topics in _counts(values)
        if topics >= _AHEAD_FROM
        for peer in ("kafka", "rabbitmq")
        for figure in ("p50_ms", "p99_ms")
    ]


ROW = Row(
    name="many-topics",
    title="16 to 256 topics at a time",
    work="One client writes messages of 1 KiB to as many topics of one queue, in each the next one when the last is "
    "acknowledged.",
    options=(
        Option("messages", 20_000, "Messages of a case.", quick=400),
        Option("message_bytes", 1024, "Size of a message.", low=16),
        Option("most_topics", 256, "Most topics.", quick=32),
    ),
    cases=_cases,
    columns=(
        FigureColumn("per_s", "writes", "/s"),
        FigureColumn("p50_ms", "p50", "ms"),
        FigureColumn("p99_ms", "p99", "ms"),
        FigureColumn("processor_us", "processor a message", "us"),
    ),
    targets=_targets,
    plots=(
        Plot("p50_ms", "median time to the acknowledgement", "ms", "topics"),
        Plot("p99_ms", "99th percentile", "ms", "topics"),
        Plot("per_s", "messages a second", "/s", "topics"),
    ),
    peers=_PEERS,
)
