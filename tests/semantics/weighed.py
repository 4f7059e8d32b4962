"""Topics that hold so many bytes over all their shards, and what gives way; and what is new where so many are there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq.errors import InvalidRequest, TimedOut

from .area import Area, Life
from .letters import letters
from .rows import Row, stored_together

_MOST_BYTES, _MOST = 12_000, 6
_SIZES = (300, 900, 1_500, 3_000)
#: By how much an estimate of bytes may be off: points of samples of each shard, and what files take beside.
_BESIDE = 0.15
_POINTS_BYTES = 2 * 1_024
#: What messages have beside their bodies.
_HEADER_BYTES = 32
#: Shards that lead all the while have told each other by then.
_HEARD_S = 4.0
_BY_RANK = ("drop_lowest_priority", "drop_nearest_deadline")


class Weighed(Area):
    """``heaped`` drops its oldest, ``brimful`` refuses; ``poured`` and ``crowded`` drop what is new.

    Attributes:
        there: of each topic and queue what is there, by offset.
        most, least: of each topic what it has held at most and at least since all shards heard of each other: bytes,
            or of ``crowded`` messages.
        told: who led then. What a leader since knows of the others nobody can say.
        over: numbers that have made room, and were moved.
        dropped: so many new ones were, by topic.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "heaped": {"queues": 2, "max_bytes": _MOST_BYTES, "overflow": "drop_oldest", "dropped_to": "heaped.over"},
        "brimful": {"queues": 2, "max_bytes": _MOST_BYTES},
        "poured": {"queues": 2, "max_bytes": _MOST_BYTES, "overflow": "drop_newest"},
        "crowded": {"queues": 2, "max_messages": _MOST, "overflow": "drop_newest"},
    }
    deeds = ("put", "put", "put", "put", "put", "room", "look", "hear", "rank")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.there: dict[str, tuple[dict[int, Row], ...]] = {topic: ({}, {}) for topic in self.topics}
        self.ends = {topic: [0, 0] for topic in self.topics}
        self.most = dict.fromkeys(self.topics, 0)
        self.least = dict.fromkeys(self.topics, 0)
        self.told: Any = None
        self.over: set[int] = set()
        self.dropped = {"poured": 0, "crowded": 0}

    async def start(self) -> None:
        await self.hear(0, 0, 0)

    def _held(self, topic: str) -> int:
        rows = [row for known in self.there[topic] for row in known.values()]
        return len(rows) if topic == "crowded" else sum(row.size_bytes for row in rows)

    def _note(self, topic: str) -> None:
        held = self._held(topic)
        self.most[topic], self.least[topic] = max(self.most[topic], held), min(self.least[topic], held)

    async def hear(self, where: int, how: int, what: int) -> None:
        """All shards hear of what the others hold."""
        leaders = self.life.leaders()
        await asyncio.sleep(_HEARD_S)
        if len(leaders) < self.life.cluster.shards or leaders != self.life.leaders():
            return
        self.told = leaders
        for topic in self.topics:
            self.most[topic] = self.least[topic] = self._held(topic)

    def _is_told(self) -> bool:
        return self.told is not None and self.told == self.life.leaders()

    def _must_fit(self, topic: str, size: int) -> bool:
        """Whichever shard it goes to, of what is new where that is dropped."""
        if topic == "crowded":
            return self.most[topic] < _MOST
        return self.most[topic] + size <= _MOST_BYTES * (1 - _BESIDE) - _POINTS_BYTES

    def _must_not_fit(self, topic: str, size: int) -> bool:
        if not self._is_told():
            return False
        if topic == "crowded":
            return self.least[topic] >= _MOST
        return self.least[topic] + size > _MOST_BYTES * (1 + _BESIDE) + _POINTS_BYTES

    # Deeds

    async def put(self, where: int, how: int, what: int) -> None:
        topic, queue = ("heaped", "brimful", "poured", "crowded")[where % 4], how % 2
        await self._put(topic, queue, _SIZES[what % len(_SIZES)])

    async def _put(self, topic: str, queue: int, body_bytes: int) -> None:
        number, size = self.life.number(), body_bytes + _HEADER_BYTES
        told = self._is_told()
        must_not = self._must_not_fit(topic, body_bytes)
        if topic == "brimful" and not must_not and not self._must_fit(topic, size):
            return  # Who knows; it would be tried again for so long.
        hurries = {"name": "brimful.quick", "deadline_ms": 700} if topic == "brimful" and must_not else {}
        producer = await self.life.producer(topic, **hurries)
        try:
            sent = await producer.send_and_wait(f"{number:0{body_bytes}}", queue=queue)
        except TimedOut:
            assert must_not, f"{topic} had room"
            return
        if sent.dropped:
            self.dropped[topic] += 1
            assert topic != "heaped", "what is new is always taken"
            assert not self._must_fit(topic, size), f"{topic} had room, and {number} was dropped"
            return
        assert not (must_not and told and self._is_told()), f"{topic} had no room for {number}"
        assert sent.offset == self.ends[topic][queue], "offsets have no gaps"
        self.ends[topic][queue] += 1
        self.there[topic][queue][sent.offset] = Row(number, size_bytes=body_bytes)
        self._note(topic)

    async def room(self, where: int, how: int, what: int) -> None:
        topic, queue = ("brimful", "poured", "crowded")[where % 3], how % 2
        known = self.there[topic][queue]
        before = min(known, default=self.ends[topic][queue]) + what % 6
        before = min(before, self.ends[topic][queue])
        await self.client.trim_topic(topic, {queue: before})
        for offset in [offset for offset in known if offset < before]:
            del known[offset]
        self._note(topic)

    async def rank(self, where: int, how: int, what: int) -> None:
        """What goes by rank has no limit over a whole topic, nor in bytes."""
        option = ("max_messages", "max_bytes", "queue_max_bytes")[how % 3]
        overflow = _BY_RANK[where % 2]
        try:
            await self.client.create_topic("ranked_whole", queues=1, overflow=overflow, **{option: 5_000})
        except InvalidRequest as error:
            assert option in str(error), f"{error} does not say {option}"
            return
        raise AssertionError(f"{option} goes by {overflow}")

    # What is there

    async def look(self, where: int, how: int, what: int) -> None:
        for topic in self.topics:
            held, together = self._held(topic), 0
            for queue, known in enumerate(self.there[topic]):
                messages = await self.life.read(topic, queue)
                together += stored_together(messages)
                came = {message.offset: int(message.text()) for message in messages}
                numbers = {offset: row.number for offset, row in known.items()}
                if topic != "heaped":
                    assert came == numbers, f"{topic}/{queue} has {came}, not {numbers}"
                    continue
                assert came.items() <= numbers.items(), f"others came of {queue}"
                assert list(came) == sorted(numbers)[len(numbers) - len(came) :], "the oldest go"
                for offset in numbers.keys() - came.keys():
                    self.over.add(known.pop(offset).number)
            if topic == "heaped":
                least = min(held, _MOST_BYTES * (1 - _BESIDE) - _POINTS_BYTES - max(_SIZES))
                assert self._held(topic) >= least, f"{self._held(topic)} of {held} bytes are left"
        over = await letters(self.client, "heaped.over")
        assert self.over <= over, f"{self.over - over} were dropped, and not moved"

    async def settled(self) -> None:
        await self.look(0, 0, 0)
        messages = [message for queue in (0, 1) for message in await self.life.read("heaped", queue)]
        together = stored_together(messages) * max(_SIZES)
        held = self._held("heaped") - together
        assert held <= _MOST_BYTES * (1 + _BESIDE) + _POINTS_BYTES, f"{held} bytes are in a topic of {_MOST_BYTES}"
        assert await letters(self.client, "heaped.over") == self.over, "what was moved has gone where it was"
        await self.hear(0, 0, 0)
        for topic in ("brimful", "poured", "crowded"):
            for queue in (0, 1):
                await self._put(topic, queue, max(_SIZES))
        for topic, count in self.dropped.items():
            found = (await self.client.topic_usage(topic)).dropped.get("overflow", 0)
            assert found == count, f"{count} were dropped of {topic}, and {found} are counted"

    async def finish(self) -> None:
        await self.look(0, 0, 0)
