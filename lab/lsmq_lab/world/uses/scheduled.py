"""A message each minute."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from lsmq import Client, Schedules
from lsmq.errors import LsmqError

from .use import Use, UsedTopics, UseRole, all_of

_MINUTE_MS = 60_000


class Scheduled(Use):
    """One message of each time, and one of a time that came after the schedule was acknowledged."""

    name = "scheduled"
    topics: ClassVar[UsedTopics] = {"ticks": {"queues": 1}}

    def roles(self) -> Sequence[UseRole]:
        self._since_ms: float | None = None
        return [("clock", self._put)]

    async def _put(self, client: Client) -> None:
        schedules = Schedules(client, "ticks")
        while not self.load.stopping:
            try:
                await schedules.put("tick", "* * * * *", "tick")
            except LsmqError:
                await asyncio.sleep(0.05)
                continue
            self._since_ms = self.wall_ms
            return

    async def read_back(self, client: Client) -> None:
        if self._since_ms is None:
            return
        due_ms = int(self._since_ms // _MINUTE_MS + 1) * _MINUTE_MS
        counts = Counter[int]()
        for _ in range(20):
            messages = await all_of(client, "ticks")
            counts = Counter(int(message.properties["scheduled_ms"]) for message in messages)
            # Where a clock was wrong, later times may have come already, and this one with them.
            if self.wall_ms < due_ms + 1_000 or (counts and max(counts) >= due_ms):
                break
            await asyncio.sleep(0.25)
        else:
            self.wrong(f"nothing has come of {due_ms} by {self.wall_ms:.0f}")
        for moment_ms, count in counts.items():
            if count > 1:
                self.wrong(f"{count} messages came of {moment_ms}")
        self.counted = counts.total()
