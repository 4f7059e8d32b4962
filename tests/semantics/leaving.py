"""How messages leave their topic: moved as they expire or make room, or gone as all groups have consumed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .area import Area, Life
from .letters import letters

_GROUPS = ("early", "tardy")
_SHORT_MS = 300
_MOST = 3


class Moved(Area):
    """``sent``: of each queue priority and number of messages, and whether it expires."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "moves": {
            "queues": 2,
            "queue_max_messages": _MOST,
            "overflow": "drop_lowest_priority",
            "dropped_to": "over",
            "expired_to": "late",
        }
    }
    deeds = ("move", "move", "move", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.sent: tuple[dict[tuple[int, int], bool], ...] = ({}, {})

    async def move(self, where: int, how: int, what: int) -> None:
        """Only messages of queue 1 may expire."""
        number, queue, priority, expires = self.life.number(), how % 2, what % 3, how % 4 == 3
        more = {"ttl_ms": _SHORT_MS} if expires else {}
        await self.life.send("moves", f"{number}", queue=queue, priority=priority, **more)
        self.sent[queue][priority, number] = expires

    async def look(self, where: int, how: int, what: int) -> None:
        await self._look(settled=False)

    async def _look(self, *, settled: bool) -> None:
        there = [{int(message.text()) for message in await self.life.read("moves", queue)} for queue in (0, 1)]
        over, late = await letters(self.client, "over"), await letters(self.client, "late")
        for queue, sent in enumerate(self.sent):
            numbers, lasting = {number for _, number in sent}, {place[1] for place in sent if not sent[place]}
            assert there[queue] <= numbers, f"messages of another queue are in {queue}"
            assert lasting <= there[queue] | over, f"{lasting - there[queue] - over} neither stayed nor were moved"
            assert not lasting & late, f"{lasting & late} have expired, and live for ever"
            if settled:
                assert numbers <= there[queue] | over | late, f"{numbers - there[queue] - over - late} are lost"
                assert not there[queue] & (over | late), "what was moved has gone where it was"
                assert len(there[queue]) <= _MOST, f"queue {queue} is over its limit"
                assert there[queue] <= lasting, f"{there[queue] - lasting} have expired, and stay"
        if settled:
            assert there[0] == {number for _, number in sorted(self.sent[0])[-_MOST:]}, "the lowest have made room"

    async def settled(self) -> None:
        await self._look(settled=True)


@dataclass
class Consumption:
    """Of a queue whose messages go as they are consumed. ``gone``: below it nobody can say."""

    numbers: list[int] = field(default_factory=list)
    committed: dict[str, int] = field(default_factory=dict)
    gone: int = 0
    start: int = 0

    def floor(self, groups: set[str]) -> int:
        return min((self.committed.get(group, 0) for group in groups), default=0)


class Eaten(Area):
    """``groups``: that all leaders have heard of."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"eaten": {"queues": 2, "delete_consumed": True}}
    deeds = ("eat", "eat", "eat", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.queues = (Consumption(), Consumption())
        self.groups: set[str] = set()

    async def eat(self, where: int, how: int, what: int) -> None:
        at = how % 2
        known = self.queues[at]
        if where % 3:
            known.numbers.append(self.life.number())
            await self.life.send("eaten", f"{known.numbers[-1]}", queue=at)
            return
        group, offset = _GROUPS[what // 7 % 2], what % (len(known.numbers) + 1)
        await self.client.commit_offsets(group, "eaten", {at: offset})
        known.committed[group] = max(offset, known.committed.get(group, 0))
        # Who begins elsewhere is heard of within moments: until then a queue goes as far as one of the others has read.
        most = known.floor(self.groups) if self.groups else max(known.committed.values())
        known.gone = max(known.gone, most)

    async def look(self, where: int, how: int, what: int) -> None:
        for queue, known in enumerate(self.queues):
            came = {message.offset: int(message.text()) for message in await self.life.read("eaten", queue)}
            left = dict(enumerate(known.numbers))
            assert came.items() <= left.items(), f"other messages came of {queue}"
            assert set(range(known.gone, len(left))) <= came.keys(), f"what not all had read has gone from {queue}"
            assert min(came, default=known.start) >= known.start, f"what all have read is still in {queue}"

    async def settled(self) -> None:
        self.groups = {group for known in self.queues for group in known.committed}
        for known in self.queues:
            known.start = max(known.start, known.floor(self.groups))
            known.gone = max(known.gone, known.start)
        await self.look(0, 0, 0)
