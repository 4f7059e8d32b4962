"""Schedules: made, put in the place of others, deleted; of each of their times one message comes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import Consumer, Message, Schedules, runtime
from lsmq.errors import UnknownSchedule
from lsmq_lab.world.uses.use import all_of, read_to

from .area import Area, Life

_MINUTE_MS = 60_000
#: A clock may be so far off, a message be stored a second before its time, and a shard be without a leader.
_UNSURE_MS = 8_000
_EVERY_MINUTES = (1, 2)
_NAMES = ("bell", "gong")
_PASSING_S = 12.0
_NEVER = 1 << 62


@dataclass
class Put:
    """A schedule as it was put: from when on, until when it was, and what it sends each so many minutes."""

    number: int
    every: int
    since_ms: int
    until_ms: int = _NEVER
    deleted: bool = False

    def times(self, now_ms: int, unsure_ms: int) -> set[int]:
        """At which its message has come, if it may do so that much before and after it was there; or, below 0, not."""
        first, last = self.since_ms - unsure_ms, min(self.until_ms, now_ms) + unsure_ms
        step = self.every * _MINUTE_MS
        return set(range(-(-first // step) * step, last + 1, step))


class Scheduled(Area):
    """``puts``: of each topic and name, in their order."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"ticks": {"queues": 2}, "chimes": {"queues": "named"}}
    deeds = ("schedule", "schedule", "schedule", "pass_time", "look", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.schedules = {topic: Schedules(life.client, topic) for topic in self.topics}
        self.puts: dict[tuple[str, str], list[Put]] = {(topic, name): [] for topic in self.topics for name in _NAMES}

    async def schedule(self, where: int, how: int, what: int) -> None:
        topic, name = ("ticks", "chimes")[where % 2], _NAMES[how % 2]
        puts, schedules = self.puts[topic, name], self.schedules[topic]
        present = puts[-1] if puts and not puts[-1].deleted else None
        if what % 5 == 0:
            try:
                await schedules.delete(name)  # Who has to ask twice is not told that it was not there.
            except UnknownSchedule:
                assert present is None, f"{name} is gone"
            if present is not None:
                present.until_ms, present.deleted = runtime.wall_ms(), True
            return
        put = Put(self.life.number(), _EVERY_MINUTES[what % 2], runtime.wall_ms())
        cron = "* * * * *" if put.every == 1 else f"*/{put.every} * * * *"
        queue: int | str = how % 3 % 2 if topic == "ticks" else f"queue.{how % 3}"
        info = await schedules.put(name, cron, f"{put.number}", queue=queue)
        if present is not None:
            present.until_ms = runtime.wall_ms()
        puts.append(put)
        assert info.next_ms % (put.every * _MINUTE_MS) == 0, f"{cron} is next at {info.next_ms}"

    async def pass_time(self, where: int, how: int, what: int) -> None:
        await asyncio.sleep(_PASSING_S)

    async def look(self, where: int, how: int, what: int) -> None:
        for topic, schedules in self.schedules.items():
            there = {each.name: int(each.message.text()) async for each in schedules.read()}
            puts = {name: self.puts[topic, name] for name in _NAMES if self.puts[topic, name]}
            assert there == {name: each[-1].number for name, each in puts.items() if not each[-1].deleted}
            came = Counter[tuple[str, int, int]]()
            for message in await self._messages(topic):
                properties = message.properties
                came[properties["schedule"], int(properties["scheduled_ms"]), int(message.text())] += 1
            self._compare(came, puts)

    async def _messages(self, topic: str) -> list[Message]:
        if topic == "ticks":
            return await all_of(self.client, topic)
        queues = [queue for queue in await self.client.queues(topic) if queue.count]
        if not queues:
            return []
        consumer = Consumer(self.client, topic, queues=[queue.name for queue in queues], start="earliest", wait_ms=200)
        return await read_to(consumer, {queue.number: queue.latest for queue in queues})

    def _compare(self, came: Counter[tuple[str, int, int]], all_puts: Mapping[str, list[Put]]) -> None:
        """With names, times and numbers."""
        now_ms = runtime.wall_ms()
        for name, puts in all_puts.items():
            mine = {(time_ms, number): count for (each, time_ms, number), count in came.items() if each == name}
            allowed = {(time_ms, put.number) for put in puts for time_ms in put.times(now_ms, _UNSURE_MS)}
            wanted = {(time_ms, put.number) for put in puts for time_ms in put.times(now_ms, -_UNSURE_MS)}
            assert mine.keys() <= allowed, f"{mine.keys() - allowed} came of {name}"
            assert wanted <= mine.keys(), f"{wanted - mine.keys()} did not come of {name}"
            assert all(count == 1 for count in mine.values()), f"of {name} came more than once {mine}"
            times = Counter(time_ms for time_ms, _ in mine)
            deleted = [put.until_ms for put in puts if put.deleted]
            for time_ms, count in times.items():
                again = sum(abs(time_ms - until_ms) <= _UNSURE_MS for until_ms in deleted)
                assert count <= 1 + again, f"{count} messages came of {name} at {time_ms}"

    async def settled(self) -> None:
        await self.look(0, 0, 0)
