"""When a leader whose files are damaged hands its shard over. Pure.

Not before the control plane knows of it from this node's reports, or it would give the shard back at once; and again,
ever less often, where it has come back all the same: the others may be damaged as well, and then turns win nothing.
"""

from __future__ import annotations

from collections.abc import Set

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 3600.0
_GROWTH = 4.0


class DamagedLeaders:
    """``report_s``: within this time a report of what is damaged has come to the control plane."""

    def __init__(self, report_s: float) -> None:
        self._report_s = report_s
        self._known: dict[int, tuple[frozenset[str], float, float]] = {}  # what, when to act, the pause after that

    def wait_s(self, shard: int, damage: Set[str], now: float) -> float:
        """Seconds until the shard, with this ``damage``, is to be handed over; 0: now, which is then taken as done."""
        known, due, pause_s = self._known.get(shard, (frozenset(), now, FIRST_PAUSE_S))
        if damage - known:
            due, pause_s = now + self._report_s, FIRST_PAUSE_S
        elif now >= due:
            self._known[shard] = known, now + pause_s, min(pause_s * _GROWTH, LONGEST_PAUSE_S)
            return 0.0
        self._known[shard] = frozenset(damage), due, pause_s
        return due - now
