"""The servers that are compared: processes on a free port of the loopback interface, over fresh files."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lsmq_coordinator.authority import Authority
from lsmq_lab.believed import NO_ANSWER, believing, opener
from lsmq_lab.benchmarks.environment import disk_bytes, peak_resident_bytes
from lsmq_lab.benchmarks.report import BenchFailed
from lsmq_lab.benchmarks.server_processes import free_port, stop

LSMQ = "lsmq"
REDIS = "redis"
START_TIMEOUT_S = 30.0
NATIVE_CLIENTS = 5
NATIVE_PIPELINE = 100


@dataclass(frozen=True, slots=True)
class Setup:
    """A server and when it acknowledges: ``sync`` or ``async`` (ours), ``always`` or ``everysec`` (Redis). ``settings``
    of ours beside that, as its environment has them."""

    server: str
    durability: str
    tls: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.server} {self.promise}"

    @property
    def promise(self) -> str:
        """When it acknowledges, and whether all of it is encrypted."""
        return f"{self.durability} tls" if self.tls else self.durability


# Each of ours is compared with the Redis after it: the same promise, or the nearest there is.
PAIRS = (
    (Setup(LSMQ, "sync"), Setup(REDIS, "always")),
    (Setup(LSMQ, "async"), Setup(REDIS, "everysec")),
)
# What TLS costs: each beside the same without.
TLS_PAIRS = (
    (Setup(LSMQ, "sync", tls=True), Setup(LSMQ, "sync")),
    (Setup(LSMQ, "async", tls=True), Setup(LSMQ, "async")),
)


def missing() -> list[str]:
    """What keeps Redis from being compared, each with its remedy; empty when nothing does."""
    remedies = []
    if shutil.which("redis-server") is None:
        remedies.append(
            "redis-server is not on PATH, so there is nothing to compare with: apt-get install redis-server"
        )
    if importlib.util.find_spec("redis") is None:
        remedies.append('the Redis client is not installed: pip install "lsmq[bench]"')
    return remedies


class Server:
    """A running server. ``address`` is a URL of ours, or the port of Redis."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, directory: Path) -> None:
        self.address = address
        self._process = process
        self._directory = directory

    @property
    def pid(self) -> int:
        return self._process.pid

    def peak_resident_bytes(self) -> int:
        """The most memory the process ever had."""
        return peak_resident_bytes(self._process.pid)

    def disk_bytes(self) -> int:
        """What its files occupy."""
        return disk_bytes(self._directory)


def redis_native(port: str, message_bytes: int, messages: int) -> dict[str, float] | None:
    """What Redis does under its own client in C: LPUSH and RPOP a second; None where it is not installed."""
    if shutil.which("redis-benchmark") is None:
        return None
    command = ["redis-benchmark", "-p", port, "-n", str(messages), "-d", str(message_bytes), "--csv", "-q"]
    command += ["-c", str(NATIVE_CLIENTS), "-P", str(NATIVE_PIPELINE), "-t", "lpush,rpop"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    rates = {row[0]: float(row[1]) for row in csv.reader(output.splitlines()) if row and row[0] != "test"}
    return {"native_write": rates["LPUSH"], "native_read": rates["RPOP"]}


@contextmanager
def running(setup: Setup, directory: Path) -> Iterator[Server]:
    """Start a server over ``directory``, wait until it answers, and stop it afterwards.

    Raises :class:`BenchFailed` with the end of its log when it does not come up.
    """
    port = free_port()
    command, environment = _command(setup, directory, port)
    ca = directory.with_suffix(".tls") / "ca.crt" if setup.tls else None
    log_path = directory.with_suffix(".log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        address = str(port) if setup.server == REDIS else f"{'http' if ca is None else 'https'}://127.0.0.1:{port}"
        _wait_until_ready(setup, process, address, ca, log_path)
        with believing(ca):
            yield Server(process, address, directory)
    finally:
        stop(process)


def metric(address: str, name: str) -> float:
    """What one of our nodes says of itself at the moment, added up over its shards. Without TLS."""
    with opener(None).open(f"{address}/metrics", timeout=START_TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    values = [line.rpartition(" ")[2] for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    if not values:
        raise BenchFailed(f"{address}/metrics does not have {name}")
    return sum(map(float, values))


def _command(setup: Setup, directory: Path, port: int) -> tuple[list[str], dict[str, str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LSMQ_")}
    directory.mkdir(exist_ok=True)
    if setup.server == LSMQ:
        environment |= {"LSMQ_FLUSH_MODE": setup.durability, **dict(setup.settings)}
        if setup.tls:
            cert, key = Authority.create(directory.with_suffix(".tls")).issue("node", ("127.0.0.1",))
            environment |= {"LSMQ_TLS_CERT": str(cert), "LSMQ_TLS_KEY": str(key)}
        return [
            sys.executable,
            "-m",
            "lsmq",
            "serve",
            "--data",
            str(directory),
            "--port",
            str(port),
        ], environment
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    command += ["--appendonly", "yes", "--appendfsync", setup.durability, "--save", "", "--daemonize", "no"]
    return command, environment


def _wait_until_ready(
    setup: Setup, process: subprocess.Popen[bytes], address: str, ca: Path | None, log_path: Path
) -> None:
    began = time.monotonic()
    while not _answers(setup, address, ca):
        if process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
            tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-12:])
            raise BenchFailed(f"{setup} did not come up:\n{tail}")
        time.sleep(0.02)


def _answers(setup: Setup, address: str, ca: Path | None) -> bool:
    if setup.server == LSMQ:
        try:
            with opener(ca).open(f"{address}/readyz", timeout=1):
                return True
        except NO_ANSWER:
            return False
    redis = importlib.import_module("redis")
    client = redis.Redis(port=int(address))
    try:
        return bool(client.ping())
    except redis.exceptions.RedisError:
        return False
    finally:
        client.close()
