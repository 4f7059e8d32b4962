"""What the failover of all peers has in common: servers that are killed, and how long nothing was acknowledged."""

from __future__ import annotations

import bisect
import itertools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsmq.errors import AddressInUse
from lsmq_node.processes.ports import free_block

from ..report import BenchFailed

HOST, SERVERS = "127.0.0.1", 3
PACE_S = 0.025
#: What is acknowledged sooner after a fault says nothing: it may have been under way.
NOTICED_S = 1.5
TIMEOUT_S = 120.0
BODY_BYTES = 100
_ACKNOWLEDGED = 3
_STOP_TIMEOUT_S = 30.0
_LAST_CHARACTERS = 200


class PeerServers:
    """Processes by name, that are started, killed, and started again."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, Path] = {}

    def start(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """What it says is added to ``log``."""
        wanted = {**os.environ, **(environment or {})}
        self._logs[name] = log
        with log.open("ab") as output:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=log.parent, env=wanted
            )

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End them all: kindly, and by force where that takes too long."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ended(self) -> str:
        """Of one that ended by itself its name and the last line it said that is not indented; empty where all run."""
        for name, process in self._running.items():
            if process.poll() is not None:
                lines = self._logs[name].read_text(errors="replace").splitlines()
                said = next((line for line in reversed(lines) if line.strip() == line != ""), "nothing")
                return f"{name} has ended with {process.returncode}, and said last: {said[:_LAST_CHARACTERS]}"
        return ""


class Acknowledgements:
    """When each partition acknowledged, rising."""

    def __init__(self, partitions: int) -> None:
        self.times: list[list[float]] = [[] for _ in range(partitions)]

    def gap_s(self, partition: int, since: float) -> float:
        """The longest time without one, from the last one before then on."""
        times = self.times[partition]
        first = max(0, bisect.bisect_right(times, since) - 1)
        return max((later - earlier for earlier, later in itertools.pairwise(times[first:])), default=0.0)

    def are_on_all(self, partitions: Sequence[int], since: float) -> bool:
        """Whether each of them has acknowledged a few times since."""
        return all(
            len(self.times[partition]) >= _ACKNOWLEDGED and self.times[partition][-_ACKNOWLEDGED] > since
            for partition in partitions
        )


def first_port(count: int) -> int:
    """The first of so many that are free in a row, and that no connection takes while a server is away."""
    try:
        return free_block(HOST, count)
    except AddressInUse as error:
        raise BenchFailed(f"no ports for the servers: {error}") from error


def properties(wanted: Mapping[str, Any]) -> str:
    """A file of settings as Java reads it."""
    return "".join(f"{name}={value}\n" for name, value in wanted.items())
