"""How messages leave their topic, on both sides: what the cluster is told, and what a plain model says is left then.

They are moved to another topic when they expire, or make room; go as all groups have consumed them; are put away as
dead letters; or their queue is emptied, and its name forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lsmq import Client, Consumer, Message, Producer, UnknownTopic, WorkQueue
from lsmq.dead_letters import DeadLetters
from lsmq_lab.world.uses.use import read_to

TOPICS: Mapping[str, Mapping[str, Any]] = {
    "moves": {
        "queues": 2,
        "queue_max_messages": 3,
        "overflow": "drop_lowest_priority",
        "dropped_to": "over",
        "expired_to": "late",
    },
    "eaten": {"queues": 2, "delete_consumed": True},
    "doomed": {"queues": 1},
    "fleeting": {"queues": "named", "forget_empty_ms": 2_000},
}
MOST = TOPICS["moves"]["queue_max_messages"]
MOST_DELIVERIES = 2
_GROUPS = ("early", "tardy")
_NAMES = ("ann", "bob")
_SHORT_MS = 300

Read = Callable[[str, int], Awaitable[list[Message]]]
"""All messages of a queue."""
Ask = Callable[..., Awaitable[Any]]
"""The only worker asks for work, or settles it."""


@dataclass
class Eaten:
    """A queue whose messages go as they are consumed. ``gone``: below it nobody can say."""

    numbers: list[int] = field(default_factory=list)
    committed: dict[str, int] = field(default_factory=dict)
    gone: int = 0
    start: int = 0

    def floor(self, groups: set[str]) -> int:
        return min((self.committed.get(group, 0) for group in groups), default=0)


class Leaving:
    """Each deed asserts that the cluster did as the model says."""

    def __init__(self, client: Client, producers: Mapping[str, Producer], read: Read, ask: Ask) -> None:
        self.client, self.producers, self.read, self.ask = client, producers, read, ask
        #: Of each queue what was sent: priority and number, and whether it expires.
        self.sent: tuple[dict[tuple[int, int], bool], ...] = ({}, {})
        self.eaten = (Eaten(), Eaten())
        self.groups: set[str] = set()  # that all leaders have heard of
        self.open: dict[int, tuple[int, int]] = {}  # jobs: number, and how often it has failed
        self.dead: set[int] = set()
        self.names: dict[str, list[int]] = {}

    async def start(self) -> None:
        await WorkQueue(self.client, "doomed", "crew").configure(max_deliveries=MOST_DELIVERIES)

    # Moved

    async def move(self, number: int, how: int, what: int) -> None:
        """Only messages of queue 1 may expire."""
        queue, priority, expires = how % 2, what % 3, how % 4 == 3
        more = {"ttl_ms": _SHORT_MS} if expires else {}
        await self.producers["moves"].send_and_wait(f"{number}", queue=queue, priority=priority, **more)
        self.sent[queue][priority, number] = expires

    async def look_at_moved(self, *, settled: bool) -> None:
        there = [{int(message.text()) for message in await self.read("moves", queue)} for queue in (0, 1)]
        over, late = await self._letters("over"), await self._letters("late")
        for queue, sent in enumerate(self.sent):
            numbers, lasting = {number for _, number in sent}, {place[1] for place in sent if not sent[place]}
            assert there[queue] <= numbers, f"messages of another queue are in {queue}"
            assert lasting <= there[queue] | over, f"{lasting - there[queue] - over} neither stayed nor were moved"
            assert not lasting & late, f"{lasting & late} have expired, and live for ever"
            if settled:
                assert numbers <= there[queue] | over | late, f"{numbers - there[queue] - over - late} are lost"
                assert not there[queue] & (over | late), "what was moved has gone where it was"
                assert len(there[queue]) <= MOST, f"queue {queue} is over its limit"
        if settled:
            assert there[0] == {number for _, number in sorted(self.sent[0])[-MOST:]}, "the lowest have made room"

    async def _letters(self, topic: str) -> set[int]:
        try:
            return {int(letter.message.text()) async for letter in DeadLetters(self.client, topic).read()}
        except UnknownTopic:
            return set()

    # Consumed

    async def eat(self, number: int, where: int, how: int, what: int) -> None:
        at = how % 2
        known = self.eaten[at]
        if where % 3:
            await self.producers["eaten"].send_and_wait(f"{number}", queue=at)
            known.numbers.append(number)
            return
        group, offset = _GROUPS[what // 7 % 2], what % (len(known.numbers) + 1)
        await self.client.commit_offsets(group, "eaten", {at: offset})
        known.committed[group] = max(offset, known.committed.get(group, 0))
        # Who begins elsewhere is heard of within moments: until then a queue goes as far as one of the others has read.
        most = known.floor(self.groups) if self.groups else max(known.committed.values())
        known.gone = max(known.gone, most)

    async def look_at_eaten(self, *, settled: bool) -> None:
        if settled:
            self.groups = {group for known in self.eaten for group in known.committed}
        for queue, known in enumerate(self.eaten):
            if settled:
                known.start = max(known.start, known.floor(self.groups))
                known.gone = max(known.gone, known.start)
            came = {message.offset: int(message.text()) for message in await self.read("eaten", queue)}
            left = dict(enumerate(known.numbers))
            assert came.items() <= left.items(), f"other messages came of {queue}"
            assert set(range(known.gone, len(left))) <= came.keys(), f"what not all had read has gone from {queue}"
            assert min(came, default=known.start) >= known.start, f"what all have read is still in {queue}"

    # Dead

    async def doom(self, number: int, where: int, how: int) -> None:
        if where % 2:
            sent = await self.producers["doomed"].send_and_wait(f"{number}", queue=0)
            self.open[sent.offset] = number, 0
            return
        found = (await self.ask("pop", "doomed", max=1, wait_ms=5_000 if self.open else 0))["messages"]
        if not found:
            assert not self.open, f"nobody was given the work {self.open}"
            return
        (task,), done = found, how % 4 == 0
        assert task["offset"] in self.open, f"{task['offset']} was settled, or is dead"
        settled = await self.ask(
            "ack" if done else "nack", "doomed", receipts=[task["receipt"]], **({} if done else {"delay_ms": 0})
        )
        assert settled["refused"] == []
        number, failed = self.open[task["offset"]]
        self.open[task["offset"]] = number, failed + 1
        if done or failed + 1 == MOST_DELIVERIES:
            del self.open[task["offset"]]
            self.dead |= set() if done else {number}

    async def wake(self) -> None:
        """A new leader goes on with dead letters once somebody asks for what it has of the work queue."""
        await WorkQueue(self.client, "doomed", "crew").describe()

    async def look_at_dead(self, *, settled: bool) -> None:
        letters = await self._letters("doomed.dlq")
        assert letters <= self.dead, f"{letters - self.dead} have not failed for the last time"
        assert not settled or letters == self.dead, f"{self.dead - letters} are no dead letters"

    # Emptied and forgotten

    async def empty(self, number: int, where: int, how: int) -> None:
        name = _NAMES[where % 2]
        if how % 3:
            await self.producers["fleeting"].send_and_wait(f"{number}", queue=name)
            self.names.setdefault(name, []).append(number)
        elif name in self.names:
            latest = (await self.client.queue("fleeting", name)).latest
            await self.client.trim_queue("fleeting", name, latest)
            del self.names[name]

    async def look_at_names(self, *, settled: bool) -> None:
        found: dict[str, list[int]] = {}
        for queue in await self.client.queues("fleeting"):
            consumer = Consumer(self.client, "fleeting", queues=[queue.name], start="earliest", wait_ms=200)
            messages = await read_to(consumer, {queue.number: queue.latest} if queue.count else {})
            found[queue.name] = [int(message.text()) for message in messages]
        assert {name: numbers for name, numbers in found.items() if numbers} == self.names
        assert not settled or found == self.names, "names of empty queues are forgotten"

    async def look(self, *, settled: bool) -> None:
        await self.look_at_moved(settled=settled)
        await self.look_at_eaten(settled=settled)
        await self.look_at_dead(settled=settled)
        await self.look_at_names(settled=settled)
