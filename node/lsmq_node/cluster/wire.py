"""Messages between replicas as bytes.

A connection carries them one after another, little-endian::

    offset width field
     0      1    version   3
     1      1    kind      see MessageKind
     2      4    shard
     6      4    body_bytes
    10      4    payload_bytes
    14      n    body      msgpack: the message's fields in order, an array
    14+n   16    code      over head, body and payload, see :mod:`.seals`
    30+n    m    payload   of a frame: the log's bytes [lsn, end_lsn); else nothing

A session is an array of two numbers, so are a log position and a life (incarnation, start); an epoch history is an
array of arrays (epoch, LSN, life). The log's bytes carry the checksums they have on disk.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import IntEnum
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import msgpack

from lsmq.errors import LsmqError
from lsmq_coordinator.lives import LifeId
from lsmq_node.replication import EpochHistory, EpochStart, LogPosition, ReplicaMessage, ReplicaSession
from lsmq_node.replication.messages import (
    Frame,
    Hello,
    Progress,
    Promise,
    PromiseRefusal,
    PromiseRequest,
    Rejoin,
    Stale,
    TakeNewIncarnation,
    TakeSnapshot,
    Welcome,
)

from .seals import SEAL_BYTES, Seal

VERSION = 3
HEAD = struct.Struct("<BBIII")
HEAD_BYTES = HEAD.size  # 1 + 1 + 4 + 4 + 4 = 14
MAX_BODY_BYTES = 16 * 1024 * 1024
#: A frame is about a mebibyte, or one log entry: of the largest batch, 256 MiB, and what the log adds to it.
MAX_PAYLOAD_BYTES = 288 * 1024 * 1024


class MessageKind(IntEnum):
    """What a message is. Numbers are on the wire: never renumber."""

    HELLO = 1
    WELCOME = 2
    TAKE_SNAPSHOT = 3
    TAKE_NEW_INCARNATION = 4
    REJOIN = 5
    STALE = 6
    FRAME = 7
    PROGRESS = 8
    PROMISE_REQUEST = 9
    PROMISE = 10
    PROMISE_REFUSAL = 11


class BadMessage(LsmqError):
    """Bytes from another node that are no message: of a newer release, or damaged."""

    code = "bad_message"


class FromWire(NamedTuple):
    shard: int
    message: ReplicaMessage
    payload: memoryview


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no name")
    return value


def _name_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r} is no flag")
    return value


def _session(value: Any) -> ReplicaSession:
    start, number = value
    return ReplicaSession(_number(start), _number(number))


def _position(value: Any) -> LogPosition:
    last_epoch, lsn = value
    return LogPosition(_number(last_epoch), _number(lsn))


def _life(value: Any) -> LifeId:
    incarnation, start = value
    return LifeId(_number(incarnation), _number(start))


def _history(value: Any) -> EpochHistory:
    starts = tuple(EpochStart(_number(epoch), _number(lsn), _life(life)) for epoch, lsn, life in value)
    rising = all(a.epoch < b.epoch and a.lsn <= b.lsn for a, b in pairwise(starts))
    if not starts or not rising:
        raise ValueError("epochs do not rise")
    return EpochHistory(starts)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": _number,
    "str": _text,
    "str | None": _name_or_none,
    "bool": _flag,
    "ReplicaSession": _session,
    "LogPosition": _position,
    "LifeId": _life,
    "EpochHistory": _history,
}

_KINDS: dict[MessageKind, type[ReplicaMessage]] = {
    MessageKind.HELLO: Hello,
    MessageKind.WELCOME: Welcome,
    MessageKind.TAKE_SNAPSHOT: TakeSnapshot,
    MessageKind.TAKE_NEW_INCARNATION: TakeNewIncarnation,
    MessageKind.REJOIN: Rejoin,
    MessageKind.STALE: Stale,
    MessageKind.FRAME: Frame,
    MessageKind.PROGRESS: Progress,
    MessageKind.PROMISE_REQUEST: PromiseRequest,
    MessageKind.PROMISE: Promise,
    MessageKind.PROMISE_REFUSAL: PromiseRefusal,
}


class _Codec:
    """One kind of message: its fields, taken out and put in again."""

    def __init__(self, kind: MessageKind, message: type[ReplicaMessage]) -> None:
        names = [field.name for field in fields(message)]
        self.kind = kind
        self.make = message
        self.values = attrgetter(*names) if len(names) > 1 else lambda item: (getattr(item, names[0]),)
        self.readers = [_READERS[str(field.type)] for field in fields(message)]


_CODECS = [_Codec(kind, message) for kind, message in _KINDS.items()]
_BY_TYPE = {codec.make: codec for codec in _CODECS}
_BY_KIND = {int(codec.kind): codec for codec in _CODECS}


def _plain(value: Any) -> Any:
    return value.starts if type(value) is EpochHistory else value


def encode(shard: int, message: ReplicaMessage, payload_bytes: int = 0) -> bytes:
    """Head and body; the code is to follow, and the payload, where there is one."""
    codec = _BY_TYPE[type(message)]
    body: bytes = msgpack.packb(codec.values(message), default=_plain)
    return HEAD.pack(VERSION, codec.kind, shard, len(body), payload_bytes) + body


class Decoder:
    """Messages out of the bytes of a connection as they arrive, in pieces of any size.

    A payload that lies within one piece is a view of it; a longer one is put together once. No message is given out
    before its code was found right.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._rest = bytearray()  # of a head, body and code that are not whole yet
        self._message: tuple[int, ReplicaMessage, memoryview] | None = (
            None  # whose payload is not whole yet, and its head
        )
        self._payload = bytearray()
        self._filled = 0

    def feed(self, piece: bytes) -> Iterator[FromWire]:
        """The messages that ``piece`` completes. Raises ``BadMessage``, and is of no use after that."""
        view = memoryview(piece)
        position, end = 0, len(view)
        while position < end:
            if self._message is not None:
                count = min(len(self._payload) - self._filled, end - position)
                self._payload[self._filled : self._filled + count] = view[position : position + count]
                position += count
                self._filled += count
                if self._filled == len(self._payload):
                    shard, message, head = self._message
                    self._message = None
                    yield self._sealed(shard, message, head, memoryview(self._payload))
            elif self._rest:
                wanted = HEAD_BYTES if len(self._rest) < HEAD_BYTES else _head_size(self._rest)
                count = min(wanted - len(self._rest), end - position)
                self._rest += view[position : position + count]
                position += count
                if len(self._rest) >= HEAD_BYTES and len(self._rest) == _head_size(self._rest):
                    rest, self._rest = memoryview(bytes(self._rest)), bytearray()
                    yield from self._begin(rest, view[position:])
                    position += self._taken
            elif end - position < HEAD_BYTES or end - position < _head_size(view[position:]):
                self._rest += view[position:]
                position = end
            else:
                size = _head_size(view[position:])
                yield from self._begin(view[position : position + size], view[position + size :])
                position += size + self._taken

    def _begin(self, head: memoryview, following: memoryview) -> Iterator[FromWire]:
        """A whole head, body and code; ``_taken`` of the bytes that follow are the payload, if it is there whole."""
        _, kind, shard, _, payload_bytes = HEAD.unpack_from(head)
        message = _message(_codec(kind), head[HEAD_BYTES:-SEAL_BYTES])
        if payload_bytes != (message.end_lsn - message.lsn if type(message) is Frame else 0):
            raise BadMessage(f"{payload_bytes} bytes came with {message}")
        self._taken = 0
        if payload_bytes <= len(following):
            self._taken = payload_bytes
            yield self._sealed(shard, message, head, following[:payload_bytes])
        else:
            self._message = shard, message, head
            self._payload = bytearray(payload_bytes)
            self._filled = 0

    _taken = 0

    def _sealed(self, shard: int, message: ReplicaMessage, head: memoryview, payload: memoryview) -> FromWire:
        """The message, once its code is found right. Raises ``BadMessage``."""
        code = self._seal.next(head[:-SEAL_BYTES], payload)
        if not hmac.compare_digest(code, head[-SEAL_BYTES:]):
            raise BadMessage(f"a {type(message).__name__} has the wrong code: it was changed, repeated or made up")
        return FromWire(shard, message, payload)


def _head_size(head: memoryview | bytearray) -> int:
    """Bytes up to the payload."""
    head_bytes, body_bytes, _ = _sizes(head)
    return head_bytes + body_bytes + SEAL_BYTES


def _sizes(head: memoryview | bytearray) -> tuple[int, int, int]:
    """Bytes of head, body and payload. Raises ``BadMessage`` for what cannot be."""
    version, kind, _, body_bytes, payload_bytes = HEAD.unpack_from(head)
    if version != VERSION:
        raise BadMessage(f"a message has version {version}; this release reads {VERSION}: upgrade it")
    _codec(kind)
    if body_bytes > MAX_BODY_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise BadMessage(
            f"a message of {body_bytes} and {payload_bytes} bytes; at most {MAX_BODY_BYTES} and {MAX_PAYLOAD_BYTES} "
            "are taken"
        )
    return HEAD_BYTES, body_bytes, payload_bytes


def _codec(kind: int) -> _Codec:
    codec = _BY_KIND.get(kind)
    if codec is None:
        raise BadMessage(f"no message has kind {kind}")
    return codec


def _message(codec: _Codec, body: memoryview) -> ReplicaMessage:
    try:
        values = msgpack.unpackb(body)
        if len(values) != len(codec.readers):
            raise ValueError(f"{len(values)} fields")
        return codec.make(*(read(value) for read, value in zip(codec.readers, values, strict=True)))
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise BadMessage(f"a message of kind {codec.kind.name} cannot be read: {error}") from error
