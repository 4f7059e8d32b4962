"""Dead letters: messages that have failed for the last time go to a topic of their own, each once.

Three steps, each durable before the next: *which* messages are to go, as a document with a producer id made for it; the
batch, from that producer; and that they are settled, together with the end of the document. Whoever finds the document
after a crash does the last two again: the batch is not stored twice, since it is the producer's first in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, UnknownTopic
from lsmq.messages import RecordHeader
from lsmq.record_batch import BatchBuilder, Flag, RecordBatch, decode_header, message_id
from lsmq_node.broker import Broker, Start
from lsmq_node.machines import Step, documents
from lsmq_node.storage import Topic, TopicOptions

from .chunks import BURIAL
from .reading import Found, Record, read_again
from .settings import VERSION

if TYPE_CHECKING:
    from .shard_work import ShardWork
    from .tasks import Task

_log = structlog.get_logger("lsmq.workqueue")

_BATCH_MESSAGES = 100
_BATCH_BYTES = 4 << 20
_RETRY_S = 1.0
_MAX_REASON = 500
PROPERTY_PREFIX = "lsmq-dlq-"


@dataclass(frozen=True, slots=True)
class Burial:
    """``rows``: queue, offset, deliveries and reason of each message."""

    producer_id: int
    rows: tuple[tuple[int, int, int, str], ...]

    def encode(self) -> bytes:
        """The document: ``[1, producer_id, rows]``."""
        return documents.pack([VERSION, self.producer_id, self.rows])

    @classmethod
    def decode(cls, body: bytes, key: str) -> Burial:
        """Raises ``UnsupportedFormat`` for a newer one, ``CorruptFile`` for what is none."""

        def build(fields: Any) -> Burial:
            _, producer_id, rows = fields
            return cls(producer_id, tuple((queue, offset, count, reason) for queue, offset, count, reason in rows))

        return documents.decode(body, key, "list of dead letters", VERSION, build)

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> Burial:
        rows = tuple((task.queue, task.offset, task.count, task.reason) for task in tasks)
        return cls(runtime.random.getrandbits(62) + 1, rows)

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(queue, offset) for queue, offset, _, _ in self.rows]


class Undertaker:
    """Puts away the dead letters of one work queue in one shard, a batch at a time."""

    def __init__(self, work: ShardWork, broker: Broker, start: Start) -> None:
        self._work = work
        self._broker = broker
        self._start = start
        self._wake = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._left: Burial | None = None

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

    async def _bury_all(self) -> None:
        work = self._work
        while work.is_current:
            if self._left is None:
                tasks = work.ledger.take_dead(_BATCH_MESSAGES)
                if not tasks:
                    return
                burial = Burial.of(tasks)
                try:
                    await self._put(Step({work.key_of(BURIAL): burial.encode()}))
                except BaseException:
                    work.ledger.give_back_dead(tasks)
                    raise
                self._left = burial  # from here on it is this one, until it is done
            await self._bury(self._left, work.ledger.dead_at(self._left.places))
            self._left = None

    async def _put(self, step: Step) -> None:
        self._work.check()
        await self._work.durable(self._work.put(step))

    async def _bury(self, burial: Burial, tasks: Sequence[Task]) -> None:
        work, found = self._work, Found()
        topic = await self._topic()
        queue = self._queue(topic)
        await work.port.prepare(topic)
        places = burial.places
        await self._broker.in_readers(lambda: read_again(work.store, work.topic.id, places, _BATCH_BYTES, found))
        work.check()
        rows = [row for row in burial.rows if row[:2] in found.again]
        names: dict[int, str] = {}
        if work.topic.named:
            named = await self._broker.names.names_of(work.topic, (place[0] for place in places))
            names = {number: each.name for number, each in named.items()}
            work.check()
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

    async def _topic(self) -> Topic:
        """The topic of dead letters, made where there is none: a queue for each shard."""
        name = self._work.settings.dead_letter_topic(self._work.topic.name)
        try:
            return await self._broker.topic(name)
        except UnknownTopic:
            topic, _ = await self._broker.create_topic(name, self._broker.topology.shard_count, TopicOptions())
            return topic

    def _queue(self, topic: Topic) -> int:
        if topic.named:
            raise named_for_dead_letters(topic)
        number = self._work.port.number
        for part in self._broker.ranges(topic):
            if part.shard == number:
                return part.first
        raise too_few_queues(topic, self._broker.topology.shard_count)

    def _pack(
        self,
        topic: Topic,
        queue: int,
        burial: Burial,
        letters: Sequence[tuple[Record, tuple[int, int, int, str]]],
        names: Mapping[int, str],
    ) -> RecordBatch:
        builder = BatchBuilder()
        limit = self._broker.config.max_message_bytes
        if topic.options.max_message_bytes is not None:
            limit = min(limit, topic.options.max_message_bytes)
        for record, (_, _, count, reason) in letters:
            self._add(builder, queue, record, count, reason, limit, names.get(record.queue))
        return RecordBatch(builder.build(producer_id=burial.producer_id, sequence=0), verify=False)

    def _add(
        self,
        builder: BatchBuilder,
        queue: int,
        record: Record,
        count: int,
        reason: str,
        limit: int,
        queue_name: str | None,
    ) -> None:
        """The message with its key, tag and properties, and where it comes from.

        One that is too large with that goes without its own properties and headers; and then cut, which
        ``lsmq-dlq-cut`` says.
        """
        work = self._work
        try:
            header = decode_header(record.header)
        except LsmqError:
            header = RecordHeader()
        own = {
            f"{PROPERTY_PREFIX}{name}": str(value)
            for name, value in (
                ("topic", work.topic.name),
                ("queue", record.queue),
                ("queue-name", queue_name),
                ("offset", record.offset),
                ("id", message_id(work.topic.id, record.queue, record.offset)),
                ("group", work.group),
                ("deliveries", count),
                ("reason", reason[:_MAX_REASON]),
            )
            if value is not None
        }
        body = record.body
        for kept in (header, header._replace(properties={}, headers=())):
            packed = BatchBuilder()
            packed.add(
                queue,
                body,
                key=kept.key,
                tag=kept.tag,
                properties={**kept.properties, **own},
                headers=kept.headers,
                kind=kept.type,
            )
            over = packed.size_bytes - limit
            if over <= 0:
                break
        else:
            own[f"{PROPERTY_PREFIX}cut"] = str(len(body))
            body = body[: max(1, len(body) - over - len(f"{PROPERTY_PREFIX}cut") - 24)]
        builder.add(
            queue,
            body,
            key=kept.key,
            tag=kept.tag,
            priority=record.priority,
            properties={**kept.properties, **own},
            headers=kept.headers,
            delete=bool(record.flags & Flag.DELETE),
            kind=kept.type,
        )


def named_for_dead_letters(topic: Topic) -> InvalidRequest:
    """A topic that dead letters would have to choose names in."""
    return InvalidRequest(
        f"topic {topic.name!r} has queues with names, and dead letters have none: delete it, so that it is made anew, "
        "or choose another (dead_letter)",
        topic=topic.name,
    )


def too_few_queues(topic: Topic, shards: int) -> InvalidRequest:
    """A topic that cannot take dead letters of every shard."""
    return InvalidRequest(
        f"topic {topic.name!r} has {topic.queues} queues; one for dead letters needs at least {shards}, one for each "
        "shard. Delete it, so that it is made anew, or choose another (dead_letter)",
        topic=topic.name,
        queues=topic.queues,
        limit=shards,
    )
