"""A real node in a process of its own, for tests."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from support.python_process import PythonProcess
from support.waiting import PATIENCE_S

READY = re.compile(r"lsmq node ready on (https?://\S+:(\d+)) \(data (.+)\)")
START_TIMEOUT_S = PATIENCE_S
STOP_TIMEOUT_S = PATIENCE_S

#: Small files, so that tests are quick and take little space. Any of it can be overridden.
TEST_SETTINGS: dict[str, Any] = {"segment_bytes": 4 * 1024 * 1024, "memtable_bytes": 16 * 1024 * 1024}


class StartFailed(Exception):
    """The node ended before it was ready; ``code`` is its exit code, the text what it said."""

    def __init__(self, code: int, log: str) -> None:
        super().__init__(f"the node ended with {code} before it was ready:\n{log}")
        self.code = code


class NodeProcess:
    """One node: start it, ask it, kill it, start it again on the same data.

    Settings are fields of ``NodeConfig``, handed over in the environment.
    """

    def __init__(self, data: Path, **settings: Any) -> None:
        self.data = data
        self.settings = {**TEST_SETTINGS, **settings}
        self.url = ""
        self.port = 0
        self._process: subprocess.Popen[str] | PythonProcess | None = None
        self._log: list[str] = []
        self._readers: list[threading.Thread] = []

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self, *, prefix: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> NodeProcess:
        """Start and wait for the ready line. Raises :class:`StartFailed` when the node gives up.

        ``options`` are the command's. With a ``prefix`` (``("nohup",)``) an interpreter of its own is started, behind
        that command.
        """
        assert self._process is None or self._process.poll() is not None, "the node runs already"
        environment = {name: text for name, text in os.environ.items() if not name.startswith("LSMQ_")}
        for name, value in self.settings.items():
            environment[f"LSMQ_{name.upper()}"] = str(value)
        arguments = ["-m", "lsmq", "serve", "--data", str(self.data), "--port", str(self.port), *options]
        if prefix:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        else:
            self._process = PythonProcess(arguments, env=environment, text=True)
        lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._drain, args=(self._process.stdout, lines), daemon=True),
            threading.Thread(target=self._drain, args=(self._process.stderr, None), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        while True:
            try:
                line = lines.get(timeout=START_TIMEOUT_S)
            except queue.Empty:
                self.kill9()
                raise TimeoutError(f"the node was not ready in {START_TIMEOUT_S} s:\n{self.log()}") from None
            if line is None:
                raise StartFailed(self._reap(), self.log())
            match = READY.search(line)
            if match is not None:
                self.url, self.port = match[1], int(match[2])
                return self

    def _drain(self, stream: Any, lines: queue.Queue[str | None] | None) -> None:
        for line in stream:
            self._log.append(line)
            if lines is not None:
                lines.put(line)
        if lines is not None:
            lines.put(None)

    def kill9(self) -> None:
        """End it as a power cut would, as far as the process is concerned."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self._reap()

    def signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        return self._reap()

    def restart(self, **settings: Any) -> NodeProcess:
        """Stop it if it runs, and start it on the same data and port, with other settings if given."""
        if self.alive:
            self.stop()
        self.settings.update(settings)
        return self.start()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """All it has printed, over all its starts."""
        return "".join(self._log)

    def _running(self) -> subprocess.Popen[str] | PythonProcess:
        assert self._process is not None, "the node was not started"
        return self._process

    def _reap(self) -> int:
        process = self._running()
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise TimeoutError(f"the node did not end in {STOP_TIMEOUT_S} s:\n{self.log()}") from None
        for reader in self._readers:
            reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return code
