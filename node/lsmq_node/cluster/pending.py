"""Writes that wait for their acknowledgement, in the order of the log.

A group commit that fails drops everything in line and ends a *round* of the store; LSNs of the next round begin
where the written ones ended. What waits is therefore known by round and LSN.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from lsmq.errors import LsmqError

Verdict = Callable[[], LsmqError | None]


class _Waiting(NamedTuple):
    round: int
    lsn: int
    deadline: float
    future: asyncio.Future[None]


class PendingWrites:
    """Loop thread only. Futures that were cancelled leave the write as it is."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, round_: int, lsn: int, deadline: float = float("inf")) -> asyncio.Future[None]:
        """Wait for what was appended last: up to ``lsn``, in ``round_``. Deadlines never fall."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(_Waiting(round_, lsn, deadline, future))
        return future

    def last(self) -> asyncio.Future[None] | None:
        """Whoever waits longest from now."""
        return self._waiting[-1].future if self._waiting else None

    def reached(self, round_: int, lsn: int, verdict: Verdict | None = None) -> None:
        """All up to ``lsn`` in rounds up to ``round_`` are answered: well, or with the error that ``verdict`` finds."""
        waiting = self._waiting
        if not waiting or waiting[0].round > round_ or waiting[0].lsn > lsn:
            return
        error = verdict() if verdict is not None else None
        while waiting and waiting[0].round <= round_ and waiting[0].lsn <= lsn:
            _answer(waiting.popleft().future, error)

    def dropped(self, round_: int, lsn: int, error: LsmqError) -> None:
        """A round failed: what was in line above ``lsn`` is gone, what is below goes on waiting."""
        kept: deque[_Waiting] = deque()
        for item in self._waiting:
            if item.round <= round_ and item.lsn > lsn:
                _answer(item.future, error)
            else:
                kept.append(item)
        self._waiting = kept

    def expire(self, now: float, error: Callable[[], LsmqError]) -> None:
        """Answer those whose deadline is over."""
        while self._waiting and self._waiting[0].deadline <= now:
            _answer(self._waiting.popleft().future, error())

    def fail_all(self, error: LsmqError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            _answer(item.future, error)


def _answer(future: asyncio.Future[None], error: LsmqError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # A cancelled caller leaves nobody to look at it.
