"""Which groups of a shard nobody has used for long. Pure: no clock, no I/O.

Time is counted in hours during which somebody led the shard and served it, and kept with the shard: a wrong clock makes
no group old, nor does a node that was away. Documents (decimal digits):

======================== =====================================================
``group-hours``          hours so far
``group-used/<group>``   in which of them the group was used last, or nearly
======================== =====================================================
"""

from __future__ import annotations

from collections.abc import Iterable

HOUR_S = 3_600.0
HOURS = "group-hours"
USED = "group-used/"
#: A use is written down when the last one that is was so large a part of the retention ago.
_EXACTNESS = 8

Documents = dict[str, bytes | None]


class IdleGroups:
    """Loop thread only. A call that changes something returns the documents that say so."""

    def __init__(self, retention_hours: int) -> None:
        """0 hours: groups are kept for ever, and nothing is written down."""
        self._retention = retention_hours
        self._hours = 0
        self._used: dict[str, int] = {}

    def load(self, documents: Iterable[tuple[str, bytes]]) -> None:
        for key, body in documents:
            if key == HOURS:
                self._hours = int(body)
            else:
                self._used[key.removeprefix(USED)] = int(body)

    def touch(self, group: str) -> Documents:
        """The group is used."""
        used = self._used.get(group)
        if not self._retention or (used is not None and (self._hours - used) * _EXACTNESS < self._retention):
            return {}
        self._used[group] = self._hours
        return {USED + group: b"%d" % self._hours}

    def hour(self) -> Documents:
        """An hour has passed."""
        if not self._used:
            return {}
        self._hours += 1
        return {HOURS: b"%d" % self._hours}

    def idle(self) -> list[str]:
        """Groups that were not used for the whole retention."""
        return [name for name, used in self._used.items() if self._hours - used >= self._retention > 0]

    def forget(self, group: str) -> Documents:
        """There is nothing left of it."""
        return {} if self._used.pop(group, None) is None else {USED + group: None}
