"""How fast one client may ask: so many requests and bytes a second, delayed first, refused when that is not enough.

What was taken is a debt, which is paid by time. Debts are kept in two halves: when the newer is full the older goes,
and with it those who asked for nothing since it was the newer. So memory is bounded, and nothing is searched.
"""

from __future__ import annotations

import asyncio

from lsmq.errors import TooManyRequests

#: What may come at once, in seconds of the rate: clients come in bursts.
BURST_S = 1.0
#: A request waits for so long at most; one that would have to wait longer is refused.
LONGEST_DELAY_S = 1.0
#: So many requests wait at a time, and of one client; one more is refused.
MOST_DELAYED = 1_000
MOST_DELAYED_OF_ONE = 100
#: So many clients are known.
_MOST_CLIENTS = 100_000


class Debts:
    """When all that a client has taken is paid for, of a bounded number of clients."""

    def __init__(self) -> None:
        self._newer: dict[str, tuple[float, float]] = {}  # when, at which rate
        self._older: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def due(self, client: str, now: float, per_s: float) -> float:
        """``now``, or later. What was owed at another rate is paid at ``per_s`` from now on."""
        found = self._newer.get(client) or self._older.get(client)
        if found is None or found[0] <= now:
            return now
        due, before = found
        return due if before == per_s else now + (due - now) * before / per_s

    def owe(self, client: str, due: float, per_s: float) -> None:
        """It is paid at ``per_s`` by then."""
        if client not in self._newer and len(self._newer) >= _MOST_CLIENTS // 2:
            self._older, self._newer = self._newer, {}
        self._older.pop(client, None)
        self._newer[client] = due, per_s


class LimitPace:
    """Of one limit. Loop thread only. A rate of 0 is no limit."""

    def __init__(self, what: str, setting: str) -> None:
        """``what`` is counted, in words; ``setting`` is the name that the limit goes by."""
        self.setting = setting
        self._what = what
        self._debts = Debts()
        self._waiting: dict[str, int] = {}  # requests that are delayed, by client
        self._waiting_count = 0
        self.delayed = 0
        self.refused = 0

    def __len__(self) -> int:
        """Clients that are known."""
        return len(self._debts)

    async def wait(self, client: str, per_s: int, count: int = 0, whose: str = "your address") -> None:
        """Take ``count``, and return when the client may go on. Raises ``TooManyRequests``; nothing is taken then.

        ``per_s`` is how much he may have in a second, and ``whose`` names him.
        """
        if not per_s:
            return
        now = asyncio.get_running_loop().time()
        delay_s = self._debts.due(client, now, per_s) - now - BURST_S
        if delay_s > 0 and (delay_s > LONGEST_DELAY_S or self._is_crowded(client)):
            self.refused += 1
            retry_after_ms = int(1000 * (delay_s if delay_s <= LONGEST_DELAY_S else delay_s - LONGEST_DELAY_S)) + 1
            raise TooManyRequests(
                f"{whose} takes more than {per_s} {self._what} a second, the limit ({self.setting}); come again in "
                f"{retry_after_ms} ms, and more slowly",
                setting=self.setting,
                limit=per_s,
                retry_after_ms=retry_after_ms,
                sent=False,
            )
        self.took(client, per_s, count)
        if delay_s > 0:
            self.delayed += 1
            self._waiting[client] = self._waiting.get(client, 0) + 1
            self._waiting_count += 1
            try:
                await asyncio.sleep(delay_s)
            finally:
                self._waiting_count -= 1
                self._waiting[client] -= 1
                if not self._waiting[client]:
                    del self._waiting[client]

    def took(self, client: str, per_s: int, count: int) -> None:
        """The client has had so much, whatever the limit."""
        if per_s and count:
            now = asyncio.get_running_loop().time()
            self._debts.owe(client, self._debts.due(client, now, per_s) + count / per_s, per_s)

    def _is_crowded(self, client: str) -> bool:
        return self._waiting_count >= MOST_DELAYED or self._waiting.get(client, 0) >= MOST_DELAYED_OF_ONE
