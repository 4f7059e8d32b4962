"""One held stream: reads what its subscriber has credit for, and sends it.

While there is no credit, no queue or nothing new it waits, and nothing is read for it. What it has read it holds only
until the connection has taken it, within a budget that all streams share; a connection that takes nothing for
``SEND_TIMEOUT_S`` is cut.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import NotLeader, ShuttingDown, Unavailable, UnknownFetchSession
from lsmq_node.broker import Broker, ByteBudget, Fetched
from lsmq_node.broker.sessions import FetchSession

from .feed import Feed, LeaderElsewhere
from .held import FRAME_BYTES, FRAME_MESSAGES, HeldStream, Sink, StreamCounts
from .ledger import CreditLedger
from .options import StreamOptions

_PAUSE_S = 0.05


class PushStream(HeldStream):
    """The feed it is attached to calls :meth:`changed` and :meth:`end`."""

    def __init__(
        self, broker: Broker, budget: ByteBudget, feed: Feed, sink: Sink, options: StreamOptions, counts: StreamCounts
    ) -> None:
        super().__init__(feed.group, feed.topic, sink, options, counts)
        self.subscriber = options.subscriber or self.id
        self.feed = feed
        self.number = -1  # in its feed
        self.ledger = CreditLedger(options.credit, options.credit_bytes)
        self._broker = broker
        self._budget = budget
        self._session: FetchSession | None = None
        self._queues_changed = True
        self._queues: NDArray[Any] = np.empty(0, np.uint32)  # what it may be sent of
        self._told: NDArray[Any] = self._queues  # what the subscriber knows to be its own
        self._leaders_told: list[LeaderElsewhere] = []

    # What others say

    def changed(self) -> None:
        """Its queues are others now."""
        self._queues_changed = True
        self._wake()

    def _acknowledged(self, queue: int, offset: int) -> bool:
        return self.feed.acknowledge(self, queue, offset)

    def set_credit(self, credit: int, credit_bytes: int) -> None:
        self.ledger.set_credit(credit, credit_bytes)
        self._wake()

    def _wake(self) -> None:
        super()._wake()
        if self._session is not None:
            self._session.set()

    # Sending

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._unfollow()

    async def _send_on(self) -> None:
        if not len(self._queues):
            await self._news.wait()
        elif self.ledger.room() == (0, 0):
            self._counts.stalls += self.ledger.credit > 0
            await self._news.wait()
        elif (session := self._follow()) is not None:
            await self._send_messages(session)
        else:
            self.feed.refresh()
            await asyncio.sleep(_PAUSE_S)

    async def _tell_queues(self) -> None:
        self._unfollow()
        self._queues = self.feed.wanted(self.number)
        before, self._told = self._told, self.feed.owned(self.number)
        if not np.array_equal(before, self._told):
            await self._tell("queues", _ranges(self._told))
        # Whoever has come by what he knew of leaders hears that these are others: it may be all that is sent to him.
        if not self.options.whole and self.feed.leaders != self._leaders_told:
            self._leaders_told = self.feed.leaders
            await self._tell("leaders", self._leaders_told)

    async def _send_messages(self, session: FetchSession) -> None:
        """Send what there is and what comes, until something else is to be done first."""
        while not (self.left or self.ended or self._queues_changed or self._late or self.ledger.room() == (0, 0)):
            if self._broker.waiters.closed:
                self.end(ShuttingDown("the node is stopping; come again, here or elsewhere"))
                return
            session.news.clear()
            if not await self._send_some(session):
                await session.news.wait()

    def _follow(self) -> FetchSession | None:
        """Begin to hear of what comes to its queues; None while that is not this node's to tell."""
        if self._session is None:
            reads, topic, queues = self._broker.reads, self.feed.topic, self._queues
            self._session = reads.follow(topic, queues, self.feed.cursors(queues))
        return self._session

    def _unfollow(self) -> None:
        if self._session is not None:
            self._broker.reads.sessions.drop(self._session)
            self._session = None

    async def _send_some(self, session: FetchSession) -> bool:
        """Read and send one frame; whether to look again at once."""
        topic = self.feed.topic
        count, size = self.ledger.room()
        limits: Any = {"max_records": min(count, FRAME_MESSAGES), "max_bytes": min(size, FRAME_BYTES)}
        with self._budget.hold() as hold:
            try:
                found = await self._broker.reads.read_on(session, **limits, hold=hold, filter=self.options.filter)
                if not found.queues:
                    return False
                moved, ends, spans = _spans(found, self.feed)
                names = None
                if topic.named:  # What has no name any more was deleted.
                    named = await self._broker.names.names_of(topic, spans)
                    names = {queue: each.name for queue, each in named.items()}
                    spans = {
                        queue: (min(max(start, named[queue].earliest), end), end)
                        for queue, (start, end) in spans.items()
                        if queue in named
                    }
                packed = await self._broker.in_readers(lambda: self.sink.pack(found, topic.id, spans, names))
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
                self.note_progress()
            self.ledger.sent(packed.sent)
            if self.options.filter is not None:
                self.feed.passed_over(self, spans)
            if packed.sent:
                await self._send(packed.frame)
                self._note_sent(packed.sent)
        return True

    async def close(self) -> None:
        self.feed.detach(self)
        await self.feed.flush()


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
