"""Keeps the numbers by topic and group up to date, whether or not somebody asks for them."""

from __future__ import annotations

import asyncio
from typing import Final

from lsmq import runtime
from lsmq_node.broker import Broker, KeptService

from .lag_history import LagHistory
from .lags import GroupLags
from .traffic import TopicTraffic

#: Between two counts of the same.
_PERIOD_S: Final = 5.0


class Monitoring(KeptService):
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "monitoring")
        self.traffic = TopicTraffic(broker, broker.config.metrics_series)
        self.lags = GroupLags(broker, broker.config.metrics_series)
        self.lag_history = LagHistory(broker, self.lags)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gather_on())
            tasks.create_task(self._count_on())
            tasks.create_task(self.lag_history.sample_on())

    async def _gather_on(self) -> None:
        gathered = runtime.monotonic()
        while True:
            began = runtime.monotonic()
            await self.traffic.gather(began - gathered)
            gathered = began
            await asyncio.sleep(_PERIOD_S)

    async def _count_on(self) -> None:
        while True:
            await self.lags.count(self.lag_history.wanted())
            await asyncio.sleep(_PERIOD_S)
