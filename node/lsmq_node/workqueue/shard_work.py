"""The work queue of one group on one topic in one shard, while this node leads it: the shell of a :class:`.WorkLedger`.

Queues with messages to deliver are known without looking at the others: all are compared once, when it is built, and
from then on commits say which queues they touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import LsmqError, Unavailable
from lsmq.filters import MessageFilter
from lsmq_node.broker import Ack, ShardPort
from lsmq_node.broker.placement import split_by_shard
from lsmq_node.groups import Mode
from lsmq_node.letters import LetterRecord
from lsmq_node.machines import ShardMachine, Step, StepOffsets
from lsmq_node.storage import StoredTopic

from .burial import Burial, DeadLetterMover
from .chunks import BURIAL, SETTINGS, SettledChunk, prefix
from .departed import DepartedLook
from .ledger import MAX_OPEN, WorkLedger
from .picks import Picks
from .queue_turns import QueueTurn, QueueTurns
from .reading import Found, Fresh, Seen, Wanted, count_new, look, read_again, read_fresh, tenants_by
from .receipts import DeliveryReceipt
from .settings import Order, WorkSettings, decode_settings, encode_settings
from .tasks import DeliveryState, LeftDelivery, OpenMessage, Refusal, WorkChanges
from .trimming import delete_all_settled, delete_settled

if TYPE_CHECKING:
    from .service import WorkService

_log = structlog.get_logger("lsmq.workqueue")
Read = TypeVar("Read")

_FEWEST_TIMER_S = 0.001
_MAX_DELETES = 10_000
#: Messages looked at in one read, where those that come first wait for their keys.
_MAX_LOOK = 8_192
#: The same, where turns are taken by columns of messages.
_LOOK = 4_096
_LOOKS = 16  # with each pop
_LEAST_LOOK_BYTES = 256 << 10
#: What cannot be read for damage is left alone for so long, and holds up nothing else.
_DAMAGED_S = 60.0


@dataclass(frozen=True, slots=True)
class WorkDelivery:
    """A message and the receipt that goes with it."""

    record: LetterRecord
    receipt: DeliveryReceipt
    visibility_ms: int
    shard: int


@dataclass(frozen=True, slots=True)
class ShardWorkState:
    """How a work queue behaves in a shard, and how many messages are in which state.

    ``new`` were never delivered; offsets whose messages were deleted one by one count, too.
    """

    shard: int
    settings: WorkSettings
    new: int
    in_flight: int = 0
    waiting: int = 0
    ready: int = 0
    blocked: int = 0
    dead: int = 0


class ShardWork(ShardMachine):
    """Loop thread only."""

    subject = "the work queue"
    details: ClassVar[Mapping[str, Any]] = {"sent": False}

    def __init__(self, service: WorkService, group: str, topic: StoredTopic, port: ShardPort) -> None:
        super().__init__(service, port, (group, topic.id))
        self.topic = topic  # may be renewed: it grows
        self.group = group
        self.given: dict[str, Any] = {}
        self._begun = 0
        self._broker = service.broker
        self._declare = service.declared.declare
        self._given_elsewhere = service.given_elsewhere
        self._clock_ms = runtime.wall_time() * 1000 - self._loop.time() * 1000
        self._prefix = prefix(group, topic.id)
        self._counts = service.counts
        self._turns = QueueTurns(self, lambda queue: self.ledger.next_of(queue))
        self._picks = Picks(self)
        self._popping = asyncio.Lock()
        self._owes_new = False  # the last pop had retries only, though there were new messages
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None  # not begun yet: takes what changes until it begins
        self._flushing: asyncio.Future[None] | None = None  # begun last
        self._dead_letters = DeadLetterMover(self, service.broker, self._start)
        self._departed = DepartedLook(self)
        self.ledger = self._new_ledger()

    def _new_ledger(self) -> WorkLedger:
        leader, counts = runtime.random.getrandbits(32), self._counts
        ledger = WorkLedger(self.settings, leader, self._start_of, self._end_of, counts, self._begun)
        ledger.on_ready = self._picks.ready
        return ledger

    @property
    def settings(self) -> WorkSettings:
        return WorkSettings.of(self.given)

    def key_of(self, *rest: object) -> str:
        """Of a document of this work queue."""
        return self._prefix + "/".join(map(str, rest))

    # Building

    async def load(self, left: Sequence[LeftDelivery] | None) -> None:
        """A shard that has no settings for it is told that the group is a work queue.

        ``left``: deliveries of the one before, which could not store something. They stay in flight.
        """
        await self.port.prepare(self.topic)
        self._broker.waiters.watch(self.topic.id, self)  # before looking: nothing comes unseen
        await self.barrier()
        if self.store.document(self.key_of(SETTINGS)) is None:
            await self._declare(self.group, Mode.WORK_QUEUE)
        chunks: dict[int, dict[int, SettledChunk]] = {}
        burial: Burial | None = None
        is_new = True
        for key, body in self.store.documents(self._prefix):
            name, _, number = key.removeprefix(self._prefix).partition("/")
            if name == SETTINGS:
                (self.given, self._begun), is_new = decode_settings(body, key), False
            elif name == BURIAL:
                burial = Burial.decode(body, key)
            else:
                chunks.setdefault(int(name), {})[int(number)] = SettledChunk.decode(body, int(number), key)
        if is_new:
            self._begun = runtime.random.randrange(1, 1 << 16)
            if self.port.number != self._broker.ranges(self.topic)[0].shard:
                # The topic has come to this shard after the work queue was set up, perhaps.
                self.given = await self._given_elsewhere(self.group, self.topic)
        self.ledger = self._new_ledger()
        now = self.now_ms()
        for queue, own in chunks.items():
            self.ledger.load(queue, self._start_of(queue), own, now)
        self.ledger.carry_over(left or (), now)
        await self.find_waiting(self._turns)
        self.after()
        self._dead_letters.begin(burial)
        self.check()
        if is_new:
            await self.put_settings(self.given)
        if self.settings.delete_on_ack:
            self._start(delete_all_settled(self))
        shard, topic = self.port.number, self.topic.name
        _log.info("work_queue_loaded", group=self.group, topic=topic, shard=shard, **self.figures())

    def leaves(self) -> Sequence[LeftDelivery]:
        """Deliveries in flight, and those that have settled what may not be stored."""
        return self.ledger.deliveries()

    async def find_waiting(self, turns: QueueTurns) -> None:
        """Have turns for all queues with new messages. Costs a look at all of the topic's here."""
        turns.waiting.compare()
        windows = self.ledger.windows()
        turns.waiting.found(await self.in_readers(lambda: self._find_waiting(windows)))

    def _find_waiting(self, windows: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """Queues with messages that were not delivered: a look at all of them. In a thread."""
        first, counts = count_new(self.store, self.group, self.topic.id, windows)
        return np.flatnonzero(counts).astype(np.int64) + first

    async def state(self) -> ShardWorkState:
        """Costs a look at the ends of all of the topic's queues here. Raises as :meth:`check`."""
        windows = self.ledger.windows()
        _, counts = await self.in_readers(lambda: count_new(self.store, self.group, self.topic.id, windows))
        self.check()
        return ShardWorkState(self.port.number, self.settings, int(counts.sum()) + self.ledger.lined, **self.figures())

    def _start_of(self, queue: int) -> int:
        committed = self.store.committed_offsets(self.group, self.topic.id, np.array((queue,)))
        return max(int(committed[0]), self.bounds(queue)[0])

    def _end_of(self, queue: int) -> int:
        return self.bounds(queue)[1]

    def bounds(self, queue: int) -> tuple[int, int]:
        """The queue's first offset that is kept, and its end."""
        return self.store.bounds(self.topic.id, queue)

    async def in_readers(self, read: Callable[[], Read]) -> Read:
        """Run it in the read pool."""
        return await self._broker.in_readers(read)

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
        self._dead_letters.end()
        super().end()

    # Delivering

    def available(self, wanted: MessageFilter | None) -> bool:
        """Whether a pop would find something, as far as is known; one that picks: whether it would look at something.

        Raises as :meth:`take`.
        """
        if wanted is not None:
            return self._picks.of(wanted).available
        if self.ledger.has_ready:
            return True
        return bool(self._turns.waiting) and self.ledger.open_count < MAX_OPEN

    def touch(self, touched: NDArray[Any]) -> None:
        """Queues of the topic got messages, here or in another shard of this node."""
        if not self.topic.named and int(touched[-1]) >= self.topic.queues:
            known = (topic for topic in self._broker.topology.topics.all() if topic.id == self.topic.id)
            self.topic = next(known, self.topic)
        for shard, places in split_by_shard(touched, self.topic, self._broker.topology.home_shards):
            if shard == self.port.number:
                for queue in touched[places].tolist():
                    self._activate(queue)
                for wanted in (None, *(pick.wanted for pick in self._picks)):
                    for _ in range(len(places)):
                        if not self.wake_one(wanted):
                            break

    def set(self) -> None:
        """What may be read here has changed, or the node stops."""
        self.wake()

    def _activate(self, queue: int) -> None:
        self._turns.add(queue)
        for pick in self._picks:
            pick.turns.add(queue)

    def activate_later(self, queue: int) -> None:
        """It cannot be read for damage."""
        self._loop.call_later(_DAMAGED_S, self._activate, queue)

    async def take(
        self,
        limit: int,
        max_bytes: int,
        visibility_ms: int,
        gone: Callable[[], bool],
        wanted: MessageFilter | None = None,
    ) -> list[WorkDelivery]:
        """Deliver up to ``limit`` messages and about ``max_bytes``; none where there are none. Only those ``wanted``.

        Half are those that were delivered before, or follow one of their key, where there are enough of both; where
        there was room for these alone, the next pop begins with new ones. Nothing is delivered to whom is ``gone``.
        Raises as :meth:`check`, and with ``wanted`` as :meth:`.Picks.of`.
        """
        async with self._popping:
            if wanted is not None:
                return await self._picks.take(wanted, limit, max_bytes, visibility_ms, gone)
            ahead, most = limit, max(_MAX_LOOK, limit)
            while True:
                self.check()
                self.ledger.advance(self.now_ms())
                owed = self._owes_new
                delivered, moved = await self._take_once(limit, ahead, max_bytes, visibility_ms, gone)
                if delivered or gone() or not (moved or owed):
                    return delivered
                if ahead == most:
                    self._owes_new = False  # retries wait no longer: the next pop looks on
                ahead = min(2 * ahead, most)  # all that was found waits for its key, or is gone: look further ahead

    async def _take_once(
        self, limit: int, ahead: int, max_bytes: int, visibility_ms: int, gone: Callable[[], bool]
    ) -> tuple[list[WorkDelivery], bool]:
        """And whether something new was looked at. ``ahead``: how much, of what may wait for keys or be gone."""
        if self._turns.waiting.needs_look:
            await self.find_waiting(self._turns)
            self.check()
        moved = False
        for _ in range(_LOOKS if self.ledger.looks_ahead else 0):
            if not await self._look_ahead(max(max_bytes, _LEAST_LOOK_BYTES)):
                break
            moved = True
        had_new = bool(self._turns.waiting) and not self.ledger.looks_ahead
        again, turn = self._choose(limit, ahead // limit)
        owed, self._owes_new = self._owes_new, False
        if not again and not turn.queues:
            self.after()
            return [], moved
        found = Found()
        wanted = turn.wanted(ahead // limit)  # more are looked at than are to be delivered

        def read() -> None:
            if again:
                read_again(self.store, self.topic.id, [(task.queue, task.offset) for task in again], max_bytes, found)
            if wanted and found.count < limit and found.size_bytes < max_bytes:
                room, bytes_room = ahead - found.count, max_bytes - found.size_bytes
                read_fresh(self.store, self.topic.id, wanted, room, bytes_room, found)

        delivered: list[WorkDelivery] = []
        try:
            await self._broker.in_readers(read)
            self.check()
            if not gone():
                delivered = self._deliver(again, turn, found, limit, self.now_ms(), visibility_ms)
                places = {(task.queue, task.offset) for task in again}
                has_new = any((each.record.queue, each.record.offset) not in places for each in delivered)
                owes = had_new if delivered else owed and self._have_moved(wanted)
                self._owes_new = owes and not has_new
        finally:
            self.ledger.give_back(again)
            if self.is_current:
                self._turns.after(turn, found.fresh, found.damaged_queues)
                self.after()
        return delivered, moved or bool(found.gone) or self._have_moved(wanted)

    def _have_moved(self, wanted: Sequence[Wanted]) -> bool:
        return any(self.ledger.next_of(queue) > start for queue, start, _ in wanted)

    async def _look_ahead(self, max_bytes: int) -> bool:
        """Look at messages, so that it is known whose turn it is; whether there were any."""
        turn = self._turns.next(_LOOK)
        if not turn.queues:
            return False
        wanted, seen, damaged = turn.wanted(1), dict[int, Seen](), set[int]()
        settings = self.settings
        tenants_of = tenants_by(settings.fair_by, settings.fair_property)

        def read() -> None:
            seen.update(look(self.store, self.topic.id, wanted, tenants_of, _LOOK, max_bytes, damaged))

        try:
            await self._broker.in_readers(read)
            self.check()
            by_priority, now = settings.order is Order.PRIORITY, self.now_ms()
            for queue, each in seen.items():
                levels = each.levels if by_priority else [0] * len(each.offsets)
                times = None if settings.priority_ageing_ms is None else each.times
                self.ledger.look_at(queue, each.offsets, each.tenants, levels, each.end, now, times)
        finally:
            if self.is_current:
                self._turns.after(turn, seen, damaged)
        return self._have_moved(wanted)

    def _choose(self, limit: int, factor: int) -> tuple[list[OpenMessage], QueueTurn]:
        """Messages that are open, ``factor`` times as many, and queues with new ones: half of each where there are
        enough of both."""
        ledger = self.ledger
        if ledger.looks_ahead:
            return ledger.take_ready(factor * limit), QueueTurn()
        share = (0 if self._owes_new else max(1, limit // 2)) if self._turns.waiting else limit
        again = ledger.take_ready(factor * share)
        room = limit - min(share, len(again))
        turn = self._turns.next(max(0, min(room, MAX_OPEN - ledger.open_count)))
        if not share and turn.queues:
            return [], turn
        return again + ledger.take_ready(factor * (room - sum(turn.counts))), turn

    def _deliver(
        self, again: Sequence[OpenMessage], turn: QueueTurn, found: Found, limit: int, now: int, visibility_ms: int
    ) -> list[WorkDelivery]:
        delivered: list[WorkDelivery] = []
        self.ledger.gone([task for task in again if (task.queue, task.offset) in found.gone], now)
        damaged = [task for task in again if (task.queue, task.offset) in found.damaged]
        if damaged or found.damaged_queues:
            self.damaged(damaged)
        most = limit - sum(turn.counts)
        for task in again:
            record = found.again.get((task.queue, task.offset))
            if record is not None and len(delivered) < most:
                delivered += self.hand_over([record], [self.ledger.deliver(task, now, visibility_ms)], visibility_ms)
        counts = dict(zip(turn.queues, turn.counts, strict=True))
        for queue, fresh in found.fresh.items():
            room = max(0, min(counts[queue], limit - len(delivered), self.ledger.room_of(queue)))
            receipts = self._hand_out(queue, fresh, room, now, visibility_ms)
            delivered += self.hand_over(fresh.records, receipts, visibility_ms)
        return delivered

    def damaged(self, taken: Sequence[OpenMessage]) -> None:
        """Something could not be read; of messages that were ``taken`` that is tried again later."""
        self.ledger.postpone(taken, self.now_ms() + round(1000 * _DAMAGED_S))
        _log.error("work_damaged", group=self.group, topic=self.topic.name, shard=self.port.number)

    def hand_over(
        self, records: Sequence[LetterRecord], receipts: Sequence[DeliveryReceipt | None], visibility_ms: int
    ) -> list[WorkDelivery]:
        """Those that have a receipt."""
        return [
            WorkDelivery(record, receipt, visibility_ms, self.port.number)
            for record, receipt in zip(records, receipts, strict=True)
            if receipt is not None
        ]

    def take_back(self, deliveries: Sequence[WorkDelivery]) -> None:
        """Nobody has got them: as if they had not been delivered."""
        if self.is_current:
            for delivery in deliveries:
                self.ledger.release(delivery.receipt, self.now_ms())
            self.after()

    def _hand_out(
        self, queue: int, fresh: Fresh, room: int, now: int, visibility_ms: int
    ) -> Sequence[DeliveryReceipt | None]:
        """A receipt for each of the queue's records that is delivered now."""
        ledger, offsets = self.ledger, [record.offset for record in fresh.records]
        if not ledger.is_by_key:
            end = fresh.end if len(offsets) <= room else offsets[room]
            receipts = ledger.deliver_fresh(queue, offsets[:room], end, now, visibility_ms)
            return receipts + [None] * len(offsets[room:])
        keys = [record.key for record in fresh.records]
        tasks = ledger.line_up(queue, offsets, keys, fresh.end, room, now)
        return [None if task is None else ledger.deliver(task, now, visibility_ms) for task in tasks]

    # Settling

    async def settle(
        self, receipts: Sequence[DeliveryReceipt], how: Callable[[DeliveryReceipt, int], Refusal | None]
    ) -> list[Refusal | None]:
        """Apply ``how``, a method of the ledger, to each receipt; what it changes is durable on return.

        Raises as :meth:`check`, and what a write raises: then it may be stored all the same.
        """
        self.check()
        self.port.check_writable(Ack.QUORUM)
        now = self.now_ms()
        self.ledger.advance(now)
        refusals = [how(receipt, now) for receipt in receipts]
        self.after()
        await self._written()
        return refusals

    async def put_settings(self, given: Mapping[str, Any]) -> None:
        """Durable on return. They hold for what happens from then on."""
        self.check()
        stored, body = partial(self._configured, dict(given)), encode_settings(given, self._begun)
        await self.durable(self.put(Step({self.key_of(SETTINGS): body}, stored=stored)))

    def _configured(self, given: dict[str, Any]) -> None:
        """These are stored, whoever still waits for that."""
        before, self.given = self.settings, given
        self.ledger.settings = self.settings
        if self.settings.delete_on_ack and not before.delete_on_ack:
            self._start(delete_all_settled(self))
        if before.turns != self.settings.turns:
            self.break_off(Unavailable("whose turn it is in the work queue was changed; it is read again", sent=False))

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
            while True:
                # Where there was nothing to store, what was put in line before may be on its way still.
                self._flushing = future = self.put(self._step(self.ledger.take_changes())) or self._flushing
                if not self.ledger.is_dirty:
                    break
        except LsmqError as error:
            self.break_off(error)
            raise
        await self.durable(future)
        if self._flushing is future:
            self._flushing = None

    def _step(self, changes: WorkChanges) -> Step:
        def stored() -> None:
            self.ledger.stored(changes, self.now_ms())
            if changes.freed and self.is_current:
                self.after()
            if self.settings.delete_on_ack and changes.queues:
                delete_settled(self, np.array(changes.queues), np.array(changes.cursors))

        documents = {self.key_of(queue, number): body for (queue, number), body in changes.documents.items()}
        offsets = StepOffsets(self.group, self.topic.id, changes.queues, changes.cursors) if changes.queues else None
        return Step(documents, offsets, stored=stored)

    async def bury(self, tasks: Sequence[OpenMessage]) -> None:
        """Their dead letters are stored. Settled, durably, on return."""
        self.check()
        self.ledger.settle_dead(tasks)
        await self._written()

    # Time and waiting

    def due(self) -> Iterable[Step]:
        if self._departed.due(self._loop.time()):
            self._start(self._departed.look())
        return ()

    def after(self) -> None:
        """To be called after each step: stores what is to be stored, sets the timer, wakes whom it concerns."""
        if self.ledger.is_dirty and self._flush is None:
            self._flush = self._start(self._write_changes())
        if self.ledger.has_dead:
            self._dead_letters.wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ms = self.ledger.next_at_ms
        if at_ms is not None and self.is_current:
            delay_s = max(_FEWEST_TIMER_S, (at_ms - self.now_ms()) / 1000)
            self._timer = self._loop.call_later(delay_s, self._on_time)
        for queue in self.ledger.take_resumed():
            if self.ledger.next_of(queue) < self._end_of(queue):
                self._activate(queue)
        if self.available(None):
            self.wake_one(None)
        for pick in self._picks:
            if pick.available:
                self.wake_one(pick.wanted)

    def _on_time(self) -> None:
        self._timer = None
        if self.is_current:
            self.ledger.advance(self.now_ms())
            self.after()

    @property
    def is_idle(self) -> bool:
        in_flight = self.figures()["in_flight"]
        return not (self.is_waited_for or in_flight or self.ledger.is_dirty or self._flush or self._flushing)

    @property
    def is_waited_for(self) -> bool:
        """Whether a pop is held."""
        return self.service.held.has((self.key,))

    def is_held(self, wanted: MessageFilter | None) -> bool:
        """Whether a pop is held that picks this."""
        return self.service.held.has((self.key, wanted))

    def wake_one(self, wanted: MessageFilter | None) -> bool:
        """Have the pop look that waits longest of those that pick this; whether there was one."""
        return self.service.held.wake_one((self.key, wanted))

    def figures(self) -> dict[str, int]:
        """How many messages are in which state."""
        states = self.ledger.states
        return {
            "in_flight": states[DeliveryState.IN_FLIGHT] + states[DeliveryState.TAKEN],
            "waiting": states[DeliveryState.WAITING],
            "ready": states[DeliveryState.READY],
            "blocked": self.ledger.blocked,
            "dead": states[DeliveryState.DEAD],
        }


def put_deletions(port: ShardPort, keys: Sequence[str]) -> asyncio.Future[None] | None:
    """In line, however many; what to wait for."""
    future = None
    for at in range(0, len(keys), _MAX_DELETES):
        port.check_writable(Ack.QUORUM)
        future = port.wait(port.store.put_documents(dict.fromkeys(keys[at : at + _MAX_DELETES])), Ack.QUORUM)
    return future
