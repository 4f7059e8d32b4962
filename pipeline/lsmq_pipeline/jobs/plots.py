"""Plots of reports. matplotlib is asked for when one is drawn, and not needed otherwise."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from lsmq_pipeline.errors import PlotsNotInstalled


def figure(**settings: Any) -> Any:
    """A new figure that needs no display, and its axes. Raises ``PlotsNotInstalled`` that says what to install."""
    try:
        plots = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise PlotsNotInstalled(
            "a plot needs matplotlib, which is not installed; run: pip install matplotlib"
        ) from error
    made = plots.Figure(layout="constrained", **settings)
    return made, made.subplots()


def bars(labels: Sequence[str], series: Mapping[str, Sequence[float]], *, title: str, path: str) -> None:
    """Bars beside each other, one group for each label, into a PNG or SVG file."""
    made, axes = figure(figsize=(max(6.0, 0.5 * len(labels) * len(series)), 4.5))
    width = 0.8 / max(1, len(series))
    for number, (name, values) in enumerate(series.items()):
        axes.bar([place + number * width for place in range(len(labels))], values, width, label=name)
    middle = 0.4 - width / 2
    axes.set_xticks([place + middle for place in range(len(labels))], labels, rotation=45, ha="right")
    axes.set_title(title)
    if len(series) > 1 or series:
        axes.legend()
    made.savefig(path)


def lines(points: Mapping[str, tuple[Sequence[Any], Sequence[float]]], *, title: str, unit: str, path: str) -> None:
    """A line for each name over time, into a PNG or SVG file."""
    made, axes = figure(figsize=(9, 4.5))
    for name, (times, values) in points.items():
        axes.plot(times, values, marker=".", label=name)
    axes.set_title(title)
    axes.set_ylabel(unit)
    made.autofmt_xdate()
    if points:
        axes.legend()
    made.savefig(path)
