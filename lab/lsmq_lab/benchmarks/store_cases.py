"""The cases of the store benchmark, each the whole work of one child process. They return plain figures."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lsmq_lab.benchmarks.engines import Engine, open_engine, prepare
from lsmq_lab.benchmarks.environment import disk_bytes, peak_resident_bytes, resident_bytes, warm_memory
from lsmq_lab.benchmarks.workload import SEED, Contents, PutWorkload, number_of, queue_of

SAMPLES = 10
GET_COUNT = 10
SEQUENTIAL_PART = 0.2
#: Memory warmed for each message: what its bytes take in the log, a memtable and a table, and something over.
_WARM_BYTES = 512


class WrongContent(Exception):
    """A store gave back something else than was written."""


def write(
    engine: str, path: str, flush_mode: str, messages: int, queues: int, batch: int, message_bytes: int
) -> dict[str, Any]:
    """Write everything, flush and close.

    ``put_per_s`` is of the time from the first put to the last return; flushing and merging run beside it.
    ``second_half_per_s`` is the same of the second half alone, when all queues have been met before;
    ``closed_per_s`` has the final flush and the close in it as well. ``cpu_s`` is what the process took of all
    CPUs. ``resident_bytes`` are samples at each tenth of the way; like ``peak_resident_bytes`` they are what the
    process has beyond what it had before the store was opened, when the messages were made.
    """
    puts = _prepared(engine, PutWorkload(messages, queues, batch, message_bytes))
    before_bytes, before_peak_bytes = resident_bytes(), peak_resident_bytes()
    warm_memory(messages * _WARM_BYTES)
    store = open_engine(engine, Path(path), flush_mode, queues)
    cpu_began = time.process_time()
    with ThreadPoolExecutor(1) as writer:  # as in a server: the main thread has its puts done by another one
        laps = writer.submit(_put_all, store, puts, messages).result()
    began = time.perf_counter()
    store.flush()
    flush_s = time.perf_counter() - began
    flushed_bytes = resident_bytes() - before_bytes
    began = time.perf_counter()
    store.close()
    close_s = time.perf_counter() - began
    put_s = sum(lap.wall_s for lap in laps)
    later = laps[len(laps) // 2 :]
    return {
        "put_per_s": messages / put_s,
        "second_half_per_s": sum(lap.messages for lap in later) / sum(lap.wall_s for lap in later),
        "closed_per_s": messages / (put_s + flush_s + close_s),
        "put_s": put_s,
        "flush_s": flush_s,
        "close_s": close_s,
        "cpu_s": time.process_time() - cpu_began,
        "resident_bytes": [lap.resident_bytes - before_bytes for lap in laps],
        "flushed_resident_bytes": flushed_bytes,
        "peak_resident_bytes": peak_resident_bytes() - before_peak_bytes,
        "disk_bytes": disk_bytes(Path(path)),
    }


@dataclass(frozen=True, slots=True)
class _Lap:
    """A tenth of the way."""

    messages: int
    wall_s: float
    resident_bytes: int


def _prepared(engine: str, workload: PutWorkload) -> list[tuple[int, Any]]:
    """The puts of a workload: how many messages each has, and the messages. All are made before the first."""
    cycle = [prepare(engine, queues, bodies) for queues, bodies in workload.cycle()]
    puts = list(workload.puts())
    at, count = puts[-1]
    queues, bodies = next(islice(workload.cycle(), at, None))
    last = prepare(engine, queues[:count], bodies[:count])
    return [*((size, cycle[at]) for at, size in puts[:-1]), (count, last)]


def _put_all(store: Engine, puts: list[tuple[int, Any]], messages: int) -> list[_Lap]:
    """Put every batch. Taking the samples is not in the laps' time."""
    laps: list[_Lap] = []
    lap_count = written = 0
    began = time.perf_counter()
    for count, batch in puts:
        store.put(batch)
        lap_count += count
        written += count
        if written * SAMPLES >= messages * (len(laps) + 1):
            wall_s = time.perf_counter() - began
            laps.append(_Lap(lap_count, wall_s, resident_bytes()))
            lap_count = 0
            began = time.perf_counter()
    return laps


def write_and_die(
    engine: str, path: str, flush_mode: str, messages: int, queues: int, batch: int, message_bytes: int
) -> dict[str, Any]:
    """Write everything and leave without closing, as a killed process does. Nothing is returned."""
    puts = _prepared(engine, PutWorkload(messages, queues, batch, message_bytes))
    store = open_engine(engine, Path(path), flush_mode, queues)
    for _, put in puts:
        store.put(put)
    print("{}", flush=True)
    os._exit(0)


def reopen(
    engine: str,
    path: str,
    flush_mode: str,
    messages: int,
    queues: int,
    batch: int,
    message_bytes: int,
    seconds: float,
    rest_seconds: float,
) -> dict[str, Any]:
    """Open what another process wrote, and read it: at random, then some queues from end to end.

    What a store needed only to open is given back within ``rest_seconds``; then its memory is looked at.
    Each kind of reading ends after ``seconds`` if it is not done before. Every message read is checked.
    """
    open_engine(engine, Path(path).with_name("warm-up"), flush_mode, 1).close()
    contents = Contents(PutWorkload(messages, queues, batch, message_bytes))
    before_bytes = resident_bytes()
    warm_memory(messages * _WARM_BYTES)
    began = time.perf_counter()
    store = open_engine(engine, Path(path), flush_mode, queues)
    open_s = time.perf_counter() - began
    time.sleep(rest_seconds)
    opened_bytes, memtable_bytes = resident_bytes() - before_bytes, store.memtable_bytes()
    random_gets, random_s = _read_random(store, contents, seconds)
    sequential_count, sequential_s = _read_sequential(store, contents, seconds)
    figures = {
        "open_s": open_s,
        "resident_bytes": opened_bytes,
        "memtable_bytes": memtable_bytes,
        "random_gets_per_s": random_gets / random_s,
        "sequential_messages_per_s": sequential_count / sequential_s,
        "resident_bytes_after_reading": resident_bytes() - before_bytes,
        "disk_bytes": disk_bytes(Path(path)),
    }
    store.close()
    return figures


def _read_random(store: Engine, contents: Contents, seconds: float) -> tuple[int, float]:
    random = np.random.default_rng(SEED + 1)
    queues = random.choice(np.flatnonzero(contents.lengths), 20_000)
    offsets = (random.random(len(queues)) * contents.lengths[queues]).astype(np.int64)
    done = 0
    began = time.perf_counter()
    for queue, offset in zip(queues.tolist(), offsets.tolist(), strict=True):
        _check(queue, store.get(queue, offset, GET_COUNT), contents.numbers(queue, offset, GET_COUNT))
        done += 1
        if not done % 256 and time.perf_counter() - began > seconds:
            break
    return done, time.perf_counter() - began


def _read_sequential(store: Engine, contents: Contents, seconds: float) -> tuple[int, float]:
    random = np.random.default_rng(SEED + 2)
    filled = np.flatnonzero(contents.lengths)
    chosen = random.choice(filled, max(1, int(len(filled) * SEQUENTIAL_PART)), replace=False)
    count = 0
    began = time.perf_counter()
    for queue in chosen.tolist():
        for offset in range(0, int(contents.lengths[queue]), GET_COUNT):
            found = store.get(queue, offset, GET_COUNT)
            _check(queue, found, contents.numbers(queue, offset, GET_COUNT))
            count += len(found)
            if time.perf_counter() - began > seconds:
                return count, time.perf_counter() - began
    return count, time.perf_counter() - began


def _check(queue: int, found: list[bytes], numbers: list[int]) -> None:
    if [number_of(body) for body in found] != numbers or any(queue_of(body) != queue for body in found):
        told = [(queue_of(body), number_of(body)) for body in found]
        raise WrongContent(f"queue {queue} gave messages (queue, number) {told} where its own {numbers} are")
