"""Turns of queues with new messages: whose is next, how much of each is read, and who waits again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .reading import Wanted
from .waiting_queues import WaitingQueues, quotas

if TYPE_CHECKING:
    from .shard_work import ShardWork


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """Queues in turn, where they begin, and how many messages of each are wanted. ``last`` of them was served last, and
    is ``owed`` some."""

    queues: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    last: int = 0
    owed: int = 0

    def wanted(self, factor: int) -> list[Wanted]:
        """What is to be read, ``factor`` times as much."""
        rows = zip(self.queues, self.starts, self.counts, strict=True)
        return [(queue, start, start + factor * count) for queue, start, count in rows if count]


class QueueTurns:
    """Of who has looked at each queue up to ``next_of``. Loop thread only."""

    def __init__(self, work: ShardWork, next_of: Callable[[int], int], *, unknown: bool = False) -> None:
        """``unknown``: which queues have messages is to be found out."""
        self._work = work
        self._next_of = next_of
        self.waiting = WaitingQueues(unknown=unknown)

    def add(self, queue: int) -> None:
        """It has messages."""
        if not self._work.ledger.is_stalled(queue):
            self.waiting.add(queue)

    def next(self, room: int) -> QueueTurn:
        """Queues with messages to deliver, in turn, and how many of each, up to ``room`` together."""
        ledger = self._work.ledger
        picked: dict[int, tuple[int, int, int, int]] = {}
        count = 0
        while count < room and (queue := self.waiting.next()) is not None:
            earliest, end = self._work.bounds(queue)
            start = max(self._next_of(queue), earliest)
            backlog = end - start
            if backlog <= 0 or queue in picked:  # it may be known from two places
                continue
            if not ledger.looks_ahead:
                backlog = min(backlog, ledger.room_of(queue))
                if backlog <= 0:
                    ledger.park(queue)
                    continue
            weight = ledger.weight_of(queue)
            turn = self.waiting.credits_of(queue, weight)
            picked[queue] = start, backlog, turn, weight
            count += min(turn, backlog)
        if not picked:
            return QueueTurn()
        starts, backlogs, turns, weights = zip(*picked.values(), strict=True)
        given, last, owed = quotas(backlogs, turns, weights, room)
        return QueueTurn(list(picked), list(starts), given, last, owed)

    def after(self, turn: QueueTurn, served: Collection[int], damaged: Collection[int]) -> None:
        """Queues that still have messages wait for their next turn; those that were not served, for this one."""
        left: dict[int, None] = {}
        for queue in turn.queues:
            if queue in damaged:
                self._work.activate_later(queue)
            elif self._next_of(queue) < self._work.bounds(queue)[1] and not self._work.ledger.is_stalled(queue):
                left[queue] = None
        last = turn.queues[turn.last] if turn.owed else None
        if unserved := [queue for queue in left if queue not in served]:
            self.waiting.put_back(unserved)
        elif last is not None and last in left:
            self.waiting.put_back([last], turn.owed)
        for queue in [*turn.queues[turn.last :], *turn.queues[: turn.last]]:
            if queue in left:
                self.waiting.add(queue)
