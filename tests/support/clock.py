"""A clock that a test moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SimClock:
    """Implements ``lsmq_node.storage.disk.Clock``."""

    time_ms: int = 1_700_000_000_000
    #: How far the wall clock is from the time that has passed.
    wrong_ms: int = 0

    def now_ms(self) -> int:
        return self.time_ms + self.wrong_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000
