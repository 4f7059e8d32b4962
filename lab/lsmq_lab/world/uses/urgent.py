"""A work queue in order of priority."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from lsmq import Client, Producer, WorkQueue
from lsmq.errors import LsmqError, ReceiptExpired

from .use import DEADLINE_MS, Use, UsedTopics, UseRole

_AGAIN_MS = 100


class Urgent(Use):
    """Every job comes; and when all is calm, of those that wait the most urgent ones first."""

    name = "urgent"
    topics: ClassVar[UsedTopics] = {"urgent": {"queues": 1}}

    def roles(self) -> Sequence[UseRole]:
        self._sent: dict[int, tuple[int, int]] = {}
        self._come: set[int] = set()
        return [("dispatcher", self._send), ("helper", self._work)]

    def _crew(self, client: Client, visibility_ms: int) -> WorkQueue:
        return WorkQueue(client, "urgent", "helpers", visibility_ms=visibility_ms, wait_ms=300, order="priority")

    async def _configure(self, work: WorkQueue) -> None:
        await work.configure(order="priority", max_deliveries=1_000)

    async def _send(self, client: Client) -> None:
        async with Producer(client, "urgent", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                number, first, second = self.load.number(), self.random.randrange(3), self.random.randrange(3)
                try:
                    await producer.send_and_wait(str(number), priority=first, subpriority=second)
                    self._sent[number] = first, second
                except LsmqError:
                    pass
                await self.load.pause(0.01, 0.1)

    async def _work(self, client: Client) -> None:
        while not self.load.stopping:
            work = self._crew(client, 1_000)
            try:
                await self._configure(work)
                while not self.load.stopping:
                    for task in await work.poll(1, timeout_ms=500):
                        self._come.add(int(task.text()))
                        with suppress(ReceiptExpired):
                            await (task.ack() if self.random.random() < 0.6 else task.nack(delay_ms=_AGAIN_MS))
                    await self.load.pause(0.05, 0.3)
            except LsmqError:
                await asyncio.sleep(0.05)
            finally:
                await work.close()

    async def read_back(self, client: Client) -> None:
        await asyncio.sleep(1.2)  # What somebody has in his hands is given back.
        work = self._crew(client, 60_000)
        await self._configure(work)  # Nobody may have come to it.
        order: dict[int, tuple[int, int]] = {}  # One that comes again, from another leader, has had its place.
        try:
            for _ in range(len(self._sent) + 20):
                tasks = await work.poll(1, timeout_ms=500)
                for task in tasks:
                    number = int(task.text())
                    self._come.add(number)
                    order.setdefault(number, (task.message.priority, task.message.subpriority))
                    with suppress(ReceiptExpired):  # Another leader does not know of the delivery.
                        await task.ack()
                if not tasks and set(self._sent) <= self._come:
                    break
        finally:
            await work.close()
        if missing := set(self._sent) - self._come:
            self.wrong(f"jobs {sorted(missing)[:5]} were acknowledged and never came")
        ranks = list(order.values())
        if ranks != sorted(ranks, reverse=True):
            self.wrong(f"jobs came in the order of priorities {ranks}")
        self.counted = len(self._come)
