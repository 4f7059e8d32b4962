"""Record batches to Arrow, column by column: nothing here is done once per message in Python.

A record batch is columns already, and its payload the records' bytes one after another, which is how Arrow holds
binary values. So a message's fields are slices of one buffer: where they begin and end is computed for all records
at once, and Arrow moves the bytes. Only properties are unpacked message by message, of those messages that have
any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lsmq.errors import InvalidBatch
from lsmq.messages import Headers, RecordHeader, decode_header, split_priority, unreadable
from lsmq.record_batch import Column, Flag, RecordBatch
from lsmq.topics import Topic

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

_WIDTHS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_DTYPES: dict[Column, type[np.generic]] = {
    Column.QUEUE: np.uint32,
    Column.OFFSET: np.int64,
    Column.LENGTH: np.int64,
    Column.HEADER_LENGTH: np.int64,
    Column.STORED_MS: np.int64,
    Column.PRIORITY: np.int32,
    Column.KEY_HASH: np.uint64,
    Column.TAG_HASH: np.uint32,
    Column.TYPE_HASH: np.uint32,
    Column.EXPIRES_MS: np.int64,
    Column.FLAGS: np.uint8,
}
_NOT_A_MESSAGE = Flag.TOMBSTONE | Flag.POSITION | Flag.NAMES
_IN_HEADER = {"key", "key_is_text", "tag", "type", "properties", "headers"}
_NIL, _STR8, _STR16, _BIN8, _BIN16 = 0xC0, 0xD9, 0xDA, 0xC4, 0xC5
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")


def column(batch: RecordBatch, number: Column, dtype: Any) -> NDArray[Any]:
    """A column of a batch as an array; zeros when it is absent."""
    entry = batch.directory.get(number)
    if entry is None:
        return np.zeros(batch.record_count, dtype)
    position, width, base = entry
    if width == 0:
        return np.full(batch.record_count, np.uint64(base).astype(dtype), dtype)
    deltas = np.frombuffer(batch.buffer, _WIDTHS[width], batch.record_count, position)
    values: NDArray[Any] = deltas.astype(dtype)
    if base:
        values += np.uint64(base).astype(dtype)
    return values


def positions(batch: RecordBatch) -> tuple[NDArray[np.uint32], I64] | None:
    """Queues that moved and their next offsets, if that is what the batch says."""
    if Column.FLAGS not in batch.directory or not column(batch, Column.FLAGS, np.uint8)[0] & Flag.POSITION:
        return None
    return column(batch, Column.QUEUE, np.uint32), column(batch, Column.OFFSET, np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """What counts of an answer: offsets ``[starts[i], ends[i])`` of ``queues[i]``, which ascend."""

    queues: NDArray[Any]
    starts: I64
    ends: I64

    def holds(self, queues: NDArray[Any], offsets: I64) -> NDArray[np.bool_]:
        """For each record whether it counts."""
        if len(self.queues) == 1:
            alone: NDArray[np.bool_] = queues == self.queues[0]
            alone &= offsets >= self.starts[0]
            alone &= offsets < self.ends[0]
            return alone
        places = np.minimum(np.searchsorted(self.queues, queues), len(self.queues) - 1)
        held: NDArray[np.bool_] = self.queues[places] == queues
        held &= offsets >= self.starts[places]
        held &= offsets < self.ends[places]
        return held


@dataclass(frozen=True, slots=True)
class Records:
    """Records that count, as columns; their bytes are ``payload[at[i]:at[i] + lengths[i]]``, in that order."""

    columns: dict[Column, NDArray[Any]]
    at: I64
    payload: U8

    def __len__(self) -> int:
        return len(self.at)

    def order(self) -> I64 | None:
        """Positions that sort the records by queue and offset; None when they are sorted."""
        queues, offsets = self.columns[Column.QUEUE], self.columns[Column.OFFSET]
        steps = np.diff(queues.astype(np.int64))
        if not ((steps < 0) | ((steps == 0) & (np.diff(offsets) < 0))).any():
            return None
        return np.lexsort((offsets, queues))


def select(batches: Sequence[RecordBatch], topic: Topic, spans: Sequence[Span]) -> Records | None:
    """The records that count, of all batches. ``spans[i]`` is for ``batches[i]``. None when there are none."""
    parts: dict[Column, list[NDArray[Any]]] = {number: [] for number in _DTYPES}
    starts: list[I64] = []
    payloads: list[U8] = []
    base = 0
    for batch, span in zip(batches, spans, strict=True):
        found = {number: column(batch, number, dtype) for number, dtype in _DTYPES.items()}
        lengths, headers = found[Column.LENGTH], found[Column.HEADER_LENGTH]
        ends = np.cumsum(lengths)
        if int(ends[-1]) != len(batch.payload) or bool((headers > lengths).any()):
            raise InvalidBatch(f"the records' lengths do not fit the payload of {len(batch.payload)} bytes")
        keep = span.holds(found[Column.QUEUE], found[Column.OFFSET])
        if Column.TOPIC in batch.directory:
            keep &= column(batch, Column.TOPIC, np.uint32) == topic.id
        if Column.FLAGS in batch.directory:
            keep &= (found[Column.FLAGS] & _NOT_A_MESSAGE) == 0
        at = ends - lengths + base
        if not keep.all():
            if not keep.any():
                continue
            found = {number: values[keep] for number, values in found.items()}
            at = at[keep]
        for number, values in found.items():
            parts[number].append(values)
        starts.append(at)
        payloads.append(np.frombuffer(batch.payload, np.uint8))
        base += len(batch.payload)
    if not starts:
        return None
    return Records({number: _joined(values) for number, values in parts.items()}, _joined(starts), _joined(payloads))


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def keep_records(records: Records, keep: NDArray[np.bool_]) -> Records:
    """Those of the records that a mask names."""
    if keep.all():
        return records
    return Records(
        {number: values[keep] for number, values in records.columns.items()}, records.at[keep], records.payload
    )


def slices(payload: U8, starts: I64, lengths: I64, valid: NDArray[np.bool_] | None = None) -> Any:
    """A binary array of slices of a buffer that do not overlap and come in its order; null where not ``valid``."""
    count = len(starts)
    buffer = pa.py_buffer(payload)
    if valid is None and (count < 2 or bool((starts[1:] == starts[:-1] + lengths[:-1]).all())):
        bounds = np.empty(count + 1, np.int32)
        bounds[:count] = starts
        bounds[count] = starts[-1] + lengths[-1] if count else 0
        return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), buffer])
    # Slices and the gaps between them tile the buffer; Arrow takes every other one.
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + lengths
    tiles = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), buffer])
    chosen = pa.array(np.arange(0, 2 * count, 2), mask=None if valid is None else ~valid)
    return tiles.take(chosen)


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """Keys as Arrow binary, tags as strings, and functions for what is rarely asked for, of all records."""

    keys: Any
    tags: Any
    keys_are_text: Callable[[], Any]
    properties: Callable[[], Any]
    headers: Callable[[], Any]
    types: Callable[[], Any]


def headers(records: Records) -> HeaderColumns:
    """The fields of all records' headers."""
    count, lengths = len(records), records.columns[Column.HEADER_LENGTH]
    has = lengths > 0
    if not has.any():
        nothing = pa.nulls(count, pa.binary())
        return HeaderColumns(
            nothing,
            nothing.cast(pa.string()),
            lambda: pa.nulls(count, pa.bool_()),
            lambda: _properties([], count, has),
            lambda: _pairs([], has),
            lambda: pa.nulls(count, pa.string()),
        )
    parsed = _Parsed(records, has)
    if parsed.irregular:
        return _slow_headers(records)
    return parsed.headers()


class _Parsed:
    """Where key and tag lie in every header, by a look at all first bytes at once.

    A header is a msgpack array of one to five: key and tag, each nil or below 64 KiB, then a map, an array and a
    string, each perhaps nil. A tag is a string, a key perhaps bytes.
    """

    def __init__(self, records: Records, has: NDArray[np.bool_]) -> None:
        self._records = records
        self._last = max(0, len(records.payload) - 1)
        kind = np.where(has, records.payload[np.minimum(records.at, self._last)], 0x90)
        fields = kind & 0x0F
        self.irregular = bool(((kind & 0xF0) != 0x90).any()) or bool((has & ((fields < 1) | (fields > 5))).any())
        if self.irregular:
            return
        self._key = self._text(records.at + 1, fields >= 1, bytes_too=True)
        self._tag = self._text(self._key[3], fields >= 2)
        self._has_properties = has & (fields >= 3)
        self._has_headers = has & (fields >= 4)
        self._has_type = has & (fields == 5)
        end = np.where(fields >= 2, self._tag[3], self._key[3])
        behind = records.at + records.columns[Column.HEADER_LENGTH]
        whole = ~has | (end == behind) | (self._has_properties & (end < behind))
        self.irregular = self.irregular or not bool(whole.all())

    def _text(
        self, at: I64, there: NDArray[np.bool_], *, bytes_too: bool = False
    ) -> tuple[I64, I64, NDArray[np.bool_], I64]:
        """Start, length, whether there is any, and the position behind, of the string (or bytes) or nil at ``at``."""
        payload, last = self._records.payload, self._last
        mark = payload[np.minimum(at, last)]
        one = payload[np.minimum(at + 1, last)].astype(np.int64)
        two = payload[np.minimum(at + 2, last)].astype(np.int64)
        fixed, short, long = (mark & 0xE0) == 0xA0, mark == _STR8, mark == _STR16
        if bytes_too:
            short, long = short | (mark == _BIN8), long | (mark == _BIN16)
        known = fixed | short | long | (mark == _NIL)
        self.irregular = self.irregular or bool((there & ~known).any())
        length = np.where(fixed, mark & 0x1F, np.where(short, one, np.where(long, one << 8 | two, 0))).astype(np.int64)
        start = at + np.where(fixed, 1, np.where(short, 2, np.where(long, 3, 1)))
        valid = there & (mark != _NIL)
        end = np.where(there, start + length, at)
        return start, length, valid, end

    def headers(self) -> HeaderColumns:
        return HeaderColumns(
            self._binary(self._key),
            self._binary(self._tag).cast(pa.string()),
            self._keys_are_text,
            self._properties,
            self._pairs,
            self._types,
        )

    def _keys_are_text(self) -> Any:
        mark = self._records.payload[np.minimum(self._records.at + 1, self._last)]
        return pa.array((mark != _BIN8) & (mark != _BIN16), mask=~self._key[2])

    def _binary(self, place: tuple[I64, I64, NDArray[np.bool_], I64]) -> Any:
        start, length, valid, _ = place
        count = len(start)
        if not valid.any():
            return pa.nulls(count, pa.binary())
        # A field that is not there is an empty slice at its record's start, so that slices stay in order.
        at = np.where(valid, start, self._records.at)
        return slices(self._records.payload, at, np.where(valid, length, 0), None if valid.all() else valid)

    def _properties(self) -> Any:
        found = [header.properties for header in self._decoded(self._has_properties)]
        return _properties(found, len(self._records), self._has_properties)

    def _types(self) -> Any:
        if not self._has_type.any():
            return pa.nulls(len(self._records), pa.string())
        found = pa.array([header.type for header in self._decoded(self._has_type)], pa.string())
        places = np.maximum(np.cumsum(self._has_type) - 1, 0)
        return found.take(pa.array(places, mask=~self._has_type))

    def _pairs(self) -> Any:
        return _pairs([header.headers for header in self._decoded(self._has_headers)], self._has_headers)

    def _decoded(self, which: NDArray[np.bool_]) -> list[RecordHeader]:
        records, chosen = self._records, np.flatnonzero(which)
        at, lengths = records.at[chosen].tolist(), records.columns[Column.HEADER_LENGTH][chosen].tolist()
        view = memoryview(records.payload)  # type: ignore[arg-type]  # numpy arrays have the buffer protocol
        return [decode_header(view[start : start + length]) for start, length in zip(at, lengths, strict=True)]


def _properties(found: list[dict[str, str]], count: int, has: NDArray[np.bool_]) -> Any:
    """A map for each record: those found where there are any, empty ones else."""
    sizes = np.zeros(count, np.int64)
    if found:
        sizes[has] = [len(each) for each in found]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    names = pa.array([name for each in found for name in each], pa.string())
    values = pa.array([value for each in found for value in each.values()], pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def _pairs(found: list[Headers], has: NDArray[np.bool_]) -> Any:
    """The headers of each record: those found where there are any, null else, as Spark's Kafka source has it."""
    sizes = np.zeros(len(has), np.int64)
    if found:
        sizes[has] = [len(each) for each in found]
    offsets = np.zeros(len(has) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    pairs = [pair for each in found for pair in each]
    names = pa.array([name for name, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    structs = pa.StructArray.from_arrays([names, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), structs, mask=pa.array(sizes == 0))


def _slow_headers(records: Records) -> HeaderColumns:
    """Message by message, for headers that no client of ours packs."""
    view = memoryview(records.payload)  # type: ignore[arg-type]  # numpy arrays have the buffer protocol
    at, lengths = records.at.tolist(), records.columns[Column.HEADER_LENGTH].tolist()
    found = [decode_header(view[start : start + size]) for start, size in zip(at, lengths, strict=True)]
    everywhere = np.ones(len(records), np.bool_)
    return HeaderColumns(
        pa.array([header.key.encode() if isinstance(header.key, str) else header.key for header in found], pa.binary()),
        pa.array([header.tag for header in found], pa.string()),
        lambda: pa.array([None if header.key is None else isinstance(header.key, str) for header in found], pa.bool_()),
        lambda: _properties([header.properties for header in found], len(records), everywhere),
        lambda: _pairs([header.headers for header in found], everywhere),
        lambda: pa.array([header.type for header in found], pa.string()),
    )


def _as_asked(keys: Any, topic: Topic, kind: Any) -> Any:
    """Keys as a column of this type. Raises ``InvalidBatch`` for bytes that are no text where text is asked for."""
    try:
        return keys.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidBatch(
            f"a key of topic {topic.name!r} is bytes that are no text; set option binaryKeys to true to read column "
            "'key' as binary"
        ) from error


def bodies(records: Records) -> Any:
    """What follows each record's header; null where the message says that its key is gone."""
    header_lengths = records.columns[Column.HEADER_LENGTH]
    lengths = records.columns[Column.LENGTH] - header_lengths
    stays = (records.columns[Column.FLAGS] & Flag.DELETE) == 0
    return slices(records.payload, records.at + header_lengths, lengths, None if stays.all() else stays)


def _moments(times_ms: I64) -> Any:
    """Milliseconds since 1970 as timestamps; null for 0."""
    return pa.array(times_ms * 1000, mask=times_ms == 0).cast(pa.timestamp("us", tz="UTC"))


def ids(topic_id: int, records: Records) -> Any:
    """Message ids: 32 hex digits of topic (8), queue (8) and offset (16)."""
    count = len(records)
    raw = np.empty((count, 16), np.uint8)
    raw[:, :4] = np.frombuffer(topic_id.to_bytes(4, "big"), np.uint8)
    raw[:, 4:8] = records.columns[Column.QUEUE].astype(">u4").view(np.uint8).reshape(count, 4)
    raw[:, 8:] = records.columns[Column.OFFSET].astype(">i8").view(np.uint8).reshape(count, 8)
    digits = _HEX[raw].view(np.uint8)
    bounds = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(digits)))


def to_arrow(records: Records, topic: Topic, schema: Any, names: Any = None) -> Any:
    """The records as an Arrow batch of the columns that ``schema`` names, in order of queue and offset.

    ``names`` of their queues; None where these have none. Raises ``InvalidBatch`` that names the message whose header
    cannot be read.
    """
    try:
        return _to_arrow(records, topic, schema, names)
    except (InvalidBatch, pa.ArrowInvalid, pa.ArrowTypeError):
        _tell_unreadable(records, topic)
        raise


def _tell_unreadable(records: Records, topic: Topic) -> None:
    """Raises ``InvalidBatch`` of the first message whose header cannot be read, if there is one."""
    view = memoryview(records.payload)  # type: ignore[arg-type]  # numpy arrays have the buffer protocol
    columns = (records.columns[number].tolist() for number in (Column.HEADER_LENGTH, Column.QUEUE, Column.OFFSET))
    for start, size, queue, offset in zip(records.at.tolist(), *columns, strict=True):
        try:
            properties = decode_header(view[start : start + size]).properties
            if not all(isinstance(part, str) for pair in properties.items() for part in pair):
                raise InvalidBatch("a property is no text")
        except InvalidBatch as error:
            raise unreadable(error, topic.name, queue, offset) from error


def _to_arrow(records: Records, topic: Topic, schema: Any, names: Any) -> Any:
    parsed = headers(records) if _IN_HEADER & set(schema.names) else None
    makers: dict[str, Callable[[], Any]] = {
        "topic": lambda: pa.repeat(pa.scalar(topic.name), len(records)),
        "queue": lambda: pa.array(records.columns[Column.QUEUE].astype(np.int32)),
        "queue_name": lambda: pa.nulls(len(records), pa.string()) if names is None else names,
        "offset": lambda: pa.array(records.columns[Column.OFFSET]),
        "priority": lambda: pa.array(split_priority(records.columns[Column.PRIORITY])[0]),
        "subpriority": lambda: pa.array(split_priority(records.columns[Column.PRIORITY])[1]),
        "stored_time": lambda: pa.array(records.columns[Column.STORED_MS] * 1000).cast(pa.timestamp("us", tz="UTC")),
        "expires_time": lambda: _moments(records.columns[Column.EXPIRES_MS]),
        "id": lambda: ids(topic.id, records),
        "body": lambda: bodies(records),
    }
    if parsed is not None:
        makers |= {
            "key": lambda: _as_asked(parsed.keys, topic, schema.field("key").type),
            "key_is_text": parsed.keys_are_text,
            "tag": lambda: parsed.tags,
            "type": parsed.types,
            "properties": parsed.properties,
            "headers": parsed.headers,
        }
    arrays = [makers[field.name]() for field in schema]
    arrays = [
        array if array.type.equals(field.type) else array.cast(field.type)
        for array, field in zip(arrays, schema, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    order = records.order()
    return batch if order is None else batch.take(pa.array(order))
