"""Members of a group, who come and go, and read what they pick of the queues that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from lsmq import Consumer

from .area import TAGS, Area, Life

_QUEUES, _MOST_MEMBERS = 4, 3


class Member:
    """``last``: of each queue that it has, the offset that it was given last; forgotten when the queue goes."""

    def __init__(self, area: Members) -> None:
        self.last: dict[int, int] = {}
        self.consumer = Consumer(
            area.client,
            "shared_out",
            group="crowd",
            filter="tag = 'x'",
            wait_ms=200,
            session_ms=3_000,
            on_revoked=self.revoked,
        )

    def revoked(self, queues: Mapping[str, Sequence[range]]) -> None:
        for queue in chain(*queues.get("shared_out", ())):
            self.last.pop(queue, None)


class Members(Area):
    """``tags``: of all messages, by queue and offset. ``given``: offsets that somebody was given. ``committed``: where
    the group is."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"shared_out": {"queues": _QUEUES}}
    deeds = ("send", "send", "send", "poll", "poll", "poll", "commit", "commit", "join", "leave")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.tags: list[list[str | None]] = [[] for _ in range(_QUEUES)]
        self.given: list[set[int]] = [set() for _ in range(_QUEUES)]
        self.committed: dict[int, int] = {}
        self.members: list[Member] = []

    async def start(self) -> None:
        await self.join(0, 0, 0)

    async def join(self, where: int, how: int, what: int) -> None:
        if len(self.members) < _MOST_MEMBERS:
            self.members.append(Member(self))
            await self.members[-1].consumer.start()

    async def leave(self, where: int, how: int, what: int) -> None:
        """One of several; what it was given and has not committed comes again."""
        if len(self.members) > 1:
            await self.members.pop(what % len(self.members)).consumer.close()

    async def send(self, where: int, how: int, what: int) -> None:
        for at in range(1 + how % 4):
            queue, tag = (where + at) % _QUEUES, TAGS[(what + at) % 3]
            await self.life.send("shared_out", f"{queue}/{len(self.tags[queue])}", queue=queue, tag=tag)
            self.tags[queue].append(tag)

    def _picked(self, queue: int, first: int, end: int) -> set[int]:
        return {offset for offset in range(first, end) if self.tags[queue][offset] == "x"}

    async def poll(self, where: int, how: int, what: int) -> None:
        await self._poll(self.members[where % len(self.members)], 1 + how % 5)

    async def _poll(self, member: Member, most: int) -> None:
        for message in await member.consumer.poll(most, timeout_ms=500):
            queue, offset = message.queue, message.offset
            assert message.text() == f"{queue}/{offset}" and message.tag == "x", f"{message.text()} was not asked for"
            first = member.last[queue] + 1 if queue in member.last else self.committed.get(queue, 0)
            assert offset >= first, f"{offset} of {queue} comes, and it was at {first}"
            passed = self._picked(queue, first, offset)
            assert not passed, f"{passed} of {queue} were passed over"
            member.last[queue] = offset
            self.given[queue].add(offset)

    async def commit(self, where: int, how: int, what: int) -> None:
        """All that one was given, of the queues that it has still."""
        member = self.members[where % len(self.members)]
        await member.consumer.commit()
        committed = dict(await self.client.committed_offsets("crowd", "shared_out"))
        for queue, last in member.last.items():
            assert committed.get(queue, 0) > last, f"{last} of {queue} is not committed"
        for queue, offset in committed.items():
            assert offset >= self.committed.get(queue, 0), f"the group went back to {offset} of {queue}"
            passed = self._picked(queue, 0, offset) - self.given[queue]
            assert not passed, f"{passed} of {queue} are committed, and nobody was given them"
        self.committed = committed

    async def finish(self) -> None:
        """Whoever is left is given all the rest."""
        for member in self.members[1:]:
            await member.consumer.close()
        for _ in range(60):
            await self._poll(self.members[0], 100)
            left = [self._picked(queue, 0, len(self.tags[queue])) - self.given[queue] for queue in range(_QUEUES)]
            if not any(left):
                break
        else:
            raise AssertionError(f"nobody was given {left}")
        del self.members[1:]
        await self.commit(0, 0, 0)
        await self.members[0].consumer.close()
