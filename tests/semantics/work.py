"""Work queues: what is most urgent first, tenants in turn, and what has failed too often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq import WorkQueue
from lsmq_node.workqueue.receipts import decode_receipt, group_hash

from .area import KEYS, Area, Life
from .letters import letters
from .rows import Row


class Urgent(Area):
    """``open``: jobs by offset. ``again``: of these, given back before."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"jobs": {"queues": 1}}
    deeds = ("send", "send", "send", "pop", "pop")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: dict[int, Row] = {}
        self.again: set[int] = set()

    async def start(self) -> None:
        await WorkQueue(self.client, "jobs", "crew").configure(order="priority", max_deliveries=1_000)

    async def send(self, where: int, how: int, what: int) -> None:
        row = Row(self.life.number(), priority=(what % 4 // 2, what % 2))
        priority, subpriority = row.priority
        sent = await self.life.send("jobs", f"{row.number}", queue=0, priority=priority, subpriority=subpriority)
        self.open[sent.offset] = row

    async def pop(self, where: int, how: int, what: int) -> None:
        """The only worker is given a message, or none; he settles it, or gives it back."""
        task, done = await self.life.pop("jobs", waits=bool(self.open)), how % 3 != 0
        if task is None:
            assert not self.open, f"nobody was given the jobs {self.open}"
            return
        await self.life.settle_task("jobs", task, done=done)
        offset = task["offset"]
        assert offset in self.open, f"{offset} was settled before"
        row = self.open[offset]
        highest = max(each.priority for each in self.open.values())
        assert row.priority == highest, f"priority {row.priority} came before {highest}"
        fresh = [each for each in self.open if each not in self.again and self.open[each].priority == highest]
        assert offset in self.again or offset == min(fresh), "of one priority they come in their order"
        if done:
            del self.open[offset]
            self.again.discard(offset)
        else:
            self.again.add(offset)

    async def finish(self) -> None:
        while self.open:
            await self.pop(0, 1, 0)


class Shared(Area):
    """Work of tenants, who take turns. Who leads next begins anew with them.

    Attributes:
        open: whose each message is, by offset.
        again: of these, given back before.
        passed: of each tenant who waits, how often each other one was served since it was, or began to wait.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"shared": {"queues": 1}}
    deeds = ("share", "share", "pop")
    #: Of tenants, where that is not 1.
    weights: ClassVar[Mapping[str, int]] = {"b": 2}
    name = "shared"
    fair_by = "key"

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: dict[int, str | None] = {}
        self.again: set[int] = set()
        self.passed: dict[str | None, Counter[str | None]] = {}
        self.leader = 0

    async def start(self) -> None:
        shared = WorkQueue(self.client, self.name, "crew")
        await shared.configure(fair_by=self.fair_by, weights=self.weights, max_deliveries=1_000)

    def told(self, tenant: str | None) -> dict[str, Any]:
        """What a message of this tenant says."""
        return {"key": tenant}

    async def share(self, where: int, how: int, what: int) -> None:
        """Some tenants get work."""
        for key in dict.fromkeys((KEYS[how % 4], KEYS[what % 4])):
            for _ in range(1 + what % 3):
                sent = await self.life.send(self.name, f"{self.life.number()}", queue=0, **self.told(key))
                self.open[sent.offset] = key
                self.passed.setdefault(key, Counter())

    async def pop(self, where: int, how: int, what: int) -> None:
        for _ in range(1 + how % 4):
            await self._pop(done=what % 4 != 0)

    async def _pop(self, *, done: bool) -> None:
        topic, task = await self.client.topic(self.name), await self.life.pop(self.name, waits=bool(self.open))
        if task is None:
            assert not self.open, f"nobody was given the work {self.open}"
            return
        receipt = decode_receipt(task["receipt"], group_hash("crew"), topic.id)
        assert receipt is not None
        await self.life.settle_task(self.name, task, done=done)
        self._popped(task["offset"], receipt.token >> 32, done=done)

    def _popped(self, offset: int, leader: int, *, done: bool) -> None:
        """The only worker was given a message by this leader; he settled it, or gave it back."""
        assert offset in self.open, f"{offset} was settled before"
        tenant = self.open[offset]
        fresh = [each for each, whose in self.open.items() if whose == tenant and each not in self.again]
        assert offset in self.again or offset == min(fresh), "those of a tenant come in their order"
        if leader != self.leader:
            self.leader, self.passed = leader, {each: Counter() for each in self.passed}
        for other, passed in self.passed.items():
            passed[tenant] += other != tenant
            most = 1 if tenant is None else self.weights.get(tenant, 1)
            assert passed[tenant] <= most, f"tenant {tenant} was served {passed[tenant]} times while {other} waited"
        if done:
            del self.open[offset]
            self.again.discard(offset)
        else:
            self.again.add(offset)
        del self.passed[tenant]
        if tenant in self.open.values():
            self.passed[tenant] = Counter()

    async def finish(self) -> None:
        while self.open:
            await self._pop(done=True)


class Doomed(Area):
    """``open``: jobs by offset, with their numbers, and how often each has failed."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"doomed": {"queues": 1}}
    deeds = ("send", "pop", "look")
    most_deliveries = 2

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: dict[int, tuple[int, int]] = {}
        self.dead: set[int] = set()

    async def start(self) -> None:
        await WorkQueue(self.client, "doomed", "crew").configure(max_deliveries=self.most_deliveries)

    async def send(self, where: int, how: int, what: int) -> None:
        number = self.life.number()
        sent = await self.life.send("doomed", f"{number}", queue=0)
        self.open[sent.offset] = number, 0

    async def pop(self, where: int, how: int, what: int) -> None:
        task, done = await self.life.pop("doomed", waits=bool(self.open)), how % 4 == 0
        if task is None:
            assert not self.open, f"nobody was given the work {self.open}"
            return
        offset = task["offset"]
        assert offset in self.open, f"{offset} was settled, or is dead"
        await self.life.settle_task("doomed", task, done=done)
        number, failed = self.open[offset]
        self.open[offset] = number, failed + 1
        if done or failed + 1 == self.most_deliveries:
            del self.open[offset]
            self.dead |= set() if done else {number}

    async def rouse(self) -> None:
        """A new leader goes on with dead letters once somebody asks for what it has of the work queue."""
        await WorkQueue(self.client, "doomed", "crew").describe()

    async def look(self, where: int, how: int, what: int) -> None:
        found = await letters(self.client, "doomed.dlq")
        assert found <= self.dead, f"{found - self.dead} have not failed for the last time"

    async def settled(self) -> None:
        found = await letters(self.client, "doomed.dlq")
        assert found == self.dead, f"{self.dead - found} are no dead letters, and {found - self.dead} are"
