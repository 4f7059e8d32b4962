"""When to try again, and when to stop: deadlines and jittered backoff.

A deadline is a point on the monotonic clock. Between attempts a caller sleeps a random time between half
and all of a step that grows by half from ``FIRST_PAUSE_MS`` to ``LONGEST_PAUSE_MS``, so that clients which
lost the same node do not come back in step. The steps grow slowly because a shard has a new leader within a
second mostly: whoever waits must not sleep much longer than that.
"""

from __future__ import annotations

import asyncio
import math

from lsmq import runtime
from lsmq.errors import LsmqError, NotEnoughReplicas, NotLeader, QuotaExceeded, StoreBusy, TimedOut, TooManyDelayed

FIRST_PAUSE_MS = 20
LONGEST_PAUSE_MS = 1_000
GROWTH = 1.5
MAX_SKIPS = 8

#: Of what was asked nothing was done, unless they say that it was ``sent``.
_REFUSED = (StoreBusy, NotLeader, NotEnoughReplicas, QuotaExceeded, TooManyDelayed)

#: As a deadline: whoever has it tries for ever.
NEVER_MS = math.inf

#: A long poll that ends later than that by an error was held by a node that lived.
_HELD_S = 5.0

#: What an attempt gets that begins as the deadline passes: a busy machine answers within it, too.
LEAST_ATTEMPT_S = 0.25


class Deadline:
    """A moment by which something must have happened; handed down to every step towards it."""

    __slots__ = ("at_s", "began_s", "total_ms")

    def __init__(self, total_ms: float, *, start_s: float | None = None) -> None:
        """``start_s`` is the monotonic time it counts from; now, when left out."""
        self.total_ms = total_ms
        self.began_s = runtime.monotonic() if start_s is None else start_s
        self.at_s = self.began_s + total_ms / 1000

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - runtime.monotonic())

    def attempt_s(self, timeout_s: float) -> float:
        """Seconds for an attempt that may take ``timeout_s``: what is left of them, and a little for the last one."""
        return min(timeout_s, max(self.remaining_s(), LEAST_ATTEMPT_S))

    @property
    def passed(self) -> bool:
        return runtime.monotonic() >= self.at_s


class Backoff:
    """Pauses between attempts. ``rng`` may be seeded for a replay."""

    __slots__ = ("_rng", "_skips", "_step_ms")

    def __init__(self, rng: runtime.Random | None = None) -> None:
        self._rng = rng or runtime.random
        self._step_ms: float = FIRST_PAUSE_MS
        self._skips = 0

    def next_s(self) -> float:
        """The next pause in seconds; the one after it is up to three times as long."""
        step_ms = self._step_ms
        self._step_ms = min(step_ms * GROWTH, LONGEST_PAUSE_MS)
        return self._rng.uniform(step_ms / 2, step_ms) / 1000

    def reset(self) -> None:
        """Start again from the shortest pause, after a success."""
        self._step_ms = FIRST_PAUSE_MS
        self._skips = 0

    def skip(self) -> bool:
        """Whether to try again at once, since something is new; so many times, and no more, between two successes.

        Then pauses start again from the shortest.
        """
        if self._skips >= MAX_SKIPS:
            return False
        self._skips += 1
        self._step_ms = FIRST_PAUSE_MS
        return True

    async def pause(self, deadline: Deadline | None = None, news: asyncio.Event | None = None) -> bool:
        """Sleep the next pause, cut at ``deadline``, or until there is ``news``; whether there is."""
        pause_s = self.next_s()
        if deadline is not None:
            pause_s = min(pause_s, deadline.remaining_s())
        if news is None:
            await asyncio.sleep(pause_s)
            return False
        try:
            async with asyncio.timeout(pause_s):
                return await news.wait()
        except TimeoutError:
            return False


def maybe_carried_out(error: LsmqError) -> bool:
    """Whether the node may have done what was asked although this error came of it."""
    return bool(error.details.get("sent", not isinstance(error, _REFUSED)))


def was_held(error: LsmqError, took_s: float) -> bool:
    """Whether a long poll, which failed then, had been held: what failed before it is over, though nothing came."""
    return took_s >= _HELD_S and not isinstance(error, TimedOut)


def give_up(error: LsmqError, method: str, path: str, deadline: Deadline) -> LsmqError:
    message = f"{method} {path} had no success within {deadline.total_ms / 1000:g} s; last: {error.message}"
    return type(error)(message, **error.details)
