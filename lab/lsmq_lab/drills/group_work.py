"""A consumer group at work in a drill: members that come, go and are killed, and what to hold them to.

- Nothing that was acknowledged is left unhandled.
- In a tenure (one member with one queue) messages are handled in order, each once, without gaps.
- A tenure begins right behind the one before. Where that one's member was killed, stopped or hung it may begin earlier,
  at what was committed: that much was handled twice, and is counted as *repeated*. Else it is a duplicate.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lsmq import Client
from lsmq.errors import LsmqError, TimedOut
from lsmq.group_values import DEFAULT_MAX_HANDLER_MS
from lsmq.groups import Group
from lsmq_lab.history import History

from .members import Tenure, main, read_record, slowness, take_part
from .report import OutageTimes
from .side_work import SETTLE_TIMEOUT_S, Judgement, SideWork

SESSION_MS = 1_000

_POLL_S = 0.05
_EXAMPLES = 10


@dataclass(slots=True)
class _Member:
    #: What it does, and what ends that, where it is of this process.
    task: asyncio.Task[None] | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    paused: bool = False
    #: What it had in hand when its queues went may be handled again: it was killed, paused or blocked.
    excused: bool = False


class GroupWork(SideWork):
    """One group on the topic of a workload. ``members`` are those that live, by number."""

    suffix = "shared"
    noun = "member"
    is_watched = True

    def __init__(self, urls: Sequence[str], topic: str, queues: int) -> None:
        super().__init__(urls, topic, queues)
        self.members: dict[int, _Member] = {}
        #: Seconds that it took until the members had all queues, where a drill wants them told.
        self.shared_s: list[float] = []
        self._group = Group(self._client, self.name)
        self._known: dict[int, _Member] = {}
        self._tenures: list[Tenure] = []

    # Members

    async def start(
        self,
        *,
        own_process: bool = False,
        session_ms: int = SESSION_MS,
        max_handler_ms: int = DEFAULT_MAX_HANDLER_MS,
    ) -> None:
        """One more member."""
        number = next(self._numbers)
        member = self.members[number] = self._known[number] = _Member()
        record = self._record(number)
        if own_process:
            times = {"session_ms": session_ms, "max_handler_ms": max_handler_ms}
            await self._spawn(number, main, topic=self._topic, record=str(record), **times)
        else:
            work = take_part(self._client, self._topic, self.name, record, member.stopping, session_ms=10 * SESSION_MS)
            member.task = asyncio.create_task(work, name=f"member {number}")
            self._tasks.append(member.task)

    async def kill(self, number: int) -> None:
        self.members.pop(number).excused = True
        await super().kill(number)

    async def stop(self, number: int) -> None:
        """Have it leave. Raises what went wrong with it."""
        member = self.members.pop(number)
        if member.task is None:
            await self._end(number)
        else:
            member.stopping.set()
            await member.task

    def pause(self, number: int) -> None:
        """SIGSTOP: its session will end."""
        self._signal(number, signal.SIGSTOP, paused=True)

    def resume(self, number: int) -> None:
        self._signal(number, signal.SIGCONT, paused=False)

    def _signal(self, number: int, sent: signal.Signals, *, paused: bool) -> None:
        member = self.members[number]
        member.excused, member.paused = True, paused
        self.processes[number].send_signal(sent)

    def slow_down(self, number: int, seconds: float, *, block: bool) -> None:
        """Each message takes it so long from now on. With ``block`` its process does nothing else meanwhile."""
        self.members[number].excused |= block
        given = self._directory / "slowness"
        given.write_text(f"{'block' if block else 'crawl'} {seconds}")
        given.replace(slowness(self._record(number)))  # A member must not find it half written.

    def speed_up(self, number: int) -> None:
        slowness(self._record(number)).unlink(missing_ok=True)

    # Waiting

    async def until_stalled(self, numbers: Sequence[int]) -> None:
        """Return when the group, and the health of a node, say so of these members and no others."""
        wanted = {str(self.processes[number].pid) for number in numbers}
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
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
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                if await self._committed() >= wanted:
                    return
                await asyncio.sleep(_POLL_S)

    async def _committed(self) -> int:
        return sum((await self._client.committed_offsets(self.name, self._topic)).values())

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
            if time.monotonic() - began > SETTLE_TIMEOUT_S:
                raise TimedOut(f"in {SETTLE_TIMEOUT_S:.0f} s the queues were not shared by all members: {found}")
            await asyncio.sleep(_POLL_S)

    # The end

    async def finish(self, latest: Mapping[int, int]) -> None:
        await self._until_committed(latest)  # What is missing will be called lost.
        for number in list(self.members):
            await self.stop(number)
        records = ((number, self._record(number)) for number in self._known)
        self._tenures = [
            tenure for number, record in records if record.exists() for tenure in read_record(number, record)
        ]

    def judge(self, sent: History) -> Judgement:
        reading = sent.reading("group")
        by_queue: dict[int, list[Tenure]] = defaultdict(list)
        for place, tenure in enumerate(self._tenures):
            tenure.handled.hand_to(reading.received, consumer=place)
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
                    findings.append(f"group: member {tenure.member} handled queue {queue} out of order, {wrong} times")
            for before, tenure in itertools.pairwise(tenures):
                again = before.offsets[-1] + 1 - tenure.offsets[0]
                if again > 0 and self._known[before.member].excused:
                    repeated += again
                elif again > 0:
                    doubled += again
                    findings.append(
                        f"group: member {tenure.member} handled {again} messages of queue {queue} once more"
                    )
        verdict = sent.check(redelivery=True)
        notes = [
            f"the group handled {verdict.received['group']:,} messages, {repeated:,} of them for the second time "
            "after their member was killed, stopped or hung"
        ]
        if self.shared_s:
            notes.append(f"until the living had all queues: {OutageTimes.of(self.shared_s)}")
        return Judgement(
            verdicts=[verdict],
            notes=tuple(notes),
            duplicates=doubled,
            order_violations=disordered,
            findings=tuple(findings[:_EXAMPLES]),
        )
