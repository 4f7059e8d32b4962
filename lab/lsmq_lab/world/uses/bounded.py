"""Queues that hold so many bytes: the oldest make room, or what is new is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, Producer
from lsmq.errors import LsmqError, TimedOut

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of

_MOST, _QUEUES = 3_000, 2
#: Of what is gone so much may count as being there.
_PIECE = _MOST // 32
_SIZES = (40, 90, 200, 700, 1_500)
#: A leader has counted by then what queues had that were written to.
_COUNT_S = 3.0
_TRIES = 4


class Bounded(Use):
    """What has room is taken, and stays; once a leader has counted a queue, what has none is not."""

    name = "bounded"
    topics: ClassVar[UsedTopics] = {
        "bounded-ring": {"queues": _QUEUES, "queue_max_bytes": _MOST, "overflow": "drop_oldest"},
        "bounded-tight": {"queues": 1, "queue_max_bytes": _MOST},
    }

    def roles(self) -> Sequence[UseRole]:
        self._places: dict[tuple[str, int, int], int] = {}
        self._trimmed = 0  # of the tight queue, as somebody has tried
        return [("bounded-ring", self._send), ("bounded-tight", self._fill)]

    async def _send(self, client: Client) -> None:
        async with Producer(client, "bounded-ring", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                await self._put(producer, "bounded-ring", self.random.randrange(_QUEUES))
                await self.load.pause(0.0, 0.1)

    async def _fill(self, client: Client) -> None:
        """Until there is no room; then some is made."""
        async with Producer(client, "bounded-tight", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                if not await self._put(producer, "bounded-tight", 0):
                    await self._trim(client)
                await self.load.pause(0.0, 0.1)

    async def _trim(self, client: Client) -> None:
        try:
            ends = await client.offsets("bounded-tight")
            before = self.random.randint(ends.earliest[0], ends.latest[0])
            self._trimmed = max(self._trimmed, before)
            await client.trim_topic("bounded-tight", {0: before})
        except LsmqError:
            pass

    async def _put(self, producer: Producer, topic: str, queue: int) -> bool:
        """Whether it was stored."""
        number = self.load.number()
        try:
            sent = await producer.send_and_wait(str(number).ljust(self.random.choice(_SIZES)), queue=queue)
        except LsmqError:
            return False
        self._places[topic, queue, sent.offset] = number
        return True

    async def read_back(self, client: Client) -> None:
        for topic in self.topics:
            await self._compare(client, topic)
        for _ in range(_TRIES):
            if await self._counted(client):
                self.counted = len(self._places)
                return
        self.wrong(f"in {_TRIES} times {_COUNT_S} s somebody else led each time")

    async def _compare(self, client: Client, topic: str) -> None:
        """What was acknowledged is there, but for what had to go."""
        ends = await client.offsets(topic)
        shown = {(message.queue, message.offset): message.text() for message in await all_of(client, topic)}
        for queue, first, end in zip(ends.queues, ends.earliest, ends.latest, strict=True):
            sizes = [len(shown.get((queue, offset), "")) for offset in range(first, end)]
            if 0 in sizes:
                self.wrong(f"{topic}/{queue} shows nothing at {first + sizes.index(0)}, and begins at {first}")
            for (name, mine, offset), number in self._places.items():
                if (name, mine) != (topic, queue):
                    continue
                if offset >= end:
                    self.wrong(f"{topic}/{queue} ends at {end}, and {offset} was acknowledged")
                elif offset >= first and int(shown.get((queue, offset), "-1")) != number:
                    self.wrong(f"{topic}/{queue} has another message at {offset} than {number}")
            if topic == "bounded-tight" and first > self._trimmed:
                self.wrong(f"{topic} begins at {first}, trimmed to {self._trimmed} at most")
            if topic == "bounded-ring" and first > 0 and sum(sizes) + max(_SIZES) + _PIECE <= _MOST:
                self.wrong(f"{topic}/{queue} keeps {sum(sizes)} bytes, where {_MOST} may stay")

    async def _counted(self, client: Client) -> bool:
        """Whether the same nodes lead as long as it takes to count, and all is as it should be then."""
        leaders = self.leaders()
        await client.trim_topic("bounded-tight", {0: (await client.offsets("bounded-tight")).latest[0]})
        async with (
            Producer(client, "bounded-ring") as ring,
            Producer(client, "bounded-tight") as tight,
            Producer(client, "bounded-tight", deadline_ms=700) as refused,
        ):
            for queue in range(_QUEUES):
                await ring.send_and_wait(b"0", queue=queue)
            await tight.send_and_wait(b"0" * (_MOST - 2 * _PIECE))
            await asyncio.sleep(_COUNT_S)
            held = [0] * _QUEUES
            for message in await all_of(client, "bounded-ring"):
                held[message.queue] += len(message.body)
            is_refused = False
            try:
                await refused.send_and_wait(b"0" * (2 * _PIECE + 1))
            except TimedOut:
                is_refused = True
            if leaders != self.leaders():
                return False
            if max(held) > _MOST:
                self.wrong(f"queues hold {held} bytes, at most {_MOST}")
            if not is_refused:
                self.wrong("a full queue takes more")
        return True
