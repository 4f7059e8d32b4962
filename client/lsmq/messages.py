"""Messages: what an application gets, their ids, hashes of their keys and tags, and the header of their record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple, TypedDict

import msgpack
import xxhash

from lsmq.errors import InvalidBatch, InvalidRequest

MAX_PRIORITY = 255
_SHOWN = 40

Key = str | bytes
"""Text stands for its UTF-8 bytes: ``"k"`` and ``b"k"`` are one key."""

Headers = tuple[tuple[str, bytes], ...]
"""Names and values in order; a name may come more than once."""


class MessageOptions(TypedDict, total=False):
    """What a message may have besides its body, as keywords of the methods that send.

    Attributes:
        key: messages of one key share a queue, and so keep their order.
        tag: a word to pick messages by.
        queue: where it goes; chosen by ``key``, or in turn, when left out.
        properties: names and values, text both.
        headers: names and bytes, in order; a name may come more than once.
        priority: 0 to 255.
        delete: the key is gone, and the message has no body.
    """

    key: Key | None
    tag: str | None
    queue: int | None
    properties: Mapping[str, str] | None
    headers: Iterable[tuple[str, bytes]]
    priority: int
    delete: bool


def key_hash(key: Key) -> int:
    """64-bit hash of a message key: XXH3 of its bytes, UTF-8 of text. Decides the queue and sits in ``KEY_HASH``."""
    return xxhash.xxh3_64_intdigest(key.encode() if isinstance(key, str) else key)


def tag_hash(tag: str) -> int:
    """32-bit hash of a tag, never 0: low half of the XXH3 of its UTF-8 bytes. Sits in ``TAG_HASH``."""
    return (xxhash.xxh3_64_intdigest(tag.encode()) & 0xFFFFFFFF) or 1


def message_id(topic_id: int, queue: int, offset: int) -> str:
    """The id of a message: 32 hex digits, made of topic id (8), queue (8) and offset (16).

    It is unique in a cluster for ever, since topic ids and offsets are never used again, and finds the
    message without an index.
    """
    return f"{topic_id:08x}{queue:08x}{offset:016x}"


def parse_message_id(text: str) -> tuple[int, int, int]:
    """Topic id, queue and offset of a message id. Raises ``ValueError`` if it is not one."""
    if len(text) != 32:
        raise ValueError(f"a message id has 32 hex digits, this has {len(text)} characters: {text!r}")
    return int(text[:8], 16), int(text[8:16], 16), int(text[16:], 16)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a consumer gets it.

    ``topic_id`` is what the cluster numbers the topic by; no two topics ever have the same. ``offset`` counts from 0 in
    its queue without gaps. ``stored_ms`` is the broker's clock, milliseconds since 1970. ``properties`` maps strings to
    strings; ``headers`` are names and bytes, in order. ``delete``: the message says that its key is gone; its body is
    empty.
    """

    topic: str
    queue: int
    offset: int
    topic_id: int
    body: bytes
    key: Key | None = None
    tag: str | None = None
    priority: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    stored_ms: int = 0
    headers: Headers = ()
    delete: bool = False

    @property
    def id(self) -> str:
        """Its id, by which it can be fetched: see :func:`message_id`."""
        return message_id(self.topic_id, self.queue, self.offset)

    def text(self) -> str:
        """The body decoded as UTF-8."""
        return self.body.decode()


def body_bytes(body: object) -> bytes:
    """A body as a record holds it: text as UTF-8, what is like bytes copied. Raises ``InvalidRequest`` for all else."""
    match body:
        case bytes():
            return body
        case str():
            return _utf8(body, "body")
        case bytearray() | memoryview():
            return bytes(body)
        case None:
            raise InvalidRequest("body is None; send b'' for an empty one, and b'' with delete=True to delete a key")
        case _:
            raise InvalidRequest(
                f"body is {_named(body)}; it must be bytes or text: make it so first, for example with json.dumps(body)"
            )


def check_key(key: object) -> None:
    """Raises ``InvalidRequest`` unless it is text or bytes."""
    if isinstance(key, str):
        _utf8(key, "key")
    elif not isinstance(key, bytes):
        raise InvalidRequest(f"key is {_named(key)}; it must be text or bytes: make it so first, such as with str(key)")


def check_tag(tag: object) -> None:
    """Raises ``InvalidRequest`` unless it is text."""
    if not isinstance(tag, str):
        raise InvalidRequest(f"tag is {_named(tag)}; it must be text")
    _utf8(tag, "tag")


def check_many(messages: object) -> None:
    """Raises ``InvalidRequest`` for one message, or a mapping, where many are expected."""
    if isinstance(messages, str | bytes | bytearray | memoryview | Mapping) or not isinstance(messages, Iterable):
        raise InvalidRequest(
            f"messages is {_named(messages)}; give a list of bodies, or of pairs of key and body; send() sends one"
        )


def key_and_body(message: object) -> tuple[Key | None, Any]:
    """The parts of one of many messages. Raises ``InvalidRequest`` for a tuple that is no pair."""
    if not isinstance(message, tuple):
        return None, message
    if len(message) != 2:
        raise InvalidRequest(f"a message is a tuple of {len(message)}; it must be a body, or a pair of key and body")
    return message


def whole_queue(queue: object, whose: str = "queue") -> int:
    """Raises ``InvalidRequest`` unless it is a whole number."""
    try:
        return index(queue)  # type: ignore[arg-type]  # Which is what is found out here.
    except TypeError as error:
        raise InvalidRequest(f"{whose} is {_named(queue)}; it must be a whole number") from error


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name} is text that UTF-8 has no bytes for ({error.reason}); send it as bytes"
        ) from error


def _named(value: object) -> str:
    """What it is, and its beginning."""
    text = repr(value)
    return f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '...'} of type {type(value).__name__}"


def check_extras(properties: Mapping[str, str] | None, priority: int) -> None:
    """Raises ``InvalidRequest`` for properties and a priority that no record can hold."""
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidRequest(f"the priority is {priority!r}; it must be a whole number from 0 to {MAX_PRIORITY}")
    for name, value in properties.items() if properties else ():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(f"the property {name!r} is {value!r}; names and values of properties must be text")


def check_headers(headers: Iterable[tuple[str, bytes]]) -> Headers:
    """``headers`` as a record holds them. Raises ``InvalidRequest`` for what is no pair of text and bytes."""
    found = []
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRequest(f"the header {pair!r} is not a pair of a name and bytes")
        name, value = pair
        if not isinstance(value, bytes):
            raise InvalidRequest(f"the header {name!r} is {value!r}; values of headers must be bytes")
        found.append((name, value))
    return tuple(found)


def check_delete(key: Key | None, body: object) -> None:
    """Raises ``InvalidRequest`` for a deletion that names no key, or has a body."""
    if key is None:
        raise InvalidRequest("a message with delete says that its key is gone, and it has no key; give it one")
    if given := body_bytes(body):
        raise InvalidRequest(
            f"a message with delete has no body, and this one has one of {len(given)}; send it without"
        )


class RecordHeader(NamedTuple):
    """What stands before a record's body."""

    key: Key | None = None
    tag: str | None = None
    properties: dict[str, str] = {}  # noqa: RUF012  # Nobody changes what was decoded.
    headers: Headers = ()


_NO_HEADER = RecordHeader()


def encode_header(
    key: Key | None, tag: str | None, properties: Mapping[str, str] | None, headers: Headers | None = None
) -> bytes:
    """A record's header bytes; empty when there is nothing to say."""
    if headers:
        flat = [part for pair in headers for part in pair]
        return msgpack.packb([key, tag, dict(properties or {}), flat])  # type: ignore[no-any-return]
    if properties:
        return msgpack.packb([key, tag, dict(properties)])  # type: ignore[no-any-return]
    if tag is not None:
        return msgpack.packb([key, tag])  # type: ignore[no-any-return]
    if key is not None:
        return msgpack.packb([key])  # type: ignore[no-any-return]
    return b""


def header_bound(key: Key | None, tag: str | None) -> int:
    """No less than the length of the packed header of a key and a tag, without packing it."""
    return 11 + (len(key) * 3 if key is not None else 0) + (len(tag) * 3 if tag is not None else 0)


def decode_header(header: bytes | memoryview) -> RecordHeader:
    """The fields of a record's header bytes. Raises ``InvalidBatch`` on anything else."""
    if not header:
        return _NO_HEADER
    try:
        fields = msgpack.unpackb(header)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InvalidBatch(f"a record's header of {len(header)} bytes is not msgpack") from error
    if not isinstance(fields, list):
        raise InvalidBatch(f"a record's header of {len(header)} bytes is not a msgpack array")
    key, tag, properties, flat = (*fields, None, None, None, None)[:4]
    for value, kind in ((key, str | bytes), (tag, str), (properties, dict), (flat, list)):
        if value is not None and not isinstance(value, kind):
            raise InvalidBatch("a record's header is not an array of key, tag, properties and headers")
    return RecordHeader(key, tag, properties or {}, _pairs(flat) if flat else ())


def _pairs(flat: list[object]) -> Headers:
    names, values = flat[0::2], flat[1::2]
    if len(names) != len(values) or not (
        all(isinstance(name, str) for name in names) and all(isinstance(value, bytes) for value in values)
    ):
        raise InvalidBatch("a record's headers are not names and bytes in turn")
    return tuple(zip(names, values, strict=True))  # type: ignore[arg-type]  # Checked above.


def unreadable(error: InvalidBatch, topic: str, queue: int, offset: int) -> InvalidBatch:
    """``error`` of a message's header, naming the message: whoever reads on has to go past it."""
    return InvalidBatch(
        f"the message at offset {offset} of queue {queue} of topic {topic!r} cannot be read: {error.message}; "
        f"go on at offset {offset + 1}, or delete the message",
        topic=topic,
        queue=queue,
        offset=offset,
    )
