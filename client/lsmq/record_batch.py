"""The record batch: the one format in which messages travel and rest.

A producer packs it, the write-ahead log holds it, a table block is one, and a consumer unpacks it. It is
columnar: each field of the records is one column, and a column is a base and deltas of one width (frame of
reference), so that a field that is the same in all records costs ten bytes a batch and nothing a record.

All integers are little-endian::

    offset width field
     0     4     crc                CRC32C of bytes [4, total_bytes)
     4     4     total_bytes        whole batch, this header included
     8     1     version            1
     9     1     codec              of the payload: 0 none, 1 zstd
    10     2     column_count       entries in the column directory
    12     4     record_count       1 or more
    16     4     payload_bytes      as stored
    20     4     payload_raw_bytes  before compression
    24     8     producer_id        0: not idempotent
    32     4     producer_epoch
    36     4     sequence           of this batch, counted by the producer for each shard from 0
    40     10*c  column directory   column (1), width (1: 0, 1, 2, 4 or 8), base (8)
    ..     ..    column deltas      in directory order, record_count * width bytes each
    ..     ..    payload            the records' bytes one after another

The value of record ``i`` in a column is ``base + delta[i]`` modulo 2**64. A column that is absent is all
zeros. A record's bytes are its *header* (``HEADER_LENGTH`` bytes, a msgpack array ``[key, tag, properties]``
with trailing nils dropped; no bytes at all when all three are absent) and then its body; ``LENGTH`` counts
both. Brokers read columns and never look into a record's bytes.

Not supported: records of more than one topic in a batch that a producer sends; nested batches.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import repeat
from operator import gt
from typing import Any

import crc32c
import msgpack
import xxhash
import zstandard

from lsmq.errors import CorruptFile, InvalidBatch

VERSION = 1
HEADER = struct.Struct("<IIBBHIIIQII")
HEADER_BYTES = HEADER.size  # 4 + 4 + 1 + 1 + 2 + 4 + 4 + 4 + 8 + 4 + 4 = 40
COLUMN = struct.Struct("<BBQ")
COLUMN_BYTES = COLUMN.size  # 1 + 1 + 8 = 10

_MASK64 = (1 << 64) - 1
_NOT_A_MESSAGE = 1 | 2  # Flag.TOMBSTONE | Flag.POSITION
_TYPECODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
MAX_RECORDS = 1 << 24  # what a reader accepts: constant columns would let a few bytes claim any number


class Column(IntEnum):
    """Columns by their number on disk and wire. Never renumber."""

    TOPIC = 1
    QUEUE = 2
    OFFSET = 3
    LENGTH = 4
    HEADER_LENGTH = 5
    STORED_MS = 6
    KEY_HASH = 7
    TAG_HASH = 8
    TYPE_HASH = 9
    PRIORITY = 10
    DUE_MS = 11
    EXPIRES_MS = 12
    FLAGS = 13
    TRANSACTION = 14


class Codec(IntEnum):
    """Payload compression by its number on disk and wire. Never renumber."""

    NONE = 0
    ZSTD = 1


class Flag(IntEnum):
    """Bits of the ``FLAGS`` column. Never renumber."""

    TOMBSTONE = 1  # the record's message was deleted
    POSITION = 2  # no message: OFFSET is the next offset to ask for in QUEUE


def key_hash(key: str) -> int:
    """64-bit hash of a message key: XXH3 of its UTF-8 bytes. Decides the queue and sits in ``KEY_HASH``."""
    return xxhash.xxh3_64_intdigest(key.encode())


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

    ``offset`` counts from 0 in its queue without gaps. ``stored_ms`` is the broker's clock, milliseconds
    since 1970. ``properties`` maps strings to strings.
    """

    topic: str
    queue: int
    offset: int
    id: str
    body: bytes
    key: str | None = None
    tag: str | None = None
    priority: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    stored_ms: int = 0

    def text(self) -> str:
        """The body decoded as UTF-8."""
        return self.body.decode()


def encode_header(key: str | None, tag: str | None, properties: Mapping[str, str] | None) -> bytes:
    """A record's header bytes; empty when there is nothing to say."""
    if properties:
        return msgpack.packb([key, tag, dict(properties)])  # type: ignore[no-any-return]
    if tag is not None:
        return msgpack.packb([key, tag])  # type: ignore[no-any-return]
    if key is not None:
        return msgpack.packb([key])  # type: ignore[no-any-return]
    return b""


def decode_header(header: bytes | memoryview) -> tuple[str | None, str | None, dict[str, str]]:
    """Key, tag and properties of a record's header bytes. Raises ``InvalidBatch`` on anything else."""
    if not header:
        return None, None, {}
    try:
        fields = msgpack.unpackb(header)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InvalidBatch(f"a record's header of {len(header)} bytes is not msgpack") from error
    if not isinstance(fields, list):
        raise InvalidBatch(f"a record's header of {len(header)} bytes is not a msgpack array")
    key, tag, properties = (*fields, None, None, None)[:3]
    for value, kind in ((key, str), (tag, str), (properties, dict)):
        if value is not None and not isinstance(value, kind):
            raise InvalidBatch("a record's header is not an array of key, tag and properties")
    return key, tag, properties or {}


def encode_column(column: int, values: Sequence[int] | int) -> tuple[bytes, bytes]:
    """Directory entry and delta bytes of one column. ``values`` is one int when all records share it."""
    if isinstance(values, int):
        return COLUMN.pack(column, 0, values & _MASK64), b""
    low, high = min(values), max(values)
    span = high - low
    if span == 0:
        return COLUMN.pack(column, 0, low & _MASK64), b""
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8
    deltas = array(_TYPECODES[width], values if low == 0 else [value - low for value in values])
    if sys.byteorder == "big":
        deltas.byteswap()
    return COLUMN.pack(column, width, low & _MASK64), deltas.tobytes()


def encode_batch(
    record_count: int,
    columns: Mapping[int, Sequence[int] | int],
    payload: bytes,
    *,
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Pack a batch. ``payload`` is the records' bytes joined; columns that are all zero may be left out."""
    raw_bytes = len(payload)
    if codec is Codec.ZSTD:
        payload = zstandard.compress(payload, 1)
    directory: list[bytes] = []
    deltas: list[bytes] = []
    for column in sorted(columns):
        entry, delta = encode_column(column, columns[column])
        directory.append(entry)
        deltas.append(delta)
    rest = b"".join((*directory, *deltas, payload))
    fields = (
        HEADER_BYTES + len(rest),
        VERSION,
        codec,
        len(directory),
        record_count,
        len(payload),
        raw_bytes,
        producer_id,
        producer_epoch,
        sequence,
    )
    head = HEADER.pack(0, *fields)[4:]
    crc = crc32c.crc32c(rest, crc32c.crc32c(head))
    return crc.to_bytes(4, "little") + head + rest


class RecordBatch:
    """A decoded batch: header fields, columns on demand, payload as a view on the buffer it came from."""

    __slots__ = (
        "buffer",
        "codec",
        "directory",
        "payload",
        "producer_epoch",
        "producer_id",
        "record_count",
        "sequence",
        "total_bytes",
    )

    def __init__(self, buffer: bytes | memoryview, *, source: str = "batch", verify: bool = True) -> None:
        """Decode the batch at the start of ``buffer``, which may be longer.

        Raises ``InvalidBatch`` naming ``source`` when the bytes are not a whole, intact batch.
        """
        view = memoryview(buffer)
        if len(view) < HEADER_BYTES:
            raise InvalidBatch(f"{source}: {len(view)} bytes are too few for a batch header of {HEADER_BYTES}")
        (
            crc,
            total,
            version,
            codec,
            column_count,
            record_count,
            payload_bytes,
            raw_bytes,
            self.producer_id,
            self.producer_epoch,
            self.sequence,
        ) = HEADER.unpack_from(view)
        if version != VERSION:
            raise InvalidBatch(
                f"{source}: batch version {version} is not supported (this release reads {VERSION}); upgrade"
            )
        if total > len(view) or total < HEADER_BYTES + column_count * COLUMN_BYTES + payload_bytes:
            raise InvalidBatch(f"{source}: batch says {total} bytes, {len(view)} are there")
        if verify and crc32c.crc32c(view[4:total]) != crc:
            raise InvalidBatch(f"{source}: batch checksum does not match its {total} bytes")
        if not 0 < record_count <= MAX_RECORDS:
            raise InvalidBatch(f"{source}: batch says {record_count} records; it must be 1 to {MAX_RECORDS}")
        self.total_bytes: int = total
        self.record_count: int = record_count
        self.directory: dict[int, tuple[int, int, int]] = {}
        position = HEADER_BYTES + column_count * COLUMN_BYTES
        for column, width, base in COLUMN.iter_unpack(view[HEADER_BYTES:position]):
            self.directory[column] = (position, width, base)
            position += width * record_count
            if width and width not in _TYPECODES:
                raise InvalidBatch(f"{source}: column {column} has width {width}; it must be 0, 1, 2, 4 or 8")
        if len(self.directory) != column_count:
            raise InvalidBatch(f"{source}: a column is there twice")
        if position + payload_bytes != total:
            raise InvalidBatch(f"{source}: columns and payload do not add up to {total} bytes")
        self.buffer = view
        payload = view[position:total]
        try:
            self.codec = Codec(codec)
            if self.codec is Codec.ZSTD:
                # A frame says how much it holds, and unpacking allocates that at once.
                if zstandard.frame_content_size(payload) != raw_bytes:
                    raise InvalidBatch(f"{source}: payload is not the {raw_bytes} bytes the header says")
                payload = memoryview(zstandard.decompress(payload, max_output_size=raw_bytes))
        except (ValueError, zstandard.ZstdError) as error:
            raise InvalidBatch(f"{source}: payload cannot be decompressed (codec {codec})") from error
        if len(payload) != raw_bytes:
            raise InvalidBatch(f"{source}: payload has {len(payload)} bytes, the header says {raw_bytes}")
        self.payload: memoryview = payload

    def column(self, column: int) -> Sequence[int]:
        """All values of a column as unsigned integers; zeros when it is absent."""
        entry = self.directory.get(column)
        if entry is None:
            return _Constant(0, self.record_count)
        position, width, base = entry
        if width == 0:
            return _Constant(base, self.record_count)
        deltas = array(_TYPECODES[width], self.buffer[position : position + width * self.record_count].tobytes())
        if sys.byteorder == "big":
            deltas.byteswap()
        if base == 0:
            return deltas
        return [(base + delta) & _MASK64 for delta in deltas]

    def check_lengths(self) -> None:
        """Raises ``InvalidBatch`` unless the records' lengths add up to the payload and hold their headers."""
        lengths, header_lengths = self.column(Column.LENGTH), self.column(Column.HEADER_LENGTH)
        if sum(lengths) != len(self.payload):
            raise InvalidBatch(f"the records' lengths do not add up to the payload of {len(self.payload)} bytes")
        if Column.HEADER_LENGTH in self.directory and any(map(gt, header_lengths, lengths)):
            raise InvalidBatch("a record's header is longer than the record")

    def messages(self, topic: str, topic_id: int = 0) -> Iterator[Message]:
        """The records as messages, in batch order. Tombstones and positions are passed over."""
        if Column.TOPIC in self.directory:
            topics = self.column(Column.TOPIC)
        else:
            topics = _Constant(topic_id, self.record_count)
        payload = self.payload
        position = 0
        self.check_lengths()
        for owner, queue, offset, length, header_length, stored_ms, priority, flags in zip(
            topics,
            self.column(Column.QUEUE),
            self.column(Column.OFFSET),
            self.column(Column.LENGTH),
            self.column(Column.HEADER_LENGTH),
            self.column(Column.STORED_MS),
            self.column(Column.PRIORITY),
            self.column(Column.FLAGS),
            strict=True,
        ):
            end = position + length
            if not flags & _NOT_A_MESSAGE:
                body_at = position + header_length
                identity = message_id(owner, queue, offset)
                body = payload[body_at:end].tobytes()
                if header_length:
                    key, tag, properties = decode_header(payload[position:body_at])
                    yield Message(topic, queue, offset, identity, body, key, tag, priority, properties, stored_ms)
                else:
                    yield Message(topic, queue, offset, identity, body, None, None, priority, {}, stored_ms)
            position = end


class _Constant(Sequence[int]):
    """A column in which every record has the same value."""

    __slots__ = ("_count", "_value")

    def __init__(self, value: int, count: int) -> None:
        self._value = value
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._value] * len(range(*index.indices(self._count)))
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._value

    def __iter__(self) -> Iterator[int]:
        return repeat(self._value, self._count)


def split_batches(buffer: bytes | memoryview, *, source: str = "answer", verify: bool = True) -> Iterator[RecordBatch]:
    """The batches that stand one after another in ``buffer``.

    Raises ``CorruptFile`` naming ``source`` and the position of the first batch that is not intact: the
    batches of an answer come from the broker's files, straight off its disk where it can.
    """
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        try:
            batch = RecordBatch(view[position:], source=source, verify=verify)
        except InvalidBatch as error:
            raise CorruptFile(f"{error.message} (at byte {position})", file=source, position=position) from error
        yield batch
        position += batch.total_bytes


class BatchBuilder:
    """Collects records of one topic and packs them. Not thread-safe.

    ``size_bytes`` is what the packed batch will need at most, give or take its header.
    """

    __slots__ = (
        "_bodies",
        "_due",
        "_expires",
        "_header_lengths",
        "_key_hashes",
        "_lengths",
        "_priorities",
        "_queues",
        "_tag_hashes",
        "size_bytes",
    )

    RECORD_OVERHEAD_BYTES = 48

    def __init__(self) -> None:
        self._queues: list[int] = []
        self._lengths: list[int] = []
        self._header_lengths: list[int] = []
        self._key_hashes: list[int] = []
        self._tag_hashes: list[int] = []
        self._priorities: list[int] = []
        self._due: list[int] = []
        self._expires: list[int] = []
        self._bodies: list[bytes] = []
        self.size_bytes = HEADER_BYTES

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def queues(self) -> Sequence[int]:
        return self._queues

    def add(
        self,
        queue: int,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        priority: int = 0,
        properties: Mapping[str, str] | None = None,
        due_ms: int = 0,
        expires_ms: int = 0,
        key_hash_hint: int | None = None,
    ) -> None:
        """Append one record. ``key_hash_hint`` is :func:`key_hash` of ``key`` where the caller has it."""
        header = encode_header(key, tag, properties)
        length = len(header) + len(body)
        self._queues.append(queue)
        self._lengths.append(length)
        self._header_lengths.append(len(header))
        if key is None:
            self._key_hashes.append(0)
        else:
            self._key_hashes.append(key_hash(key) if key_hash_hint is None else key_hash_hint)
        self._tag_hashes.append(tag_hash(tag) if tag is not None else 0)
        self._priorities.append(priority)
        self._due.append(due_ms)
        self._expires.append(expires_ms)
        if header:
            self._bodies.append(header)
        self._bodies.append(body)
        self.size_bytes += length + self.RECORD_OVERHEAD_BYTES

    def build(
        self, *, producer_id: int = 0, producer_epoch: int = 0, sequence: int = 0, codec: Codec = Codec.NONE
    ) -> bytes:
        """The packed batch. The builder stays as it is, so that a retry packs the same bytes."""
        columns: dict[int, Sequence[int]] = {Column.QUEUE: self._queues, Column.LENGTH: self._lengths}
        optional: Iterable[tuple[Column, list[int]]] = (
            (Column.HEADER_LENGTH, self._header_lengths),
            (Column.KEY_HASH, self._key_hashes),
            (Column.TAG_HASH, self._tag_hashes),
            (Column.PRIORITY, self._priorities),
            (Column.DUE_MS, self._due),
            (Column.EXPIRES_MS, self._expires),
        )
        columns.update((column, values) for column, values in optional if any(values))
        return encode_batch(
            len(self._queues),
            columns,
            b"".join(self._bodies),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            codec=codec,
        )
