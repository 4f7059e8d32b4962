"""Messages that go once all have done with them, or as they are acknowledged: groups, work queues, and members who are
each given everything, that come later, go, and come again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lsmq import Consumer, WorkQueue
from lsmq.groups import Group

from .area import Area, Life

_GROUPS = ("first", "second", "third")
_MEMBERS = ("wall/m0", "wall/m1")
_CREW = "crew"
_QUEUES = 2


@dataclass
class Line:
    """A queue. ``gone``: below it nobody can say what is there. ``start``: below it nothing is in the end."""

    numbers: list[int] = field(default_factory=list)
    gone: int = 0
    start: int = 0

    def undone(self, done: Collection[int], first: int) -> int:
        """The first, from there on, that was not done."""
        return next((at for at in range(first, len(self.numbers)) if at not in done), len(self.numbers))


class Consumed(Area):
    """``shed`` drops what all have done with; of ``acked`` what its workers have done goes.

    Attributes:
        lines: by topic and queue.
        committed: of each group of ``shed`` where it is, by queue.
        heard: groups that all leaders have heard of, and that are there still.
        done: of each topic and queue the offsets that the workers have acknowledged.
        deletes: whether the workers of ``acked`` do.
        last: of each member who is given everything, and queue, the offset that came last.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "shed": {"queues": _QUEUES, "delete_consumed": True},
        "acked": {"queues": _QUEUES},
    }
    deeds = ("send", "send", "send", "commit", "commit", "work", "work", "work", "watch", "leave", "switch", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.lines = {(topic, queue): Line() for topic in self.topics for queue in range(_QUEUES)}
        self.committed: dict[str, dict[int, int]] = {}
        self.heard: set[str] = set()
        self.done: dict[tuple[str, int], set[int]] = {place: set() for place in self.lines}
        self.deletes = True
        self.watchers: dict[str, Consumer] = {}
        self.last: dict[str, dict[int, int]] = {}

    async def start(self) -> None:
        self.work_queues = {topic: WorkQueue(self.client, topic, _CREW) for topic in self.topics}
        await self.work_queues["acked"].configure(delete_on_ack=True, max_deliveries=1_000)
        await self.work_queues["shed"].configure(max_deliveries=1_000)

    async def send(self, where: int, how: int, what: int) -> None:
        topic, queue = ("shed", "acked")[where % 2], how % _QUEUES
        line = self.lines[topic, queue]
        for _ in range(1 + what % 3):
            number = self.life.number()
            sent = await self.life.send(topic, f"{number}", queue=queue)
            assert sent.offset == len(line.numbers), "offsets have no gaps"
            line.numbers.append(number)

    # Who consumes

    async def commit(self, where: int, how: int, what: int) -> None:
        group, queue = _GROUPS[where % len(_GROUPS)], how % _QUEUES
        offset = what % (len(self.lines["shed", queue].numbers) + 1)
        await self.client.commit_offsets(group, "shed", {queue: offset})
        self._committed(group, {queue: offset})

    def _committed(self, group: str, offsets: Mapping[int, int]) -> None:
        known = self.committed.setdefault(group, {})
        for queue, offset in offsets.items():
            known[queue] = max(offset, known.get(queue, 0))
        self._may_go()

    def _may_go(self) -> None:
        """What all have done with that are heard of everywhere; where nobody is, what one of the others has."""
        for queue in range(_QUEUES):
            line = self.lines["shed", queue]
            at = {group: offsets.get(queue, 0) for group, offsets in self.committed.items()}
            if _CREW in at:  # It passes over what has gone.
                at[_CREW] = line.undone(self.done["shed", queue], max(line.gone, line.start))
            heard = [at[group] for group in self.heard]
            line.gone = max(line.gone, min(heard) if heard else max(at.values(), default=0))

    async def leave(self, where: int, how: int, what: int) -> None:
        """A group is deleted: it holds nothing any more, and begins anew."""
        group = (*_GROUPS, "wall")[where % 4]
        names = _MEMBERS if group == "wall" else (group,)
        for name in names:
            if name in self.watchers:
                await self.watchers.pop(name).close(leave=True)
        await Group(self.client, group).delete(force=True)
        for name in names:
            self.committed.pop(name, None)
            self.last.pop(name, None)
            self.heard.discard(name)
        self._may_go()

    async def watch(self, where: int, how: int, what: int) -> None:
        """A member who is given everything reads on; he may have been away."""
        member = _MEMBERS[where % len(_MEMBERS)]
        group, _, static_id = member.partition("/")
        if member not in self.watchers:
            consumer = Consumer(
                self.client, "shed", group=group, mode="broadcast", static_id=static_id, wait_ms=200, session_ms=3_000
            )
            await consumer.start()
            self.watchers[member] = consumer
            self.last[member] = {queue: at - 1 for queue, at in self.committed.get(member, {}).items()}
        last = self.last[member]
        for message in await self.watchers[member].poll(1 + how % 10, timeout_ms=500):
            queue, offset = message.queue, message.offset
            line = self.lines["shed", queue]
            assert int(message.text()) == line.numbers[offset], f"{offset} of {queue} is another message"
            first = last.get(queue, -1) + 1
            assert offset >= first, f"{member} was at {first} of {queue}, and is given {offset}"
            assert offset <= max(first, line.gone), f"{member} was not given {first} to {offset} of {queue}"
            last[queue] = offset
        if what % 3:
            await self.watchers[member].commit()
            if offsets := {queue: offset + 1 for queue, offset in last.items()}:
                self._committed(member, offsets)
        if what % 7 == 0:
            await self.watchers.pop(member).close()

    # Who works

    async def work(self, where: int, how: int, what: int) -> None:
        """Somebody is given some of one queue's shard, and has done them, or gives them back."""
        name, queue = ("shed", "acked")[where % 2], how % _QUEUES
        topic = await self.client.topic(name)
        shard = topic.route(queue).shard
        queues = [each for each in range(_QUEUES) if topic.route(each).shard == shard]
        surely = [(each, at) for each in queues for at in self._surely(name, each)]
        fields = {"shards": [shard], "max": 1 + what % 4, "wait_ms": 5_000 if surely else 0}
        tasks = (await self.life.ask_crew("pop", name, queue=queue, **fields))["messages"]
        assert tasks or not surely, f"nobody was given {surely} of {name}"
        for at, task in enumerate(tasks):
            place = name, task["queue"]
            offset, line = task["offset"], self.lines[place]
            assert int(task["body"]) == line.numbers[offset], f"{offset} of {place} is another message"
            assert offset not in self.done[place], f"{offset} of {place} was done before"
            does = (how + at) % 4 != 0
            more = {} if does else {"delay_ms": 0}
            settles = "ack" if does else "nack"
            answer = await self.life.ask_crew(settles, name, queue=task["queue"], receipts=[task["receipt"]], **more)
            assert answer["refused"] == [] or offset < line.gone, f"{offset} of {place} is refused: {answer}"
            if does and not answer["refused"]:
                self._did(name, task["queue"], offset)

    def _surely(self, topic: str, queue: int) -> list[int]:
        line = self.lines[topic, queue]
        return [at for at in range(line.gone, len(line.numbers)) if at not in self.done[topic, queue]]

    def _did(self, topic: str, queue: int, offset: int) -> None:
        line, done = self.lines[topic, queue], self.done[topic, queue]
        done.add(offset)
        if topic == "acked":
            self._acked_go()
        elif (first := line.undone(done, line.start)) > line.start:
            self._committed(_CREW, {queue: first})
        else:
            self._may_go()

    def _acked_go(self) -> None:
        for queue in range(_QUEUES if self.deletes else 0):
            line = self.lines["acked", queue]
            line.gone = line.undone(self.done["acked", queue], line.gone)

    async def switch(self, where: int, how: int, what: int) -> None:
        """What was done goes from then on, or stays."""
        deletes = where % 3 != 0
        await self.work_queues["acked"].configure(delete_on_ack=deletes, max_deliveries=1_000)
        self.deletes = deletes
        self._acked_go()

    # What is there

    async def look(self, where: int, how: int, what: int) -> None:
        for (topic, queue), line in self.lines.items():
            came = {message.offset: int(message.text()) for message in await self.life.read(topic, queue)}
            left = dict(enumerate(line.numbers))
            assert came.items() <= left.items(), f"other messages came of {topic}/{queue}"
            missing = set(range(line.gone, len(left))) - came.keys()
            assert not missing, f"{missing} of {topic}/{queue} have gone, and somebody has not done with them"
            assert min(came, default=line.start) >= line.start, f"all have done with what is in {topic}/{queue}"

    async def rouse(self) -> None:
        for work_queue in self.work_queues.values():
            await work_queue.describe()

    async def settled(self) -> None:
        self.heard = set(self.committed)
        self._may_go()
        for queue in range(_QUEUES):
            if self.heard:
                line = self.lines["shed", queue]
                least = min(offsets.get(queue, 0) for offsets in self.committed.values())
                line.start = max(line.start, least)
            if self.deletes:
                acked = self.lines["acked", queue]
                acked.start = max(acked.start, acked.undone(self.done["acked", queue], acked.start))
        await self.look(0, 0, 0)

    async def finish(self) -> None:
        """Whoever works is given all there is to do, and whoever is given everything has it."""
        for topic in self.topics:
            for queue in range(_QUEUES):
                while self._surely(topic, queue):
                    await self.work(("shed", "acked").index(topic), 2 + queue, 0)
        for watcher in self.watchers.values():
            await watcher.close()
