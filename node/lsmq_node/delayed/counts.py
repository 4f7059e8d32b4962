"""What became of delayed messages since the node began, and how late they were."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from lsmq_node.storage.columns import I64

#: Upper bounds of the buckets of lateness, in milliseconds.
LATENESS_MS = (1, 2, 5, 10, 20, 50, 100, 250, 1_000, 10_000, 60_000)


@dataclass(slots=True)
class DelayedCounts:
    """Loop thread only."""

    delivered: int = 0
    dropped: int = 0  # since their topic was gone
    cancelled: int = 0
    rescheduled: int = 0
    late_sum_ms: int = 0
    late: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_MS) + 1))

    def were_late(self, due_ms: I64, now_ms: int) -> None:
        """These are in their queues now."""
        lateness = np.maximum(now_ms - due_ms, 0)
        self.late_sum_ms += int(lateness.sum())
        if len(lateness) == 1:
            self.late[bisect_left(LATENESS_MS, int(lateness[0]))] += 1
            return
        places = np.searchsorted(LATENESS_MS, lateness)
        for place, count in enumerate(np.bincount(places, minlength=len(self.late)).tolist()):
            self.late[place] += count
