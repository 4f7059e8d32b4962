"""Figures of the suite in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SCALED = {"/s": ((1e6, " M/s"), (1e3, " k/s"), (1.0, "/s"))}


def number_text(value: float, unit: str) -> str:
    """A figure in its unit, with three digits or so: ``1.26 M/s``, ``0.45 ms``."""
    if unit in _SCALED:
        scale, name = next((each for each in _SCALED[unit] if abs(value) >= each[0]), _SCALED[unit][-1])
        return f"{_digits(value / scale)}{name}"
    return f"{_digits(value)}{'' if unit in ('', 'x') else ' '}{unit}"


def figure_text(figures: Mapping[str, float] | None, unit: str) -> str:
    """The median and its spread, such as ``1.26 M/s (1.2 M/s to 1.31 M/s)``."""
    if figures is None:
        return "-"
    text = number_text(figures["median"], unit)
    if figures["min"] == figures["max"]:
        return text
    return f"{text} ({number_text(figures['min'], unit)} to {number_text(figures['max'], unit)})"


def target_text(target: Mapping[str, Any]) -> str:
    """What was to be reached, and whether it is."""
    goal = f"{'at most' if target['at_most'] else 'at least'} {number_text(target['goal'], target['unit'])}"
    if target["value"] is None:
        return f"{target['text']}: {goal}; not measured"
    value = number_text(target["value"], target["unit"])
    verdict = "reached" if target["reached"] else f"NOT REACHED ({target['limit']})"
    return f"{target['text']}: {value}, {goal}: {verdict}"


def _digits(value: float) -> str:
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"
