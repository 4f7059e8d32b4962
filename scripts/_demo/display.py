"""What the demo says: progress bars on a terminal, a line now and then elsewhere, checks and a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from .check import Check

LINES_A_BAR = 4
_RECORDED_WIDTH = 112
#: Rich names fonts that a browser would fetch from elsewhere.
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Bars:
    """Counts that grow towards their totals. ``update`` may be called as often as one likes."""

    def update(self, name: str, completed: int) -> None:
        """Show that ``completed`` of the bar's total are done."""
        raise NotImplementedError


class Display:
    """Writes to one console; knows whether it is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)

    @classmethod
    def recorded(cls) -> Display:
        """One that keeps what it says, for :meth:`save`: lines, as where there is no terminal."""
        console = Console(highlight=False, soft_wrap=True, record=True, force_terminal=False, width=_RECORDED_WIDTH)
        return cls(console)

    def save(self, path: Path) -> None:
        """All that was said as a picture, an SVG that asks nobody for anything. For one that was recorded."""
        picture = self.console.export_svg(title="scripts/demo", unique_id="demo")
        path.write_text(_FONT.sub("", picture).replace("Fira Code, monospace", "monospace"))

    def heading(self, text: str) -> None:
        """Begin a part of the demo."""
        self.console.print(f"\n[bold]{text}[/bold]")

    def note(self, text: str) -> None:
        """Say one thing."""
        self.console.print(f"  {text}")

    def check(self, check: Check) -> None:
        """Show whether a statement holds."""
        mark = "[green]ok  [/green]" if check.ok else "[bold red]FAIL[/bold red]"
        self.console.print(f"  {mark}  {check.text}")

    @contextmanager
    def bars(self, totals: Mapping[str, int]) -> Iterator[Bars]:
        """Bars of these names and totals, as long as the context lasts."""
        if not self.console.is_terminal:
            yield _Lines(self.console, totals)
            return
        columns = (
            TextColumn("  {task.description:<12}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            yield _Live(progress, totals)

    def table(self, title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        """A table; the first column is text, the others are figures."""
        table = Table(title=title, title_justify="left", title_style="bold")
        for index, name in enumerate(header):
            table.add_column(name, justify="right" if index else "left", no_wrap=not index)
        for row in rows:
            table.add_row(*row)
        self.console.print()
        self.console.print(table)


class _Lines(Bars):
    def __init__(self, console: Console, totals: Mapping[str, int]) -> None:
        self._console = console
        self._totals = totals
        self._said = dict.fromkeys(totals, 0)

    def update(self, name: str, completed: int) -> None:
        total = self._totals[name]
        step = completed * LINES_A_BAR // max(1, total)
        if step > self._said[name]:
            self._said[name] = step
            self._console.print(f"  {name:<12} {completed:>9,} of {total:,}")


class _Live(Bars):
    def __init__(self, progress: Progress, totals: Mapping[str, int]) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {
            name: progress.add_task(name, total=total, rate="") for name, total in totals.items()
        }

    def update(self, name: str, completed: int) -> None:
        task = self._progress.tasks[self._tasks[name]]
        speed = completed / task.elapsed if task.elapsed else 0.0
        if completed != task.completed:
            self._progress.update(task.id, completed=completed, rate=f"{speed:,.0f}/s")


def mebibytes(size_bytes: float) -> str:
    """A size for people."""
    return f"{size_bytes / 2**20:,.1f} MiB"
