"""RocketMQ: one broker with ``SYNC_FLUSH``, from Maven, under its own load tool in Java."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...client_processes import start
from ...environment import cpu_seconds
from ...maven import Jars, java
from ...report import BenchFailed
from ...server_processes import free_port, listens, started
from .system import TOPIC, ClientLoad, LoadOutcome, Running, System

RELEASE = "5.5.0"
JARS = Jars(
    f"rocketmq-{RELEASE}",
    tuple(("org.apache.rocketmq", f"rocketmq-{part}", RELEASE) for part in ("broker", "namesrv", "example")),
    "781fdb985c2539788de57a6ab9d88bc1ce63a83de45206846ed8ed24ee259600",
)
_SETTINGS = """brokerIP1=127.0.0.1
listenPort={port}
namesrvAddr=127.0.0.1:{names}
storePathRootDir={store}
flushDiskType=SYNC_FLUSH
autoCreateTopicEnable=true
defaultTopicQueueNums={queues}
mappedFileSizeCommitLog=67108864
"""
_TOOL = "org.apache.rocketmq.example.benchmark.{}"
_MEASURE_S = 12.0
_REPORT_MS = 2_000
_TIMEOUT_S = 60.0
_QUEUES = 16


def write(load: ClientLoad) -> LoadOutcome:
    """Batches of 200: what ``in_flight`` allows in as many threads, eight at most."""
    return _tool(load, "BatchProducer", ["-w", f"{min(8, max(1, load.in_flight // 200))}", "-b", "200"])


def loop(load: ClientLoad) -> LoadOutcome:
    """A thread of the tool for each task."""
    return _tool(load, "Producer", ["-w", f"{load.in_flight}"])


def _tool(load: ClientLoad, name: str, arguments: list[str]) -> LoadOutcome:
    """Run one of its load tools for a while: the figures it said last, when it was warm.

    As its files go where it stands and where the user is at home, both are a directory that is gone afterwards.
    """
    arguments = [*arguments, "-t", TOPIC, "-s", f"{load.message_bytes}", "-n", load.address, "-ri", f"{_REPORT_MS}"]
    with tempfile.TemporaryDirectory(prefix="lsmq-bench-") as place:
        command = java(JARS.bring(), [_TOOL.format(name), *arguments], options=options(Path(place)))
        began_ns = start()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place, stdin=subprocess.DEVNULL
        )
        # What it says is little: the pipe does not fill up meanwhile.
        time.sleep(_MEASURE_S)
        processor_s = cpu_seconds(process.pid)
        process.kill()
        output, _ = process.communicate(timeout=_TIMEOUT_S)
    # It counts what it sends, and where that is batches the messages in them as well.
    rates = [float(each) for each in re.findall(r"Send MPS: (\d+)", output) or re.findall(r"Send TPS: (\d+)", output)]
    averages = [float(each) for each in re.findall(r"Average RT\(ms\): +([\d.]+)", output)]
    if not rates or not rates[-1]:
        raise BenchFailed(f"RocketMQ's {name} says no rate: {output[-400:]}")
    average_ms = averages[-1] if averages else 0.0
    spent_ns = int(_MEASURE_S * 1e9)
    return LoadOutcome(began_ns, began_ns + spent_ns, int(rates[-1] * _MEASURE_S), int(processor_s * 1e9), average_ms)


def lacks() -> str | None:
    """What keeps it from being measured."""
    return JARS.lacks()


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    """A name server and a broker over fresh files."""
    place = JARS.bring()
    names, port = free_port(), free_port()
    directory.mkdir(parents=True)
    (directory / "broker.conf").write_text(
        _SETTINGS.format(port=port, names=names, store=directory / "store", queues=_QUEUES)
    )
    (directory / "names.conf").write_text(f"listenPort={names}\n")
    given = options(directory)
    name_server = java(
        place, ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(directory / "names.conf")], options=given
    )
    broker = java(
        place, ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(directory / "broker.conf")], options=given
    )
    apart: dict[str, Any] = {"environment": {"ROCKETMQ_HOME": str(directory)}, "directory": directory}
    with (
        started(name_server, directory / "names.log", lambda: listens(names), **apart) as first,
        started(broker, directory / "broker.log", lambda: listens(port), **apart) as second,
    ):
        yield Running(f"127.0.0.1:{names}", (first, second), directory)


def options(directory: Path) -> list[str]:
    opened = [f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in ("sun.nio.ch", "jdk.internal.ref")]
    opened += ["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
    return [f"-Duser.home={directory}", *opened]


def _prepare(address: str, queues: int, topics: int) -> None:
    """The topic is made by its first message."""


SYSTEM = System(
    "rocketmq",
    __name__,
    "after fsync (flushDiskType=SYNC_FLUSH)",
    lacks,
    running,
    _prepare,
    most_queues=_QUEUES,
    stops="its load tools choose the queues themselves; a file of its own for each",
    kinds=("write", "loop"),
)
