"""Topics that keep messages for a while, or so many of them, or so many bytes, and are told otherwise meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from lsmq import Client, Producer, TopicChanges
from lsmq.errors import LsmqError

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, all_of

_QUEUES = 2
_AGE, _COUNT, _BYTES, _TTL = "by-age", "by-count", "by-bytes", "by-ttl"
#: What each topic keeps at first, and then: milliseconds, messages of a queue, bytes.
_LIMITS = {_AGE: (600, 1_200), _COUNT: (8, 15), _BYTES: (20_000, 40_000), _TTL: (500, 1_000)}
_OPTIONS = {_AGE: "retention_ms", _COUNT: "retention_messages", _BYTES: "retention_bytes", _TTL: "ttl_ms"}
_SIZES = (100, 1_000, 3_000)
#: Estimates are right up to a sample's point, in each shard.
_SAMPLE = 1_024
_LOOKS = 16


@dataclass
class _Sent:
    """What was acknowledged: it was stored between these moments."""

    began: float
    ended: float
    size: int


@dataclass
class _Topic:
    """``limits``: those that may be in force, or have been."""

    limits: list[int]
    wanted: int  # as it was acknowledged last
    sent: dict[tuple[int, int], _Sent] = field(default_factory=dict)


class Aged(Use):
    """Nothing goes that is younger than it may be, or among the newest that are kept; what is older goes in the end."""

    name = "aged"
    expires = True
    topics: ClassVar[UsedTopics] = {
        name: {"queues": _QUEUES, option: _LIMITS[name][0]} for name, option in _OPTIONS.items()
    }

    def roles(self) -> Sequence[UseRole]:
        self._topics = {name: _Topic([first], first) for name, (first, _) in _LIMITS.items()}
        return [("diarist", self._send), ("editor", self._alter), ("historian", self._look)]

    @property
    def _now(self) -> float:
        return self.load.cluster.world.now

    async def _send(self, client: Client) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in self._topics:
                tasks.create_task(self._send_to(client, name))

    async def _send_to(self, client: Client, name: str) -> None:
        async with Producer(client, name, deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                began, size = self._now, self.random.choice(_SIZES)
                try:
                    sent = await producer.send_and_wait(
                        str(self.load.number()).ljust(size), queue=self.random.randrange(_QUEUES)
                    )
                    self._topics[name].sent[sent.queue, sent.offset] = _Sent(began, self._now, size)
                except LsmqError:
                    pass
                await self.load.pause(0.0, 0.1)

    async def _alter(self, client: Client) -> None:
        while not self.load.stopping:
            await self.load.pause(0.1, 0.8)
            name = self.random.choice(list(self._topics))
            topic, limit = self._topics[name], self.random.choice(_LIMITS[name])
            topic.limits.append(limit)
            changes: TopicChanges = {_OPTIONS[name]: limit}  # type: ignore[misc]
            with suppress(LsmqError):
                await client.alter_topic(name, **changes)
                topic.wanted = limit

    async def _look(self, client: Client) -> None:
        while not self.load.stopping:
            with suppress(LsmqError):
                await self._look_at(client, self.random.choice(list(self._topics)))
            await self.load.pause(0.05, 0.3)

    async def _look_at(self, client: Client, name: str) -> None:
        """What should be there is."""
        topic, sent = self._topics[name], dict(self._topics[name].sent)
        shown = {
            (message.queue, message.offset): len(message.body)
            for message in await all_of(client, name, read_from="leader")
        }
        ends = await client.offsets(name)
        gone = {place: each for place, each in sent.items() if place not in shown}
        least = min(topic.limits)
        for place, each in sorted(gone.items()):
            if place[1] >= ends.latest[place[0]]:
                self.wrong(f"{name} ends at {ends.latest}, and {place} was acknowledged")
            age_ms = 1000 * (self._now - each.began)
            if name in (_AGE, _TTL) and age_ms < least and not self.load.cluster.clocks_were_wrong:
                self.wrong(f"{place} of {name} is gone at an age of {age_ms:.0f} ms at most, and {least} are kept")
            if name == _COUNT and place[1] >= ends.latest[place[0]] - least:
                self.wrong(f"{place} of {name} is gone, of {ends.latest} the last {least} are kept")
        if name == _BYTES and gone:
            held = sum(shown.values())
            if held + max(_SIZES) + 2 * _SAMPLE + 100 * len(shown) < least:
                self.wrong(f"{name} holds {held} bytes, and {least} are kept")

    async def read_back(self, client: Client) -> None:
        for name in self._topics:
            await self._look_at(client, name)
        late: list[str] = []
        for _ in range(_LOOKS):  # Leaders obey what was altered, and look, again and again.
            await asyncio.sleep(0.5)
            late = [each for name in self._topics for each in await self._too_much(client, name)]
            if not late:
                break
        for each in late:
            self.wrong(each)
        for name in self._topics:
            self.counted += sum((await client.offsets(name)).earliest)

    async def _too_much(self, client: Client, name: str) -> list[str]:
        """What is not gone yet. Of what a wrong clock has stamped nobody knows."""
        topic, most, ends = self._topics[name], max(self._topics[name].limits), await client.offsets(name)
        counts = [end - first for first, end in zip(ends.earliest, ends.latest, strict=True)]
        if name == _COUNT:
            known = topic.wanted == topic.limits[-1]
            return [f"{name} holds {counts} messages of {topic.limits}"] if known and max(counts) > topic.wanted else []
        if name == _AGE:
            late = any(counts) and not self.load.cluster.clocks_were_wrong
            return [f"{name} holds {counts} messages, for {topic.limits} ms"] if late else []
        held = [len(message.body) for message in await all_of(client, name, read_from="leader")]
        if name == _TTL:
            late = bool(held) and not self.load.cluster.clocks_were_wrong
            return [f"{len(held)} messages of {name} are delivered, for {topic.limits} ms"] if late else []
        return [f"{name} holds {sum(held)} bytes of {most}"] if sum(held) > most + max(_SIZES) + 4 * _SAMPLE else []
