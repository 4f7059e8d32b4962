"""Benchmarks on the command line: options from each benchmark's own list, tables or JSON as output.

``lsmq bench NAME ARGUMENTS`` comes here through :func:`call`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table as RichTable

from lsmq_lab.benchmarks.report import Bench, BenchFailed, BenchReport, Option

WIDTH = 160  # columns of a table that does not go to a terminal


def command_of(benchmark: Bench) -> click.Command:
    """The benchmark as a command, which prints its report."""

    def invoke(as_json: bool, **given: Any) -> None:
        report = _run(benchmark, given)
        if as_json:
            click.echo(json.dumps(report.result, indent=2))
        else:
            show(report)

    as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print every figure as JSON.")
    return click.Command(
        benchmark.name, callback=invoke, params=[*_parameters(benchmark), as_json], help=benchmark.description
    )


def call(benchmark: Bench, arguments: Sequence[str], *, as_json: bool) -> dict[str, Any] | None:
    """Parse ``arguments``, run, and print the report; with ``as_json`` return the figures instead.

    Raises ``click.ClickException`` on wrong usage, and when the benchmark cannot be carried through.
    """

    def invoke(**given: Any) -> BenchReport:
        return _run(benchmark, given)

    name = f"lsmq bench {benchmark.name}"
    parser = click.Command(name, callback=invoke, params=_parameters(benchmark), help=benchmark.description)
    report = parser.main(list(arguments), prog_name=name, standalone_mode=False)
    if not isinstance(report, BenchReport):  # --help was asked for, and answered.
        return None
    if as_json:
        return report.result
    show(report)
    return None


def show(report: BenchReport) -> None:
    """Print a report's tables and notes for people."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for table in report.tables:
        drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
        for index, name in enumerate(table.columns):
            drawn.add_column(name, justify="right" if index else "left", no_wrap=not index)
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    for note in report.notes:
        console.print(f"- {note}", soft_wrap=True, markup=False)


def _run(benchmark: Bench, given: dict[str, Any]) -> BenchReport:
    console = Console(stderr=True, highlight=False)

    def progress(line: str) -> None:
        console.print(f"  {line}", style="dim", soft_wrap=True, markup=False)

    try:
        return benchmark.run(benchmark.values(given), progress)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from error


def _parameters(benchmark: Bench) -> list[click.Parameter]:
    return [_parameter(option) for option in benchmark.options]


def _parameter(option: Option) -> click.Parameter:
    flag = f"--{option.name.replace('_', '-')}"
    if isinstance(option.default, bool):
        return click.Option([flag], is_flag=True, help=option.help)
    shown = f" [default: {option.default:,}]" if isinstance(option.default, int) else ""
    return click.Option([flag], type=type(option.default), help=option.help + shown)
