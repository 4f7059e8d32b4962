"""Servers of others that are started for a benchmark: processes on ports of the loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .report import BenchFailed

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_LAST_CHARACTERS = 1_500


@contextmanager
def started(
    command: Sequence[str],
    log: Path,
    answers: Callable[[], bool],
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Iterator[int]:
    """Start a process that writes to ``log``, wait until it answers, and stop it afterwards; its process id.

    Raises :class:`BenchFailed` with the end of its log when it does not come up, or what uses it fails.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            cwd=directory,
        )
    try:
        began = time.monotonic()
        while not answers():
            if process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                raise BenchFailed(f"{Path(command[0]).name} did not come up")
            time.sleep(0.05)
        yield process.pid
    except BenchFailed as error:
        tail = log.read_text(errors="replace")[-_LAST_CHARACTERS:]
        raise BenchFailed(f"{error}\nit said last:\n{tail}") from error
    finally:
        stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """End a server: kindly, and by force where that takes too long."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    """Whether something takes connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cache_directory(name: str) -> Path:
    """Where what was brought for a benchmark is kept for the next run."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "lsmq" / name
