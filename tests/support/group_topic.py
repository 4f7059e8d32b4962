"""A topic for members of consumer groups, and what tests of consumers do all the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from lsmq import Client, Consumer, Message, Producer
from lsmq.groups import Ranges
from support.node_process import NodeProcess


@asynccontextmanager
async def filled(node: NodeProcess, topic: str, *, queues: int = 8, count: int = 80) -> AsyncIterator[Client]:
    """A topic in which message ``n`` has the body ``n`` and stands in queue ``n % queues``."""
    async with Client(node.url) as client:
        await client.create_topic(topic, queues=queues)
        await fill(client, topic, range(count), queues)
        yield client


async def fill(client: Client, topic: str, numbers: range, queues: int) -> None:
    async with Producer(client, topic) as producer:
        for number in numbers:
            await producer.send(f"{number}", queue=number % queues, key=f"{number % queues}")


def queues_of(assignment: Mapping[str, Ranges]) -> list[int]:
    return [queue for ranges in assignment.values() for part in ranges for queue in part]


async def take(consumer: Consumer, count: int) -> list[Message]:
    """Exactly ``count`` messages."""
    messages: list[Message] = []
    while len(messages) < count:
        messages += await consumer.poll(count - len(messages))
    return messages


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.body) for message in messages)


class Handler:
    """Remembers what it handled, and whether two of a queue were ever handled at a time."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.handled: list[Message] = []
        self.begun: list[Message] = []
        self.most = 0
        self.together: set[int] = set()
        self._now: list[int] = []
        self.pause_s = pause_s

    async def __call__(self, message: Message) -> None:
        self.begun.append(message)
        if message.queue in self._now:
            self.together.add(message.queue)
        self._now.append(message.queue)
        self.most = max(self.most, len(self._now))
        await asyncio.sleep(self.pause_s)
        self._now.remove(message.queue)
        self.handled.append(message)
