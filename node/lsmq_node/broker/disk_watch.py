"""Whether the disk of a node takes writes: said like everything that works by itself in it."""

from __future__ import annotations

import asyncio

from lsmq_coordinator.parts import kept

from .background import Background
from .broker import Broker

_LOOK_S = 0.25
#: A disk at its limit fills and empties by turns; it has room again when it had some for so long.
_CALM_S = 5.0


class DiskWatch:
    """The part ``disk`` of a node, without which clients may still come: reads go on. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._background = Background("disk")

    def start(self) -> None:
        self._part = self._broker.parts.part("disk", essential=False)
        self._background.start(kept(self._part, self._look))

    def begin_stop(self) -> None:
        """Nobody waits for it."""

    async def stop(self) -> None:
        await self._background.stop()

    async def _look(self) -> None:
        loop, config = asyncio.get_running_loop(), self._broker.config
        full_at = float("-inf")
        while True:
            await asyncio.sleep(_LOOK_S)
            if any(port.store.disk_full for port in self._broker.topology.ports()):
                full_at = loop.time()
                # Without figures that change: what is said is said once.
                self._part.retrying(
                    f"the disk of {config.data.absolute()} has no room: writes are refused, reads go on. Free some "
                    f"space: {config.min_free_bytes >> 20} MiB (min_free_bytes) are kept for flushing"
                )
            elif loop.time() - full_at >= _CALM_S:
                self._part.running()
