"""Values as they travel in requests and answers: columns of integers, ranges of queues, moments, messages."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import index
from typing import Any

from lsmq.errors import InvalidRequest
from lsmq.messages import FoundMessages, Key, Message, NamedMessage, check_key, parse_message_id
from lsmq.topics import format_ranges

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_RANGES_TEXT = 4_000  # characters; a request line ends at 8 KiB
MAX_OFFSETS_QUEUES = 100_000  # queues whose offsets one request asks for or commits


def to_ms(moment: datetime | int) -> int:
    """Milliseconds since 1970 of a datetime (one without a zone is local time) or of such a number.

    Raises ``InvalidRequest`` for what is neither, and for local times of which the zone does not know what they are.
    """
    if isinstance(moment, datetime):
        try:
            return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
        except (ValueError, OverflowError, OSError) as error:
            raise InvalidRequest(f"{moment!r} is no time that the clocks here can show: {error}") from error
    try:
        if not isinstance(moment, bool):
            return index(moment)
    except TypeError:
        pass
    raise InvalidRequest(f"{moment!r:.60} is no time; give a datetime, or milliseconds since 1970")


def chunks_of_ranges(queues: Sequence[int]) -> list[str]:
    """Sorted ``queues`` as range lists, each short enough in text and queues for one request."""
    chunks: list[str] = []
    for start in range(0, len(queues), MAX_OFFSETS_QUEUES):
        text = ""
        for part in format_ranges(queues[start : start + MAX_OFFSETS_QUEUES]):
            if text and len(text) + len(part) >= _MAX_RANGES_TEXT:
                chunks.append(text)
                text = ""
            text = f"{text},{part}" if text else part
        chunks.append(text)
    return chunks


def little_endian(typecode: str, values: Iterable[int]) -> bytes:
    """Integers as little-endian bytes: ``I`` 32 bits unsigned, ``q`` 64 bits signed."""
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def integers(column: bytes | Sequence[int], typecode: str) -> Sequence[int]:
    """A column of an answer, which comes as a list or as little-endian bytes."""
    if not isinstance(column, bytes):
        return column
    values = array(typecode)
    values.frombytes(column)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def offset_by_queue(fields: Mapping[str, Any]) -> dict[int, int]:
    """Of an answer with columns of queues and their offsets."""
    return dict(zip(integers(fields["queues"], "I"), integers(fields["offsets"], "q"), strict=True))


def bounds_columns(fields: Mapping[str, Any]) -> list[Sequence[int]]:
    """Queues, and the earliest and latest offset of each; and those of a moment, or nothing."""
    columns = [integers(fields[name], "I" if name == "queues" else "q") for name in ("queues", "earliest", "latest")]
    columns.append(integers(fields.get("at_time", ()), "q"))
    if any(len(column) != len(columns[0]) for column in (columns[1:] if columns[3] else columns[1:3])):
        raise ValueError("columns of different lengths")
    return columns


def queue_number(queue: int | str) -> int:
    """What an answer says of a message that is in no queue yet: -1 where that has a name."""
    return -1 if isinstance(queue, str) else int(queue)


def message_from_dict(fields: Mapping[str, Any]) -> Message:
    """A message of the msgpack API."""
    body, queue = fields["body"], fields["queue"]
    topic_id, number, offset = parse_message_id(str(fields["id"]))
    make = partial(NamedMessage, name=queue) if isinstance(queue, str) else Message
    return make(
        topic=str(fields.get("topic", "")),
        queue=number,
        offset=offset,
        topic_id=topic_id,
        body=body.encode() if isinstance(body, str) else bytes(body),
        key=fields.get("key"),
        tag=fields.get("tag"),
        priority=int(fields.get("priority") or 0),
        properties=fields.get("properties") or {},
        stored_ms=int(fields.get("stored_ms") or 0),
        headers=tuple((str(each["name"]), bytes(each["value"])) for each in fields.get("headers") or ()),
        delete=bool(fields.get("delete")),
        type=fields.get("type"),
        expires_ms=fields.get("expires_ms"),
        subpriority=int(fields.get("subpriority") or 0),
    )


def search_params(
    key: Key | None,
    *,
    from_time: datetime | int | None,
    to_time: datetime | int | None,
    explain: bool,
    **others: object,
) -> dict[str, str]:
    """How messages are searched for. Raises ``InvalidRequest`` for what is no key."""
    if key is not None:
        check_key(key)
    asked = {
        "key": key if isinstance(key, str) else None,
        "key_b64": base64.b64encode(key).decode() if isinstance(key, bytes) else None,
        "from_ms": None if from_time is None else to_ms(from_time),
        "to_ms": None if to_time is None else to_ms(to_time),
        "explain": int(explain),
        **others,
    }
    return {name: str(value) for name, value in asked.items() if value is not None}


def found_messages(topic: str, fields: Mapping[str, Any]) -> FoundMessages:
    """The answer to a search."""
    found = [message_from_dict({**each, "topic": topic}) for each in fields["messages"]]
    return FoundMessages(found, fields["next"], fields.get("explain", ()))


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """A field of JSON: text where it is UTF-8, else base64 under ``<name>_b64``."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(value).decode()}


def content_fields(message: Message) -> dict[str, Any]:
    """What was sent, for JSON: as the HTTP API has it. What a message seldom has is there where it has it.

    A key of bytes is always base64, so that it comes back as bytes.
    """
    key = message.key
    seldom: dict[str, Any] = {
        "type": message.type,
        "subpriority": message.subpriority or None,
        "expires_ms": message.expires_ms,
        "delete": message.delete or None,
        "headers": [{"name": name, **text_or_base64("value", value)} for name, value in message.headers] or None,
    }
    return {
        **({"key_b64": base64.b64encode(key).decode()} if isinstance(key, bytes) else {"key": key}),
        "tag": message.tag,
        "priority": message.priority,
        "properties": dict(message.properties),
        **{name: value for name, value in seldom.items() if value is not None},
        **text_or_base64("body", message.body),
    }
