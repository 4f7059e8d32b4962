"""Moves what has expired, or was dropped at a limit, in the topics of one shard, while this node leads it.

About once a second it asks the store what that is (:mod:`lsmq_node.storage.lapses`), and puts two things in line in
one piece: letters, in the target's queue in this shard, and that the messages are deleted where they were. Nothing is
remembered but that: what is not deleted by then is found again, by whoever leads. Only a crash that tears the piece of
the log between the two stores a letter twice.

What cannot be moved waits and takes space: ``waiting`` says of which topics, and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from lsmq.errors import (
    LsmqError,
    MessageTooLarge,
    QuotaExceeded,
    RequestTooLarge,
    TooManyMessages,
    Unavailable,
    UnknownTopic,
)
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.broker import Ack, ShardPort
from lsmq_node.broker.letter_targets import check_letters, letter_limit, letter_queue, letter_topic
from lsmq_node.machines import ShardMachine, Step
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.lapses import Lapsed
from lsmq_node.storage.losses import LossReason

from .letter import add_letter, origin, records_of

if TYPE_CHECKING:
    from .service import LetterService

_PERIOD_S = 1.0
_AT_ONCE = 500
_BYTES_AT_ONCE = 1 << 20
#: Where the target, or a batch, took fewer, so many times as many are tried with each turn that went well.
_GROWS = 8
#: So many pieces of a topic, then it is the next one's turn.
_TURN = 32
#: Of one thread, for looking at what has not expired.
_SHARE = 0.25
#: By why they go: the option that says where to, and what letters say.
_OPTIONS = {LossReason.LAPSED: "expired_to", LossReason.OVERFLOW: "dropped_to"}
_REASONS = {LossReason.LAPSED: "expired", LossReason.OVERFLOW: "overflow"}
REASONS = tuple(_REASONS.values())


class Mover(ShardMachine):
    """In one round of its store. Loop thread only."""

    subject = "messages to move"

    def __init__(self, service: LetterService, port: ShardPort) -> None:
        super().__init__(service, port)
        self._service = service
        self._broker = service.broker
        self._lapses = self.store.lapses.begin()
        self._task: asyncio.Task[Any] | None = None
        self._at_once: dict[int, int] = {}  # by topic's id, where its target may hold fewer
        #: By topic's id, the code of what keeps its messages from being moved.
        self.waiting: dict[int, str] = {}

    async def load(self, left: Any) -> None:
        await self.barrier()
        self._task = self._start(self._run())

    def due(self) -> tuple[Step, ...]:
        if self._task is not None and self._task.done():
            self.break_off(Unavailable("moving messages has ended; it begins again", sent=False))
        return ()

    def end(self) -> None:
        super().end()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self.is_current and not self._service.held.closed:
            topics, more = self._lapses.topics(), False
            for known in (self.waiting, self._at_once):
                for gone in known.keys() - set(topics):
                    del known[gone]
            for topic_id in topics:
                try:
                    more |= await self._move_some(topic_id)
                    self.waiting.pop(topic_id, None)
                    if (at_once := _GROWS * self._at_once.pop(topic_id, _AT_ONCE)) < _AT_ONCE:
                        self._at_once[topic_id] = at_once
                except UnknownTopic:
                    continue
                except LsmqError as error:
                    self._waits(topic_id, error)
            if not more:
                await asyncio.sleep(_PERIOD_S)

    def _waits(self, topic_id: int, error: LsmqError) -> None:
        if isinstance(error, MessageTooLarge | QuotaExceeded | RequestTooLarge | TooManyMessages):  # Fewer may fit.
            self._at_once[topic_id] = 1
        if self.waiting.get(topic_id) != error.code:
            tell = self._log.info if error.retriable else self._log.warning
            name = self.store.topic_by_id(topic_id).name if self.store.has_topic(topic_id) else topic_id
            tell("letters_wait", shard=self.port.number, topic=name, code=error.code, message=error.message)
        self.waiting[topic_id] = error.code

    async def _move_some(self, topic_id: int) -> bool:
        """Up to :data:`_TURN` pieces of a topic; whether there may be more."""
        find = partial(self._lapses.find, topic_id, self._at_once.get(topic_id, _AT_ONCE), _BYTES_AT_ONCE)
        for _ in range(_TURN):
            began_s = self._loop.time()
            lapsed = await self._broker.in_readers(find)
            self.check()
            if lapsed is None:
                return False
            topic = self.store.topic_by_id(topic_id)
            to = getattr(topic.options, _OPTIONS[lapsed.why])
            if len(lapsed.queues):
                if to is None:  # It was taken away since: they are found again where it is given again.
                    return False
                await self._move(topic, to, lapsed)
            else:
                await asyncio.sleep((self._loop.time() - began_s) * (1 / _SHARE - 1))
            await self._broker.in_readers(partial(self._lapses.moved, lapsed))
        return True

    async def _move(self, topic: StoredTopic, to: str, lapsed: Lapsed) -> None:
        option = _OPTIONS[lapsed.why]
        check_letters(self._broker, topic.name, option, to)  # Two that were altered at once may make a circle.
        target = await letter_topic(self._broker, to, self.port.number)
        queue = letter_queue(self._broker, target, self.port.number, option)
        await self.port.prepare(target)
        names: dict[int, str] = {}
        if topic.named:
            # A number may be another queue's by now: then all of this is below where that begins, and has no name.
            named = await self._broker.names.names_of(topic, set(lapsed.queues.tolist()))
            firsts = dict(zip(lapsed.queues.tolist(), lapsed.offsets.tolist(), strict=True))
            names = {number: each.name for number, each in named.items() if firsts[number] >= each.earliest}
        batch = await self._broker.in_readers(
            partial(_pack, topic, queue, lapsed, names, letter_limit(self._broker, target))
        )
        self.check()
        self.port.check_writable(Ack.QUORUM)
        moved = self._lapses.move(lapsed, target.id, batch)
        if moved is None:
            return
        await self.durable(self.port.wait(moved, Ack.QUORUM))
        count, reason = len(lapsed.queues), _REASONS[lapsed.why]
        self._service.moved[reason] = self._service.moved.get(reason, 0) + count


def _pack(topic: StoredTopic, queue: int, lapsed: Lapsed, names: Mapping[int, str], limit: int) -> RecordBatch:
    builder, reason = BatchBuilder(), _REASONS[lapsed.why]
    for batch, places in lapsed.batches:
        for record in records_of(batch):
            if (record.queue, record.offset) not in places:
                continue
            says = origin(topic.name, topic.id, record, names.get(record.queue))
            says |= {"reason": reason, "stored-ms": record.stored_ms}
            if lapsed.why is LossReason.LAPSED:
                says["expired-ms"] = record.expires_ms
            add_letter(builder, queue, record, says, limit)
    return RecordBatch(builder.build(), verify=False)
