"""Plots as SVG, drawn here: curves with the spread of each point, or bars. Nothing is asked from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from .row import Plot
from .texts import number_text

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 170, 30, 46
_BAR, _GAP = 20, 8
_LABEL = 250
#: Told apart by those who see colours differently, too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777", "#000000")
_DECADE = 10.0


class Point(NamedTuple):
    """Where a point of a curve is, and how far it was spread."""

    x: float
    low: float
    y: float
    high: float


def draw(plot: Plot, cases: Sequence[Mapping[str, Any]]) -> str:
    """The plot of a row's cases; an empty text where there is nothing to draw."""
    curves = _curves(plot, cases)
    if curves:
        return _draw_curves(plot, curves)
    bars = [(each["case"], each["figures"][plot.figure]) for each in cases if plot.figure in each["figures"]]
    return _draw_bars(plot, bars) if bars else ""


def _curves(plot: Plot, cases: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for each in cases:
        for x, name in plot.points or ((each["x"], plot.figure),):
            figures = each["figures"].get(name)
            if x is not None and figures is not None:
                point = Point(x, figures["min"], figures["median"], figures["max"])
                found.setdefault(each["case"] if plot.points else each["series"], []).append(point)
    return {name: sorted(points) for name, points in found.items()}


def _draw_curves(plot: Plot, curves: Mapping[str, Sequence[Point]]) -> str:
    points = [point for curve in curves.values() for point in curve]
    xs = sorted({point.x for point in points})
    wide = xs[0] > 0 and xs[-1] / xs[0] >= _DECADE and not plot.points
    low, high = _range([value for point in points for value in (point.low, point.high)])
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at_x(x: float) -> float:
        return _LEFT + (right - _LEFT) * _part(x, xs[0], xs[-1], wide)

    def at_y(y: float) -> float:
        return bottom - (bottom - _TOP) * _part(max(y, low), low, high, low > 0)

    parts = [_text(_LEFT, 16, plot.title, "start", 13)]
    for value in _ticks(low, high):
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{at_y(value):.1f}" y2="{at_y(value):.1f}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, at_y(value) + 4, number_text(value, plot.unit), "end"))
    parts += [_text(at_x(x), bottom + 18, f"{x:,.0f}", "middle") for x in xs]
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 8, plot.x_title, "middle"))
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{at_x(each.x):.1f},{at_y(each.y):.1f}" for each in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for each in curve:
            x = f"{at_x(each.x):.1f}"
            spread = f'y1="{at_y(each.low):.1f}" y2="{at_y(each.high):.1f}"'
            parts.append(f'<line x1="{x}" x2="{x}" {spread} stroke="{colour}"/>')
            parts.append(
                f'<circle cx="{x}" cy="{at_y(each.y):.1f}" r="3" fill="{colour}"><title>'
                f"{escape(name)}: {number_text(each.y, plot.unit)}</title></circle>"
            )
        at = _TOP + 10 + 17 * number
        parts.append(f'<rect x="{right + 14}" y="{at - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(right + 30, at, name, "start"))
    return _svg(_HEIGHT, plot.title, parts)


def _draw_bars(plot: Plot, bars: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    high = max(figures["max"] for _, figures in bars) or 1.0
    room = _WIDTH - _LABEL - 110
    parts = [_text(0, 16, plot.title, "start", 13)]
    for number, (name, figures) in enumerate(bars):
        top = _TOP + number * (_BAR + _GAP)
        middle = top + _BAR / 2
        width = max(1.0, room * figures["median"] / high)
        ends = (_LABEL + room * figures[name] / high for name in ("min", "max"))
        x1, x2 = (f"{end:.1f}" for end in ends)
        colour = _COLOURS[0] if name.startswith("lsmq") else _COLOURS[6]
        parts.append(_text(_LABEL - 8, middle + 4, name, "end"))
        parts.append(f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>')
        parts.append(f'<line x1="{x1}" x2="{x2}" y1="{middle}" y2="{middle}" stroke="#000"/>')
        beyond = _LABEL + room * figures["max"] / high + 8
        parts.append(_text(beyond, middle + 4, number_text(figures["median"], plot.unit), "start"))
    return _svg(_TOP + len(bars) * (_BAR + _GAP), plot.title, parts)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Whole decades where the values are far from each other, and from 0 on where they are not."""
    least, most = min(values), max(values) or 1.0
    if least > 0 and most / least >= _DECADE:
        return _DECADE ** math.floor(math.log10(least)), _DECADE ** math.ceil(math.log10(most))
    return 0.0, most * 1.05


def _ticks(low: float, high: float) -> list[float]:
    if low > 0:
        decades = round(math.log10(high / low))
        return [low * _DECADE**number for number in range(decades + 1)]
    return [high / 1.05 * part / 4 for part in range(5)]


def _part(value: float, low: float, high: float, logarithmic: bool) -> float:
    """Where a value is between two others, from 0 to 1."""
    if high == low:
        return 0.5
    if logarithmic:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _text(x: float, y: float, text: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" aria-label="{escape(title)}">'
    return f"{head}{''.join(parts)}</svg>"
