"""Work of tenants: who may have how much of it at a time, how much in a second, and whose turn it is by a property."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import WorkQueue, runtime
from lsmq_node.workqueue.receipts import decode_receipt, group_hash

from .area import KEYS, TAGS, Area, Leaders, Life
from .work import Shared

_LONG_MS = 43_200_000
_A_SECOND = 2

Place = tuple[int, int]
"""A queue and an offset."""


class Customers(Shared):
    """Those of :class:`Shared`, told by a property."""

    name = "customers"
    fair_by = "properties.customer"
    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"customers": {"queues": 1}}

    def told(self, tenant: str | None) -> dict[str, Any]:
        return {"properties": {"customer": tenant} if tenant is not None else {"supplier": "b"}}


@dataclass(eq=False)
class Held:
    """``under``: leaders who surely know of it."""

    receipt: str
    leader: int
    under: Leaders | None


class Limited(Area):
    """So many of a tenant in flight at a time, whatever becomes of the limit.

    ``open``: whose each message is. ``held``: of these the last delivery of those that a worker has.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"limited": {"queues": 2}}
    deeds = ("hand_in", "hand_in", "pop", "pop", "pop", "settle", "settle", "limit")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: dict[Place, str | None] = {}
        self.held: dict[Place, Held] = {}
        self.most = 2

    async def start(self) -> None:
        await self._configure()

    async def _configure(self) -> None:
        work = WorkQueue(self.client, "limited", "crew")
        await work.configure(fair_by="tag", max_in_flight_per=self.most, max_deliveries=1_000)

    async def limit(self, where: int, how: int, what: int) -> None:
        """Another one from then on. What is in flight stays there, and counts."""
        self.most = 1 + how % 3
        await self._configure()

    async def hand_in(self, where: int, how: int, what: int) -> None:
        for at in range(1 + how % 4):
            tag, queue = TAGS[(what + at * (where % 2)) % 3], (where + at) % 2
            sent = await self.life.send("limited", f"{self.life.number()}", tag=tag, queue=queue)
            self.open[queue, sent.offset] = tag

    async def pop(self, where: int, how: int, what: int) -> None:
        await self._pop(where % 2, 1 + how % 5)

    async def _pop(self, queue: int, most: int) -> Sequence[Place]:
        topic = await self.client.topic("limited")
        shard = topic.route(queue).shard
        queues = [each for each in (0, 1) if topic.route(each).shard == shard]
        surely, before = self._surely(queues), self.life.leaders()
        answer = await self.life.ask_crew(
            "pop",
            "limited",
            queue=queue,
            shards=[shard],
            max=most,
            wait_ms=5_000 if surely else 0,
            visibility_ms=_LONG_MS,
        )
        tasks = answer["messages"]
        assert tasks or not surely, f"nobody was given the work of {surely}"
        under = before if before and before == self.life.leaders() else None
        for task in tasks:
            place = task["queue"], task["offset"]
            receipt = decode_receipt(task["receipt"], group_hash("crew"), topic.id)
            assert receipt is not None
            assert place in self.open, f"{place} was settled before"
            leader, had = receipt.token >> 32, self.held.get(place)
            assert had is None or (had.leader != leader and had.under != self.life.leaders()), "it is with somebody"
            self.held[place] = Held(task["receipt"], leader, under)
        for tenant in {self.open[task["queue"], task["offset"]] for task in tasks}:
            mine = [held for place, held in self.held.items() if self.open[place] == tenant and place[0] in queues]
            known = [held for held in mine if under is not None and held.under == under]
            assert len(known) <= self.most, f"{len(known)} messages of {tenant} are in flight, not {self.most}"
        return [(task["queue"], task["offset"]) for task in tasks]

    def _surely(self, queues: Sequence[int]) -> set[str | None]:
        """Tenants who may have more, and have it."""
        found = set()
        for tenant in TAGS:
            mine = [place for place, whose in self.open.items() if whose == tenant and place[0] in queues]
            held = sum(place in self.held for place in mine)
            if held < min(self.most, len(mine)):
                found.add(tenant)
        return found

    async def settle(self, where: int, how: int, what: int) -> None:
        """Some of those that were delivered last, or first."""
        some = [place for place in self.held if place[0] == where % 2]
        await self._settle(where % 2, some[-1 - what % 3 :] if how % 2 else some[: 1 + what % 3], how // 2 % 4)

    async def _settle(self, queue: int, some: Sequence[Place], how: int) -> None:
        if not some:
            return
        ways: tuple[tuple[str, dict[str, Any]], ...] = (
            ("ack", {}),
            ("nack", {"delay_ms": 0}),
            ("nack", {"release": True}),
            ("extend", {"visibility_ms": _LONG_MS}),
        )
        what, more = ways[how]
        receipts = [self.held[place].receipt for place in some]
        answer = await self.life.ask_crew(what, "limited", queue=queue, receipts=receipts, **more)
        assert answer == {"done": len(some), "refused": []}, f"{answer} to what nobody else has"
        for place in some:
            if what != "extend":
                del self.held[place]
            if what == "ack":
                del self.open[place]

    async def finish(self) -> None:
        for queue in (0, 1):
            await self._settle(queue, [place for place in self.held if place[0] == queue], 0)
        for queue in (0, 1):
            while any(place[0] == queue for place in self.open):
                for place in await self._pop(queue, 5):
                    await self._settle(place[0], [place], 0)


class Paced(Area):
    """So many of a tenant in a second, of any second's worth at once, by the clock of who leads.

    ``open``: whose each message is. ``given``: of each tenant when it was served by the last leader.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paced": {"queues": 1}}
    deeds = ("hand_in", "pop", "pop")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: dict[int, str | None] = {}
        self.given: dict[str | None, list[int]] = {}
        self.leader = 0

    async def start(self) -> None:
        await WorkQueue(self.client, "paced", "crew").configure(fair_by="key", max_rate_per=_A_SECOND)

    async def hand_in(self, where: int, how: int, what: int) -> None:
        for at in range(2 + how % 4):
            key = KEYS[(what + at * (where % 2)) % 4]
            sent = await self.life.send("paced", f"{self.life.number()}", key=key, queue=0)
            self.open[sent.offset] = key

    async def pop(self, where: int, how: int, what: int) -> None:
        await self._pop(1 + how % 8)

    async def _pop(self, most: int) -> None:
        """Whoever waits for some moments is given something, if there is any."""
        topic = await self.client.topic("paced")
        answer = await self.life.ask_crew("pop", "paced", max=most, wait_ms=5_000 if self.open else 0)
        assert answer["messages"] or not self.open, f"nobody was given the work {self.open}"
        now_ms = runtime.wall_ms()
        for task in answer["messages"]:
            receipt = decode_receipt(task["receipt"], group_hash("crew"), topic.id)
            assert receipt is not None and task["offset"] in self.open
            if receipt.token >> 32 != self.leader:
                self.leader, self.given = receipt.token >> 32, {}
            tenant = self.open.pop(task["offset"])
            times = self.given.setdefault(tenant, [])
            times.append(now_ms)
            for count, first_ms in enumerate(reversed(times), 1):
                most_now = _A_SECOND * (1 + (now_ms - first_ms) / 1000) + 1
                assert count <= most_now, f"{tenant} was served {count} times in {now_ms - first_ms} ms"
        if answer["messages"]:
            receipts = [task["receipt"] for task in answer["messages"]]
            settled = await self.life.ask_crew("ack", "paced", receipts=receipts)
            assert settled["refused"] == []

    async def finish(self) -> None:
        while self.open:
            await self._pop(8)
