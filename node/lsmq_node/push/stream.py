"""One held stream: reads what its subscriber has credit for, and sends it.

While there is no credit, no queue or nothing new it waits, and nothing is read for it. What it has read it holds only
until the connection has taken it, within a budget that all streams share; a connection that takes nothing for
``SEND_TIMEOUT_S`` is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import LsmqError, NotLeader, ShuttingDown, SlowConsumer, Unavailable, UnknownFetchSession
from lsmq_node.broker import Broker, ByteBudget, Fetched
from lsmq_node.broker.sessions import Session

from .feed import Feed
from .ledger import Ledger
from .options import Acknowledge, StreamOptions

FRAME_BYTES = 64 * 1024
FRAME_MESSAGES = 1_000
SEND_TIMEOUT_S = 30.0
_PAUSE_S = 0.05

Spans = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Packed:
    """A frame with messages, and queue, offset and bytes of each of them."""

    frame: bytes
    sent: Sequence[tuple[int, int, int]]


class Sink(Protocol):
    """The connection of a stream. ``binary``: bodies are bytes; else text, or base64."""

    @property
    def binary(self) -> bool: ...

    def pack(self, found: Fetched, topic_id: int, spans: Spans) -> Packed:
        """The messages of what was read that lie in the ``spans`` (by queue, half-open). Runs in a thread."""

    def note(self, kind: str, value: Any) -> bytes:
        """A frame that says something else."""

    async def send(self, frame: bytes) -> None:
        """Return when the connection has taken it. Raises ``ConnectionError``."""


@dataclass(slots=True)
class Counts:
    """Of all streams of a node, since it started."""

    opened: int = 0
    messages: int = 0
    bytes: int = 0
    acknowledged: int = 0
    stalls: int = 0
    waits: int = 0
    slow: int = 0


class Stream:
    """Loop thread only. The feed it is attached to calls :meth:`changed` and :meth:`end`."""

    def __init__(
        self, broker: Broker, budget: ByteBudget, feed: Feed, sink: Sink, options: StreamOptions, counts: Counts
    ) -> None:
        self.id = runtime.token_hex(16)
        self.group = feed.group
        self.topic = feed.topic
        self.subscriber = options.subscriber or self.id
        self.options = options
        self.feed = feed
        self.sink = sink
        self.number = -1  # in its feed
        self.ledger = Ledger(options.credit, options.credit_bytes)
        self.ended: LsmqError | None = None
        self.left = False
        self.over = asyncio.Event()  # it ended, or the subscriber is gone
        self.progress_at = asyncio.get_running_loop().time()
        self._broker = broker
        self._budget = budget
        self._counts = counts
        self._news = asyncio.Event()
        self._session: Session | None = None
        self._queues_changed = True
        self._queues: NDArray[Any] = np.empty(0, np.uint32)  # what it may be sent of
        self._told: NDArray[Any] = self._queues  # what the subscriber knows to be its own
        self._late: dict[int, int] = {}  # acknowledgements that count no more, to be told: by queue

    # What others say

    def changed(self) -> None:
        """Its queues are others now."""
        self._queues_changed = True
        self._wake()

    def end(self, error: LsmqError) -> None:
        """It stops, and the subscriber is told why. The first reason counts."""
        self.ended = self.ended or error
        self.over.set()
        self._wake()

    def leave(self) -> None:
        """The subscriber is gone."""
        self.left = True
        self.over.set()
        self._wake()

    def acknowledge(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Queues and offsets: the messages up to there are handled.

        What counts no more, since the queue is not sent here any more, the subscriber is told; what this stream was not
        sent is passed over.
        """
        for queue, offset in pairs:
            before = self.ledger.open_count
            if self.feed.acknowledge(self, queue, offset):
                self._counts.acknowledged += before - self.ledger.open_count
                self.progress_at = asyncio.get_running_loop().time()
            elif self.ledger.is_late(queue, offset):
                self._late[queue] = offset
        if self._late:
            self._wake()
        self._news.set()

    def set_credit(self, credit: int, credit_bytes: int) -> None:
        self.ledger.set_credit(credit, credit_bytes)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        if self._session is not None:
            self._session.set()

    # Sending

    async def run(self) -> None:
        """Send until the subscriber is gone. Raises why the stream ends otherwise, and ``ConnectionError``."""
        try:
            while not self.left:
                if self.ended is not None:
                    raise self.ended
                self._news.clear()
                if self._queues_changed:
                    await self._tell_queues()
                elif self._late:
                    late, self._late = self._late, {}
                    await self._send(self.sink.note("late", list(map(list, late.items()))))
                elif not len(self._queues):
                    await self._news.wait()
                elif self.ledger.room() == (0, 0):
                    self._counts.stalls += self.ledger.credit > 0
                    await self._news.wait()
                elif (session := self._follow()) is not None:
                    await self._send_messages(session)
                else:
                    self.feed.refresh()
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self._unfollow()

    async def _tell_queues(self) -> None:
        self._queues_changed = False
        self._unfollow()
        self._queues = self.feed.wanted(self.number)
        before, self._told = self._told, self.feed.owned(self.number)
        if not np.array_equal(before, self._told):
            await self._send(self.sink.note("queues", _ranges(self._told)))

    async def _send_messages(self, session: Session) -> None:
        """Send what there is and what comes, until something else is to be done first."""
        while not (self.left or self.ended or self._queues_changed or self._late or self.ledger.room() == (0, 0)):
            if self._broker.waiters.closed:
                self.end(ShuttingDown("the node is stopping; come again, here or elsewhere"))
                return
            session.news.clear()
            if not await self._send_some(session):
                await session.news.wait()

    def _follow(self) -> Session | None:
        """Begin to hear of what comes to its queues; None while that is not this node's to tell."""
        if self._session is None:
            reads, topic, queues = self._broker.reads, self.feed.topic, self._queues
            self._session = reads.follow(topic, queues, self.feed.cursors(queues))
        return self._session

    def _unfollow(self) -> None:
        if self._session is not None:
            self._broker.reads.sessions.drop(self._session)
            self._session = None

    async def _send_some(self, session: Session) -> bool:
        """Read and send one frame; whether to look again at once."""
        topic = self.feed.topic
        count, size = self.ledger.room()
        limits: Any = {"max_records": min(count, FRAME_MESSAGES), "max_bytes": min(size, FRAME_BYTES)}
        with self._budget.hold() as hold:
            try:
                found = await self._broker.reads.read_on(session, **limits, hold=hold)
                if not found.queues:
                    return False
                moved, ends, spans = _spans(found, self.feed)
                packed = await self._broker.in_readers(lambda: self.sink.pack(found, topic.id, spans))
                self.feed.check_leads()
            except (NotLeader, UnknownFetchSession):
                self.changed()  # The session is at an end.
                self.feed.refresh()
                return True
            except Unavailable:
                self._counts.waits += 1
                self.changed()  # What was read is not sent: read it again.
                await asyncio.sleep(_PAUSE_S)
                return True
            if self._queues_changed or self.left or self.ended:
                return True  # Some of it may be somebody else's to send by now.
            self.feed.sent(moved, ends)
            if not self.ledger.open_count:
                self.progress_at = asyncio.get_running_loop().time()
            self.ledger.sent(packed.sent)
            if packed.sent:
                await self._send(packed.frame)
                self._counts.messages += len(packed.sent)
                self._counts.bytes += sum(size for _, _, size in packed.sent)
                if self.options.acknowledge is Acknowledge.SENT:
                    self.acknowledge([(queue, offset) for queue, offset, _ in packed.sent])
        return True

    async def _send(self, frame: bytes) -> None:
        await send_in_time(self.sink, frame, self._counts)

    async def close(self) -> None:
        """Returns when what was acknowledged is committed, or that takes too long."""
        self.feed.detach(self)
        await self.feed.flush()


async def send_in_time(sink: Sink, frame: bytes, counts: Counts) -> None:
    """Raises ``SlowConsumer`` when the connection does not take the frame."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await sink.send(frame)
    except TimeoutError:
        counts.slow += 1
        raise SlowConsumer(
            f"the connection has taken nothing for {SEND_TIMEOUT_S:g} s; read faster, or ask for less credit"
        ) from None


def _spans(found: Fetched, feed: Feed) -> tuple[NDArray[Any], NDArray[np.int64], dict[int, tuple[int, int]]]:
    """The queues that moved, where they move to, and what lies between, by queue."""
    spans: dict[int, tuple[int, int]] = {}
    moved, ends = np.concatenate(found.queues), np.concatenate(found.next_offsets)
    starts = feed.cursors(moved)
    for queue, start, end in zip(moved.tolist(), starts.tolist(), ends.tolist(), strict=True):
        spans[queue] = (start, max(end, spans[queue][1] if queue in spans else end))
    reached = np.array([end for _, end in spans.values()], np.int64)
    return np.array(list(spans), np.int64), reached, spans


def _ranges(queues: NDArray[Any]) -> list[list[int]]:
    """Ascending queues as ``[[first, end], ...]``."""
    if not len(queues):
        return []
    cuts = np.flatnonzero(np.diff(queues.astype(np.int64)) != 1) + 1
    return [[int(piece[0]), int(piece[-1]) + 1] for piece in np.split(queues, cuts)]
