"""Stored messages as JSON or msgpack objects. Runs in the read pool: it loads, checks and unpacks."""

from __future__ import annotations

import base64
from typing import Any

from lsmq.errors import InvalidBatch
from lsmq.record_batch import Column, Flag, RecordBatch, decode_header, message_id, split_batches
from lsmq_node.broker import Fetched

from .codec import Format

_NOT_A_MESSAGE = Flag.TOMBSTONE | Flag.POSITION


def render(
    found: Fetched, topic_id: int, queue: int, offset: int, limit: int, form: Format
) -> tuple[list[dict[str, Any]], int]:
    """Up to ``limit`` messages of ``queue`` from ``offset``, and the offset to ask for next.

    What was read may hold more: whole table blocks, which begin below ``offset`` or belong to others.
    """
    messages: list[dict[str, Any]] = []
    next_offset = offset
    for queues, next_offsets in zip(found.queues, found.next_offsets, strict=True):
        for moved, position in zip(queues.tolist(), next_offsets.tolist(), strict=True):
            if moved == queue:
                next_offset = max(next_offset, position)
    for batch in split_batches(found.load(), source="store"):
        _render_batch(batch, topic_id, queue, offset, next_offset, form, messages)
    if len(messages) > limit:
        del messages[limit:]
        next_offset = int(messages[-1]["offset"]) + 1
    return messages, next_offset


def _render_batch(
    batch: RecordBatch,
    topic_id: int,
    queue: int,
    first: int,
    end: int,
    form: Format,
    messages: list[dict[str, Any]],
) -> None:
    """Append the batch's messages of ``queue`` with offsets in ``[first, end)``."""
    payload = batch.payload
    position = 0
    owned = Column.TOPIC in batch.directory
    for owner, number, offset, length, header_length, stored_ms, priority, flags in zip(
        batch.column(Column.TOPIC),
        batch.column(Column.QUEUE),
        batch.column(Column.OFFSET),
        batch.column(Column.LENGTH),
        batch.column(Column.HEADER_LENGTH),
        batch.column(Column.STORED_MS),
        batch.column(Column.PRIORITY),
        batch.column(Column.FLAGS),
        strict=True,
    ):
        start, position = position, position + length
        if number != queue or not first <= offset < end or flags & _NOT_A_MESSAGE:
            continue
        if owned and owner != topic_id:
            continue
        message: dict[str, Any] = {
            "queue": queue,
            "offset": offset,
            "id": message_id(topic_id, queue, offset),
        }
        message.update(_header(payload[start : start + header_length], form))
        message["priority"] = priority
        message["stored_ms"] = stored_ms
        body = payload[start + header_length : position].tobytes()
        if form is Format.MSGPACK:
            message["body"] = body
        else:
            try:
                message["body"] = body.decode()
            except UnicodeDecodeError:
                message["body_b64"] = base64.b64encode(body).decode()
        messages.append(message)


def _header(header: memoryview, form: Format) -> dict[str, Any]:
    """Key, tag and properties; or the raw bytes, since brokers store headers without looking into them."""
    if header:
        try:
            key, tag, properties = decode_header(header)
            if _is_text(key) and _is_text(tag) and _is_text_map(properties):
                return {"key": key, "tag": tag, "properties": properties}
        except InvalidBatch:
            pass
        raw = base64.b64encode(header).decode()
        return {"key": None, "tag": None, "properties": {}, "header_b64": raw}
    return {"key": None, "tag": None, "properties": {}}


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(text, str) for name, text in value.items()
    )
