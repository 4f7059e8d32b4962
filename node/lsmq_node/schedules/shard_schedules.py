"""The schedules of one shard while this node leads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush, nsmallest
from typing import TYPE_CHECKING, Any

import structlog

from lsmq.errors import LsmqError, TooManySchedules, UnknownSchedule
from lsmq.record_batch import RecordBatch
from lsmq_node.broker import NOBODY, Limited, Made, Maker, ShardPort, SharedThing
from lsmq_node.machines import ShardMachine, Step
from lsmq_node.storage.later_names import numbered

from .cron import Cron, zone_of
from .records import PREFIX, Schedule, key_of

if TYPE_CHECKING:
    from .service import ScheduleService

#: Of a shard.
MAX_SCHEDULES = 10_000
#: A time's message is stored so long before it.
_AHEAD_MS = 1_000
#: Where the next time is further away, it is certain that its message is not stored yet, whatever clocks say.
_CERTAIN_MS = 3_600_000
_LOOK_S = 30.0
_LOAD_AT_ONCE = 200
#: So many times are looked at before others on the loop have their turn.
_FIRE_AT_ONCE = 10
_AGAIN_S = 1.0
#: So many times beside the next ones are in memory, of schedules that were replaced.
_STALE = 1_000

_log = structlog.get_logger("lsmq.schedules")


_SHARED = SharedThing(
    TooManySchedules, "schedules in this shard", f"the {MAX_SCHEDULES} that a shard may have", "delete some"
)


class ShardSchedules(ShardMachine):
    """In one round of its store. Loop thread only."""

    subject = "schedules"

    def __init__(self, service: ScheduleService, port: ShardPort) -> None:
        super().__init__(service, port)
        self.known: dict[str, Schedule] = {}
        allowances = service.broker.allowances
        self._made = Made(allowances, Limited.SCHEDULES, allowances.addresses.share(MAX_SCHEDULES, _SHARED))
        self._put_by: dict[str, Maker] = {}  # last: whom queues count for that they make
        #: When to try, which is the next time or later, and that time; where it is another by now this is stale.
        self._queue: list[tuple[int, int, str]] = []
        self._look_at = 0.0
        self._task: asyncio.Task[None] | None = None  # that puts in line what is due
        self._making: set[str] = set()  # keys of schedules whose queues, which have names, are being made
        #: Expressions and time zones of which it is not known here when they are next, and when to look again.
        self._unknown: dict[tuple[str, str], float] = {}

    async def load(self, left: Any) -> None:
        await self.barrier()
        soon_ms = self.store.delayed.now_ms() + _CERTAIN_MS
        for at, (key, body) in enumerate(self.store.documents(PREFIX)):
            found = Schedule.decode(key, body)
            if found.next_ms <= soon_ms and self._is_stored(found):  # the document behind it was cut off
                found = self._after_if_known(found, found.next_ms) or found
            self.known[key] = found
            if at % _LOAD_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._order()
        if self.known:
            _log.info("schedules_loaded", shard=self.port.number, schedules=len(self.known), round=self.round)

    def _is_stored(self, schedule: Schedule) -> bool:
        epoch = self.store.producer_epoch(schedule.producer_id)
        return epoch is not None and epoch > schedule.count

    def _after(self, schedule: Schedule, now_ms: int) -> Schedule:
        """When its message is stored. Times that were missed meanwhile do not come again."""
        behind_ms = max(now_ms, schedule.next_ms)
        next_ms = Cron.parse(schedule.cron).next_ms(behind_ms, zone_of(schedule.tz))
        return replace(schedule, next_ms=next_ms, last_ms=schedule.next_ms, count=schedule.count + 1)

    def _after_if_known(self, schedule: Schedule, now_ms: int) -> Schedule | None:
        """None where nobody here knows the time zone: it is not installed, or no descriptor is left for its file."""
        what = schedule.cron, schedule.tz
        if self._loop.time() < self._unknown.get(what, 0.0):
            return None
        try:
            after = self._after(schedule, now_ms)
        except LsmqError as error:
            if what not in self._unknown:
                number, name = self.port.number, schedule.name
                self._log.warning("schedule_waits", shard=number, schedule=name, code=error.code, message=error.message)
            self._unknown[what] = self._loop.time() + _AGAIN_S
            return None
        self._unknown.pop(what, None)
        return after

    # Time

    def due(self) -> Iterator[Step]:
        if self._task is not None and self._task.done():
            ended, self._task = self._task, None
            ended.result()
        if self._task is None and self._is_near(self.store.delayed.now_ms()):
            self._task = self._start(self._fire())
        if self._loop.time() >= self._look_at:
            self._look_at = self._loop.time() + _LOOK_S
            yield self._of_topics_that_are_gone()

    def _is_near(self, now_ms: int) -> bool:
        return bool(self._queue) and self._queue[0][0] <= now_ms + _AHEAD_MS

    async def _fire(self) -> None:
        """All ten thousand may be due at the same minute."""
        for count, step in enumerate(self._near(), 1):
            self.put_aside(step)
            if count % _FIRE_AT_ONCE == 0:
                await asyncio.sleep(0)
                try:
                    self.check()
                except LsmqError:
                    return

    def _near(self) -> Iterator[Step]:
        """Messages of the times that are near, each to be put before the next is asked for; nothing where one waits."""
        later: list[tuple[int, int, str]] = []
        while self._is_near(now_ms := self.store.delayed.now_ms()):
            _, next_ms, key = heappop(self._queue)
            schedule = self.known.get(key)
            if schedule is None or schedule.next_ms != next_ms:
                continue
            step = self._firing(schedule, now_ms)
            if step is None:
                later.append((next_ms, next_ms, key))
                yield Step()
                continue
            yield step
            if self.known.get(key) is schedule:  # it was refused, and is tried again when the others had their turn
                later.append((now_ms + _AHEAD_MS + 1, next_ms, key))
                break
        for each in later:
            heappush(self._queue, each)

    def _firing(self, schedule: Schedule, now_ms: int) -> Step | None:
        """None where it waits: its queue has a name and is being made, or its time zone is not known."""
        if not self.store.has_topic(schedule.topic_id):
            return Step({schedule.key: None}, appended=partial(self._drop, schedule.key))
        after = self._after_if_known(schedule, now_ms)
        if after is None:
            return None
        batch = RecordBatch(schedule.due(after.count), verify=False)
        if isinstance(schedule.queue, str):
            numbers = self.service.broker.names.lasting(self.port, schedule.topic_id, (schedule.queue,))
            if numbers is None:
                if schedule.key not in self._making:
                    self._making.add(schedule.key)
                    self._start(self._make_queue(schedule, schedule.queue))
                return None
            batch = numbered(batch, (schedule.queue,), numbers)
        appended = partial(self._keep, after)
        return Step({schedule.key: after.encode()}, batches=[(schedule.topic_id, batch)], appended=appended)

    async def _make_queue(self, schedule: Schedule, name: str) -> None:
        broker = self.service.broker
        try:
            accounts = broker.name_admission.accounts(self._put_by.get(schedule.key, NOBODY))
            await broker.names.declare(self.port, await broker.topic_by_id(schedule.topic_id), (name,), accounts)
        except LsmqError as error:  # it is tried again with the next look
            _log.info("schedule_queue_not_made", shard=self.port.number, schedule=schedule.name, code=error.code)
            await asyncio.sleep(_AGAIN_S)
        finally:
            self._making.discard(schedule.key)

    def _of_topics_that_are_gone(self) -> Step:
        gone = {topic for topic in {each.topic_id for each in self.known.values()} if not self.store.has_topic(topic)}
        keys = [key for key, each in self.known.items() if each.topic_id in gone]

        def appended() -> None:
            for key in keys:
                self._drop(key)

        return Step(dict.fromkeys(keys), appended=appended)

    def _keep(self, schedule: Schedule) -> None:
        self.known[schedule.key] = schedule
        heappush(self._queue, (schedule.next_ms, schedule.next_ms, schedule.key))
        if len(self._queue) > 2 * len(self.known) + _STALE:
            self._order()

    def _order(self) -> None:
        self._queue = [(each.next_ms, each.next_ms, key) for key, each in self.known.items()]
        heapify(self._queue)

    def _drop(self, key: str) -> None:
        self.known.pop(key, None)
        self._put_by.pop(key, None)
        self._made.gone(key)

    # What is asked

    async def keep(self, schedule: Schedule, maker: Maker) -> bool:
        """Make it, or put it in place of the one of its name; whether that was there. Durable on return.

        ``maker``: whom it counts for, where it is new, and whom its queue will, where that has a name and is.

        Raises ``TooManySchedules``, ``TooManyQueues``, and what a write raises.
        """
        await self._admit_queue(schedule, maker)
        self.check()
        former = self.known.get(schedule.key)
        if former is not None and former.last_ms >= schedule.next_ms:  # The message of that time is stored already.
            next_ms = Cron.parse(schedule.cron).next_ms(former.last_ms, zone_of(schedule.tz))
            schedule = replace(schedule, next_ms=next_ms, last_ms=former.last_ms)
        known = former is not None
        if not known and len(self.known) >= MAX_SCHEDULES:
            raise TooManySchedules(
                f"there are {MAX_SCHEDULES} schedules in this shard, the limit; delete some", limit=MAX_SCHEDULES
            )
        if not known:
            self._made.check(schedule.key, maker)
        await self.done(Step({schedule.key: schedule.encode()}, appended=partial(self._take, schedule, maker)))
        return known

    async def _admit_queue(self, schedule: Schedule, maker: Maker) -> None:
        broker, name = self.service.broker, schedule.queue
        if isinstance(name, str):
            [number] = await broker.names.numbers(await broker.topic_by_id(schedule.topic_id), (name,))
            if number < 0:
                broker.name_admission.of(self.store, maker)(1)

    def _take(self, schedule: Schedule, maker: Maker) -> None:
        self._put_by[schedule.key] = maker
        if schedule.key not in self.known:
            self._made.make(schedule.key, maker)
        self._keep(schedule)

    async def forget(self, topic_id: int, name: str) -> None:
        """Durable on return. Raises ``UnknownSchedule``."""
        schedule = self.schedule(topic_id, name)
        await self.done(Step({schedule.key: None}, appended=partial(self._drop, schedule.key)))

    def schedule(self, topic_id: int, name: str) -> Schedule:
        """Raises ``UnknownSchedule``."""
        self.check()
        found = self.known.get(key_of(topic_id, name))
        if found is None:
            raise UnknownSchedule(f"the topic has no schedule {name!r}", schedule=name)
        return found

    def schedules(self, topic_id: int, after: str, limit: int) -> list[Schedule]:
        """Some of a topic's, by name, from behind ``after``."""
        self.check()
        mine = (each for each in self.known.values() if each.topic_id == topic_id and each.name > after)
        return nsmallest(limit, mine, key=lambda each: each.name)

    def all_schedules(self, after: str, limit: int) -> list[Schedule]:
        """Some of all topics', by their keys, from behind ``after``."""
        self.check()
        return [self.known[key] for key in nsmallest(limit, (key for key in self.known if key > after))]
