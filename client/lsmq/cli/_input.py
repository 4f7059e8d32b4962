"""Reading input for ``lsmq produce`` without holding up the event loop, and splitting it into messages."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lsmq.errors import InvalidRequest, MessageTooLarge
from lsmq.messages import MAX_PRIORITY, Headers, Key

BLOCK_BYTES = 256 << 10
MAX_LINE_BYTES = 64 << 20
_BLOCKS_AHEAD = 2
STDIN = "-"

_FIELDS = {
    "body",
    "body_b64",
    "key",
    "key_b64",
    "tag",
    "queue",
    "priority",
    "subpriority",
    "properties",
    "headers",
    "delete",
    "type",
    "ttl_ms",
    "expires_at_ms",
    "dedupe_id",
    "delay_ms",
    "deliver_at_ms",
}
#: In what consume prints; given anew when it is sent.
_FROM_CONSUME = {"topic", "offset", "id", "stored_ms", "expires_ms", "due_ms"}


@dataclass(slots=True)
class OutgoingMessage:
    """A message to send, and where it came from, for error messages."""

    body: bytes
    key: Key | None = None
    tag: str | None = None
    queue: int | str | None = None
    priority: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    headers: Headers = ()
    delete: bool = False
    dedupe_id: str | None = None
    source: str = ""
    type: str | None = None
    ttl_ms: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    subpriority: int = 0
    expires_at_ms: int | None = None

    @property
    def expires(self) -> bool:
        """Whether it says when it expires."""
        return self.ttl_ms is not None or self.expires_at_ms is not None

    @property
    def comes_later(self) -> bool:
        """Whether it says when it comes."""
        return self.delay_ms is not None or self.deliver_at_ms is not None


async def blocks(path: str) -> AsyncIterator[bytes]:
    """The bytes of a file or of standard input, as they come.

    A daemon thread reads, since a read from a terminal or a pipe cannot be taken back on Ctrl-C.
    """
    handoff: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
    room = threading.Semaphore(_BLOCKS_AHEAD)
    loop = asyncio.get_running_loop()

    def put(item: bytes | OSError | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(handoff.put_nowait, item)

    def read() -> None:
        try:
            descriptor = 0 if path == STDIN else os.open(path, os.O_RDONLY)
            try:
                while block := os.read(descriptor, BLOCK_BYTES):
                    put(block)
                put(None)
            finally:
                if path != STDIN:
                    os.close(descriptor)
        except OSError as error:
            put(error)
        except RuntimeError:
            pass  # The loop is closed: nobody wants more.

    threading.Thread(target=read, name="lsmq input", daemon=True).start()
    while (item := await handoff.get()) is not None:
        room.release()
        if isinstance(item, OSError):
            raise item
        yield item


async def lines(path: str) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Numbered lines without their line ends, as many at a time as are there."""
    rest = b""
    number = 1
    async for block in blocks(path):
        *whole, rest = (rest + block).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise MessageTooLarge(f"{name_of(path)}, line {number + len(whole)}: longer than {MAX_LINE_BYTES} bytes")
        if whole:
            yield list(enumerate(whole, number))
            number += len(whole)
    if rest:
        yield [(number, rest)]


def name_of(path: str) -> str:
    """What to call an input in a message."""
    return "standard input" if path == STDIN else path


def from_line(line: bytes, *, key_separator: str | None, source: str) -> OutgoingMessage:
    """A line as a message; what stands before the first ``key_separator`` is the key."""
    if key_separator is not None:
        key, found, body = line.partition(key_separator.encode(errors="surrogateescape"))
        if found:
            return OutgoingMessage(body, key=_text(key, source), source=source)
    return OutgoingMessage(line, source=source)


def from_json_line(line: bytes, *, source: str) -> OutgoingMessage:
    """A line of ``--json-lines`` as a message. Raises ``InvalidRequest`` naming the line."""
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{source}: not JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("delete", False), bool):
        raise InvalidRequest(f"{source}: must be an object, its delete true or false")
    delete: bool = fields.get("delete", False)
    if ("body" in fields) + ("body_b64" in fields) != 1 and not delete:
        raise InvalidRequest(f"{source}: must be an object with either body or body_b64, or with delete")
    if unknown := fields.keys() - _FIELDS - _FROM_CONSUME:
        raise InvalidRequest(f"{source}: unknown field {min(unknown)!r}; there are {', '.join(sorted(_FIELDS))}")
    key, tag, queue = _either(fields, "key", source), fields.get("tag"), fields.get("queue")
    properties, priority = fields.get("properties") or {}, fields.get("priority") or 0
    if not (_is_text(fields.get("key")) and _is_text(tag) and (queue is None or type(queue) in (int, str))):
        raise InvalidRequest(f"{source}: key and tag must be text, and queue a number or a name")
    kind, ttl_ms = fields.get("type"), fields.get("ttl_ms")
    subpriority = fields.get("subpriority") or 0
    if not _is_text(kind):
        raise InvalidRequest(f"{source}: type must be text")
    for name, value in (("priority", priority), ("subpriority", subpriority)):
        if type(value) is not int or not 0 <= value <= MAX_PRIORITY:
            raise InvalidRequest(f"{source}: {name} must be a number from 0 to {MAX_PRIORITY}")
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise InvalidRequest(f"{source}: properties must be an object of texts")
    body = b"" if delete and fields.get("body") is None else _json_body(fields, source)
    dedupe_id = fields.get("dedupe_id")
    if not _is_text(dedupe_id):
        raise InvalidRequest(f"{source}: dedupe_id must be text")
    headers, later = _headers(fields, source), (fields.get("delay_ms"), fields.get("deliver_at_ms"))
    own = delete, dedupe_id, source, kind, ttl_ms, *later, subpriority, fields.get("expires_at_ms")
    return OutgoingMessage(body, key, tag, queue, priority, properties, headers, *own)


def from_file(path: Path) -> OutgoingMessage:
    """A whole file as one message."""
    if path.stat().st_size > MAX_LINE_BYTES:
        raise MessageTooLarge(f"{path}: longer than {MAX_LINE_BYTES} bytes")
    return OutgoingMessage(path.read_bytes(), source=str(path))


def _json_body(fields: dict[str, Any], source: str) -> bytes:
    body = _either(fields, "body", source)
    if isinstance(body, bytes):
        return body
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return _encoded(text, "body", source)


def _either(fields: dict[str, Any], name: str, source: str) -> Any:
    """What field ``name`` says, or the bytes of ``name_b64``."""
    encoded = fields.get(f"{name}_b64")
    if encoded is None:
        return fields.get(name)
    if fields.get(name) is not None:
        raise InvalidRequest(f"{source}: {name}_b64 is given beside {name}; give one of the two")
    try:
        return base64.b64decode(encoded, validate=True)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{source}: {name}_b64 is not base64: {error}") from error


def _headers(fields: dict[str, Any], source: str) -> Headers:
    found = []
    given: Any = fields.get("headers") or []
    for header in given if isinstance(given, list) else (given,):
        value = _either(header, "value", source) if isinstance(header, dict) else None
        if not isinstance(value, str | bytes) or not isinstance(header.get("name"), str):
            raise InvalidRequest(f"{source}: headers must be objects with name, and value or value_b64")
        found.append((header["name"], _encoded(value, "value", source) if isinstance(value, str) else value))
    return tuple(found)


def _encoded(text: str, name: str, source: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{source}: {name} holds half of a surrogate pair, which is not text; give bytes as {name}_b64"
        ) from error


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _text(value: bytes, source: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{source}: the key is not UTF-8") from error
