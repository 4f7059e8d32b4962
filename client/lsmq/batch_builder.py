"""The record batch, its layout and how it is packed: the one format in which messages travel and rest.

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
zeros. A record's bytes are its *header* (``HEADER_LENGTH`` bytes, a msgpack array ``[key, tag, properties,
headers, type]`` with trailing nils dropped, and a sixth that is the broker's; no bytes at all when all are absent) and
then its body; ``LENGTH`` counts both. Brokers read columns and never look into a record's bytes.

Not supported: records of more than one topic in a batch that a producer sends; nested batches.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain, repeat

import crc32c
import zstandard

from lsmq.message_times import due_time
from lsmq.messages import Headers, Key, encode_header, key_hash, tag_hash, type_hash

VERSION = 1
HEADER = struct.Struct("<IIBBHIIIQII")
HEADER_BYTES = HEADER.size  # 4 + 4 + 1 + 1 + 2 + 4 + 4 + 4 + 8 + 4 + 4 = 40
COLUMN = struct.Struct("<BBQ")
COLUMN_BYTES = COLUMN.size  # 1 + 1 + 8 = 10

MASK64 = (1 << 64) - 1
TYPECODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
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
    PRIORITY = 10  # in the lower byte, the subpriority above
    DUE_MS = 11
    EXPIRES_MS = 12
    FLAGS = 13
    TRANSACTION = 14
    TARGET = 15  # of a record that is not due yet: its topic's id << 32 | queue
    DEDUPE_HIGH = 16
    DEDUPE_LOW = 17
    PRODUCER_POSITION = 18


class Codec(IntEnum):
    """Payload compression by its number on disk and wire. Never renumber."""

    NONE = 0
    ZSTD = 1


class Flag(IntEnum):
    """Bits of the ``FLAGS`` column. Never renumber."""

    TOMBSTONE = 1  # the record's message was deleted
    POSITION = 2  # no message: OFFSET is the next offset to ask for in QUEUE
    ELSEWHERE = 4  # no message: QUEUE is to be read at the node that the batch's payload names
    REPEAT = 64  # in an answer to a producer: the message was not stored, OFFSET is that of the first one with its id
    DROPPED = 128  # in an answer to a producer: the message was not stored, as there was no room for it
    DELETE = 8  # the message says that its key is gone, and has no body; the one flag that a producer may set
    #: No message: the payload's next LENGTH bytes are the name of QUEUE, from whose OFFSET on there are messages.
    NAMES = 16


def encode_column(column: int, values: Sequence[int] | int) -> tuple[bytes, bytes]:
    """Directory entry and delta bytes of one column. ``values`` is one int when all records share it.

    ``DUE_MS`` has a byte or more for each record, so that a batch with it has as many bytes as records.
    """
    if isinstance(values, int):
        return COLUMN.pack(column, 0, values & MASK64), b""
    low, high = min(values), max(values)
    span = high - low
    if span == 0 and column != Column.DUE_MS:
        return COLUMN.pack(column, 0, low & MASK64), b""
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8
    deltas = array(TYPECODES[width], values if low == 0 else [value - low for value in values])
    if sys.byteorder == "big":
        deltas.byteswap()
    return COLUMN.pack(column, width, low & MASK64), deltas.tobytes()


def encode_batch(
    record_count: int,
    columns: Mapping[Column, Sequence[int] | int],
    payload: bytes,
    *,
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Pack a batch. ``payload`` is the records' bytes joined; columns that are all zero may be left out."""
    encoded = [encode_column(column, columns[column]) for column in sorted(columns)]
    return join_batch(
        record_count,
        encoded,
        payload,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
        codec=codec,
    )


def join_batch(
    record_count: int,
    encoded: Sequence[tuple[bytes, bytes]],
    payload: bytes,
    *,
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
    codec: Codec = Codec.NONE,
) -> bytes:
    """:func:`encode_batch` of columns that are encoded, in the order of their numbers."""
    raw_bytes = len(payload)
    if codec is Codec.ZSTD:
        payload = zstandard.compress(payload, 1)
    columns = b"".join((*(entry for entry, _ in encoded), *(deltas for _, deltas in encoded)))
    fields = (
        HEADER_BYTES + len(columns) + len(payload),
        VERSION,
        codec,
        len(encoded),
        record_count,
        len(payload),
        raw_bytes,
        producer_id,
        producer_epoch,
        sequence,
    )
    head = HEADER.pack(0, *fields)[4:] + columns
    crc = crc32c.crc32c(payload, crc32c.crc32c(head))
    return b"".join((crc.to_bytes(4, "little"), head, payload))


class BatchBuilder:
    """Collects records of one topic and packs them. Not thread-safe."""

    __slots__ = (
        "_bodies",
        "_dedupe_ids",
        "_due",
        "_expires",
        "_flags",
        "_header_lengths",
        "_key_hashes",
        "_lengths",
        "_priorities",
        "_queues",
        "_tag_hashes",
        "_type_hashes",
    )

    RECORD_OVERHEAD_BYTES = 48

    def __init__(self) -> None:
        self._queues: list[int] = []
        self._lengths: list[int] = []
        # What most records have nothing in reaches as far as the last record that has something.
        self._header_lengths: list[int] = []
        self._key_hashes: list[int] = []
        self._tag_hashes: list[int] = []
        self._priorities: list[int] = []
        self._type_hashes: list[int] = []
        self._due: list[int] = []
        self._expires: list[int] = []
        self._flags: list[int] = []
        self._dedupe_ids: list[int] = []  # of 128 bits
        self._bodies: list[bytes] = []

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def size_bytes(self) -> int:
        """What the packed batch will need at most, give or take its header."""
        return HEADER_BYTES + sum(self._lengths) + len(self._lengths) * self.RECORD_OVERHEAD_BYTES

    @property
    def queues(self) -> Sequence[int]:
        return self._queues

    def add(
        self,
        queue: int,
        body: bytes,
        *,
        key: Key | None = None,
        tag: str | None = None,
        priority: int = 0,
        properties: Mapping[str, str] | None = None,
        headers: Headers | None = None,
        delete: bool = False,
        kind: str | None = None,
        due_ms: int = 0,
        expires: int = 0,
        key_hash_hint: int | None = None,
        dedupe_hash: int = 0,
    ) -> None:
        """Append one record. ``key_hash_hint`` is :func:`key_hash` of ``key`` where the caller has it.

        ``kind`` is the message's type; ``priority`` a :func:`.messages.priority_value`; ``expires`` an
        :func:`.message_times.expiry_value`, or a time to live.
        ``dedupe_hash`` is :func:`.messages.dedupe_hash` of its deduplication id; 0: it has none.
        """
        self.add_packed(
            queue,
            body,
            encode_header(key, tag, properties, headers, kind),
            0 if key is None else key_hash(key) if key_hash_hint is None else key_hash_hint,
            0 if tag is None else tag_hash(tag),
            priority=priority,
            delete=delete,
            type_hash=0 if kind is None else type_hash(kind),
            due_ms=due_ms,
            expires=expires,
            dedupe_hash=dedupe_hash,
        )

    def add_packed(
        self,
        queue: int,
        body: bytes,
        header: bytes = b"",
        key_hash: int = 0,
        tag_hash: int = 0,
        dedupe_hash: int = 0,
        *,
        priority: int = 0,
        delete: bool = False,
        type_hash: int = 0,
        due_ms: int = 0,
        expires: int = 0,
    ) -> None:
        """:meth:`add` of a record whose header is packed, and its hashes known. Nothing in it fails."""
        length = len(body)
        if header:
            if key_hash:
                hashes = self._key_hashes
                (hashes if len(hashes) == len(self._queues) else self._filled(hashes)).append(key_hash)
            if tag_hash:
                self._filled(self._tag_hashes).append(tag_hash)
            if type_hash:
                self._filled(self._type_hashes).append(type_hash)
            lengths = self._header_lengths
            (lengths if len(lengths) == len(self._queues) else self._filled(lengths)).append(len(header))
            self._bodies.append(header)
            length += len(header)
        if priority:
            self._filled(self._priorities).append(priority)
        if due_ms:
            self._filled(self._due).append(due_ms)
        if expires:
            self._filled(self._expires).append(expires)
        if delete:
            self._filled(self._flags).append(Flag.DELETE)
        if dedupe_hash:
            ids = self._dedupe_ids
            (ids if len(ids) == len(self._queues) else self._filled(ids)).append(dedupe_hash)
        self._bodies.append(body)
        self._queues.append(queue)
        self._lengths.append(length)

    def extend(
        self,
        queues: Sequence[int] | int,
        bodies: Sequence[bytes],
        lengths: Sequence[int],
        headers: Sequence[bytes] | bytes,
        key_hashes: Sequence[int] | None,
        tag_hash: int,
    ) -> None:
        """Append records. ``queues`` and packed ``headers`` are of each, or of all; ``lengths`` count headers."""
        count = len(bodies)
        if key_hashes is not None:
            self._filled(self._key_hashes).extend(key_hashes)
        if tag_hash:
            self._filled(self._tag_hashes).extend(repeat(tag_hash, count))
        if not headers:
            self._bodies.extend(bodies)
        elif isinstance(headers, bytes):
            self._filled(self._header_lengths).extend(repeat(len(headers), count))
            self._bodies.extend(chain.from_iterable(zip(repeat(headers), bodies, strict=False)))
        else:
            self._filled(self._header_lengths).extend(map(len, headers))
            self._bodies.extend(chain.from_iterable(zip(headers, bodies, strict=True)))
        self._queues.extend(repeat(queues, count) if isinstance(queues, int) else queues)
        self._lengths.extend(lengths)

    def _filled(self, column: list[int]) -> list[int]:
        """With nothing for the records that have nothing in it: the next value is the next record's."""
        missing = len(self._queues) - len(column)
        if missing:
            column.extend(repeat(0, missing))
        return column

    def due_times(self, stored_ms: int) -> dict[int, int]:
        """By row, when a message is due that comes later than it was stored."""
        times = ((row, due_time(value, stored_ms)) for row, value in enumerate(self._due))
        return {row: due_ms for row, due_ms in times if due_ms}

    def build(
        self,
        *,
        producer_id: int = 0,
        producer_epoch: int = 0,
        sequence: int = 0,
        position: int | None = None,
        codec: Codec = Codec.NONE,
    ) -> bytes:
        """The packed batch. The builder stays as it is, so that a retry packs the same bytes.

        ``position``: how far the producer's application is once the batch is stored.
        """
        columns: dict[Column, Sequence[int]] = {Column.QUEUE: self._queues, Column.LENGTH: self._lengths}
        optional: Iterable[tuple[Column, list[int]]] = (
            (Column.HEADER_LENGTH, self._header_lengths),
            (Column.KEY_HASH, self._key_hashes),
            (Column.TAG_HASH, self._tag_hashes),
            (Column.TYPE_HASH, self._type_hashes),
            (Column.PRIORITY, self._priorities),
            (Column.DUE_MS, self._due),
            (Column.EXPIRES_MS, self._expires),
            (Column.FLAGS, self._flags),
        )
        columns.update((column, self._filled(values)) for column, values in optional if any(values))
        if self._dedupe_ids:
            hashes = self._filled(self._dedupe_ids)
            columns[Column.DEDUPE_HIGH] = [hashed >> 64 for hashed in hashes]
            columns[Column.DEDUPE_LOW] = [hashed & MASK64 for hashed in hashes]
        if position is not None:
            columns[Column.PRODUCER_POSITION] = [position] * len(self._queues)
        return encode_batch(
            len(self._queues),
            columns,
            b"".join(self._bodies),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            codec=codec,
        )
