"""What is kept of a schedule, and the message of one of its times. Pure.

A schedule is the document ``schedule/<topic id>/<name>``, msgpack: 1, the version, and then the fields of
:class:`Schedule` but the first two.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from lsmq.messages import priority_value
from lsmq.record_batch import BatchBuilder, Column, Message, RecordBatch, key_hash
from lsmq_node.broker import BROKER_PRODUCERS
from lsmq_node.machines import documents

PREFIX = "schedule/"
_FORMAT = 1
#: Neither coordinators of transactions nor deliveries of delayed messages have it.
_PRODUCERS = BROKER_PRODUCERS | 1 << 61
_HASH = (1 << 60) - 1
#: Properties that a message of a schedule has beside its own.
NAME_PROPERTY, TIME_PROPERTY = "schedule", "scheduled_ms"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Attributes:

    queue: its number; where queues are named, its name, and the batch has 0.
    batch: a record batch of one record, the message.
    next_ms: the next time, milliseconds since 1970; last_ms: the time before, 0 where there was none.
    count: of the times there were.
    """

    topic_id: int
    name: str
    cron: str
    tz: str
    queue: int | str
    batch: bytes
    created_ms: int
    next_ms: int
    last_ms: int = 0
    count: int = 0

    @property
    def key(self) -> str:
        """Of its document."""
        return key_of(self.topic_id, self.name)

    @property
    def producer_id(self) -> int:
        """Of its messages, each of which is the first of an epoch: ``count``."""
        return _PRODUCERS | key_hash(f"{self.key} {self.created_ms}") & _HASH

    def encode(self) -> bytes:
        return documents.pack([_FORMAT, *(getattr(self, item.name) for item in fields(self)[2:])])

    @classmethod
    def decode(cls, key: str, body: bytes) -> Schedule:
        """Raises ``CorruptFile``, ``UnsupportedFormat``."""

        def build(found: Any) -> Schedule:
            topic_id, _, name = key.removeprefix(PREFIX).partition("/")
            return cls(int(topic_id), name, *found[1:])

        return documents.decode(body, key, "schedule", _FORMAT, build)

    def message(self) -> Message:
        """As it was given."""
        return next(RecordBatch(self.batch, verify=False).messages("", self.topic_id))

    @property
    def ttl_ms(self) -> int:
        """Of the message; 0: it does not expire."""
        return int(RecordBatch(self.batch, verify=False).column(Column.EXPIRES_MS)[0])

    def due(self, count: int) -> bytes:
        """The batch of the time ``next_ms``, which is the ``count``th."""
        found = self.message()
        builder = BatchBuilder()
        builder.add(
            self.queue if isinstance(self.queue, int) else 0,
            found.body,
            key=found.key,
            tag=found.tag,
            priority=priority_value(found.priority, found.subpriority),
            properties={**found.properties, NAME_PROPERTY: self.name, TIME_PROPERTY: str(self.next_ms)},
            headers=found.headers,
            delete=found.delete,
            kind=found.type,
            expires=self.ttl_ms,
            due_ms=self.next_ms,
        )
        return builder.build(producer_id=self.producer_id, producer_epoch=count)


def key_of(topic_id: int, name: str) -> str:
    return f"{PREFIX}{topic_id}/{name}"
