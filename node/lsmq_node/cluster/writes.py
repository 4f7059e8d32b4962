"""Writes of producers that wait for their acknowledgement at one replica: at quorum, and at the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lsmq.errors import LsmqError
from lsmq_node.broker.topology import Ack
from lsmq_node.storage import Appended, Committed

from .pending import PendingWrites, Verdict

_ALL_ROUNDS = 1 << 62


class WaitingWrites:
    """``verdict`` is asked when a write has come far enough: None, or why it may not be acknowledged."""

    def __init__(self, timeout_s: float, verdict: Verdict) -> None:
        self._timeout_s = timeout_s
        self._verdict = verdict
        self._lines = {ack: PendingWrites() for ack in Ack}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, appended: Appended, ack: Ack, reached_lsn: int, now: float) -> asyncio.Future[None]:
        """``reached_lsn``: so far everything has come that this ``ack`` asks for."""
        line = self._lines[ack]
        future = line.add(appended.round, appended.lsn, now + self._timeout_s)
        if appended.duplicate and appended.lsn <= reached_lsn:
            line.reached(appended.round, appended.lsn, self._verdict)
        return future

    def durable(self, lsn: int) -> None:
        """The leader's own log is on its disk up to there."""
        self._lines[Ack.LEADER].reached(_ALL_ROUNDS, lsn, self._verdict)

    def committed(self, event: Committed) -> None:
        """What was committed is applied; or a round has failed."""
        if event.error is None:
            self._lines[Ack.QUORUM].reached(event.round, event.lsn, self._verdict)
        else:
            for line in self._lines.values():
                line.dropped(event.round, event.lsn, event.error)

    def expire(self, now: float, error: Callable[[], LsmqError]) -> None:
        for line in self._lines.values():
            line.expire(now, error)

    def fail(self, error: LsmqError) -> None:
        for line in self._lines.values():
            line.fail_all(error)

    async def settled(self, timeout_s: float) -> None:
        """Return when nothing waits any more, or when the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while len(self) and loop.time() < deadline:
            last = [future for line in self._lines.values() if (future := line.last()) is not None]
            await asyncio.wait(last, timeout=deadline - loop.time())
            await asyncio.sleep(0)  # Let what resolved it take it out of the line.
