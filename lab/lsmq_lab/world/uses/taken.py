"""Producers of a group that take over from one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, GroupProducer, Message
from lsmq.errors import LsmqError

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of

_TOPIC, _QUEUES = "outbox", 3
_AT_ONCE = 5


class TakenOver(Use):
    """Each number is stored once, in its queue and in order, whoever has sent it how often."""

    name = "taken"
    topics: ClassVar[UsedTopics] = {_TOPIC: {"queues": _QUEUES}}

    def roles(self) -> Sequence[UseRole]:
        self._stored: set[int] = set()  # as somebody was told
        self._end = 1  # of the numbers that somebody has sent
        return [(f"deputy{number}", self._send) for number in (1, 2, 3)]

    async def _send(self, client: Client) -> None:
        """Until somebody else has taken over, or he has had enough."""
        while not self.load.stopping:
            try:
                async with self._producer(client) as producer:
                    next_one = self._begin(producer)
                    while not self.load.stopping and self.random.random() < 0.95:
                        end = next_one + self.random.randint(1, _AT_ONCE)
                        await self._send_all(producer, range(next_one, end))
                        next_one = end
                        await self.load.pause(0.0, 0.1)
            except LsmqError as error:
                self.load.cluster.note(f"deputy: {error.code}")
            await self.load.pause(0.1, 0.6)

    def _producer(self, client: Client) -> GroupProducer:
        return GroupProducer(client, _TOPIC, "deputies", deadline_ms=DEADLINE_MS, linger_ms=1)

    def _begin(self, producer: GroupProducer) -> int:
        """Behind what is stored everywhere, or some before that."""
        last = producer.last_acknowledged()
        if last is not None and last >= self._end:
            self.wrong(f"{last} is stored, and nobody has sent more than {self._end - 1}")
        return 1 if last is None else max(1, last + 1 - self.random.choice((0, 0, 4, 20)))

    async def _send_all(self, producer: GroupProducer, numbers: range) -> None:
        self._end = max(self._end, numbers.stop)
        receipts = [await producer.send(str(number), position=number, queue=number % _QUEUES) for number in numbers]
        for number, receipt in zip(numbers, receipts, strict=True):
            await receipt
            self._stored.add(number)

    async def read_back(self, client: Client) -> None:
        self._compare(await all_of(client, _TOPIC), self._stored)
        async with self._producer(client) as producer:
            await self._send_all(producer, range(self._begin(producer), self._end))
        self._compare(await all_of(client, _TOPIC), set(range(1, self._end)))
        self.counted = len(self._stored)

    def _compare(self, messages: Sequence[Message], stored: set[int]) -> None:
        for queue in range(_QUEUES):
            numbers = [int(message.text()) for message in messages if message.queue == queue]
            if numbers != list(range(queue or _QUEUES, max(numbers, default=0) + 1, _QUEUES)):
                self.wrong(f"queue {queue} has {numbers}")
            if lost := {number for number in stored if number % _QUEUES == queue} - set(numbers):
                self.wrong(f"{sorted(lost)} were acknowledged, and queue {queue} has {numbers}")
