"""``lsmq bench suite``: all rows, or some, beside the peers that are there, into a report."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..callable import CallableBench
from ..engines import ROCKSDB, ROCKSDB_REMEDY
from ..environment import describe
from ..isolate import scratch
from ..report import QUICK, BenchFailed, BenchReport, Option, TellProgress, TextTable
from .limits import describe_limits, measure_limits
from .page import draw_page
from .rounds import measure_row
from .row import Row
from .rows import ROWS
from .systems import PEERS, system
from .texts import figure_text, target_text

FORMAT = 1
ALL_PEERS = (ROCKSDB, *PEERS)
OPTIONS = (
    Option("only", "", f"Only these rows, with commas between: {', '.join(ROWS)}."),
    Option("peers", "all", f"none, all, or some with commas between: {', '.join(ALL_PEERS)}."),
    Option("rounds", 3, "All cases of a row take turns so many times; medians, least and greatest are shown.", quick=1),
    Option("sizes", "", "Other sizes than the defaults, such as queues=1000,messages=50000, for rows that have them."),
    Option("report", "", "A directory for suite.json and suite.html. Rows that are there stay until they run again."),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Measure the rows that are asked for, each with the machine's limits beside it."""
    rows = [_row(name) for name in values["only"].split(",") if name] or list(ROWS.values())
    sizes = _sizes(values["sizes"], rows)
    peers, gaps = _peers(values["peers"])
    for gap in gaps:
        progress(f"{gap['peer']}: {gap['reason']}")
    place = Path(values["report"]) if values["report"] else None
    result = _earlier(place)
    result["missing"] = gaps
    for row in rows:
        of_row = {option.name: _size(option, values["quick"], sizes) for option in row.options}
        with scratch(values["directory"]) as directory:
            facts = measure_limits(directory, quick=values["quick"])
            progress(f"{row.name}: {describe(facts)}; {describe_limits(facts)}")
            chosen = {**of_row, "rounds": values["rounds"], "peers": values["peers"]}
            found = measure_row(row, chosen, peers, facts, directory, progress)
        absent = [f"{gap['peer']}: {gap['reason']}" for gap in gaps if gap["peer"] in row.peers]
        found["gaps"] = [*absent, *found["gaps"]]
        kept = [each for each in result["rows"] if each["row"] != row.name]
        result["rows"] = sorted([*kept, found], key=lambda each: list(ROWS).index(each["row"]))
        _write(place, result)  # What was measured is kept, whatever becomes of the rows after it.
    tables = [_table(ROWS[each["row"]], each) for each in result["rows"] if ROWS[each["row"]] in rows]
    return BenchReport(result, tables, _notes(result, rows))


def _row(name: str) -> Row:
    if name not in ROWS:
        raise BenchFailed(f"there is no row {name!r}; there are: {', '.join(ROWS)}")
    return ROWS[name]


def _sizes(text: str, rows: list[Row]) -> dict[str, int]:
    known = {option.name for row in rows for option in row.options}
    found = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise BenchFailed(f"no row that runs has a size {name!r}; there are: {', '.join(sorted(known))}")
        if not value.isdecimal():
            raise BenchFailed(f"the size {name} is {value!r}; it must be a whole number, as in {name}=1000")
        found[name] = int(value)
    return found


def _size(option: Option, quick: bool, sizes: Mapping[str, int]) -> Any:
    value = sizes.get(option.name, option.quick if quick and option.quick is not None else option.default)
    if isinstance(value, int) and value < option.low:
        raise BenchFailed(f"size {option.name} must be at least {option.low}, not {value}")
    return value


def _peers(text: str) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """Those that can take part, and of the others that were asked for why they cannot."""
    wanted = {"none": (), "all": ALL_PEERS}.get(text, tuple(filter(None, text.split(","))))
    for name in wanted:
        if name not in ALL_PEERS:
            raise BenchFailed(f"there is no peer {name!r}; there are: none, all, {', '.join(ALL_PEERS)}")
    reasons = {name: _lacks(name) for name in wanted}
    there = tuple(name for name, reason in reasons.items() if reason is None)
    return there, [{"peer": name, "reason": reason} for name, reason in reasons.items() if reason is not None]


def _lacks(peer: str) -> str | None:
    if peer == ROCKSDB:
        return None if importlib.util.find_spec("rocksdict") else ROCKSDB_REMEDY
    return system(peer).lacks()


def _earlier(place: Path | None) -> dict[str, Any]:
    """What the report holds already. Raises :class:`BenchFailed` where that is something else."""
    fresh: dict[str, Any] = {"bench": "suite", "format": FORMAT, "missing": [], "rows": []}
    file = place / "suite.json" if place else None
    if file is None or not file.exists():
        return fresh
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        raise BenchFailed(f"{file} is no report of this suite: {error}; choose another directory") from error
    if found.get("bench") != "suite" or found.get("format") != FORMAT:
        raise BenchFailed(f"{file} is no report of this suite, or of another release; choose another directory")
    found["rows"] = [each for each in found["rows"] if each["row"] in ROWS]
    return found


def _write(place: Path | None, result: Mapping[str, Any]) -> None:
    if place is None:
        return
    place.mkdir(parents=True, exist_ok=True)
    for name, text in (("suite.json", json.dumps(result, indent=1)), ("suite.html", draw_page(result, ROWS))):
        fresh = place / f"{name}.new"
        fresh.write_text(text)
        fresh.rename(place / name)


def _table(row: Row, found: Mapping[str, Any]) -> TextTable:
    shown = [column for column in row.columns if any(column.figure in each["figures"] for each in found["cases"])]
    table = TextTable(f"{row.name}: {row.title}", ("", *(column.title for column in shown)), [])
    for each in found["cases"]:
        figures = (figure_text(each["figures"].get(column.figure), column.unit) for column in shown)
        table.rows.append((each["case"], *figures))
    return table


def _notes(result: Mapping[str, Any], rows: list[Row]) -> list[str]:
    names = [row.name for row in rows]
    found = [each for each in result["rows"] if each["row"] in names]
    targets = [f"{each['row']}: {target_text(target)}" for each in found for target in each["targets"]]
    return [*targets, *(f"{each['row']}: {gap}" for each in found for gap in each["gaps"])]


BENCH = CallableBench(
    name="suite",
    description="Every figure, beside the peers that are there, with what the machine allows: the contest, many queues "
    "and topics, backlogs, single messages, failover and the rest. Writes JSON and one HTML page.",
    options=OPTIONS,
    run=run,
)
