"""Record batches, unpacked. :mod:`lsmq.batch_builder` describes the format byte by byte, and packs it.

The names of the format are importable from here.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, compress, repeat
from operator import add, gt
from typing import Any

import crc32c
import zstandard

from lsmq.batch_builder import (
    COLUMN,
    COLUMN_BYTES,
    HEADER,
    HEADER_BYTES,
    MASK64,
    MAX_RECORDS,
    TYPECODES,
    VERSION,
    BatchBuilder,
    Codec,
    Column,
    Flag,
    encode_batch,
    encode_column,
)
from lsmq.errors import CorruptFile, InvalidBatch
from lsmq.messages import (
    LAST_DUE_MS,
    MAX_DELAY_MS,
    MAX_TTL_MS,
    NO_PROPERTIES,
    Message,
    NamedMessage,
    decode_header,
    delayed_id,
    encode_header,
    key_hash,
    make_message,
    message_id,
    parse_message_id,
    priority_rank,
    split_priority,
    tag_hash,
    type_hash,
    unreadable,
)

__all__ = [
    "COLUMN",
    "COLUMN_BYTES",
    "HEADER",
    "HEADER_BYTES",
    "LAST_DUE_MS",
    "MAX_DELAY_MS",
    "MAX_RECORDS",
    "MAX_TTL_MS",
    "VERSION",
    "BatchBuilder",
    "Codec",
    "Column",
    "Flag",
    "Message",
    "RecordBatch",
    "decode_header",
    "delayed_id",
    "encode_batch",
    "encode_column",
    "encode_header",
    "key_hash",
    "message_id",
    "parse_message_id",
    "priority_rank",
    "split_batches",
    "split_priority",
    "tag_hash",
    "type_hash",
    "verify_batches",
]

_NOT_A_MESSAGE = Flag.TOMBSTONE | Flag.POSITION | Flag.ELSEWHERE | Flag.NAMES


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
            if width and width not in TYPECODES:
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
        deltas = array(TYPECODES[width], self.buffer[position : position + width * self.record_count].tobytes())
        if sys.byteorder == "big":
            deltas.byteswap()
        if base == 0:
            return deltas
        return [(base + delta) & MASK64 for delta in deltas]

    def check_lengths(self) -> None:
        """Raises ``InvalidBatch`` unless the records' lengths add up to the payload and hold their headers."""
        lengths, header_lengths = self.column(Column.LENGTH), self.column(Column.HEADER_LENGTH)
        if sum(lengths) != len(self.payload):
            raise InvalidBatch(f"the records' lengths do not add up to the payload of {len(self.payload)} bytes")
        if Column.HEADER_LENGTH in self.directory and any(map(gt, header_lengths, lengths)):
            raise InvalidBatch("a record's header is longer than the record")

    def rows(self, topic_id: int = 0) -> Iterator[tuple[int, int, int, int, int, int, int, int, int, int]]:
        """Of each message, in batch order: topic id, queue, offset, start, body's start, end, stored_ms, priority
        (:func:`.messages.priority_value`), flags, expires_ms (0: never).

        Its bytes are ``payload[start:end]``, header first. ``topic_id`` stands for a topic that the batch does not
        say. Tombstones and positions are passed over. Raises ``InvalidBatch`` as :meth:`check_lengths`.
        """
        self.check_lengths()
        ends = list(accumulate(self.column(Column.LENGTH)))
        starts = [0, *ends[:-1]]
        rows = zip(
            self.column(Column.TOPIC) if Column.TOPIC in self.directory else _Constant(topic_id, self.record_count),
            self.column(Column.QUEUE),
            self.column(Column.OFFSET),
            starts,
            map(add, starts, self.column(Column.HEADER_LENGTH)),
            ends,
            self.column(Column.STORED_MS),
            self.column(Column.PRIORITY),
            flags := self.column(Column.FLAGS),
            self.column(Column.EXPIRES_MS),
            strict=True,
        )
        if Column.FLAGS not in self.directory:
            return rows
        return compress(rows, [not bits & _NOT_A_MESSAGE for bits in flags])

    def of_messages(self, column: int) -> Sequence[int]:
        """A column's values for what :meth:`rows` gives."""
        values = self.column(column)
        if Column.FLAGS not in self.directory:
            return values
        return [
            value for value, bits in zip(values, self.column(Column.FLAGS), strict=True) if not bits & _NOT_A_MESSAGE
        ]

    def texts(self) -> list[str]:
        """What each record has in the payload, which is text: the names of a batch that has names.

        Raises ``InvalidBatch`` where it is none.
        """
        self.check_lengths()
        ends = list(accumulate(self.column(Column.LENGTH)))
        payload = self.payload.tobytes()
        try:
            return [payload[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
        except UnicodeDecodeError as error:
            raise InvalidBatch(f"a name is not UTF-8: {error.reason}") from error

    def messages(
        self,
        topic: str,
        topic_id: int = 0,
        spans: Mapping[int, tuple[int, int]] | None = None,
        names: Mapping[int, str] | None = None,
    ) -> Iterator[Message]:
        """The messages, in batch order; with ``spans`` those of topic ``topic_id`` in these offsets of the queues.

        ``names`` are those of the queues, where they have some.
        """
        make = make_message
        if names is not None:
            make = partial(_named, names)
        payload = self.payload.tobytes()  # A message has bytes of its own: one that is kept keeps no batch alive.
        deletes = int(Flag.DELETE)
        for owner, queue, offset, start, body_at, end, stored_ms, priority, flags, expires_ms in self.rows(topic_id):
            if spans is not None:
                span = spans.get(queue)
                if span is None or not span[0] <= offset < span[1] or owner != topic_id:
                    continue
            delete = flags & deletes != 0
            body = payload[body_at:end]
            if body_at > start:
                try:
                    key, tag, properties, headers, kind = decode_header(payload[start:body_at])
                except InvalidBatch as error:
                    raise unreadable(error, topic, queue, offset) from error
            else:
                key, tag, properties, headers, kind = None, None, NO_PROPERTIES, (), None
            first, second = split_priority(priority) if priority else (0, 0)
            yield make(
                topic,
                queue,
                offset,
                owner,
                body,
                key,
                tag,
                first,
                properties,
                stored_ms,
                headers,
                delete,
                kind,
                expires_ms or None,
                second,
            )


def _named(names: Mapping[int, str], topic: str, queue: int, *fields: Any) -> NamedMessage:
    values: tuple[Any, ...] = (topic, queue, *fields, names[queue])
    return NamedMessage(*values)


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


def verify_batches(buffer: bytes | memoryview, *, source: str) -> int:
    """Bytes of the whole batches that ``buffer`` begins with; what is left is part of another.

    Looks at their lengths and checksums alone. Raises ``CorruptFile`` as :func:`split_batches` does.
    """
    view = memoryview(buffer)
    position = 0
    while len(view) - position >= HEADER_BYTES:
        crc, total, *_ = HEADER.unpack_from(view, position)
        if total >= HEADER_BYTES and position + total > len(view):
            break
        if total < HEADER_BYTES or crc32c.crc32c(view[position + 4 : position + total]) != crc:
            raise CorruptFile(
                f"{source}: the batch at byte {position} does not match its checksum", file=source, position=position
            )
        position += total
    return position
