"""When to try again, and when to stop: deadlines and jittered backoff.

A deadline is a point on the monotonic clock. Between attempts a caller sleeps a random time between half
and all of a step that doubles from ``FIRST_PAUSE_MS`` to ``LONGEST_PAUSE_MS``, so that clients which lost
the same node do not come back in step.
"""

from __future__ import annotations

import asyncio
import random
import time

FIRST_PAUSE_MS = 20
LONGEST_PAUSE_MS = 1_000


class Deadline:
    """A moment by which something must have happened; handed down to every step towards it."""

    __slots__ = ("at_s", "total_ms")

    def __init__(self, total_ms: float, *, start_s: float | None = None) -> None:
        """``start_s`` is the monotonic time it counts from; now, when left out."""
        self.total_ms = total_ms
        self.at_s = (time.monotonic() if start_s is None else start_s) + total_ms / 1000

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at_s


class Backoff:
    """Pauses between attempts. ``rng`` may be seeded for a replay."""

    __slots__ = ("_rng", "_step_ms")

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._step_ms: float = FIRST_PAUSE_MS

    def next_s(self) -> float:
        """The next pause in seconds; the one after it is up to twice as long."""
        step_ms = self._step_ms
        self._step_ms = min(step_ms * 2, LONGEST_PAUSE_MS)
        return self._rng.uniform(step_ms / 2, step_ms) / 1000

    def reset(self) -> None:
        """Start again from the shortest pause, after a success."""
        self._step_ms = FIRST_PAUSE_MS

    async def pause(self, deadline: Deadline | None = None) -> None:
        """Sleep the next pause, cut at ``deadline``."""
        pause_s = self.next_s()
        if deadline is not None:
            pause_s = min(pause_s, deadline.remaining_s())
        await asyncio.sleep(pause_s)
