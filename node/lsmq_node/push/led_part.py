"""The part of a feed in one shard while this node leads it: read and committed as the other machines of a shard are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import LsmqError, Unavailable
from lsmq_coordinator.state import QueueRange
from lsmq_node.broker import ShardPort
from lsmq_node.machines import ShardMachine, Step, StepOffsets

from .options import PushStart
from .part import PushedPart

if TYPE_CHECKING:
    from .feed import Feed
    from .service import PushService


class LedPart(ShardMachine):
    """Loop thread only."""

    subject = "the offsets of a group"

    def __init__(self, service: PushService, feed: Feed, queues: QueueRange, port: ShardPort) -> None:
        super().__init__(service, port, (feed, queues.first))
        self.part: PushedPart
        self._feed = feed
        self._queues = queues
        self._waiters = service.broker.waiters
        self._is_committing = False

    async def load(self, left: PushedPart | None) -> None:
        """``left``: the part itself: what was sent stays sent, and what was acknowledged is committed now."""
        topic = self._feed.topic
        try:
            await self.port.prepare(topic)
            if topic.named:
                self._waiters.watch(topic.id, self)  # Before looking: no queue comes unseen.
            await self.barrier()
            if left is None:
                first, end = self._queues.first, self._end()
                left = PushedPart(self._queues.shard, first, end, self.epoch, await self._cursor(first, end))
            self.check()
            if self._feed.closed:
                raise Unavailable("the last stream of the group is gone", sent=False)
        except LsmqError as error:
            if not error.retriable:
                self._feed.end_all(error)
            raise
        self.part = left
        self._grow()
        self._feed.began(self)

    def end(self) -> None:
        self._waiters.unwatch(self._feed.topic.id, self)
        super().end()

    # Queues that come, where they have names

    def _end(self) -> int:
        """Behind the last queue there is here."""
        return self.store.numbers(self._feed.topic.id)[1] if self._feed.topic.named else self._queues.end

    def touch(self, touched: NDArray[Any]) -> None:
        """Queues of the topic got messages, here or in another shard of this node."""
        if hasattr(self, "part"):
            mine = touched[(touched >= self.part.end) & (touched < self._queues.end)]
            if len(mine) and self.is_current and self._grow():
                self._feed.grew()

    def set(self) -> None:
        """What may be read here has changed, or the node stops: streams hear of that themselves."""

    def _grow(self) -> bool:
        """Take in queues that have come since; whether there are any. They are read from their first message on."""
        part, end = self.part, self._end()
        if end <= part.end:
            return False
        queues = np.arange(part.end, end, dtype=np.uint32)
        part.grow(end, self.store.earliest_offsets(self._feed.topic.id, queues))
        return True

    async def _cursor(self, first: int, end: int) -> NDArray[np.int64]:
        """Where to begin in each queue: at what is committed."""
        feed, store = self._feed, self.store
        queues = np.arange(first, end, dtype=np.uint32)
        latest = store.latest_offsets(feed.topic.id, queues)
        cursor = np.full(len(queues), -1, np.int64)
        if feed.kept:
            cursor = store.committed_offsets(feed.group, feed.topic.id, queues)
        new = cursor < 0
        if new.any():
            begin = latest if feed.start is PushStart.LATEST else store.earliest_offsets(feed.topic.id, queues)
            cursor = np.where(new, begin, cursor)
            if feed.kept and feed.start is PushStart.LATEST:
                # Otherwise what comes before the first acknowledgement would be skipped by the next leader.
                self.check()
                found = StepOffsets(feed.group, feed.topic.id, queues[new].tolist(), cursor[new].tolist())
                await self.durable(self.put(Step(offsets=found)))
        return np.minimum(cursor, latest)

    def leaves(self) -> PushedPart:
        return self.part

    # Committing

    def acknowledged(self, queue: int, next_offset: int) -> None:
        """To be committed, with what else is acknowledged until the commit before is over."""
        self.part.pending[queue] = next_offset
        if not self._is_committing:
            self._is_committing = True
            self._loop.call_soon(self._commit)

    def due(self) -> Iterable[Step]:
        """What was refused is tried again."""
        if self.part.pending and not self._is_committing:
            self._is_committing = True
            self._commit()
        return ()

    def _commit(self) -> None:
        taken = dict(sorted(self.part.pending.items()))
        self._is_committing = bool(taken) and self.is_current and not self._feed.closed
        if not self._is_committing:
            return

        def stored() -> None:
            self.part.committed(taken)
            self.wake()
            self._commit()

        offsets = StepOffsets(self._feed.group, self._feed.topic.id, list(taken), list(taken.values()))
        try:
            self.check()
            self.put(Step(offsets=offsets, stored=stored))
        except LsmqError as error:
            self._is_committing = False
            self._log.info("push_not_committed", group=self._feed.group, shard=self.port.number, code=error.code)
            if not error.retriable:
                self._feed.end_all(error)
