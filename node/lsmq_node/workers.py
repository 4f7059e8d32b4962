"""A thread for what would keep the event loop: unpacking large bodies, packing large answers.

One, so that large requests wait for one another and not everybody for them: whatever they cost, the loop has every
other turn of the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from lsmq import runtime

#: What has fewer bytes than this is done on the loop, where it takes a millisecond at most.
LARGE_BYTES: Final = 32 * 1024

#: Values that are looked at in a few milliseconds.
_VALUES_A_TURN = 1_000

Result = TypeVar("Result")


class Workers:
    """Close it after the last call."""

    def __init__(self) -> None:
        self._threads = runtime.ThreadPoolExecutor(1, "lsmq-large")
        self.large = 0  # pieces of work that were done in the thread

    async def run(self, work: Callable[[], Result], *, large: bool) -> Result:
        """What ``work`` gives: done at once, or in the thread where it is ``large``. It may touch nothing shared."""
        if not large:
            return work()
        self.large += 1
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)


class LoopTurns:
    """Work on the loop that may be long, in pieces: the others have a turn after each."""

    def __init__(self) -> None:
        self._left = _VALUES_A_TURN

    async def after(self, values: int) -> None:
        """So many values were looked at."""
        self._left -= values
        if self._left <= 0:
            self._left = _VALUES_A_TURN
            await asyncio.sleep(0)
