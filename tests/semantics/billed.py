"""Transactions to queues by name and by number: names are made by those that are committed, and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lsmq import Consumer, TransactionalProducer
from lsmq.transactions import Transaction
from lsmq_lab.world.uses.use import read_to

from .area import Area, Life

_NAMES = ("ann", "bob", "c.d", "e")
_PLACES: tuple[tuple[str, str | int], ...] = (
    *(("folders", name) for name in _NAMES),
    *(("drawers", name) for name in _NAMES[:2]),
    ("ledger", 0),
    ("ledger", 1),
)
_DELAY_MS = 1_200
_CHECKS: Mapping[str, int] = {"check_after_ms": 600_000}

Place = tuple[str, str | int]
"""A topic, and a queue of it."""


@dataclass(eq=False)
class Bill:
    """``sent``: numbers by place; ``later``: those of them that are delayed."""

    transaction: Transaction
    sent: list[tuple[Place, int]] = field(default_factory=list)
    later: set[int] = field(default_factory=set)


class Billed(Area):
    """Names of ``drawers`` are forgotten when they are empty; those of ``folders`` stay until they are deleted.

    Attributes:
        there: numbers of each place, but for those that were delayed. A place that is here has its name.
        later: of each place the delayed ones that are to come, or have. ``seen``: those that have come.
        doubtful: delayed ones that came, or did not, as their queue was deleted; what names they have made as well.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "folders": {"queues": "named"},
        "drawers": {"queues": "named", "forget_empty_ms": 1_500},
        "ledger": {"queues": 2},
    }
    deeds = ("bill", "bill", "bill", "decide", "decide", "decide", "write", "remove", "remove", "look", "pass_time")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: list[Bill] = []
        self.there: dict[Place, list[int]] = {}
        self.later: dict[Place, set[int]] = {}
        self.seen: set[int] = set()
        self.doubtful: set[int] = set()

    async def start(self) -> None:
        self.producer = TransactionalProducer(self.client, "clerks", **_CHECKS)
        await self.producer.start()

    # Transactions

    async def bill(self, where: int, how: int, what: int) -> None:
        if where % 3 and self.open:
            bill = self.open[what % len(self.open)]
        else:
            bill = Bill(self.producer.transaction())
            self.open.append(bill)
        for at in range(1 + how % 3):
            place = _PLACES[(where + at * (1 + what % 5)) % len(_PLACES)]
            number, topic, queue = self.life.number(), *place
            is_late = topic != "ledger" and (how + at) % 5 == 4
            more: dict[str, Any] = {"delay_ms": _DELAY_MS} if is_late else {}
            await bill.transaction.send(topic, f"{number}", queue=queue, **more)
            bill.sent.append((place, number))
            if is_late:
                bill.later.add(number)

    async def decide(self, where: int, how: int, what: int) -> None:
        if not self.open:
            return
        bill = self.open.pop(what % len(self.open))
        if how % 3 == 0:
            await bill.transaction.roll_back()
            return
        await bill.transaction.commit()
        info = bill.transaction.info
        while info is None or not info.delivered:
            await asyncio.sleep(0.1)
            assert bill.transaction.id is not None
            info = await self.producer.outcome(bill.transaction.id)
        for place, number in bill.sent:
            if number in bill.later:
                self.later.setdefault(place, set()).add(number)
            else:
                self.there.setdefault(place, []).append(number)

    async def write(self, where: int, how: int, what: int) -> None:
        place = _PLACES[where % len(_PLACES)]
        number, topic, queue = self.life.number(), *place
        await self.life.send(topic, f"{number}", queue=queue)
        self.there.setdefault(place, []).append(number)

    async def remove(self, where: int, how: int, what: int) -> None:
        """A queue is deleted, or all that is in it: then its name is forgotten, where that is what the topic says."""
        topic, queue = place = _PLACES[where % 6]
        assert isinstance(queue, str)
        if topic == "folders":
            await self.client.delete_queue(topic, queue, missing_ok=True)
        elif self.there.get(place):
            found = [each for each in await self.client.queues(topic) if each.name == queue]
            assert found, f"{place} is not there"
            await self.client.trim_queue(topic, queue, found[0].latest)
        else:
            return
        self.there.pop(place, None)
        self.doubtful |= self.later.pop(place, set())

    async def pass_time(self, where: int, how: int, what: int) -> None:
        """Names are forgotten, and what is delayed comes."""
        await asyncio.sleep((0.5, 2.0, 4.0)[what % 3])

    # What is there

    async def look(self, where: int, how: int, what: int) -> None:
        await self._look(settled=False)

    async def _look(self, *, settled: bool) -> None:
        for topic in self.topics:
            found = await self._found(topic)
            for place, numbers in found.items():
                self._compare(place, numbers, settled=settled)
            missing = {place for place, numbers in self.there.items() if place[0] == topic and numbers} - found.keys()
            assert not missing, f"{missing} are not there"
            if settled:
                late = {place for place in self.later if place[0] == topic}
                assert late <= found.keys(), f"{late - found.keys()} are not there, though something came later"

    def _compare(self, place: Place, numbers: list[int], *, settled: bool) -> None:
        later, there = self.later.get(place, set()), self.there.get(place, [])
        rest = [number for number in numbers if number not in later | self.doubtful]
        assert rest == there, f"{place} has {numbers}, not {there}"
        came = later & set(numbers)
        assert len(numbers) == len(set(numbers)), f"a message came twice to {place}"
        assert later & self.seen <= came, f"{(later & self.seen) - came} of {place} have gone again"
        self.seen |= came
        if settled:
            assert came == later, f"{later - came} of {place} have not come"
            named = place in self.there or later or place[0] == "ledger"
            if place[0] == "drawers":
                assert there or later or set(numbers) & self.doubtful, f"{place} is empty, and not forgotten"
            else:
                assert named or self.doubtful, f"nothing was written to {place}"

    async def _found(self, topic: str) -> dict[Place, list[int]]:
        if topic == "ledger":
            return {
                (topic, queue): [int(message.text()) for message in await self.life.read(topic, queue)]
                for queue in (0, 1)
            }
        found: dict[Place, list[int]] = {}
        for queue in await self.client.queues(topic):
            consumer = Consumer(self.client, topic, queues=[queue.name], start="earliest", wait_ms=200)
            messages = await read_to(consumer, {queue.number: queue.latest} if queue.count else {})
            found[topic, queue.name] = [int(message.text()) for message in messages]
        return found

    async def settled(self) -> None:
        await self._look(settled=True)

    async def finish(self) -> None:
        while self.open:
            await self.decide(0, 1, 0)
        await self._look(settled=False)
        await self.producer.close()
