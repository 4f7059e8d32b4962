"""A work queue by priority in which messages age, and what is deleted while somebody has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import WorkQueue

from .area import Area, Leaders, Life

#: A message counts one priority higher for each so many milliseconds, and a subpriority in each 256th of that.
_AGEING_MS = 400
_LEVELS = 256
_LONG_MS = 3_600_000


@dataclass
class Job:
    """Of which the lowest place goes first. ``receipt``: of the worker who has it, from one of these leaders."""

    level: int
    place: int
    again: bool = False
    receipt: str | None = None
    leaders: Leaders = frozenset()


class Ageing(Area):
    """``open``: jobs by offset that are neither done nor deleted. ``deleted``: receipts of jobs that somebody had."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"ageing": {"queues": 1}}
    deeds = ("send", "send", "send", "take", "take", "take", "settle", "settle", "drop")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: dict[int, Job] = {}
        self.deleted: list[str] = []

    async def start(self) -> None:
        work = WorkQueue(self.client, "ageing", "crew")
        await work.configure(order="priority", priority_ageing_ms=_AGEING_MS, max_deliveries=1_000)

    async def send(self, where: int, how: int, what: int) -> None:
        """A place follows from when it was stored, by the clock of whoever led then."""
        priority, subpriority = what % 4, how % 3 * 100
        level = priority * _LEVELS + subpriority
        sent = await self.life.send(
            "ageing", f"{self.life.number()}", queue=0, priority=priority, subpriority=subpriority
        )
        (stored_ms,) = [each.stored_ms for each in await self.life.read("ageing", 0) if each.offset == sent.offset]
        self.open[sent.offset] = Job(level, stored_ms * _LEVELS - level * _AGEING_MS)

    def _is_held(self, job: Job) -> bool:
        """Whoever leads next may give it to somebody else."""
        return job.receipt is not None and job.leaders == self.life.leaders()

    async def take(self, where: int, how: int, what: int) -> None:
        before = self.life.leaders()
        ready = {offset: job for offset, job in self.open.items() if job.receipt is None}
        fields = {"max": 1, "visibility_ms": _LONG_MS, "wait_ms": 5_000 if ready else 0}
        found = (await self.life.ask_crew("pop", "ageing", **fields))["messages"]
        assert found or not ready, f"nobody was given the jobs {ready}"
        for task in found:
            offset = task["offset"]
            assert offset in self.open, f"{offset} was settled, or deleted, before"
            job, led = self.open[offset], before == self.life.leaders()
            assert not (led and self._is_held(job)), f"{offset} was given to two workers"
            if job.receipt is None and led:
                self._compare(job, ready)
            job.receipt, job.leaders, job.again = task["receipt"], before if led else frozenset(), True

    def _compare(self, job: Job, ready: Mapping[int, Job]) -> None:
        """Of each level the oldest comes, or one that was given back before."""
        for level in {each.level for each in ready.values()}:
            fresh = [each.place for each in ready.values() if each.level == level and not each.again]
            again = [each.place for each in ready.values() if each.level == level and each.again]
            latest = max([*again, *([min(fresh)] if fresh else [])])
            assert job.place <= latest, f"a job of place {job.place} came before one of {latest}"

    async def settle(self, where: int, how: int, what: int) -> None:
        """A worker is done, or gives it back, or learns that it was deleted meanwhile."""
        if how % 4 == 0 and self.deleted:
            await self.life.ask_crew("ack", "ageing", receipts=[self.deleted.pop()])
            return
        held = sorted(offset for offset, job in self.open.items() if job.receipt is not None)
        if held:
            await self._settle(held[what % len(held)], done=how % 3 != 0)

    async def _settle(self, offset: int, *, done: bool) -> None:
        job, more = self.open[offset], {} if done else {"delay_ms": 0}
        surely = self._is_held(job)
        answer = await self.life.ask_crew("ack" if done else "nack", "ageing", receipts=[job.receipt], **more)
        assert not answer["refused"] or not surely, f"{answer['refused']}, and nobody else had it"
        job.receipt = None
        if done and not answer["refused"]:
            del self.open[offset]

    async def drop(self, where: int, how: int, what: int) -> None:
        """What is open is deleted alone, or with all before it."""
        if not self.open:
            return
        offset = sorted(self.open)[what % len(self.open)]
        if how % 2:
            await self.client.delete_messages("ageing", [(0, offset)])
            gone = {offset}
        else:
            await self.client.trim_topic("ageing", {0: offset + 1})
            gone = {each for each in self.open if each <= offset}
        for each in gone:
            receipt = self.open.pop(each).receipt
            self.deleted += [] if receipt is None else [receipt]

    async def finish(self) -> None:
        for offset in [offset for offset, job in self.open.items() if job.receipt is not None]:
            await self._settle(offset, done=True)
        for _ in range(2 * len(self.open)):
            await self.take(0, 0, 0)
            for offset in [offset for offset, job in self.open.items() if job.receipt is not None]:
                await self._settle(offset, done=True)
        assert not self.open, f"nobody was given {self.open}"
