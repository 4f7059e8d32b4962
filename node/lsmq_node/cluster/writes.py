"""Writes of producers that wait for their acknowledgement at one shard, in the order of the log.

A group commit that fails drops everything in line and ends a *round* of the store; LSNs of the next round begin where
the written ones ended. What waits is therefore known by round and LSN.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import structlog
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_node.broker.topology import Ack
from lsmq_node.storage import Appended, Committed

_log = structlog.get_logger("lsmq.cluster")

WhyRefused = Callable[[], LsmqError | None]
Touched = Callable[[int, Sequence[NDArray[Any]]], None]

_ALL_ROUNDS = 1 << 62
#: Group commits of the last moments, to say of a slow write whether it was this disk.
_REMEMBERED_COMMITS = 256


class WaitingWrites:
    """Loop thread only. Callers that are cancelled leave their write as it is."""

    def __init__(
        self,
        shard: int,
        touched: Touched,
        *,
        timeout_s: float = float("inf"),
        verdict: WhyRefused = lambda: None,
    ) -> None:
        """Args:
        touched: called with a topic's id and the queues of which a commit has made more visible.
        verdict: asked when a write has come far enough: None, or why it may not be acknowledged.
        """
        self._shard = shard
        self._touched = touched
        self._timeout_s = timeout_s
        self._verdict = verdict
        self._lines = {ack: _Line() for ack in Ack}
        self._durable: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED_COMMITS)  # LSN and when, growing
        self.added = 0
        self.failed_commits = 0
        self._dropping = False  # since the last commit

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, appended: Appended, ack: Ack, reached_lsn: int, now: float) -> asyncio.Future[None]:
        """What to await until a write is acknowledged. Call it in the same step of the loop as the append.

        ``reached_lsn``: so far everything has come that this ``ack`` asks for.
        """
        self.added += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if appended.duplicate and appended.lsn <= reached_lsn:
            _answer(future, self._verdict())
        else:
            self._lines[ack].waiting.append(_Waiting(appended.round, appended.lsn, now + self._timeout_s, future))
        return future

    def durable(self, lsn: int) -> None:
        """The leader's own log is on its disk up to there."""
        self._durable.append((lsn, runtime.monotonic()))
        self._lines[Ack.LEADER].reached(_ALL_ROUNDS, lsn, self._verdict)

    def durable_at(self, lsn: int) -> float | None:
        """When it was, on the clock of ``runtime.monotonic``; None where that is not remembered."""
        found = None
        for durable_lsn, moment in reversed(self._durable):
            if durable_lsn < lsn:
                return found
            found = moment
        return None

    def committed(self, event: Committed) -> None:
        """What was committed is applied; or a round has failed."""
        error = event.error
        if error is None:
            self._dropping = False
            self._lines[Ack.QUORUM].reached(event.round, event.lsn, self._verdict)
        else:
            self.failed_commits += 1
            if not self._dropping:  # Those who go on writing need not fill a disk with log lines.
                self._dropping = True
                _log.error("writes_dropped", shard=self._shard, code=error.code, message=error.message)
            for line in self._lines.values():
                line.dropped(event.round, event.lsn, error)
        touched: dict[int, list[NDArray[Any]]] = {}
        for topic_id, queues in event.touched:
            touched.setdefault(topic_id, []).append(queues)
        for topic_id, pieces in touched.items():
            self._touched(topic_id, pieces)

    def expire(self, now: float, error: Callable[[], LsmqError]) -> None:
        """Answer those whose time is over."""
        for line in self._lines.values():
            while line.waiting and line.waiting[0].deadline <= now:
                _answer(line.waiting.popleft().future, error())

    def fail(self, error: LsmqError) -> None:
        for line in self._lines.values():
            while line.waiting:
                _answer(line.waiting.popleft().future, error)

    async def settled(self, timeout_s: float | None = None) -> None:
        """Return when nothing waits any more, or when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while len(self):
                    await asyncio.wait([line.waiting[-1].future for line in self._lines.values() if line.waiting])
                    await asyncio.sleep(0)  # Let what resolved them take them out of the line.
        except TimeoutError:
            pass


class _Waiting(NamedTuple):
    round: int
    lsn: int
    deadline: float
    future: asyncio.Future[None]


class _Line:
    """Writes that wait for the same thing. Deadlines never fall."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        return len(self.waiting)

    def reached(self, round_: int, lsn: int, verdict: WhyRefused) -> None:
        """All up to ``lsn`` in rounds up to ``round_`` are answered: well, or with the error that ``verdict`` finds."""
        waiting = self.waiting
        if not waiting or waiting[0].round > round_ or waiting[0].lsn > lsn:
            return
        error = verdict()
        while waiting and waiting[0].round <= round_ and waiting[0].lsn <= lsn:
            _answer(waiting.popleft().future, error)

    def dropped(self, round_: int, lsn: int, error: LsmqError) -> None:
        """A round failed: what was in line above ``lsn`` is gone, what is below goes on waiting."""
        kept: deque[_Waiting] = deque()
        for item in self.waiting:
            if item.round <= round_ and item.lsn > lsn:
                _answer(item.future, error)
            else:
                kept.append(item)
        self.waiting = kept


def _answer(future: asyncio.Future[None], error: LsmqError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # A cancelled caller leaves nobody to look at it.
