"""A message on which somebody waits, or begins to wait as it comes; and no other comes after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from lsmq import Client, Consumer, Message, Producer, PushConsumer, ReceiptExpired, TransactionalProducer, WorkQueue

from .use import Use, UsedTopics, UseRole

_TAG = "loud"
_NAME = "inbox.of.ann"
_ROUNDS = 10
#: Nobody asks again by himself within that.
_HELD_MS = 60_000
_LIMIT_S = 15.0
_ABOUT_S = 0.03
_MOST_DELAY_MS = 60


class Awaited(Use):
    """When all is calm, what comes alone comes to everybody, and nobody has to ask again."""

    name = "awaited"
    topics: ClassVar[UsedTopics] = {}

    def roles(self) -> Sequence[UseRole]:
        return []

    async def read_back(self, client: Client) -> None:
        waiting = {
            "worker": self._work,
            "worker who picks": self._pick,
            "reader": self._read,
            "member": self._join,
            "subscriber": self._listen,
        }
        for number in range(_ROUNDS):
            topic, named = f"awaited-{number}", self.random.random() < 0.5
            await client.create_topic(topic, queues="named" if named else 2)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(client, topic, {"queue": _NAME} if named else {}))
                for who, wait in waiting.items():
                    tasks.create_task(self._wait(who, wait, client, topic))
        self.counted = _ROUNDS

    async def _send(self, client: Client, topic: str, where: dict[str, Any]) -> None:
        await self._soon()
        if self.random.random() < 0.25:
            async with TransactionalProducer(client, f"of-{topic}") as sender, sender.transaction() as transaction:
                await transaction.send(topic, "hello", tag=_TAG, **where)
            return
        delay_ms = self.random.choice((None, None, self.random.randint(1, _MOST_DELAY_MS)))
        if self.load.cluster.clocks_were_wrong:
            delay_ms = None  # The time of a shard stands still until a clock that was ahead is right.
        async with Producer(client, topic) as producer:
            await producer.send_and_wait("hello", tag=_TAG, delay_ms=delay_ms, **where)

    async def _soon(self) -> None:
        await asyncio.sleep(self.random.uniform(0.0, _ABOUT_S))

    async def _wait(self, who: str, wait: Callable[[Client, str], Awaitable[None]], client: Client, topic: str) -> None:
        await self._soon()
        try:
            async with asyncio.timeout(_LIMIT_S):
                await wait(client, topic)
        except TimeoutError:
            self.wrong(f"a {who} waits for the message of {topic}, and it does not come")

    async def _work(self, client: Client, topic: str, tag: str | None = None) -> None:
        async with WorkQueue(client, topic, tag or "all", wait_ms=_HELD_MS, tag=tag) as work:
            while True:
                [task] = await work.poll(1)
                with suppress(ReceiptExpired):  # Calm as it is, the shard may be given another leader.
                    return await task.ack()

    async def _pick(self, client: Client, topic: str) -> None:
        await self._work(client, topic, _TAG)

    async def _read(self, client: Client, topic: str) -> None:
        async with Consumer(client, topic, wait_ms=_HELD_MS, read_from="leader") as consumer:
            await self._until(consumer.poll)

    async def _join(self, client: Client, topic: str) -> None:
        async with Consumer(client, topic, group="members", wait_ms=_HELD_MS) as consumer:
            await self._until(consumer.poll)

    async def _listen(self, client: Client, topic: str) -> None:
        async with PushConsumer(client, topic, group="subscribers") as consumer:
            await self._until(consumer.poll)

    @staticmethod
    async def _until(poll: Callable[[], Awaitable[list[Message]]]) -> None:
        while not await poll():
            pass
