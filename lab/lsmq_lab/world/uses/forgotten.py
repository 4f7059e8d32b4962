"""Names of queues that are forgotten as they are empty, and used again, by several clients at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, Consumer, Message, Producer
from lsmq.errors import LsmqError

from .use import DEADLINE_MS, Use, UsedTopics, UseRole

#: Many, each used seldom: so that they are forgotten, and something comes to them at any moment of that.
_NAMES = tuple(f"fleeting.{number}" for number in range(40))
_AT_ONCE = 3
_EMPTY_MS = 300
_SHORT_MS = 200
_PROMPT_S = 0.05  # in which nothing is tried twice
_LOOKS = 60


class Forgotten(Use):
    """What was acknowledged comes to its group before it goes; names of queues in which nothing is left go as well."""

    name = "forgotten"
    expires = True
    topics: ClassVar[UsedTopics] = {
        "fleeting": {"queues": "named", "forget_empty_ms": _EMPTY_MS, "delete_consumed": True}
    }

    def roles(self) -> Sequence[UseRole]:
        self._sent: dict[str, dict[int, int | None]] = {name: {} for name in _NAMES}  # offsets, once they are known
        self._lasting: set[int] = set()  # acknowledged
        self._perhaps: set[int] = set()  # somebody has tried to trim them
        self._late = dict.fromkeys(_NAMES, 0)  # below it, it may be trimmed at any time
        self._come: set[int] = set()
        return [
            ("fleeting1", self._send),
            ("fleeting2", self._send),
            ("emptier", self._empty),
            ("follower", self._join),
            ("passer-by", self._watch),
        ]

    async def _send(self, client: Client) -> None:
        async with Producer(client, "fleeting", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                names = self.random.sample(_NAMES, self.random.randint(1, _AT_ONCE))
                await asyncio.gather(*(self._send_one(producer, name) for name in names))
                await self.load.pause(0.05, 0.25)

    async def _send_one(self, producer: Producer, name: str) -> None:
        number, short = self.load.number(), self.random.random() < 0.2
        self._sent[name][number] = None
        try:
            ttl_ms = _SHORT_MS if short else None
            sent = await producer.send_and_wait(f"{name} {number}", queue=name, ttl_ms=ttl_ms)
            self._sent[name][number] = sent.offset
            if not short:
                self._lasting.add(number)
        except LsmqError:
            pass

    async def _empty(self, client: Client) -> None:
        while not self.load.stopping:
            name, before = self.random.choice(_NAMES), 0
            began_s = asyncio.get_running_loop().time()
            try:
                before = (await client.queue("fleeting", name)).latest
                began_s = asyncio.get_running_loop().time()
                await client.trim_queue("fleeting", name, before)
            except LsmqError:
                pass
            for number, offset in self._sent[name].items():
                if offset is None or offset < before:
                    self._perhaps.add(number)
            if asyncio.get_running_loop().time() - began_s > _PROMPT_S:  # An attempt may be under way still.
                self._late[name] = max(before, self._late[name])
            await self.load.pause(0.05, 0.3)

    async def _join(self, client: Client) -> None:
        while not self.load.stopping:
            try:
                async with Consumer(client, "fleeting", group="followers", session_ms=2_000, wait_ms=300) as consumer:
                    while not self.load.stopping and self.random.random() < 0.97:
                        self._look(await consumer.poll(100, timeout_ms=300))
                        if self.random.random() < 0.7:
                            await consumer.commit()
                        if self.random.random() < 0.2:  # What has come waits, longer than queues may be empty.
                            await asyncio.sleep(self.random.uniform(0.5, 2.5))
            except LsmqError:
                await asyncio.sleep(0.05)

    async def _watch(self, client: Client) -> None:
        """One queue by its name, which goes and comes again meanwhile."""
        while not self.load.stopping:
            try:
                name = self.random.choice(_NAMES)
                async with Consumer(client, "fleeting", queues=[name], wait_ms=300) as consumer:
                    while not self.load.stopping and self.random.random() < 0.9:
                        self._see(await consumer.poll(20, timeout_ms=300), name)
            except LsmqError:
                await asyncio.sleep(0.05)

    def _look(self, messages: Sequence[Message]) -> None:
        self._see(messages)
        self._come.update(int(message.text().split()[1]) for message in messages)

    def _see(self, messages: Sequence[Message], wanted: str | None = None) -> None:
        for message in messages:
            name, number = message.text().split()
            if message.queue_name != name or wanted not in (None, name):
                self.wrong(f"message {number} to {name} comes from {message.queue_name} to who reads {wanted or 'all'}")

    def _missing(self) -> set[int]:
        late = {
            number
            for name, sent in self._sent.items()
            for number, offset in sent.items()
            if offset is not None and offset < self._late[name]
        }
        return self._lasting - self._come - self._perhaps - late

    async def read_back(self, client: Client) -> None:
        left: list[str] = []
        async with Consumer(client, "fleeting", group="followers", session_ms=2_000, wait_ms=300) as consumer:
            for _ in range(_LOOKS):
                self._look(await consumer.poll(100, timeout_ms=500))
                await consumer.commit()
                left = [queue.name for queue in await client.queues("fleeting")]
                if not left:
                    break
        if missing := self._missing():
            self.wrong(f"messages {sorted(missing)[:5]} were acknowledged, and never came")
        if left:
            self.wrong(f"{left} have been empty, and are not forgotten")
        self.counted = len(self._come)
