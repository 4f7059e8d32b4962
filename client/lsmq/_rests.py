"""Nodes that said when to come again: until then they are asked nothing, by nobody of the same client."""

from __future__ import annotations

import asyncio

from lsmq import runtime
from lsmq.errors import LsmqError, TooManyRequests

#: Who has waited comes somewhat later than he may, so that not all come at once.
_JITTER = 0.25


#: Whoever says more is asked again after so long.
_LONGEST_S = 3600.0


class Rests:
    """Of one client."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}  # by node, on the monotonic clock
        self._rng = runtime.Random()

    def heed(self, node: str, error: LsmqError) -> None:
        """The node answered with this."""
        if isinstance(error, TooManyRequests):
            pause_s = _pause_s(error.details.get("retry_after_ms", 0))
            until_s = runtime.monotonic() + pause_s * (1 + self._rng.uniform(0, _JITTER))
            self._until_s[node] = max(until_s, self._until_s.get(node, until_s))

    async def wait(self, node: str, timeout_s: float) -> float:
        """Return when the node may be asked, and what is left of the time. Raises ``TooManyRequests`` for nothing."""
        until_s = self._until_s.get(node)
        if until_s is None:
            return timeout_s
        left_s = until_s - runtime.monotonic()
        if left_s > 0:
            await asyncio.sleep(min(left_s, timeout_s))
        if left_s > timeout_s:
            raise TooManyRequests(
                f"{node} said to come again in {left_s:.1f} s, which is later than this request can wait",
                retry_after_ms=int(1000 * (left_s - timeout_s)) + 1,
                sent=False,
            )
        if self._until_s.get(node) == until_s:
            del self._until_s[node]
        return timeout_s - max(left_s, 0)


def _pause_s(said_ms: object) -> float:
    """What a node said, which may be no node; none for what is no time."""
    if not isinstance(said_ms, int | float) or not said_ms > 0:
        return 0.0
    return min(said_ms, 1000 * _LONGEST_S) / 1000
