"""Queues with names that are read at followers for the time being.

A leader that sends queues away sets them aside in its session, and goes on with the others; which those are it knows by
itself, so that nothing is left out when it is asked. Queues that come back are asked for in a new session, which begins
where they have come to. The leader then sends away again what is away, and nothing is done: that is under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from lsmq._follower_reads import FetchOutcome, FollowerReadMode, FollowerReads


class NamedFollowerReads(FollowerReads):
    """The slots of one fetcher, all of which are ``near``, and the queues that are ``away``, by number.

    ``away`` is changed here, and read elsewhere: of these queues nothing must be forgotten.
    """

    def __init__(
        self,
        slots: Sequence[range],
        fetch: Callable[[str, Sequence[range], FollowerReadMode], Awaitable[FetchOutcome]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        away: set[int],
    ) -> None:
        super().__init__(slots, fetch, spawn)
        self._numbers = away
        self._own: set[int] = set()

    def send(self, url: str, slots: Iterable[int], manner: FollowerReadMode) -> None:
        """Read these queues at ``url`` from now on, those that are not away yet."""
        fresh = [queue for queue in slots if queue not in self._numbers]
        if fresh:
            near = self.near
            super().send(url, fresh, manner)
            self.near = near

    def _divide(self) -> None:
        """A session is good for the list that it was begun with."""
        self.near = list(self._all)
        left = {queue for away in self._away.values() for queue in away}
        self._numbers -= self._own
        self._numbers |= left
        self._own = left
