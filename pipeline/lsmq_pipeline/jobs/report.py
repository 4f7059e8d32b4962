"""What a job tells: figures first, tables made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

from lsmq_pipeline.errors import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows under column names."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@dataclass(slots=True)
class JobReport:
    """The outcome of a job. ``facts`` are plain data; ``problems`` is empty when all is well."""

    job: str
    facts: dict[str, Any]
    sheet: Sheet | None = None
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        rows = (
            [] if self.sheet is None else [dict(zip(self.sheet.columns, row, strict=True)) for row in self.sheet.rows]
        )
        return {"job": self.job, **self.facts, "rows": rows, "problems": self.problems}


class JobProgress(Protocol):
    """Shows what a job is doing: ``step`` names it, and is left when that is done."""

    def step(self, title: str) -> AbstractContextManager[None]: ...

    def note(self, text: str) -> None: ...


class Quiet:
    """Shows nothing."""

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        yield

    def note(self, text: str) -> None:
        pass


class JobProgressBar:
    """A bar on standard error with the tasks of all running stages, and a line for each note."""

    def __init__(self, spark: SparkSession) -> None:
        from rich.console import Console

        self._spark = spark
        self._console = Console(stderr=True, highlight=False)

    def note(self, text: str) -> None:
        self._console.print(text)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        if not self._console.is_terminal:
            self.note(f"{title} ...")
            yield
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        done = Event()
        with Bars(*columns, console=self._console, transient=True) as bars:
            bar = bars.add_task(title, total=None)
            watcher = Thread(target=self._watch, args=(bars, bar, done), name="lsmq progress", daemon=True)
            watcher.start()
            try:
                yield
            finally:
                done.set()
                watcher.join()

    def _watch(self, bars: Any, bar: Any, done: Event) -> None:
        try:
            tracker = self._spark.sparkContext.statusTracker()
        except Exception:  # Spark Connect tells nothing of tasks.
            return
        while not done.wait(POLL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                total = sum(stage.numTasks for stage in known)
                bars.update(bar, completed=sum(stage.numCompletedTasks for stage in known), total=total)


def sheet_of(frame: DataFrame, limit: int = 100_000) -> Sheet:
    """A small data frame's rows. Raises ``JobFailed`` when it is not small."""
    rows = frame.limit(limit + 1).collect()
    if len(rows) > limit:
        raise JobFailed(f"the report would have more than {limit:,} rows: ask for fewer topics, or less time")
    return Sheet(tuple(frame.columns), [tuple(row) for row in rows])


def lines_of(report: JobReport) -> Iterator[tuple[str, Any]]:
    """The facts as pairs to print."""
    for name, value in report.facts.items():
        yield name.replace("_", " "), value


def reader_options(options: Mapping[str, Any], **more: Any) -> dict[str, str]:
    """Options for the data source: those of the connection and some more, without those that are None."""
    from lsmq_pipeline.options import as_options

    return as_options({**options, **more})
