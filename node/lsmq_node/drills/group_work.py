"""A consumer group at work in a drill: members that come, go and are killed, and what to hold them to.

- Nothing that was acknowledged is left unhandled.
- In a tenure (one member with one queue) messages are handled in order, each once, without gaps.
- A tenure begins right behind the one before. Where that one's member was killed, stopped or hung it may begin earlier,
  at what was committed: that much was handled twice, and is counted as *repeated*. Else it is a duplicate.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lsmq import Client
from lsmq._membership import DEFAULT_MAX_HANDLER_MS
from lsmq.errors import LsmqError, TimedOut
from lsmq.groups import Group
from lsmq_node.history import Reading

from .members import Tenure, main, read_record, slowness, take_part

SESSION_MS = 1_000

_POLL_S = 0.05
_SHARE_TIMEOUT_S = 60.0
_DRAIN_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 30.0


@dataclass(slots=True)
class _Member:
    record: Path
    process: subprocess.Popen[bytes] | None = None
    task: asyncio.Task[None] | None = None
    stopping: asyncio.Event | None = None
    paused: bool = False
    #: What it had in hand when its queues went may be handled again: it was killed, paused or blocked.
    excused: bool = False


@dataclass(frozen=True, slots=True)
class Conduct:
    """How the members did. ``doubled`` and ``disordered`` must be 0."""

    repeated: int
    doubled: int
    disordered: int
    findings: tuple[str, ...]


class GroupWork:
    """One group on the topic of a workload. ``members`` are those that live, by name."""

    def __init__(self, urls: Sequence[str], topic: str, queues: int) -> None:
        self.name = f"{topic}-shared"
        self.members: dict[str, _Member] = {}
        self._urls = list(urls)
        self._topic = topic
        self._queues = queues
        self._gone: dict[str, _Member] = {}
        self._tenures: list[Tenure] = []
        self._numbers = itertools.count()
        self._directory = Path(tempfile.mkdtemp(prefix="lsmq-members-"))
        self._client = Client(self._urls, deadline_ms=120_000)
        self._group = Group(self._client, self.name)

    async def close(self) -> None:
        for member in self.members.values():
            if member.process is not None:
                member.process.kill()  # Even one that is paused.
                member.process.wait()
            if member.task is not None:
                member.task.cancel()
                await asyncio.gather(member.task, return_exceptions=True)
        await self._client.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    # Members

    async def start(
        self,
        *,
        own_process: bool = False,
        session_ms: int = SESSION_MS,
        max_handler_ms: int = DEFAULT_MAX_HANDLER_MS,
    ) -> str:
        """One more member; its name."""
        name = f"m{next(self._numbers)}"
        member = self.members[name] = _Member(self._directory / name)
        if own_process:
            options = {
                "urls": self._urls,
                "topic": self._topic,
                "group": self.name,
                "record": str(member.record),
                "session_ms": session_ms,
                "max_handler_ms": max_handler_ms,
            }
            command = [sys.executable, "-c", f"from {main.__module__} import main; main()", json.dumps(options)]
            member.process = await asyncio.to_thread(subprocess.Popen[bytes], command, stdin=subprocess.DEVNULL)
        else:
            member.stopping = asyncio.Event()
            work = take_part(
                self._client, self._topic, self.name, member.record, member.stopping, session_ms=10 * SESSION_MS
            )
            member.task = asyncio.create_task(work, name=f"member {name}")
        return name

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        member = self._gone[name] = self.members.pop(name)
        assert member.process is not None
        member.excused = True
        member.process.kill()
        await asyncio.to_thread(member.process.wait)

    def pause(self, name: str) -> None:
        """SIGSTOP: its session will end."""
        self._signal(name, signal.SIGSTOP, paused=True)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT, paused=False)

    def _signal(self, name: str, number: signal.Signals, *, paused: bool) -> None:
        member = self.members[name]
        assert member.process is not None
        member.excused, member.paused = True, paused
        member.process.send_signal(number)

    def slow_down(self, name: str, seconds: float, *, block: bool) -> None:
        """Each message takes it so long from now on. With ``block`` its process does nothing else meanwhile."""
        member = self.members[name]
        member.excused = member.excused or block
        slowness(member.record).write_text(f"{'block' if block else 'crawl'} {seconds}")

    def speed_up(self, name: str) -> None:
        slowness(self.members[name].record).unlink(missing_ok=True)

    async def until_stalled(self, names: Sequence[str]) -> None:
        """Return when the group, and the health of a node, say so of these members and no others."""
        wanted = {str(member.process.pid) for name in names if (member := self.members[name]).process is not None}
        async with asyncio.timeout(_SHARE_TIMEOUT_S):
            while True:
                with suppress(LsmqError):
                    found = await self._group.describe()
                    stalled = {member.client.split()[0].split(":")[-1] for member in found.members if member.stalled}
                    if stalled == wanted and await self._is_told(len(wanted)):
                        return
                await asyncio.sleep(_POLL_S)

    async def _is_told(self, count: int) -> bool:
        """Whether the coordinator's health tells of that many stalled members."""
        async with Client((await self._group.coordinator()).leader or self._urls) as client:
            warnings = (await client.ask("GET", "/readyz")).get("warnings", [])
        told = [warning for warning in warnings if self.name in warning]
        return bool(told) == bool(count) and all(f" {count} of " in warning for warning in told)

    async def until_handled(self, count: int) -> None:
        """Return when the group is done with so many messages more."""
        wanted = await self._committed() + count
        async with asyncio.timeout(_SHARE_TIMEOUT_S):
            while True:
                if await self._committed() >= wanted:
                    return
                await asyncio.sleep(_POLL_S)

    async def _committed(self) -> int:
        return sum((await self._client.committed_offsets(self.name, self._topic)).values())

    async def stop(self, name: str) -> None:
        """Have it leave. Raises what went wrong with it."""
        member = self._gone[name] = self.members.pop(name)
        if member.process is not None:
            member.process.terminate()
            code = await asyncio.to_thread(member.process.wait, _END_TIMEOUT_S)
            assert code == 0, f"member {name} ended with {code}"
        if member.task is not None and member.stopping is not None:
            member.stopping.set()
            await member.task

    async def until_shared(self) -> float:
        """Return when the living members, and no others, have all queues; the seconds it took."""
        began = time.monotonic()
        while True:
            try:
                found = await self._group.describe()
                owned = sum(member.queues for member in found.members)
                living = sum(not member.paused for member in self.members.values())
                if (len(found.members), owned, found.state) == (living, self._queues, "stable"):
                    return time.monotonic() - began
            except LsmqError as error:
                found = error  # type: ignore[assignment]
            if time.monotonic() - began > _SHARE_TIMEOUT_S:
                raise TimedOut(f"in {_SHARE_TIMEOUT_S:.0f} s the queues were not shared by all members: {found}")
            await asyncio.sleep(_POLL_S)

    async def finish(self, latest: Mapping[int, int]) -> None:
        """Return when all is handled and committed, and everybody has left."""
        began = time.monotonic()
        while True:
            committed = await self._client.committed_offsets(self.name, self._topic)
            if all(committed.get(queue, 0) >= offset for queue, offset in latest.items()):
                break
            if time.monotonic() - began > _DRAIN_TIMEOUT_S:
                break  # What is missing will be called lost.
            await asyncio.sleep(_POLL_S)
        for name in list(self.members):
            await self.stop(name)
        self._tenures = [
            tenure
            for name, member in self._gone.items()
            if member.record.exists()
            for tenure in read_record(name, member.record)
        ]

    # The verdict, after the end

    def tell(self, reading: Reading) -> None:
        """What was handled, for a check that allows redelivery."""
        for number, tenure in enumerate(self._tenures):
            reading.received(
                [tenure.queue] * len(tenure.offsets),
                tenure.offsets,
                tenure.keys,
                tenure.sequences,
                digests=tenure.digests,
                consumer=number,
            )

    def conduct(self) -> Conduct:
        """Whether members kept to the rules."""
        by_queue: dict[int, list[Tenure]] = defaultdict(list)
        for tenure in self._tenures:
            if tenure.offsets:
                by_queue[tenure.queue].append(tenure)
        repeated = doubled = disordered = 0
        findings: list[str] = []
        for queue, tenures in by_queue.items():
            tenures.sort(key=lambda tenure: tenure.began_at)
            for tenure in tenures:
                wrong = sum(later != offset + 1 for offset, later in itertools.pairwise(tenure.offsets))
                if wrong:
                    disordered += wrong
                    findings.append(f"group: {tenure.member} handled queue {queue} out of order, {wrong} times")
            for before, tenure in itertools.pairwise(tenures):
                again = before.offsets[-1] + 1 - tenure.offsets[0]
                if again > 0 and self._gone[before.member].excused:
                    repeated += again
                elif again > 0:
                    doubled += again
                    findings.append(f"group: {tenure.member} handled {again} messages of queue {queue} once more")
        return Conduct(repeated, doubled, disordered, tuple(findings[:10]))
