"""Dead letters: messages that have failed for the last time go to a topic of their own, each once.

Three steps, each durable before the next: *which* messages are to go, as a document that names the next epoch of the
work queue's own producer; the batch, the only one of that epoch; and that they are settled, together with the end of
the document. Whoever finds the document after a crash does the last two again: the batch is not stored twice. Where it
would be another batch by now, all three are done again: a letter may come twice then, and none is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from lsmq import runtime
from lsmq.errors import (
    LsmqError,
    MessageTooLarge,
    ProducerFenced,
    QuotaExceeded,
    RequestTooLarge,
    SequenceReused,
    TooManyMessages,
)
from lsmq.messages import key_hash
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.broker import Broker, StartTask
from lsmq_node.broker.letter_targets import letter_limit, letter_queue, letter_topic
from lsmq_node.letters import LetterRecord, add_letter, origin
from lsmq_node.machines import Step, documents
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.producers import LAST_EPOCH

from .chunks import BURIAL
from .reading import Found, read_again

if TYPE_CHECKING:
    from .shard_work import ShardWork
    from .tasks import OpenMessage

_log = structlog.get_logger("lsmq.workqueue")

_BATCH_MESSAGES = 100
_BATCH_BYTES = 4 << 20
_RETRY_S = 1.0
#: After what nobody expects.
_FAILED_S = 30.0
_MAX_REASON = 500
_VERSION = 2
_ID_BITS = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Burial:
    """``rows``: queue, offset, deliveries and reason of each message."""

    producer_id: int
    epoch: int
    rows: tuple[tuple[int, int, int, str], ...]

    def encode(self) -> bytes:
        """The document: ``[2, producer_id, epoch, rows]``. Version 1 has no epoch: it was 0."""
        return documents.pack([_VERSION, self.producer_id, self.epoch, self.rows])

    @classmethod
    def decode(cls, body: bytes, key: str) -> Burial:
        """Raises ``UnsupportedFormat`` for a newer one, ``CorruptFile`` for what is none."""

        def build(fields: Any) -> Burial:
            version, producer_id, *later, rows = fields
            (epoch,) = later if version > 1 else (0,)
            rows = tuple((queue, offset, count, reason) for queue, offset, count, reason in rows)
            return cls(producer_id, epoch, rows)

        return documents.decode(body, key, "list of dead letters", _VERSION, build)

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(queue, offset) for queue, offset, _, _ in self.rows]


class DeadLetterMover:
    """Puts away the dead letters of one work queue in one shard, a batch at a time."""

    def __init__(self, work: ShardWork, broker: Broker, start: StartTask) -> None:
        self._work = work
        self._broker = broker
        self._start = start
        self._wake = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._left: Burial | None = None
        self._at_once = _BATCH_MESSAGES

    def begin(self, left: Burial | None) -> None:
        """``left``: one that an earlier leader has begun."""
        self._left = left
        if left is not None:
            self.wake()

    def wake(self) -> None:
        """There are dead letters."""
        if self._task is None:
            self._task = self._start(self._run())
        self._wake.set()

    def end(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self) -> None:
        work = self._work
        while work.is_current:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._bury_all()
            except LsmqError as error:
                _log.info("dead_letters_wait", group=work.group, topic=work.topic.name, code=error.code)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
            except Exception as error:  # Whatever it is, those that are dead do not wait for another leader.
                _log.error("dead_letters_fail", group=work.group, topic=work.topic.name, exc_info=error)
                await asyncio.sleep(_FAILED_S)
                self._wake.set()

    async def _bury_all(self) -> None:
        work = self._work
        while work.is_current:
            if self._left is None:
                tasks = work.ledger.take_dead(self._at_once)
                if not tasks:
                    return
                burial = self._next(tasks)
                try:
                    await self._put(Step({work.key_of(BURIAL): burial.encode()}))
                except BaseException:
                    work.ledger.give_back_dead(tasks)
                    raise
                self._left = burial  # from here on it is this one, until it is done
            tasks = work.ledger.dead_at(self._left.places)
            try:
                await self._bury(self._left, tasks)
            except (SequenceReused, ProducerFenced):
                # Stored it was otherwise, in a topic that was deleted, or before some had expired. Or another one took
                # the producer's id, and a later epoch: the next is beyond that.
                work.ledger.give_back_dead(tasks)
            except (MessageTooLarge, QuotaExceeded, RequestTooLarge, TooManyMessages):  # Fewer at a time may fit.
                if len(self._left.rows) == 1:
                    raise
                self._at_once = 1
                await self._put(Step({work.key_of(BURIAL): None}))
                work.ledger.give_back_dead(tasks)
            else:
                self._at_once = min(2 * self._at_once, _BATCH_MESSAGES)
            self._left = None

    def _next(self, tasks: Sequence[OpenMessage]) -> Burial:
        """The shard remembers each producer for long: so a work queue has one, however many dead letters."""
        producer_id = (key_hash(self._work.key_of(BURIAL)) & _ID_BITS) + 1
        known = self._work.store.producer_epoch(producer_id)
        epoch = 0 if known is None else known + 1
        if epoch > LAST_EPOCH:
            producer_id, epoch = runtime.random.getrandbits(62) + 1, 0
        return Burial(producer_id, epoch, tuple((task.queue, task.offset, task.count, task.reason) for task in tasks))

    async def _put(self, step: Step) -> None:
        self._work.check()
        await self._work.durable(self._work.put(step))

    async def _bury(self, burial: Burial, tasks: Sequence[OpenMessage]) -> None:
        work, found = self._work, Found()
        name = work.settings.dead_letter_topic(work.topic.name)
        topic = await letter_topic(self._broker, name, work.port.number)
        queue = letter_queue(self._broker, topic, work.port.number, "dead_letter")
        await work.port.prepare(topic)
        places = burial.places
        await self._broker.in_readers(lambda: read_again(work.store, work.topic.id, places, _BATCH_BYTES, found))
        work.check()
        rows = [row for row in burial.rows if row[:2] in found.again]
        names: dict[int, str] = {}
        if work.topic.named:
            named = await self._broker.names.names_of(work.topic, (place[0] for place in places))
            work.check()
            names = {number: each.name for number, each in named.items()}
            # Of a queue that was deleted meanwhile there is no message any more; another one may have its number.
            rows = [row for row in rows if row[0] in named and row[1] >= named[row[0]].earliest]
        if rows and tasks:
            batch = self._pack(topic, queue, burial, [(found.again[row[:2]], row) for row in rows], names)
            await self._put(Step(batches=((topic.id, batch),)))
        # What was not read for its size is dead still, and comes with the next batch.
        unread = [task for task in tasks if (task.queue, task.offset) not in {*found.again, *found.gone}]
        await work.bury([task for task in tasks if task not in unread])
        await self._put(Step({work.key_of(BURIAL): None}))
        if unread:
            work.ledger.give_back_dead(unread)
            self._wake.set()
        _log.info("dead_letters", group=work.group, topic=work.topic.name, to=topic.name, messages=len(rows))

    def _pack(
        self,
        topic: StoredTopic,
        queue: int,
        burial: Burial,
        letters: Sequence[tuple[LetterRecord, tuple[int, int, int, str]]],
        names: Mapping[int, str],
    ) -> RecordBatch:
        builder, work = BatchBuilder(), self._work
        limit = letter_limit(self._broker, topic)
        for record, (_, _, count, reason) in letters:
            says = origin(work.topic.name, work.topic.id, record, names.get(record.queue))
            says |= {"group": work.group, "deliveries": count, "reason": reason[:_MAX_REASON]}
            add_letter(builder, queue, record, says, limit)
        return RecordBatch(builder.build(producer_id=burial.producer_id, producer_epoch=burial.epoch), verify=False)
