"""Fetching: one long poll under way per node, and a bounded buffer between the network and the application.

A node answers with a *positions* batch, the next offset of every queue that moved, and then the messages.
The messages may come straight from its files, in whole blocks: records below the offset that was asked for,
beyond the new position, or of other queues and topics may be among them, and are passed over. A record of
queue ``q`` counts exactly when it lies in ``[asked, next)`` of ``q``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from lsmq import runtime
from lsmq._follower_reads import (
    CHOSEN,
    LOST_S,
    SENT,
    SILENT_S,
    STAND_IN,
    FetchOutcome,
    FollowerReadMode,
    FollowerReads,
    ReadFrom,
)
from lsmq._outages import Attempts
from lsmq._paths import topic_path
from lsmq._queue_positions import QueuePositions
from lsmq._retries import Backoff, Deadline, was_held
from lsmq._router import POLL_SILENCE_S, SILENCE_S
from lsmq._transport import BATCHES, MSGPACK
from lsmq.client import Client
from lsmq.errors import LsmqError, OffsetOutOfRange, Unavailable, UnknownFetchSession
from lsmq.filters import MessageFilter
from lsmq.record_batch import Column, Flag, Message, RecordBatch, split_batches
from lsmq.topics import FETCH_SESSION_HEADER, Topic

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from lsmq.message_columns import MessageBatch

OutOfRange = Literal["earliest", "latest", "error"]

MAX_QUEUES_PER_FETCH = 500_000
_IDLE_ANSWER_S = 0.005
#: With so many queues it is worth while that the node remembers them.
_SESSION_QUEUES = 32
_log = logging.getLogger("lsmq")


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What the fetches of a consumer have in common."""

    max_messages: int
    max_bytes: int
    wait_ms: int
    prefetch_bytes: int
    request_timeout_ms: int
    deadline_ms: float
    read_from: ReadFrom = "auto"
    filter: MessageFilter | None = None


class Restart(Exception):
    """Routes or positions changed: fetch anew from where the positions are."""


class FetchedBatches:
    """One answer's messages. ``spans`` maps each queue to the offsets ``[asked, next)`` it brings.

    What lies there and does not come was deleted, has expired or is not picked by ``filter``.
    """

    __slots__ = ("_batches", "_filter", "size_bytes", "spans", "topic")

    def __init__(
        self,
        batches: Sequence[RecordBatch],
        spans: dict[int, tuple[int, int]],
        size_bytes: int,
        topic: Topic,
        filter: MessageFilter | None = None,
    ) -> None:
        self._filter = filter
        self.spans = spans
        self.size_bytes = size_bytes
        self.topic = topic
        self._batches = batches

    def messages(self) -> Iterator[Message]:
        """The messages that count, in the order stored within each queue."""
        for batch in self._batches:
            found = batch.messages(self.topic.name, self.topic.id, self.spans)
            yield from found if self._filter is None else filter(self._filter.passes, found)

    def columns(self) -> MessageBatch:
        """The same as columns. Where words are picked by, and only there, each message's header is looked into."""
        from lsmq.message_columns import batch_of  # With numpy, which nobody else needs.

        return batch_of(self._batches, self.topic, self.spans, picked=self._filter)

    def go_on_from(self, positions: QueuePositions) -> None:
        """What was handed out counts no more."""
        for queue, (start, end) in self.spans.items():
            self.spans[queue] = max(start, positions.get(queue, start)), end

    def is_foreign(self) -> bool:
        """Whether no record is of the topic that was asked for, as when it was made anew under its name."""
        return bool(self._batches) and not any(
            self.topic.id in batch.column(Column.TOPIC) if Column.TOPIC in batch.directory else True
            for batch in self._batches
        )

    def gaps(self) -> list[int]:
        """Queues whose first offset here is not the one that was asked for."""
        unseen = dict(self.spans)
        gaps: list[int] = []
        for batch in self._batches:
            for owner, queue, offset in zip(
                _owners(batch, self.topic),
                batch.column(Column.QUEUE),
                batch.column(Column.OFFSET),
                strict=True,
            ):
                span = unseen.get(queue)
                if span is not None and span[0] <= offset < span[1] and owner == self.topic.id:
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
    """Chunks that wait to be handed out; fetching pauses while they hold ``limit_bytes``. And errors, after them."""

    def __init__(self, limit_bytes: int) -> None:
        self.chunks: deque[FetchedBatches] = deque()
        self.current: FetchedBatches | None = None
        self.size_bytes = 0
        self._news = asyncio.Event()
        self._errors: deque[tuple[Exception, asyncio.Event]] = deque()
        self._limit_bytes = limit_bytes
        self._space = asyncio.Event()
        self._space.set()

    def put(self, chunk: FetchedBatches) -> None:
        self.chunks.append(chunk)
        self._news.set()
        self.size_bytes += chunk.size_bytes
        if self.size_bytes >= self._limit_bytes:
            self._space.clear()

    def release(self, chunk: FetchedBatches) -> None:
        """A chunk's memory is free: it was handed out or dropped."""
        self.size_bytes -= chunk.size_bytes
        if self.size_bytes < self._limit_bytes:
            self._space.set()

    def all_chunks(self) -> Iterator[FetchedBatches]:
        """The one that is being handed out, where there is one, and those that wait."""
        if self.current is not None:
            yield self.current
        yield from self.chunks

    async def space(self) -> None:
        """Return once another answer may be asked for."""
        await self._space.wait()

    async def ready(self) -> None:
        """Wait until there is a chunk, or somebody says :meth:`wake`. Raises the error that stopped fetching."""
        if self.chunks:
            return
        self.check()
        self._news.clear()
        await self._news.wait()

    def check(self) -> None:
        """Raises an error that nobody has been told of yet."""
        if self._errors:
            error, taken = self._errors.popleft()
            taken.set()
            raise error

    def wake(self) -> None:
        self._news.set()

    def put_error(self, error: Exception) -> asyncio.Event:
        """Have ``ready`` raise this; the event is set once it has."""
        taken = asyncio.Event()
        self._errors.append((error, taken))
        self._news.set()
        return taken

    async def give(self, error: Exception) -> None:
        await self.put_error(error).wait()


class Fetcher:
    """Keeps one fetch under way at one node, for the slots it leads, and puts what comes into a buffer.

    Slots of which much is to be read may be on a detour to a follower meanwhile; ``spawn`` runs that.
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
        attempts: Attempts,
        *,
        policy: OutOfRange,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._client = client
        self._router = client._router
        self._options = options
        self._picks = {} if options.filter is None else options.filter.to_dict()
        self._topic = topic
        self._leader = leader
        self._follower_reads = FollowerReads(slots, self._fetch_at_follower, spawn)
        self._turn = runtime.random.randrange(1 << 16)
        self._shards = positions.shards_led(topic, leader)
        self._queue_bytes: dict[str, tuple[Sequence[range], bytes]] = {}
        self._session: tuple[Sequence[range], str] | None = None  # slots, and the token of the last answer
        self._skipped = False  # whether an answer made us go on from elsewhere than where it ends
        self._positions = positions
        self._generation = positions.generation
        self._buffer = buffer
        self._attempts = attempts
        self._policy: OutOfRange = policy

    async def run(self) -> None:
        backoff = Backoff()
        deadline: Deadline | None = None
        while True:
            await self._buffer.space()
            self._check_generation()
            if self._options.read_from == "follower" and not self._follower_reads.held_off:
                self._go_to_followers(CHOSEN)
            if await self._follower_reads.some_near():
                deadline = None
            asked_s = runtime.monotonic()
            try:
                moved = await self._fetch()
            except UnknownFetchSession:
                continue  # All queues are named again.
            except LsmqError as error:
                if was_held(error, runtime.monotonic() - asked_s):
                    deadline = None
                    self._attempts.passed(self._shards)
                deadline = deadline or Deadline(self._options.deadline_ms)
                if not self._router.worth_retrying(error) or deadline.passed:
                    raise
                _log.debug("fetch failed, trying again: node=%s error=%s", self._leader, error)
                self._attempts.failed(error, self._shards)
                await self._router.recover(self._topic, self._shards, self._leader, error, backoff, deadline)
                await self._check_routes(deadline)
                self._check_generation()
                lost_s = runtime.monotonic() - deadline.began_s
                if self._options.read_from == "auto" and lost_s > LOST_S and not self._follower_reads.held_off:
                    self._go_to_followers(STAND_IN)
                continue
            deadline = None
            self._attempts.passed(self._shards)
            if moved:
                backoff.reset()
            else:
                await backoff.pause()

    async def _fetch(self) -> bool:
        """One request to the leader; false when its answer was empty although the node did not wait for messages."""
        options, follower_reads = self._options, self._follower_reads
        self._check_generation()
        if self._leader is None:
            raise Unavailable(f"a shard of topic {self._topic.name!r} has no leader now")
        asked_s = runtime.monotonic()
        near = follower_reads.near
        session, self._session = self._session, None  # Whatever happens to this request, it is good only once.
        tracing = self._client._tracing
        span = None if tracing is None else tracing.receiving(self._topic.name)
        redirects = options.read_from == "auto" and not follower_reads.held_off and self._has_followers()
        answer = await follower_reads.unless_one_returns(
            self._router.attempt(
                self._topic,
                self._leader,
                self._shards,
                "POST",
                self._path,
                timeout_s=(options.wait_ms + options.request_timeout_ms) / 1000,
                silence_s=POLL_SILENCE_S if options.wait_ms else SILENCE_S,
                params={"from": "auto"} if redirects else None,
                trace=None if tracing is None or span is None else tracing.carried(span),
                **self._request(self._leader, near, options.wait_ms, session),
            )
        )
        if answer is None:
            return True
        self._skipped = False
        fetched = await self._absorb(answer.body, self._leader, span)
        if (token := answer.headers.get(FETCH_SESSION_HEADER)) and not self._skipped:
            self._session = (near, token)
        for url, slots in fetched.elsewhere:
            if url is not None:
                follower_reads.send(url, slots, SENT)
        return fetched.moved or bool(fetched.elsewhere) or runtime.monotonic() - asked_s > _IDLE_ANSWER_S

    async def _fetch_at_follower(self, url: str, slots: Sequence[range], manner: FollowerReadMode) -> FetchOutcome:
        await self._buffer.space()
        self._check_generation()
        wait_ms = self._options.wait_ms if manner.stays else 0
        answer = await self._router.ask_follower(
            self._topic,
            url,
            "POST",
            self._path,
            timeout_s=(wait_ms + self._options.request_timeout_ms) / 1000,
            stall_s=wait_ms / 1000 + SILENT_S,
            params={"from": manner.source},
            **self._request(url, slots, wait_ms),
        )
        return await self._absorb(answer.body, url)

    def _check_generation(self) -> None:
        """Raises ``Restart`` when what is a slot now was another one when this fetcher began, or others have ended."""
        if self._positions.generation != self._generation:
            raise Restart

    @property
    def _path(self) -> str:
        return f"{topic_path(self._topic.name)}/fetch"

    def _request(
        self, url: str, slots: Sequence[range], wait_ms: int, session: tuple[Sequence[range], str] | None = None
    ) -> dict[str, Any]:
        """To go on with what ``session`` says, if it is of these very slots."""
        limits = {
            "max_messages": self._options.max_messages,
            "max_bytes": self._options.max_bytes,
            "wait_ms": wait_ms,
            **self._picks,
        }
        rest = {"content_type": MSGPACK, "accept": BATCHES}
        if session is not None and session[0] is slots:
            return {"value": {"session": session[1], **limits}, **rest}
        known, packed = self._queue_bytes.get(url, (None, b""))
        if slots is not known:
            packed = self._positions.queue_bytes(slots)
            self._queue_bytes[url] = (slots, packed)
        value = {
            "queues": packed,
            "offsets": self._positions.fetch_bytes(slots),
            "keep": url == self._leader and len(packed) >= _SESSION_QUEUES * 4,
            **limits,
        }
        return {"value": value, **rest}

    def _has_followers(self) -> bool:
        known = self._router.table.topic(self._topic.name) or self._topic
        return any(route.followers for route in known.routes if route.shard in self._shards)

    def _go_to_followers(self, manner: FollowerReadMode) -> None:
        """Read what is near at followers, each shard at one of them, as far as any is known."""
        known = self._router.table.topic(self._topic.name) or self._topic
        near = self._follower_reads.near
        self._turn += 1
        for route in known.routes:
            urls = [url for url in route.followers if url != self._leader]
            slots = self._positions.slots_between(near, route.first, route.end) if urls else []
            if slots:
                self._follower_reads.send(urls[self._turn % len(urls)], slots, manner)

    async def _absorb(self, body: bytes, source: str, span: Span | None = None) -> FetchOutcome:
        """Buffer an answer, which ends the ``span`` where there are messages.

        Raises ``Restart`` when positions changed since it was asked for.
        """
        self._check_generation()
        if not body:
            return FetchOutcome(False)
        chunk, elsewhere = self._take_in(body, source)
        if chunk.is_foreign():
            deadline = Deadline(self._options.request_timeout_ms)
            await self._router.topic(self._topic.name, deadline)
            await self._router.current(self._topic, deadline)
            self._check_generation()
        if self._policy != "earliest" and (gaps := chunk.gaps()):
            await self._check_gaps(chunk, gaps)
        self._move(chunk)
        if chunk.spans:
            self._buffer.put(chunk)
            if span is not None and self._client._tracing is not None:
                self._client._tracing.received(span, chunk.messages())
        return FetchOutcome(bool(chunk.spans), elsewhere)

    def _move(self, chunk: FetchedBatches) -> None:
        """It is fetched on from where this ends."""
        positions = self._positions
        for queue, (_, next_offset) in chunk.spans.items():
            positions.fetch[positions.slot(queue)] = next_offset

    def _take_in(self, body: bytes, source: str) -> tuple[FetchedBatches, list[tuple[str | None, list[int]]]]:
        positions = self._positions
        spans: dict[int, tuple[int, int]] = {}
        batches: list[RecordBatch] = []
        elsewhere: list[tuple[str | None, list[int]]] = []
        for batch in split_batches(body, source=f"answer of {source}"):
            flags = batch.column(Column.FLAGS)[0] if Column.FLAGS in batch.directory else 0
            if flags & Flag.ELSEWHERE:
                slots = [slot for queue in batch.column(Column.QUEUE) if (slot := positions.slot(queue)) >= 0]
                elsewhere.append((batch.payload.tobytes().decode().rstrip("/") or None, slots))
            elif flags & Flag.POSITION:
                for queue, next_offset in zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True):
                    slot = positions.slot(queue)
                    if slot >= 0 and next_offset > positions.fetch[slot]:
                        spans[queue] = (positions.fetch[slot], next_offset)
            else:
                batches.append(batch)
        return FetchedBatches(batches, spans, len(body), self._topic, self._options.filter), elsewhere

    async def _check_gaps(self, chunk: FetchedBatches, gaps: Sequence[int]) -> None:
        """Tell retention, which the policy decides on, from messages that were deleted one by one."""
        bounds = await self._client._offsets(self._topic, sorted(gaps), None)
        self._check_generation()
        for queue, earliest, latest in bounds.rows():
            asked, _ = chunk.spans[queue]
            if asked >= earliest:
                continue
            if self._policy == "error":
                raise out_of_range(self._topic.name, queue, asked, earliest, latest)
            del chunk.spans[queue]
            self._skipped = True
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


def out_of_range(topic: str, queue: int | str, offset: int, earliest: int, latest: int) -> OffsetOutOfRange:
    """The error for an offset that a queue does not have, any more or yet."""
    return OffsetOutOfRange(
        f"queue {queue!r} of topic {topic!r} has offsets {earliest} to {latest}, not {offset}; begin at one of"
        " these, or at 'earliest' or 'latest' (a Consumer does so by itself with on_out_of_range)",
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
