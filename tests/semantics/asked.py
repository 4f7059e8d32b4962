"""Requests, of which several wait at a time, and replies to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq import Consumer
from lsmq.errors import TimedOut

from .area import Area, Life

_LATE_S = 0.6


class Asked(Area):
    """``stored``: numbers of requests, which are their bodies. ``ids``: which of them was sent with each first."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "asked": {"queues": 2, "dedupe_window_ms": "forever"},
        "answers": {"queues": 2},
    }
    deeds = ("ask", "ask", "ask_again", "ask_in_vain")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.stored: set[int] = set()
        self.ids: dict[str, int] = {}

    async def start(self) -> None:
        self.answering = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        """Some are answered late, and some more than once: the first answer counts."""
        async with Consumer(self.client, "asked", start="earliest", wait_ms=200) as consumer:
            async for message in consumer:
                number, _, late = message.text().partition(" ")
                if late:
                    await asyncio.sleep(_LATE_S)
                for again in range(1 + int(number) % 2):
                    await self.client.reply(message, f"{number} {again}")

    async def ask(self, where: int, how: int, what: int) -> None:
        """Several at a time."""
        await asyncio.gather(*(self._ask((where + at) % 2, None) for at in range(1 + how % 4)))

    async def _ask(self, queue: int, dedupe_id: str | None) -> None:
        number = self.life.number()
        more: dict[str, Any] = {} if dedupe_id is None else {"dedupe_id": dedupe_id}
        reply = await self.client.request(
            "asked", f"{number}", queue=queue, reply_topic="answers", timeout_ms=60_000, **more
        )
        if dedupe_id is not None:
            number = self.ids.setdefault(dedupe_id, number)
        self.stored.add(number)
        assert reply.text() == f"{number} 0", f"{number} was answered with {reply.text()}"

    async def ask_again(self, where: int, how: int, what: int) -> None:
        """What was asked before is not handled again."""
        await asyncio.gather(*(self._ask(0, f"{(what + at) % 3}") for at in range(1 + how % 2)))

    async def ask_in_vain(self, where: int, how: int, what: int) -> None:
        """The answer comes later, and is passed over."""
        number = self.life.number()
        try:
            await self.client.request("asked", f"{number} late", reply_topic="answers", timeout_ms=_LATE_S * 500)
        except TimedOut:
            return
        raise AssertionError(f"{number} was answered too soon, or with another answer")

    async def finish(self) -> None:
        self.answering.cancel()
        await asyncio.gather(self.answering, return_exceptions=True)
        texts = [each.text() for queue in (0, 1) for each in await self.life.read("asked", queue)]
        numbers = {int(text) for text in texts if " " not in text}
        assert numbers == self.stored, "each request is stored once"
