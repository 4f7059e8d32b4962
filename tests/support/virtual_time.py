"""An event loop whose clock goes on only when nothing else is left to do, and then at once to the next timer.

For tests of pure asyncio code: whatever takes its time from the loop or from :mod:`lsmq.runtime` sees hours pass in no
time, "nothing happens until then" is shown and not slept for, and a busy machine changes nothing. A test that waits for
what cannot happen any more fails, for nothing is left that could.

Not supported: sockets and pipes, since what others send to them takes time of its own. Work of executors is waited for
before any timer, and takes none: it must not wait for one.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any

from lsmq import runtime


class _Clock(selectors.DefaultSelector):
    """Waits for nobody: the time that a loop would have waited has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0
        self.outside = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if self.outside and timeout != 0 else 0)
        if not ready and timeout != 0:
            assert len(self.get_map()) == 1, "sockets keep no virtual time"  # One is the loop's own, for threads.
            assert timeout is not None, "nothing is left that could happen"
            self.passed_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._clock = _Clock()
        self._began_s = time.monotonic()
        super().__init__(self._clock)

    @property
    def passed_s(self) -> float:
        """Seconds that have passed for this loop since it was made."""
        return self._clock.passed_s

    def time(self) -> float:
        return self._began_s + self._clock.passed_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        work = super().run_in_executor(executor, func, *args)
        self._clock.outside += 1
        work.add_done_callback(self._came_back)
        return work

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self._clock.outside += 1
        await super().shutdown_default_executor()
        self._clock.outside -= 1

    def _came_back(self, _: object) -> None:
        self._clock.outside -= 1


def run_in_virtual_time(test: Coroutine[Any, Any, None]) -> None:
    """:func:`asyncio.run` in such a loop, whose clock is also that of the product meanwhile."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        wall_s = time.time()
        former = runtime.install(
            {
                "monotonic": loop.time,
                "boot_time": loop.time,
                "wall_time": lambda: wall_s + loop.passed_s,
                "wall_ms": lambda: int(1_000 * (wall_s + loop.passed_s)),
            }
        )
        try:
            runner.run(test)
        finally:
            runtime.install(former)
