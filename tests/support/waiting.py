"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

#: After so long it will not come true any more, however slow the machine and whatever else it does.
PATIENCE_S = 90.0


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"in {timeout_s} s it never came true that {what}"
        time.sleep(0.01)


def clock_passes(moment_ms: int) -> None:
    """Return once the wall clock shows a later millisecond."""
    eventually(lambda: time.time_ns() // 1_000_000 > moment_ms, "the clock goes on")


async def comes_true(condition: Callable[[], bool | Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S) -> None:
    """:func:`eventually` in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < deadline, f"in {timeout_s} s it never came true that {what}"
        await asyncio.sleep(0.01)
