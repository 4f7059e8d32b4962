"""A sender: the way of a producer's batches to one shard, one batch in flight at a time.

While a batch is under way the next one fills; batches that are full wait in order. One at a time keeps the
order of messages and makes the sequence numbers that idempotence rests on trivial: a batch is packed once,
when its turn comes, and every retry sends the same bytes. A node that has stored them answers a repeat with
the first answer, so an answer that got lost costs nothing.

After a batch is given up nobody knows whether its sequence number was used. The sender then takes a new
producer identity, with sequence 0, rather than guess: a wrong guess would either stall the sender or have its
next batch taken for a repeat and lost.

A node that does not know the producer's earlier batches has lost them, or has forgotten the producer after a
long time; ``lost_state`` counts that, and a warning says it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from operator import add
from typing import TYPE_CHECKING

from lsmq import runtime
from lsmq._bundles import Bundles
from lsmq._outages import Attempts
from lsmq._receipts import NamedPendingBatch, PendingBatch
from lsmq._retries import Backoff, Deadline, maybe_carried_out
from lsmq.background_tasks import as_lsmq_error
from lsmq.errors import (
    ClientClosed,
    InvalidBatch,
    LsmqError,
    OutOfOrderSequence,
    QuotaExceeded,
    StaleSequence,
    TimedOut,
    UnknownProducer,
)
from lsmq.record_batch import BatchBuilder, Codec, RecordBatch
from lsmq.topics import Topic

if TYPE_CHECKING:
    from lsmq._column_builder import ColumnBuilder
    from lsmq.tracing import Tracing

#: Of an identity: no node takes one beyond it. One that is not the sender's own ends there.
_MAX_SEQUENCE = (1 << 32) - 2
_log = logging.getLogger("lsmq")


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """What a producer's senders have in common."""

    linger_s: float
    deadline_ms: int
    request_timeout_ms: int
    ack: str | None
    flush: str | None
    codec: Codec
    #: Whether what a full topic refuses is sent again until there is room.
    waits_for_room: bool = True

    def is_final(self, error: LsmqError) -> bool:
        """Whether a refusal is what comes of it, though it may pass."""
        return not self.waits_for_room and isinstance(error, QuotaExceeded)


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """What a producer has done so far, in batches.

    ``repeats`` are batches that had been stored when they were sent again after an answer was lost: stored once.
    ``lost_state`` counts how often a node did not know the producer's earlier batches. Unless the producer was idle
    for long, acknowledged messages were lost then: asynchronous flush and ``ack="leader"`` allow that.
    """

    stored: int = 0
    failed: int = 0
    attempts: int = 0
    repeats: int = 0
    lost_state: int = 0

    def __add__(self, other: ProducerStats) -> ProducerStats:
        return ProducerStats(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a sender sends as, where that is not its own: batches begin at sequence 0 of the epoch.

    ``position``: where the one before had come to.
    """

    producer_id: int
    epoch: int
    position: int | None


class ShardSender:
    """Sends a producer's batches for one shard.

    ``on_closed`` is called when a batch takes no more messages, ``on_settled`` with each batch as it
    settles. The task that runs :meth:`run` is the producer's.
    """

    def __init__(
        self,
        bundles: Bundles,
        topic: Topic,
        shard: int,
        options: SenderOptions,
        on_closed: Callable[[], None],
        on_settled: Callable[[PendingBatch], None],
        identity: Identity | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        bundles.router.check_loop()
        self.shard = shard
        #: Of the last message that was added, and of the last one that is stored.
        self.position = self.acknowledged = None if identity is None else identity.position
        self._identity = identity
        self._ended: LsmqError | None = None  # what ended it, where the identity is not its own
        self.open: PendingBatch | None = None
        self.attempts = 0
        self.stored_batches = 0
        self.failed_batches = 0
        self.repeats = 0
        self.lost_state = 0
        self._router = bundles.router
        self._bundles = bundles
        self._topic = topic
        self._options = options
        self._on_closed = on_closed
        self._on_settled = on_settled
        self._full: deque[PendingBatch] = deque()
        self._flying: PendingBatch | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self.broken = False
        self._tracing = tracing
        self._attempts = Attempts(self._router.outages, f"sending to topic {topic.name!r}")
        self._new_identity()

    @property
    def identity_position(self) -> int | None:
        """Where the one before had come to, in whose place it sends."""
        return None if self._identity is None else self._identity.position

    # Filling

    def start_batch(self, builder: BatchBuilder | ColumnBuilder | None = None) -> PendingBatch:
        """Open the batch that the next messages go into, or rows; it is due when the linger time is over."""
        if self.broken:
            raise ClientClosed("this producer is closed; make a new one")
        kind = NamedPendingBatch if self._topic.named else PendingBatch
        batch = self.open = kind(runtime.monotonic(), builder or BatchBuilder())
        if self._options.linger_s > 0:
            self._timer = asyncio.get_running_loop().call_later(self._options.linger_s, self._wake.set)
        else:
            self._wake.set()
        return batch

    def close_batch(self) -> None:
        """Let no more messages into the open batch: it waits for its turn."""
        if self.open is not None:
            self._full.append(self.open)
            self.open = None
            self._wake.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._on_closed()

    @property
    def stats(self) -> ProducerStats:
        return ProducerStats(self.stored_batches, self.failed_batches, self.attempts, self.repeats, self.lost_state)

    def unsettled(self) -> list[PendingBatch]:
        """The batches that are neither stored nor given up, oldest first."""
        flying = [self._flying] if self._flying is not None else []
        return [*flying, *self._full, *([self.open] if self.open is not None else [])]

    def stop(self) -> None:
        """Let :meth:`run` return once everything is settled."""
        self._closing = True
        self.close_batch()
        self._wake.set()

    # Sending

    async def run(self) -> None:
        """Send batches until stopped. Batches left over when it is cancelled or breaks fail."""
        try:
            with self._bundles.sender(self.shard):
                while (batch := await self._next()) is not None:
                    self._flying = batch
                    try:
                        await self._deliver(batch)
                    except Exception as error:
                        self._new_identity()  # Nobody knows whether its sequence number was used.
                        if not batch.settled:
                            self._fail(batch, as_lsmq_error(error, f"sending to topic {self._topic.name!r}"))
                    self._flying = None
        finally:
            self.broken = True
            self._attempts.end()
            if self._timer is not None:
                self._timer.cancel()
            for batch in self.unsettled():
                if not batch.settled:
                    self._fail(batch, _abandoned())
            self._flying = self.open = None
            self._full.clear()

    async def _next(self) -> PendingBatch | None:
        while True:
            if self._full:
                return self._full.popleft()
            if self.open is not None and self._is_due(self.open):
                self.close_batch()
                continue
            if self._closing:
                return None
            self._wake.clear()
            await self._wake.wait()

    def _is_due(self, batch: PendingBatch) -> bool:
        # The loop fires timers up to one clock tick early.
        return self._closing or runtime.monotonic() - batch.created_s >= self._options.linger_s - 0.0005

    def _new_identity(self) -> None:
        self._sequence = 0
        if self._identity is None:
            self._producer_id, self._epoch = runtime.random_bits(63) or 1, 0
        else:
            self._producer_id, self._epoch = self._identity.producer_id, self._identity.epoch

    def _pack(self, batch: PendingBatch) -> bytes:
        assert batch.builder is not None
        packed = batch.builder.build(
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            sequence=self._sequence,
            position=batch.position,
            codec=self._options.codec,
        )
        return batch.names_block() + packed if isinstance(batch, NamedPendingBatch) else packed

    async def _deliver(self, batch: PendingBatch) -> None:
        """Send one batch until it is stored, refused for good, or out of time; in a span of its own, where it is
        traced."""
        if self._tracing is None:
            await self._deliver_as(batch, None)
            return
        with self._tracing.batch(self._topic.name, batch) as carried:
            await self._deliver_as(batch, carried)

    async def _deliver_as(self, batch: PendingBatch, trace: Mapping[str, str] | None) -> None:
        if self._ended is not None:
            self._fail(batch, type(self._ended)(self._ended.message, **self._ended.details))
            return
        deadline = Deadline(self._options.deadline_ms, start_s=batch.created_s)
        backoff = Backoff()
        packed = self._pack(batch)
        may_be_stored = False
        last: LsmqError | None = None
        while True:
            if deadline.passed and last is not None:
                break
            leader: str | None = None
            try:
                leader = self._router.leader(await self._router.current(self._topic, deadline), self.shard)
                stored = await self._attempt(leader, packed, batch.count, deadline, trace)
            except (UnknownProducer, OutOfOrderSequence) as error:
                # The node has lost batches of this producer (asynchronous flush or ack=leader allow that), or
                # all memory of it. An order gap proves that this batch is not stored. A producer forgotten
                # proves nothing when an earlier attempt had no answer; then only the caller can decide.
                if (
                    self._identity is not None
                    or self._sequence == 0
                    or (may_be_stored and isinstance(error, UnknownProducer))
                ):
                    last = error
                    break
                self._note_lost_state(leader, error)
                self._new_identity()
                packed = self._pack(batch)
                continue
            except LsmqError as error:
                last = error
                may_be_stored = may_be_stored or maybe_carried_out(error)
                if self._options.is_final(error) or not self._router.worth_retrying(error):
                    break
                _log.debug("batch not stored, trying again: shard=%d node=%s error=%s", self.shard, leader, error)
                self._attempts.failed(error)
                await self._router.recover(self._topic, (self.shard,), leader, error, backoff, deadline)
                continue
            self._attempts.passed()
            self.stored_batches += 1
            self._sequence += 1
            if self._sequence > _MAX_SEQUENCE and self._identity is None:
                self._new_identity()
            self.acknowledged = batch.position
            batch.settle(stored, self.shard)
            self._on_settled(batch)
            return
        self._new_identity()
        self._fail(batch, self._final(last, may_be_stored, deadline))

    async def _attempt(
        self, leader: str, packed: bytes, record_count: int, deadline: Deadline, trace: Mapping[str, str] | None
    ) -> RecordBatch:
        """One request to the shard's leader; the offsets it gave, when it stored the batch, and the numbers of queues
        with names, and which messages are repeats by their ids."""
        options = self._options
        self.attempts += 1
        answer = await self._bundles.send(
            self._topic,
            leader,
            self.shard,
            packed,
            record_count,
            asked={name: value for name, value in (("ack", options.ack), ("flush", options.flush)) if value},
            timeout_s=deadline.attempt_s(options.request_timeout_ms / 1000),
            trace=trace,
        )
        stored = RecordBatch(answer.packed, source=f"answer of {leader}")
        if stored.record_count != record_count:
            raise InvalidBatch(f"{leader} gave {stored.record_count} offsets for a batch of {record_count} messages")
        self.repeats += answer.duplicate
        return stored

    def _note_lost_state(self, leader: str | None, error: LsmqError) -> None:
        self.lost_state += 1
        if isinstance(error, OutOfOrderSequence):
            meaning = "batches that were acknowledged before may be lost (ack=leader and asynchronous flush allow that)"
        else:
            meaning = "if it was not idle for long, batches that were acknowledged before may be lost"
        _log.warning(
            "producer state lost: %s does not know the earlier batches of this producer; %s. Going on under a new"
            " identity: topic=%s shard=%d stored_batches=%d error=%s",
            leader,
            meaning,
            self._topic.name,
            self.shard,
            self.stored_batches,
            error,
        )

    def _final(self, last: LsmqError | None, may_be_stored: bool, deadline: Deadline) -> LsmqError:
        assert last is not None
        if self._options.is_final(last) or (not last.retriable and not isinstance(last, StaleSequence)):
            return last
        fate = "it may be stored all the same" if may_be_stored else "it is not stored"
        return TimedOut(
            f"a batch had no success within {deadline.total_ms / 1000:g} s, {fate}; last: {last.message}",
            maybe_stored=may_be_stored,
            last_code=last.code,
        )

    def _fail(self, batch: PendingBatch, error: LsmqError) -> None:
        self.failed_batches += 1
        if self._identity is not None and self._ended is None:
            self._ended = error
        batch.fail(error)
        self._on_settled(batch)


def _abandoned() -> LsmqError:
    return ClientClosed("the producer was closed before this message was stored; it may be stored all the same")
