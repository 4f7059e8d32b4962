"""The queue-store contest as it was run: a million queues in one process, written, checked at random, read through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq_node.storage import QueueStore

from ...engines import ROCKSDB, Engine, open_engine, prepare
from ...environment import peak_resident_bytes, warm_memory
from ...isolate import run_case
from ...report import Option
from ...workload import SEED, Contents, PutWorkload, queue_of
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, figure, over
from ..systems.system import written_bytes

_MESSAGE_BYTES = 58
_LARGE_BYTES, _LARGE_EVERY = 1024, 1_000
_READ_PART, _READ_QUEUES = 0.2, 1_000_000
_WARM_BYTES = 512
_SINGLE, _BATCHES = "lsmq, single puts, collected", "lsmq, batches"
_WAITING = "lsmq, single puts that wait"
_ONE_QUEUE = "lsmq, batches into one queue"


def puts(
    path: str, engine: str, mode: str, messages: int, queues: int, threads: int, batch: int, reads: bool
) -> dict[str, float]:
    """Write, with the names made and the last flush inside the time; then check every queue, and read a part of them.

    ``mode``: ``single``, a put a message from each thread that waits for it; ``collected``, a put a message into a
    collector of the thread's own; ``batches``, lists of pairs from each.
    """
    workload = PutWorkload(messages, queues, batch, _MESSAGE_BYTES)
    cycle = [(chosen, _with_large(bodies)) for chosen, bodies in workload.cycle()]
    warm_memory(messages * _WARM_BYTES)
    store = open_engine(engine, Path(path), "async", queues)
    put = _batches(engine, store) if mode == "batches" else _single(store, collected=mode == "collected")
    parts = [cycle[at] if size == batch else _cut(cycle[at], size) for at, size in workload.puts()]
    written, cpu_began, began = written_bytes("self"), time.process_time(), time.perf_counter()
    _in_threads(put, [parts[number::threads] for number in range(threads)])
    put_s = time.perf_counter() - began
    store.flush()
    whole_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    found = {
        "per_s": messages / whole_s,
        "before_flush_per_s": messages / put_s,
        "processor_us": cpu_s * 1e6 / messages,
        "written_bytes": (written_bytes("self") - written) / messages,
        "put_s": whole_s,
    }
    if reads:
        contents = Contents(workload)
        found["check_s"] = _timed(lambda: _check(store, contents))
        found["read_s"] = _timed(lambda: _read(store, contents))
        found["read_over_put"] = max(found["check_s"], found["read_s"]) / whole_s
    found["peak_mib"] = peak_resident_bytes() / 2**20
    store.close()
    return found


def _with_large(bodies: list[bytes]) -> list[bytes]:
    """Some are of 1 KiB, as in the contest."""
    for at in range(0, len(bodies), _LARGE_EVERY):
        bodies[at] = bodies[at].ljust(_LARGE_BYTES, b"x")
    return bodies


def _cut(part: tuple[Any, list[bytes]], size: int) -> tuple[Any, list[bytes]]:
    return part[0][:size], part[1][:size]


def _single(store: Engine, *, collected: bool) -> Callable[[Any, list[bytes]], None]:
    inner: QueueStore = store.store  # type: ignore[attr-defined]

    def put(queues: Any, bodies: list[bytes]) -> None:
        with inner.collector() if collected else nullcontext(inner) as into:
            put_one: Callable[[str, bytes], Any] = into.put
            for queue, body in zip(queues.tolist(), bodies, strict=True):
                put_one(f"queue-{queue}", body)

    return put


def _batches(engine: str, store: Engine) -> Callable[[Any, list[bytes]], None]:
    def put(queues: Any, bodies: list[bytes]) -> None:
        store.put(prepare(engine, queues, bodies))

    return put


def _in_threads(put: Callable[[Any, list[bytes]], None], shares: Sequence[Sequence[tuple[Any, list[bytes]]]]) -> None:
    failed: list[BaseException] = []

    def work(share: Sequence[tuple[Any, list[bytes]]]) -> None:
        try:
            for queues, bodies in share:
                put(queues, bodies)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _check(store: Engine, contents: Contents) -> None:
    """A message at random of every queue, in the order of the numbers as the contest did."""
    random = np.random.default_rng(SEED + 3)
    filled = np.flatnonzero(contents.lengths)
    offsets = (random.random(len(filled)) * contents.lengths[filled]).astype(np.int64)
    for queues, places in _parts(filled, offsets):
        for queue, found in zip(queues, store.get_many(queues, places, 1), strict=True):
            _expect(queue, found, 1)


def _read(store: Engine, contents: Contents) -> None:
    """All messages of a fifth of the queues."""
    random = np.random.default_rng(SEED + 4)
    filled = np.flatnonzero(contents.lengths)
    chosen = random.choice(filled, max(1, int(len(filled) * _READ_PART)), replace=False)
    lengths = contents.lengths[chosen]
    for queues, counts in _parts(chosen, lengths):
        for queue, found, count in zip(
            queues, store.get_many(queues, [0] * len(queues), max(counts)), counts, strict=True
        ):
            _expect(queue, found, count)


def _parts(first: NDArray[np.int64], second: NDArray[np.int64]) -> Iterator[tuple[list[int], list[int]]]:
    for at in range(0, len(first), _READ_QUEUES):
        yield first[at : at + _READ_QUEUES].tolist(), second[at : at + _READ_QUEUES].tolist()


def _expect(queue: int, found: list[bytes], count: int) -> None:
    if len(found) != count or any(queue_of(body) != queue for body in found):
        raise AssertionError(f"queue {queue} gave {len(found)} messages of queues {set(map(queue_of, found))}")


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return list(_each_case(values, peers))


def _each_case(values: Values, peers: tuple[str, ...]) -> Iterator[Case]:
    def case(name: str, engine: str, mode: str, **changed: Any) -> Case:
        arguments = {
            "engine": engine,
            "mode": mode,
            "messages": values["messages"],
            "queues": values["queues"],
            "threads": values["batch_threads"],
            "batch": values["batch"],
            "reads": True,
            **changed,
        }
        return Case(name, engine, lambda place: run_case(puts, path=str(place / "store"), **arguments))

    waits = {"messages": values["single_messages"], "threads": values["threads"], "batch": 1_000, "reads": False}
    yield case(_SINGLE, LSMQ, "collected", threads=values["threads"], reads=False)
    yield case(_WAITING, LSMQ, "single", **waits)
    yield case(_BATCHES, LSMQ, "batches")
    yield case(_ONE_QUEUE, LSMQ, "batches", queues=1, reads=False)
    if ROCKSDB in peers:
        yield case("rocksdb, batches", ROCKSDB, "batches", threads=1)


def _targets(values: Values) -> list[FigureTarget]:
    threads = f"single puts of {values['threads']} threads together"
    return [
        FigureTarget(threads, figure(_SINGLE, "per_s"), 1e6, "/s", case=_SINGLE),
        FigureTarget("batches, names and last flush inside", figure(_BATCHES, "per_s"), 3e6, "/s", case=_BATCHES),
        FigureTarget("all queues over one queue", over(_BATCHES, _ONE_QUEUE, "per_s"), 0.8, case=_BATCHES),
        FigureTarget(
            "the longer read phase over the put",
            figure(_BATCHES, "read_over_put"),
            1.0,
            at_most=True,
            because="each block is read and decoded, and each message made an object, by one thread",
        ),
        FigureTarget("peak memory", figure(_BATCHES, "peak_mib"), 4096.0, "MiB", at_most=True),
    ]


ROW = Row(
    name="contest",
    title="a million queues in one process",
    work="Messages of 58 bytes, one of a thousand of 1 KiB, to all queues in random order, in process, asynchronous "
    "flush: threads that put one at a time, into a collector each or waiting for each, and threads that put batches of "
    "pairs whose names they make. Then a "
    "message at random of every queue, and all of a fifth of the queues, asked for many at a time.",
    options=(
        Option("queues", 1_000_000, "Queues.", quick=5_000),
        Option("messages", 5_000_000, "Messages of the cases with batches.", quick=20_000),
        Option("single_messages", 200_000, "Messages of single puts that wait.", quick=4_000),
        Option("threads", 20, "Threads that put one at a time.", quick=4),
        Option("batch_threads", 4, "Threads that put batches.", quick=2),
        Option("batch", 10_000, "Messages of a batch.", quick=1_000),
    ),
    cases=_cases,
    columns=(
        FigureColumn("per_s", "put", "/s"),
        FigureColumn("processor_us", "processor a message", "us"),
        FigureColumn("put_s", "put", "s"),
        FigureColumn("check_s", "random check", "s"),
        FigureColumn("read_s", "read of 20 %", "s"),
        FigureColumn("peak_mib", "peak memory", "MiB"),
    ),
    targets=_targets,
    plots=(Plot("per_s", "puts a second", "/s"),),
    peers=(ROCKSDB,),
    notes=(
        "Bodies are made before the time, and count in the peak of memory; names are made inside it.",
        "rocksdb: one thread, keys packed by numpy, no names; it is spared those.",
    ),
)
