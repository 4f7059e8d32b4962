"""One process that outlives its starter, known by a pid file. No signal ever goes to a process that is not ours.

A pid file holds the pid, when the process began in ticks since boot, and the boot: a pid that was given away
again, or is from before a reboot, is so told from ours. Signals go through a pidfd that is opened before the check.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessState(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class _Identity:
    pid: int
    started_ticks: int
    boot: str


class OwnProcess:
    """The process whose pid file, log and working files lie in ``directory``."""

    def __init__(self, directory: Path, log_name: str = "node.log") -> None:
        self.directory = directory
        self.log = directory / log_name
        self._pid_file = directory / "pid"

    def start(self, command: Sequence[str], environment: Mapping[str, str], *, detached: bool = True) -> int:
        """Start it with its output at the end of the log, in a session of its own if ``detached``.

        The pid; see ``state``.
        """
        assert self.pid is None, f"{self.directory.name} runs already"
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            pid = _spawn(command, environment, log, detached)
        finally:
            os.close(log)
        _, started_ticks = _read_stat(pid)
        self._remember(_Identity(pid, started_ticks, _boot()))
        return pid

    @property
    def pid(self) -> int | None:
        """Of the process, if it is ours and runs, paused or not."""
        with self._open() as found:
            return found[0].pid if found is not None else None

    @property
    def state(self) -> ProcessState:
        with self._open() as found:
            if found is None:
                return ProcessState.STOPPED
            return ProcessState.PAUSED if found[2] in "Tt" else ProcessState.RUNNING

    def send(self, number: signal.Signals) -> int | None:
        """Send a signal; the pid it went to, or None when there is no such process."""
        with self._open() as found:
            if found is None:
                return None
            identity, pidfd, _ = found
            try:
                signal.pidfd_send_signal(pidfd, number)
            except ProcessLookupError:
                return None
            return identity.pid

    def wait_end(self, timeout: float) -> bool:
        """Whether it ended within ``timeout`` seconds, or was not running."""
        deadline = time.monotonic() + timeout
        while True:
            with self._open() as found:
                if found is None:
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                ended = select.poll()
                ended.register(found[1], select.POLLIN)
                ended.poll(1000 * left)

    def log_tail(self, lines: int = 15) -> str:
        """The end of its log."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, self.log.stat().st_size - 8192))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _remember(self, identity: _Identity) -> None:
        temporary = self._pid_file.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(
            json.dumps({"pid": identity.pid, "started_ticks": identity.started_ticks, "boot": identity.boot}) + "\n"
        )
        temporary.replace(self._pid_file)

    @contextmanager
    def _open(self) -> Iterator[tuple[_Identity, int, str] | None]:
        """Who it is, a pidfd, and its state letter, for a living process that is ours; else None."""
        try:
            known = _Identity(**json.loads(self._pid_file.read_text()))
        except (OSError, ValueError, TypeError):
            yield None
            return
        try:
            pidfd = os.pidfd_open(known.pid)
        except OSError:
            yield None
            return
        try:
            try:
                state, started_ticks = _read_stat(known.pid)
            except OSError:
                state, started_ticks = "X", -1
            if state in "ZX":
                _reap(known.pid)
                yield None
            elif started_ticks != known.started_ticks or _boot() != known.boot:
                yield None
            else:
                yield known, pidfd, state
        finally:
            os.close(pidfd)


def _spawn(command: Sequence[str], environment: Mapping[str, str], log: int, detached: bool) -> int:
    return os.posix_spawn(
        command[0],
        list(command),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ],
        setsid=detached,
    )


def _read_stat(pid: int) -> tuple[str, int]:
    """A process's state letter and when it began, in ticks since boot (proc(5))."""
    # The name stands in brackets and may hold anything, brackets and spaces included.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _reap(pid: int) -> None:
    """Let the system forget an ended child. Children of others are theirs to reap."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _boot() -> str:
    return _BOOT_ID.read_text().strip()
