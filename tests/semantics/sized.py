"""Queues that hold so many bytes, and what becomes of what has no room."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq.errors import RequestTooLarge, TimedOut
from lsmq.messages import encode_header

from .area import Area, Leaders, Life
from .rows import Queue, Row

#: What queues may hold, in bytes; and by how much one may seem fuller, when what it began with is gone.
MOST_BYTES = 1_000
PIECE_BYTES = MOST_BYTES // 32
_SIZES = (20, 21, 60, 150, 333, 600, MOST_BYTES, MOST_BYTES + 1)
#: A leader has counted by then what queues had that were written to.
_COUNT_S = 3.0


class Sized(Area):
    """``counted_by``: of each queue the leaders that had counted it."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ring_bytes": {"queues": 2, "queue_max_bytes": MOST_BYTES, "overflow": "drop_oldest"},
        "full_bytes": {"queues": 1, "queue_max_bytes": MOST_BYTES, "overflow": "drop_newest"},
        "tight": {"queues": 1, "queue_max_bytes": MOST_BYTES},
    }
    deeds = ("fill", "fill", "fill", "fill", "make_room", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.places = [(topic, queue) for topic in self.topics for queue in range(self.topics[topic]["queues"])]
        self.queues = {place: Queue() for place in self.places}
        self.counted_by: dict[tuple[str, int], Leaders] = {}

    async def start(self) -> None:
        self.counted_by = dict.fromkeys(self.places, self.life.leaders())  # There is nothing in them.

    async def fill(self, where: int, how: int, what: int) -> None:
        topic, queue = self.places[where % len(self.places)]
        await self._put(topic, queue, _SIZES[what % len(_SIZES)])

    def _room(self, topic: str, queue: int, size_bytes: int) -> bool | None:
        """Whether so much more surely fits, or surely does not where the leader has counted all; None: who knows."""
        size_bytes += self.queues[topic, queue].size_bytes()
        return True if size_bytes + PIECE_BYTES <= MOST_BYTES else False if size_bytes > MOST_BYTES else None

    async def _put(self, topic: str, queue: int, size_bytes: int) -> None:
        """Into ``tight`` only what surely has room, or has none: what is refused is tried again for so long."""
        counted, room = self._counted(topic, queue), self._room(topic, queue, size_bytes)
        if topic == "tight" and room is not True and (room is None or not counted):
            return
        known, row = self.queues[topic, queue], Row(self.life.number(), size_bytes=size_bytes)
        properties = {"number": f"{row.number}"}
        body = b"x" * (size_bytes - len(encode_header(None, None, properties)))
        refused = topic == "tight" and room is False
        producer = await self.life.producer(topic, **({"name": "quick", "deadline_ms": 700} if refused else {}))
        try:
            sent = await producer.send_and_wait(body, queue=queue, properties=properties)
            offset = None if sent.dropped else sent.offset
        except (TimedOut, RequestTooLarge):
            await asyncio.sleep(_COUNT_S)
            (latest,) = (await self.client.offsets(topic)).latest
            offset = known.end if latest > known.end else None
        counted &= self._counted(topic, queue)
        if topic == "ring_bytes":
            assert offset is not None, "new messages are always taken where the oldest make room"
        elif offset is None:
            assert room is not True, f"{topic} had room"
        else:
            assert room is not False or not counted, f"{topic} had no room"
        if offset is None:
            return
        assert offset == known.append(row), "offsets have no gaps"
        if topic == "ring_bytes":
            self._oldest_go(known, counted=counted)

    def _oldest_go(self, known: Queue, *, counted: bool) -> None:
        size = 0
        for offset in sorted(known.rows, reverse=True):
            size += known.rows[offset].size_bytes
            if offset == known.end - 1:
                continue  # the newest stays, however large it is
            known.rows[offset].may_be_gone |= size + PIECE_BYTES > MOST_BYTES
            if counted and size > MOST_BYTES:
                known.remove([offset])

    async def make_room(self, where: int, how: int, what: int) -> None:
        topic, queue = self.places[where % len(self.places)]
        known = self.queues[topic, queue]
        before = min(known.rows, default=known.end) + what % 4
        if before <= known.end:
            await self.client.trim_topic(topic, {queue: before})
            known.remove(range(before))

    async def look(self, where: int, how: int, what: int) -> None:
        await self._look_at(*self.places[where % len(self.places)])

    async def _look_at(self, topic: str, queue: int) -> None:
        known = self.queues[topic, queue]
        counted = topic == "ring_bytes" and self._counted(topic, queue)
        messages = await self.life.read(topic, queue)
        came = [(message.offset, int(message.properties["number"])) for message in messages]
        known.compare(came)
        if topic == "ring_bytes":  # What went there does not come back.
            known.remove(known.rows.keys() - {offset for offset, _ in came})
        if counted:
            sizes = [row.size_bytes for row in known.rows.values()]
            assert sum(sizes) <= MOST_BYTES or len(sizes) == 1, f"{topic}/{queue} has messages of {sizes} bytes"

    async def settled(self) -> None:
        """Have leaders count what was there before them, as they do once a queue is written to; see that they did."""
        leaders = self.life.leaders()
        for topic, queue in self.places:
            if not self._counted(topic, queue):
                known = self.queues[topic, queue]
                if topic == "tight" and known.rows:  # What is refused would not have it counted.
                    await self._have_room(queue)
                await self._put(topic, queue, _SIZES[0])
        await asyncio.sleep(_COUNT_S)
        if leaders == self.life.leaders():
            self.counted_by = dict.fromkeys(self.places, leaders)
        for topic, queue in self.places:
            held = self.queues[topic, queue].size_bytes()
            for size_bytes in (MOST_BYTES - held - PIECE_BYTES, MOST_BYTES - held + 1, MOST_BYTES):
                if self._counted(topic, queue) and size_bytes >= _SIZES[0]:
                    await self._put(topic, queue, size_bytes)

    async def _have_room(self, queue: int) -> None:
        known = self.queues["tight", queue]
        while self._room("tight", queue, _SIZES[0]) is not True:
            known.remove([min(known.rows)])
        await self.client.trim_topic("tight", {queue: min(known.rows, default=known.end)})

    def _counted(self, topic: str, queue: int) -> bool:
        return self.counted_by.get((topic, queue)) == self.life.leaders()

    async def finish(self) -> None:
        for topic, queue in self.places:
            await self._look_at(topic, queue)
