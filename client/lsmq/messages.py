"""Messages: what an application gets, their ids, hashes of their keys and tags, and the header of their record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypedDict, TypeVar, cast

import msgpack
import xxhash

from lsmq.errors import InvalidBatch, InvalidRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_PRIORITY = 255
MAX_DEDUPE_ID_BYTES = 255
#: Ten years: a message can live so long at most. In a record, what is above it is a moment, no time to live.
MAX_TTL_MS = 3653 * 86_400_000
#: Ten years: a message can be delayed so long at most. In a record, what is not above it is a delay, the rest a time.
MAX_DELAY_MS = 3653 * 86_400_000
#: No time in a record is later: neither when it is due nor when it expires, milliseconds since 1970.
LAST_DUE_MS = (1 << 44) - 1
_SHOWN = 40
_digest = xxhash.xxh3_64_intdigest

Key = str | bytes
"""Text stands for its UTF-8 bytes: ``"k"`` and ``b"k"`` are one key."""

Headers = tuple[tuple[str, bytes], ...]
"""Names and values in order; a name may come more than once."""


class MessageOptions(TypedDict, total=False):
    """What a message may have besides its body, as keywords of the methods that send.

    Attributes:
        key: messages of one key share a queue, and so keep their order.
        tag: a word to pick messages by.
        type: what kind of message it is, in a word; to pick messages by as well.
        queue: where it goes; chosen by ``key``, or in turn, when left out. In a named topic its name, always.
        properties: names and values, text both.
        headers: names and bytes, in order; a name may come more than once.
        priority: 0 to 255.
        subpriority: 0 to 255; decides between messages of one priority.
        delete: the key is gone, and the message has no body.
        ttl_ms: delivered for so long after it was stored, and not afterwards.
        expires_at_ms: in place of that, the moment from which on it is not delivered, milliseconds since 1970.
        dedupe_id: text that names what the message says, up to 255 bytes: the second message with it in a queue is not
            stored, within the topic's ``dedupe_window_ms``. Without key and queue it decides the queue.
        delay_ms: it comes into its queue so long after it is stored, up to ten years.
        deliver_at_ms: in place of that, when it comes, milliseconds since 1970; at once where that has passed.
    """

    key: Key | None
    tag: str | None
    type: str | None
    queue: int | str | None
    properties: Mapping[str, str] | None
    headers: Iterable[tuple[str, bytes]]
    priority: int
    subpriority: int
    delete: bool
    ttl_ms: int | None
    expires_at_ms: int | None
    dedupe_id: str | None
    delay_ms: int | None
    deliver_at_ms: int | None


def key_hash(key: Key) -> int:
    """64-bit hash of a message key: XXH3 of its bytes, UTF-8 of text. Decides the queue and sits in ``KEY_HASH``."""
    return _digest(key if type(key) is bytes else key.encode() if isinstance(key, str) else key)


def key_hashes(keys: Sequence[Key]) -> list[int]:
    """:func:`key_hash` of each. Raises ``TypeError`` unless all are text or all bytes, ``ValueError`` as UTF-8 does."""
    digest = xxhash.xxh3_64_intdigest
    kinds = set(map(type, keys))
    if kinds == {str}:
        return list(map(digest, map(str.encode, keys)))  # type: ignore[arg-type]  # All of them are text.
    if kinds == {bytes}:
        return list(map(digest, cast(Sequence[bytes], keys)))
    raise TypeError("the keys are not of one type, text or bytes")


def tag_hash(tag: str) -> int:
    """32-bit hash of a tag, never 0: low half of the XXH3 of its UTF-8 bytes. Sits in ``TAG_HASH``."""
    return (xxhash.xxh3_64_intdigest(tag.encode()) & 0xFFFFFFFF) or 1


def type_hash(kind: str) -> int:
    """As :func:`tag_hash`, of a message's type. Sits in ``TYPE_HASH``."""
    return tag_hash(kind)


def dedupe_hash(dedupe_id: str) -> int:
    """128-bit hash of a deduplication id, never 0: XXH3 of its UTF-8 bytes. Sits in ``DEDUPE_HIGH`` and ``DEDUPE_LOW``.

    Raises ``InvalidRequest`` unless it is text of 1 to 255 bytes.
    """
    if not isinstance(dedupe_id, str):
        raise InvalidRequest(f"dedupe_id is {described(dedupe_id)}; it must be text", field="dedupe_id")
    raw = utf8(dedupe_id, "dedupe_id")
    if not 1 <= len(raw) <= MAX_DEDUPE_ID_BYTES:
        raise InvalidRequest(
            f"dedupe_id has {len(raw)} bytes; it must have 1 to {MAX_DEDUPE_ID_BYTES}: hash longer ones",
            field="dedupe_id",
            limit=MAX_DEDUPE_ID_BYTES,
        )
    return xxhash.xxh3_128_intdigest(raw) or 1


def check_not_later(due_ms: int) -> None:
    """Raises ``InvalidRequest`` for a message with a deduplication id that is to come later."""
    if due_ms:
        raise InvalidRequest(
            "dedupe_id is given with delay_ms or deliver_at_ms; a message that comes later is not looked for by its "
            "id: give one of the two",
            field="dedupe_id",
        )


def named_dedupe_hash(hashed: int, queue: str) -> int:
    """:func:`dedupe_hash` in a queue that has a name: so it is another one, whatever number names get in time."""
    return hashed ^ xxhash.xxh3_128_intdigest(queue.encode()) or 1


def dedupe_queue(hashed: int, queues: int) -> int:
    """The queue of a message with neither queue nor key, by its id's hash: a retry must go where the first one went."""
    return (hashed & 0xFFFFFFFFFFFFFFFF) % queues


def message_id(topic_id: int, queue: int, offset: int) -> str:
    """The id of a message: 32 hex digits, made of topic id (8), queue (8) and offset (16).

    It is unique in a cluster for ever, since topic ids and offsets are never used again, and finds the
    message without an index.
    """
    return f"{topic_id:08x}{queue:08x}{offset:016x}"


def delayed_id(shard: int, due_ms: int, offset: int) -> str:
    """The id of a message that is not due yet: where it is kept until then. It is no other message's id."""
    return f"{0x4000 | shard:04x}{due_ms:012x}{offset:016x}"


def due_of_id(id: str) -> int | None:
    """When the message is due whose :func:`delayed_id` this is; None for other messages' ids."""
    try:
        topic_id, queue, _ = parse_message_id(id)
    except ValueError:
        return None
    return (topic_id & 0xFFFF) << 32 | queue if topic_id >> 30 == 1 else None


def parse_message_id(text: str) -> tuple[int, int, int]:
    """Topic id, queue and offset of a message id. Raises ``ValueError`` if it is not one."""
    if len(text) != 32:
        raise ValueError(f"a message id has 32 hex digits, this has {len(text)} characters: {text!r}")
    return int(text[:8], 16), int(text[8:16], 16), int(text[16:], 16)


class _NoProperties(dict[str, str]):
    """Those of every message that has none: one for all, since a dict for each is as much for the garbage collector to
    walk as the message is. Refuses to be changed."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the properties of a message cannot be changed; dict(message.properties) can")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, str]], tuple[()]]:
        return dict, ()


NO_PROPERTIES: Final[dict[str, str]] = _NoProperties()


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a consumer gets it.

    ``topic_id`` is what the cluster numbers the topic by; no two topics ever have the same. ``offset`` counts from 0 in
    its queue without gaps. ``stored_ms`` is the broker's clock, milliseconds since 1970. ``properties`` maps strings to
    strings; ``headers`` are names and bytes, in order. ``delete``: the message says that its key is gone; its body is
    empty. ``expires_ms``: from when on it is not delivered any more, by the broker's clock; ``None`` for never.
    """

    topic: str
    queue: int
    offset: int
    topic_id: int
    body: bytes
    key: Key | None = None
    tag: str | None = None
    priority: int = 0
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)
    stored_ms: int = 0
    headers: Headers = ()
    delete: bool = False
    type: str | None = None
    expires_ms: int | None = None
    subpriority: int = 0

    @property
    def queue_name(self) -> str | None:
        """In a named topic, the name of its queue; ``queue`` is then the number that this has."""
        return None

    @property
    def id(self) -> str:
        """Its id, by which it can be fetched: see :func:`message_id`."""
        return message_id(self.topic_id, self.queue, self.offset)

    def text(self) -> str:
        """The body decoded as UTF-8."""
        return self.body.decode()


class _Filling:
    """A message while it is made: setting fields of a frozen class costs three times what all the rest of it does."""

    __slots__ = Message.__slots__  # One layout, so that one can become the other.

    def __init__(
        self,
        topic: str,
        queue: int,
        offset: int,
        topic_id: int,
        body: bytes,
        key: Key | None,
        tag: str | None,
        priority: int,
        properties: Mapping[str, str],
        stored_ms: int,
        headers: Headers,
        delete: bool,
        kind: str | None,
        expires_ms: int | None,
        subpriority: int,
    ) -> None:
        self.topic = topic
        self.queue = queue
        self.offset = offset
        self.topic_id = topic_id
        self.body = body
        self.key = key
        self.tag = tag
        self.priority = priority
        self.properties = properties
        self.stored_ms = stored_ms
        self.headers = headers
        self.delete = delete
        self.type = kind
        self.expires_ms = expires_ms
        self.subpriority = subpriority
        self.__class__ = Message  # type: ignore[assignment]


#: :class:`Message` of all its fields in order, at a quarter of the cost.
make_message = cast(Callable[..., Message], _Filling)


@dataclass(frozen=True, slots=True)
class NamedMessage(Message):
    """A message of a named topic. ``name``: of its queue."""

    name: str = ""

    @property
    def queue_name(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """A page of messages that were found: by a key newest first, else by queue and offset.

    ``next`` is what the next page comes ``after``, and None where there is nothing more; a page may be short, or empty,
    and have a next one all the same. ``explain`` says what each shard looked at, where that was asked for.
    """

    messages: Sequence[Message]
    next: str | None = None
    explain: Sequence[Mapping[str, int]] = ()


def body_bytes(body: object) -> bytes:
    """A body as a record holds it: text as UTF-8, what is like bytes copied. Raises ``InvalidRequest`` for all else."""
    match body:
        case bytes():
            return body
        case str():
            return utf8(body, "body")
        case bytearray() | memoryview():
            return bytes(body)
        case None:
            raise InvalidRequest("body is None; send b'' for an empty one, and b'' with delete=True to delete a key")
        case _:
            raise InvalidRequest(
                f"body is {described(body)}; it must be bytes or text: make it so first, for example with "
                "json.dumps(body)"
            )


def check_key(key: object) -> None:
    """Raises ``InvalidRequest`` unless it is text or bytes."""
    if isinstance(key, str):
        utf8(key, "key")
    elif not isinstance(key, bytes):
        raise InvalidRequest(
            f"key is {described(key)}; it must be text or bytes: make it so first, such as with str(key)"
        )


def check_tag(tag: object) -> None:
    """Raises ``InvalidRequest`` unless it is text."""
    if not isinstance(tag, str):
        raise InvalidRequest(f"tag is {described(tag)}; it must be text")
    utf8(tag, "tag")


def check_type(kind: object) -> None:
    """Raises ``InvalidRequest`` unless it is text."""
    if not isinstance(kind, str):
        raise InvalidRequest(f"type is {described(kind)}; it must be text", field="type")
    utf8(kind, "type")


def check_many(messages: object) -> None:
    """Raises ``InvalidRequest`` for one message, or a mapping, where many are expected."""
    if isinstance(messages, str | bytes | bytearray | memoryview | Mapping) or not isinstance(messages, Iterable):
        raise InvalidRequest(
            f"messages is {described(messages)}; give a list of bodies, or of pairs of key and body; send() sends one"
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
        if not isinstance(queue, bool):
            return index(queue)  # type: ignore[arg-type]  # Which is what is found out here.
    except TypeError:
        pass
    raise InvalidRequest(f"{whose} is {described(queue)}; it must be a whole number")


def utf8(text: str, name: str) -> bytes:
    """Raises ``InvalidRequest``, which calls the text ``name``, for half a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name} is text that UTF-8 has no bytes for ({error.reason}); send it as bytes"
        ) from error


def described(value: object) -> str:
    """What it is, and its beginning."""
    text = repr(value)
    return f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '...'} of type {type(value).__name__}"


def priority_value(priority: int, subpriority: int) -> int:
    """Both as ``PRIORITY`` has them: the lower byte is the priority, the upper one the subpriority.

    Raises ``InvalidRequest`` for what is none.
    """
    for name, value in (("priority", priority), ("subpriority", subpriority)):
        if type(value) is not int or not 0 <= value <= MAX_PRIORITY:
            raise InvalidRequest(
                f"the {name} is {value!r}; it must be a whole number from 0 to {MAX_PRIORITY}",
                field=name,
                limit=MAX_PRIORITY,
            )
    return priority | subpriority << 8


Ranked = TypeVar("Ranked", int, "NDArray[Any]")


def split_priority(value: Ranked) -> tuple[Ranked, Ranked]:
    """Priority and subpriority of a :func:`priority_value`, or of an array of them."""
    return value & 0xFF, value >> 8


def priority_rank(value: Ranked) -> Ranked:
    """Of a :func:`priority_value`, or of an array of them: what is higher goes first."""
    return (value & 0xFF) << 8 | value >> 8


def check_properties(properties: Mapping[str, str] | None) -> None:
    """Raises ``InvalidRequest`` for properties that no record can hold."""
    for name, value in properties.items() if properties else ():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(f"the property {name!r} is {value!r}; names and values of properties must be text")


def check_headers(headers: Iterable[tuple[str, bytes]]) -> Headers:
    """``headers`` as a record holds them. Raises ``InvalidRequest`` for what is no pair of text and bytes."""
    found = []
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRequest(
                f"the header {pair!r} is not a pair of a name and bytes: headers are pairs, [('trace', b'...')], of a "
                "dict its items()"
            )
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
    properties: dict[str, str] = NO_PROPERTIES
    headers: Headers = ()
    type: str | None = None


_NO_HEADER = RecordHeader()
# One for all, as making it costs more than what it does. It packs text and bytes, without letting another thread in.
_pack: Callable[[Any], bytes] = msgpack.Packer().pack
# Made once: checking a record's header is a good part of what reading a message costs.
_KEY_OR_NONE = (str, bytes, NoneType)
_TEXT_OR_NONE = (str, NoneType)
_DICT_OR_NONE = (dict, NoneType)
_LIST_OR_NONE = (list, NoneType)


def encode_header(
    key: Key | None,
    tag: str | None,
    properties: Mapping[str, str] | None,
    headers: Headers | None = None,
    kind: str | None = None,
) -> bytes:
    """A record's header bytes; empty when there is nothing to say. ``kind`` is the message's type.

    Raises ``InvalidRequest`` for text with half a surrogate pair.
    """
    try:
        if kind is not None:
            flat = [part for pair in headers or () for part in pair] or None
            return _pack([key, tag, dict(properties) if properties else None, flat, kind])
        if headers:
            flat = [part for pair in headers for part in pair]
            return _pack([key, tag, dict(properties or {}), flat])
        if properties:
            return _pack([key, tag, dict(properties)])
        if tag is not None:
            return _pack([key, tag])
        if key is not None:
            return _pack([key])
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"key, tag, a property or a header's name is text that UTF-8 has no bytes for ({error.reason}): "
            f"{error.object!r:.80}"
        ) from error
    return b""


def key_headers(keys: Iterable[Key], tag: str | None) -> list[bytes]:
    """:func:`encode_header` of each key, and the tag that all have, in less time."""
    return [_pack((key,)) for key in keys] if tag is None else [_pack((key, tag)) for key in keys]


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
    if len(fields) == 1 and type(fields[0]) is str:  # A key and no more is what most messages have.
        return RecordHeader(fields[0])
    key, tag, properties, flat, own_type = (*fields, None, None, None, None, None)[:5]
    if not (
        isinstance(key, _KEY_OR_NONE)
        and isinstance(tag, _TEXT_OR_NONE)
        and isinstance(properties, _DICT_OR_NONE)
        and isinstance(flat, _LIST_OR_NONE)
        and isinstance(own_type, _TEXT_OR_NONE)
    ):
        raise InvalidBatch("a record's header is not an array of key, tag, properties, headers and type")
    return RecordHeader(key, tag, properties or NO_PROPERTIES, _pairs(flat) if flat else (), own_type)


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
