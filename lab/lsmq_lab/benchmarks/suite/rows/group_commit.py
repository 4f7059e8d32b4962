"""Group commit: one fdatasync acknowledges every writer that waited."""

from __future__ import annotations

import threading
import time

from lsmq_node.storage import QueueStore

from ...isolate import run_case
from ...report import Option, percentile_ms
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, over
from ..systems.system import written_bytes

_MODES = ("sync", "async")
_QUEUES = 1_000
_BODY = b"x" * 100


def write(path: str, mode: str, writers: int, messages: int) -> dict[str, float]:
    """As many threads, each of which puts a message, waits for it, and puts the next."""
    store = QueueStore(path, flush_mode=mode)
    names = [f"queue-{number}" for number in range(_QUEUES)]
    store.put_many([(name, b"") for name in names])
    times: list[list[float]] = [[] for _ in range(writers)]
    gate = threading.Barrier(writers + 1)

    def work(number: int) -> None:
        put, seconds = store.put, times[number]
        gate.wait()
        for at in range(number, messages, writers):
            began = time.perf_counter()
            put(names[at % _QUEUES], _BODY)
            seconds.append(time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    gate.wait()
    before, written = store.store.stats(), -written_bytes("self")
    began, cpu_began = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    spent_s, after = time.perf_counter() - began, store.store.stats()
    cpu_s, written = time.process_time() - cpu_began, written + written_bytes("self")
    store.close()
    seconds = [each for part in times for each in part]
    commits = after.commits_total - before.commits_total
    return {
        "per_s": messages / spent_s,
        "p50_ms": percentile_ms(seconds, 0.5),
        "p99_ms": percentile_ms(seconds, 0.99),
        "processor_us": cpu_s * 1e6 / messages,
        "written_bytes": written / messages,
        "messages_a_commit": messages / max(1, commits),
        "waits_for_each": float(writers == 1 and mode == "sync"),
    }


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    def case(mode: str, writers: int) -> Case:
        arguments = {"mode": mode, "writers": writers, "messages": max(values["messages"], writers)}
        name = f"{LSMQ} {mode}, {writers} writers"
        return Case(
            name,
            LSMQ,
            lambda place: run_case(write, path=str(place / "store"), **arguments),
            x=writers,
            series=f"{LSMQ} {mode}",
        )

    return [case(mode, writers) for writers in _writers(values) for mode in _MODES]


def _writers(values: Values) -> list[int]:
    return [count for count in (1, 4, 16, 64, 256) if count <= values["most_writers"]]


def _targets(values: Values) -> list[FigureTarget]:
    return [
        FigureTarget(
            f"sync over async, {writers} writers",
            over(f"{LSMQ} sync, {writers} writers", f"{LSMQ} async, {writers} writers", "per_s"),
            0.9,
            case=f"{LSMQ} sync, {writers} writers",
        )
        for writers in _writers(values)
        if writers >= 64
    ]


ROW = Row(
    name="group-commit",
    title="one fdatasync for every writer that waits",
    work="Threads of one process that put single messages of 100 bytes into a thousand queues, each waiting for its "
    "own: synchronous flush (on the disk at the return) and asynchronous (with the operating system).",
    options=(
        Option("messages", 40_000, "Messages of each case.", quick=500),
        Option("most_writers", 256, "Most writers.", quick=64),
    ),
    cases=_cases,
    columns=(
        FigureColumn("per_s", "put", "/s"),
        FigureColumn("p50_ms", "p50", "ms"),
        FigureColumn("p99_ms", "p99", "ms"),
        FigureColumn("messages_a_commit", "messages a commit", ""),
        FigureColumn("processor_us", "processor a message", "us"),
    ),
    targets=_targets,
    plots=(Plot("per_s", "single messages a second", "/s", "writers"), Plot("p99_ms", "p99", "ms", "writers")),
)
