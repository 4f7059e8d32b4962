"""Who comes next: the highest level first, and of a level the tenants in turn, each as often as its weight. Pure.

A level is a rank of priorities (:func:`lsmq.messages.priority_rank`), of which there are 65,536. With ageing a message
counts one priority, 256 levels, higher for each so many milliseconds since it was stored. Since all grow older alike,
that is an order that no clock changes: by the time stored, less the priority times so many.

Deficit round robin (Shreedhar and Varghese, 1995) with messages as the unit: at its turn a tenant may take as many as
its weight, and what a request has no room for it has left when the next one comes. A tenant without messages is not
here. One that has as many in flight as it may is *parked*: it is passed over until it may have more.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from .tasks import DeliveryState, OpenMessage

_COMPACT_AT = 512
_LEVELS_A_PRIORITY = 256
_GOES = -(1 << 80)

Place = tuple[int, int]
"""Queue and offset of a message that was not delivered yet."""


class TenantLane:
    """What a tenant has at a level: messages to be delivered again, and new ones at 12 bytes each; with ageing 20."""

    __slots__ = (
        "_compact_at",
        "_first",
        "_offsets",
        "_queues",
        "_times",
        "_turn",
        "again",
        "credit",
        "level",
        "tenant",
    )

    def __init__(self, level: int, tenant: int) -> None:
        self.level = level
        self.tenant = tenant
        self.credit = 0
        self.again: deque[OpenMessage] | None = None
        self._compact_at = _COMPACT_AT
        self._queues = array("I")
        self._offsets = array("Q")
        self._times: array[int] | None = None
        self._first = 0
        self._turn = False

    def __bool__(self) -> bool:
        while self.again and self.again[0].state is not DeliveryState.READY:  # it was adopted, or settled
            self.again.popleft()
        return bool(self.again) or self._first < len(self._offsets)

    def add_again(self, task: OpenMessage) -> None:
        if self.again is None:
            self.again = deque()
        self.again.append(task)
        if len(self.again) >= self._compact_at:  # who picks leaves behind what it took
            self.again = still_ready(self.again)
            self._compact_at = max(_COMPACT_AT, 2 * len(self.again))

    def add(self, queue: int, offset: int, stored_ms: int | None = None) -> None:
        """``stored_ms`` is kept where it is given, which is always or never."""
        self._queues.append(queue)
        self._offsets.append(offset)
        if stored_ms is not None:
            self._times = array("Q") if self._times is None else self._times
            self._times.append(stored_ms)

    @property
    def _gives_again(self) -> bool:
        return bool(self.again) and (self._turn or self._first >= len(self._offsets))

    @property
    def stored_ms(self) -> int:
        """Of the next one of a lane that has one."""
        if self._gives_again:
            assert self.again
            return self.again[0].stored_ms
        return 0 if self._times is None else self._times[self._first]

    def pop(self) -> OpenMessage | Place:
        """The next one of a lane that has one: half of those to be delivered again, while there are new ones."""
        if self._gives_again:
            assert self.again
            self._turn = False
            return self.again.popleft()
        self._turn = True
        place = self._queues[self._first], self._offsets[self._first]
        self._first += 1
        if self._first >= _COMPACT_AT and 2 * self._first > len(self._offsets):
            del self._queues[: self._first], self._offsets[: self._first]
            if self._times is not None:
                del self._times[: self._first]
            self._first = 0
        return place


def still_ready(tasks: Iterable[OpenMessage]) -> deque[OpenMessage]:
    """Those that are to be delivered, each once, in their order."""
    return deque(dict.fromkeys(task for task in tasks if task.state is DeliveryState.READY))


class TenantTurns:
    """``weights``: of tenants that have another one than 1. ``room_of``: how many more a tenant may take now.
    ``ageing_ms``: see the module."""

    def __init__(
        self,
        weights: Mapping[int, int],
        room_of: Callable[[int], int] | None = None,
        ageing_ms: int | None = None,
    ) -> None:
        self._weights = weights
        self._ageing_ms = ageing_ms
        self._room_of = room_of
        self._order: list[tuple[int, int]] = []  # a heap: what is never above a level's place, and the level, negated
        self._touched: set[int] = set()  # levels whose place may have moved to the front since
        self._rings: dict[int, OrderedDict[int, TenantLane]] = {}
        self._parked: dict[int, dict[int, TenantLane]] = {}  # by tenant and level
        self.lane_count = 0

    def __bool__(self) -> bool:
        """Whether there is something to take, as far as is known."""
        return bool(self._rings)

    def lane(self, level: int, tenant: int) -> TenantLane:
        """The tenant's, whose turn comes; to add to it at once."""
        parked = self._parked.get(tenant)
        if parked is not None and level in parked:
            return parked[level]
        ring = self._rings.get(level)
        if ring is None:
            ring = self._rings[level] = OrderedDict()
            self._touched.add(level)
        elif self._ageing_ms is not None:
            self._touched.add(level)
        lane = ring.get(tenant)
        if lane is None:
            lane = ring[tenant] = TenantLane(level, tenant)
            self.lane_count += 1
        return lane

    def take(self, limit: int) -> Iterator[tuple[TenantLane, OpenMessage | Place, int]]:
        """Up to ``limit``, in the order in which they are to go, with their time where messages age.

        Each counts as in flight before the next is taken.
        """
        while self._rings and limit > 0:
            level = self._first_level()
            ring = self._rings[level]
            if self._ageing_ms is not None:
                self._touched.add(level)
            for item in self._take_turn(ring, limit):
                limit -= 1
                yield item
            if not ring:
                del self._rings[level]

    def _first_level(self) -> int:
        """The one that comes next."""
        for level in self._touched:
            if level in self._rings:
                heapq.heappush(self._order, (self._place(level), -level))
        self._touched.clear()
        if len(self._order) > 2 * len(self._rings) + _COMPACT_AT:  # most were touched again and again
            self._order = [(self._place(level), -level) for level in self._rings]
            heapq.heapify(self._order)
        while True:
            place, negated = self._order[0]
            level = -negated
            if level in self._rings:
                now = self._place(level)
                if now <= place:
                    return level
                heapq.heapreplace(self._order, (now, negated))
            else:
                heapq.heappop(self._order)

    def _place(self, level: int) -> int:
        """Of a level in the order, by its next message; a lane without any goes first, as it goes away."""
        if self._ageing_ms is None:
            return -level
        lane = next(iter(self._rings[level].values()))
        return lane.stored_ms * _LEVELS_A_PRIORITY - level * self._ageing_ms if lane else _GOES

    def _take_turn(
        self, ring: OrderedDict[int, TenantLane], limit: int
    ) -> Iterator[tuple[TenantLane, OpenMessage | Place, int]]:
        tenant, lane = next(iter(ring.items()))
        lane.credit = lane.credit or self._weights.get(tenant, 1)
        while lane and lane.credit and limit > 0:
            if self._room_of is not None and self._room_of(tenant) <= 0:
                del ring[tenant]
                self._parked.setdefault(tenant, {})[lane.level] = lane
                return
            lane.credit -= 1
            limit -= 1
            stored_ms = lane.stored_ms
            yield lane, lane.pop(), stored_ms
        if not lane:
            del ring[tenant]
            self.lane_count -= 1
        elif not lane.credit:
            ring.move_to_end(tenant)

    def unpark(self, tenant: int) -> None:
        """It may take more again: its turn comes after the others'."""
        for lane in self._parked.pop(tenant, {}).values():
            self.lane_count -= 1
            if lane:
                lane.credit = 0
                self.lane(lane.level, tenant)
                self._rings[lane.level][tenant] = lane
