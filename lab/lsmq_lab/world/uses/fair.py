"""A work queue whose tenants take turns: one has very many messages, and none may have many in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import Client, Producer, Task
from lsmq.errors import LsmqError, ReceiptExpired
from lsmq_node.workqueue.receipts import decode_receipt, group_hash

from .use import DEADLINE_MS, AskedWork, Use, UsedTopics, UseRole

_QUEUES = 2
_GROUP = "crew"
_MOST_IN_FLIGHT = 3
_PER_S = 10
_AT_ONCE = 6
_WEIGHT = 3
_TRIES = 4
_LOUD, _SOFT = 20, 4
_VISIBILITY_MS = 1_000


@dataclass
class _Held:
    """A delivery, of a ledger, which a leader begins. It is in flight until then, unless somebody settles it."""

    ledger: tuple[int, int]
    tenant: str
    until: float


class Fair(Use):
    """Each job comes, never more of a tenant are in flight or come in a second than may; in a calm all have turns."""

    name = "fair"
    topics: ClassVar[UsedTopics] = {"shared": {"queues": _QUEUES}}

    def roles(self) -> Sequence[UseRole]:
        self._by = self.random.choice(("properties.tenant", "key"))
        self._per_s = self.random.choice((None, _PER_S))
        self._sent: set[int] = set()
        self._come: set[int] = set()
        self._held: dict[str, _Held] = {}  # by receipt
        self._deliveries: dict[tuple[tuple[int, int], str], list[tuple[float, float]]] = {}  # were made between these
        return [("crowd", self._flood), ("loner", self._send), ("crew1", self._work), ("crew2", self._work)]

    def _crew(self, client: Client, visibility_ms: int, at_once: int) -> AskedWork:
        world = self.load.cluster.world
        return AskedWork(
            client,
            "shared",
            _GROUP,
            now=lambda: world.now,
            visibility_ms=visibility_ms,
            wait_ms=300,
            max_messages=at_once,
        )

    async def _configure(self, work: AskedWork) -> None:
        await work.configure(
            fair_by=self._by,
            weights={f"loud-{number}": _WEIGHT for number in range(_TRIES)},
            max_in_flight_per=_MOST_IN_FLIGHT,
            max_rate_per=self._per_s,
            max_deliveries=1_000,
        )

    def _of(self, tenant: str) -> dict[str, Any]:
        return {"key": tenant} if self._by == "key" else {"properties": {"tenant": tenant}}

    async def _flood(self, client: Client) -> None:
        async with Producer(client, "shared", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                await self._put(producer, "crowd", _AT_ONCE)
                await self.load.pause(0.1, 0.4)

    async def _send(self, client: Client) -> None:
        async with Producer(client, "shared", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                await self._put(producer, self.random.choice(("loner", "hermit")), 1)
                await self.load.pause(0.02, 0.2)

    async def _put(self, producer: Producer, tenant: str, count: int) -> None:
        numbers = [self.load.number() for _ in range(count)]
        receipts = []
        with suppress(LsmqError):
            for number in numbers:
                queue = self.random.randrange(_QUEUES)
                receipts.append(await producer.send(f"{tenant} {number}", queue=queue, **self._of(tenant)))
        for number, receipt in zip(numbers, receipts, strict=False):
            with suppress(LsmqError):
                await receipt
                self._sent.add(number)

    async def _work(self, client: Client) -> None:
        while not self.load.stopping:
            work, mine = self._crew(client, _VISIBILITY_MS, 6), list[Task]()
            try:
                await self._configure(work)
                while not self.load.stopping:
                    for task in await work.poll(4, timeout_ms=300):
                        self._came(work, task)
                        mine.append(task)
                    while mine and self.random.random() < 0.7:
                        await self._settle(mine.pop(self.random.randrange(len(mine))))
                    await self.load.pause(0.0, 0.1)
            except LsmqError as error:
                self.load.cluster.note(f"fair worker: {error.code}")
                await asyncio.sleep(0.05)
            finally:
                for task in mine:
                    self._held.pop(task.receipt, None)
                await work.close()

    def _came(self, work: AskedWork, task: Task) -> str:
        now, asked = self.load.cluster.world.now, work.asked[task.receipt]
        tenant, number = task.text().split()
        self._come.add(int(number))
        receipt = decode_receipt(task.receipt, group_hash(_GROUP), task._topic.id)
        assert receipt is not None
        ledger = task._shard, receipt.token >> 32
        self._held[task.receipt] = _Held(ledger, tenant, asked + task.visibility_ms / 1000)
        its = [each for each in self._held.values() if (each.ledger, each.tenant) == (ledger, tenant)]
        if (count := sum(each.until > now for each in its)) > _MOST_IN_FLIGHT:
            self.wrong(f"{count} jobs of {tenant} are in flight in shard {task._shard}, at most {_MOST_IN_FLIGHT}")
        if self._per_s is not None:
            made = self._deliveries.setdefault((ledger, tenant), [])
            made.append((asked, now))
            for since, _ in made:
                count = sum(since <= each for each, _ in made)
                if count > self._per_s + (now - since) * self._per_s + 1:
                    self.wrong(f"{count} jobs of {tenant} came within {now - since:.3f} s, {self._per_s} a second may")
        return tenant

    async def _settle(self, task: Task) -> None:
        self._held.pop(task.receipt, None)
        chance = self.random.random()
        if chance < 0.1:
            return  # It comes again when its visibility has ended.
        with suppress(ReceiptExpired):
            await (task.ack() if chance < 0.7 else task.nack(delay_ms=self.random.choice((0, 100))))

    async def read_back(self, client: Client) -> None:
        await asyncio.sleep(_VISIBILITY_MS / 1000 + 0.2)  # What somebody has in his hands is given back.
        work = self._crew(client, 60_000, 10)
        try:
            await self._configure(work)  # Nobody may have come to it.
            for _ in range(60):
                if self._sent <= self._come:
                    break
                for task in await work.poll(10, timeout_ms=500):
                    self._came(work, task)
                    await self._done(task)
            else:
                self.wrong(f"jobs {sorted(self._sent - self._come)[:5]} were acknowledged and never came")
        finally:
            await work.close()
        self.counted = len(self._come)
        for number in range(_TRIES):
            if await self._take_turns(client, f"loud-{number}", f"soft-{number}"):
                return
        self.wrong(f"in {_TRIES} times somebody else led each time")

    async def _done(self, task: Task) -> None:
        self._held.pop(task.receipt, None)
        with suppress(ReceiptExpired):  # Another leader does not know of the delivery.
            await task.ack()

    async def _take_turns(self, client: Client, loud: str, soft: str) -> bool:
        """Whether the same nodes led until all of both has come, each in its turn."""
        leaders = self.leaders()
        async with Producer(client, "shared") as producer:
            receipts = [
                await producer.send(f"{tenant} {self.load.number()}", queue=0, **self._of(tenant))
                for tenant, count in ((loud, _LOUD), (soft, _SOFT))
                for _ in range(count)
            ]
            for receipt in receipts:
                await receipt
        work, mine = self._crew(client, 60_000, 1), list[tuple[str, Task]]()
        order = ""
        try:
            for _ in range(10 * (_LOUD + _SOFT)):
                if len(order) == _LOUD + _SOFT:
                    break
                tasks = await work.poll(1, timeout_ms=500)
                for task in tasks:
                    tenant = self._came(work, task)
                    mine.append((tenant, task))
                    order += "L" if tenant == loud else "s" if tenant == soft else ""
                # Of the quiet one there is always room for more.
                for held in [held for held in mine if held[0] != loud or not tasks or self.random.random() < 0.4]:
                    mine.remove(held)
                    await self._done(held[1])
        finally:
            await work.close()
        if self.leaders() != leaders:
            return False
        if len(order) < _LOUD + _SOFT:
            self.wrong(f"of {_LOUD} and {_SOFT} jobs that wait there come {order}")
        if any(len(turn) > _WEIGHT for turn in order.split("s")[:_SOFT]):
            self.wrong(f"while somebody waits with {_SOFT} jobs there come {order}, at most {_WEIGHT} of another's")
        return True
