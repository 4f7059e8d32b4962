"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

#: After so long it will not come true any more, however slow the machine and whatever else it does.
PATIENCE_S = 90.0

Found = TypeVar("Found")


def eventually(condition: Callable[[], Found], what: str, timeout_s: float = PATIENCE_S) -> Found:
    """Return as soon as the condition holds, and what it gave then; fail when it does not in time."""
    began = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"in {timeout_s} s it never came true that {what}"
        time.sleep(_pause_s(waited_s))
    return found


def _pause_s(waited_s: float) -> float:
    """A look may cost a request to each node of a cluster: what takes seconds is looked at less and less often."""
    return min(0.1, max(0.01, waited_s / 40))


def clock_passes(moment_ms: int) -> None:
    """Return once the wall clock shows a later millisecond."""
    eventually(lambda: time.time_ns() // 1_000_000 > moment_ms, "the clock goes on")


async def comes_true(
    condition: Callable[[], Found | Awaitable[Found]], what: str, timeout_s: float = PATIENCE_S
) -> Found:
    """:func:`eventually` in an event loop, which goes on meanwhile, and whose clock it is."""
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        waited_s = clock() - began
        assert waited_s < timeout_s, f"in {timeout_s} s it never came true that {what}"
        await asyncio.sleep(_pause_s(waited_s))
