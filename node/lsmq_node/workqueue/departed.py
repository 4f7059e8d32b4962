"""Messages that rest and are not there any more: where one was deleted, or has expired, the next of its key does not
wait until its time comes.

Only those are looked for that others of their key wait for; the rest is found to be gone when its turn comes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lsmq.errors import LsmqError

from .reading import Found, read_again

if TYPE_CHECKING:
    from .shard_work import ShardWork
    from .tasks import OpenMessage

_EACH_S = 5.0
#: Timers that are gone through, and bytes that are read, each time.
_TIMERS, _BYTES = 1_000, 1 << 20


class DepartedLook:
    """Goes round the timers of a ledger. Loop thread only."""

    def __init__(self, work: ShardWork) -> None:
        self._work = work
        self._next = 0
        self._next_s = 0.0
        self._looking = False
        self._tasks: dict[tuple[int, int], OpenMessage] = {}  # that are to be looked at

    def due(self, now_s: float) -> bool:
        """Whether to :meth:`look` now."""
        ledger = self._work.ledger
        if self._looking or not ledger.is_by_key or not ledger.blocked or now_s < self._next_s:
            return False
        self._next_s, self._looking = now_s + _EACH_S, True
        return True

    async def look(self) -> None:
        try:
            with suppress(LsmqError):  # Another time.
                await self._look()
        finally:
            self._looking = False

    async def _look(self) -> None:
        work, ledger = self._work, self._work.ledger
        if not self._tasks:
            self._next = self._next if self._next < ledger.timer_count else 0
            tasks = ledger.resting(self._next, _TIMERS)
            self._tasks = {(task.queue, task.offset): task for task in tasks}
            self._next += _TIMERS
        if not self._tasks:
            return
        found = Found()
        await work.in_readers(lambda: read_again(work.store, work.topic.id, sorted(self._tasks), _BYTES, found))
        work.check()
        seen = {*found.again, *found.gone, *found.damaged}
        gone = [self._tasks[place] for place in found.gone]
        self._tasks = {place: task for place, task in self._tasks.items() if place not in seen} if seen else {}
        if gone:
            ledger.gone(gone, work.now_ms())
            work.after()
