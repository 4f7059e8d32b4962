"""A work queue in order of keys: one of a key at a time, and what becomes of those that a worker has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import WorkQueue
from lsmq_node.workqueue.receipts import decode_receipt, group_hash

from .area import DAY_MS, KEYS, Area, Leaders, Life
from .letters import letters

_LONG_MS, _SHORT_MS = 43_200_000, 1_000
_MOST_DELIVERIES = 3

Place = tuple[int, int]
"""A queue and an offset."""


@dataclass(eq=False)
class Delivery:
    """``leader``: who made it, and whether it hides its message for long. ``is_over``: surely, as time has passed.

    ``hidden_by``: leaders under whom it surely is, unless it is settled. ``after``: those under whom somebody else got
    the message.
    """

    place: Place
    receipt: str
    leader: int
    count: int
    is_long: bool
    is_over: bool = False
    hidden_by: Leaders | None = None
    after: Leaders | None = None


@dataclass(eq=False)
class Job:
    """``least``, ``most``: deliveries that have failed. ``rests``: for a day; ``may_rest``: for a moment.

    ``held``: the last delivery, unless it was settled, or is over.
    """

    number: int
    key: str | None
    least: int = 0
    most: int = 0
    rests: bool = False
    may_rest: bool = False
    may_be_dead: bool = False
    held: Delivery | None = None

    def failed(self, count: int) -> None:
        self.least = self.most = count


class Keyed(Area):
    """``open``: what was not settled. ``dying``: what has failed for the last time, and may hold its key until it is
    among the letters. ``removed``: what is there no more, and may hold its key still: for moments, or as long as
    somebody has it. ``done``: receipts of what was. ``deliveries``: which nobody has settled here."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"keyed": {"queues": 2}}
    deeds = (
        *("send", "send", "send", "pop", "pop", "pop", "settle", "settle", "settle", "settle", "look", "tune"),
        *("remove", "remove"),
    )

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: dict[Place, Job] = {}
        self.dying: dict[Place, Job] = {}
        self.removed: dict[Place, Job] = {}
        self.ends = [0, 0]
        self.dead: set[int] = set()
        self.done: dict[Place, str] = {}
        self.deliveries: list[Delivery] = []

    async def start(self) -> None:
        self.work = WorkQueue(self.client, "keyed", "crew", order="key")
        await self.tune(0, 0, 0)

    async def tune(self, where: int, how: int, what: int) -> None:
        """Queues get other turns, for which the leader begins anew with what it has looked at."""
        weights = {"0": 1 + how % 3}
        starts = (await self.client.offsets("keyed")).earliest
        for (queue, offset), job in self.removed.items():
            if offset < starts[queue]:  # who has it is forgotten with what was looked at
                job.held = None
        await self.work.configure(order="key", max_deliveries=_MOST_DELIVERIES, weights=weights)

    async def send(self, where: int, how: int, what: int) -> None:
        """Some of one key follow one another, more or less."""
        queue = where % 2
        for at in range(1 + how % 3):
            job = Job(self.life.number(), KEYS[(what + at * (where % 3)) % 4])
            sent = await self.life.send("keyed", f"{job.number}", key=job.key, queue=queue)
            self.open[queue, sent.offset] = job
            self.ends[queue] = sent.offset + 1

    async def remove(self, where: int, how: int, what: int) -> None:
        """A message is deleted, whatever has become of it, or all before it; or all that are there."""
        queue = where % 2
        if not (end := self.ends[queue]):
            return
        if how % 8 == 0:
            await self.client.purge_topic("keyed", queues=[queue])
            gone = range(end)
        elif how % 8 < 3:
            before = what % (end + 1)
            await self.client.trim_topic("keyed", {queue: before})
            gone = range(before)
        else:
            offsets = [place[1] for place in self.open if place[0] == queue] or [what % end]
            holding = [offset for offset in offsets if self._holds(queue, offset)]
            offset = (holding or offsets)[what % len(holding or offsets)]
            await self.client.delete_messages("keyed", [(queue, offset)])
            gone = range(offset, offset + 1)
        for offset in gone:
            place = queue, offset
            if place in self.open:
                job = self.removed[place] = self.open.pop(place)
                if job.may_be_dead or (job.held is not None and job.held.count == _MOST_DELIVERIES):
                    self.dead.add(job.number)
            elif place in self.dying:
                self.removed[place] = self.dying.pop(place)

    def _holds(self, queue: int, offset: int) -> bool:
        """Whether somebody has it, or it rests, so that others of its key wait for it."""
        job = self.open.get((queue, offset))
        return job is not None and (job.rests or job.held is not None)

    # What a worker is given

    async def pop(self, where: int, how: int, what: int) -> None:
        await self._pop(where % 2, 1 + how % 4, is_long=what % 4 != 0)

    async def _pop(self, queue: int, most: int, *, is_long: bool) -> list[Delivery]:
        """Of the shard of that queue."""
        topic = await self.client.topic("keyed")
        shard = topic.route(queue).shard
        queues = [each for each in (0, 1) if topic.route(each).shard == shard]
        surely = any(True for each in queues for _ in self._surely(each))
        before = self.life.leaders()
        answer = await self.life.ask_crew(
            "pop",
            "keyed",
            queue=queue,
            shards=[shard],
            order="key",
            max=most,
            wait_ms=5_000 if surely else 0,
            visibility_ms=_LONG_MS if is_long else _SHORT_MS,
        )
        tasks = answer["messages"]
        assert tasks or not surely, f"nobody was given {list(self._surely(queue))}"
        assert len(tasks) <= most and {task["queue"] for task in tasks} <= set(queues)
        deliveries = [await self._given(task, topic.id, is_long=is_long) for task in tasks]
        for delivery in deliveries:
            delivery.hidden_by = self._unchanged(before) if is_long else None
        return deliveries

    def _unchanged(self, before: Leaders) -> Leaders | None:
        """Those who have led since, if it is known."""
        return before if before and before == self.life.leaders() else None

    def _waits_for(self, place: Place) -> bool:
        """Whether another of its key may be before it."""
        return any(self._before(place, {**self.open, **self.dying, **self.removed}))

    def _before(self, place: Place, jobs: Mapping[Place, Job]) -> Iterator[Place]:
        """Those of its key that came before it to its queue."""
        key = self.open[place].key
        return (
            each
            for each, job in jobs.items()
            if key is not None and job.key == key and each[0] == place[0] and each < place
        )

    def _surely(self, queue: int) -> Iterator[Place]:
        """What somebody must be given who asks."""
        for place, job in self.open.items():
            waits = job.rests or job.may_rest or job.may_be_dead or job.held is not None
            if place[0] == queue and not waits and not self._waits_for(place):
                yield place

    async def _given(self, task: Mapping[str, Any], topic_id: int, *, is_long: bool) -> Delivery:
        place = task["queue"], task["offset"]
        receipt = decode_receipt(task["receipt"], group_hash("crew"), topic_id)
        assert receipt is not None
        delivery = Delivery(place, task["receipt"], receipt.token >> 32, task["deliveries"], is_long)
        assert place in self.open, f"{place} was settled before, or is dead, or was deleted"
        job = self.open[place]
        assert int(task["body"]) == job.number, f"{place} is another message"
        assert not job.rests, f"{place} was to rest for a day"
        if (held := job.held) is not None:
            hides = (held.is_long and held.leader == delivery.leader) or held.hidden_by == self.life.leaders()
            assert not hides, f"{place} is with somebody else"
            job.most = max(job.most, held.count)
        await self._is_next(place)
        assert job.least < delivery.count <= job.most + 1, f"{delivery.count} deliveries, not {job.least} to {job.most}"
        for each in self.deliveries:
            if each.place == place:
                each.after = self.life.leaders()
        job.held, job.may_rest, job.may_be_dead = delivery, False, False
        self.deliveries.append(delivery)
        return delivery

    async def _is_next(self, place: Place) -> None:
        """Those of its key that came before it are settled; what is dead is among the letters."""
        before = [each for each in self._before(place, self.open) if not self.open[each].may_be_dead]
        assert not before, f"{place} came before {before} of its key"
        leaders = self.life.leaders()
        for each in self._before(place, self.removed):
            held = self.removed[each].held
            assert held is None or not held.hidden_by or held.hidden_by != leaders, (
                f"{place} came, though somebody has {each} of its key, which was deleted"
            )
        if any(self._before(place, self.dying)) or any(self._before(place, self.open)):
            await self.look(0, 0, 0)
            before = [*self._before(place, self.dying), *self._before(place, self.open)]
            assert not before, f"{place} came before {before} of its key, which are no dead letters"

    # What he does with it

    async def settle(self, where: int, how: int, what: int) -> None:
        """Some of what a worker has, or had, in one request."""
        ways = (self._ack, self._ack, self._nack, self._nack, self._nack, self._release, self._extend, self._ack_again)
        first = what % max(1, len(self.deliveries))
        await ways[how % len(ways)](self.deliveries[first : first + 1 + where % 3], where)

    async def _ask(self, what: str, some: Sequence[Delivery], **fields: Any) -> list[Delivery]:
        """Those for which it counts."""
        found: list[Delivery] = []
        for queue in (0, 1):  # Who asks a leader asks for its shard alone.
            if of_queue := [each for each in some if each.place[0] == queue]:
                found += await self._ask_for(queue, what, of_queue, **fields)
        return found

    async def _ask_for(self, queue: int, what: str, some: Sequence[Delivery], **fields: Any) -> list[Delivery]:
        before = self.life.leaders()
        receipts = [each.receipt for each in some]
        answer = await self.life.ask_crew(what, "keyed", queue=queue, receipts=receipts, **fields)
        refused = {row["index"] for row in answer["refused"]}
        assert all(row["code"] == "receipt_expired" for row in answer["refused"])
        assert answer["done"] + len(refused) == len(some)
        counted: list[Delivery] = []
        for at, delivery in enumerate(some):
            surely = self._counts(delivery, before)
            if any(each.place == delivery.place for each in counted):
                surely = None  # It was settled by another one before.
            accepted = at not in refused
            assert surely in (None, accepted), f"{what} of {delivery} is {'' if accepted else 'not '}accepted"
            if accepted:
                counted.append(delivery)
            else:
                self.deliveries.remove(delivery)
                self._is_over(delivery)
        return counted

    def _counts(self, delivery: Delivery, leaders: Leaders) -> bool | None:
        """Whether it surely does, or does not; None: nobody knows."""
        if delivery.place not in self.open or delivery.after is not None:
            unchanged = delivery.after is not None and delivery.after == leaders == self.life.leaders()
            return False if unchanged else None
        if delivery.is_long or (delivery.hidden_by is not None and delivery.hidden_by == self.life.leaders()):
            return True
        return False if delivery.is_over and delivery.hidden_by is None else None

    def _is_over(self, delivery: Delivery) -> None:
        """Its message is to be had again, unless that was the last time."""
        delivery.is_over = True
        job = self.open.get(delivery.place) or self.removed.get(delivery.place)
        if job is not None and job.held is delivery:
            job.held, job.most = None, max(job.most, delivery.count)
            job.may_be_dead = delivery.count == _MOST_DELIVERIES

    def _settled(self, delivery: Delivery) -> Job | None:
        """By this one: whether the others count nobody knows. None where it was settled before."""
        self.deliveries.remove(delivery)
        for each in self.deliveries:
            if each.place == delivery.place:
                each.after = frozenset()
        if delivery.place in self.removed:
            self.removed[delivery.place].held = None
        job = self.open.get(delivery.place)
        if job is not None:
            job.held, job.may_be_dead = None, False
        return job

    async def _ack(self, some: Sequence[Delivery], where: int) -> None:
        for delivery in await self._ask("ack", some):
            if self._settled(delivery) is None:
                self.removed.pop(delivery.place, None)
            else:
                del self.open[delivery.place]
                self.done[delivery.place] = delivery.receipt

    async def _nack(self, some: Sequence[Delivery], where: int) -> None:
        """It comes again at once, in a moment or in a day; or never."""
        how = where % 5
        more: dict[str, Any] = ({"delay_ms": 0}, {}, {"delay_ms": 0}, {"delay_ms": DAY_MS}, {"dead_letter": True})[how]
        for delivery in await self._ask("nack", some, **more):
            if (job := self._settled(delivery)) is None:
                continue
            job.failed(delivery.count)
            job.rests, job.may_rest = how == 3, how == 1
            if how == 4 or delivery.count == _MOST_DELIVERIES:
                self.dying[delivery.place] = self.open.pop(delivery.place)
                self.dead.add(job.number)

    async def _release(self, some: Sequence[Delivery], where: int) -> None:
        for delivery in await self._ask("nack", some, release=True):
            if (job := self._settled(delivery)) is not None:
                job.most = delivery.count - 1
                job.least = min(job.least, job.most)

    async def _extend(self, some: Sequence[Delivery], where: int) -> None:
        before = self.life.leaders()
        for delivery in await self._ask("extend", some, visibility_ms=_LONG_MS):
            delivery.hidden_by = self._unchanged(before) or frozenset()

    async def _ack_again(self, some: Sequence[Delivery], where: int) -> None:
        """What was done is done."""
        queue = where % 2
        receipts = [receipt for place, receipt in self.done.items() if place[0] == queue][-3:]
        if receipts:
            answer = await self.life.ask_crew("ack", "keyed", queue=queue, receipts=receipts)
            assert answer == {"done": len(receipts), "refused": []}, f"{answer} of what was done before"

    # Dead letters

    async def rouse(self) -> None:
        await self.work.describe()

    async def look(self, where: int, how: int, what: int) -> None:
        found = await letters(self.client, "keyed.dlq")
        for place, job in list(self.open.items()):
            was_last = job.held is not None and not job.held.is_long and job.held.count == _MOST_DELIVERIES
            if job.number in found and (job.may_be_dead or was_last):
                del self.open[place]
                self.dead.add(job.number)
        self.dying = {place: job for place, job in self.dying.items() if job.number not in found}
        assert found <= self.dead, f"{found - self.dead} have not failed for the last time"

    async def settled(self) -> None:
        for delivery in [each for each in self.deliveries if not each.is_long and each.hidden_by is None]:
            self._is_over(delivery)
        await self.look(0, 0, 0)
        assert not self.dying, f"{[job.number for job in self.dying.values()]} are no dead letters"
        held = {delivery.place for delivery in self.deliveries}
        self.removed = {place: job for place, job in self.removed.items() if place in held}
        for job in self.open.values():
            job.may_rest = job.may_be_dead = False  # What is not dead by now was not counted, as its leader died.

    async def finish(self) -> None:
        """All are done but those that rest, and what waits for them."""
        await self._ack(list(self.deliveries), 0)
        for queue in (0, 1):
            while any(True for _ in self._surely(queue)):
                given = await self._pop(queue, 4, is_long=True)
                await self._ack(given, 0)
        assert all(job.rests or self._waits_for(place) for place, job in self.open.items())
