"""A benchmark as ``lsmq bench`` takes it: something to call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lsmq_lab.benchmarks.report import Bench


@dataclass(frozen=True)
class CallableBench(Bench):
    """Can be called with the arguments of a command line, and has its description as its docstring."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.description)

    def __call__(self, arguments: Sequence[str], *, as_json: bool = False) -> dict[str, Any] | None:
        """Run as ``lsmq bench`` does: print the report, or return its figures with ``as_json``."""
        # Imported here: what measures in a child process needs no command line.
        from lsmq_lab.benchmarks.command import call

        return call(self, arguments, as_json=as_json)
