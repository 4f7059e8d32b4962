"""Write amplification: what the disk gets for a byte that is put, beside what the rules of merging say."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lsmq_node.storage import QueueStore, StoreOptions

from ...engines import LSMQ, ROCKSDB
from ...isolate import run_case
from ...report import Option
from ..row import Case, FigureColumn, Plot, Row, Values
from ..systems.system import written_bytes

_BODY_BYTES = 200
_BATCH = 1_000
_FAN = 4
_THEORY = "theory"


def write(path: str, engine: str, memtables: int, memtable_bytes: int, queues: int) -> dict[str, float]:
    """Put so many memtables of messages to queues at random, and wait until nothing is merged any more."""
    random, bodies = np.random.default_rng(7), [os.urandom(_BODY_BYTES) for _ in range(_BATCH)]
    count = -(-memtables * memtable_bytes // (_BODY_BYTES * _BATCH))
    before = written_bytes("self")
    counters = _lsmq if engine == LSMQ else _rocksdb
    figures = counters(Path(path), memtable_bytes, queues, random, bodies, count)
    payload = count * _BATCH * _BODY_BYTES
    return {
        "written_over_put": (written_bytes("self") - before) / payload,
        **{name: value / payload for name, value in figures.items()},
    }


def _lsmq(
    path: Path, memtable_bytes: int, queues: int, random: Any, bodies: list[bytes], count: int
) -> dict[str, float]:
    sizes: dict[str, Any] = {
        "memtable_bytes": memtable_bytes,
        "segment_bytes": memtable_bytes,
        "table_bytes": 2 * memtable_bytes,
    }
    limits: dict[str, Any] = {"max_message_bytes": memtable_bytes // 4, "wal_keep_bytes": memtable_bytes}
    with QueueStore(path, flush_mode="async", **sizes, **limits) as store:
        for _ in range(count):
            store.put_many([(f"q{queue}", body) for queue, body in zip(_picks(random, queues), bodies, strict=True)])
        store.flush()
        stats = store.store.stats()
        return {
            "log_over_put": float(stats.wal_bytes_total),
            "flushed_over_put": float(stats.flushed_bytes_total),
            "merged_over_put": float(stats.merged_bytes_total),
        }


def _rocksdb(
    path: Path, memtable_bytes: int, queues: int, random: Any, bodies: list[bytes], count: int
) -> dict[str, float]:
    from importlib import import_module

    rocksdict = import_module("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(memtable_bytes)
    options.set_target_file_size_base(2 * memtable_bytes)
    options.set_max_bytes_for_level_base(8 * memtable_bytes)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    database = rocksdict.Rdict(str(path), options)
    number = 0
    for _ in range(count):
        writes = rocksdict.WriteBatch(raw_mode=True)
        for queue, body in zip(_picks(random, queues), bodies, strict=True):
            writes.put(queue.to_bytes(4, "big") + number.to_bytes(8, "big"), body)
            number += 1
        database.write(writes)
    database.flush()
    database.close()
    return {}


def _picks(random: Any, queues: int) -> list[int]:
    picks: list[int] = random.integers(0, queues, _BATCH).tolist()
    return picks


def theory(memtables: int) -> float:
    """The log and the flush once each; a merge of level 0 once; then once for each time a run grows by the fan."""
    level0 = StoreOptions().level0_merge
    merges = 1 + math.log(memtables / level0, _FAN) if memtables >= level0 else 0.0
    return 2 + merges


def _write(place: Path, arguments: dict[str, Any]) -> dict[str, float]:
    return run_case(write, path=str(place / "store"), **arguments)


def _expected(place: Path, memtables: int) -> dict[str, float]:
    return {"written_over_put": theory(memtables)}


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    def case(engine: str, memtables: int) -> Case:
        arguments = {
            "engine": engine,
            "memtables": memtables,
            "memtable_bytes": values["memtable_kib"] * 1024,
            "queues": values["queues"],
        }
        return Case(
            f"{engine}, {memtables} memtables",
            engine,
            partial(_write, arguments=arguments),
            x=memtables,
        )

    found = []
    for memtables in [count for count in (10, 100, 1_000) if count <= values["most_memtables"]]:
        found.append(case(LSMQ, memtables))
        expected = partial(_expected, memtables=memtables)
        found.append(Case(f"{_THEORY}, {memtables} memtables", _THEORY, expected, x=memtables))
        if ROCKSDB in peers:
            found.append(case(ROCKSDB, memtables))
    return found


ROW = Row(
    name="write-amplification",
    title="what the disk gets for a byte that is put",
    work="Messages of 200 bytes to queues at random, as many as fill so many memtables; bytes that the process has had "
    "written to the disk, over the bytes of the messages, and the parts of it that the store counts.",
    options=(
        Option("memtable_kib", 1_024, "Size of a memtable; small, so that there can be many.", quick=64, low=64),
        Option("most_memtables", 1_000, "Most memtables.", quick=10),
        Option("queues", 100_000, "Queues.", quick=1_000),
    ),
    cases=_cases,
    columns=(
        FigureColumn("written_over_put", "written", "x"),
        FigureColumn("log_over_put", "of it log", "x"),
        FigureColumn("flushed_over_put", "flushed", "x"),
        FigureColumn("merged_over_put", "merged", "x"),
    ),
    plots=(Plot("written_over_put", "bytes written for a byte put", "x", "memtables"),),
    peers=(ROCKSDB,),
    notes=(
        "theory: the log and the flush write everything once; a merge of eight tables of level 0 once more; and each "
        f"time that runs grow by {_FAN}, once more: 3 + log{_FAN}(memtables / 8). What a record carries beside its "
        "body is not in it. Merges that wait at the end are not done any more, so small numbers come out below it.",
    ),
)
