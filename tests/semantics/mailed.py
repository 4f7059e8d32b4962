"""Messages by name that go once all have done with them that read the name: groups by patterns, which change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq import Consumer
from lsmq.groups import Group
from lsmq.queue_names import compile_pattern

from .area import Area, Life

_NAMES = ("a.in", "b.in", "a.log", "other")
_PATTERNS = ("*.in", "a.**", None, "a.in")
_TEAMS = ("left", "right")


class Box:
    """A name. ``gone``: below it nobody can say what is there. ``start``: below it nothing is in the end."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.gone = self.start = 0


class Mailed(Area):
    """Each team has one member, or none for now.

    Attributes:
        patterns: by which each team reads, or its last member did.
        committed: of each team that has, where it is by name.
        heard: teams that all leaders have heard of, and that are there still.
        at: of each team the offset that comes next, by name.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"mail": {"queues": "named", "delete_consumed": True}}
    deeds = ("send", "send", "send", "read", "read", "read", "read", "change", "leave", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.boxes = {name: Box() for name in _NAMES}
        self.called: dict[int, str] = {}  # names by number
        self.members: dict[str, Consumer] = {}
        self.patterns: dict[str, str | None] = dict(zip(_TEAMS, _PATTERNS, strict=False))
        self.committed: dict[str, dict[str, int]] = {}
        self.heard: set[str] = set()
        self.at: dict[str, dict[str, int]] = {}

    def _reads(self, team: str, name: str) -> bool:
        return compile_pattern(self.patterns[team] or "**").fullmatch(name) is not None

    async def send(self, where: int, how: int, what: int) -> None:
        for at in range(1 + how % 3):
            name, number = _NAMES[(where + at) % len(_NAMES)], self.life.number()
            sent = await self.life.send("mail", f"{number}", queue=name)
            assert sent.offset == len(self.boxes[name].numbers), "offsets have no gaps"
            self.boxes[name].numbers.append(number)

    async def read(self, where: int, how: int, what: int) -> None:
        """A member reads on, and mostly commits."""
        team = _TEAMS[where % len(_TEAMS)]
        if team not in self.members:
            await self._begin(team)
        for message in await self.members[team].poll(1 + how % 10, timeout_ms=500):
            name, offset = message.queue_name or "", message.offset
            assert self._reads(team, name), f"{name} was not asked for by {team}"
            box, first = self.boxes[name], self.at[team].get(name, 0)
            assert int(message.text()) == box.numbers[offset], f"{offset} of {name} is another message"
            done = self.committed.get(team, {}).get(name, 0)
            assert offset >= done, f"{team} has done with {done} of {name}, and is given {offset}"
            assert offset <= max(first, box.gone), f"{team} was not given {first} to {offset} of {name}"
            self.called[message.queue], self.at[team][name] = name, offset + 1
        if what % 4:
            await self.members[team].commit()
            if found := await self.client.committed_offsets(team, "mail"):
                self.committed[team] = {self.called[number]: offset for number, offset in found.items()}
                self._may_go()

    async def _begin(self, team: str) -> None:
        self.members[team] = Consumer(
            self.client, "mail", group=team, pattern=self.patterns[team], wait_ms=500, session_ms=5_000
        )
        await self.members[team].start()
        self.at[team] = dict(self.committed.get(team, {}))
        self._may_go()

    async def change(self, where: int, how: int, what: int) -> None:
        """A team reads otherwise, from where it has committed."""
        team = _TEAMS[where % len(_TEAMS)]
        if team in self.members:
            await self.members.pop(team).close()
        self.patterns[team] = _PATTERNS[how % len(_PATTERNS)]
        await self._begin(team)
        if what % 2:
            await self.members.pop(team).close()

    async def leave(self, where: int, how: int, what: int) -> None:
        """A group is deleted: it holds nothing any more, and begins anew."""
        team = _TEAMS[where % len(_TEAMS)]
        if team in self.members:
            await self.members.pop(team).close()
        await Group(self.client, team).delete(force=True)
        self.committed.pop(team, None)
        self.heard.discard(team)
        self._may_go()

    def _may_go(self) -> None:
        """What all have done with that read it and are heard of everywhere; where nobody is, what one of the others
        has. What nobody reads stays."""
        for name, box in self.boxes.items():
            at = {team: offsets.get(name, 0) for team, offsets in self.committed.items() if self._reads(team, name)}
            heard = [at[team] for team in self.heard & at.keys()]
            box.gone = max(box.gone, min(heard) if heard else max(at.values(), default=0))

    async def look(self, where: int, how: int, what: int) -> None:
        for queue in await self.client.queues("mail"):
            box = self.boxes[queue.name]
            assert queue.latest == len(box.numbers), f"{queue.name} ends at {queue.latest}"
            assert queue.earliest <= box.gone, f"{queue.earliest} of {queue.name} have gone, and may until {box.gone}"
            assert queue.earliest >= box.start, f"all have done with {box.start} of {queue.name}"

    async def settled(self) -> None:
        self.heard = set(self.committed)
        self._may_go()
        for name, box in self.boxes.items():
            at = [offsets.get(name, 0) for team, offsets in self.committed.items() if self._reads(team, name)]
            box.start = max(box.start, min(at, default=0))
        await self.look(0, 0, 0)
        earliest = {queue.name: queue.earliest for queue in await self.client.queues("mail")}
        for team, offsets in self.committed.items():
            waits = sum(
                len(box.numbers) - max(earliest.get(name, 0), offsets.get(name, 0))
                for name, box in self.boxes.items()
                if self._reads(team, name)
            )
            assert (await Group(self.client, team).lag("mail")).lag == waits, f"{team} is behind by {waits}"

    async def finish(self) -> None:
        for member in self.members.values():
            await member.close()
