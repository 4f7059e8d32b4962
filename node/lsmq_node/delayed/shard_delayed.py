"""The delayed messages of one shard while this node leads it.

One task a shard sleeps until the next message is due, which it knows from a look into the store and from what was put
in line since. A look also brings what is due within the next moments, so that nothing is read when that is due; what is
put in line to come before the end of it cuts it there. Of what is due by now it stores, a piece at a time, three things
in one piece of the log: the document that says what it is about to deliver, a batch for each topic, and the document
that says that this is done. A crash may leave the first without the rest: whoever leads next does it again. It reads
the same messages, since nothing comes behind the hand, makes the same batches, and leaves out those whose number is
stored.

What is in line is not readable before it is committed: the hand never passes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import structlog

from lsmq import runtime
from lsmq.errors import AlreadyDelivered, InvalidRequest, LsmqError, Unavailable, UnknownMessage
from lsmq.record_batch import LAST_DUE_MS, MAX_DELAY_MS, MAX_TTL_MS, Column
from lsmq_node.broker import Ack, ShardPort
from lsmq_node.machines import ShardMachine, Step
from lsmq_node.storage import HAND, DuePlace, DueRead, Hand, ShardStore
from lsmq_node.storage.columns import I64
from lsmq_node.storage.delayed import DUE
from lsmq_node.storage.later_names import names_due, retargeted
from lsmq_node.storage.sorted_records import SortedRecords, concatenate, select

from .deliveries import batches, moved, producer_of, topics_of

if TYPE_CHECKING:
    from .service import DelayedService

#: Of one piece.
_PIECE_RECORDS = 4096
_PIECE_BYTES = 1 << 20
#: A look brings what is due within so long.
_AHEAD_MS = 40
#: Of a topic that has few among many of others, so many pieces of so many are looked at for a page.
_LOOKS, _LOOKED_AT = 16, 1 << 16
#: Where the next one is looked for behind those that were cancelled, so many times as many are looked at each time.
_GROWS = 8
#: What is due within so many times as long as delivering took last, and within these bounds, is delivered together: so
#: a node that has much to do has less to do for each message.
_GATHERED = 6
_LEAST_GATHER_S, _MOST_GATHER_S = 0.004, 0.010
#: Pieces in line at a time.
_PIECES_AHEAD = 4
_PAUSE_S, _LONG_PAUSE_S = 0.05, 1.0
_LAST_OFFSET = (1 << 63) - 1
_NEVER = LAST_DUE_MS + 1

_log = structlog.get_logger("lsmq.delayed")


class PendingMessage(NamedTuple):
    """One that is not due yet. ``record`` are its header and body, of which the header takes ``header_length``.

    ``expires_ms``: when it expires, 0 for never.
    """

    place: DuePlace
    queue: int
    stored_ms: int
    priority: int
    flags: int
    header_length: int
    record: bytes
    expires_ms: int = 0


class Moved(NamedTuple):
    """One that was put at another time: its offset by now, its queue, when that was stored, and the queue's name."""

    offset: int
    queue: int
    stored_ms: int
    name: str | None


class _Held(NamedTuple):
    """What a look brought and is not delivered. ``reading``: it lasts until that is closed; ``reached``: how far it is
    all there is."""

    reading: ExitStack
    records: SortedRecords
    reached: DuePlace


class _NamesMissing(Exception):
    """Queues that messages are for are not there any more."""

    def __init__(self, topic_id: int, names: list[str]) -> None:
        super().__init__(topic_id)
        self.topic_id = topic_id
        self.names = names


class ShardDelayed(ShardMachine):
    """In one round of its store. Loop thread only."""

    subject = "delayed messages"

    def __init__(self, service: DelayedService, port: ShardPort) -> None:
        super().__init__(service, port)
        self.counts = service.counts
        self.hand = Hand()  # as of what is in line
        self._in_readers = service.broker.in_readers
        self._next_ms = _NEVER  # nothing is due before this
        self._held: _Held | None = None
        self._first_new_ms = _NEVER  # when the first is due of those that were put in line since the last look began
        self._refused_ms = _NEVER  # when the first was due of those that are being put in line, or could not be
        self._in_line_ms: deque[int] = deque()  # the same of each piece that is in line
        self._wake = asyncio.Event()
        self._ahead: list[asyncio.Future[None]] = []
        self._cancelled: set[DuePlace] = set()  # in line, or a read may still show them that began before
        self._cancellations: deque[tuple[int, DuePlace]] = deque()  # of them; and the last read begun by then
        self._reads = 0
        self._open_reads: set[int] = set()
        self._task: asyncio.Task[Any] | None = None

    async def load(self, left: Any) -> None:
        await self.barrier()
        self.store.delayed.let_a_moment_pass()  # Something may have been put at now, by whoever led before.
        self.hand = self.store.delayed.hand
        if self.hand.at != self.hand.to:
            await self._carry_out_again()
        self._next_ms = 0
        self.store.delayed.on_new(self._arrived)
        self._task = self._start(self._deliver_all())
        _log.info("delayed_loaded", shard=self.port.number, pending=self.count, round=self.round)

    def end(self) -> None:
        super().end()
        if self._task is not None:
            self._task.cancel()

    @property
    def count(self) -> int:
        """How many are pending, about."""
        return self.store.delayed.count

    @property
    def late_ms(self) -> int:
        """How long the first has been due that is not in its queue; 0 where none is."""
        first_ms = min(self._next_ms or _NEVER, self._refused_ms, *list(self._in_line_ms)[:1])
        return max(0, self.store.delayed.now_ms() - first_ms)

    # Time

    def _arrived(self, due_ms: int) -> None:
        self._first_new_ms = min(self._first_new_ms, due_ms)
        if due_ms < self._next_ms:
            self._next_ms = due_ms
            self._wake.set()

    def due(self) -> tuple[Step, ...]:
        """The clock may have been set since the task went to sleep; and what it died of may pass."""
        if self._task is not None and self._task.done():
            self.break_off(Unavailable("delivering delayed messages has ended; it begins again", sent=False))
        if self._next_ms <= self.store.delayed.now_ms():
            self._wake.set()
        return ()

    async def _deliver_all(self) -> None:
        refused: str | None = None
        while self.is_current and not self.service.held.closed:
            if self._next_ms > self.store.delayed.now_ms():
                await self._sleep(self.store.delayed.wait_ms(self._next_ms) / 1000)
                continue
            began_s = runtime.monotonic()
            try:
                await self._deliver_due()
            except LsmqError as error:
                if error.code != refused:
                    refused = error.code
                    tell = _log.info if error.retriable else _log.warning
                    tell("delayed_not_delivered", shard=self.port.number, code=error.code, message=error.message)
                await asyncio.sleep(_PAUSE_S if error.retriable else _LONG_PAUSE_S)
            else:
                refused = None
                took_s = runtime.monotonic() - began_s
                await asyncio.sleep(min(max(_GATHERED * took_s, _LEAST_GATHER_S), _MOST_GATHER_S))

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(min(seconds, 3600.0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    # Delivering

    async def _deliver_due(self) -> None:
        """What is due by now; and find out when the next one is."""
        self.check()
        delayed = self.store.delayed
        now_ms, in_line_ms = delayed.now_ms(), delayed.first_in_line()
        upto_ms = now_ms if in_line_ms is None else min(now_ms, in_line_ms - 1)
        self._refused_ms = min(self._refused_ms, self._next_ms or now_ms)
        self._next_ms = _NEVER if in_line_ms is None else in_line_ms  # What comes while we look counts.
        try:
            next_ms = await self._deliver_held(upto_ms)
            while next_ms is None:
                next_ms = await self._look(upto_ms)
                if next_ms is None:
                    next_ms = await self._deliver_held(upto_ms)
            self._refused_ms = _NEVER
            self._next_ms = min(self._next_ms, next_ms)
            if self._next_ms == _NEVER:
                self._count_none()
        except BaseException:
            self._drop_held()
            self._next_ms = 0
            raise

    async def _look(self, upto_ms: int) -> int | None:
        """Hold what is due next; where nothing is within the next moments, when it is."""
        delayed = self.store.delayed
        in_line_ms, self._first_new_ms = delayed.first_in_line(), _NEVER
        ahead_ms = delayed.now_ms() + _AHEAD_MS
        ahead_ms = max(upto_ms, ahead_ms if in_line_ms is None else min(ahead_ms, in_line_ms - 1))
        with ExitStack() as reading:
            reading.enter_context(self._reading())
            read, next_ms = await self._in_readers(partial(_find_due, self.store, self.hand.to, ahead_ms))
            self.check()
            if read.records is not None:
                self._held = _Held(reading.pop_all(), read.records, read.reached)
                return None
        self._pass_over(min(read.reached, (upto_ms, _LAST_OFFSET)))
        return next_ms

    async def _deliver_held(self, upto_ms: int) -> int | None:
        """As far as it is due, and all there is. When the next of it is due; None where a look is to say."""
        held = self._held
        if held is None:
            return None
        reached = min(held.reached, (self._first_new_ms - 1, _LAST_OFFSET))
        due, later = _split(held.records, min(upto_ms, reached[0]))
        if due is not None:
            self._refused_ms = _due_ms(due).item(0)
            numbered = await self._numbered(due)
            await self._store(due, self._without_cancelled(numbered))
        if later is None or reached[0] <= upto_ms or self._first_new_ms <= _due_ms(later).item(0):
            self._drop_held()
            return None
        self._held = held._replace(records=later)
        return _due_ms(later).item(0)

    def _drop_held(self) -> None:
        if self._held is not None:
            self._held.reading.close()
            self._held = None

    def _pass_over(self, reached: DuePlace) -> None:
        """Nothing is pending up to there."""
        reached = max(self.hand.to, reached)
        self.hand = self.hand._replace(at=reached, to=reached)

    def _count_none(self) -> None:
        """Nothing is pending: what merges took away of deleted topics does not count any more."""
        stored = self.store.delayed.stored
        if self.hand.done < stored:
            hand = self.hand._replace(done=stored)
            self.put_aside(Step({HAND: hand.encode()}, appended=partial(setattr, self, "hand", hand)))

    async def _read(self, after: DuePlace, upto_ms: int, max_records: int, max_bytes: int) -> DueRead:
        return await self._in_readers(partial(self.store.delayed.read, after, upto_ms, max_records, max_bytes))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What is cancelled from here to the end is remembered until then: a read shows it, or does not."""
        self._reads += 1
        number = self._reads
        self._open_reads.add(number)
        try:
            yield
        finally:
            self._open_reads.remove(number)
            self._forget_cancelled()

    def _forget_cancelled(self) -> None:
        """Those that no read shows any more."""
        oldest = min(self._open_reads, default=self._reads + 1)
        while self._cancellations and self._cancellations[0][0] < oldest:
            self._cancelled.discard(self._cancellations.popleft()[1])

    async def _store(self, due: SortedRecords, kept: SortedRecords | None) -> None:
        """Put in line what is kept of what is due; return when few pieces are."""
        if kept is None:
            self._pass_over(_last(due))
            return
        self.port.check_writable(Ack.QUORUM)
        topics = topics_of(kept.columns[Column.TARGET])
        self._put(self.hand._replace(to=_last(due), topics=topics), kept, after=0)
        self._ahead = [future for future in self._ahead if not future.done()]
        if len(self._ahead) >= _PIECES_AHEAD:
            await self.durable(self._ahead.pop(0))

    async def _numbered(self, records: SortedRecords | None) -> SortedRecords | None:
        """The same for the queues that have their names by now: good for a write before anything else is awaited.

        One that is not there any more is made again. Raises what a write raises.
        """
        while records is not None:
            try:
                return self._numbered_now(records)
            except _NamesMissing as missing:
                topic = await self.service.broker.topic_by_id(missing.topic_id)
                await self.service.broker.names.declare(self.port, topic, missing.names)
                self.check()
        return None

    def _numbered_now(self, records: SortedRecords) -> SortedRecords:
        for topic_id in topics_of(records.columns[Column.TARGET]):
            if self.store.has_topic(topic_id) and self.store.topic_by_id(topic_id).named:
                rows, names = names_due(records, topic_id)
                places = {name: place for place, name in enumerate(dict.fromkeys(names))}
                numbers = self.service.broker.names.lasting(self.port, topic_id, list(places))
                if numbers is None:
                    raise _NamesMissing(topic_id, list(places))
                records = retargeted(records, topic_id, rows, numbers[[places[name] for name in names]])
        return records

    def _without_cancelled(self, records: SortedRecords | None) -> SortedRecords | None:
        if records is None or not self._cancelled:
            return records
        places = zip(_due_ms(records).tolist(), records.offsets.tolist(), strict=True)
        keep = np.array([place not in self._cancelled for place in places])
        return records if keep.all() else select(records, np.flatnonzero(keep)) if keep.any() else None

    def _put(self, plan: Hand, records: SortedRecords | None, after: int) -> asyncio.Future[None] | None:
        """Put in line what the plan says, and that it is carried out; batches numbered up to ``after`` are stored.

        Raises what a write raises. Then the machine is not used again: what is in line is not known to it.
        """
        live = [topic_id for topic_id in plan.topics if self.store.has_topic(topic_id)]
        found = batches(records, plan.topics, plan.number, live, after)
        count = 0 if records is None else len(records)
        done = plan._replace(at=plan.to, number=plan.number + len(plan.topics), done=plan.done + count, topics=())
        delivered, dropped = sum(batch.record_count for _, batch in found), 0
        due_ms = np.zeros(0, np.int64)
        if records is not None:
            due_ms = _due_ms(records)
            dropped = int(np.isin(records.columns[Column.TARGET] >> np.uint64(32), live, invert=True).sum())
        if found and not after:
            self.put(Step({HAND: plan.encode()}))
        try:
            step = Step(
                {HAND: done.encode()}, batches=found, stored=partial(self._delivered, due_ms, delivered, dropped)
            )
            future = self.put(step)
        except LsmqError as error:
            self.break_off(error)
            raise
        self.hand = done
        self._in_line_ms.append(due_ms.item(0) if len(due_ms) else _NEVER)
        if future is not None:
            self._ahead.append(future)
        return future

    def _delivered(self, due_ms: I64, count: int, dropped: int) -> None:
        self._in_line_ms.popleft()
        self.counts.delivered += count
        self.counts.dropped += dropped
        self.counts.were_late(due_ms, self.store.delayed.now_ms())

    async def _carry_out_again(self) -> None:
        """What somebody was about to deliver, as far as it is not stored."""
        plan = self.hand
        stored = plan.number - 1
        for number in range(plan.number, plan.number + len(plan.topics)):
            producer, epoch = producer_of(number)
            known = self.store.producer_epoch(producer)
            if known is not None and known >= epoch:
                stored = number
        if stored < plan.number:  # Nothing of it is: what was planned is planned anew, and may be less.
            self.hand = plan._replace(to=plan.at, topics=())
            return
        parts: list[SortedRecords] = []
        after, more = plan.at, True
        while more and after < plan.to:
            read = await self._read(after, plan.to[0], *_piece_of(self.store))
            after, more = read.reached, read.more
            if read.records is not None:
                parts.append(read.records)
        records = concatenate(parts) if parts else None
        if records is not None:
            due, offsets = _due_ms(records), records.offsets
            mine = (due < plan.to[0]) | ((due == plan.to[0]) & (offsets <= plan.to[1]))
            records = select(records, np.flatnonzero(mine))
        await self.durable(self._put(plan, await self._numbered(records), stored))

    # What is pending

    async def pending(self, after: DuePlace, topic_id: int, limit: int) -> tuple[list[PendingMessage], DuePlace | None]:
        """Some of a topic's messages behind a place, in the order in which they are due, and how far was looked.

        None where there are no more.
        """
        self.check()
        after = max(after, self.hand.to)
        found: list[PendingMessage] = []
        count = max(limit, 1000)
        for _ in range(_LOOKS):
            read = await self._read(after, LAST_DUE_MS, count, _PIECE_BYTES)
            self.check()
            found = [] if read.records is None else _messages(read.records, topic_id)
            if found or not read.more:
                break
            after, count = read.reached, max(limit, _LOOKED_AT)
        if len(found) > limit:
            return found[:limit], found[limit - 1].place
        return found, read.reached if read.more else None

    async def find(self, place: DuePlace, topic_id: int) -> PendingMessage:
        """One that is pending. Raises ``UnknownMessage``, ``AlreadyDelivered``."""
        return _messages(await self._one(place, topic_id), topic_id)[0]

    async def _one(self, place: DuePlace, topic_id: int) -> SortedRecords:
        self._check_pending(place)
        with self._reading():
            read = await self._read((place[0], place[1] - 1), place[0], 1, 1)
            self._check_pending(place)
        records = read.records
        if records is None or (_due_ms(records).item(0), records.offsets.item(0)) != place:
            raise _unknown(place)
        if int(records.columns[Column.TARGET][0]) >> 32 != topic_id:
            raise _unknown(place)
        return records

    def _check_pending(self, place: DuePlace) -> None:
        self.check()
        if place <= self.hand.to:
            raise AlreadyDelivered(
                "the message was due, and is in its queue: it can be deleted there; or it was cancelled before",
                due_ms=place[0],
            )
        if place in self._cancelled:
            raise _unknown(place)

    async def cancel(self, place: DuePlace, topic_id: int) -> None:
        """Durable on return. Raises ``UnknownMessage``, ``AlreadyDelivered``, and what a write raises."""
        await self._one(place, topic_id)
        self.port.check_writable(Ack.QUORUM)
        future = self.port.wait(self.store.delayed.cancel([place]), Ack.QUORUM)
        self._goes(place, future)
        await self.durable(future)
        self.counts.cancelled += 1

    async def reschedule(self, place: DuePlace, topic_id: int, due_ms: int) -> Moved:
        """``due_ms`` is a delay or a time. Durable on return.

        Raises as :meth:`cancel` does, and ``InvalidRequest`` for one that is to expire before it comes.
        """
        with self._reading():  # Its queue may have to be made first: who cancels it meanwhile is not to be forgotten.
            records = await self._numbered(await self._one(place, topic_id))
            assert records is not None, "there is one"
            self._check_pending(place)
        _check_expiry(records, due_ms, self.store.time.present_ms)
        self.port.check_writable(Ack.QUORUM)
        appended = self.store.append(topic_id, moved(records, due_ms, *place))
        if due_ms <= 1 or MAX_DELAY_MS < due_ms <= appended.stored_ms + 1:  # At once, which is a millisecond later.
            self.store.delayed.let_a_moment_pass()
        future = self.port.wait(appended, Ack.QUORUM)
        self._goes(place, future)
        await self.durable(future)
        self.counts.rescheduled += 1
        queue = int(records.columns[Column.TARGET][0]) & 0xFFFFFFFF
        named = self.store.has_topic(topic_id) and self.store.topic_by_id(topic_id).named
        name = names_due(records, topic_id)[1][0] if named else None
        return Moved(appended.offsets.item(0), queue, appended.stored_ms, name)

    def _goes(self, place: DuePlace, future: asyncio.Future[None]) -> None:
        """It is cancelled, and not delivered by a read that began before."""
        self._cancelled.add(place)

        def committed(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and isinstance(error := done.exception(), LsmqError):
                self.break_off(error)  # It may be stored all the same, whoever still waits for that.
            self._cancellations.append((self._reads, place))
            self._forget_cancelled()

        future.add_done_callback(committed)


def _find_due(store: ShardStore, after: DuePlace, ahead_ms: int) -> tuple[DueRead, int]:
    """A piece of what is due up to then; where that is none, also when the next one behind it is. In any thread."""
    read = store.delayed.read(after, ahead_ms, *_piece_of(store))
    while read.more and read.records is None:  # Many may be cancelled.
        read = store.delayed.read(read.reached, ahead_ms, *_piece_of(store))
    if read.records is not None:
        return read, 0
    behind, count = DueRead(None, read.reached, more=True), 1
    while behind.more and behind.records is None:
        behind = store.delayed.read(behind.reached, LAST_DUE_MS, count, _PIECE_BYTES)
        count = min(_GROWS * count, _LOOKED_AT)
    return read, _NEVER if behind.records is None else _due_ms(behind.records).item(0)


def _split(records: SortedRecords, upto_ms: int) -> tuple[SortedRecords | None, SortedRecords | None]:
    """What is due up to then, and what is later."""
    due = int(_due_ms(records).searchsorted(upto_ms, "right"))
    if due in (0, len(records)):
        return (records, None) if due else (None, records)
    return select(records, np.arange(due)), select(records, np.arange(due, len(records)))


def _piece_of(store: ShardStore) -> tuple[int, int]:
    """Records and bytes of a piece: a batch takes all of it, if it is for one topic."""
    options = store.options
    return min(_PIECE_RECORDS, options.max_batch_records), min(_PIECE_BYTES, options.max_batch_bytes)


def _due_ms(records: SortedRecords) -> I64:
    due: I64 = (records.keys & ~DUE).astype(np.int64)
    return due


def _last(records: SortedRecords) -> DuePlace:
    return _due_ms(records).item(-1), records.offsets.item(-1)


def _messages(records: SortedRecords, topic_id: int) -> list[PendingMessage]:
    """Those of a topic."""
    mine = np.flatnonzero(records.columns[Column.TARGET] >> np.uint64(32) == topic_id)
    if not len(mine):
        return []
    if len(mine) < len(records):
        records = select(records, mine)

    def column(name: Column) -> list[int]:
        values = records.columns.get(name)
        return [0] * len(records) if values is None else values.tolist()

    payload = records.payload.tobytes()
    ends = np.cumsum(records.lengths, dtype=np.int64).tolist()
    starts = [0, *ends[:-1]]
    rows = zip(
        _due_ms(records).tolist(),
        records.offsets.tolist(),
        records.columns[Column.TARGET].tolist(),
        column(Column.STORED_MS),
        column(Column.PRIORITY),
        column(Column.FLAGS),
        column(Column.HEADER_LENGTH),
        column(Column.EXPIRES_MS),
        starts,
        ends,
        strict=True,
    )
    return [
        PendingMessage(
            (due, offset),
            target & 0xFFFFFFFF,
            stored,
            priority,
            flags,
            header,
            payload[start:end],
            due + expires if 0 < expires <= MAX_TTL_MS else expires,  # it lives from when it is due
        )
        for due, offset, target, stored, priority, flags, header, expires, start, end in rows
    ]


def _check_expiry(records: SortedRecords, due_ms: int, now_ms: int) -> None:
    """Raises ``InvalidRequest`` where a message is put behind the moment at which it expires."""
    expires_ms = int(records.columns[Column.EXPIRES_MS][0]) if Column.EXPIRES_MS in records.columns else 0
    if MAX_TTL_MS < expires_ms <= (now_ms + due_ms if due_ms <= MAX_DELAY_MS else due_ms):
        raise InvalidRequest(
            f"the message expires at {expires_ms} ms since 1970, before it would come; let it come earlier",
            field="deliver_at_ms",
            limit=expires_ms - 1,
        )


def _unknown(place: DuePlace) -> UnknownMessage:
    return UnknownMessage("no such message is pending in this topic: it was cancelled or rescheduled", due_ms=place[0])
