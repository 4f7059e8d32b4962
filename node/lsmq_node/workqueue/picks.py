"""Pops that pick: what each filter has looked at, so that it looks at no message twice and leaves all others alone.

A :class:`FilterPick` is one filter's view of the new messages: up to where it has looked in each queue, from where the
ledger is on. What it wants is handed out there, early; what it does not want costs nothing, and stays. Of messages that
are to be delivered again it is told as they come.

Nothing of this is stored. Whoever leads next looks once more; what is settled and held the ledger knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from lsmq.errors import InvalidBatch, InvalidRequest, LsmqError, TooManyFilters
from lsmq.filters import MessageFilter
from lsmq.messages import RecordHeader
from lsmq.record_batch import decode_header
from lsmq_node.letters import LetterRecord
from lsmq_node.storage.sieve import Picked

from .ledger import MAX_OPEN
from .queue_turns import QueueTurns
from .reading import Found, read_again, read_fresh
from .settings import Order, WorkSettings
from .tasks import DeliveryState, OpenMessage
from .turns import still_ready

if TYPE_CHECKING:
    from .shard_work import ShardWork, WorkDelivery

#: Filters of a group on a topic in a shard, that were used within ``_UNUSED_S``.
MAX_FILTERS = 16
_UNUSED_S = 60.0
#: Messages that a pop looks at in each round, while it has room for more. Before, in a first one, queues take turns of
#: as many messages as it wants: where much is picked that is all.
_ROUNDS = (4_096, 32_768, 131_072)
#: Of messages to be delivered again, so many are looked at in a round.
_AGAIN = 256
#: Queues of which it is remembered up to where one filter has looked. Of others it looks again.
_MAX_SEEN = 65_536
_SPARE_AGAIN = 1_024


class FilterPick:
    """See the module."""

    def __init__(self, work: ShardWork, wanted: MessageFilter) -> None:
        self.wanted = wanted
        self.picked = Picked(wanted, exact=True)
        self.turns = QueueTurns(work, self._next_of, unknown=True)
        self.again: deque[OpenMessage] = deque(work.ledger.ready())
        self.used_at = 0.0
        self.owes_new = False  # the last pop had room for a retry alone, though there were new messages
        self._work = work
        self._seen: dict[int, int] = {}
        self._compact_at = _SPARE_AGAIN + 2 * len(self.again)

    @property
    def available(self) -> bool:
        """Whether there is something to look at."""
        return bool(self.again) or (bool(self.turns.waiting) and self._work.ledger.open_count < MAX_OPEN)

    def _next_of(self, queue: int) -> int:
        return max(self._seen.get(queue, 0), self._work.ledger.next_of(queue))

    def looked(self, queue: int, end: int) -> None:
        """Everything of the queue below ``end`` was looked at."""
        self._seen.pop(queue, None)
        if end > self._work.ledger.next_of(queue):
            self._seen[queue] = end
            if len(self._seen) > _MAX_SEEN:
                del self._seen[next(iter(self._seen))]

    def ready(self, task: OpenMessage) -> None:
        """It is to be delivered again."""
        self.again.append(task)
        if len(self.again) >= self._compact_at:
            self.again = still_ready(self.again)
            self._compact_at = _SPARE_AGAIN + 2 * len(self.again)

    def take_again(self, limit: int) -> list[OpenMessage]:
        """Those that may be wanted, of messages to be delivered again. Nobody holds them yet."""
        found: list[OpenMessage] = []
        while self.again and len(found) < limit:
            task = self.again.popleft()
            if task.state is DeliveryState.READY:
                found.append(task)
        return found

    def takes(self, record: LetterRecord) -> bool:
        """Whether it is wanted: as :meth:`Picked.passing` has it of new ones."""
        try:
            header = decode_header(record.header)
        except InvalidBatch:
            if self.picked.weight:
                return False
            header = RecordHeader()
        return self.wanted.takes(header, record.priority, record.stored_ms)


class Picks:
    """Of one work queue in one shard. Loop thread only."""

    def __init__(self, work: ShardWork) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._picks: dict[MessageFilter, FilterPick] = {}

    def __iter__(self) -> Iterator[FilterPick]:
        return iter(self._picks.values())

    def ready(self, task: OpenMessage) -> None:
        """It is to be delivered again."""
        for pick in self._picks.values():
            pick.ready(task)

    def of(self, wanted: MessageFilter) -> FilterPick:
        """Raises ``InvalidRequest`` where the work queue has an order or limits, ``TooManyFilters``."""
        if (reason := _does_not_go_with(self._work.settings)) is not None:
            raise InvalidRequest(
                f"a pop that picks (tag, type, filter) does not go with {reason}, as the work queue of group "
                f"{self._work.group!r} on topic {self._work.topic.name!r} is configured; leave one of them out",
                field="filter",
                group=self._work.group,
                topic=self._work.topic.name,
            )
        now = self._loop.time()
        pick = self._picks.get(wanted)
        if pick is None:
            self._make_room(now)
            pick = self._picks[wanted] = FilterPick(self._work, wanted)
        pick.used_at = now
        return pick

    def _make_room(self, now: float) -> None:
        if len(self._picks) < MAX_FILTERS:
            return
        unused = min(
            (pick for pick in self._picks.values() if not self._work.is_held(pick.wanted)),
            key=lambda pick: pick.used_at,
            default=None,
        )
        if unused is None or now - unused.used_at < _UNUSED_S:
            raise TooManyFilters(
                f"group {self._work.group!r} has popped with {MAX_FILTERS} different filters on topic "
                f"{self._work.topic.name!r} within a minute, the limit; use fewer, or more groups",
                limit=MAX_FILTERS,
                group=self._work.group,
                topic=self._work.topic.name,
            )
        del self._picks[unused.wanted]

    async def take(
        self, wanted: MessageFilter, limit: int, max_bytes: int, visibility_ms: int, gone: Callable[[], bool]
    ) -> list[WorkDelivery]:
        """Deliver up to ``limit`` messages that are wanted; none where a bounded look finds none.

        Raises as :meth:`of` and ``ShardWork.check``.
        """
        work, pick = self._work, self.of(wanted)
        delivered: list[WorkDelivery] = []
        for look in (limit, *_ROUNDS):
            room, bytes_room = limit - len(delivered), max_bytes - sum(each.record.size_bytes for each in delivered)
            if room <= 0 or bytes_room <= 0 or gone():
                break
            try:
                work.check()
                work.ledger.advance(work.now_ms())
                if pick.turns.waiting.needs_look:
                    await work.find_waiting(pick.turns)
                if not pick.available:
                    break
                delivered += await self._take_once(pick, room, max(look, room), bytes_room, visibility_ms, gone)
            except LsmqError:
                if not delivered:
                    raise
                break
            except BaseException:  # Who waits for it is gone.
                work.take_back(delivered)
                raise
        if work.is_current:
            work.after()
        return delivered

    async def _take_once(
        self, pick: FilterPick, limit: int, look: int, max_bytes: int, visibility_ms: int, gone: Callable[[], bool]
    ) -> list[WorkDelivery]:
        work = self._work
        again = pick.take_again(_AGAIN)
        turn = pick.turns.next(max(0, min(limit, MAX_OPEN - work.ledger.open_count)))
        found, fresh = Found(), Found()
        wanted = turn.wanted(look // limit)

        def read() -> None:
            store, topic_id = work.store, work.topic.id
            if again:
                read_again(store, topic_id, [(task.queue, task.offset) for task in again], max_bytes, found)
            if wanted:
                read_fresh(store, topic_id, wanted, limit, max_bytes, fresh, pick.picked)

        delivered: list[WorkDelivery] = []
        left: list[OpenMessage] = again
        served: dict[int, object] = {}
        try:
            await work.in_readers(read)
            work.check()
            if not gone():
                most = (limit // 2 if pick.owes_new else max(1, limit // 2)) if fresh.count else limit
                left = self._deliver_again(pick, again, found, most, visibility_ms, delivered)
                pick.owes_new = bool(fresh.count) and len(delivered) >= limit
                self._deliver_fresh(pick, fresh, limit, visibility_ms, delivered)
                served.update(fresh.fresh)
        finally:
            pick.again.extendleft(reversed(left))
            if work.is_current:
                pick.turns.after(turn, served, fresh.damaged_queues)
        return delivered

    def _deliver_again(
        self,
        pick: FilterPick,
        again: Sequence[OpenMessage],
        found: Found,
        limit: int,
        visibility_ms: int,
        delivered: list[WorkDelivery],
    ) -> list[OpenMessage]:
        """Those that are wanted, up to ``limit``. What it returns was not looked at."""
        work, left = self._work, list[OpenMessage]()
        now = work.now_ms()
        for task in again:
            place = task.queue, task.offset
            record = found.again.get(place)
            if place in found.gone and work.ledger.take(task):
                work.ledger.gone([task], now)
            elif place in found.damaged and work.ledger.take(task):
                work.damaged([task])
            elif record is None:
                left.append(task)
            elif pick.takes(record):
                if len(delivered) >= limit:
                    left.append(task)
                elif work.ledger.take(task):
                    delivered += work.hand_over(
                        [record], [work.ledger.deliver(task, now, visibility_ms)], visibility_ms
                    )
        return left

    def _deliver_fresh(
        self, pick: FilterPick, found: Found, limit: int, visibility_ms: int, delivered: list[WorkDelivery]
    ) -> None:
        work = self._work
        for queue, fresh in found.fresh.items():
            records = list(islice(fresh.records, limit - len(delivered)))
            end = fresh.end if len(records) == len(fresh.records) else fresh.records[len(records)].offset
            offsets = [record.offset for record in records]
            receipts = work.ledger.deliver_picked(queue, offsets, work.now_ms(), visibility_ms)
            delivered += work.hand_over(records, receipts, visibility_ms)
            pick.looked(queue, end)
        if found.damaged_queues:
            work.damaged(())


def _does_not_go_with(settings: WorkSettings) -> str | None:
    if settings.order is not Order.NONE:
        return f"order {settings.order.value!r}"
    if settings.looks_ahead:
        return f"fair_by {settings.fair_by_text!r}"
    if settings.max_in_flight_per is not None:
        return "max_in_flight_per"
    return None if settings.max_rate_per is None else "max_rate_per"
