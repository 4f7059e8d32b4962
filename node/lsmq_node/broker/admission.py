"""What a node takes: one function for each kind of request, whichever protocol it came by.

Everything stands here that refuses a request for what it asks (counts, sizes, what a batch may hold), or gives it
less than it asked for, before anything is done. What a request takes in memory is the budget's (:mod:`.budget`); what
a shard cannot do now is the shard's to say. Rights, one day, are asked for here as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from lsmq.errors import (
    InvalidBatch,
    InvalidRequest,
    LsmqError,
    MessageTooLarge,
    ShuttingDown,
    TooManyMessages,
    TooManyQueues,
    TooManyTopics,
    UnknownQueue,
)
from lsmq.messages import check_not_later
from lsmq.queue_names import NUMBER_BITS
from lsmq.record_batch import HEADER, HEADER_BYTES, MAX_DELAY_MS, MAX_TTL_MS, Codec, Column, RecordBatch
from lsmq_node.config import NodeConfig
from lsmq_node.storage import StoredTopic, TopicOptions
from lsmq_node.storage.batch_checks import check_obeyed
from lsmq_node.storage.columns import DTYPES, decode_column
from lsmq_node.storage.producers import BROKER_PRODUCERS

from .placement import number_end
from .requests import DeleteRequest, FetchRequest, ProduceRequest, ReadRequest
from .topology import Topology

#: Shards that a named topic can lie on: their place is in 8 bits of a queue's number.
MAX_RANGES: Final = 1 << 32 - NUMBER_BITS

_DAY_MS = 86_400_000
_SENT_COLUMNS = frozenset(
    {
        Column.QUEUE,
        Column.LENGTH,
        Column.HEADER_LENGTH,
        Column.KEY_HASH,
        Column.TAG_HASH,
        Column.TYPE_HASH,
        Column.PRIORITY,
        Column.DUE_MS,
        Column.EXPIRES_MS,
        Column.FLAGS,
        Column.DEDUPE_HIGH,
        Column.DEDUPE_LOW,
        Column.PRODUCER_POSITION,
    }
)
_MOST: dict[int, int] = {
    column: int(np.iinfo(DTYPES[column]).max)
    for column in _SENT_COLUMNS
    if DTYPES[column].itemsize < 8 or column is Column.PRODUCER_POSITION  # Below 0 there is none.
}

Reading = TypeVar("Reading", ReadRequest, FetchRequest)


class Admission:
    """Loop thread only, but for :meth:`batch`."""

    def __init__(self, config: NodeConfig, topology: Topology) -> None:
        self._config = config
        self._topology = topology
        self.stopping = False

    # Topics and queues

    def create_topic(self, queues: int, options: TopicOptions, *, is_new: bool) -> None:
        """Raises ``TooManyTopics``, ``TooManyQueues``, ``InvalidRequest``, ``ShuttingDown``."""
        self.write()
        self.topic_options(queues, options)
        if options.named and self._topology.shard_count > MAX_RANGES:
            raise InvalidRequest(
                f"there are {self._topology.shard_count} shards; a topic with named queues can lie on {MAX_RANGES}. "
                "Make one with a number of queues",
                field="queues",
                limit=MAX_RANGES,
            )
        if is_new and (there := self._topology.topics.count()) >= self._config.max_topics:
            raise TooManyTopics(
                f"there are {there} topics, the limit is {self._config.max_topics} (max_topics); delete some, or "
                "give a topic more queues",
                limit=self._config.max_topics,
            )
        if is_new and not options.named:
            self.more_queues(queues)

    def more_queues(self, queues: int) -> None:
        """Whether there may be so many more beside those of all topics. Raises ``TooManyQueues``."""
        there, limit = self._topology.topics.queue_count(), self._config.max_queues
        if there + queues > limit:
            raise TooManyQueues(
                f"all topics together have {there} queues, and {queues} more are over the limit of {limit} "
                "(max_queues); delete topics, make them with fewer queues, or raise it",
                setting="max_queues",
                limit=limit,
                sent=False,
            )

    def queues_of_topic(self, topic: StoredTopic, queues: int) -> None:
        """Whether a topic may have so many. Raises ``InvalidRequest``."""
        limit = self._config.max_queues_per_topic
        if queues > limit:
            raise InvalidRequest(
                f"topic {topic.name!r} would have {queues} queues; the node's limit is {limit} (max_queues_per_topic); "
                "raise that",
                topic=topic.name,
                limit=limit,
            )

    def topic_options(self, queues: int, options: TopicOptions) -> None:
        """Whether a topic of so many queues may have these options. Raises ``InvalidRequest``."""
        if options.key_queues is not None and options.key_queues > queues:
            raise InvalidRequest(
                f"key_queues is {options.key_queues}, and there are only {queues} queues; take at most as many",
                field="key_queues",
                limit=queues,
            )
        limit = self._config.max_message_bytes
        if options.max_message_bytes is not None and options.max_message_bytes > limit:
            raise InvalidRequest(
                f"max_message_bytes is {options.max_message_bytes}; the node's limit is {limit}; raise that",
                field="max_message_bytes",
                limit=limit,
            )

    def queue(self, topic: StoredTopic, queue: int) -> None:
        """Raises ``UnknownQueue`` naming the queues there are."""
        if topic.named:
            if not 0 <= queue < number_end(topic, self._topology.home_shards):
                raise UnknownQueue(
                    f"topic {topic.name!r} has no queue with the number {queue}; its queues go by names",
                    topic=topic.name,
                    queue=queue,
                )
        elif not 0 <= queue < topic.queues:
            raise UnknownQueue(
                f"topic {topic.name!r} has no queue {queue}; its queues are 0 to {topic.queues - 1}",
                topic=topic.name,
                queue=queue,
                queues=topic.queues,
            )

    def queues(self, topic: StoredTopic, queues: NDArray[Any]) -> None:
        """:meth:`queue` of many; the first bad one is named."""
        end = number_end(topic, self._topology.home_shards) if topic.named else topic.queues
        if len(queues) and (int(queues.max()) >= end or int(queues.min()) < 0):
            self.queue(topic, int(queues[(queues < 0) | (queues >= end)][0]))

    def queue_count(self, count: int) -> None:
        """Raises ``InvalidRequest``: so many queues cannot be named in a request."""
        limit = self._config.max_queues_per_request
        if count > limit:
            raise InvalidRequest(
                f"queues names {count} queues, the limit is {limit} a request (max_queues_per_request); ask in parts",
                field="queues",
                limit=limit,
            )

    # Writes

    def write(self) -> None:
        """Whatever changes something. Raises ``ShuttingDown``."""
        if self.stopping:
            raise ShuttingDown("the node is stopping; send this to another node, or again when it is back")

    def produce(self, request: ProduceRequest) -> None:
        """Its batches were checked as they were made, by :meth:`batch` or :meth:`message_count`.

        Raises ``InvalidRequest`` for deduplication ids that the topic does not take, and for moments that are over or
        too far away by the time of the shard, ``ShuttingDown``.
        """
        self.write()
        for shard, batch in request.batches:
            if Column.DUE_MS in batch.directory:
                self._due_times(column_of(batch, Column.DUE_MS), self.present_ms(shard))
            if Column.EXPIRES_MS in batch.directory:
                self._expiry_times(column_of(batch, Column.EXPIRES_MS), self.present_ms(shard))
            if Column.DEDUPE_LOW in batch.directory or Column.DEDUPE_HIGH in batch.directory:
                self.dedupe_ids(request.topic)
                if Column.DUE_MS in batch.directory:
                    ids = column_of(batch, Column.DEDUPE_HIGH) | column_of(batch, Column.DEDUPE_LOW)
                    check_not_later(int(column_of(batch, Column.DUE_MS)[ids != 0].max(initial=0)))

    def dedupe_ids(self, topic: StoredTopic, field: str = "dedupe_id") -> None:
        """Raises ``InvalidRequest`` where messages of the topic may have no deduplication id."""
        if topic.options.dedupe_window_ms is None:
            raise InvalidRequest(
                f"{field}: topic {topic.name!r} has no dedupe_window_ms, so no id would be remembered; make it with "
                "one, such as 'forever', or leave the id out",
                field=field,
                topic=topic.name,
            )

    def delete(self, request: DeleteRequest) -> None:
        """Raises ``InvalidRequest``, ``UnknownQueue``, ``ShuttingDown``."""
        self.write()
        limit = self._config.max_messages_per_request
        if len(request.queues) != len(request.offsets) or len(request.queues) > limit:
            raise InvalidRequest(
                f"queues has {len(request.queues)} items and offsets {len(request.offsets)}; each queue needs its "
                f"offset, and {limit} is the limit a request",
                field="offsets",
                limit=limit,
            )
        self.queues(request.topic, request.queues)

    def message_count(self, count: int, what: str) -> None:
        """Raises ``TooManyMessages``."""
        limit = self._config.max_messages_per_request
        if count > limit:
            raise TooManyMessages(
                f"{what} {count} messages, the limit is {limit} a request (max_messages_per_request); "
                "send them in parts",
                field="messages",
                limit=limit,
                count=count,
            )

    def max_message_bytes(self, topic: StoredTopic) -> int:
        """The most bytes a message of the topic may have."""
        own, limit = topic.options.max_message_bytes, self._config.max_message_bytes
        return limit if own is None else min(own, limit)

    def present_ms(self, shard: int) -> int:
        """The shard's time, by which moments that users give are to come or over: what its leader would stamp now.

        Where it is not at this node, as far as this node can tell: its leader looks again.
        """
        try:
            return self._topology.port(shard).store.time.present_ms
        except LsmqError:
            return self._topology.clock.now_ms()

    def _due_times(self, values: NDArray[np.int64], now_ms: int) -> None:
        """What a batch says of when its messages come. Raises ``InvalidRequest``."""
        latest = now_ms + MAX_DELAY_MS
        if len(values) and (int(values.max()) > latest or int(values.min()) < 0):
            raise InvalidRequest(
                f"a message is to be delivered at {int(values.max())} ms since 1970; a delay is {MAX_DELAY_MS} ms at "
                "most, ten years, and none is negative",
                field="deliver_at_ms",
                limit=latest,
            )

    def _expiry_times(self, values: NDArray[np.int64], now_ms: int) -> None:
        """What a batch says of when its messages expire. Raises ``InvalidRequest``.

        A moment that is over since less than a day may have been to come when it was sent: that message has expired.
        """
        moments = values[values > MAX_TTL_MS]
        earliest, latest = now_ms - _DAY_MS, now_ms + MAX_TTL_MS + _DAY_MS
        if len(moments) and (int(moments.min()) < earliest or int(moments.max()) > latest):
            wrong = int(moments.min()) if int(moments.min()) < earliest else int(moments.max())
            raise InvalidRequest(
                f"a message is to expire at {wrong} ms since 1970; it must be to come, within ten years, and a time to "
                f"live is {MAX_TTL_MS} ms at most",
                field="expires_at_ms",
                limit=now_ms + MAX_TTL_MS,
            )

    def message_sizes(self, topic: StoredTopic, batch: RecordBatch) -> None:
        """What the shard would refuse, for a batch that is kept before it gets there.

        Raises ``MessageTooLarge``, ``InvalidRequest``.
        """
        longest, limit = int(column_of(batch, Column.LENGTH).max()), self.max_message_bytes(topic)
        if longest > limit:
            raise MessageTooLarge(
                f"a message of {longest} bytes (body, key, tag and properties) is over the limit of {limit} of topic "
                f"{topic.name!r}; send it in parts",
                limit=limit,
                size=longest,
            )

    def unpacked_bytes(self, body: bytes) -> int:
        """What the payload of a packed batch takes once it is decompressed, which is known before that.

        Raises ``InvalidBatch``, ``TooManyMessages``, ``InvalidRequest``.
        """
        if len(body) < HEADER_BYTES:
            raise InvalidBatch(f"the body has {len(body)} bytes, too few for a record batch ({HEADER_BYTES})")
        _, total, _, codec, _, record_count, payload_bytes, raw_bytes, *_ = HEADER.unpack_from(body)
        if total != len(body):
            raise InvalidBatch(f"the batch says {total} bytes, the body has {len(body)}; send one batch a request")
        if record_count == 0:
            raise InvalidBatch("the batch holds no records; send at least one")
        self.message_count(record_count, "the batch holds")
        if codec == Codec.ZSTD and payload_bytes <= total:
            raw_bytes = max(raw_bytes, _frame_bytes(body[total - payload_bytes : total]))
        limit = self._config.max_request_bytes
        if raw_bytes > limit:
            raise InvalidRequest(
                f"the batch holds {raw_bytes} bytes after decompression, the limit is {limit} "
                "(max_request_bytes); send smaller batches",
                limit=limit,
            )
        return int(raw_bytes)

    def batches(self, bodies: Iterable[bytes]) -> None:
        """Batches that are sent together, each with names before it or without: whether a request may have so many
        messages. What is wrong with one alone is said as it is unpacked.

        Raises ``TooManyMessages``.
        """
        most = self._config.max_messages_per_request
        counts = map(_records_said, bodies)
        self.message_count(sum(count for count in counts if count <= most), "the batches hold")

    def named_batch(self, body: bytes) -> tuple[bytes, bytes]:
        """Of a batch whose queues are named beside it, the names, joined by NUL, and the batch as it is packed.

        Raises ``InvalidBatch``, ``InvalidRequest``.
        """
        end = 4 + int.from_bytes(body[:4], "little")
        if not 4 < end < len(body):
            raise InvalidBatch(
                f"the body has {len(body)} bytes, and says that its names end at {end}; it is the length of the names "
                "(4), the names joined by NUL, and a record batch"
            )
        names = body[4:end]
        count = int(np.count_nonzero(np.frombuffer(names, np.uint8) == 0)) + 1
        limit = self._config.max_queues_per_request
        if count > limit:
            raise InvalidRequest(
                f"the batch names {count} queues, the limit is {limit} a request (max_queues_per_request); send it in "
                "parts",
                field="queue",
                limit=limit,
            )
        return names, body[end:]

    def batch(self, body: bytes) -> RecordBatch:
        """The batch a producer packed, whole and within limits, its payload decompressed. In any thread.

        Raises as :meth:`unpacked_bytes`, which is asked first.
        """
        self.unpacked_bytes(body)
        batch = RecordBatch(body, source="request")
        if batch.producer_id >= BROKER_PRODUCERS:
            raise InvalidBatch(f"producer id {batch.producer_id} is the broker's; choose one below 2**63")
        check_obeyed(batch)
        for column, (position, width, base) in batch.directory.items():
            if column not in _SENT_COLUMNS:
                raise InvalidBatch(f"the batch has column {column}, which a producer cannot send")
            most = _MOST.get(column)
            if most is not None and base + (1 << 8 * width) - 1 > most:
                largest = base + _largest(batch, position, width)
                if largest > most:
                    raise InvalidBatch(
                        f"column {Column(column).name} of the batch has a {largest}; the limit is {most}"
                    )
        return batch

    # Reads

    def read(self, request: ReadRequest) -> ReadRequest:
        """The request with no more than it may have. Raises ``UnknownQueue``."""
        self.queue(request.topic, request.queue)
        return self._bounded(request)

    def fetch(self, request: FetchRequest) -> FetchRequest:
        """The request with no more than it may have. Raises ``InvalidRequest``, ``UnknownQueue``."""
        self.queue_count(len(request.queues))
        self.queues(request.topic, request.queues)
        if request.selected is not None:
            self.queue_count(len(request.selected.numbers))
        return self._bounded(request)

    def _bounded(self, request: Reading) -> Reading:
        config = self._config
        most = config.max_messages_per_request, config.max_response_bytes, config.max_wait_ms
        if request.max_records <= most[0] and request.max_bytes <= most[1] and request.wait_ms <= most[2]:
            return request
        return replace(
            request,
            max_records=min(request.max_records, most[0]),
            max_bytes=min(request.max_bytes, most[1]),
            wait_ms=min(request.wait_ms, most[2]),
        )


def column_of(batch: RecordBatch, column: Column) -> NDArray[Any]:
    return decode_column(batch.buffer, batch.directory.get(column), batch.record_count, DTYPES[column])


def _largest(batch: RecordBatch, position: int, width: int) -> int:
    """The largest delta of a column."""
    if not width:
        return 0
    return int(np.frombuffer(batch.buffer, f"<u{width}", batch.record_count, position).max())


def _frame_bytes(payload: bytes) -> int:
    """Bytes a zstd frame says it holds, which decompressing allocates at once."""
    try:
        size = zstandard.frame_content_size(payload)
    except zstandard.ZstdError as error:
        raise InvalidBatch("the batch's payload is not a zstd frame") from error
    if size < 0:
        raise InvalidBatch("the batch's zstd frame does not say its size; compress it in one piece")
    return size


def _records_said(body: bytes) -> int:
    """How many records a batch says it has, with names before it or without; 0 where it is none."""
    count = 0
    for start in (0, 4 + int.from_bytes(body[:4], "little")):
        if len(body) - start >= HEADER_BYTES:
            _, total, _, _, _, record_count, *_ = HEADER.unpack_from(body, start)
            count = max(count, record_count if start + total == len(body) else 0)
    return count
