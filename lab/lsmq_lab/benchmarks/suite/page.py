"""The report as one HTML page: styles and plots are in it, and it asks nobody for anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .limits import describe_limits
from .plot import draw
from .row import Row
from .texts import figure_text, number_text, target_text

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #111; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
th, td { border: 1px solid #ccc; padding: 3px 8px; text-align: right; }
th:first-child, td:first-child, .summary td { text-align: left; }
td:not(:last-child) { white-space: nowrap; }
code { background: #f2f2f2; padding: 1px 4px; overflow-wrap: anywhere; }
.missed { color: #b00020; font-weight: 600; }
.reached { color: #006b3c; }
.gap { color: #7a4b00; }
.beside { color: #555; font-size: 13px; }
svg { max-width: 100%; height: auto; margin: .5em 0; font-family: system-ui, sans-serif; }
"""


def draw_page(result: Mapping[str, Any], rows: Mapping[str, Row]) -> str:
    """The page of a report's rows."""
    found: Sequence[Mapping[str, Any]] = result["rows"]
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f"<title>LSMQ: the suite</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>LSMQ: the suite</h1>",
        "<p>Medians; in parentheses the least and the greatest of the rounds. Cases take turns on fresh files, in the "
        "same run. Red: a figure that was to be reached and is not, with what the limit is.</p>",
        _summary(found),
        _list((f"{each['peer']}: {each['reason']}" for each in result["missing"]), "gap"),
    ]
    parts += [_section(rows[each["row"]], each) for each in found]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _summary(found: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for each in found:
        named = f'<a href="#{each["row"]}">{escape(each["row"])}</a>'
        lines += [f"<tr><td>{named}</td>{_target_cells(target)}</tr>" for target in each["targets"]]
    head = "<tr><th>row</th><th>to reach</th><th>goal</th><th>found</th></tr>"
    return f'<h2>What was to be reached</h2>\n<table class="summary">\n{head}\n' + "\n".join(lines) + "\n</table>"


def _target_cells(target: Mapping[str, Any]) -> str:
    goal = f"{'≤' if target['at_most'] else '≥'} {number_text(target['goal'], target['unit'])}"
    value = target["value"]
    shown = "not measured" if value is None else number_text(value, target["unit"])
    style = "gap" if value is None else "reached" if target["reached"] else "missed"
    return f'<td>{escape(target["text"])}</td><td>{escape(goal)}</td><td class="{style}">{escape(shown)}</td>'


def _section(row: Row, found: Mapping[str, Any]) -> str:
    facts = found["machine"]
    machine = (
        f"{facts['cpu']}, {facts['cpus']} CPUs, {facts['memory_bytes'] / 2**30:.0f} GiB, Python {facts['python']}, "
        f"load {facts['load']:.1f} before it; {describe_limits(facts)}. "
        f"{found['rounds']} rounds, {found['seconds']:,.0f} s."
    )
    parts = [
        f'<h2 id="{row.name}">{escape(row.name)}: {escape(found["title"])}</h2>',
        f"<p>{escape(found['work'])}</p>",
        f"<p><code>{escape(found['command'])}</code></p>",
        f'<p class="beside">{escape(machine)}</p>',
        _figures(row, found["cases"]),
        *(draw(plot, found["cases"]) for plot in row.plots),
        "\n".join(_target(target) for target in found["targets"]),
        _list(found["gaps"], "gap"),
        _list(found["notes"], "beside"),
    ]
    return "\n".join(part for part in parts if part)


def _figures(row: Row, cases: Sequence[Mapping[str, Any]]) -> str:
    shown = [column for column in row.columns if any(column.figure in each["figures"] for each in cases)]
    limited = any(each["ceilings"] for each in cases)
    titles = ["", *(column.title for column in shown), *(["nearest limit"] if limited else [])]
    lines = ["<tr>" + "".join(f"<th>{escape(title)}</th>" for title in titles) + "</tr>"]
    for each in cases:
        cells = [each["case"], *(figure_text(each["figures"].get(column.figure), column.unit) for column in shown)]
        if limited:
            cells.append(_nearest(each["ceilings"]))
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _nearest(ceilings: Sequence[Mapping[str, Any]]) -> str:
    if not ceilings:
        return "-"
    nearest = ceilings[0]
    return f"{nearest['what']}: {nearest['text']}: {number_text(nearest['per_s'], '/s')} at most"


def _target(target: Mapping[str, Any]) -> str:
    style = "gap" if target["value"] is None else "reached" if target["reached"] else "missed"
    return f'<p class="{style}">{escape(target_text(target))}</p>'


def _list(lines: Iterable[str], style: str) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{style}">{items}</ul>' if items else ""
