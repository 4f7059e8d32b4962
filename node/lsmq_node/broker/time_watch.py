"""Saying so where stamps stand still, since a clock was ahead."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .background import KeptService

if TYPE_CHECKING:
    from .broker import Broker

_LOOK_S = 2.0
#: From here on it is said: less passes while somebody looks.
_SAID_MS = 60_000


class TimeWatch(KeptService):
    """The part ``stored-times`` of a node: whether what it leads is stamped with the time. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "stored-times")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            stores = {port.number: port.store.delayed for port in self._broker.topology.ports()}
            ahead = {number: each.now_ms() for number, each in stores.items() if each.ahead_ms > _SAID_MS}
            if ahead:
                shards = ", ".join(map(str, sorted(ahead)))
                until = datetime.fromtimestamp(max(ahead.values()) / 1000, UTC)
                self._part.retrying(
                    f"times in shard {shards} stand still at {until:%Y-%m-%d %H:%M}Z, as the "
                    "clock was ahead, or is behind now: until it has caught up, delayed messages and schedules wait, "
                    "and what is stored does not expire. Set the clock right, and where that is long, use other shards"
                )
            else:
                self._part.running()
