"""The thesis's measurement: one writer, five readers, growing numbers of messages; what those take that wait."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...report import Option
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, figure, over
from ..systems import system
from ..systems.system import WRITE, ClientLoad, System, measure, readers

_READERS = 5
_WAITING = 200_000
_MOST_GROWN_MIB = 9.6
_RAW_AND_TEN_PERCENT = 1.1
_MIB = 1 << 20


def run(place: Path, measured: System, messages: int, values: Values) -> dict[str, float]:
    """Write all, look at memory and disk while they wait, and read all."""
    each = values["message_bytes"]
    with measured.running(place / "server") as server:
        measured.prepare(server.address, _READERS, 0)
        before_bytes = server.resident_bytes()
        load = ClientLoad(measured.module, server.address, WRITE, messages, each, _READERS, values["in_flight"])
        wrote = measure(server, [load])
        grown_bytes, disk_bytes = server.resident_bytes() - before_bytes, server.disk_bytes()
        read = measure(server, readers(load, _READERS))
    return {
        **wrote,
        "read_per_s": read["per_s"],
        "grown_mib": max(0.0, grown_bytes / _MIB),
        "disk_mib": disk_bytes / _MIB,
        "disk_over_raw": disk_bytes / (messages * each),
    }


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return list(_each_case(values, peers))


def _each_case(values: Values, peers: tuple[str, ...]) -> Iterator[Case]:
    for count in _counts(values):
        for name in (LSMQ, *peers):
            measured = system(name)
            yield Case(
                f"{name}, {count:,} messages",
                name,
                partial(run, measured=measured, messages=count, values=values),
                x=count,
            )


def _counts(values: Values) -> list[int]:
    return [count for count in (10_000, 100_000, _WAITING, 1_000_000) if count <= values["most_messages"]]


def _targets(values: Values) -> list[FigureTarget]:
    most = _counts(values)[-1]
    ours, redis = f"{LSMQ}, {most:,} messages", f"redis, {most:,} messages"
    waiting = f"{LSMQ}, {_WAITING:,} messages"
    return [
        FigureTarget(f"write of {most:,} messages over Redis's", over(ours, redis, "per_s"), 1.0, case=ours),
        FigureTarget(
            f"read of {most:,} messages over Redis's",
            over(ours, redis, "read_per_s"),
            1.0,
            because="Redis hands out a thousand messages of a list in one command, and its client is C inside",
        ),
        FigureTarget(
            f"memory that {_WAITING:,} waiting messages take",
            figure(waiting, "grown_mib"),
            _MOST_GROWN_MIB,
            "MiB",
            at_most=True,
            because="they are in the memtable until it is full (memtable_bytes)",
        ),
        FigureTarget(
            f"disk over the bytes of {_WAITING:,} waiting messages",
            figure(waiting, "disk_over_raw"),
            _RAW_AND_TEN_PERCENT,
            at_most=True,
            because="the log has its columns beside each message, and space for an eighth more",
        ),
    ]


ROW = Row(
    name="thesis",
    title="one writer, five readers",
    work="One client writes, messages in flight as in the thesis; then five read, each a queue of its own. Between the "
    "two the messages wait: what the server's memory has grown by, and what its files occupy.",
    options=(
        Option("most_messages", 1_000_000, "Most messages.", quick=10_000, low=10_000),
        Option("message_bytes", 58, "Size of a message.", low=16),
        Option("in_flight", 10_000, "Messages that wait for their acknowledgement, at most."),
    ),
    cases=_cases,
    columns=(
        FigureColumn("per_s", "write", "/s"),
        FigureColumn("read_per_s", "read", "/s"),
        FigureColumn("grown_mib", "memory they take", "MiB"),
        FigureColumn("disk_mib", "disk", "MiB"),
        FigureColumn("disk_over_raw", "disk over raw", "x"),
        FigureColumn("processor_us", "processor a write", "us"),
    ),
    targets=_targets,
    plots=(
        Plot("per_s", "writes a second, one client", "/s", "messages"),
        Plot("grown_mib", "memory that waiting messages take", "MiB", "messages"),
    ),
    peers=("redis",),
    notes=("Everything is acknowledged after fdatasync on both sides. Clients are Python processes.",),
)
