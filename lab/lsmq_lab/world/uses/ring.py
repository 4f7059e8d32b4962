"""Queues that hold so many messages, and are trimmed beside that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, Consumer, Producer
from lsmq.errors import LsmqError, OffsetOutOfRange

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of

_QUEUES, _KEPT = 2, 30
_AT_ONCE = 5


class Ring(Use):
    """Below where a queue was trimmed nothing is shown; above nothing is missing but what was too much."""

    name = "ring"
    topics: ClassVar[UsedTopics] = {"ring": {"queues": _QUEUES, "queue_max_messages": _KEPT, "overflow": "drop_oldest"}}

    def roles(self) -> Sequence[UseRole]:
        self._places: dict[tuple[int, int], int] = {}
        self._trimmed = [0] * _QUEUES  # as it was acknowledged
        self._asked = [0] * _QUEUES  # as somebody has tried
        self._ends = [0] * _QUEUES
        return [("ring", self._send), ("trimmer", self._trim), ("looker", self._look)]

    async def _send(self, client: Client) -> None:
        async with Producer(client, "ring", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                numbers, queue = [self.load.number() for _ in range(_AT_ONCE)], self.random.randrange(_QUEUES)
                try:
                    receipts = [await producer.send(str(number), queue=queue) for number in numbers]
                    for number, receipt in zip(numbers, receipts, strict=True):
                        sent = await receipt
                        self._places[queue, sent.offset] = number
                        self._ends[queue] = max(self._ends[queue], sent.offset + 1)
                except LsmqError:
                    pass
                await self.load.pause(0.0, 0.12)

    async def _trim(self, client: Client) -> None:
        while not self.load.stopping:
            queue = self.random.randrange(_QUEUES)
            before = max(0, self._ends[queue] - self.random.randrange(2 * _KEPT))
            self._asked[queue] = max(self._asked[queue], before)
            try:
                await client.trim_topic("ring", {queue: before})
                self._trimmed[queue] = max(self._trimmed[queue], before)
            except OffsetOutOfRange:
                self.wrong(f"queue {queue} ends before {before}, which was acknowledged")
            except LsmqError:
                pass
            await self.load.pause(0.1, 0.5)

    async def _look(self, client: Client) -> None:
        while not self.load.stopping:
            floor = list(self._trimmed)
            try:
                async with Consumer(client, "ring", wait_ms=100, read_from="leader") as consumer:
                    for message in await consumer.poll(20, timeout_ms=300):
                        if message.offset < floor[message.queue]:
                            self.wrong(f"{message.queue, message.offset} is shown after a trim to {floor}")
            except LsmqError:
                pass
            await self.load.pause(0.05, 0.3)

    async def read_back(self, client: Client) -> None:
        ends = await client.offsets("ring")
        shown = {(message.queue, message.offset): int(message.text()) for message in await all_of(client, "ring")}
        for queue, first, end in zip(ends.queues, ends.earliest, ends.latest, strict=True):
            if first < self._trimmed[queue]:
                self.wrong(f"queue {queue} begins at {first} after a trim to {self._trimmed[queue]}")
            if first > max(self._asked[queue], end - _KEPT):
                self.wrong(f"queue {queue} begins at {first} of {end}, trimmed to {self._asked[queue]} at most")
            if end - first > _KEPT:
                self.wrong(f"queue {queue} holds {end - first} messages, at most {_KEPT}")
            for offset in range(first, end):
                number = shown.get((queue, offset))
                if number is None:
                    self.wrong(f"{queue, offset} is not shown, and the queue begins at {first}")
                elif self._places.get((queue, offset), number) != number:
                    self.wrong(f"{queue, offset} is {number}, and was {self._places[queue, offset]}")
            if end < self._ends[queue]:
                self.wrong(f"queue {queue} ends at {end}, and {self._ends[queue]} was acknowledged")
        self.counted = len(self._places)
