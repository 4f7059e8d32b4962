"""Rows of columns as an application gives them to ``send_batch``, checked, and as the columns of a record batch.

What is wrong is told before anything is sent, and names the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, repeat
from types import NoneType
from typing import TYPE_CHECKING, Any

import xxhash

from lsmq import runtime
from lsmq._row_bodies import bodies_and_lengths
from lsmq._row_columns import column_of, is_arrow, lengths_of, numbers_of, of_row, single_number, whole_numbers
from lsmq.errors import InvalidRequest, MessageTooLarge, UnknownQueue
from lsmq.messages import (
    MAX_PRIORITY,
    MAX_TTL_MS,
    Key,
    check_key,
    check_properties,
    check_tag,
    check_type,
    encode_header,
    key_headers,
    tag_hash,
)
from lsmq.partitioners import Partitioner
from lsmq.queue_names import check_queue_name, queue_slot
from lsmq.record_batch import Column
from lsmq.topics import Topic

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ROWS = 1_000_000
_TABLE_COLUMNS = {
    "body": "bodies",
    "queue": "queues",
    "key": "keys",
    "tag": "tags",
    "type": "types",
    "priority": "priorities",
    "subpriority": "subpriorities",
    "properties": "properties",
    "ttl_ms": "ttl_ms",
    "expires_at_ms": "expires_at_ms",
}


@dataclass(frozen=True, slots=True, eq=False)
class MessageRows:
    """Messages of one call, by row.

    ``bodies`` are a list, or lie in one stretch of bytes, from ``starts`` on. ``headers`` are packed, of each or of
    all. ``columns`` are those of the record batch but queues: int64, or what all rows have. ``queues``, where they are
    given, are numbers, or slots of ``names``; ``hashes`` are those of ``keys``, and ``keyed`` which rows have one.
    """

    count: int
    bodies: list[bytes] | memoryview
    starts: NDArray[Any] | None
    lengths: NDArray[Any]
    headers: list[bytes] | bytes
    columns: Mapping[int, NDArray[Any] | int]
    queues: NDArray[Any] | None
    names: list[str] | None
    keys: list[Key | None] | None
    hashes: NDArray[Any] | None
    keyed: NDArray[Any] | None

    def payload(self, rows: slice | NDArray[Any]) -> bytes:
        """The records of these rows, joined: copied, so that nothing of the caller's is kept."""
        if self.headers == b"" and isinstance(self.bodies, memoryview) and isinstance(rows, slice):
            assert self.starts is not None
            last = rows.stop - 1
            return self.bodies[int(self.starts[rows.start]) : int(self.starts[last] + self.lengths[last])].tobytes()
        bodies = self.bodies_of(rows)
        if self.headers == b"":
            return b"".join(bodies)
        headers = repeat(self.headers) if isinstance(self.headers, bytes) else _picked(self.headers, rows)
        return b"".join(chain.from_iterable(zip(headers, bodies, strict=False)))

    def bodies_of(self, rows: slice | NDArray[Any]) -> list[bytes]:
        """Bodies alone."""
        if isinstance(self.bodies, list):
            return _picked(self.bodies, rows)
        assert self.starts is not None
        starts, ends = self.starts[rows], (self.starts + self.lengths)[rows]
        view = self.bodies
        return [view[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def columns_of(self, rows: slice | NDArray[Any]) -> dict[int, NDArray[Any] | int]:
        """The record batch's columns of these rows."""
        return {
            column: values if isinstance(values, int) else values[rows].copy()
            for column, values in self.columns.items()
        }

    def queues_of(self, rows: slice, key_queues: int, turn: int) -> NDArray[Any]:
        """The queue of each: its own, or by its key, or where it has neither ``turn``."""
        if self.queues is not None:
            return self.queues[rows]
        assert self.hashes is not None
        found: NDArray[Any] = (self.hashes[rows] % np.uint64(key_queues)).astype(np.int64)
        if self.keyed is not None:
            found[~self.keyed[rows]] = turn
        return found


def _picked(values: list[bytes], rows: slice | NDArray[Any]) -> list[bytes]:
    return values[rows] if isinstance(rows, slice) else [values[row] for row in rows.tolist()]


def check_rows(
    topic: Topic,
    bodies: Any,
    lengths: Any,
    queues: Any,
    keys: Any,
    tags: Any,
    types: Any,
    properties: Any,
    priorities: Any,
    ttl_ms: Any,
    subpriorities: Any,
    expires_at_ms: Any,
    *,
    max_message_bytes: int,
) -> MessageRows:
    """The rows, checked. Raises ``InvalidRequest``, ``MessageTooLarge`` and ``UnknownQueue`` that name the row."""
    given = {
        "queues": queues,
        "keys": keys,
        "tags": tags,
        "types": types,
        "properties": properties,
        "priorities": priorities,
        "ttl_ms": ttl_ms,
        "subpriorities": subpriorities,
        "expires_at_ms": expires_at_ms,
    }
    if is_arrow(bodies) and hasattr(bodies, "column_names"):
        bodies = _of_table(bodies, given)
    found, starts, body_lengths = bodies_and_lengths(bodies, lengths)
    count = len(body_lengths)
    if count > MAX_ROWS:
        raise InvalidRequest(f"send_batch is given {count} rows; it takes {MAX_ROWS} at most: send them in parts")
    queue_column, names = _queues(given["queues"], topic, count)
    key_column, hashes, keyed = _keys(given["keys"], count)
    tag_column = _words(given["tags"], "tags", check_tag, count)
    type_column = _words(given["types"], "types", check_type, count)
    property_column = _properties(given["properties"], count)
    headers = _headers(count, key_column, tag_column, type_column, property_column)
    columns: dict[int, NDArray[Any] | int] = {
        Column.KEY_HASH: 0 if hashes is None else hashes,
        Column.TAG_HASH: _hashes(tag_column),
        Column.TYPE_HASH: _hashes(type_column),
        Column.PRIORITY: numbers_of(given["priorities"], "priorities", count, MAX_PRIORITY)
        + (numbers_of(given["subpriorities"], "subpriorities", count, MAX_PRIORITY) << 8),
        Column.EXPIRES_MS: _expiry(given["ttl_ms"], given["expires_at_ms"], count),
    }
    record_lengths = body_lengths
    if headers:
        header_lengths = len(headers) if isinstance(headers, bytes) else lengths_of(headers)
        columns[Column.HEADER_LENGTH] = header_lengths
        record_lengths = body_lengths + header_lengths
    columns[Column.LENGTH] = record_lengths
    columns = {column: values for column, values in columns.items() if not isinstance(values, int) or values}
    if count and record_lengths.max() > max_message_bytes:
        row = int((record_lengths > max_message_bytes).argmax())
        raise MessageTooLarge(
            f"row {row}: the message needs {record_lengths[row]} bytes with key, tag and properties; topic"
            f" {topic.name!r} and max_buffer_bytes allow {max_message_bytes}; send it in parts or raise the limit",
            size_bytes=int(record_lengths[row]),
            limit_bytes=max_message_bytes,
            row=row,
        )
    return MessageRows(
        count, found, starts, body_lengths, headers, columns, queue_column, names, key_column, hashes, keyed
    )


def by_partitioner(rows: MessageRows, choose: Partitioner, topic: Topic, key_queues: int) -> MessageRows:
    """The rows, with the queues that the partitioner says. Raises as for queues that are given."""
    keys: Iterable[Key | None] = repeat(None) if rows.keys is None else rows.keys
    bodies = rows.bodies_of(slice(0, rows.count))
    chosen = [
        choose(key, body, topic.queues if key is None else key_queues) for key, body in zip(keys, bodies, strict=False)
    ]
    queues, _ = _queues(chosen, topic, rows.count)
    return replace(rows, queues=queues)


def _of_table(table: Any, given: dict[str, Any]) -> Any:
    """The table's bodies; its other columns are ``given`` then."""
    names = table.column_names
    unknown = [name for name in names if name not in _TABLE_COLUMNS]
    if unknown or "body" not in names:
        raise InvalidRequest(
            f"the table has the columns {', '.join(names)}; it must have body, and may have"
            f" {', '.join(list(_TABLE_COLUMNS)[1:])}: use table.select([...]) and table.rename_columns([...])"
        )
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"the table has more than one column {name}; drop or rename the others")
        argument = _TABLE_COLUMNS[name]
        if given.get(argument) is not None:
            raise InvalidRequest(f"{argument} is given beside the table's column {name}; give one of the two")
        if name != "body":
            given[argument] = table.column(name)
    return table.column("body")


def _queues(value: Any, topic: Topic, count: int) -> tuple[NDArray[Any] | None, list[str] | None]:
    if topic.named:
        return _named_queues(value, topic, count)
    if value is None:
        return None, None
    if isinstance(value, str):
        raise InvalidRequest(f"queues is {value!r}; the queues of topic {topic.name!r} have numbers")
    one = single_number(value)
    queues = whole_numbers([one] if one is not None else value, "queues", None if one is not None else count, None)
    wrong = (queues < 0) | (queues >= topic.queues)
    if wrong.any():
        row = int(wrong.argmax())
        where = "" if one is not None else f"row {row}: "
        raise UnknownQueue(
            f"{where}topic {topic.name!r} has queues 0 to {topic.queues - 1}, not {queues[row]}",
            topic=topic.name,
            queue=int(queues[row]),
            row=row,
        )
    return (np.full(count, one, np.int64) if one is not None else queues), None


def _named_queues(value: Any, topic: Topic, count: int) -> tuple[NDArray[Any], list[str]]:
    names = column_of(value, "queues", count, (str,))
    if names is None:
        raise InvalidRequest(f"the queues of topic {topic.name!r} have names, and rows name none; say queues=")
    if isinstance(names, str):
        return np.full(count, queue_slot(check_queue_name(names)), np.int64), [names] * count
    slots: dict[str, int] = {}
    for row, name in enumerate(names):
        if type(name) is not str or name not in slots:
            slots[name] = queue_slot(of_row(row, check_queue_name, name))
    return np.fromiter(map(slots.__getitem__, names), np.int64, count), names


def _keys(value: Any, count: int) -> tuple[Any, NDArray[Any] | None, NDArray[Any] | None]:
    """The column; of each its hash, 0 where it has none; and which have one, where not all do."""
    keys = column_of(value, "keys", count, (str, bytes))
    if keys is None:
        return None, None, None
    if not isinstance(keys, list):
        check_key(keys)
        keys = [keys] * count
    kinds = set(map(type, keys))
    digest = xxhash.xxh3_64_intdigest
    try:
        if kinds == {str}:
            return keys, np.fromiter(map(digest, map(str.encode, keys)), np.uint64, count), None
        if kinds == {bytes}:
            return keys, np.fromiter(map(digest, keys), np.uint64, count), None
    except UnicodeEncodeError:
        pass  # Which row it is comes out below.
    hashes = np.zeros(count, np.uint64)
    keyed = np.ones(count, bool)
    for row, key in enumerate(keys):
        if key is None:
            keyed[row] = False
        else:
            of_row(row, check_key, key)
            hashes[row] = digest(key.encode() if isinstance(key, str) else key)
    if not keyed.any():
        return None, None, None
    return keys, hashes, keyed


def _words(value: Any, name: str, check: Callable[[object], None], count: int) -> Any:
    words = column_of(value, name, count, (str,))
    if isinstance(words, str):
        check(words)
    elif words is not None:
        known: set[str | None] = {None}
        for row, word in enumerate(words):
            if type(word) not in (str, NoneType) or word not in known:
                of_row(row, check, word)
                known.add(word)
        if known == {None}:
            return None
    return words


def _hashes(words: Any) -> NDArray[Any] | int:
    if words is None:
        return 0
    if isinstance(words, str):
        return tag_hash(words)
    known = {word: 0 if word is None else tag_hash(word) for word in set(words)}
    return np.fromiter(map(known.__getitem__, words), np.int64, len(words))


def _properties(value: Any, count: int) -> Any:
    if isinstance(value, Mapping):
        check_properties(value)
        return value or None
    found = column_of(value, "properties", count, ())
    if found is None:
        return None
    made: list[Mapping[str, str] | None] = []
    for row, each in enumerate(found):
        if isinstance(each, list):  # of a map of Arrow
            each = dict(each)
        if each is not None and not isinstance(each, Mapping):
            raise InvalidRequest(
                f"row {row}: properties is of type {type(each).__name__}; it must be a mapping", row=row
            )
        if each:
            of_row(row, check_properties, each)
        made.append(each or None)
    return made if any(made) else None


def _expiry(ttl_ms: Any, expires_at_ms: Any, count: int) -> NDArray[Any] | int:
    """Of each row, or of all: a time to live, or a moment that is not over; 0 for never."""
    if expires_at_ms is None:
        return numbers_of(ttl_ms, "ttl_ms", count, MAX_TTL_MS)
    if ttl_ms is not None:
        raise InvalidRequest("expires_at_ms is given beside ttl_ms; give one of the two", field="expires_at_ms")
    now_ms = runtime.wall_ms()
    found = numbers_of(expires_at_ms, "expires_at_ms", count, now_ms + MAX_TTL_MS)
    over = (np.asarray(found) > 0) & (np.asarray(found) <= now_ms)
    if over.any():
        row = None if isinstance(found, int) else int(over.argmax())
        where = "" if row is None else f"row {row}: "
        raise InvalidRequest(
            f"{where}expires_at_ms is {found if isinstance(found, int) else found[row]}, which is over; it must be "
            f"after {now_ms}, milliseconds since 1970, or 0 for a message that does not expire",
            field="expires_at_ms",
            row=row,
        )
    return found


def _headers(count: int, keys: Any, tags: Any, types: Any, properties: Any) -> list[bytes] | bytes:
    """Of each row, or of all, what :func:`.messages.encode_header` makes."""
    if isinstance(keys, list) and tags is types is properties is None:
        if None in keys:
            return [encode_header(key, None, None) for key in keys]
        return key_headers(keys, None)
    if not any(isinstance(each, list) for each in (keys, tags, types, properties)):
        return encode_header(keys, tags, properties, None, types)
    columns = [each if isinstance(each, list) else [each] * count for each in (keys, tags, properties, types)]
    return [encode_header(key, tag, some, None, kind) for key, tag, some, kind in zip(*columns, strict=True)]
