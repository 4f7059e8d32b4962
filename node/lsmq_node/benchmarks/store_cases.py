"""The cases of the store benchmark, each the whole work of one child process. They return plain figures."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq_node.benchmarks.engines import Engine, open_engine, queue_names
from lsmq_node.benchmarks.environment import disk_bytes, peak_resident_bytes, resident_bytes
from lsmq_node.benchmarks.workload import SEED, Workload, number_of, queue_of

SAMPLES = 10
GET_COUNT = 10
SEQUENTIAL_PART = 0.2


class WrongContent(Exception):
    """A store gave back something else than was written."""


def write(
    engine: str, path: str, flush_mode: str, messages: int, queues: int, batch: int, message_bytes: int
) -> dict[str, Any]:
    """Write everything, flush and close.

    ``put_per_s`` counts from the first put to the last return, less what making the messages takes by itself
    (``driver_s``, measured in a run without a store); flushing and merging run beside it. ``second_half_per_s``
    is the same of the second half alone, when most queues have been met before; ``closed_per_s`` has the final
    flush and the close in it as well. ``resident_bytes`` are samples at each tenth of the way; like
    ``peak_resident_bytes`` they are what the process has beyond what it had before the store was opened.
    """
    workload = Workload(messages, queues, batch, message_bytes)
    driver_s = _drive(workload)
    names = queue_names(engine, queues)
    before_bytes, before_peak_bytes = resident_bytes(), peak_resident_bytes()
    store = open_engine(engine, Path(path), flush_mode, names)
    cpu_began = time.process_time()
    laps = _put_all(store, workload)
    began = time.perf_counter()
    store.flush()
    flush_s = time.perf_counter() - began
    flushed_bytes = resident_bytes() - before_bytes
    began = time.perf_counter()
    store.close()
    close_s = time.perf_counter() - began
    put_s = _net_s(laps, driver_s)
    later = laps[len(laps) // 2 :]
    later_count = sum(lap.messages for lap in later)
    return {
        "put_per_s": messages / put_s,
        "second_half_per_s": later_count / _net_s(later, driver_s * later_count / messages),
        "closed_per_s": messages / (put_s + flush_s + close_s),
        "put_s": put_s,
        "flush_s": flush_s,
        "close_s": close_s,
        "driver_s": driver_s,
        "cpu_s": time.process_time() - cpu_began,
        "resident_bytes": [lap.resident_bytes - before_bytes for lap in laps],
        "flushed_resident_bytes": flushed_bytes,
        "peak_resident_bytes": peak_resident_bytes() - before_peak_bytes,
        "disk_bytes": disk_bytes(Path(path)),
    }


@dataclass(slots=True)
class _Lap:
    """A tenth of the way: ``wall_s`` from its first message to its last, ``making_s`` of it before puts."""

    messages: int = 0
    wall_s: float = 0.0
    making_s: float = 0.0
    resident_bytes: int = 0


def _put_all(store: Engine, workload: Workload) -> list[_Lap]:
    """Put every batch. Taking the samples is not in the laps' time."""
    laps: list[_Lap] = []
    lap, written = _Lap(), 0
    began = turned = time.perf_counter()
    for queues, bodies in workload.batches():
        lap.making_s += time.perf_counter() - turned
        store.put(queues, bodies)
        turned = time.perf_counter()
        lap.messages += len(bodies)
        written += len(bodies)
        if written * SAMPLES >= workload.messages * (len(laps) + 1):
            lap.wall_s = turned - began
            lap.resident_bytes = resident_bytes()
            laps.append(lap)
            lap = _Lap()
            began = turned = time.perf_counter()
    return laps


def _net_s(laps: Sequence[_Lap], driver_s: float) -> float:
    """Seconds of ``laps`` without the making of messages.

    What background work slows the making down is the store's doing: no more is taken off than making takes
    without a store, or than it took, whichever is less.
    """
    return sum(lap.wall_s for lap in laps) - min(driver_s, sum(lap.making_s for lap in laps))


def write_and_die(
    engine: str, path: str, flush_mode: str, messages: int, queues: int, batch: int, message_bytes: int
) -> dict[str, Any]:
    """Write everything and leave without closing, as a killed process does. Nothing is returned."""
    store = open_engine(engine, Path(path), flush_mode, queue_names(engine, queues))
    for queue, bodies in Workload(messages, queues, batch, message_bytes).batches():
        store.put(queue, bodies)
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
) -> dict[str, Any]:
    """Open what another process wrote, and read it: at random, then some queues from end to end.

    Each kind of reading ends after ``seconds`` if it is not done before. Every message read is checked.
    """
    open_engine(engine, Path(path).with_name("warm-up"), flush_mode, [""]).close()
    lengths = Workload(messages, queues, batch, message_bytes).lengths()
    names = queue_names(engine, queues)
    before_bytes = resident_bytes()
    began = time.perf_counter()
    store = open_engine(engine, Path(path), flush_mode, names)
    open_s = time.perf_counter() - began
    opened_bytes = resident_bytes() - before_bytes
    random_gets, random_s = _read_random(store, lengths, seconds)
    sequential_count, sequential_s = _read_sequential(store, lengths, seconds)
    figures = {
        "open_s": open_s,
        "resident_bytes": opened_bytes,
        "random_gets_per_s": random_gets / random_s,
        "sequential_messages_per_s": sequential_count / sequential_s,
        "resident_bytes_after_reading": resident_bytes() - before_bytes,
        "disk_bytes": disk_bytes(Path(path)),
    }
    store.close()
    return figures


def _drive(workload: Workload) -> float:
    began = time.perf_counter()
    for _ in workload.batches():
        pass
    return time.perf_counter() - began


def _read_random(store: Engine, lengths: NDArray[np.int64], seconds: float) -> tuple[int, float]:
    random = np.random.default_rng(SEED + 1)
    filled = np.flatnonzero(lengths)
    queues = random.choice(filled, 20_000)
    offsets = (random.random(len(queues)) * lengths[queues]).astype(np.int64)
    done = 0
    began = time.perf_counter()
    for queue, offset in zip(queues.tolist(), offsets.tolist(), strict=True):
        found = store.get(queue, offset, GET_COUNT)
        _check(queue, found, min(GET_COUNT, int(lengths[queue]) - offset))
        done += 1
        if not done % 256 and time.perf_counter() - began > seconds:
            break
    return done, time.perf_counter() - began


def _read_sequential(store: Engine, lengths: NDArray[np.int64], seconds: float) -> tuple[int, float]:
    random = np.random.default_rng(SEED + 2)
    filled = np.flatnonzero(lengths)
    chosen = random.choice(filled, max(1, int(len(filled) * SEQUENTIAL_PART)), replace=False)
    count = 0
    began = time.perf_counter()
    for queue in chosen.tolist():
        length, offset = int(lengths[queue]), 0
        last = -1
        while offset < length:
            found = store.get(queue, offset, GET_COUNT)
            last = _check(queue, found, min(GET_COUNT, length - offset), last)
            offset += len(found)
            count += len(found)
            if time.perf_counter() - began > seconds:
                return count, time.perf_counter() - began
    return count, time.perf_counter() - began


def _check(queue: int, found: list[bytes], expected: int, last: int = -1) -> int:
    if len(found) != expected:
        raise WrongContent(f"queue {queue} gave {len(found)} messages where {expected} are")
    for body in found:
        number = number_of(body)
        if queue_of(body) != queue or number <= last:
            raise WrongContent(f"queue {queue} gave message {number} of queue {queue_of(body)} after {last}")
        last = number
    return last
