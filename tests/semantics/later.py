"""Messages that come later, and are cancelled or moved before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import DelayedMessages
from lsmq.errors import AlreadyDelivered
from lsmq.messages import due_of_id
from lsmq_lab.world.uses.use import all_of

from .area import DAY_MS, Area, Life

_SOON_MS = 1_500


@dataclass
class Waiting:
    """A message that is to come: soon, or on another day. ``id`` is what the cluster calls it."""

    number: int
    id: str
    soon: bool
    due_ms: int


class Later(Area):
    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"later": {"queues": 1}}
    deeds = ("delay", "delay", "delay", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.delayed = DelayedMessages(self.client, "later")
        self.known: list[Waiting] = []
        self.cancelled: set[int] = set()

    async def delay(self, where: int, how: int, what: int) -> None:
        soon = how % 2 == 0
        delay_ms = 1 + what * 10 % _SOON_MS if soon else DAY_MS + what
        if where % 3 == 0 or not self.known:
            number = self.life.number()
            sent = await self.life.send("later", f"{number}", delay_ms=delay_ms)
            assert sent.due_ms is not None
            self.known.append(Waiting(number, sent.id, soon, sent.due_ms))
            return
        message = self.known[what % len(self.known)]
        try:
            if where % 3 == 1:
                await self.delayed.cancel(message.id)
                self.known.remove(message)
                self.cancelled.add(message.number)
            else:
                moved = await self.delayed.reschedule(message.id, delay_ms=delay_ms)
                message.id, message.soon, message.due_ms = moved.id, soon, due_of_id(moved.id) or 0
        except AlreadyDelivered:
            assert message.soon, "what is due on another day was delivered"

    async def look(self, where: int, how: int, what: int) -> None:
        await self._look(settled=False)

    async def _look(self, *, settled: bool) -> None:
        """Nothing is sent meanwhile; what comes between the two looks was seen waiting, or comes with the second."""
        pending = {int(each.message.text()) async for each in self.delayed.read()}
        came = {int(message.text()): message.stored_ms for message in await all_of(self.client, "later")}
        waiting = pending - came.keys()
        known = {message.number: message for message in self.known}
        assert not self.cancelled & came.keys(), "a cancelled message came"
        for number, stored_ms in came.items():
            assert known[number].soon and stored_ms >= known[number].due_ms, "a message came before it was due"
        assert waiting == known.keys() - came.keys(), "what has not come waits, once"
        if settled:
            assert not any(known[number].soon for number in waiting), "what is due has come"

    async def settled(self) -> None:
        await self._look(settled=True)
