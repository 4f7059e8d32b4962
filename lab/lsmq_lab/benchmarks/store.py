"""``lsmq bench store``: the store in process, beside RocksDB in the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsmq_lab.benchmarks import store_cases
from lsmq_lab.benchmarks.callable import CallableBench
from lsmq_lab.benchmarks.engines import FLUSH_MODES, LSMQ, ROCKSDB, available
from lsmq_lab.benchmarks.environment import WARM_NOTE, describe, environment
from lsmq_lab.benchmarks.isolate import run_case, scratch
from lsmq_lab.benchmarks.report import (
    QUICK,
    BenchReport,
    Option,
    TellProgress,
    TextTable,
    mebibytes_text,
    rate_text,
    ratio,
    ratio_text,
    spread,
)

OPTIONS = (
    Option("messages", 5_000_000, "Messages of each case.", quick=300_000),
    Option("queues", 1_000_000, "Queues of the largest case; the others have 1 and 10,000.", quick=50_000),
    Option("batch", 10_000, "Messages of one put."),
    Option("message_bytes", 58, "Size of a message.", low=16),
    Option("repeat", 3, "Repetitions of each write; cases take turns.", quick=1),
    Option("read_seconds", 5, "Longest time of each kind of reading.", quick=1),
    Option("rest_seconds", 25, "From opening a store to looking at its memory, and reading.", low=0, quick=0),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
FEW_QUEUES = (1, 10_000)
_RATES = ("put_per_s", "second_half_per_s", "closed_per_s")
_FIGURES = (*_RATES, "peak_resident_bytes", "disk_bytes", "cpu_s")


@dataclass(frozen=True, slots=True)
class _Case:
    engine: str
    flush_mode: str
    queues: int

    def __str__(self) -> str:
        return f"{self.engine}, {self.flush_mode}, {self.queues:,} queues"


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Write with each engine, flush mode and number of queues; reopen, read; compare."""
    engines, remedies = available()
    for remedy in remedies:
        progress(remedy)
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        progress(describe(facts))
        writes = _writes(values, engines, directory, progress)
        reopens = _reopens(values, engines, directory, progress)
    result: dict[str, Any] = {
        "bench": "store",
        "environment": facts,
        "options": dict(values),
        "missing": remedies,
        "writes": writes,
        "reopens": reopens,
        "ratios": _ratios(writes, reopens),
    }
    return BenchReport(result, _tables(result), [*_NOTES, *remedies])


def _cases(values: Mapping[str, Any], engines: list[str]) -> Iterator[_Case]:
    counts = sorted({*FEW_QUEUES, values["queues"]})
    for flush_mode in FLUSH_MODES:
        for queues in counts:
            for engine in engines:
                yield _Case(engine, flush_mode, queues)


def _writes(
    values: Mapping[str, Any], engines: list[str], directory: Path, progress: TellProgress
) -> list[dict[str, Any]]:
    """Figures of every write case over its repetitions; a repetition visits all cases before the next."""
    cases = list(_cases(values, engines))
    taken: dict[_Case, list[dict[str, Any]]] = {case: [] for case in cases}
    for repetition in range(values["repeat"]):
        for case in cases:
            progress(f"write {repetition + 1}/{values['repeat']}: {case}")
            with scratch(str(directory)) as place:
                taken[case].append(run_case(store_cases.write, **_arguments(values, case, place / "store")))
    return [
        {
            "engine": case.engine,
            "flush_mode": case.flush_mode,
            "queues": case.queues,
            **{name: spread([float(figures[name]) for figures in runs]) for name in _FIGURES},
            "flushed_resident_bytes": spread([float(figures["flushed_resident_bytes"]) for figures in runs]),
            "resident_bytes_on_the_way": runs[-1]["resident_bytes"],
            "repetitions": runs,
        }
        for case, runs in taken.items()
    ]


def _reopens(
    values: Mapping[str, Any], engines: list[str], directory: Path, progress: TellProgress
) -> list[dict[str, Any]]:
    """Open and read what was closed, and what was left without closing, at one queue and at all.

    ``resident_bytes_per_queue`` is what an opened store of all queues holds beyond one with a single queue and
    as many messages, for each queue; messages that wait in memory to be flushed are taken off both.
    """
    figures: list[dict[str, Any]] = []
    for engine in engines:
        for ending, writer in (("closed", store_cases.write), ("killed", store_cases.write_and_die)):
            base_bytes = 0
            for queues in dict.fromkeys((1, values["queues"])):
                case = _Case(engine, "async", queues)
                progress(f"reopen and read: {case}, {ending}")
                with scratch(str(directory)) as place:
                    arguments = _arguments(values, case, place / "store")
                    run_case(writer, **arguments)
                    found = run_case(
                        store_cases.reopen,
                        seconds=values["read_seconds"],
                        rest_seconds=values["rest_seconds"],
                        **arguments,
                    )
                figures.append({"engine": engine, "ending": ending, "queues": queues, **found})
                held_bytes = found["resident_bytes"] - found["memtable_bytes"]
                if queues > 1:
                    figures[-1]["resident_bytes_per_queue"] = (held_bytes - base_bytes) / queues
                base_bytes = held_bytes
    return figures


def _arguments(values: Mapping[str, Any], case: _Case, path: Path) -> dict[str, Any]:
    return {
        "engine": case.engine,
        "path": str(path),
        "flush_mode": case.flush_mode,
        "queues": case.queues,
        "messages": values["messages"],
        "batch": values["batch"],
        "message_bytes": values["message_bytes"],
    }


def _ratios(writes: list[dict[str, Any]], reopens: list[dict[str, Any]]) -> dict[str, float | None]:
    """Ours over RocksDB, and each engine at many queues over itself at one."""
    by_case = {(each["engine"], each["flush_mode"], each["queues"]): each for each in writes}
    counts = sorted({queues for _, _, queues in by_case})
    ratios: dict[str, float | None] = {}
    for mode in FLUSH_MODES:
        for queues in counts:
            ours, theirs = (by_case.get((engine, mode, queues), {}) for engine in (LSMQ, ROCKSDB))
            for name in _RATES:
                ratios[f"{name}/{mode}/{queues}"] = ratio(ours.get(name), theirs.get(name))
        for engine in (LSMQ, ROCKSDB):
            one = by_case.get((engine, mode, counts[0]), {})
            for queues in counts[1:]:
                many = by_case.get((engine, mode, queues), {})
                for name in _RATES:
                    ratios[f"flat/{engine}/{name}/{mode}/{queues}"] = ratio(many.get(name), one.get(name))
    by_ending = {(each["engine"], each["ending"]): each for each in reopens if each["queues"] > 1}
    for name in ("random_gets_per_s", "sequential_messages_per_s"):
        pair = [by_ending.get((engine, "closed")) for engine in (LSMQ, ROCKSDB)]
        ratios[name] = pair[0][name] / pair[1][name] if pair[0] and pair[1] else None
    return ratios


def _tables(result: dict[str, Any]) -> list[TextTable]:
    options, ratios = result["options"], result["ratios"]
    size = f"{options['messages']:,} messages of {options['message_bytes']} bytes, {options['batch']:,} a put"
    writes = TextTable(
        f"Write: {size}",
        (
            "store, flush mode, queues",
            "put",
            "2nd half",
            "put, flush, close",
            "RocksDB = 1",
            "flat",
            "peak memory",
            "disk",
        ),
        [],
    )
    for each in result["writes"]:
        engine, mode, queues = each["engine"], each["flush_mode"], each["queues"]
        writes.rows.append(
            (
                f"{engine}, {mode}, {queues:,}",
                rate_text(each["put_per_s"]),
                rate_text(each["second_half_per_s"]),
                rate_text(each["closed_per_s"]),
                ratio_text(ratios[f"put_per_s/{mode}/{queues}"]) if engine == LSMQ else "",
                ratio_text(ratios.get(f"flat/{engine}/put_per_s/{mode}/{queues}")),
                mebibytes_text(each["peak_resident_bytes"]["median"]),
                mebibytes_text(each["disk_bytes"]["median"]),
            )
        )
    reads = TextTable(
        f"Reopen and read: {options['messages']:,} messages",
        ("store, how it was left, queues", "open", "memory", "a queue", "random gets", "sequential messages"),
        [
            (
                f"{each['engine']}, {each['ending']}, {each['queues']:,}",
                f"{each['open_s']:.2f} s",
                mebibytes_text(each["resident_bytes"]),
                f"{each['resident_bytes_per_queue']:,.0f} B" if each["queues"] > 1 else "",
                rate_text(spread([each["random_gets_per_s"]])),
                rate_text(spread([each["sequential_messages_per_s"]])),
            )
            for each in result["reopens"]
        ],
    )
    reads.rows.append(
        (
            "lsmq, RocksDB = 1",
            "",
            "",
            "",
            ratio_text(ratios["random_gets_per_s"]),
            ratio_text(ratios["sequential_messages_per_s"]),
        )
    )
    growth = TextTable(
        "Memory while the backlog grows, async",
        ("store, queues; MiB at", *_counts(options["messages"]), "flushed"),
        [
            (
                f"{each['engine']}, {each['queues']:,}",
                *_samples(each["resident_bytes_on_the_way"]),
                f"{each['flushed_resident_bytes']['median'] / 2**20:,.0f}",
            )
            for each in result["writes"]
            if each["flush_mode"] == "async"
        ],
    )
    return [writes, reads, growth]


def _samples(sizes_bytes: list[int]) -> list[str]:
    """The samples as MiB; fewer were taken when there were fewer puts than samples."""
    missing = ["-"] * (store_cases.SAMPLES - len(sizes_bytes))
    return missing + [f"{size_bytes / 2**20:,.0f}" for size_bytes in sizes_bytes]


def _counts(messages: int) -> Iterator[str]:
    """How many messages there are at each sample of the memory."""
    for part in range(1, store_cases.SAMPLES + 1):
        count = messages * part / store_cases.SAMPLES
        yield f"{count / 1e6:g} M" if count >= 1e6 else f"{count / 1e3:g} k"


_NOTES = [
    "Every case runs in a process of its own; repetitions take turns; figures are medians (least-greatest).",
    "put: by a thread that is not the main one, from its first put to the last return, nothing taken off, flushing and "
    "merging beside it; "
    "put, flush, close: with the final flush and the close in it.",
    "The messages are made before the clock runs: a cycle of a million (or one for each queue, if there are more), "
    "each with a name string of its own, put again until there are enough. A cycle meets every queue equally often "
    "in random order, so that all queues are new in the first million messages. RocksDB is given queue numbers.",
    "2nd half: put, of the second half of the messages alone; no queue is new then.",
    "flat: the same store at so many queues over itself at one queue. RocksDB = 1: ours over theirs.",
    "async acknowledges after write(2), sync after fdatasync, in both stores.",
    "memory: what the process has beyond what it had before the store was opened; peak with file pages; a "
    "queue: beyond the store of one queue with as many messages, for each queue, memtables taken off.",
    WARM_NOTE,
    "Memory of an opened store, and its reads: rest_seconds after it was opened.",
    "Reads are of a warm page cache, 10 messages a call, and every message is checked.",
]

BENCH = CallableBench(
    name="store",
    description="The store in process: batch puts at a million queues, reopening, reading; beside RocksDB.",
    options=OPTIONS,
    run=run,
)
