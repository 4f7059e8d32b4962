"""Messages that come later, some of them cancelled or put at another time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from lsmq import Client, DelayedMessages, Producer
from lsmq.errors import AlreadyDelivered, LsmqError, UnknownMessage
from lsmq.messages import due_of_id

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of

_LATEST_MS = 1_500
_PROMPT_S = 0.05  # in which nothing is tried twice


class Delayed(Use):
    """What was acknowledged comes once, not before its time, unless its cancellation was acknowledged: then never."""

    name = "delayed"
    topics: ClassVar[UsedTopics] = {"later": {"queues": 2}}
    _fates: ClassVar[Mapping[str, Sequence[int]]] = {"stored": (1,), "cancelled": (0,), "unknown": (0, 1)}

    def roles(self) -> Sequence[UseRole]:
        self._fate: dict[int, str] = {}
        self._due_ms: dict[int, int] = {}
        return [("later", self._send)]

    async def _send(self, client: Client) -> None:
        delayed, pending = DelayedMessages(client, "later"), list[tuple[int, str]]()
        async with Producer(client, "later", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                number = self.load.number()
                self._fate[number] = "unknown"
                try:
                    sent = await producer.send_and_wait(str(number), delay_ms=self.random.randint(20, _LATEST_MS))
                except LsmqError:
                    pass
                else:
                    self._fate[number], self._due_ms[number] = "stored", sent.due_ms or 0
                    pending.append((number, sent.id))
                if pending and self.random.random() < 0.3:
                    await self._change(delayed, *pending.pop(self.random.randrange(len(pending))))
                await self.load.pause(0.01, 0.15)

    async def _change(self, delayed: DelayedMessages, number: int, id: str) -> None:
        if self.random.random() < 0.5:
            began_s = asyncio.get_running_loop().time()
            try:
                await delayed.cancel(id)
                self._fate[number] = "cancelled"
            except AlreadyDelivered:
                if asyncio.get_running_loop().time() - began_s > _PROMPT_S:
                    self._fate[number] = "unknown"  # An attempt whose answer was lost may have cancelled it.
            except LsmqError as error:
                if isinstance(error, UnknownMessage):
                    self.wrong(f"message {number} is not known before it has come")
                self._fate[number] = "unknown"
            return
        self._due_ms.pop(number, None)
        try:
            sent = await delayed.reschedule(id, delay_ms=self.random.randint(20, _LATEST_MS))
            self._due_ms[number] = due_of_id(sent.id) or 0
        except LsmqError:  # It may be under an id that nobody was told.
            pass

    async def read_back(self, client: Client) -> None:
        missing: list[str] = []
        for _ in range(40):
            await asyncio.sleep(0.25)
            missing = await self._look(client)
            if not missing:
                return
        for each in missing:
            self.wrong(each)

    async def _look(self, client: Client) -> list[str]:
        """What is missing: not for ever where it is to come soon, or comes just now."""
        pending, soon = Counter[int](), 0
        now_ms = self.wall_ms
        async for message in DelayedMessages(client, "later").read():
            pending[int(message.message.text())] += 1
            # What a wrong clock has put off for hours may wait.
            soon += message.due_ms < now_ms + 2 * _LATEST_MS
        come = Counter[int]()
        for arrived in await all_of(client, "later"):
            number = int(arrived.text())
            come[number] += 1
            if arrived.stored_ms < self._due_ms.get(number, 0):
                self.wrong(f"message {number} came at {arrived.stored_ms} and was due at {self._due_ms[number]}")
        missing = []
        for number, fate in self._fate.items():
            if come[number] > max(self._fates[fate]):
                self.wrong(f"message {number} was {fate}, and came {come[number]} times")
            elif come[number] + pending[number] not in self._fates[fate]:
                missing.append(f"message {number} was {fate}, came {come[number]}x and waits {pending[number]}x")
        if soon:
            missing.append(f"{soon} messages wait that are due, or are soon")
        self.counted = come.total()
        return missing if not self.load.cluster.problems else []
