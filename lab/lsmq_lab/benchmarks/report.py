"""What a benchmark is, what it takes and what it gives: figures first, tables made of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

TellProgress: TypeAlias = Callable[[str], None]


class BenchFailed(Exception):
    """A benchmark could not be carried through; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a benchmark. The type of ``default`` is the type of its value; False makes a flag.

    ``quick`` is the default instead when the benchmark's ``quick`` option is given.
    """

    name: str
    default: int | str | bool
    help: str
    quick: int | None = None
    low: int = 1


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of text under a title; the first column names the row, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The outcome. ``result`` is plain data for ``--json`` and holds every figure the tables show.

    ``notes`` say how the figures were taken, and what is missing from them.
    """

    result: dict[str, Any]
    tables: list[TextTable]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """A benchmark: ``run`` takes a value for each option, and a callback for lines of progress."""

    name: str
    description: str
    options: tuple[Option, ...]
    run: Callable[[Mapping[str, Any], TellProgress], BenchReport]

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options with their values: those given (not None), else the quick ones if asked, else defaults.

        Raises :class:`BenchFailed` on an unknown option or a number below its least.
        """
        unknown = set(given) - {option.name for option in self.options}
        if unknown:
            raise BenchFailed(f"bench {self.name} has no option {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {}
        for option in self.options:
            value = given.get(option.name)
            if value is None:
                value = option.quick if given.get("quick") and option.quick is not None else option.default
            if isinstance(value, int) and not isinstance(value, bool) and value < option.low:
                raise BenchFailed(f"option {option.name} must be at least {option.low}, not {value}")
            values[option.name] = value
        return values


QUICK = Option("quick", False, "Small sizes and one repetition: does it work, rather than how fast is it.")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, median and greatest of the repetitions of one figure."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The spread of each figure of the repetitions."""
    return {name: spread([figures[name] for figures in runs]) for name in runs[0]}


def percentile_ms(seconds: Sequence[float], part: float) -> float:
    """The least of the times, in ms, that this part of them does not exceed."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


def ratio(ours: Mapping[str, float] | None, theirs: Mapping[str, float] | None) -> float | None:
    """Ours over theirs, by the medians. None when one is missing."""
    if ours is None or theirs is None or not theirs["median"]:
        return None
    return ours["median"] / theirs["median"]


def rate_text(figures: Mapping[str, float] | None) -> str:
    """A rate and its spread, such as ``1.26 M/s (1.20-1.31)``."""
    if figures is None:
        return "-"
    unit, scale = ("M", 1e6) if figures["median"] >= 1e6 else ("k", 1e3)
    low, middle, high = (figures[name] / scale for name in ("min", "median", "max"))
    digits = 2 if scale == 1e6 else 1
    text = f"{middle:.{digits}f} {unit}/s"
    return text if low == high else f"{text} ({low:.{digits}f}-{high:.{digits}f})"


def ratio_text(value: float | None) -> str:
    """A ratio, such as ``1.4x``."""
    return "-" if value is None else f"{value:.2f}x"


def mebibytes_text(size_bytes: float | None) -> str:
    """A size, such as ``64.0 MiB``."""
    return "-" if size_bytes is None else f"{size_bytes / 2**20:,.1f} MiB"
