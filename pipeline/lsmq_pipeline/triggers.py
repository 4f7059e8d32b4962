"""When a stream takes a batch: at once, or when enough messages wait, or some wait for too long."""

from __future__ import annotations

import time
from collections.abc import Callable


class TriggerGate:
    """Holds batches of fewer than ``min_messages`` back, for at most ``max_delay_ms`` since the one before.

    The first batch of a query, and the first after it was started again, is not held back.
    """

    def __init__(
        self, min_messages: int | None, max_delay_ms: int, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._min_messages = min_messages
        self._max_delay_s = max_delay_ms / 1000
        self._clock_s = clock_s
        self._last_s: float | None = None

    def lets(self, waiting: int) -> bool:
        """Whether a batch is to be taken now, of so many messages that wait."""
        if self._min_messages is None or waiting >= self._min_messages or self._last_s is None:
            return True
        return self._clock_s() - self._last_s >= self._max_delay_s

    def taken(self) -> None:
        """A batch is taken now."""
        self._last_s = self._clock_s()
