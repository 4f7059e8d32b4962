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
    flying: tuple[Future[bool], RecordRows] | None = None


class TopicWriter:
    """Writes Arrow batches of one task. Not thread-safe."""

    def __init__(self, cluster: PipelineClient, options: WriteOptions, name: WriterName) -> None:
        self._cluster = cluster
        self._options = options
        self._name = name
        self._codec = Codec.ZSTD if options.compression == "zstd" else Codec.NONE
        self._topics: dict[str, Topic] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._keyless: dict[str, int] = {}
        self._spread: dict[str, int] = {}  # over so many queues of a topic
        self.written = Written()

    def write(self, batch: Any) -> None:
        """Take a batch of rows; returns when at most one record batch a shard is not stored yet."""
        if batch.num_rows == 0:
            return
        check_text(batch)
        if self._options.topic is not None:
            self._write_topic(self._topic(self._options.topic), batch)
            return
        encoded = batch.column("topic").cast(pa.string()).dictionary_encode()
        if encoded.null_count:
            raise SchemaMismatch(
                "column 'topic' has a null; say where each row goes, or use option topic", column="topic"
            )
        places = encoded.indices.to_numpy(zero_copy_only=False)
        for place, name in enumerate(encoded.dictionary.to_pylist()):
            part = batch.take(pa.array(np.flatnonzero(places == place))) if len(encoded.dictionary) > 1 else batch
            self._write_topic(self._topic(name), part)

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

    def _write_topic(self, topic: Topic, batch: Any) -> None:
        rows = to_rows(batch, max_message_bytes=topic.max_message_bytes)
        if topic.named:
            rows.queues = _slots(topic, rows.names)
        else:
            _check_numbered(topic, rows.names)
            self._choose_queues(topic, rows)
        firsts = np.array([route.first for route in topic.routes], np.int64)
        owners = np.searchsorted(firsts, rows.queues, side="right") - 1
        # By shards, not by routes, of which several may be of one: rows of a lane stay in the order in which they came.
        shards = np.array([route.shard for route in topic.routes], np.int64)[owners]
        for shard in np.unique(shards).tolist():
            chosen = np.flatnonzero(shards == shard)
            part = rows if len(chosen) == len(rows) else rows.take(chosen)
            lane = self._lanes.setdefault((topic.name, shard), _Lane(topic, shard))
            lane.waiting.append(part)
            lane.waiting_count += len(part)
            lane.waiting_bytes += int(_sizes(part).sum())
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
            lane.waiting_bytes -= int(_sizes(head).sum())
            self._send(lane, head)

    def _send(self, lane: _Lane, rows: RecordRows) -> None:
        self._settle(lane)
        group, sequence = divmod(lane.batches, PRODUCER_WINDOW)
        producer_id = self._name.producer_id(lane.topic, lane.shard, group)
        pack = encode_named if lane.topic.named else encode
        packed = pack(rows, producer_id=producer_id, sequence=sequence, codec=self._codec)
        options = self._options
        lane.flying = self._cluster.send(lane.topic, lane.shard, packed, options.ack, options.flush), rows
        lane.batches += 1

    def _settle(self, lane: _Lane) -> None:
        """Wait for the batch under way."""
        if lane.flying is None:
            return
        (future, rows), lane.flying = lane.flying, None
        try:
            repeated = future.result()
        except SequenceReused as error:
            raise self._changed(lane, error) from error
        except (StaleSequence, OutOfOrderSequence, UnknownProducer) as error:
            raise self._lost_identity(lane, error) from error
        self.written.messages += len(rows)
        self.written.size_bytes += int(rows.lengths.sum())
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
