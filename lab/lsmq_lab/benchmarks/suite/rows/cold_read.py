"""A cold read: the oldest message of a queue that lies in every table, past an empty cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...engines import LSMQ, ROCKSDB, LsmqEngine, open_engine, prepare
from ...isolate import run_case
from ...report import Option
from ..page_files import forget
from ..row import Case, FigureColumn, FigureTarget, Plot, Row, Values

_READS = 20
_BODY_BYTES = 100
_MOST_READS_A_LEVEL = 3


def fill(path: str, engine: str, flushes: int, each: int) -> dict[str, float]:
    """Flush a table again and again, each with a message of every queue; merges go on as they do."""
    store = open_engine(engine, Path(path), "async", each)
    queues = np.arange(each)
    for number in range(flushes):
        store.put(prepare(engine, queues, [number.to_bytes(4, "big").ljust(_BODY_BYTES, b"x")] * each))
        store.flush()
    store.close()
    return {}


def read(path: str, engine: str, each: int) -> dict[str, float]:
    """Read the first message of a few queues, one after another; what is in the system's cache is dropped before."""
    store = open_engine(engine, Path(path), "async", each)
    calls: list[int] = []
    seconds: list[float] = []
    for queue in np.linspace(0, each - 1, _READS).astype(int).tolist():
        forget(Path(path))
        before, began = _read_calls(), time.perf_counter()
        found = store.get(queue, 0, 1)
        seconds.append(time.perf_counter() - began)
        calls.append(_read_calls() - before)
        if [body[:4] for body in found] != [bytes(4)]:
            raise AssertionError(f"queue {queue} gave {found!r}, not its first message")
    figures = {"reads": float(np.median(calls)), "most_reads": float(max(calls)), "ms": 1e3 * float(np.median(seconds))}
    if isinstance(store, LsmqEngine):
        stats = store.store.store.stats()
        figures["runs"] = float(stats.level0_tables + stats.generations)
    store.close()
    return figures


def _read_calls() -> int:
    """System calls of this process that read. Asking costs one itself, which every difference has."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "syscr":
            return int(value)
    return 0


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    def case(engine: str, flushes: int) -> Case:
        sizes = {"engine": engine, "each": values["queues"]}

        def measure(place: Path) -> dict[str, float]:
            path = str(place / "store")
            run_case(fill, path=path, flushes=flushes, **sizes)
            return run_case(read, path=path, **sizes)

        return Case(f"{engine}, {flushes} flushes", engine, measure, x=flushes)

    engines = [LSMQ, *([ROCKSDB] if ROCKSDB in peers else [])]
    return [case(engine, flushes) for flushes in _flushes(values) for engine in engines]


def _flushes(values: Values) -> list[int]:
    return [count for count in (1, 4, 16, 64, 256) if count <= values["most_flushes"]]


def _targets(values: Values) -> list[FigureTarget]:
    most = _flushes(values)[-1]
    logarithm = max(1, most.bit_length())

    def a_level(name: str) -> Callable[..., float | None]:
        return lambda found: None if name not in found else found[name]["reads"] / logarithm

    name = f"{LSMQ}, {most} flushes"
    return [FigureTarget(f"reads over log2 of {most} tables", a_level(name), _MOST_READS_A_LEVEL, at_most=True)]


ROW = Row(
    name="cold-read",
    title="the oldest message of a queue that was in every flush",
    work="Tables are flushed again and again, each with a message of every queue. Then the first message of some "
    "queues is read, with nothing in the page cache: reads are system calls.",
    options=(
        Option("queues", 20_000, "Queues, and messages of a flush.", quick=500),
        Option("most_flushes", 256, "Most flushes.", quick=16),
    ),
    cases=_cases,
    columns=(
        FigureColumn("reads", "reads, median", ""),
        FigureColumn("most_reads", "most reads", ""),
        FigureColumn("ms", "time", "ms"),
        FigureColumn("runs", "runs at the time", ""),
    ),
    targets=_targets,
    plots=(Plot("reads", "system calls that read, a message", "", "flushes"),),
    peers=(ROCKSDB,),
    notes=("rocksdb maps no files here either; both have their block cache, which is empty for each queue's block.",),
)
