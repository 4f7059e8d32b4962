"""Which things of a kind in a shard, such as groups, nobody has used for long. Pure: no clock, no I/O.

Time is counted in hours during which somebody led the shard and served it, and kept with the shard: a wrong clock makes
nothing old, nor does a node that was away. Documents (decimal digits):

======================== =====================================================
``<kind>-hours``         hours so far
``<kind>-used/<name>``   in which of them it was used last, or nearly
======================== =====================================================
"""

from __future__ import annotations

from collections.abc import Iterable

HOUR_S = 3_600.0
#: A use is written down when the last one that is was so large a part of the retention ago.
_EXACTNESS = 8

IdleDocuments = dict[str, bytes | None]


class IdleNames:
    """Loop thread only. A call that changes something returns the documents that say so."""

    def __init__(self, kind: str, retention_hours: int) -> None:
        """0 hours: what there is is kept for ever, and nothing is written down."""
        self.hours_key = f"{kind}-hours"
        self.used_prefix = f"{kind}-used/"
        self._retention = retention_hours
        self._hours = 0
        self._used: dict[str, int] = {}

    def load(self, documents: Iterable[tuple[str, bytes]]) -> None:
        for key, body in documents:
            if key == self.hours_key:
                self._hours = int(body)
            else:
                self._used[key.removeprefix(self.used_prefix)] = int(body)

    def touch(self, name: str) -> IdleDocuments:
        """It is used."""
        used = self._used.get(name)
        if not self._retention or (used is not None and (self._hours - used) * _EXACTNESS < self._retention):
            return {}
        self._used[name] = self._hours
        return {self.used_prefix + name: b"%d" % self._hours}

    def hour(self) -> IdleDocuments:
        """An hour has passed."""
        if not self._used:
            return {}
        self._hours += 1
        return {self.hours_key: b"%d" % self._hours}

    def names(self) -> list[str]:
        """All whose use is written down."""
        return list(self._used)

    def idle(self) -> list[str]:
        """Those that were not used for the whole retention."""
        return [name for name in self._used if self.is_idle(name)]

    def is_idle(self, name: str) -> bool:
        """Whether it was not used for the whole retention, by now."""
        used = self._used.get(name)
        return used is not None and self._hours - used >= self._retention > 0

    def knows(self, name: str) -> bool:
        """Whether it was used since uses are written down."""
        return name in self._used or not self._retention

    def forget(self, name: str) -> IdleDocuments:
        """There is nothing left of it."""
        return {} if self._used.pop(name, None) is None else {self.used_prefix + name: None}
