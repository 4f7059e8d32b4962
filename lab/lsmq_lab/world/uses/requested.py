"""Requests, and who answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from lsmq import Client, Message, WorkQueue
from lsmq.errors import LsmqError, ReceiptExpired

from .use import Use, UsedTopics, UseRole

_QUESTIONS, _ANSWERS = "questions", "answers"
_AT_ONCE = 3
_PATIENCE_MS = 4_000
_LAST_MS = 30_000
_AGAIN = 6


class Requested(Use):
    """Whoever asks is given the answer to what he asked; asking again under its id, he is in the end."""

    name = "requested"
    #: So few queues that clients share them.
    topics: ClassVar[UsedTopics] = {
        _QUESTIONS: {"queues": 2, "dedupe_window_ms": "forever"},
        _ANSWERS: {"queues": 2},
    }

    def roles(self) -> Sequence[UseRole]:
        self._asked: set[int] = set()
        self._answered: dict[int, set[str]] = {}  # what has been said, or may have been
        self._open: set[int] = set()  # nobody has been given an answer
        return [
            ("asker1", self._ask_on),
            ("asker2", self._ask_on),
            ("oracle1", self._answer_on),
            ("oracle2", self._answer_on),
        ]

    async def _ask_on(self, client: Client) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._ask_one_by_one(client))

    async def _ask_one_by_one(self, client: Client) -> None:
        while not self.load.stopping:
            number = self.load.number()
            self._asked.add(number)
            self._open.add(number)
            while number in self._open and not self.load.stopping:
                with suppress(LsmqError):
                    await self._ask(client, number, _PATIENCE_MS)
            await self.load.pause(0.01, 0.15)

    async def _ask(self, client: Client, number: int, timeout_ms: int) -> None:
        """Once more, perhaps."""
        reply = await client.request(
            _QUESTIONS, str(number), timeout_ms=timeout_ms, reply_topic=_ANSWERS, dedupe_id=f"question {number}"
        )
        self._open.discard(number)
        self.counted += 1
        if reply.text() not in self._answered.get(number, ()):
            self.wrong(f"question {number} is answered by {reply.text()!r}, said was {self._answered.get(number)}")

    async def _answer_on(self, client: Client) -> None:
        while not self.load.stopping:
            with suppress(LsmqError):
                async with WorkQueue(client, _QUESTIONS, "oracles", visibility_ms=1_000, wait_ms=300) as work:
                    await work.configure(max_deliveries=1_000)
                    while not self.load.stopping:
                        for task in await work.poll(4, timeout_ms=300):
                            if self.random.random() < 0.1:
                                continue  # It comes to somebody again.
                            await self._answer(client, task.message)
                            if self.random.random() < 0.9:
                                with suppress(ReceiptExpired):
                                    await task.ack()
                        await self.load.pause(0.0, 0.05)
            await asyncio.sleep(0.02)

    async def _answer(self, client: Client, message: Message) -> None:
        number = int(message.text())
        if number not in self._asked:
            self.wrong(f"question {number} comes, which nobody asked")
        text = f"{number} {self.load.number()}"
        self._answered.setdefault(number, set()).add(text)
        await client.reply(message, text)

    async def read_back(self, client: Client) -> None:
        """Whoever answers goes on until all are."""
        async with WorkQueue(client, _QUESTIONS, "oracles", visibility_ms=1_000, wait_ms=300) as work:
            await work.configure(max_deliveries=1_000)  # Nobody may have come to it.

            async def answer() -> None:
                async for task in work:
                    await self._answer(client, task.message)
                    with suppress(ReceiptExpired):
                        await task.ack()

            answering = asyncio.ensure_future(answer())
            # Of those that were answered some are asked again: what was said to them is kept.
            known = sorted(self._asked - self._open)
            again = self.random.sample(known, min(_AGAIN, len(known)))
            new = [self.load.number() for _ in range(_AGAIN)]
            self._asked.update(new)
            for number in (*sorted(self._open), *again, *new):
                try:
                    await self._ask(client, number, _LAST_MS)
                except LsmqError as error:
                    self.wrong(f"question {number}, to which {self._answered.get(number)} was said, ends in {error!r}")
                    break
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering
