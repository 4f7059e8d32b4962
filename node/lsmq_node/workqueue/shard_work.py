"""The work queue of one group on one topic in one shard, while this node leads it: the shell around :class:`.Ledger`.

Queues with messages to deliver are known without looking at the others: all are compared once, when it is built, and
from then on commits say which queues they touched.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import structlog
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_node.broker import Ack, ShardPort
from lsmq_node.broker.placement import split_by_shard
from lsmq_node.groups import Mode
from lsmq_node.machines import Offsets, ShardMachine, Step
from lsmq_node.storage import Topic

from .burial import Burial, Undertaker
from .chunks import BURIAL, SETTINGS, Chunk, prefix
from .ledger import Ledger
from .reading import Found, Record, read_again, read_fresh
from .receipts import Receipt
from .settings import Settings, decode_settings, encode_settings
from .tasks import Changes, Refusal, State, Task

if TYPE_CHECKING:
    from .service import WorkService

_log = structlog.get_logger("lsmq.workqueue")

#: Open messages of a group on a topic in a shard. At the limit nothing new is delivered until some are settled.
MAX_OPEN = 100_000
_FEWEST_TIMER_S = 0.001
_MAX_DELETES = 10_000
#: What cannot be read for damage is left alone for so long, and holds up nothing else.
_DAMAGED_S = 60.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message and the receipt that goes with it."""

    record: Record
    receipt: Receipt
    visibility_ms: int
    shard: int


class ShardWork(ShardMachine):
    """Loop thread only."""

    subject = "the work queue"
    details: ClassVar[Mapping[str, Any]] = {"sent": False}

    def __init__(self, service: WorkService, group: str, topic: Topic, port: ShardPort) -> None:
        super().__init__(service, port, (group, topic.id))
        self.topic = topic  # may be renewed: it grows
        self.group = group
        self.given: dict[str, Any] = {}
        self._broker = service.broker
        self._declare = service.declare
        self._clock_ms = runtime.wall_time() * 1000 - self._loop.time() * 1000
        self._prefix = prefix(group, topic.id)
        self._counts = service.counts
        self._active: deque[int] = deque()  # queues that have messages beyond what was delivered
        self._in_active: set[int] = set()
        self._unvisited: NDArray[np.int64] = np.empty(0, np.int64)  # the same, as found when it was built
        self._visited = 0
        self._popping = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None  # not begun yet: takes what changes until it begins
        self._flushing: asyncio.Future[None] | None = None  # begun last
        self._undertaker = Undertaker(self, service.broker, self._start)
        self.ledger = self._new_ledger()

    def _new_ledger(self) -> Ledger:
        return Ledger(self.settings, runtime.random.getrandbits(32), self._start_of, self._end_of, self._counts)

    @property
    def settings(self) -> Settings:
        return Settings.of(self.given)

    def key_of(self, *rest: object) -> str:
        """Of a document of this work queue."""
        return self._prefix + "/".join(map(str, rest))

    # Building

    async def load(self, left: Sequence[Receipt] | None) -> None:
        """A shard that has no settings for it is told that the group is a work queue.

        ``left``: deliveries of the one before, which could not store something. They stay in flight.
        """
        await self.port.prepare(self.topic)
        if self.store.document(self.key_of(SETTINGS)) is None:
            await self._declare(self.group, Mode.WORK_QUEUE)
        self._broker.waiters.watch(self.topic.id, self)  # before looking: nothing comes unseen
        await self.barrier()
        chunks: dict[int, dict[int, Chunk]] = {}
        burial: Burial | None = None
        is_new = True
        for key, body in self.store.documents(self._prefix):
            name, _, number = key.removeprefix(self._prefix).partition("/")
            if name == SETTINGS:
                self.given, is_new = decode_settings(body, key), False
            elif name == BURIAL:
                burial = Burial.decode(body, key)
            else:
                chunks.setdefault(int(name), {})[int(number)] = Chunk.decode(body, int(number), key)
        self.ledger = self._new_ledger()
        now = self.now_ms()
        for queue, own in chunks.items():
            self.ledger.load(queue, self._start_of(queue), own, now)
        self.ledger.carry_over(left or (), now)
        self._unvisited = await self._broker.in_readers(self._find_waiting)
        self._after()
        self._undertaker.begin(burial)
        self.check()
        if is_new:
            await delete_documents(self.port, self._of_deleted_topics())
            await self.put_settings({})
        shard, topic = self.port.number, self.topic.name
        _log.info("work_queue_loaded", group=self.group, topic=topic, shard=shard, **self.figures())

    def _of_deleted_topics(self) -> list[str]:
        """What is left of the group's work on topics that were deleted."""
        start = prefix(self.group)
        return [
            key
            for key, _ in self.store.documents(start)
            if not self.store.has_topic(int(key.removeprefix(start).partition("/")[0]))
        ]

    def leaves(self) -> Sequence[Receipt]:
        """Deliveries in flight, and those that have settled what may not be stored."""
        return self.ledger.deliveries()

    def _find_waiting(self) -> NDArray[np.int64]:
        """Queues with messages that were not delivered: the one look at all of them. In a thread."""
        first, counts = self._count_new(self.ledger.windows())
        return np.flatnonzero(counts).astype(np.int64) + first

    def _count_new(self, windows: Sequence[tuple[int, int]]) -> tuple[int, NDArray[np.int64]]:
        """The shard's first queue of the topic, and how many messages of each were never delivered. In a thread.

        ``windows``: the ledger's.
        """
        store, topic = self.store, self.topic
        first = min(part.first for part in self._broker.ranges(topic) if part.shard == self.port.number)
        latest, earliest = store.latest_offsets(topic.id), store.earliest_offsets(topic.id)
        size = min(len(latest), len(earliest))  # the topic may grow meanwhile
        starts = np.maximum(store.committed_offsets(self.group, topic.id)[:size], earliest[:size])
        for queue, following in windows:
            if queue - first < size:
                starts[queue - first] = max(following, earliest[queue - first])
        return first, np.maximum(latest[:size] - starts, 0)

    async def count_new(self) -> int:
        """How many messages were never delivered. Costs a look at the ends of all of the topic's queues here.

        Offsets whose messages were deleted one by one count, too. Raises as :meth:`check`.
        """
        windows = self.ledger.windows()
        _, counts = await self._broker.in_readers(lambda: self._count_new(windows))
        self.check()
        return int(counts.sum())

    def _start_of(self, queue: int) -> int:
        committed = self.store.committed_offsets(self.group, self.topic.id, np.array((queue,)))
        return max(int(committed[0]), self.store.bounds(self.topic.id, queue)[0])

    def _end_of(self, queue: int) -> int:
        return self.store.bounds(self.topic.id, queue)[1]

    def now_ms(self) -> int:
        """A clock that does not jump, near the wall's."""
        return int(self._clock_ms + self._loop.time() * 1000)

    # Whether it is still good

    @property
    def is_current(self) -> bool:
        """Whether memory still is what is stored, and the topic is there."""
        return super().is_current and self.store.has_topic(self.topic.id)

    def end(self) -> None:
        self._broker.waiters.unwatch(self.topic.id, self)
        if self._timer is not None:
            self._timer.cancel()
        self._undertaker.end()
        super().end()

    # Delivering

    @property
    def available(self) -> bool:
        """Whether a pop would find something, as far as is known."""
        if self.ledger.has_ready:
            return True
        return (bool(self._active) or self._visited < len(self._unvisited)) and self.ledger.open_count < MAX_OPEN

    def touch(self, touched: NDArray[Any]) -> None:
        """Queues of the topic got messages, here or in another shard of this node."""
        if int(touched[-1]) >= self.topic.queues:
            known = (topic for topic in self._broker.topology.topics.all() if topic.id == self.topic.id)
            self.topic = next(known, self.topic)
        for shard, places in split_by_shard(touched, self.topic, self._broker.topology.shard_count):
            if shard == self.port.number:
                for queue in touched[places].tolist():
                    self._activate(queue)
                for _ in range(len(places)):
                    if not self.wake_one():
                        break

    def set(self) -> None:
        """What may be read here has changed, or the node stops."""
        self.wake()

    def _activate(self, queue: int) -> None:
        if queue not in self._in_active:
            self._in_active.add(queue)
            self._active.append(queue)

    def _next_queues(self, count: int) -> tuple[list[int], list[int]]:
        """Up to ``count`` queues with messages to deliver, the longest waiting first, and where these begin."""
        found: dict[int, int] = {}
        while len(found) < count:
            if self._active:
                queue = self._active.popleft()
                self._in_active.discard(queue)
            elif self._visited < len(self._unvisited):
                queue = int(self._unvisited[self._visited])
                self._visited += 1
            else:
                self._unvisited, self._visited = np.empty(0, np.int64), 0
                break
            start = max(self.ledger.next_of(queue), self.store.bounds(self.topic.id, queue)[0])
            if start < self._end_of(queue):
                found[queue] = start  # it may be known from both places
        return list(found), list(found.values())

    async def take(self, limit: int, max_bytes: int, visibility_ms: int, gone: Callable[[], bool]) -> list[Delivery]:
        """Deliver up to ``limit`` messages and about ``max_bytes``; none where there are none.

        Half are those that were delivered before, where there are enough of both. Nothing is delivered to whom is
        ``gone``. Raises as :meth:`check`.
        """
        async with self._popping:
            self.check()
            self.ledger.advance(self.now_ms())
            again, queues, starts = self._choose(limit)
            if not again and not queues:
                self._after()
                return []
            found = Found()

            def read() -> None:
                if again:
                    read_again(
                        self.store, self.topic.id, [(task.queue, task.offset) for task in again], max_bytes, found
                    )
                if queues and found.count < limit and found.size_bytes < max_bytes:
                    room, bytes_room = limit - found.count, max_bytes - found.size_bytes
                    read_fresh(self.store, self.topic.id, queues, starts, room, bytes_room, found)

            delivered: list[Delivery] = []
            try:
                await self._broker.in_readers(read)
                self.check()
                if not gone():
                    delivered = self._deliver(again, found, self.now_ms(), visibility_ms)
            finally:
                self.ledger.give_back(again)
                if self.is_current:
                    for queue in queues:
                        if queue in found.damaged_queues:
                            self._loop.call_later(_DAMAGED_S, self._activate, queue)
                        elif self.ledger.next_of(queue) < self._end_of(queue):
                            self._activate(queue)
                    self._after()
            return delivered

    def _choose(self, limit: int) -> tuple[list[Task], list[int], list[int]]:
        room = min(limit, max(0, MAX_OPEN - self.ledger.open_count))
        queues, starts = self._next_queues(room)
        share = max(1, limit // 2) if queues else limit
        again = self.ledger.take_ready(share)
        if not again or len(again) + len(queues) >= limit:
            return again, queues, starts
        return again + self.ledger.take_ready(limit - len(again) - len(queues)), queues, starts

    def _deliver(self, again: Sequence[Task], found: Found, now: int, visibility_ms: int) -> list[Delivery]:
        delivered: list[Delivery] = []
        self.ledger.gone(task for task in again if (task.queue, task.offset) in found.gone)
        damaged = [task for task in again if (task.queue, task.offset) in found.damaged]
        self.ledger.postpone(damaged, now + round(1000 * _DAMAGED_S))
        if damaged or found.damaged_queues:
            _log.error("work_damaged", group=self.group, topic=self.topic.name, shard=self.port.number)
        for task in again:
            record = found.again.get((task.queue, task.offset))
            if record is not None and (receipt := self.ledger.deliver(task, now, visibility_ms)) is not None:
                delivered.append(Delivery(record, receipt, visibility_ms, self.port.number))
        for queue, fresh in found.fresh.items():
            offsets = [record.offset for record in fresh.records]
            receipts = self.ledger.deliver_fresh(queue, offsets, fresh.end, now, visibility_ms)
            delivered += [
                Delivery(record, receipt, visibility_ms, self.port.number)
                for record, receipt in zip(fresh.records, receipts, strict=True)
                if receipt is not None
            ]
        return delivered

    # Settling

    async def settle(
        self, receipts: Sequence[Receipt], how: Callable[[Receipt, int], Refusal | None]
    ) -> list[Refusal | None]:
        """Apply ``how``, a method of the ledger, to each receipt; what it changes is durable on return.

        Raises as :meth:`check`, and what a write raises: then it may be stored all the same.
        """
        self.check()
        self.port.check_writable(Ack.QUORUM)
        now = self.now_ms()
        self.ledger.advance(now)
        refusals = [how(receipt, now) for receipt in receipts]
        self._after()
        await self._written()
        return refusals

    async def put_settings(self, given: Mapping[str, Any]) -> None:
        """Durable on return. They hold for what happens from then on."""
        self.check()
        await self.durable(self.put(Step({self.key_of(SETTINGS): encode_settings(given)})))
        self.given = dict(given)
        self.ledger.settings = self.settings

    async def _written(self) -> None:
        """Return when all changes made so far are stored. Those made in one step of the loop share a write."""
        if self.ledger.is_dirty and self._flush is None:
            self._flush = self._start(self._write_changes())
        if self._flush is not None:
            await asyncio.shield(self._flush)
        elif self._flushing is not None:
            await asyncio.shield(self._flushing)

    async def _write_changes(self) -> None:
        self._flush = None
        self.check()
        try:
            self.port.check_writable(Ack.QUORUM)
            self._flushing = future = self.put(self._step(self.ledger.take_changes()))
        except LsmqError as error:
            self.break_off(error)
            raise
        await self.durable(future)
        if self._flushing is future:
            self._flushing = None

    def _step(self, changes: Changes) -> Step:
        def stored() -> None:
            self.ledger.stored(changes)
            if self.settings.delete_on_ack and changes.queues:
                self._trim(changes)

        documents = {self.key_of(queue, number): body for (queue, number), body in changes.documents.items()}
        offsets = Offsets(self.group, self.topic.id, changes.queues, changes.cursors) if changes.queues else None
        return Step(documents, offsets, stored=stored)

    def _trim(self, changes: Changes) -> None:
        """Delete what is settled for good; in line, not waited for: the next one goes further."""
        try:
            self.port.check_writable(Ack.QUORUM)
            queues, cursors = np.array(changes.queues, np.uint32), np.array(changes.cursors, np.int64)
            future = self.port.wait(self.store.trim(self.topic.id, queues, cursors), Ack.QUORUM)
            if future is not None:
                future.add_done_callback(lambda done: done.cancelled() or done.exception())
        except LsmqError as error:
            _log.info("work_not_trimmed", group=self.group, topic=self.topic.name, code=error.code)

    async def bury(self, tasks: Sequence[Task]) -> None:
        """Their dead letters are stored. Settled, durably, on return."""
        self.check()
        self.ledger.settle_dead(tasks)
        await self._written()

    # Time and waiting

    def _after(self) -> None:
        """To be called after each step: stores what is to be stored, sets the timer, wakes whom it concerns."""
        if self.ledger.is_dirty and self._flush is None:
            self._flush = self._start(self._write_changes())
        if self.ledger.has_dead:
            self._undertaker.wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ms = self.ledger.next_at_ms
        if at_ms is not None and self.is_current:
            delay_s = max(_FEWEST_TIMER_S, (at_ms - self.now_ms()) / 1000)
            self._timer = self._loop.call_later(delay_s, self._on_time)
        if self.available:
            self.wake_one()

    def _on_time(self) -> None:
        self._timer = None
        if self.is_current:
            self.ledger.advance(self.now_ms())
            self._after()

    @property
    def is_idle(self) -> bool:
        in_flight = self.figures()["in_flight"]
        return not (self.is_waited_for or in_flight or self.ledger.is_dirty or self._flush or self._flushing)

    @property
    def is_waited_for(self) -> bool:
        """Whether a pop is held."""
        return self.service.held.has((self.key,))

    def wake_one(self) -> bool:
        """Have the pop that waits longest look; whether there was one."""
        return self.service.held.wake_one((self.key,))

    def figures(self) -> dict[str, int]:
        """How many messages are in which state."""
        states = self.ledger.states
        return {
            "in_flight": states[State.IN_FLIGHT] + states[State.TAKEN],
            "waiting": states[State.WAITING],
            "ready": states[State.READY],
            "dead": states[State.DEAD],
        }


async def delete_documents(port: ShardPort, keys: Sequence[str]) -> None:
    """However many. Durable on return."""
    for at in range(0, len(keys), _MAX_DELETES):
        port.check_writable(Ack.QUORUM)
        future = port.wait(port.store.put_documents(dict.fromkeys(keys[at : at + _MAX_DELETES])), Ack.QUORUM)
        if future is not None:
            await asyncio.shield(future)
