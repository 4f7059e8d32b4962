"""Fetching: one long poll under way per node, and a bounded buffer between the network and the application.

A node answers with a *positions* batch, the next offset of every queue that moved, and then the messages.
The messages may come straight from its files, in whole blocks: records below the offset that was asked for,
beyond the new position, or of other queues and topics may be among them, and are passed over. A record of
queue ``q`` counts exactly when it lies in ``[asked, next)`` of ``q``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

from lsmq._keeper import topic_path
from lsmq._positions import QueuePositions
from lsmq._retry import Backoff, Deadline
from lsmq._router import POLL_SILENCE_S, SILENCE_S
from lsmq._transport import BATCHES, MSGPACK
from lsmq.client import Client
from lsmq.errors import LsmqError, OffsetOutOfRange, Unavailable
from lsmq.record_batch import Column, Flag, Message, RecordBatch, decode_header, message_id, split_batches
from lsmq.topics import Topic

OutOfRange = Literal["earliest", "latest", "error"]

MAX_QUEUES_PER_FETCH = 500_000
_NOT_A_MESSAGE = Flag.TOMBSTONE | Flag.POSITION
_IDLE_ANSWER_S = 0.005
_log = logging.getLogger("lsmq")


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What the fetches of a consumer have in common."""

    max_messages: int
    max_bytes: int
    wait_ms: int
    prefetch_bytes: int
    request_timeout_ms: int
    deadline_ms: int


class Restart(Exception):
    """Routes or positions changed: fetch anew from where the positions are."""


class Chunk:
    """One answer's messages. ``spans`` maps each queue to the offsets ``[asked, next)`` it brings."""

    __slots__ = ("_batches", "_topic", "size_bytes", "spans")

    def __init__(
        self, batches: Sequence[RecordBatch], spans: dict[int, tuple[int, int]], size_bytes: int, topic: Topic
    ) -> None:
        self.spans = spans
        self.size_bytes = size_bytes
        self._batches = batches
        self._topic = topic

    def messages(self) -> Iterator[Message]:
        """The messages that count, in the order stored within each queue."""
        spans, topic = self.spans, self._topic
        for batch in self._batches:
            batch.check_lengths()
            payload = batch.payload
            end = 0
            for owner, queue, offset, length, header_length, stored_ms, priority, flags in zip(
                _owners(batch, topic),
                batch.column(Column.QUEUE),
                batch.column(Column.OFFSET),
                batch.column(Column.LENGTH),
                batch.column(Column.HEADER_LENGTH),
                batch.column(Column.STORED_MS),
                batch.column(Column.PRIORITY),
                batch.column(Column.FLAGS),
                strict=True,
            ):
                start, end = end, end + length
                span = spans.get(queue)
                if span is None or not span[0] <= offset < span[1] or owner != topic.id or flags & _NOT_A_MESSAGE:
                    continue
                key, tag, properties = decode_header(payload[start : start + header_length] if header_length else b"")
                yield Message(
                    topic.name,
                    queue,
                    offset,
                    message_id(owner, queue, offset),
                    payload[start + header_length : end].tobytes(),
                    key,
                    tag,
                    priority,
                    properties,
                    stored_ms,
                )

    def is_foreign(self) -> bool:
        """Whether no record is of the topic that was asked for, as when it was made anew under its name."""
        return bool(self._batches) and not any(
            self._topic.id in batch.column(Column.TOPIC) if Column.TOPIC in batch.directory else True
            for batch in self._batches
        )

    def gaps(self) -> list[int]:
        """Queues whose first offset here is not the one that was asked for."""
        unseen = dict(self.spans)
        gaps: list[int] = []
        for batch in self._batches:
            for owner, queue, offset in zip(
                _owners(batch, self._topic),
                batch.column(Column.QUEUE),
                batch.column(Column.OFFSET),
                strict=True,
            ):
                span = unseen.get(queue)
                if span is not None and span[0] <= offset < span[1] and owner == self._topic.id:
                    del unseen[queue]
                    if offset > span[0]:
                        gaps.append(queue)
        return gaps + list(unseen)


def _owners(batch: RecordBatch, topic: Topic) -> Iterable[int]:
    """The topic id of each record. Blocks of a table hold records of several topics."""
    if Column.TOPIC in batch.directory:
        return batch.column(Column.TOPIC)
    return repeat(topic.id, batch.record_count)


class Prefetch:
    """Chunks that wait to be handed out; fetching pauses while they hold ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        self.chunks: deque[Chunk] = deque()
        self.ready = asyncio.Event()
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._space = asyncio.Event()
        self._space.set()

    def put(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.ready.set()
        self.size_bytes += chunk.size_bytes
        if self.size_bytes >= self._limit_bytes:
            self._space.clear()

    def release(self, chunk: Chunk) -> None:
        """A chunk's memory is free: it was handed out or dropped."""
        self.size_bytes -= chunk.size_bytes
        if self.size_bytes < self._limit_bytes:
            self._space.set()

    async def space(self) -> None:
        """Return once another answer may be asked for."""
        await self._space.wait()


class Fetcher:
    """Keeps one fetch under way at one node, for the slots it leads, and puts what comes into a buffer.

    :meth:`run` ends by raising: ``Restart`` when the routes have changed, the error when one does not pass
    within the deadline.
    """

    def __init__(
        self,
        client: Client,
        options: FetchOptions,
        topic: Topic,
        leader: str | None,
        slots: Sequence[range],
        positions: QueuePositions,
        buffer: Prefetch,
        *,
        policy: OutOfRange,
    ) -> None:
        self._client = client
        self._router = client._router
        self._options = options
        self._topic = topic
        self._leader = leader
        self._slots = slots
        self._shards = positions.shards_led(topic, leader)
        self._queue_bytes = positions.queue_bytes(slots)
        self._positions = positions
        self._buffer = buffer
        self._policy: OutOfRange = policy

    async def run(self) -> None:
        backoff = Backoff()
        deadline: Deadline | None = None
        while True:
            await self._buffer.space()
            try:
                moved = await self._fetch()
            except LsmqError as error:
                deadline = deadline or Deadline(self._options.deadline_ms)
                if not self._router.worth_retrying(error) or deadline.passed:
                    raise
                _log.debug("fetch failed, trying again: node=%s error=%s", self._leader, error)
                await self._router.recover(self._topic, self._shards, self._leader, error, backoff, deadline)
                await self._check_routes(deadline)
                continue
            deadline = None
            if moved:
                backoff.reset()
            else:
                await backoff.pause()

    async def _fetch(self) -> bool:
        """One request; false when its answer was empty although the node did not wait for messages."""
        options, positions = self._options, self._positions
        if self._leader is None:
            raise Unavailable(f"a shard of topic {self._topic.name!r} has no leader now")
        asked_generation = positions.generation
        asked_s = time.monotonic()
        answer = await self._router.attempt(
            self._topic,
            self._leader,
            self._shards,
            "POST",
            f"{topic_path(self._topic.name)}/fetch",
            timeout_s=(options.wait_ms + options.request_timeout_ms) / 1000,
            silence_s=POLL_SILENCE_S if options.wait_ms else SILENCE_S,
            value={
                "queues": self._queue_bytes,
                "offsets": positions.fetch_bytes(self._slots),
                "max_messages": options.max_messages,
                "max_bytes": options.max_bytes,
                "wait_ms": options.wait_ms,
            },
            content_type=MSGPACK,
            accept=BATCHES,
        )
        if positions.generation != asked_generation:
            raise Restart
        if not answer.body:
            return time.monotonic() - asked_s > _IDLE_ANSWER_S
        chunk = self._take_in(answer.body)
        if chunk.is_foreign():
            deadline = Deadline(options.request_timeout_ms)
            await self._router.topic(self._topic.name, deadline)
            await self._router.current(self._topic, deadline)
        if self._policy != "earliest" and (gaps := chunk.gaps()):
            await self._check_gaps(chunk, gaps)
            if positions.generation != asked_generation:
                raise Restart
        for queue, (_, next_offset) in chunk.spans.items():
            positions.fetch[positions.slot(queue)] = next_offset
        if chunk.spans:
            self._buffer.put(chunk)
        return bool(chunk.spans)

    def _take_in(self, body: bytes) -> Chunk:
        positions = self._positions
        spans: dict[int, tuple[int, int]] = {}
        batches: list[RecordBatch] = []
        for batch in split_batches(body, source=f"answer of {self._leader}"):
            if not _is_positions(batch):
                batches.append(batch)
                continue
            for queue, next_offset in zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True):
                slot = positions.slot(queue)
                if slot >= 0 and next_offset > positions.fetch[slot]:
                    spans[queue] = (positions.fetch[slot], next_offset)
        return Chunk(batches, spans, len(body), self._topic)

    async def _check_gaps(self, chunk: Chunk, gaps: Sequence[int]) -> None:
        """Tell retention, which the policy decides on, from messages that were deleted one by one."""
        bounds = await self._client._offsets(self._topic, sorted(gaps), None)
        for queue, earliest, latest in bounds.rows():
            asked, _ = chunk.spans[queue]
            if asked >= earliest:
                continue
            if self._policy == "error":
                raise out_of_range(self._topic.name, queue, asked, earliest, latest)
            del chunk.spans[queue]
            self._positions.skip_to(queue, latest)

    async def _check_routes(self, deadline: Deadline) -> None:
        """Raises ``Restart`` when this consumer's queues have other leaders, ``TopicReplaced`` when they are gone."""
        try:
            fresh = await self._router.current(self._topic, deadline)
        except LsmqError as error:
            if not error.retriable:
                raise
            return
        if self._positions.slots_by_leader(fresh) != self._positions.slots_by_leader(self._topic):
            raise Restart
        self._topic = fresh


def out_of_range(topic: str, queue: int, offset: int, earliest: int, latest: int) -> OffsetOutOfRange:
    """The error for an offset that a queue does not have, any more or yet."""
    return OffsetOutOfRange(
        f"queue {queue} of topic {topic!r} has offsets {earliest} to {latest}, not {offset}; seek to one of"
        " these, or set on_out_of_range",
        topic=topic,
        queue=queue,
        offset=offset,
        earliest=earliest,
        latest=latest,
    )


def split_slots(slots: Sequence[range]) -> list[list[range]]:
    """The slots of one node in portions of at most ``MAX_QUEUES_PER_FETCH``, one request each."""
    portions: list[list[range]] = [[]]
    room = MAX_QUEUES_PER_FETCH
    for part in slots:
        start = part.start
        while start < part.stop:
            if room == 0:
                portions.append([])
                room = MAX_QUEUES_PER_FETCH
            stop = min(part.stop, start + room)
            portions[-1].append(range(start, stop))
            room -= stop - start
            start = stop
    return portions


def _is_positions(batch: RecordBatch) -> bool:
    if Column.FLAGS not in batch.directory:
        return False
    return bool(batch.column(Column.FLAGS)[0] & Flag.POSITION)
