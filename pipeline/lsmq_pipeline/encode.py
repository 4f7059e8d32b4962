"""Rows to records, column by column: Arrow joins header and body of all rows at once.

A record's header is msgpack: ``[key]``, ``[key, tag]``, ``[key, tag, properties]``, or all three and ``headers``. Of a
string msgpack needs its length in front, and there are few different lengths; so a header is a join of short columns,
which Arrow does at memory speed. Only properties and headers are packed row by row, of rows that have any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import crc32c
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from numpy.typing import NDArray

from lsmq.batch_builder import COLUMN, HEADER, HEADER_BYTES, MASK64, VERSION, Codec, Column, Flag
from lsmq.errors import InvalidRequest, MessageTooLarge
from lsmq.messages import (
    MAX_PRIORITY,
    dedupe_hash,
    key_hash,
    named_dedupe_hash,
    tag_hash,
    type_hash,
)
from lsmq.queue_names import SEPARATOR
from lsmq_pipeline.errors import SchemaMismatch
from lsmq_pipeline.row_times import due_values, expiry_values

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_NIL, _EMPTY_MAP, _NO_PAIRS = b"\xc0", b"\x80", b"\x90"


@dataclass(slots=True)
class RecordRows:
    """Records to be, as columns of one length. ``queues``: -1 where none is named; ``bytes``: header and body.

    ``names`` are of their queues, an Arrow array with nulls where none is said. ``due``: of each what
    :func:`lsmq.message_times.due_value` says; ``dedupe_high`` and ``dedupe_low``: the halves of its id's hash, 0 for
    none.
    """

    queues: I64
    header_lengths: I64
    lengths: I64
    key_hashes: U64
    tag_hashes: NDArray[np.uint32]
    type_hashes: NDArray[np.uint32]
    due: I64
    expires: I64
    priorities: NDArray[np.uint16]  # with subpriorities
    flags: NDArray[np.uint8]
    dedupe_high: U64
    dedupe_low: U64
    bytes: Any
    names: Any

    def __len__(self) -> int:
        return len(self.queues)

    def columns(self) -> list[Any]:
        """All of them, in the order above."""
        return [getattr(self, each.name) for each in fields(self)]

    def take(self, places: I64) -> RecordRows:
        """These rows, in this order."""
        arrow = pa.array(places)
        return RecordRows(
            *(each[places] if isinstance(each, np.ndarray) else each.take(arrow) for each in self.columns())
        )

    def slice(self, start: int, stop: int) -> RecordRows:
        """Rows ``[start, stop)``."""
        return RecordRows(
            *(
                each[start:stop] if isinstance(each, np.ndarray) else each.slice(start, stop - start)
                for each in self.columns()
            )
        )


def joined(parts: list[RecordRows]) -> RecordRows:
    """Rows one after another."""
    if len(parts) == 1:
        return parts[0]
    return RecordRows(
        *(
            np.concatenate(each) if isinstance(each[0], np.ndarray) else pa.concat_arrays(each)
            for each in map(list, zip(*(part.columns() for part in parts), strict=True))
        )
    )


def check_text(batch: Any) -> None:
    """Raises ``SchemaMismatch`` for text that is no UTF-8, as of bytes that were cast. A body is bytes in any case."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            if name != "body":
                column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(
                f"column {name!r} has bytes that are no text in UTF-8 ({error})", column=name
            ) from error


def to_rows(batch: Any, *, max_message_bytes: int) -> RecordRows:
    """An Arrow batch of Spark's as rows. Raises ``SchemaMismatch``, ``MessageTooLarge`` naming a row."""
    count = batch.num_rows
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    body = columns["body"].cast(pa.binary())
    keys, tags = _keys(columns.get("key"), count), _strings(columns.get("tag"), count)
    types = _strings(columns.get("type"), count)
    flags = _flags(body, keys)
    body = body.fill_null(b"")
    is_text = _which_are_text(keys, columns.get("key_is_text"))
    maps, pairs = _packed_maps(columns.get("properties"), count), _packed_pairs(columns.get("headers"))
    header = _headers(keys, is_text, tags, maps, pairs, types)
    header_lengths = np.zeros(count, np.int64)
    record = body
    if header is not None:
        header_lengths = _lengths(header)
        record = pc.binary_join_element_wise(header, body, pa.scalar(b"", pa.binary()))
    lengths = _lengths(record)
    _check(lengths, max_message_bytes)
    names = columns["queue_name"].cast(pa.string()) if "queue_name" in columns else pa.nulls(count, pa.string())
    due = due_values(columns, count)
    dedupe_high, dedupe_low = _dedupe_hashes(_strings(columns.get("dedupe_id"), count), names, due)
    return RecordRows(
        queues=_queues(columns.get("queue"), names),
        header_lengths=header_lengths,
        lengths=lengths,
        key_hashes=_hashes(keys, key_hash, np.uint64, count),
        tag_hashes=_hashes(tags, tag_hash, np.uint32, count),
        type_hashes=_hashes(types, type_hash, np.uint32, count),
        due=due,
        expires=expiry_values(columns, due),
        priorities=_priorities(columns, count),
        flags=flags,
        dedupe_high=dedupe_high,
        dedupe_low=dedupe_low,
        bytes=record,
        names=names,
    )


def _check(lengths: I64, limit: int) -> None:
    if int(lengths.max(initial=0)) > limit:
        row = int(np.argmax(lengths))
        raise MessageTooLarge(
            f"row {row} of an Arrow batch makes a message of {lengths[row]} bytes, the topic's limit is {limit} "
            "(max_message_bytes)",
            limit=limit,
        )


def _flags(body: Any, keys: Any) -> NDArray[np.uint8]:
    """``DELETE`` where the body is null: the key is gone. Raises ``SchemaMismatch`` where there is none."""
    gone = ~_valid(body)
    if (gone if keys is None else gone & ~_valid(keys)).any():
        raise SchemaMismatch(
            "column 'body' has a null where there is no key: a null body says that its key is gone; send an empty one",
            column="body",
        )
    return np.where(gone, np.uint8(Flag.DELETE), np.uint8(0))


def _keys(column: Any, count: int) -> Any:
    """The column as Arrow strings or as binary, whichever it is; None when no row has one."""
    if column is None or column.null_count == count:
        return None
    is_binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.binary() if is_binary else pa.string())


def _which_are_text(keys: Any, told: Any) -> Mask | None:
    """Which keys are text: as the column of their own says, and where that says nothing, as the keys' type does.

    Raises ``SchemaMismatch`` for bytes that are no text and are told to be.
    """
    if keys is None:
        return None
    by_type = pa.types.is_string(keys.type)
    if told is None:
        return np.full(len(keys), by_type)
    is_text: Mask = told.fill_null(by_type).to_numpy(zero_copy_only=False)
    try:
        keys.filter(pa.array(is_text)).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            "column 'key_is_text' is true for a key of bytes that are no text", column="key_is_text"
        ) from error
    return is_text


def _strings(column: Any, count: int) -> Any:
    """The column as Arrow strings, None when no row has one."""
    if column is None or column.null_count == count:
        return None
    return column.cast(pa.string())


def _lengths(column: Any) -> I64:
    return pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _queues(column: Any, names: Any) -> I64:
    """-1 where a row says none, or says its name: what number it has then is the shard's to say."""
    if column is None:
        return np.full(len(names), -1, np.int64)
    said = _valid(column) & ~_valid(names)
    found: I64 = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    wrong = said & (found < 0)
    if wrong.any():
        raise SchemaMismatch(
            f"column 'queue' has {int(found[np.argmax(wrong)])}; a queue is 0 or more, or null for any", column="queue"
        )
    return np.where(said, found, -1)


def _priorities(columns: Mapping[str, Any], count: int) -> NDArray[np.uint16]:
    """As :func:`.messages.priority_value`. Raises ``SchemaMismatch`` for what is none."""
    made = np.zeros(count, np.uint16)
    for shift, name in ((0, "priority"), (8, "subpriority")):
        if name in columns:
            found = columns[name].cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            if count and not 0 <= int(found.min()) <= int(found.max()) <= MAX_PRIORITY:
                raise SchemaMismatch(f"column {name!r} has values outside 0 to {MAX_PRIORITY}", column=name)
            made |= found.astype(np.uint16) << np.uint16(shift)
    return made


def _dedupe_hashes(ids: Any, names: Any, due: I64) -> tuple[U64, U64]:
    """Upper and lower halves of each row's hash, 0 for none. Raises ``SchemaMismatch`` for what is no id."""
    count = len(due)
    if ids is None:
        return np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    if (_valid(ids) & (due > 0)).any():
        raise SchemaMismatch(
            "a row has a 'dedupe_id' beside 'delay_ms' or 'deliver_at_ms': a message that comes later is not looked "
            "for by its id; leave one of the two null",
            column="dedupe_id",
        )
    try:
        hashes = [
            0 if id is None else dedupe_hash(id) if name is None else named_dedupe_hash(dedupe_hash(id), name)
            for id, name in zip(ids.to_pylist(), names.to_pylist(), strict=True)
        ]
    except InvalidRequest as error:
        raise SchemaMismatch(f"column 'dedupe_id': {error.message}", column="dedupe_id") from error
    return (
        np.array([each >> 64 for each in hashes], np.uint64),
        np.array([each & MASK64 for each in hashes], np.uint64),
    )


def _hashes(strings: Any, hash_of: Callable[[Any], int], dtype: Any, count: int) -> NDArray[Any]:
    """Each string's hash, 0 for none. Each different string is hashed once."""
    if strings is None:
        return np.zeros(count, dtype)
    encoded = strings.dictionary_encode()
    known = np.array([hash_of(text) for text in encoded.dictionary.to_pylist()] + [0], dtype)
    places = encoded.indices.cast(pa.int64()).fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
    found: NDArray[Any] = known[places]
    return found


def _headers(keys: Any, keys_are_text: Mask | None, tags: Any, maps: Any, pairs: Any, types: Any) -> Any:
    """Each row's header as binary, empty where it has none of the five; None when no row has any."""
    given = [column for column in (keys, tags, maps, pairs, types) if column is not None]
    if not given:
        return None
    count = len(given[0])
    has_type = np.zeros(count, np.bool_) if types is None else _valid(types)
    has_pairs = has_type | (np.zeros(count, np.bool_) if pairs is None else _lengths(pairs) > 0)
    has_map = has_pairs | (np.zeros(count, np.bool_) if maps is None else _lengths(maps) > 0)
    has_tag = has_map | (np.zeros(count, np.bool_) if tags is None else _valid(tags))
    has_key = has_tag | (np.zeros(count, np.bool_) if keys is None else _valid(keys))
    counts = has_key.astype(np.int64) + has_tag + has_map + has_pairs + has_type
    starts = pa.array([b"", b"\x91", b"\x92", b"\x93", b"\x94", b"\x95"], pa.binary()).take(pa.array(counts))
    parts = [starts, *_packed_strings(keys, keys_are_text, has_key, count)]
    parts += _packed_strings(tags, None, has_tag, count)
    if pairs is not None or types is not None:
        maps = _or_empty(maps, _EMPTY_MAP, has_pairs)
        pairs = _or_empty(pairs, _NO_PAIRS, has_type)
    parts += [column for column in (maps, pairs) if column is not None]
    if types is not None:
        parts += _packed_strings(types, None, has_type, count)
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _or_empty(packed: Any, empty: bytes, there: Mask) -> Any:
    """The column with ``empty`` in rows that have nothing in it and are to have something."""
    filled = pa.array(np.where(there, empty, b"").tolist(), pa.binary())
    return filled if packed is None else pc.if_else(pc.equal(packed, b""), filled, packed)


def _valid(column: Any) -> NDArray[np.bool_]:
    return column.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _packed_strings(strings: Any, is_text: Mask | None, there: Mask, count: int) -> list[Any]:
    """Two columns that joined are each row's string in msgpack: nil for null, nothing where not ``there``.

    ``is_text`` says which are text and which are bytes; without it all are text.
    """
    if strings is None:
        return [pa.array([b"", _NIL], pa.binary()).take(pa.array(there.astype(np.int8)))]
    strings = strings.cast(pa.binary())
    lengths = _lengths(strings.fill_null(b""))
    valid = _valid(strings)
    kinds = lengths * 2 + (1 if is_text is None else is_text)
    codes = np.where(valid, kinds + 2, there.astype(np.int64))
    different, places = np.unique(codes, return_inverse=True)
    return [
        pa.array([_mark_of(code) for code in different.tolist()], pa.binary()).take(pa.array(places.astype(np.int64))),
        strings.fill_null(b""),
    ]


def _mark_of(code: int) -> bytes:
    """What stands before a string: nothing for 0, nil for 1, else msgpack's mark of its length and kind."""
    if code < 2:
        return _NIL if code else b""
    length, is_text = divmod(code - 2, 2)
    return _string_mark(length) if is_text else _bytes_mark(length)


def _string_mark(length: int) -> bytes:
    """What msgpack puts before a string of so many bytes."""
    if length < 32:
        return bytes((0xA0 | length,))
    if length < 1 << 8:
        return bytes((0xD9, length))
    if length < 1 << 16:
        return b"\xda" + length.to_bytes(2, "big")
    return b"\xdb" + length.to_bytes(4, "big")


def _bytes_mark(length: int) -> bytes:
    """What msgpack puts before so many bytes."""
    if length < 1 << 8:
        return bytes((0xC4, length))
    if length < 1 << 16:
        return b"\xc5" + length.to_bytes(2, "big")
    return b"\xc6" + length.to_bytes(4, "big")


def _packed_pairs(headers: Any) -> Any:
    """Each row's headers in msgpack, empty where it has none; None when no row has any."""
    if headers is None or headers.null_count == len(headers) or len(headers.flatten()) == 0:
        return None
    packed = []
    for pairs in headers.to_pylist():
        flat = [part for pair in pairs or () for part in ((None,) if pair is None else pair.values())]
        if None in flat:
            raise SchemaMismatch(
                "column 'headers' has a null among its headers, or a null name or value; names are strings and values "
                "bytes, perhaps none",
                column="headers",
            )
        packed.append(msgpack.packb(flat) if flat else b"")
    return pa.array(packed, pa.binary())


def _packed_maps(properties: Any, count: int) -> Any:
    """Each row's properties in msgpack, empty where it has none; None when no row has any."""
    if properties is None or properties.null_count == count or len(properties.keys) == 0:
        return None
    found = properties.to_pylist()
    packed = []
    for pairs in found:
        if pairs and any(value is None for _, value in pairs):
            raise SchemaMismatch("column 'properties' has a null value; properties are strings", column="properties")
        packed.append(msgpack.packb(dict(pairs)) if pairs else b"")
    return pa.array(packed, pa.binary())


def encode_named(rows: RecordRows, *, producer_id: int, sequence: int, codec: Codec) -> bytes:
    """Rows that name their queues, with the names before the batch, in the order in which they come first."""
    found = rows.names.dictionary_encode()
    names = SEPARATOR.join(found.dictionary.to_pylist()).encode()
    placed = replace(rows, queues=found.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    packed = encode(placed, producer_id=producer_id, sequence=sequence, codec=codec)
    return len(names).to_bytes(4, "little") + names + packed


def encode(rows: RecordRows, *, producer_id: int, sequence: int, codec: Codec) -> bytes:
    """The rows as one record batch. They share a shard and name their queues."""
    columns: list[tuple[Column, NDArray[Any]]] = [
        (Column.QUEUE, rows.queues),
        (Column.LENGTH, rows.lengths),
        (Column.HEADER_LENGTH, rows.header_lengths),
        (Column.KEY_HASH, rows.key_hashes),
        (Column.TAG_HASH, rows.tag_hashes),
        (Column.TYPE_HASH, rows.type_hashes),
        (Column.PRIORITY, rows.priorities),
        (Column.DUE_MS, rows.due),
        (Column.EXPIRES_MS, rows.expires),
        (Column.FLAGS, rows.flags),
        (Column.DEDUPE_HIGH, rows.dedupe_high),
        (Column.DEDUPE_LOW, rows.dedupe_low),
    ]
    directory, deltas = [], []
    for number, values in columns:
        if number in (Column.QUEUE, Column.LENGTH) or values.any():
            entry, delta = _encode_column(number, values)
            directory.append(entry)
            deltas.append(delta)
    payload = _payload(rows.bytes)
    raw_bytes = len(payload)
    if codec is Codec.ZSTD:
        payload = zstandard.compress(payload, 1)
    rest = b"".join((*directory, *deltas, payload))
    total = HEADER_BYTES + len(rest)
    rest_of_head = (total, VERSION, codec, len(directory), len(rows), len(payload), raw_bytes, producer_id, 0, sequence)
    head = HEADER.pack(0, *rest_of_head)[4:]
    return crc32c.crc32c(rest, crc32c.crc32c(head)).to_bytes(4, "little") + head + rest


def _encode_column(number: Column, values: NDArray[Any]) -> tuple[bytes, bytes]:
    low, high = int(values.min()), int(values.max())
    span = high - low
    if span == 0 and number != Column.DUE_MS:
        return COLUMN.pack(number, 0, low), b""
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8
    return COLUMN.pack(number, width, low), (values - values.dtype.type(low)).astype(f"<u{width}").tobytes()


def _payload(records: Any) -> bytes:
    """All records' bytes one after another, which is how Arrow has them."""
    if records.null_count:
        raise InvalidRequest("a record is null")
    _, bounds, values = records.buffers()
    ends = np.frombuffer(bounds, np.int32)
    first, last = int(ends[records.offset]), int(ends[records.offset + len(records)])
    return values.slice(first, last - first).to_pybytes() if last > first else b""
