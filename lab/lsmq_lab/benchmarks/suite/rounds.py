"""Measuring a row: all its cases once a round, each on fresh files, and what came of the rounds together."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..isolate import scratch
from ..report import BenchFailed, TellProgress, spread
from .limits import ceilings
from .row import LSMQ, Case, FigureTarget, Medians, Row, Values

#: What a peer that does not come up, or breaks, may raise.
_PEER_FAILURES = (BenchFailed, OSError, subprocess.SubprocessError)
_SHOWN_CHARACTERS = 300


def measure_row(
    row: Row, values: Values, peers: Sequence[str], facts: Mapping[str, Any], directory: Path, progress: TellProgress
) -> dict[str, Any]:
    """The row as the report has it. A peer that fails is named in its gaps; raises where a case of ours fails."""
    began = time.monotonic()
    gaps = list(row.gaps)
    cases = row.cases(values, tuple(name for name in row.peers if name in peers))
    taken: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases}
    for number in range(values["rounds"]):
        for case in list(cases):
            try:
                with scratch(str(directory)) as place:
                    figures = case.run(place)
            except _PEER_FAILURES as error:
                if case.system == LSMQ:
                    raise BenchFailed(f"{row.name}, {case.name}: {error}") from error
                cases.remove(case)
                del taken[case.name]
                gaps.append(f"{case.name}: {str(error)[:_SHOWN_CHARACTERS]}")
                progress(f"{row.name}: {gaps[-1]}")
                continue
            taken[case.name].append(figures)
            shown = ", ".join(
                f"{column.title} {figures[column.figure]:,.4g}"
                for column in row.columns[:3]
                if column.figure in figures
            )
            progress(f"{row.name} {number + 1}/{values['rounds']}: {case.name}: {shown}")
    found = [_case(case, taken[case.name], facts, values.get("message_bytes", 0)) for case in cases]
    medians = {each["case"]: {name: of["median"] for name, of in each["figures"].items()} for each in found}
    return {
        "row": row.name,
        "title": row.title,
        "work": row.work,
        "command": row.command(values),
        "options": {option.name: values[option.name] for option in row.options},
        "rounds": values["rounds"],
        "seconds": round(time.monotonic() - began, 1),
        "machine": dict(facts),
        "cases": found,
        "targets": [_target(target, medians, found) for target in row.targets(values)],
        "gaps": gaps,
        "notes": list(row.notes),
    }


def _case(case: Case, runs: list[dict[str, float]], facts: Mapping[str, Any], message_bytes: int) -> dict[str, Any]:
    names = [name for name in runs[0] if all(name in run for run in runs)]
    figures = {name: spread([float(run[name]) for run in runs]) for name in names}
    return {
        "case": case.name,
        "system": case.system,
        "series": case.series or case.system,
        "x": case.x,
        "figures": figures,
        "ceilings": ceilings(facts, {name: of["median"] for name, of in figures.items()}, message_bytes),
    }


def _target(target: FigureTarget, medians: Medians, cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    value = target.value(medians)
    reached = None if value is None else target.reached(value)
    limit = target.because
    nearest = next((each["ceilings"][0] for each in cases if each["case"] == target.case and each["ceilings"]), None)
    if nearest is not None and not limit:
        limit = f"nearest limit: {nearest['what']}, {nearest['text']}: {nearest['per_s']:,.0f}/s at most"
    return {
        "text": target.text,
        "value": value,
        "goal": target.goal,
        "at_most": target.at_most,
        "unit": target.unit,
        "reached": reached,
        "limit": None if reached else limit or "not known; profile it",
    }
