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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from .lanes import NONE, Chains, Lanes
from .tasks import DeliveryState, OpenMessage

_COMPACT_AT = 512
_LEVELS_A_PRIORITY = 256
_GOES = -(1 << 80)
#: Lanes and messages that can be copied at once.
_FEW = 32_768

Place = tuple[int, int]
"""Queue and offset of a message that was not delivered yet."""


class Turn(NamedTuple):
    """One message in its turn: whose, at which level, and when it was stored, where messages age."""

    level: int
    tenant: int
    item: OpenMessage | Place
    stored_ms: int


class Again:
    """What a lane has to be delivered again: half of what it gives, while there are new ones; before these what was
    taken and not delivered."""

    __slots__ = ("_compact_at", "_tasks", "is_next")

    def __init__(self) -> None:
        self._tasks: deque[OpenMessage] = deque()
        self._compact_at = _COMPACT_AT
        self.is_next = False

    def __bool__(self) -> bool:
        while self._tasks and self._tasks[0].state is not DeliveryState.READY:  # it was adopted, or settled
            self._tasks.popleft()
        return bool(self._tasks)

    @property
    def first(self) -> OpenMessage:
        return self._tasks[0]

    def add(self, task: OpenMessage) -> None:
        self._tasks.append(task)
        self.is_next = self.is_next or task.is_new
        if len(self._tasks) >= self._compact_at:  # who picks leaves behind what it took
            self._tasks = still_ready(self._tasks)
            self._compact_at = max(_COMPACT_AT, 2 * len(self._tasks))

    def pop(self) -> OpenMessage:
        return self._tasks.popleft()


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
        self._lanes, self._chains = Lanes(), Chains()
        self._again: dict[int, Again] = {}  # by lane
        self._rings: dict[int, int] = {}  # by level the lane whose turn comes last; its next one's comes first
        self._credits: dict[int, int] = {}  # by level what the first lane has left of its turn, if it has begun
        self._parked: dict[int, list[int]] = {}  # by tenant

    def __bool__(self) -> bool:
        """Whether there is something to take, as far as is known."""
        return bool(self._rings)

    @property
    def lane_count(self) -> int:
        """Of tenants at levels at which they have something."""
        return self._lanes.count

    @property
    def parked_count(self) -> int:
        """Of tenants that may have no more now."""
        return len(self._parked)

    @property
    def size_bytes(self) -> int:
        """Of all lanes, and of messages that were not delivered."""
        return self._lanes.size_bytes + self._chains.size_bytes

    def add(self, level: int, tenant: int, queue: int, offset: int, stored_ms: int | None = None) -> None:
        """A message that was not delivered yet. ``stored_ms`` is given always or never."""
        lane, tails = self._lane(level, tenant), self._lanes.tails
        tails[lane] = self._chains.push(tails[lane], queue, offset, stored_ms)

    def add_again(self, task: OpenMessage) -> None:
        """One that is to be delivered again."""
        lane = self._lane(task.level, task.tenant)
        again = self._again.get(lane)
        if again is None:
            again = self._again[lane] = Again()
        again.add(task)

    def _lane(self, level: int, tenant: int) -> int:
        """The tenant's, whose turn comes if it is not parked; to add to it at once."""
        lane = self._lanes.find(level, tenant)
        if lane == NONE:
            lane = self._lanes.add(level, tenant)
            self._line_up(lane)
        elif self._ageing_ms is not None:
            self._touched.add(level)
        return lane

    def _line_up(self, lane: int) -> None:
        """Its turn comes after those of all others at its level."""
        level, nexts = self._lanes.levels[lane], self._lanes.nexts
        last = self._rings.get(level)
        if last is None:
            nexts[lane] = lane
            self._touched.add(level)
        else:
            nexts[lane], nexts[last] = nexts[last], lane
        self._rings[level] = lane

    def _leave(self, level: int) -> None:
        """The first lane of a level has no turn any more."""
        last, nexts = self._rings[level], self._lanes.nexts
        if nexts[last] == last:
            del self._rings[level]
        else:
            nexts[last] = nexts[nexts[last]]

    def _has(self, lane: int) -> bool:
        """Whether a lane has a message."""
        return self._lanes.tails[lane] != NONE or bool(self._again.get(lane))

    def _next_again(self, lane: int) -> Again | None:
        """What gives the next message of a lane that has one, where that is to be delivered again."""
        again = self._again.get(lane)
        return again if again and (again.is_next or self._lanes.tails[lane] == NONE) else None

    def _stored_ms(self, lane: int) -> int:
        """Of the next message of a lane that has one."""
        again = self._next_again(lane)
        return self._chains.first_time(self._lanes.tails[lane]) if again is None else again.first.stored_ms

    def _pop(self, lane: int) -> OpenMessage | Place:
        """The next message of a lane that has one."""
        again = self._next_again(lane)
        if again is not None:
            task = again.pop()
            again.is_next = bool(again) and again.first.is_new
            return task
        if lane in self._again:
            self._again[lane].is_next = True
        tails = self._lanes.tails
        queue, offset, tails[lane] = self._chains.pop(tails[lane])
        return queue, offset

    def take(self, limit: int) -> Iterator[Turn]:
        """Up to ``limit``, in the order in which they are to go.

        Each counts as in flight before the next is taken; nothing is added meanwhile.
        """
        while self._rings and limit > 0:
            level = self._first_level()
            if self._ageing_ms is not None:
                self._touched.add(level)
            for item in self._take_turn(level, limit):
                limit -= 1
                yield item

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
        lane = self._lanes.nexts[self._rings[level]]
        if not self._has(lane):
            return _GOES
        return self._stored_ms(lane) * _LEVELS_A_PRIORITY - level * self._ageing_ms

    def _take_turn(self, level: int, limit: int) -> Iterator[Turn]:
        lane = self._lanes.nexts[self._rings[level]]
        tenant = self._lanes.tenants[lane]
        credit = self._credits.pop(level, 0) or self._weights.get(tenant, 1)
        while credit and limit > 0 and self._has(lane):
            if self._room_of is not None and self._room_of(tenant) <= 0:
                self._leave(level)
                self._parked.setdefault(tenant, []).append(lane)
                return
            credit -= 1
            limit -= 1
            stored_ms = 0 if self._ageing_ms is None else self._stored_ms(lane)
            yield Turn(level, tenant, self._pop(lane), stored_ms)
        if not self._has(lane):
            self._leave(level)
            self._remove(lane)
        elif credit:
            self._credits[level] = credit
        else:
            self._rings[level] = lane
        self._tidy()

    def _remove(self, lane: int) -> None:
        """It has nothing and no turn any more."""
        self._again.pop(lane, None)
        self._lanes.remove(lane)

    def _tidy(self) -> None:
        """Give back the memory of those that went, where most did, and nobody waits for long until it is done."""
        if not (self._lanes.is_sparse or self._chains.is_sparse) or self._lanes.count + self._chains.count > _FEW:
            return
        rings = {level: list(self._ring(last)) for level, last in self._rings.items()}
        there = [
            *(lane for ring in rings.values() for lane in ring),
            *(each for some in self._parked.values() for each in some),
        ]
        self._lanes, self._chains, numbers = self._lanes.compacted(self._chains, there)
        self._again = {numbers[lane]: again for lane, again in self._again.items()}
        self._parked = {tenant: [numbers[lane] for lane in some] for tenant, some in self._parked.items()}
        self._rings.clear()
        for ring in rings.values():
            for lane in ring:
                self._line_up(numbers[lane])

    def _ring(self, last: int) -> Iterator[int]:
        lane = last
        while True:
            lane = self._lanes.nexts[lane]
            yield lane
            if lane == last:
                return

    def unpark(self, tenant: int) -> None:
        """It may take more again: its turn comes after the others'."""
        for lane in self._parked.pop(tenant, ()):
            if self._has(lane):
                self._line_up(lane)
            else:
                self._remove(lane)
        self._tidy()
