"""A message's letter: the message as it was, and properties that say where it comes from and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lsmq.errors import LsmqError
from lsmq.messages import RecordHeader
from lsmq.record_batch import BatchBuilder, Column, Flag, RecordBatch, decode_header, message_id

PROPERTY_PREFIX = "lsmq-dlq-"


@dataclass(frozen=True, slots=True)
class LetterRecord:
    """A message as it lies in the store. ``key``: its hash; 0 for none."""

    queue: int
    offset: int
    header: bytes
    body: bytes
    priority: int
    stored_ms: int
    flags: int
    key: int
    expires_ms: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.header) + len(self.body)


def records_of(batch: RecordBatch) -> Iterator[LetterRecord]:
    """Its messages. Raises ``InvalidBatch``."""
    payload = batch.payload
    for row, key in zip(batch.rows(), batch.of_messages(Column.KEY_HASH), strict=True):
        _, queue, offset, start, body_at, end, stored_ms, priority, flags, expires_ms = row
        header, body = payload[start:body_at].tobytes(), payload[body_at:end].tobytes()
        yield LetterRecord(queue, offset, header, body, priority, stored_ms, flags, key, expires_ms)


def origin(topic: str, topic_id: int, record: LetterRecord, queue_name: str | None) -> dict[str, object]:
    """What every letter says of where it comes from; None is left out."""
    return {
        "topic": topic,
        "queue": record.queue,
        "queue-name": queue_name,
        "offset": record.offset,
        "id": message_id(topic_id, record.queue, record.offset),
    }


def add_letter(builder: BatchBuilder, queue: int, record: LetterRecord, says: Mapping[str, object], limit: int) -> None:
    """The message with its key, tag and properties, and what the letter ``says``, as properties; None is left out.

    One that is larger than ``limit`` with that goes without its own properties and headers; and then cut, which
    ``lsmq-dlq-cut`` says.
    """
    try:
        header = decode_header(record.header)
    except LsmqError:
        header = RecordHeader()
    own = {f"{PROPERTY_PREFIX}{name}": str(value) for name, value in says.items() if value is not None}
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
