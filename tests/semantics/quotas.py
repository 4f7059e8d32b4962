"""Topics that hold so many messages, over all their shards, and what gives way: the oldest, the newest, or by rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq import runtime
from lsmq.errors import TimedOut

from .area import DAY_MS, Area, Life
from .letters import letters

_MOST = 5
#: Limits that a topic is given later.
_LIMITS = (2, _MOST, 9)
_RANKED_MOST = 3
#: A message is this long, or about a point of a sample: bytes say which are the oldest, and messages how many.
_BODY_BYTES = (100, 1_500)
_NEVER = 1 << 62


class Quotas(Area):
    """``latest`` drops its oldest, ``filled`` refuses, ``capped`` drops what is new, and ``nearest`` what expires next.

    Attributes:
        there: of each topic and queue the numbers by offset, as far as they are there.
        ends: of each topic and queue.
        limits: of each topic, those that some leader may still obey, the present one last.
        dropped: so many new messages were, of what is capped.
        over: numbers that have made room, and were moved.
        deadlines: of each queue of the ranked topic, those of the numbers that were sent there.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "latest": {"queues": 2, "max_messages": _MOST, "overflow": "drop_oldest", "dropped_to": "latest.over"},
        "filled": {"queues": 2, "max_messages": _MOST},
        "capped": {"queues": 1, "max_messages": _MOST, "overflow": "drop_newest"},
        "nearest": {"queues": 2, "queue_max_messages": _RANKED_MOST, "overflow": "drop_nearest_deadline"},
    }
    deeds = ("put", "put", "put", "put", "rank", "rank", "limit", "room", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.places = [(topic, queue) for topic in self.topics for queue in range(self.topics[topic]["queues"])]
        self.there: dict[tuple[str, int], dict[int, int]] = {place: {} for place in self.places}
        self.ends = dict.fromkeys(self.places, 0)
        self.limits = {topic: [_MOST] for topic in self.topics}
        self.dropped = 0
        self.over: set[int] = set()
        self.deadlines: tuple[dict[int, int], ...] = ({}, {})
        self.base_ms = runtime.wall_ms() + DAY_MS

    def _held(self, topic: str) -> int:
        return sum(len(there) for (name, _), there in self.there.items() if name == topic)

    async def put(self, where: int, how: int, what: int) -> None:
        topic = ("latest", "filled", "capped")[where % 3]
        queue = how % self.topics[topic]["queues"]
        number, held, most = self.life.number(), self._held(topic), self.limits[topic][-1]
        full = held >= max(self.limits[topic])
        if topic == "filled" and held >= most:
            if len(self.limits[topic]) == 1:
                await self._refused(queue, number)
            return
        body = f"{number:0{_BODY_BYTES[what % 5 == 0]}}"
        sent = await self.life.send(topic, body, queue=queue)
        if topic == "capped":
            assert sent.dropped or not full, "what is full takes what is new and drops it"
            assert not sent.dropped or held >= min(self.limits[topic]), "there was room"
            if sent.dropped:
                self.dropped += 1
                return
        self._stored(topic, queue, sent.offset, number)

    def _stored(self, topic: str, queue: int, offset: int, number: int) -> None:
        assert offset == self.ends[topic, queue], "offsets have no gaps"
        self.ends[topic, queue] += 1
        self.there[topic, queue][offset] = number

    async def _refused(self, queue: int, number: int) -> None:
        """It is tried again for so long; a leader that knows nothing of the other shard has the whole limit."""
        quick = await self.life.producer("filled", name="filled.quick", deadline_ms=700)
        try:
            sent = await quick.send_and_wait(f"{number}", queue=queue)
        except TimedOut:
            return
        other = len(self.there["filled", 1 - queue])
        assert len(self.there["filled", queue]) < self.limits["filled"][-1] and other, "there was no room"
        self._stored("filled", queue, sent.offset, number)

    async def rank(self, where: int, how: int, what: int) -> None:
        number, queue, day = self.life.number(), where % 2, what % 5
        deadline_ms = _NEVER if day == 4 else self.base_ms + day * DAY_MS
        more = {} if day == 4 else {"expires_at_ms": deadline_ms}
        sent = await self.life.send("nearest", f"{number}", queue=queue, **more)
        self._stored("nearest", queue, sent.offset, number)
        self.deadlines[queue][number] = deadline_ms

    async def limit(self, where: int, how: int, what: int) -> None:
        topic = ("latest", "filled", "capped")[where % 3]
        most = _LIMITS[what % len(_LIMITS)]
        await self.client.alter_topic(topic, max_messages=most)
        self.limits[topic].append(most)

    async def room(self, where: int, how: int, what: int) -> None:
        topic = ("filled", "capped")[where % 2]
        queue = how % self.topics[topic]["queues"]
        there = self.there[topic, queue]
        before = min(there, default=self.ends[topic, queue]) + what % 4
        if before <= self.ends[topic, queue]:
            await self.client.trim_topic(topic, {queue: before})
            for offset in [offset for offset in there if offset < before]:
                del there[offset]

    async def look(self, where: int, how: int, what: int) -> None:
        await self._look()

    async def _look(self) -> None:
        for topic, queue in self.places:
            known, held = self.there[topic, queue], self._held(topic)
            came = {message.offset: int(message.text()) for message in await self.life.read(topic, queue)}
            assert came.items() <= known.items(), f"others came of {topic}/{queue}"
            if topic in ("filled", "capped"):
                assert came == known, f"{known.keys() - came.keys()} of {topic}/{queue} are missing"
            elif topic == "nearest":
                best = set(self._best(queue))
                assert best <= set(came.values()), f"{best - set(came.values())} of {queue} went, and others stay"
            self.there[topic, queue] = came
            if topic == "latest":
                assert list(came) == sorted(known)[len(known) - len(came) :], "the oldest go"
                self.over |= set(known.values()) - set(came.values())
                least = min(held, *self.limits[topic])
                assert self._held(topic) >= least, (
                    f"{self._held(topic)} of {held} are left, though {self.limits[topic]} may be there"
                )
        over = await letters(self.client, "latest.over")
        assert self.over <= over, f"{self.over - over} were dropped, and not moved"

    def _best(self, queue: int) -> list[int]:
        deadlines = self.deadlines[queue]
        return sorted(deadlines, key=lambda number: (deadlines[number], number))[-_RANKED_MOST:]

    async def settled(self) -> None:
        await self._look()
        for limits in self.limits.values():
            del limits[:-1]
        held = self._held("latest")
        assert held <= self.limits["latest"][-1], f"{held} messages are in a topic of {self.limits['latest'][-1]}"
        over, there = await letters(self.client, "latest.over"), self.there
        assert over == self.over, f"{over - self.over} are where they were, and moved"
        for queue in (0, 1):
            assert set(there["nearest", queue].values()) == set(self._best(queue)), f"the nearest of {queue} have gone"
        counts = {topic: (await self.client.topic_usage(topic)).dropped.get("overflow", 0) for topic in self.topics}
        ranked = sum(len(self.deadlines[queue]) - len(there["nearest", queue]) for queue in (0, 1))
        wanted = {"latest": len(self.over), "filled": 0, "capped": self.dropped, "nearest": ranked}
        assert counts == wanted, f"dropped are {wanted}, and counted {counts}"

    async def finish(self) -> None:
        await self._look()
