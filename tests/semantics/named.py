"""Queues by name: there once written to, listed, read by pattern, deleted, forgotten once they are empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq import Consumer
from lsmq.queue_names import compile_pattern
from lsmq_lab.world.uses.use import read_to

from .area import Area, Life

NAMES = ("ann", "bob", "c.d")
_PATTERNS = ("**", "*", "c.*", "bob")
#: So often in a row nothing comes to whoever reads a pattern, before all has come.
_MOST_EMPTY_POLLS = 60


class Named(Area):
    """``names`` and ``fleeting``: the numbers in each queue of the two topics. Names of the latter are forgotten."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "names": {"queues": "named"},
        "fleeting": {"queues": "named", "forget_empty_ms": 2_000},
    }
    deeds = ("name", "name", "name", "empty", "empty", "look", "follow")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.names: dict[str, list[int]] = {}
        self.fleeting: dict[str, list[int]] = {}

    async def name(self, where: int, how: int, what: int) -> None:
        name = NAMES[where % 3]
        if how % 4 == 0:
            await self.client.delete_queue("names", name, missing_ok=True)
            self.names.pop(name, None)
        else:
            await self._write("names", name, self.names)

    async def empty(self, where: int, how: int, what: int) -> None:
        name = NAMES[where % 2]
        if how % 3:
            await self._write("fleeting", name, self.fleeting)
        elif name in self.fleeting:
            latest = (await self.client.queue("fleeting", name)).latest
            await self.client.trim_queue("fleeting", name, latest)
            del self.fleeting[name]

    async def _write(self, topic: str, name: str, known: dict[str, list[int]]) -> None:
        number = self.life.number()
        await self.life.send(topic, f"{number}", queue=name)
        known.setdefault(name, []).append(number)

    async def look(self, where: int, how: int, what: int) -> None:
        if where % 2:
            assert await self._found("names") == self.names
        else:
            found = await self._found("fleeting")
            assert {name: numbers for name, numbers in found.items() if numbers} == self.fleeting

    async def _found(self, topic: str) -> dict[str, list[int]]:
        """All queues with names, and the numbers in each."""
        found: dict[str, list[int]] = {}
        for queue in await self.client.queues(topic):
            consumer = Consumer(self.client, topic, queues=[queue.name], start="earliest", wait_ms=200)
            messages = await read_to(consumer, {queue.number: queue.latest} if queue.count else {})
            found[queue.name] = [int(message.text()) for message in messages]
        return found

    async def follow(self, where: int, how: int, what: int) -> None:
        """Read all queues of a pattern."""
        pattern = _PATTERNS[how % len(_PATTERNS)]
        names = {name: numbers for name, numbers in self.names.items() if compile_pattern(pattern).fullmatch(name)}
        wanted = Counter(number for numbers in names.values() for number in numbers)
        came: Counter[int] = Counter()
        empty = 0
        async with Consumer(self.client, "names", pattern=pattern, start="earliest", wait_ms=200) as consumer:
            while came.total() < wanted.total() and empty < _MOST_EMPTY_POLLS:
                messages = await consumer.poll(timeout_ms=1_000)
                came.update(int(message.text()) for message in messages)
                empty = 0 if messages else empty + 1
            came.update(int(message.text()) for message in await consumer.poll(timeout_ms=500))
        assert came == wanted, f"{wanted - came} did not come by {pattern}, and {came - wanted} should not"

    async def settled(self) -> None:
        assert await self._found("fleeting") == self.fleeting, "names of empty queues are forgotten"

    async def finish(self) -> None:
        for where in range(2):
            await self.look(where, 0, 0)
        for how in range(len(_PATTERNS)):
            await self.follow(0, how, 0)
