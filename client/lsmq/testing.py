"""Nodes for the tests of programs that use LSMQ: the real thing, in a process or a thread of the test.

::

    with NodeProcess() as node, Client(node.url) as client:
        client.create_topic("orders")

:class:`NodeProcess` can be killed and started again, as in production; :class:`NodeThread` can be debugged with the
test. Both need ``lsmq[node]``, keep their files in a temporary directory unless they are given one, listen on the
loopback interface at a port of their own, and are fit for ``with`` and ``async with``. With pytest there are fixtures:
see ``docs/testing.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from lsmq import runtime
from lsmq.cli._node import NodeNotInstalled, need_node
from lsmq.errors import LsmqError

__all__ = ["START_TIMEOUT_S", "STOP_TIMEOUT_S", "NodeNotInstalled", "NodeNotStarted", "NodeProcess", "NodeThread"]

#: A node that is not ready after so long is ended, and :class:`NodeNotStarted` raised.
START_TIMEOUT_S = 60.0
#: One that has not stopped after so long is killed.
STOP_TIMEOUT_S = 30.0

#: Small files: a node takes some 5 MiB of disk, and starts and ends sooner. Each can be given otherwise.
SETTINGS: Mapping[str, Any] = {"segment_bytes": 4 << 20, "memtable_bytes": 16 << 20, "cache_bytes": 16 << 20}

_READY = re.compile(rb"lsmq node ready on (\S+:([0-9]+)) ")
_LOG_TAIL_CHARACTERS = 2_000


class NodeNotStarted(LsmqError):
    """The node ended before it was ready, or was not ready in time."""

    code = "node_not_started"


class _Node(ABC):
    """What nodes of tests have in common. ``settings`` are those of ``docs/configuration.md``, by their names."""

    def __init__(self, directory: str | Path | None = None, **settings: Any) -> None:
        """Files lie in ``directory``, and stay there; left out, in a temporary one that :meth:`close` deletes."""
        self._temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="lsmq-")) if directory is None else Path(directory)
        self.settings = {**SETTINGS, **settings}
        #: Where clients connect to, once it is started. It stays the same when the node is started again.
        self.url = ""
        self._port = int(settings.get("port", 0))

    @abstractmethod
    def start(self) -> Self:
        """Start, and return when clients can connect. Raises :class:`NodeNotStarted` or :class:`NodeNotInstalled`."""

    @abstractmethod
    def stop(self) -> None:
        """Stop as in production: held requests are answered, and what is in line is stored. The files stay."""

    def close(self) -> None:
        """Stop, and delete a temporary directory."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _all_settings(self) -> dict[str, Any]:
        return {**self.settings, "data": self.directory / "data", "port": self._port}

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *failure: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *failure: object) -> None:
        await asyncio.to_thread(self.close)


class NodeProcess(_Node):
    """A node in a process of its own, which ends with this one, however this one ends."""

    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, while it runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> Self:
        if self.pid is not None:
            return self
        self.directory.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LSMQ_")}
        environment |= {f"LSMQ_{name.upper()}": str(value) for name, value in self._all_settings().items()}
        with open(self._log_file, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lsmq._leashed_node"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            ready = _READY.search(self._first_line(self._process))
        except BaseException:
            self.kill()
            raise
        if ready is None:
            code = self._process.wait()
            self._end()
            raise NodeNotStarted(
                f"the node ended with {code} before it was ready:\n{self.log()[-_LOG_TAIL_CHARACTERS:]}"
            )
        self.url, self._port = ready[1].decode(), int(ready[2])
        return self

    def _first_line(self, process: subprocess.Popen[bytes]) -> bytes:
        """What it prints until its first line ends, or it does."""
        assert process.stdout is not None
        heard, line, deadline = select.poll(), b"", runtime.monotonic() + START_TIMEOUT_S
        heard.register(process.stdout)
        while not line.endswith(b"\n"):
            left_s = deadline - runtime.monotonic()
            if left_s <= 0 or not heard.poll(1000 * left_s):
                raise NodeNotStarted(
                    f"the node was not ready after {START_TIMEOUT_S:.0f} s:\n{self.log()[-_LOG_TAIL_CHARACTERS:]}"
                )
            if not (some := os.read(process.stdout.fileno(), 4096)):
                break
            line += some
        return line

    def stop(self) -> None:
        if self._process is not None and self.pid is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End it as ``kill -9`` does; :meth:`start` then recovers what was acknowledged."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None

    @property
    def _log_file(self) -> Path:
        return self.directory / "node.log"

    def log(self) -> str:
        """All that it has said so far, over all its starts."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""


class NodeThread(_Node):
    """A node in this process, with an event loop in a thread of its own. It says what it does to ``logging``."""

    _stopping: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
    _thread: Any = None

    def start(self) -> Self:
        if self._stopping is not None:
            return self
        with need_node("lsmq.testing.NodeThread"):
            config = importlib.import_module("lsmq_node.config").NodeConfig
            serve = importlib.import_module("lsmq_node.api.serve")
            importlib.import_module("lsmq_node.api.logs").configure_in_library()
        loaded = config.load(None, {}, **self._all_settings())
        began: Future[str] = Future()
        self._thread = runtime.Thread(target=self._run, args=(serve, loaded, began), name="lsmq node", daemon=True)
        self._thread.start()
        try:
            self.url = began.result(START_TIMEOUT_S)
        except LsmqError as error:
            self._thread.join()
            raise NodeNotStarted(f"the node did not start: {error.code}: {error.message}") from error
        except TimeoutError:
            raise NodeNotStarted(f"the node was not ready after {START_TIMEOUT_S:.0f} s") from None
        self._port = int(self.url.rpartition(":")[2])
        return self

    def _run(self, serve: Any, config: Any, began: Future[str]) -> None:
        async def main() -> None:
            stopping = asyncio.Event()
            async with serve.serving(config) as node:
                self._stopping = asyncio.get_running_loop(), stopping
                began.set_result(serve.url_of(node.broker.config))
                await stopping.wait()

        try:
            asyncio.run(main())
        except BaseException as failure:
            if began.done():
                raise
            began.set_exception(_first(failure))

    def stop(self) -> None:
        if self._stopping is not None:
            loop, stopping = self._stopping
            self._stopping = None
            if not loop.is_closed():
                loop.call_soon_threadsafe(stopping.set)
            self._thread.join()


def _first(failure: BaseException) -> BaseException:
    """What a group of failures began with."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
