"""Who reads names by pattern, or shares all, or those of a pattern, in a group, while names come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq import Consumer, Message
from lsmq.queue_names import SLOTS, compile_pattern, queue_slot

from .area import Area, Life

_NAMES = ("a", "a.x", "a.y", "b.x", "b.x.y")
#: Which names readers read, and where each begins that comes anew.
_READERS = (("**", "earliest"), ("*.x", "latest"), ("a.**", "earliest"), ("b.*", "latest"))
_MOST_MEMBERS = 2
_MOST_EMPTY_POLLS = 40


class Reader:
    """By a pattern. ``due``: of each name what is to come, in order; ``doubtful``: what was there before its queue was
    deleted or emptied, and may be on its way."""

    def __init__(self, area: Subscribed, pattern: str, start: Any) -> None:
        self.matches = compile_pattern(pattern).fullmatch
        self.due: dict[str, list[int]] = {}
        self.doubtful: set[int] = set()
        if start == "earliest":
            self.due = {name: list(numbers) for name, numbers in area.there.items() if self.matches(name)}
        self.consumer = Consumer(area.client, "streams", pattern=pattern, start=start, wait_ms=1_000)

    def sent(self, name: str, number: int) -> None:
        if self.matches(name):
            self.due.setdefault(name, []).append(number)

    def removed(self, name: str) -> None:
        self.doubtful |= set(self.due.pop(name, ()))

    def take(self, messages: list[Message]) -> None:
        for message in messages:
            name, number = message.queue_name, int(message.text().partition(" ")[2])
            assert name is not None and self.matches(name), f"{name} was not asked for"
            assert message.text() == f"{name} {number}", f"{message.text()} comes as one of {name}"
            if number in self.doubtful:
                self.doubtful.remove(number)
                continue
            due = self.due.get(name, [])
            assert due[:1] == [number], f"{number} of {name} comes, and {due} are to come"
            del due[0]


class Member:
    """``handed``: by number the names of what it was given since members have last changed."""

    def __init__(self, area: Subscribed, team: Team) -> None:
        self.handed: dict[int, str] = {}
        self.consumer = Consumer(
            area.client, "streams", group=team.group, pattern=team.pattern, wait_ms=1_000, session_ms=5_000
        )

    @property
    def slots(self) -> set[int]:
        return {slot for slots in self.consumer.assignment.get("streams", ()) for slot in slots}


class Team:
    """A group, of which one is a member always. ``given``: what it was given; ``committed``: what does not come to it
    again."""

    def __init__(self, group: str, pattern: str | None) -> None:
        self.group = group
        self.pattern = pattern
        self.reads = compile_pattern(pattern or "**").fullmatch
        self.members: list[Member] = []
        self.given: set[int] = set()
        self.committed: set[int] = set()

    def left(self, there: Mapping[str, list[int]]) -> set[int]:
        """What is to be given to it."""
        return {number for name, numbers in there.items() if self.reads(name) for number in numbers} - self.given


class Subscribed(Area):
    """``there``: the numbers of each name. ``ever``: names that each number was sent to."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"streams": {"queues": "named", "forget_empty_ms": 2_000}}
    deeds = (
        *("send", "send", "send", "send", "read", "read", "poll", "poll", "poll", "commit", "remove", "remove"),
        *("come", "join", "list"),
    )

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.there: dict[str, list[int]] = {}
        self.ever: dict[int, str] = {}
        self.readers: list[Reader] = []
        self.teams = [Team("pair", None), Team("some", "*.x")]

    async def start(self) -> None:
        for pattern, start in _READERS:
            self.readers.append(await self._begin(pattern, start))
        for how in range(len(self.teams)):
            await self.join(1, how, 0)

    async def _begin(self, pattern: str, start: Any) -> Reader:
        reader = Reader(self, pattern, start)
        await reader.consumer.start()
        reader.take(await reader.consumer.poll(timeout_ms=500))  # It has begun by then.
        return reader

    async def send(self, where: int, how: int, what: int) -> None:
        for at in range(1 + how % 3):
            name, number = _NAMES[(where + at) % len(_NAMES)], self.life.number()
            await self.life.send("streams", f"{name} {number}", queue=name)
            self.there.setdefault(name, []).append(number)
            self.ever[number] = name
            for reader in self.readers:
                reader.sent(name, number)

    async def remove(self, where: int, how: int, what: int) -> None:
        """A queue is deleted; or emptied, and its name is forgotten then."""
        name = _NAMES[where % len(_NAMES)]
        if how % 2:
            await self.client.delete_queue("streams", name, missing_ok=True)
        elif self.there.get(name):
            found = {queue.name: queue for queue in await self.client.queues("streams")}
            assert name in found, f"{name} is not there"
            await self.client.trim_queue("streams", name, found[name].latest)
        self.there.pop(name, None)
        for reader in self.readers:
            reader.removed(name)

    async def list(self, where: int, how: int, what: int) -> None:
        prefix = ("", "a", "a.", "b.x", "c")[where % 5]
        found = {queue.name: queue.count for queue in await self.client.queues("streams", prefix=prefix)}
        assert all(name.startswith(prefix) for name in found), f"{list(found)} by {prefix}"
        wanted = {name: len(numbers) for name, numbers in self.there.items() if name.startswith(prefix)}
        assert {name: count for name, count in found.items() if count} == wanted, f"{found} by {prefix}, not {wanted}"

    # By pattern

    async def read(self, where: int, how: int, what: int) -> None:
        reader = self.readers[where % len(self.readers)]
        reader.take(await reader.consumer.poll(1 + how % 10, timeout_ms=500))

    async def come(self, where: int, how: int, what: int) -> None:
        """A reader goes, and another one comes in his place."""
        at = where % len(_READERS)
        await self.readers[at].consumer.close()
        self.readers[at] = await self._begin(*_READERS[at])

    async def _read_all(self) -> None:
        for reader in self.readers:
            for _ in range(_MOST_EMPTY_POLLS):
                reader.take(await reader.consumer.poll(timeout_ms=1_000))
                if not any(reader.due.values()):
                    break
            assert not any(reader.due.values()), f"{reader.due} have not come"

    # In groups

    async def join(self, where: int, how: int, what: int) -> None:
        """A member comes, or goes; what it was given and has not committed comes again."""
        team = self.teams[how % len(self.teams)]
        if where % 2 and len(team.members) < _MOST_MEMBERS:
            team.members.append(Member(self, team))
            await team.members[-1].consumer.start()
        elif len(team.members) > 1:
            await team.members.pop(what % len(team.members)).consumer.close()
        for member in team.members:
            member.handed.clear()

    async def poll(self, where: int, how: int, what: int) -> None:
        team = self.teams[what % len(self.teams)]
        await self._poll(team, team.members[where % len(team.members)], 1 + how % 10)

    async def _poll(self, team: Team, member: Member, most: int) -> None:
        messages, slots = await member.consumer.poll(most, timeout_ms=500), member.slots
        for message in messages:
            name, number = message.queue_name, int(message.text().partition(" ")[2])
            assert name is not None and self.ever.get(number) == name, f"{message.text()} comes as one of {name}"
            assert team.reads(name), f"{name} was not asked for"
            assert queue_slot(name) in slots, f"{name} is another member's"
            assert number not in team.committed, f"{number} of {name} was committed, and comes again"
            there = self.there.get(name, [])
            passed = {each for each in there if each < number} - team.given if number in there else set()
            assert not passed, f"{passed} of {name} were passed over"
            team.given.add(number)
            member.handed[number] = name

    async def commit(self, where: int, how: int, what: int) -> None:
        team = self.teams[what % len(self.teams)]
        member = team.members[where % len(team.members)]
        await member.consumer.commit()
        slots = member.slots
        team.committed |= {number for number, name in member.handed.items() if queue_slot(name) in slots}

    async def _share(self, team: Team) -> None:
        """All is given to somebody, and each has as many slots as the other."""
        for _ in range(_MOST_EMPTY_POLLS):
            for member in team.members:
                await self._poll(team, member, 100)
            owned = [member.slots for member in team.members]
            evenly = all(len(slots) == SLOTS // len(team.members) for slots in owned)
            if evenly and not team.left(self.there):
                break
        assert not team.left(self.there), f"nobody was given {team.left(self.there)}"
        assert evenly, f"members have {[len(slots) for slots in owned]} slots"
        assert len(set().union(*owned)) == SLOTS, "two have a slot"

    async def settled(self) -> None:
        await self._read_all()
        for team in self.teams:
            await self._share(team)
        for where in range(5):
            await self.list(where, 0, 0)
        found = {queue.name for queue in await self.client.queues("streams")}
        assert found == self.there.keys(), f"{found} are there, not {self.there.keys()}"

    async def finish(self) -> None:
        for reader in self.readers:
            await reader.consumer.close()
        for team in self.teams:
            for member in team.members:
                await member.consumer.close()
