"""Keeps the numbers by topic and group up to date, whether or not somebody asks for them."""

from __future__ import annotations

import asyncio
from typing import Final

from lsmq import runtime
from lsmq_coordinator.parts import kept
from lsmq_node.broker import Background, Broker

from .lags import GroupLags
from .traffic import TopicTraffic

_PERIOD_S: Final = 5.0
#: Lags are counted so often at most, and for this part of the time.
_LAG_PERIOD_S: Final = 15.0
_LAG_SHARE: Final = 0.05


class Monitoring:
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._background = Background("monitoring")
        self.traffic = TopicTraffic(broker, broker.config.metrics_series)
        self.lags = GroupLags(broker, broker.config.metrics_series)

    def start(self) -> None:
        part = self._broker.parts.part("monitoring", essential=False)
        self._background.start(kept(part, self._go_on))

    def begin_stop(self) -> None:
        """Nobody waits for it."""

    async def stop(self) -> None:
        await self._background.stop()

    async def _go_on(self) -> None:
        gathered = due = runtime.monotonic()
        while True:
            began = runtime.monotonic()
            await self.traffic.gather(began - gathered)
            gathered = began
            if began >= due or not self.lags.is_complete:
                await self.lags.count()
                ended = runtime.monotonic()
                due = began + max(_LAG_PERIOD_S, (ended - began) / _LAG_SHARE)
            await asyncio.sleep(_PERIOD_S)
