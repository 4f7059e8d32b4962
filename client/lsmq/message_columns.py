"""Messages as columns: one object for all that came in an answer, and nothing made of a message until it is looked at.

The columns are numpy arrays, which is what ``poll_batch`` and ``send_batch`` need, and nothing else here:
``pip install "lsmq[columns]"``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lsmq.errors import InvalidBatch, InvalidRequest
from lsmq.filters import MessageFilter
from lsmq.messages import (
    NO_PROPERTIES,
    Key,
    Message,
    NamedMessage,
    RecordHeader,
    decode_header,
    make_message,
    split_priority,
    unreadable,
)
from lsmq.record_batch import Codec, Column, Flag, RecordBatch
from lsmq.topics import Topic

try:
    import numpy as np
except ImportError:  # Nobody needs it who reads messages.
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOT_A_MESSAGE = int(Flag.TOMBSTONE | Flag.POSITION | Flag.ELSEWHERE | Flag.NAMES)
_MOST_RUNS = 1_024
_ABSENT = (0, 0, 0)  # position, width and least value of a column


def check_columns(method: str) -> None:
    """Raises ``InvalidRequest``, for the method that is named, where numpy is not installed."""
    if np is None:
        raise InvalidRequest(f'{method} needs numpy, which is not installed: pip install "lsmq[columns]"')


@dataclass(frozen=True, eq=False)
class MessageBatch:
    """Messages of one topic, as columns: row ``i`` of each is of one message, in the order of their offsets by queue.

    ``payload`` is the answer as it came, and the body of row ``i`` is ``payload[starts[i]:ends[i]]``: nothing is
    copied. So a batch, and every slice of it or view of its payload, **keeps the whole answer alive**, about
    ``max_bytes`` of the consumer; :meth:`copy`, and pickling, give one that has its own bodies and no others. (An
    answer whose batches are compressed is copied once, when unpacked.) Messages made of it have copies of their own.

    Keys, tags, types, properties and headers are unpacked when they are asked for, and kept; ``InvalidBatch`` is raised
    then, not before, for a message whose header cannot be read, and names it. All arrays are read-only.

    Attributes:
        topic: its name; ``topic_id``: its number, unique in the cluster for ever.
        queues: int64. In a named topic the numbers that queues have; ``names`` says their names.
        offsets: int64.
        stored_ms: int64, milliseconds since 1970.
        priorities, subpriorities: int64, 0 to 255.
        expires_ms: int64, milliseconds since 1970; 0 where it never does.
        deletes: bool, whether the message says that its key is gone.
        heads: int64; ``payload[heads[i]:starts[i]]`` is the packed key, tag and so on: empty where it has none.
        starts, ends: int64, of bodies in ``payload``.
    """

    topic: str
    topic_id: int
    payload: memoryview
    queues: NDArray[Any]
    offsets: NDArray[Any]
    stored_ms: NDArray[Any]
    priorities: NDArray[Any]
    subpriorities: NDArray[Any]
    expires_ms: NDArray[Any]
    deletes: NDArray[Any]
    heads: NDArray[Any]
    starts: NDArray[Any]
    ends: NDArray[Any]
    names: Mapping[int, str] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    def __repr__(self) -> str:
        size_bytes = int(self.lengths.sum())
        return f"<MessageBatch of topic {self.topic!r}: {len(self)} messages, {size_bytes} bytes of bodies>"

    def __getitem__(self, rows: slice | NDArray[Any]) -> MessageBatch:
        """These rows, as a batch: of a slice, or of an array of bools or of row numbers."""
        if isinstance(rows, slice) and len(range(*rows.indices(len(self)))) == len(self) and rows.step in (None, 1):
            return self
        columns = {name: _read_only(getattr(self, name)[rows]) for name in _COLUMNS}
        return MessageBatch(self.topic, self.topic_id, self.payload, **columns, names=self.names)

    @property
    def lengths(self) -> NDArray[Any]:
        """Bytes of each body."""
        lengths: NDArray[Any] = self.ends - self.starts
        return lengths

    @cached_property
    def headers_of(self) -> Sequence[RecordHeader]:
        """Of each message its ``key``, ``tag``, ``properties``, ``headers`` and ``type``. Raises ``InvalidBatch``."""
        none = decode_header(b"")
        if not (self.heads != self.starts).any():
            return [none] * len(self)
        payload = self.payload
        found = []
        for row, (head, start) in enumerate(zip(self.heads.tolist(), self.starts.tolist(), strict=True)):
            try:
                found.append(decode_header(payload[head:start]) if head < start else none)
            except InvalidBatch as error:
                raise unreadable(error, self.topic, int(self.queues[row]), int(self.offsets[row])) from error
        return found

    @property
    def keys(self) -> list[Key | None]:
        """Of each message, its key. Raises ``InvalidBatch``."""
        return [header.key for header in self.headers_of]

    @property
    def tags(self) -> list[str | None]:
        """Of each message, its tag. Raises ``InvalidBatch``."""
        return [header.tag for header in self.headers_of]

    @property
    def types(self) -> list[str | None]:
        """Of each message, its type. Raises ``InvalidBatch``."""
        return [header.type for header in self.headers_of]

    @property
    def queue_names(self) -> list[str] | None:
        """Of each message, the name of its queue; None where the topic has none."""
        return None if self.names is None else [self.names[queue] for queue in self.queues.tolist()]

    def body(self, row: int) -> memoryview:
        """The body of a message, where it lies in ``payload``."""
        return self.payload[int(self.starts[row]) : int(self.ends[row])]

    def bodies(self) -> list[bytes]:
        """All bodies, copied."""
        payload = self.payload.tobytes()
        return [payload[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def messages(self) -> list[Message]:
        """What ``poll`` gives of it. Raises ``InvalidBatch`` for a header that cannot be read."""
        rows = zip(
            self.queues.tolist(),
            self.offsets.tolist(),
            self.bodies(),
            self.headers_of,
            self.stored_ms.tolist(),
            self.priorities.tolist(),
            self.expires_ms.tolist(),
            self.deletes.tolist(),
            self.subpriorities.tolist(),
            strict=True,
        )
        topic, topic_id, names = self.topic, self.topic_id, self.names
        made: list[Message] = []
        for queue, offset, body, header, stored_ms, priority, expires_ms, delete, subpriority in rows:
            key, tag, properties, headers, kind = header
            own = dict(properties) if properties else NO_PROPERTIES
            fields = (
                *(topic, queue, offset, topic_id, body, key, tag, priority, own),
                *(stored_ms, headers, delete, kind, expires_ms or None, subpriority),
            )
            made.append(make_message(*fields) if names is None else NamedMessage(*fields, names[queue]))
        return made

    def next_offsets(self) -> Iterator[tuple[int, int]]:
        """Of each queue in it, and what is one behind its last message here."""
        queues, last = np.unique(self.queues[::-1], return_index=True)
        yield from zip(queues.tolist(), (self.offsets[::-1][last] + 1).tolist(), strict=True)

    def copy(self) -> MessageBatch:
        """The same with a payload that holds its messages alone."""
        heads, ends = self.heads.tolist(), self.ends.tolist()
        payload = b"".join([self.payload[head:end] for head, end in zip(heads, ends, strict=True)])
        new_ends = np.cumsum(self.ends - self.heads)
        shift = new_ends - self.ends
        columns = {name: getattr(self, name).copy() for name in _COLUMNS}
        columns |= {"heads": self.heads + shift, "starts": self.starts + shift, "ends": new_ends}
        columns = {name: _read_only(column) for name, column in columns.items()}
        return MessageBatch(self.topic, self.topic_id, memoryview(payload), **columns, names=self.names)

    def __reduce__(self) -> tuple[Any, ...]:
        own = self.copy()
        columns = tuple(getattr(own, name) for name in _COLUMNS)
        names = None if self.names is None else {queue: self.names[queue] for queue in set(self.queues.tolist())}
        return _unpickled, (self.topic, self.topic_id, own.payload.tobytes(), columns, names)

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table``: topic, queue, offset, stored_ms, priority, subpriority, key, tag, type, body; of a named
        topic queue_name as well.

        Bodies stay where they are, unless headers lie between them. Keys are bytes. Raises ``ImportError`` without
        pyarrow, and ``InvalidBatch``.
        """
        import pyarrow as pa

        keys = [key.encode() if isinstance(key, str) else key for key in self.keys]
        names = {} if self.names is None else {"queue_name": pa.array(self.queue_names, pa.string())}
        return pa.table(
            {
                "topic": pa.repeat(self.topic, len(self)),
                "queue": pa.array(self.queues),
                "offset": pa.array(self.offsets),
                "stored_ms": pa.array(self.stored_ms),
                "priority": pa.array(self.priorities),
                "subpriority": pa.array(self.subpriorities),
                "key": pa.array(keys, pa.binary()),
                "tag": pa.array(self.tags, pa.string()),
                "type": pa.array(self.types, pa.string()),
                "body": self._arrow_bodies(pa),
                **names,
            }
        )

    def _arrow_bodies(self, pa: Any) -> Any:
        kind = pa.large_binary()
        cuts = np.flatnonzero(self.starts[1:] != self.ends[:-1]) + 1
        if not len(self) or len(cuts) >= _MOST_RUNS:
            return pa.array(self.bodies(), kind)
        payload, runs = pa.py_buffer(self.payload), []
        for first, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(self)], strict=True):
            places = np.concatenate((self.starts[first : first + 1], self.ends[first:end]))
            runs.append(pa.LargeBinaryArray.from_buffers(kind, end - first, [None, pa.py_buffer(places), payload]))
        return pa.chunked_array(runs, kind)


_COLUMNS = (
    *("queues", "offsets", "stored_ms", "priorities", "subpriorities", "expires_ms", "deletes"),
    *("heads", "starts", "ends"),
)


def batch_of(
    batches: Sequence[RecordBatch],
    topic: Topic,
    spans: Mapping[int, tuple[int, int]],
    *,
    names: Mapping[int, str] | None = None,
    picked: MessageFilter | None = None,
) -> MessageBatch:
    """What lies of ``topic`` in ``spans`` of its queues, from batches of one answer, in their order.

    Raises ``InvalidBatch`` where lengths do not add up, and for an unreadable header where words are picked by.
    """
    payload, bases = _payload_of(batches)
    columns = _rows_of(batches, bases, topic.id) if batches else dict.fromkeys(_COLUMNS, np.zeros(0, np.int64))
    keep = _inside(columns["queues"], columns["offsets"], spans)
    if not keep.all():
        columns = {name: column[keep] for name, column in columns.items()}
    columns["deletes"] = columns["deletes"] != 0
    columns = {name: _read_only(column) for name, column in columns.items()}
    found = MessageBatch(topic.name, topic.id, payload, **columns, names=names)
    if picked is None or not (picked.tags or picked.types):
        return found
    passes = [
        (not picked.tags or header.tag in picked.tags) and (not picked.types or header.type in picked.types)
        for header in found.headers_of
    ]
    return found[np.array(passes, bool)]


def _payload_of(batches: Sequence[RecordBatch]) -> tuple[memoryview, list[int]]:
    """One stretch of bytes that holds the payloads, and where each begins: the answer itself, if it can be."""
    if batches and all(batch.codec is Codec.NONE for batch in batches):
        # A batch's buffer goes from its begin to the end of the answer.
        answer = memoryview(batches[0].buffer.obj)
        size = len(answer)
        return answer, [size - len(each.buffer) + each.total_bytes - len(each.payload) for each in batches]
    bases, position = [], 0
    for batch in batches:
        bases.append(position)
        position += len(batch.payload)
    return memoryview(b"".join([batch.payload for batch in batches])), bases


def _rows_of(batches: Sequence[RecordBatch], bases: Sequence[int], topic_id: int) -> dict[str, NDArray[Any]]:
    """The columns of the messages of this topic; those of a batch lie from its base on."""
    lengths, header_lengths = column_array(batches, Column.LENGTH), column_array(batches, Column.HEADER_LENGTH)
    counts = np.array([batch.record_count for batch in batches])
    sizes = np.add.reduceat(lengths, np.cumsum(counts) - counts)
    payloads = np.array([len(batch.payload) for batch in batches])
    if (sizes != payloads).any() or (lengths < 0).any():
        raise InvalidBatch(f"the records' lengths do not add up to the payloads of {int(payloads.sum())} bytes")
    if ((header_lengths > lengths) | (header_lengths < 0)).any():
        raise InvalidBatch("a record's header is longer than the record")
    ends = np.cumsum(lengths) + np.repeat(np.array(bases) - (np.cumsum(sizes) - sizes), counts)
    heads = ends - lengths
    flags = column_array(batches, Column.FLAGS)
    priorities, subpriorities = split_priority(column_array(batches, Column.PRIORITY))
    columns = {
        "queues": column_array(batches, Column.QUEUE),
        "offsets": column_array(batches, Column.OFFSET),
        "stored_ms": column_array(batches, Column.STORED_MS),
        "priorities": priorities,
        "subpriorities": subpriorities,
        "expires_ms": column_array(batches, Column.EXPIRES_MS),
        "deletes": flags & int(Flag.DELETE),
        "heads": heads,
        "starts": heads + header_lengths,
        "ends": ends,
    }
    keep = (flags & _NOT_A_MESSAGE) == 0
    mixed = np.array([Column.TOPIC in batch.directory for batch in batches])
    if mixed.any():
        keep &= (column_array(batches, Column.TOPIC) == topic_id) | ~np.repeat(mixed, counts)
    return columns if keep.all() else {name: column[keep] for name, column in columns.items()}


def column_array(batches: Sequence[RecordBatch], column: int) -> NDArray[Any]:
    """All values of a column in one batch or more, as int64; zeros where it is absent."""
    counts = [batch.record_count for batch in batches]
    entries = [batch.directory.get(column, _ABSENT) for batch in batches]
    least = np.array([base for _, _, base in entries], np.uint64).view(np.int64)
    values: NDArray[Any] = np.repeat(least, counts)  # what is added wraps around, as the format does
    first = 0
    for batch, count, (position, width, _) in zip(batches, counts, entries, strict=True):
        if width:
            deltas = np.frombuffer(batch.buffer, f"<u{width}", count, position)
            values[first : first + count] += deltas.view("<i8") if width == 8 else deltas
        first += count
    return values


def _inside(queues: NDArray[Any], offsets: NDArray[Any], spans: Mapping[int, tuple[int, int]]) -> NDArray[Any]:
    """Which rows lie in the span of their queue."""
    if not spans or not len(queues):
        return np.zeros(len(queues), bool)
    known = np.fromiter(spans, np.int64, len(spans))
    bounds = np.array(list(spans.values()), np.int64)
    if len(spans) > 1:
        order = np.argsort(known)
        known, bounds = known[order], bounds[order]
    places = np.minimum(np.searchsorted(known, queues), len(known) - 1)
    found = bounds[places]
    inside: NDArray[Any] = (known[places] == queues) & (found[:, 0] <= offsets) & (offsets < found[:, 1])
    return inside


def _read_only(column: NDArray[Any]) -> NDArray[Any]:
    column.flags.writeable = False
    return column


def _unpickled(
    topic: str, topic_id: int, payload: bytes, columns: Sequence[NDArray[Any]], names: Mapping[int, str] | None
) -> MessageBatch:
    named = {name: _read_only(column) for name, column in zip(_COLUMNS, columns, strict=True)}
    return MessageBatch(topic, topic_id, memoryview(payload), **named, names=names)
