"""Messages that go to another topic as they expire, or as they make room for others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import Client, Producer
from lsmq.dead_letters import DeadLetter, DeadLetters
from lsmq.errors import LsmqError, UnknownTopic

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of, text_of

_QUEUES, _MOST = 2, 4
_LONG_MS = 36_000_000
_LOOKS = 15

PlaceInTopic = tuple[str, int, int]


@dataclass
class _Sent:
    topic: str
    queue: int
    lasts: bool
    rank: tuple[int, ...]  # the lowest makes room first
    place: PlaceInTopic | None = None  # once it is acknowledged


class MovedOn(Use):
    """What was acknowledged is there, or in the topic that it was to go to; of a queue with a limit the highest stay.

    At least once: twice only where a node was down.
    """

    name = "moved"
    topics: ClassVar[UsedTopics] = {
        "passing": {"queues": _QUEUES, "expired_to": "passed"},
        "ranked": {
            "queues": _QUEUES,
            "queue_max_messages": _MOST,
            "overflow": "drop_lowest_priority",
            "dropped_to": "outranked",
        },
        "hasty": {
            "queues": _QUEUES,
            "queue_max_messages": _MOST,
            "overflow": "drop_nearest_deadline",
            "dropped_to": "hurried",
            "expired_to": "passed",
        },
    }
    _options: ClassVar[Mapping[str, str]] = {"expired": "expired_to", "overflow": "dropped_to"}

    def roles(self) -> Sequence[UseRole]:
        self._sent: dict[int, _Sent] = {}
        return [("mover1", self._send), ("mover2", self._send)]

    async def _send(self, client: Client) -> None:
        async with (
            Producer(client, "passing", deadline_ms=DEADLINE_MS) as passing,
            Producer(client, "ranked", deadline_ms=DEADLINE_MS) as ranked,
            Producer(client, "hasty", deadline_ms=DEADLINE_MS) as hasty,
        ):
            producers = {"passing": passing, "ranked": ranked, "hasty": hasty}
            while not self.load.stopping:
                topic, number = self.random.choice(list(producers)), self.load.number()
                sent, fields = self._drawn(topic, number)
                self._sent[number] = sent
                try:
                    stored = await producers[topic].send_and_wait(str(number), queue=sent.queue, key=topic, **fields)
                    sent.place = topic, stored.queue, stored.offset
                except LsmqError:
                    pass
                await self.load.pause(0.01, 0.08)

    def _drawn(self, topic: str, number: int) -> tuple[_Sent, dict[str, Any]]:
        queue, lasts = self.random.randrange(_QUEUES), self.random.random() < 0.6
        lives_ms = self.random.randint(0, _LONG_MS) + _LONG_MS if lasts else self.random.randint(1, 800)
        if topic == "passing":
            return _Sent(topic, queue, lasts, ()), {"ttl_ms": lives_ms}
        if topic == "ranked":
            rank = self.random.randrange(3), self.random.randrange(3)
            return _Sent(topic, queue, lasts=True, rank=rank), {"priority": rank[0], "subpriority": rank[1]}
        deadline_ms = int(self.wall_ms) + lives_ms
        return _Sent(topic, queue, lasts, (deadline_ms,)), {"expires_at_ms": deadline_ms}

    async def read_back(self, client: Client) -> None:
        found: list[str] = []
        for _ in range(_LOOKS):  # What is to go does within moments.
            await asyncio.sleep(1.0)
            found = await self._look(client)
            if not found:
                break
        for each in found:
            self.wrong(each)
        # By now all has gone that is to, but for what a clock that was ahead has stamped.
        self.expires = self.load.cluster.clocks_were_wrong

    async def _look(self, client: Client) -> list[str]:
        """What is wrong, or not done yet."""
        wrong: list[str] = []
        stay = {
            (topic, message.queue, message.offset): int(message.text())
            for topic in self.topics
            for message in await all_of(client, topic)
        }
        gone: dict[str, dict[PlaceInTopic, int]] = {"expired": {}, "overflow": {}}
        for name in ("passed", "outranked", "hurried"):
            for letter in await _letters(client, name):
                number, place = int(letter.message.text()), (letter.topic, letter.queue, letter.offset)
                what = f"the letter of {number} in {name}, from {place} for {letter.kind},"
                if self.topics[letter.topic].get(self._options[letter.kind]) != name:
                    wrong.append(f"{what} is in another topic than it was to go to")
                if text_of(letter.message.key) != letter.topic or letter.message.priority != self._priority(number):
                    wrong.append(f"{what} is not what was sent")
                if place in gone[letter.kind] and not self._crashed():
                    wrong.append(f"{what} is there twice, and no node was down")
                gone[letter.kind][place] = number
        left = {**gone["expired"], **gone["overflow"]}
        if again := stay.keys() & left.keys():
            wrong.append(f"{sorted(again)[:5]} were moved, and have stayed")
        if lasting := [number for number in gone["expired"].values() if self._sent[number].lasts]:
            wrong.append(f"messages {lasting[:5]} have hours to live, and have expired")
        stored = {**stay, **left}
        for number, sent in self._sent.items():
            # What a clock that was ahead has stamped expires when time is there.
            may_wait = not sent.lasts and self.load.cluster.clocks_were_wrong
            found = stored.get(sent.place) if sent.place is not None else number
            if found != number and not (may_wait and found is None):
                wrong.append(f"message {number} was stored at {sent.place}, and {found} is known of it")
        for topic in ("ranked", "hasty"):
            for queue in range(_QUEUES):
                wrong += self._look_at_limit((topic, queue), stay, gone["overflow"])
        self.counted = len(left)
        return wrong

    def _look_at_limit(
        self, queue: tuple[str, int], stay: Mapping[PlaceInTopic, int], dropped: Mapping[PlaceInTopic, int]
    ) -> list[str]:
        """Whoever was dropped was below so many, and those have stayed, or were dropped for higher ones."""
        there, others = (
            {
                (self._sent[number].rank, place[2])
                for place, number in places.items()
                if place[:2] == queue and self._sent[number].lasts
            }
            for places in (stay, dropped)
        )
        highest = sorted(there | others)[-_MOST:]
        if sorted(there) != highest:
            return [f"{queue} has {sorted(there)}, and of {sorted(there | others)} should have {highest}"]
        return []

    def _priority(self, number: int) -> int:
        sent = self._sent[number]
        return sent.rank[0] if sent.topic == "ranked" else 0

    def _crashed(self) -> bool:
        """Which may tear what stores a letter from what deletes the message."""
        return any(node.starts > 1 for node in self.load.cluster.nodes)


async def _letters(client: Client, topic: str) -> list[DeadLetter]:
    try:
        return [letter async for letter in DeadLetters(client, topic).read()]
    except UnknownTopic:
        return []
