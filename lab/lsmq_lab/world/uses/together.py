"""Producers of many small topics in one client, whose batches travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import ClassVar

from lsmq import Client, Producer
from lsmq.errors import LsmqError

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of

_NAMES = tuple(f"small-{number}" for number in range(4))


class Together(Use):
    """Each message that was acknowledged is stored once, where its receipt says, and in the order of its producer."""

    name = "together"
    topics: ClassVar[UsedTopics] = {name: {"queues": 1} for name in _NAMES}

    def roles(self) -> Sequence[UseRole]:
        self._sent: dict[str, list[int]] = {name: [] for name in _NAMES}
        self._places: dict[int, tuple[str, int, int]] = {}  # of those that were acknowledged
        return [("small", self._send)]

    async def _send(self, client: Client) -> None:
        async with AsyncExitStack() as scope:
            producers = {
                name: await scope.enter_async_context(Producer(client, name, deadline_ms=DEADLINE_MS))
                for name in _NAMES
            }
            while not self.load.stopping:
                some = self.random.sample(_NAMES, self.random.randint(1, len(_NAMES)))
                await asyncio.gather(*(self._one(name, producers[name]) for name in some))
                await self.load.pause(0.01, 0.1)

    async def _one(self, name: str, producer: Producer) -> None:
        number = self.load.number()
        self._sent[name].append(number)
        try:
            stored = await producer.send_and_wait(str(number))
            self._places[number] = name, stored.queue, stored.offset
        except LsmqError:
            pass

    async def read_back(self, client: Client) -> None:
        for name, sent in self._sent.items():
            found = {}
            numbers = []
            for message in await all_of(client, name):
                numbers.append(int(message.text()))
                found[numbers[-1]] = name, message.queue, message.offset
            if len(found) < len(numbers):
                self.wrong(f"topic {name} has messages twice: {numbers}")
            if numbers != [number for number in sent if number in found]:
                self.wrong(f"topic {name} has {numbers} in another order than they were sent")
            for number in sent:
                place = self._places.get(number)
                if place is not None and found.get(number) != place:
                    self.wrong(f"message {number} was stored at {place}, and is at {found.get(number)}")
            self.counted += len(found)
