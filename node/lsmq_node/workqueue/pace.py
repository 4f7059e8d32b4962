"""How many messages of a tenant may go in a second: the generic cell rate algorithm, a number for each. Pure.

A tenant that had none lately may have a second's worth at once (one at least), and from then on one each
``1000 / per_s`` ms. Who had none for that long is forgotten.
"""

from __future__ import annotations

import heapq

_SWEEP_AT = 1_024
_EPSILON = 1e-6


class TenantPace:
    """Times are milliseconds on the ledger's clock."""

    def __init__(self, per_s: float) -> None:
        self._interval_ms = 1_000 / per_s
        self._burst_ms = max(1.0, float(int(per_s))) * self._interval_ms
        self._full_at: dict[int, float] = {}  # by tenant: when it may have a burst again
        self._waiting: list[tuple[float, int]] = []
        self._waits: set[int] = set()
        self._sweep_at = _SWEEP_AT

    def room(self, tenant: int, now: int) -> int:
        """How many more it may have now. Where there are none, :meth:`take_due` names it in time."""
        lacks_ms = max(0.0, self._full_at.get(tenant, 0.0) - now)
        room = int((self._burst_ms - lacks_ms) / self._interval_ms + _EPSILON)
        if room <= 0 and tenant not in self._waits:
            self._waits.add(tenant)
            heapq.heappush(self._waiting, (now + lacks_ms - self._burst_ms + self._interval_ms, tenant))
        return max(0, room)

    def spend(self, tenant: int, now: int, count: int = 1) -> None:
        """It had ``count`` messages; below 0: it did not have them after all."""
        self._full_at[tenant] = max(self._full_at.get(tenant, 0.0), float(now)) + count * self._interval_ms
        if len(self._full_at) >= self._sweep_at:
            self._full_at = {known: at for known, at in self._full_at.items() if at > now}
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._full_at))

    @property
    def next_at_ms(self) -> int | None:
        """When somebody may go on that has to wait."""
        return -int(-self._waiting[0][0] // 1) if self._waiting else None

    def take_due(self, now: int) -> list[int]:
        """Tenants that may go on."""
        due: list[int] = []
        while self._waiting and self._waiting[0][0] <= now:
            tenant = heapq.heappop(self._waiting)[1]
            self._waits.discard(tenant)
            due.append(tenant)
        return due
