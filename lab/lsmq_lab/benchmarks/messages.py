"""``lsmq bench messages``: what an ordered store does for messages beside keeping them: each a case of its own.

A case (:class:`MessageCase`) is a module; ``CASES`` names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .callable import CallableBench
from .environment import describe, environment
from .isolate import scratch
from .message_case import MessageCase
from .report import QUICK, BenchFailed, BenchReport, Option, TellProgress

CASES = ("delayed", "names", "turns", "waits", "once", "filters")


def _case(name: str) -> MessageCase:
    case: MessageCase = import_module(f"lsmq_lab.benchmarks.messages_{name}").CASE
    return case


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Run the case that is asked for, or all in turn."""
    wanted = values["case"]
    if wanted and wanted not in CASES:
        raise BenchFailed(f"there is no case {wanted!r}; there are: {', '.join(CASES)}")
    result: dict[str, Any] = {"bench": "messages", "options": dict(values), "cases": {}}
    tables, notes = [], []
    with scratch(values["directory"]) as directory:
        facts = result["environment"] = environment(directory)
        progress(describe(facts))
        for name in (wanted,) if wanted else CASES:
            place = directory / name
            place.mkdir()
            measured = _case(name).run(values, place, progress)
            result["cases"][name] = measured.figures
            tables += measured.tables
            notes += measured.notes
    return BenchReport(result, tables, [describe(facts), *notes])


OPTIONS = (
    Option("case", "", f"Only this one: {', '.join(CASES)}."),
    Option("message_bytes", 200, "Size of a message.", low=16),
    Option("seconds", 10, "Length of each measurement.", quick=2),
    *(option for name in CASES for option in _case(name).options),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)

BENCH = CallableBench(
    name="messages",
    description="Delayed messages: how late they come beside other load, and what those that are pending take. "
    "Queues by name: one against many, over the network. Work queues by key, in fair turns and by priority: what that "
    "costs, and who waits for whom, beside a backlog too. Deduplication ids: the rate, the memory, and that repeats "
    "are found. Filters: what it takes to read much and little of a backlog.",
    options=OPTIONS,
    run=run,
)
