"""Clients of a benchmark: each a process that connects, waits for the start, does its share, and says what came of it.

A client prints ``ready``, reads a line, works, and prints one JSON document. Times are nanoseconds of the monotonic
clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO, Any

from .report import BenchFailed


def run_clients(child: Callable[[], None], shares: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run ``child``, a function of a module, in a process for every share, all from one moment on. The share is the
    process's argument, in JSON. Raises :class:`BenchFailed`."""
    with ExitStack() as stack:
        children: list[subprocess.Popen[str]] = []
        for share in shares:
            program = f"from {child.__module__} import {child.__name__}; {child.__name__}()"
            process = subprocess.Popen(
                [sys.executable, "-c", program, json.dumps(share)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(_reap, process)
            children.append(process)
        for process in children:
            if _pipe(process.stdout).readline() != "ready\n":
                raise BenchFailed("a client of the benchmark failed before it began; its error stands above")
        for process in children:
            _pipe(process.stdin).write("go\n")
            _pipe(process.stdin).flush()
        outcomes = []
        for process in children:
            line = _pipe(process.stdout).readline()
            if not line:
                raise BenchFailed("a client of the benchmark failed; its error stands above")
            outcomes.append(json.loads(line))
        return outcomes


def start() -> int:
    """In a client: say that it is ready, and wait for the others; the moment of the start."""
    print("ready", flush=True)
    sys.stdin.readline()
    return time.monotonic_ns()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _reap(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()
