"""The node under the demo: a real process started with ``lsmq serve``, watched from outside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.01


class NodeFailed(Exception):
    """The node did not start, or stopped by itself; the message ends with its last log lines."""


class Node:
    """One ``lsmq serve`` over one data directory. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Choose a free port of the loopback interface; nothing runs before :meth:`start`."""
        self.data = directory / "data"
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.peak_resident_bytes = 0
        self._log_path = directory / "node.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the process and wait until it is ready; seconds it took. Raises :class:`NodeFailed`."""
        began = time.monotonic()
        command = [*lsmq_command(), "serve", "--data", str(self.data), "--port", str(self.port)]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_clean_environment()
            )
        while not self._answers("/readyz"):
            self.check_alive()
            if time.monotonic() - began > START_TIMEOUT_S:
                raise NodeFailed(f"the node is not ready after {START_TIMEOUT_S:.0f} s\n{self._log_tail()}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def kill(self) -> int:
        """Kill -9 and reap the process. The moment of the kill, in nanoseconds of the monotonic clock."""
        process = self._running()
        self.sample_memory()
        killed_ns = time.monotonic_ns()
        process.send_signal(signal.SIGKILL)
        process.wait()
        return killed_ns

    def stop(self) -> None:
        """Ask the node to stop and wait for it; kill it when it does not. Does nothing when none runs."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def check_alive(self) -> None:
        """Raises :class:`NodeFailed` when the process is gone."""
        code = self._running().poll()
        if code is not None:
            raise NodeFailed(f"the node stopped by itself with exit code {code}\n{self._log_tail()}")

    def sample_memory(self) -> int:
        """Resident bytes now; the greatest ever is kept. 0 where the system does not tell."""
        status = Path(f"/proc/{self._running().pid}/status")
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            return 0
        resident, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        self.peak_resident_bytes = max(self.peak_resident_bytes, peak)
        return resident

    def disk_bytes(self) -> int:
        """What the data directory occupies on the disk: allocated blocks, preallocated ones included."""
        return sum(path.stat().st_blocks * 512 for path in self.data.rglob("*") if path.is_file())

    def version(self) -> str:
        """The version the node reports."""
        with urllib.request.urlopen(f"{self.url}/v1/status", timeout=5) as answer:
            return str(json.load(answer)["version"])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise NodeFailed("the node was not started")
        return self._process

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _log_tail(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines() if self._log_path.exists() else []
        return "\n".join(lines[-15:])


def lsmq_command() -> list[str]:
    """The ``lsmq`` of this environment."""
    installed = Path(sys.executable).with_name("lsmq")
    found = str(installed) if installed.exists() else shutil.which("lsmq")
    return [found] if found else [sys.executable, "-m", "lsmq"]


def _clean_environment() -> dict[str, str]:
    """The environment without settings of another node that the user may have there."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LSMQ_")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
