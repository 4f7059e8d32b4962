"""Messages that expire, beside others that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, Consumer, Producer
from lsmq.errors import LsmqError

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of

_LONG_MS = 36_000_000


class ShortLived(Use):
    """None is delivered after its time, and none that has time left is missing."""

    name = "short-lived"
    expires = True
    topics: ClassVar[UsedTopics] = {"brief": {"queues": 2}}

    def roles(self) -> Sequence[UseRole]:
        self._lasting: set[int] = set()
        return [("brief", self._send), ("reader", self._read)]

    async def _send(self, client: Client) -> None:
        async with Producer(client, "brief", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                number, lasting = self.load.number(), self.random.random() < 0.5
                try:
                    ttl_ms = _LONG_MS if lasting else self.random.randint(1, 800)
                    await producer.send_and_wait(str(number), ttl_ms=ttl_ms)
                    if lasting:
                        self._lasting.add(number)
                except LsmqError:
                    pass
                await self.load.pause(0.01, 0.15)

    async def _read(self, client: Client) -> None:
        """Whoever reads along is given what lives."""
        while not self.load.stopping:
            try:
                async with Consumer(client, "brief", group="glances", session_ms=2_000, wait_ms=300) as consumer:
                    while not self.load.stopping:
                        await consumer.poll(50, timeout_ms=500)
                        await consumer.commit()
            except LsmqError:
                await asyncio.sleep(0.05)

    async def read_back(self, client: Client) -> None:
        await asyncio.sleep(1.0)
        now_ms = self.wall_ms
        found = set[int]()
        for message in await all_of(client, "brief"):
            number = int(message.text())
            if number in found:
                self.wrong(f"message {number} is stored twice")
            found.add(number)
            if message.expires_ms is None or message.expires_ms < now_ms:
                self.wrong(f"message {number} is delivered at {now_ms:.0f}, and has expired at {message.expires_ms}")
        if self._lasting - found:
            self.wrong(f"messages {sorted(self._lasting - found)[:5]} have hours to live and are not delivered")
        self.counted = len(found)
