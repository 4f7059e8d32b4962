"""A topic whose queues have names, with messages, for tests of those who read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lsmq import Client, Consumer, Message, Producer

from .node_process import NodeProcess

NAMES = [f"agents.{number}.inbox" for number in range(10)]


@asynccontextmanager
async def named(node: NodeProcess, topic: str, *, each: int = 4) -> AsyncIterator[tuple[Client, Producer]]:
    """A topic in which each of ``NAMES`` has messages ``0`` to ``each``."""
    async with Client(node.url) as client:
        await client.create_topic(topic, queues="named")
        async with Producer(client, topic) as producer:
            for number in range(each):
                for name in NAMES:
                    await producer.send(f"{number}", queue=name)
            await producer.flush()
            yield client, producer


def by_name(messages: list[Message]) -> dict[str | None, list[str]]:
    """The bodies of each queue, in the order they came."""
    found: dict[str | None, list[str]] = defaultdict(list)
    for message in messages:
        found[message.queue_name].append(message.text())
    return found


async def nothing_more(consumer: Consumer) -> bool:
    return await consumer.poll(timeout_ms=150) == []
