"""Benchmarks of the store, of a node and of a cluster, each beside something to compare with, in the same run.

``BENCHES`` holds them by name; ``lsmq bench`` runs them, and so does ``python -m lsmq_lab.benchmarks``.
"""

from __future__ import annotations

from importlib import import_module

from lsmq_lab.benchmarks.report import Bench, BenchFailed, BenchReport, Option, TellProgress, TextTable

BENCHES: dict[str, Bench]

__all__ = ["BENCHES", "Bench", "BenchFailed", "Option", "TellProgress", "BenchReport", "TextTable"]

_MODULES = (
    "store",
    "node",
    "processes",
    "cluster",
    "groups",
    "work",
    "backlog",
    "latency",
    "messages",
    "spark",
    "control",
    "tracing",
    "console",
    "suite.bench",
)


def __getattr__(name: str) -> dict[str, Bench]:
    # A case in a process of its own is in this package as well, and imports no other benchmark than its own.
    if name != "BENCHES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: list[Bench] = [import_module(f"{__name__}.{module}").BENCH for module in _MODULES]
    globals()["BENCHES"] = benches = {bench.name: bench for bench in found}
    return benches
