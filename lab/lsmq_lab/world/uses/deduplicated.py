"""Two who send the same, each message with an id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, Producer
from lsmq.errors import LsmqError

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of


class Deduplicated(Use):
    """An id is stored once, and everybody who sends it is told the same place."""

    name = "deduplicated"
    topics: ClassVar[UsedTopics] = {"payments": {"queues": 2, "dedupe_window_ms": "forever"}}

    def roles(self) -> Sequence[UseRole]:
        self._places: dict[int, tuple[int, int]] = {}
        self._known = 1
        return [("payer1", self._pay), ("payer2", self._pay)]

    async def _pay(self, client: Client) -> None:
        async with Producer(client, "payments", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                self._known += self.random.random() < 0.4
                id = max(0, self._known - self.random.randint(0, 5))
                try:
                    sent = await producer.send_and_wait(str(id), dedupe_id=f"id-{id}")
                except LsmqError:
                    continue
                place = self._places.setdefault(id, (sent.queue, sent.offset))
                if place != (sent.queue, sent.offset):
                    self.wrong(f"id {id} was acknowledged at {place}, then at {(sent.queue, sent.offset)}")
                await self.load.pause(0.01, 0.15)

    async def read_back(self, client: Client) -> None:
        counts = Counter[int]()
        for message in await all_of(client, "payments"):
            id = int(message.text())
            counts[id] += 1
            if self._places.get(id, (message.queue, message.offset)) != (message.queue, message.offset):
                self.wrong(f"id {id} was acknowledged at {self._places[id]} and is at {message.queue, message.offset}")
        for id, count in counts.items():
            if count > 1:
                self.wrong(f"id {id} is stored {count} times")
        for id, place in self._places.items():
            if not counts[id]:
                self.wrong(f"id {id} was acknowledged at {place} and is not there")
        self.counted = counts.total()
