"""Messages that go as all groups have consumed them, each at its own speed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from lsmq import Client, Consumer, Message, Producer
from lsmq.errors import LsmqError
from lsmq.groups import Group

from .use import DEADLINE_MS, Use, UsedTopics, UseRole

_QUEUES = 2
_MEMBERS, _ALONE, _VISITOR = "members", "alone", "visitor"
#: A new group is known of by then.
_KNOWN_S = 1.5
_LOOKS = 60


class Consumed(Use):
    """Nothing goes that a group has not committed yet, so each message comes to each; what all have committed goes."""

    name = "consumed"
    topics: ClassVar[UsedTopics] = {"eaten": {"queues": _QUEUES, "delete_consumed": True}}

    def roles(self) -> Sequence[UseRole]:
        self._known = False  # whether the groups have committed where they begin, so that they count
        self._sent: set[int] = set()
        self._come: dict[str, set[int]] = {_MEMBERS: set(), _ALONE: set()}
        #: By group and queue, the highest offset that somebody has tried to commit.
        self._tried = {_MEMBERS: [0] * _QUEUES, _ALONE: [0] * _QUEUES}
        return [
            ("cook", self._send),
            ("eater", self._join),
            ("loner", self._read_alone),
            ("visitor", self._visit),
            ("weigher", self._weigh),
        ]

    async def _send(self, client: Client) -> None:
        while not self._known and not self.load.stopping:
            try:
                for group in self._come:
                    await client.commit_offsets(group, "eaten", dict.fromkeys(range(_QUEUES), 0))
                self._known = True
            except LsmqError:
                await asyncio.sleep(0.05)
        async with Producer(client, "eaten", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                number = self.load.number()
                try:
                    await producer.send_and_wait(str(number))
                    self._sent.add(number)
                except LsmqError:
                    pass
                await self.load.pause(0.0, 0.08)

    async def _join(self, client: Client) -> None:
        while not self.load.stopping:
            try:
                async with Consumer(client, "eaten", group=_MEMBERS, session_ms=2_000, wait_ms=300) as consumer:
                    while self._known and not self.load.stopping and self.random.random() < 0.97:
                        self._take(_MEMBERS, await consumer.poll(self.random.randint(1, 20), timeout_ms=300))
                        if self.random.random() < 0.5:
                            await consumer.commit()
                        await self.load.pause(0.0, 0.1)
            except LsmqError:
                await asyncio.sleep(0.05)

    def _take(self, group: str, messages: Sequence[Message]) -> None:
        for message in messages:
            self._come[group].add(int(message.text()))
            self._tries(group, message.queue, message.offset + 1)

    def _tries(self, group: str, queue: int, offset: int) -> None:
        self._tried[group][queue] = max(offset, self._tried[group][queue])

    async def _read_alone(self, client: Client) -> None:
        """It commits less than it has read."""
        while not self.load.stopping:
            try:
                committed = await client.committed_offsets(_ALONE, "eaten")
                async with Consumer(client, "eaten", start=committed, wait_ms=300, read_from="leader") as consumer:
                    while self._known and not self.load.stopping and self.random.random() < 0.95:
                        for message in await consumer.poll(20, timeout_ms=300):
                            self._come[_ALONE].add(int(message.text()))
                        if self.random.random() < 0.3:
                            queue = self.random.randrange(_QUEUES)
                            position = consumer.positions.get(queue, 0)
                            offset = self.random.randint(min(committed.get(queue, 0), position), position)
                            self._tries(_ALONE, queue, offset)
                            await client.commit_offsets(_ALONE, "eaten", {queue: offset})
                        await self.load.pause(0.0, 0.2)
            except LsmqError:
                await asyncio.sleep(0.05)

    async def _visit(self, client: Client) -> None:
        """A group that comes, reads nothing, and goes: what was there when it was known of stays meanwhile."""
        visitor = Group(client, _VISITOR)
        while not self.load.stopping:
            try:
                await client.commit_offsets(_VISITOR, "eaten", dict.fromkeys(range(_QUEUES), 0))
                await asyncio.sleep(_KNOWN_S)
                before = (await client.offsets("eaten")).earliest
                await self.load.pause(0.1, 0.4)
                after = (await client.offsets("eaten")).earliest
                if after != before:
                    self.wrong(f"queues began at {before}, and at {after} while a group had committed nothing")
            except LsmqError:
                pass
            with suppress(LsmqError):
                await visitor.delete()
            await self.load.pause(0.0, 0.4)

    async def _weigh(self, client: Client) -> None:
        while not self.load.stopping:
            try:
                earliest = (await client.offsets("eaten")).earliest
            except LsmqError:
                earliest = []
            for queue, first in enumerate(earliest):
                self._look_at_start(queue, first)
            await self.load.pause(0.05, 0.2)

    def _look_at_start(self, queue: int, first: int) -> None:
        for group, tried in self._tried.items():
            if first > tried[queue]:
                self.wrong(f"queue {queue} begins at {first}, and {group} have committed {tried[queue]} at most")

    async def read_back(self, client: Client) -> None:
        await Group(client, _VISITOR).delete()
        async with Consumer(client, "eaten", group=_MEMBERS, session_ms=2_000, wait_ms=300) as consumer:
            for _ in range(_LOOKS):
                self._take(_MEMBERS, await consumer.poll(100, timeout_ms=500))
                await consumer.commit()
                if self._sent <= self._come[_MEMBERS]:
                    break
        committed = await client.committed_offsets(_ALONE, "eaten")
        async with Consumer(client, "eaten", start=committed, wait_ms=300) as consumer:
            for _ in range(_LOOKS):
                if self._sent <= self._come[_ALONE]:
                    break
                self._come[_ALONE].update(int(message.text()) for message in await consumer.poll(100, timeout_ms=500))
        for group, come in self._come.items():
            if missing := self._sent - come:
                self.wrong(f"messages {sorted(missing)[:5]} were acknowledged, and never came to {group}")
        await self._see_all_go(client)
        self.counted = len(self._sent)

    async def _see_all_go(self, client: Client) -> None:
        """Once all have committed all there is."""
        for queue, (_, first, latest) in enumerate((await client.offsets("eaten")).rows()):
            self._look_at_start(queue, first)
            for group in self._tried:
                self._tries(group, queue, latest)
        for group in self._tried:
            await client.commit_offsets(group, "eaten", dict(enumerate(self._tried[group])))
        for _ in range(_LOOKS):
            ends = await client.offsets("eaten")
            if list(ends.earliest) == list(ends.latest):
                return
            await asyncio.sleep(0.5)
        self.wrong(f"queues begin at {ends.earliest} of {ends.latest}, and all groups have committed all")
