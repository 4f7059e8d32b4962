"""A limit on bytes a second, shared by all who ask it."""

from __future__ import annotations

import asyncio

BURST_S = 0.1


class Throttle:
    """Loop thread only. Whoever takes bytes waits until they are due, in the order of asking."""

    def __init__(self, bytes_per_s: int) -> None:
        self._seconds_per_byte = 1 / bytes_per_s
        self._due = float("-inf")  # when all that was taken is paid for

    async def take(self, count: int) -> None:
        """Return when ``count`` bytes may be moved. What was not used is not saved up, but for ``BURST_S``."""
        loop = asyncio.get_running_loop()
        self._due = max(self._due, loop.time() - BURST_S) + count * self._seconds_per_byte
        delay = self._due - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)
