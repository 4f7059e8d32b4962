"""What commands print: tables for people, JSON for scripts, progress for those who wait at a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

_WHOLE_COLUMNS = ("id", "offset", "queue", "transaction")
_ENDLESS = 10_000
_MOST_DRAWN = 2_000  # Rows that a table is drawn of: more take minutes.
_SHOWN_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
_FOLDABLE = 1.2  # A table so much wider than the terminal is still readable when its longest columns are folded.


def print_json(value: Any) -> None:
    """One line of JSON on standard output; in ASCII where that is not in UTF-8."""
    unicode = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    click.echo(json.dumps(value, ensure_ascii=not unicode, default=_plain))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """A table on standard output; numbers stand to the right.

    Where the output is not a terminal lines are as long as they need to be. On a terminal that is much too narrow for
    the table each row is a paragraph, a field a line: a table of columns of three letters cannot be read.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = [list(row) for row in rows]
    if len(rows) > _MOST_DRAWN:
        _print_lines(columns, [[_cell(value).replace("\n", "\\n") for value in row] for row in rows], rows[0])
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[place], int | float) for row in rows)
        # An id that is split over lines cannot be copied.
        table.add_column(
            column, justify="right" if numeric else "left", overflow="fold", no_wrap=column in _WHOLE_COLUMNS
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console = Console(width=None if sys.stdout.isatty() else _ENDLESS, highlight=False, markup=False, soft_wrap=False)
    wanted = console.measure(table, options=console.options.update_width(_ENDLESS)).maximum
    if rows and wanted > console.width * _FOLDABLE:
        for row in rows:
            print_fields(zip(columns, row, strict=True))
            click.echo()
    else:
        console.print(table)


def _print_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], first: Sequence[Any]) -> None:
    """A table that is too long to be drawn: as wide as it needs to be, a row a line."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    sides = [">" if isinstance(value, int | float) else "<" for value in first]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True)).format
    click.echo(f" {line(*columns)}".rstrip())
    click.echo(" " + "-" * (sum(widths) + 2 * len(widths) - 2))
    for first_row in range(0, len(rows), _MOST_DRAWN):
        click.echo("\n".join(f" {line(*row)}".rstrip() for row in rows[first_row : first_row + _MOST_DRAWN]))


def print_fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one pair a line."""
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name:<{width}}  {_cell(value)}")


def counted(count: int, noun: str) -> str:
    """``1 queue``, ``2 queues``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def yes_or_no(value: Any) -> Any:
    """Truth as people say it; anything else as it is."""
    return ("yes" if value else "no") if isinstance(value, bool) else value


def time_text(time_ms: int) -> str:
    """Milliseconds since 1970 as local time."""
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")


def zone_text(time_ms: int, zone: str) -> str:
    """Milliseconds since 1970 by the clocks of a time zone, and in UTC: ``2026-03-02 09:00:00+01:00 = 08:00:00Z``.

    In UTC alone where that is the zone, or this machine knows none of that name.
    """
    utc = datetime.fromtimestamp(time_ms // 1000, UTC)
    try:
        there = utc.astimezone(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):
        there = utc
    if not there.utcoffset():
        return f"{utc:%Y-%m-%d %H:%M:%S}Z"
    same_day = there.date() == utc.date()
    return f"{there.isoformat(sep=' ')} = {utc:{'%H:%M:%S' if same_day else '%Y-%m-%d %H:%M:%S'}}Z"


def clock_text(time_ms: int) -> str:
    """Milliseconds since 1970 as local time of day."""
    return datetime.fromtimestamp(time_ms / 1000).astimezone().strftime("%H:%M:%S")


def size_text(size_bytes: float) -> str:
    """A size for people: ``4.0 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


class ProgressBar(Protocol):
    """What a command that takes long tells of how far it is."""

    def advance(self, steps: int) -> None: ...


class _Silent:
    def advance(self, steps: int) -> None:
        pass


@contextmanager
def progress(label: str, total: int | None, *, of_bytes: bool = False, beside: bool = False) -> Iterator[ProgressBar]:
    """A progress bar on standard error if that is a terminal, and nothing otherwise.

    Nothing either where something else is typed or printed there meanwhile (``beside``).
    """
    if beside or not sys.stderr.isatty():
        yield _Silent()
        return
    from rich import progress as bars
    from rich.console import Console

    columns: list[Any] = [bars.TextColumn(label), bars.BarColumn()]
    columns += [bars.DownloadColumn(), bars.TransferSpeedColumn()] if of_bytes else [bars.MofNCompleteColumn()]
    columns.append(bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=total)

        class Shown:
            def advance(self, steps: int) -> None:
                shown.advance(task, steps)

        yield Shown()


def _cell(value: Any) -> str:
    """What stands in a table: text of messages tells the terminal nothing but where lines end."""
    if value is None:
        return "-"
    if isinstance(value, dict | list):
        text = json.dumps(value, ensure_ascii=False, default=_plain)
    elif isinstance(value, bytes):
        text = value.decode(errors="backslashreplace")
    else:
        text = str(value)
    return text.translate(_SHOWN_CONTROLS)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return str(value)
