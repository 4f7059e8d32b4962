"""A topic that keeps the last message of each key, while keys are written again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, Producer
from lsmq.errors import LsmqError

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of, text_of

_KEYS = 3


class Compacted(Use):
    """The last message of each key is there, whatever went before it."""

    name = "compacted"
    topics: ClassVar[UsedTopics] = {"table": {"queues": 2, "cleanup": "compact"}}

    def roles(self) -> Sequence[UseRole]:
        self._last: dict[str, int | None] = {}
        self._unknown: dict[str, set[int | None]] = {}
        return [("table1", self._write), ("table2", self._write)]

    async def _write(self, client: Client) -> None:
        name = self.load.cluster.world.scheduler.process.name
        keys = [f"{name}-{number}" for number in range(_KEYS)]
        async with Producer(client, "table", deadline_ms=DEADLINE_MS, linger_ms=1) as producer:
            while not self.load.stopping:
                key, number = self.random.choice(keys), self.load.number()
                gone = self.random.random() < 0.1
                try:
                    if gone:
                        await producer.send_and_wait("", key=key, delete=True)
                    else:
                        await producer.send_and_wait(f"{number} {'x' * self.random.randrange(200)}", key=key)
                    self._last[key] = None if gone else number
                except LsmqError:
                    self._unknown.setdefault(key, set()).add(None if gone else number)
                await self.load.pause(0.0, 0.04)

    async def read_back(self, client: Client) -> None:
        ends = await client.offsets("table")
        messages = await all_of(client, "table")
        seen: dict[str, int | None] = {}
        for message in messages:
            seen[text_of(message.key) or ""] = None if message.delete else int(message.text().split()[0])
        for key, last in self._last.items():
            told = await client.latest("table", key)
            found = None if told is None else int(told.text().split()[0])
            if key not in seen or seen[key] != found:
                self.wrong(f"the last message of {key} is {found}, and who reads the topic sees {seen.get(key)}")
            if found != last and found not in self._unknown.get(key, ()):
                self.wrong(f"the last message of {key} is {found}, and {last} was acknowledged after it")
        self.counted = sum(ends.latest) - len(messages)
