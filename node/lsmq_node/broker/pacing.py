"""How fast one client may ask: so many requests and bytes a second, delayed first, refused when that is not enough.

What was taken is a debt, which is paid by time. A client that owes nothing is forgotten, so memory is for those alone
who asked lately.
"""

from __future__ import annotations

import asyncio

from lsmq.errors import TooManyRequests

#: What may come at once, in seconds of the rate: clients come in bursts.
BURST_S = 1.0
#: A request waits for so long at most; one that would have to wait longer is refused.
LONGEST_DELAY_S = 1.0
#: So many clients are known, then those that owe nothing are looked for, and if there are none, one is forgotten.
_MOST_CLIENTS = 100_000


class Pace:
    """Loop thread only. ``per_s`` is how much of something one client may have in a second; 0: as much as it likes."""

    def __init__(self, per_s: int, what: str, setting: str) -> None:
        self._per_s = per_s
        self._what = what
        self._setting = setting
        self._due: dict[str, float] = {}  # when all that a client has taken is paid for
        self.delayed = 0
        self.refused = 0

    def __len__(self) -> int:
        """Clients that are known."""
        return len(self._due)

    async def wait(self, client: str, count: int = 0) -> None:
        """Take ``count``, and return when the client may go on. Raises ``TooManyRequests``; nothing is taken then."""
        if not self._per_s:
            return
        now = asyncio.get_running_loop().time()
        delay_s = self._due.get(client, now) - now - BURST_S
        if delay_s > LONGEST_DELAY_S:
            self.refused += 1
            retry_after_ms = int(1000 * (delay_s - LONGEST_DELAY_S)) + 1
            raise TooManyRequests(
                f"your address takes more than {self._per_s} {self._what} a second, the limit ({self._setting}); come "
                f"again in {retry_after_ms} ms, and more slowly",
                limit=self._per_s,
                retry_after_ms=retry_after_ms,
            )
        self.took(client, count)
        if delay_s > 0:
            self.delayed += 1
            await asyncio.sleep(delay_s)

    def took(self, client: str, count: int) -> None:
        """The client has had so much, whatever the limit."""
        if self._per_s and count:
            now = asyncio.get_running_loop().time()
            if client not in self._due and len(self._due) >= _MOST_CLIENTS:
                self._forget(now)
            self._due[client] = max(self._due.get(client, now), now) + count / self._per_s

    def _forget(self, now: float) -> None:
        self._due = {client: due for client, due in self._due.items() if due > now}
        if len(self._due) >= _MOST_CLIENTS:
            del self._due[next(iter(self._due))]
