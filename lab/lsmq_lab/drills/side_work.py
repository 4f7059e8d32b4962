"""What works beside the workload of a drill: processes of its own, to be killed, and what to hold them to."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lsmq import Client
from lsmq.errors import TimedOut
from lsmq_lab.history import History, Verdict

DEADLINE_MS = 120_000
SETTLE_TIMEOUT_S = 180.0
DRAIN_TIMEOUT_S = 180.0
POLL_S = 0.1

_END_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How a side work did. What verdicts cannot tell is counted beside them; ``notes`` are lines of the report."""

    verdicts: Sequence[Verdict]
    notes: tuple[str, ...]
    duplicates: int = 0
    order_violations: int = 0
    other_anomalies: int = 0
    findings: tuple[str, ...] = ()


class SideWork(ABC):
    """One group that works beside a workload. ``processes`` are those that live, by number.

    Each process writes down what it does in a file, its record. :meth:`judge` is for after :meth:`finish`.
    """

    #: What the name of the group ends with.
    suffix: ClassVar[str]
    #: What a process is called.
    noun: ClassVar[str]
    #: Whether the group's committed offsets on the workload's topic are looked at all the while.
    is_watched: ClassVar[bool] = False

    def __init__(self, urls: Sequence[str], topic: str, queues: int) -> None:
        self.name = f"{topic}-{self.suffix}"
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.killed = 0
        self._urls = list(urls)
        self._topic = topic
        self._queues = queues
        self._numbers = itertools.count(1)
        self._directory = Path(tempfile.mkdtemp(prefix="lsmq-records-"))
        self._client = Client(self._urls, deadline_ms=DEADLINE_MS)
        #: What goes on in this process until it is closed.
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    async def finish(self, latest: Mapping[int, int]) -> None:
        """Return when all is done up to ``latest`` of the workload's topic, and every process has ended well."""

    @abstractmethod
    def judge(self, sent: History) -> Judgement:
        """The judgement; ``sent`` holds what the workload has sent, and no reading yet."""

    async def close(self) -> None:
        for process in self.processes.values():
            process.kill()  # Even one that is paused.
            process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    # Processes

    def _record(self, number: int) -> Path:
        return self._directory / f"{number}"

    async def _spawn(self, number: int, main: Callable[[], None], /, **options: object) -> None:
        """Start a process that does ``main``, a function of a module."""
        given = json.dumps({"urls": self._urls, "group": self.name, **options})
        command = [sys.executable, "-c", f"from {main.__module__} import main; main()", given]
        self.processes[number] = await asyncio.to_thread(subprocess.Popen[bytes], command, stdin=subprocess.DEVNULL)

    async def kill(self, number: int) -> None:
        """SIGKILL, whatever it has in its hands."""
        process = self.processes.pop(number)
        process.kill()
        await asyncio.to_thread(process.wait)
        self.killed += 1

    async def _end(self, number: int) -> None:
        """SIGTERM, after which it must end well."""
        process = self.processes[number]
        process.terminate()
        code = await asyncio.to_thread(process.wait, _END_TIMEOUT_S)
        assert code == 0, f"{self.noun} {number} ended with {code}"
        del self.processes[number]

    async def _end_all(self) -> None:
        for number in list(self.processes):
            await self._end(number)

    # Waiting

    async def _until_each(self, mark: bytes, count: int, what: str) -> None:
        """Return when the record of each living process has ``mark`` so many times more."""

        def marks(number: int) -> int:
            record = self._record(number)
            return record.read_bytes().count(mark) if record.exists() else 0

        wanted = {number: marks(number) + count for number in self.processes}
        began = time.monotonic()
        while any(marks(number) < least for number, least in wanted.items()):
            for number in wanted:
                assert self.processes[number].poll() is None, f"{self.noun} {number} has ended"
            if time.monotonic() - began > SETTLE_TIMEOUT_S:
                raise TimedOut(f"in {SETTLE_TIMEOUT_S:.0f} s not every {self.noun} {what}")
            await asyncio.sleep(POLL_S)

    async def _until_committed(self, latest: Mapping[int, int]) -> dict[int, int]:
        """Wait until the group has committed all of the workload's topic; where it has not in time, how far it is."""
        began = time.monotonic()
        while True:
            committed = await self._client.committed_offsets(self.name, self._topic)
            behind = {queue: at for queue, end in latest.items() if (at := committed.get(queue, 0)) < end}
            if not behind or time.monotonic() - began > DRAIN_TIMEOUT_S:
                return behind
            await asyncio.sleep(POLL_S)
