"""Stored messages as JSON or msgpack objects. Runs in the read pool: it loads, checks and unpacks."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from lsmq.errors import InvalidBatch
from lsmq.messages import split_priority
from lsmq.record_batch import Flag, RecordBatch, decode_header, message_id, split_batches
from lsmq_node.broker import Fetched

from .codec import Format

#: Messages of so many bytes take so many times as many in memory while they are packed as JSON: read, as objects, as
#: text, as bytes.
RENDERED_TIMES = 4


def render(
    found: Fetched, topic_id: int, queue: int, offset: int, limit: int, form: Format
) -> tuple[list[dict[str, Any]], int]:
    """Up to ``limit`` messages of ``queue`` from ``offset``, and the offset to ask for next.

    What was read may hold more: whole table blocks, which begin below ``offset`` or belong to others.
    """
    next_offset = offset
    for queues, next_offsets in zip(found.queues, found.next_offsets, strict=True):
        for moved, position in zip(queues.tolist(), next_offsets.tolist(), strict=True):
            if moved == queue:
                next_offset = max(next_offset, position)
    messages = [message for message, _ in render_spans(found, topic_id, {queue: (offset, next_offset)}, form)]
    if len(messages) > limit:
        del messages[limit:]
        next_offset = int(messages[-1]["offset"]) + 1
    return messages, next_offset


def render_spans(
    found: Fetched, topic_id: int, spans: Mapping[int, tuple[int, int]], form: Format
) -> Iterator[tuple[dict[str, Any], int]]:
    """Messages with offsets in the half-open ``spans`` of their queues, and how many bytes each is stored in."""
    for batch in split_batches(found.load(), source="store"):
        yield from _render_batch(batch, topic_id, spans, form)


def _render_batch(
    batch: RecordBatch, topic_id: int, spans: Mapping[int, tuple[int, int]], form: Format
) -> Iterator[tuple[dict[str, Any], int]]:
    payload = batch.payload
    for owner, queue, offset, start, body_at, end, stored_ms, priority, flags, expires_ms in batch.rows(topic_id):
        span = spans.get(queue)
        if span is not None and span[0] <= offset < span[1] and owner == topic_id:
            header, body = payload[start:body_at], payload[body_at:end].tobytes()
            message = render_message(
                topic_id, queue, offset, header, body, priority, stored_ms, flags, form, expires_ms
            )
            yield message, end - start


def render_message(
    topic_id: int,
    queue: int,
    offset: int,
    header: memoryview | bytes,
    body: bytes,
    priority: int,
    stored_ms: int,
    flags: int,
    form: Format,
    expires_ms: int = 0,
) -> dict[str, Any]:
    """One message, given the bytes of its record. ``priority``: with its subpriority, as the column has it."""
    message: dict[str, Any] = {"queue": queue, "offset": offset, "id": message_id(topic_id, queue, offset)}
    message.update(_header(header, form))
    message["priority"], subpriority = split_priority(priority)
    if subpriority:
        message["subpriority"] = subpriority
    message["stored_ms"] = stored_ms
    if expires_ms:
        message["expires_ms"] = expires_ms
    if flags & Flag.DELETE:
        message["delete"] = True
    if form is Format.MSGPACK:
        message["body"] = body
    else:
        try:
            message["body"] = body.decode()
        except UnicodeDecodeError:
            message["body_b64"] = base64.b64encode(body).decode()
    return message


def _header(header: memoryview | bytes, form: Format) -> dict[str, Any]:
    """Key, tag, properties and headers; or the raw bytes, since brokers store headers without looking into them."""
    if not header:
        return {"key": None, "tag": None, "properties": {}}
    try:
        key, tag, properties, pairs, kind = decode_header(header)
        if not all(isinstance(part, str) for pair in properties.items() for part in pair):
            raise InvalidBatch("a property is not text")
    except InvalidBatch:
        raw = base64.b64encode(header).decode()
        return {"key": None, "tag": None, "properties": {}, "header_b64": raw}
    fields: dict[str, Any] = {"key": key, "tag": tag, "properties": properties}
    if isinstance(key, bytes) and form is Format.JSON:
        fields["key"], fields["key_b64"] = None, base64.b64encode(key).decode()
    if kind is not None:
        fields["type"] = kind
    if pairs:
        fields["headers"] = [{"name": name, **_value(value, form)} for name, value in pairs]
    return fields


def _value(value: bytes, form: Format) -> dict[str, Any]:
    if form is Format.MSGPACK:
        return {"value": value}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_b64": base64.b64encode(value).decode()}
