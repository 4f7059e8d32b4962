"""Writing rows so that a repeated task stores nothing twice.

A *writer* is named by (query, batch, partition): the same name and the same rows in the same order give the same
record batches, byte for byte, under the same producer ids and sequences, and the broker answers a repeat with the
first answer. For that the cuts between record batches depend on the rows alone, never on how they arrive.

The broker remembers the last ``PRODUCER_WINDOW`` batches of a producer, each by a fingerprint. So a writer takes a new
producer id after as many batches of a shard: then every repeat is compared with what was stored. Rows that came in
another order this time are thereby found out (``InputChanged``) instead of being lost in silence, as they would be were
sequence numbers trusted alone.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from lsmq.batch_builder import Codec
from lsmq.errors import (
    LsmqError,
    OutOfOrderSequence,
    SequenceReused,
    StaleSequence,
    Unavailable,
    UnknownProducer,
)
from lsmq.queue_names import check_queue_name, queue_slot
from lsmq.topics import Topic, most_at_once, most_of_a_queue
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.encode import RecordRows, check_text, encode, encode_named, joined, to_rows
from lsmq_pipeline.errors import InputChanged, SchemaMismatch
from lsmq_pipeline.options import WriteOptions

I64 = NDArray[np.int64]

PRODUCER_WINDOW = 8  # batches that a broker remembers of a producer
#: A task keeps so much waiting for its record batches to become full, of all topics and shards, and so much under way.
MAX_WAITING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class WriterName:
    """Who writes: the same for every attempt of a task, another for every other task."""

    query: str
    batch: int
    partition: int

    def producer_id(self, topic: Topic, shard: int, group: int) -> int:
        """Of the ``group``-th run of batches to a shard: 63 bits, never 0."""
        return self._id(f"{topic.id}\0{shard}\0{group}")

    def pin_id(self, topic: Topic) -> int:
        """Of a producer that sends nothing: under it stands how many queues rows are spread over."""
        return self._id(f"{topic.id}\0queues")

    def _id(self, what: str) -> int:
        text = f"{self.query}\0{self.batch}\0{self.partition}\0{what}"
        return (xxhash.xxh3_64_intdigest(text.encode()) >> 1) or 1

    def first_queue(self, queues: int) -> int:
        """Where rows without queue and key begin to go, of so many."""
        return xxhash.xxh3_64_intdigest(f"{self.query}\0{self.batch}\0{self.partition}".encode()) % queues


@dataclass(slots=True)
class Written:
    """What a task wrote: for the commit message, and for those who ask."""

    messages: int = 0
    size_bytes: int = 0
    batches: int = 0
    repeats: int = 0


@dataclass(slots=True)
class _Lane:
    """Rows on their way to one shard of a topic; at most one batch of them under way."""

    topic: Topic
    shard: int
    waiting: list[RecordRows] = field(default_factory=list)
    waiting_count: int = 0
    waiting_bytes: int = 0
    batches: int = 0
    flying: _Flying | None = None


@dataclass(frozen=True, slots=True)
class _Flying:
    """A batch under way."""

    stored: Future[bool]
    messages: int
    size_bytes: int
    packed_bytes: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one topic, of a batch that is written: where they stand in it, and the shard that each goes to."""

    topic: Topic
    places: I64
    rows: RecordRows
    shards: I64


class TopicWriter:
    """Writes Arrow batches of one task. Not thread-safe."""

    def __init__(self, cluster: PipelineClient, options: WriteOptions, name: WriterName) -> None:
        self._cluster = cluster
        self._options = options
        self._name = name
        self._codec = Codec.ZSTD if options.compression == "zstd" else Codec.NONE
        self._topics: dict[str, Topic] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._waiting_bytes = 0
        self._flying: dict[tuple[str, int], _Lane] = {}  # those with a batch under way, in order of time
        self._flying_bytes = 0
        self._keyless: dict[str, int] = {}
        self._spread: dict[str, int] = {}  # over so many queues of a topic
        self.written = Written()

    def write(self, batch: Any) -> None:
        """Take a batch of rows; returns when at most one record batch a shard is not stored yet.

        What waits is bounded over all shards: the row that is too much has the shard with the most waiting send it.
        Which row that is depends on the rows before it alone, as all cuts do.
        """
        if batch.num_rows == 0:
            return
        check_text(batch)
        parts = self._parts(batch)
        sizes = np.empty(batch.num_rows, np.int64)
        for part in parts:
            sizes[part.places] = _sizes(part.rows)
        begin = 0
        while begin < len(sizes):
            room = MAX_WAITING_BYTES - self._waiting_bytes
            end = min(begin + int(np.searchsorted(np.cumsum(sizes[begin:]), room, side="right")) + 1, len(sizes))
            for part in parts:
                self._add(part, begin, end)
            while self._waiting_bytes > MAX_WAITING_BYTES:
                _, largest = max(self._lanes.items(), key=lambda item: (item[1].waiting_bytes, item[0]))
                self._cut(largest, last=True)
            begin = end

    def _parts(self, batch: Any) -> list[_Part]:
        if self._options.topic is not None:
            return [self._part(self._topic(self._options.topic), batch, np.arange(batch.num_rows))]
        encoded = batch.column("topic").cast(pa.string()).dictionary_encode()
        if encoded.null_count:
            raise SchemaMismatch(
                "column 'topic' has a null; say where each row goes, or use option topic", column="topic"
            )
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        return [
            self._part(self._topic(name), batch, np.flatnonzero(indices == index))
            for index, name in enumerate(encoded.dictionary.to_pylist())
        ]

    def finish(self) -> Written:
        """Write what is left; returns when all is stored."""
        for lane in self._lanes.values():
            self._cut(lane, last=True)
        for lane in self._lanes.values():
            self._settle(lane)
        return self.written

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self._cluster.topic(name)
        return topic

    def _part(self, topic: Topic, batch: Any, places: I64) -> _Part:
        if len(places) < batch.num_rows:
            batch = batch.take(pa.array(places))
        rows = to_rows(batch, max_message_bytes=topic.max_message_bytes)
        if topic.named:
            rows.queues = _slots(topic, rows.names)
        else:
            _check_numbered(topic, rows.names)
            self._choose_queues(topic, rows)
        firsts = np.array([route.first for route in topic.routes], np.int64)
        owners = np.searchsorted(firsts, rows.queues, side="right") - 1
        # By shards, not by routes, of which several may be of one: rows of a lane stay in the order in which they came.
        return _Part(topic, places, rows, np.array([route.shard for route in topic.routes], np.int64)[owners])

    def _add(self, part: _Part, begin: int, end: int) -> None:
        """Put those rows in their lanes that stand at ``[begin, end)``, and send what is full."""
        first, last = np.searchsorted(part.places, (begin, end)).tolist()
        rows, shards = part.rows.slice(first, last), part.shards[first:last]
        for shard in np.unique(shards).tolist():
            chosen = np.flatnonzero(shards == shard)
            own = rows if len(chosen) == len(rows) else rows.take(chosen)
            lane = self._lanes.setdefault((part.topic.name, shard), _Lane(part.topic, shard))
            lane.waiting.append(own)
            lane.waiting_count += len(own)
            size = int(_sizes(own).sum())
            lane.waiting_bytes += size
            self._waiting_bytes += size
            self._cut(lane, last=False)

    def _choose_queues(self, topic: Topic, rows: RecordRows) -> None:
        """Rows that name no queue: by key or id, as producers do; without, a batch's worth to each queue in turn."""
        if int(rows.queues.max()) >= topic.queues:
            topic.check_queue(int(rows.queues.max()))
        free = rows.queues < 0
        if not free.any():
            return
        queues = self._spread_over(topic)
        rows.queues = rows.queues.copy()
        # A message's id decides by the half that :func:`lsmq.messages.dedupe_queue` goes by.
        hashes = np.where(rows.key_hashes != 0, rows.key_hashes, rows.dedupe_low)
        decided = free & (hashes != 0)
        rows.queues[decided] = (hashes[decided] % np.uint64(min(topic.key_queues, queues))).astype(np.int64)
        keyless = np.flatnonzero(free & (hashes == 0))
        if len(keyless):
            seen = self._keyless.get(topic.name, 0)
            turns = (seen + np.arange(len(keyless))) // self._options.batch_messages
            rows.queues[keyless] = (self._name.first_queue(queues) + turns) % queues
            self._keyless[topic.name] = seen + len(keyless)

    def _spread_over(self, topic: Topic) -> int:
        """How many queues rows that name none are spread over: as many as there were when the task was tried first.

        Else what an attempt had stored before the topic grew would be stored once more, elsewhere. Where messages may
        be lost that were acknowledged (``ack=leader``) nothing is remembered. Raises ``Unavailable`` where there were
        more than are known of now.
        """
        found = self._spread.get(topic.name)
        if found is None:
            found = topic.queues
            if (self._options.ack or topic.options.get("ack")) != "leader":
                found = self._cluster.pinned(topic, self._name.pin_id(topic), found)
            if found > topic.queues:
                raise Unavailable(
                    f"topic {topic.name!r} has {topic.queues} queues, and a task's rows were spread over {found} when "
                    "it was tried first: the node that was asked has not heard yet that the topic grew; try again",
                    topic=topic.name,
                )
            self._spread[topic.name] = found
        return found

    def _cut(self, lane: _Lane, *, last: bool) -> None:
        """Send full batches. Where one ends depends on its rows, the topic's limits and the nodes' settings alone."""
        most_messages, most_bytes = most_at_once(lane.topic, self._options.batch_messages, self._options.batch_bytes)
        most_messages = min(most_messages, most_of_a_queue(lane.topic) or most_messages)
        while lane.waiting_count >= most_messages or lane.waiting_bytes >= most_bytes or last:
            if lane.waiting_count == 0:
                return
            rows = joined(lane.waiting)
            ends = np.cumsum(_sizes(rows)[:most_messages])
            # Up to the row that makes it full to the byte: whether empty ones follow may not be known yet.
            full = int(np.searchsorted(ends, most_bytes))
            count = max(1, full + (full < len(ends) and int(ends[full]) == most_bytes))
            head, rest = (rows, None) if count == len(rows) else (rows.slice(0, count), rows.slice(count, len(rows)))
            lane.waiting = [] if rest is None else [rest]
            lane.waiting_count -= len(head)
            size = int(_sizes(head).sum())
            lane.waiting_bytes -= size
            self._waiting_bytes -= size
            self._send(lane, head)

    def _send(self, lane: _Lane, rows: RecordRows) -> None:
        self._settle(lane)
        group, sequence = divmod(lane.batches, PRODUCER_WINDOW)
        producer_id = self._name.producer_id(lane.topic, lane.shard, group)
        pack = encode_named if lane.topic.named else encode
        packed = pack(rows, producer_id=producer_id, sequence=sequence, codec=self._codec)
        options = self._options
        stored = self._cluster.send(lane.topic, lane.shard, packed, options.ack, options.flush)
        lane.flying = _Flying(stored, len(rows), int(rows.lengths.sum()), len(packed))
        lane.batches += 1
        self._flying[lane.topic.name, lane.shard] = lane
        self._flying_bytes += len(packed)
        while self._flying_bytes > MAX_WAITING_BYTES:
            self._settle(next(iter(self._flying.values())))

    def _settle(self, lane: _Lane) -> None:
        """Wait for the batch under way."""
        if lane.flying is None:
            return
        flying, lane.flying = lane.flying, None
        del self._flying[lane.topic.name, lane.shard]
        self._flying_bytes -= flying.packed_bytes
        try:
            repeated = flying.stored.result()
        except SequenceReused as error:
            raise self._changed(lane, error) from error
        except (StaleSequence, OutOfOrderSequence, UnknownProducer) as error:
            raise self._lost_identity(lane, error) from error
        self.written.messages += flying.messages
        self.written.size_bytes += flying.size_bytes
        self.written.batches += 1
        self.written.repeats += repeated

    def _lost_identity(self, lane: _Lane, error: LsmqError) -> LsmqError:
        what = f"a task's writes to shard {lane.shard} of topic {lane.topic.name!r}"
        if isinstance(error, StaleSequence):
            return InputChanged(
                f"{what} are stored already, in another number of batches: this attempt came with other rows, or other "
                f"batch options, than the one before ({error.message})"
            )
        return LsmqError(
            f"{what} cannot go on: the shard has lost what it knew of them, which asynchronous flush and ack=leader "
            f"allow; rows of this batch may be stored twice when it is tried again ({error.message})"
        )

    def _changed(self, lane: _Lane, error: SequenceReused) -> InputChanged:
        return InputChanged(
            f"a repeated task wants to write to shard {lane.shard} of topic {lane.topic.name!r} what is not what its "
            f"first attempt stored: other rows, or another order ({error.message}). Nothing was stored twice. "
            "Rows must come in the same order each time: after a shuffle, sort them (sortWithinPartitions) first",
            topic=lane.topic.name,
        )


def _sizes(rows: RecordRows) -> I64:
    """What each row takes of a batch: its record, and the name of its queue, which is counted as often as it comes."""
    if rows.names.null_count == len(rows):
        return rows.lengths
    names: I64 = pc.binary_length(rows.names).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return rows.lengths + names


def _slots(topic: Topic, names: Any) -> I64:
    """The slot of each row's queue. Raises ``SchemaMismatch`` for a row that names none, ``InvalidQueueName``."""
    if names.null_count:
        raise SchemaMismatch(
            f"topic {topic.name!r} has queues with names: each row needs one in column 'queue_name'",
            column="queue_name",
        )
    found = names.dictionary_encode()
    slots = np.array([queue_slot(check_queue_name(name)) for name in found.dictionary.to_pylist()], np.int64)
    placed: I64 = slots[found.indices.to_numpy(zero_copy_only=False)]
    return placed


def _check_numbered(topic: Topic, names: Any) -> None:
    """Raises ``SchemaMismatch`` for rows that name queues which have numbers."""
    if names.null_count < len(names):
        raise SchemaMismatch(
            f"column 'queue_name' has names, and the queues of topic {topic.name!r} have numbers: take column 'queue'",
            column="queue_name",
        )
