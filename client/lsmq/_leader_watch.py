"""Watching a request that may never be answered: others are asked meanwhile, and news may end the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from lsmq._route_table import RouteTable

EARLY_LOOKS = 8  # A failover is over by then; after that it is something else, and no longer urgent.
LATE_LOOK_S = 1.0


class LeaderWatch:
    """``async with LeaderWatch(..): await request`` gives up with ``TimeoutError`` once ``moved()`` is true.

    It is asked after each change of the table. When ``silence_s`` have passed ``look()`` is called, which is to
    bring such changes about, and then again and again. An answer that comes soon costs a timer and no task.
    """

    __slots__ = ("_limit", "_look", "_looks", "_moved", "_silence_s", "_table", "_timer")

    def __init__(
        self, table: RouteTable, moved: Callable[[], bool], look: Callable[[], None], silence_s: float
    ) -> None:
        self._table = table
        self._moved = moved
        self._look = look
        self._silence_s = silence_s
        self._looks = 0
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._table.listen(self._check)
        self._set_timer()
        self._check()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.unlisten(self._check)
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._silence_s, self._look_and_go_on)

    def _look_and_go_on(self) -> None:
        self._look()
        self._looks += 1
        if self._looks == EARLY_LOOKS:
            self._silence_s = max(self._silence_s, LATE_LOOK_S)
        self._set_timer()

    def _check(self) -> None:
        if self._moved() and self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time())
