"""Two subscribers of a group, and one who wants some messages only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, Message, Producer, PushConsumer
from lsmq.errors import LsmqError

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of

_CREDIT = 8


class Pushed(Use):
    """Each message comes to the group, and those that were picked, and no others, to who picked them.

    What is sent and not acknowledged never exceeds the credit.
    """

    name = "pushed"
    topics: ClassVar[UsedTopics] = {"feed": {"queues": 2}}

    def roles(self) -> Sequence[UseRole]:
        self._sent: dict[int, str] = {}
        self._come: dict[str, set[int]] = {"fans": set(), "critics": set()}
        self._left = 1
        return [
            ("feeder", self._send),
            ("fan1", lambda client: self._listen(client, "fans", None)),
            ("fan2", lambda client: self._listen(client, "fans", None)),
            ("critic", lambda client: self._listen(client, "critics", "even")),
        ]

    async def _send(self, client: Client) -> None:
        async with Producer(client, "feed", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                number = self.load.number()
                tag = "odd" if number % 2 else "even"
                try:
                    await producer.send_and_wait(str(number), tag=tag)
                    self._sent[number] = tag
                except LsmqError:
                    pass
                await self.load.pause(0.01, 0.1)

    async def _listen(self, client: Client, group: str, tag: str | None) -> None:
        while not self.load.stopping:
            try:
                async with PushConsumer(client, "feed", group=group, credit=_CREDIT, tag=tag) as consumer:
                    while not self.load.stopping and self.random.random() < 0.97:
                        messages = await consumer.poll(_CREDIT, timeout_ms=300)
                        self._take(group, tag, messages)
                        if self.random.random() < 0.8:
                            consumer.ack(*messages)
            except LsmqError as error:
                self.load.cluster.note(f"subscriber of {group}: {error.code}")
                await asyncio.sleep(0.05)

    def _take(self, group: str, tag: str | None, messages: list[Message]) -> None:
        self._come[group].update(int(message.text()) for message in messages)
        for message in messages:
            if tag is not None and message.tag != tag:
                self.wrong(f"message {message.text()} has the tag {message.tag}, and {group} wants {tag}")

    def _missing(self, group: str, tag: str | None) -> set[int]:
        return {number for number, its in self._sent.items() if tag in (None, its)} - self._come[group]

    async def read_back(self, client: Client) -> None:
        for group, tag in (("fans", None), ("critics", "even")):
            async with PushConsumer(client, "feed", group=group, tag=tag) as consumer:
                for _ in range(60):
                    if not self._missing(group, tag):
                        break
                    messages = await consumer.poll(100, timeout_ms=500)
                    self._take(group, tag, messages)
                    consumer.ack(*messages)
            if missing := self._missing(group, tag):
                self.wrong(f"messages {sorted(missing)[:5]} were acknowledged and never pushed to {group}")
        picked = [int(message.text()) for message in await all_of(client, "feed", tag="even")]
        if wrong := {number for number, tag in self._sent.items() if tag == "even"} - set(picked):
            self.wrong(f"who reads the even ones is not given {sorted(wrong)[:5]}")
        if wrong := {number for number in picked if number % 2}:
            self.wrong(f"who reads the even ones is given {sorted(wrong)[:5]}")
        self.counted = len(self._come["fans"])
