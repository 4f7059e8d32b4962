"""Gigabytes behind: reading from a cold cache, with one reader and with five, and what that does to writes."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...report import Option
from ..page_files import forget, read_through
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, figure
from ..systems import system
from ..systems.system import WRITE, ClientLoad, Running, System, measure, readers

_MIB = 1 << 20
_QUEUES = 10
_IN_FLIGHT_BYTES = 4 * _MIB
_READERS = 5
_SIZES = (1024, 4096)
_OF_DISK = 0.7
_WRITES_BESIDE = 0.9
_SETTLE_S, _QUIET_S, _QUIET_SHARE = 60.0, 1.0, 0.05


def run(place: Path, measured: System, message_bytes: int, values: Values) -> dict[str, float]:
    """Fill, forget what is cached, read with one and with five; then write alone, and beside a reader."""
    messages = values["mebibytes"] * _MIB // message_bytes
    with measured.running(place / "server") as server:
        measured.prepare(server.address, _QUEUES, 0)
        in_flight = max(100, _IN_FLIGHT_BYTES // message_bytes)
        load = ClientLoad(measured.module, server.address, WRITE, messages, message_bytes, _QUEUES, in_flight)
        filled = measure(server, [load])
        found = {"fill_mib_s": filled["per_s"] * message_bytes / _MIB}
        _settle(server)
        forget(server.directory)
        found["disk_mib_s"] = read_through(server.directory) / _MIB
        for name, count in (("read_1", 1), ("read_5", _READERS)):
            forget(server.directory)
            read = measure(server, _batches(measured, readers(load, count)))
            found[f"{name}_per_s"] = read["per_s"]
            found[f"{name}_mib_s"] = read["per_s"] * message_bytes / _MIB
            found[f"{name}_over_disk"] = found[f"{name}_mib_s"] / found["disk_mib_s"]
        beside = _writes(measured, server, values, message_bytes)
        forget(server.directory)
        reader = threading.Thread(target=measure, args=(server, _batches(measured, readers(load, 1))))
        reader.start()
        found["writes_beside"] = _writes(measured, server, values, message_bytes) / beside
        reader.join()
    return {**found, "per_s": found["read_1_per_s"], "processor_us": read["processor_us"], "is_remote": 1.0}


def _settle(server: Running) -> None:
    """Wait until it has put its files in order: a backlog lies for longer than that."""
    ends = time.monotonic() + _SETTLE_S
    while time.monotonic() < ends:
        used_s = server.processor_s()
        time.sleep(_QUIET_S)
        if server.processor_s() - used_s < _QUIET_S * _QUIET_SHARE:
            return


def _batches(measured: System, loads: list[ClientLoad]) -> list[ClientLoad]:
    """By the columns of whole batches, where a client has that way."""
    if "read_batches" not in measured.kinds:
        return loads
    return [replace(each, kind="read_batches") for each in loads]


def _writes(measured: System, server: Running, values: Values, message_bytes: int) -> float:
    load = ClientLoad(measured.module, server.address, WRITE, values["live_messages"], message_bytes, _QUEUES, 200)
    return measure(server, [load])["per_s"]


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return [
        Case(
            f"{name}, {each // 1024} KiB",
            name,
            partial(run, measured=system(name), message_bytes=each, values=values),
        )
        for each in _SIZES
        for name in (LSMQ, *peers)
    ]


def _targets(values: Values) -> list[FigureTarget]:
    found = []
    for each in _SIZES:
        case = f"{LSMQ}, {each // 1024} KiB"
        for name, count in (("read_1_over_disk", "one reader"), ("read_5_over_disk", "five readers")):
            found.append(
                FigureTarget(f"{case}: {count} over what the disk reads", figure(case, name), _OF_DISK, case=case)
            )
        text, because = f"{case}: writes beside a reader, alone = 1", "reader, writer and node share the cores"
        found.append(FigureTarget(text, figure(case, "writes_beside"), _WRITES_BESIDE, because=because))
    return found


ROW = Row(
    name="backlog",
    title="gigabytes behind, from a cold cache",
    work="A backlog is written, the server comes to rest, the page cache is made to forget its files, and all is read: "
    "by one reader and by five, each its own queues. Then writes alone, and beside a reader.",
    options=(
        Option("mebibytes", 2_048, "Size of the backlog.", quick=8),
        Option("live_messages", 50_000, "Messages that are written alone, and beside.", quick=500),
    ),
    cases=_cases,
    columns=(
        FigureColumn("fill_mib_s", "filled", "MiB/s"),
        FigureColumn("disk_mib_s", "the disk", "MiB/s"),
        FigureColumn("read_1_mib_s", "one reader", "MiB/s"),
        FigureColumn("read_5_mib_s", "five readers", "MiB/s"),
        FigureColumn("read_1_per_s", "one reader", "/s"),
        FigureColumn("writes_beside", "writes beside, alone = 1", "x"),
    ),
    targets=_targets,
    plots=(Plot("read_1_mib_s", "one reader, MiB a second", "MiB/s"),),
    peers=("kafka",),
    notes=(
        "the disk: the same files, read from end to end with nothing else going on.",
        "lsmq reads by poll_batch: columns over the answer as it came. kafka: consume(), a message an object. Both "
        "commit how far they are once a second, and at the end.",
    ),
)
