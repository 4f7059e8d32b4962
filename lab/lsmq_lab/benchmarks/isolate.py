"""Every case in a process of its own: fresh memory, nothing left over from the case before.

The parent starts a Python that calls :func:`child` with a module, a function and its arguments as JSON on the
command line, and reads one JSON document from its standard output.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsmq import runtime
from lsmq_lab.benchmarks.report import BenchFailed

TIMEOUT_S = 1800


def run_case(function: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
    """Call a module-level function in a fresh process and return what it returns.

    ``arguments`` and the result must be plain data. Raises :class:`BenchFailed` with the end of the child's
    error output when it fails.
    """
    command = [
        sys.executable,
        "-c",
        f"from {__name__} import child; child()",
        function.__module__,
        function.__name__,
        json.dumps(arguments),
    ]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise BenchFailed(f"{function.__name__} took more than {TIMEOUT_S} s; choose smaller sizes") from error
    if child.returncode != 0:
        tail = "\n".join(child.stderr.splitlines()[-12:])
        raise BenchFailed(f"{function.__name__} failed with exit code {child.returncode}:\n{tail}")
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


@contextmanager
def scratch(parent: str | None) -> Iterator[Path]:
    """A directory that is gone afterwards, under ``parent`` or where temporary files go."""
    with tempfile.TemporaryDirectory(prefix="lsmq-bench-", dir=parent or None) as directory:
        yield Path(directory)


def child() -> None:
    """The child's whole life. Arguments of the process: module, function, arguments in JSON."""
    runtime.share_closely()
    module, name, arguments = sys.argv[1:]
    result = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    print(json.dumps(result))
