"""Queues that a consumer reads at followers for the time being, and how they come back.

A leader that is asked ``from=auto`` names a follower for queues of which much is to be read that it has no longer in
memory. They leave the fetcher of the leader for a *detour*: one loop at one follower, which answers what it has and
says which queues have caught up. Those come back, and the fetcher asks the leader for them again, at once. A follower
that fails, falls silent or lost its leader gives all of them back; for a short while the leader is then asked to answer
everything itself. A slot is asked for by the fetcher or by one detour, never by two: so its offset only grows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from lsmq import runtime
from lsmq._queue_ranges import subtract, to_ranges
from lsmq.background_tasks import unless
from lsmq.errors import LsmqError

ReadFrom = Literal["auto", "leader", "follower"]

#: The leader is asked to answer everything for so long after a follower failed.
HOLD_OFF_S = 2.0
#: A follower that sends nothing for so long is given up.
SILENT_S = 2.0
#: A leader that has failed for so long is stood in for by a follower.
LOST_S = 1.5

_log = logging.getLogger("lsmq")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """What one answer brought: whether anything moved, and the slots to read elsewhere by URL (None: the leader)."""

    moved: bool
    elsewhere: Sequence[tuple[str | None, Sequence[int]]] = ()


@dataclass(frozen=True, slots=True)
class FollowerReadMode:
    """How a detour reads: ``source`` is the request's ``from``; one that ``stays`` waits for more when it has all."""

    source: Literal["auto", "any"]
    stays: bool = False


SENT = FollowerReadMode("auto")  # by a leader, until caught up
STAND_IN = FollowerReadMode("any")  # the leader is lost: whatever the follower has
CHOSEN = FollowerReadMode("any", stays=True)  # by the application


class FollowerReads:
    """The slots of one fetcher, divided: those ``near``, which it asks the leader for, and those away.

    ``fetch(url, slots, manner)`` makes one request to a follower; ``spawn`` starts a task that ends with the fetcher.
    """

    def __init__(
        self,
        slots: Sequence[range],
        fetch: Callable[[str, Sequence[range], FollowerReadMode], Awaitable[FetchOutcome]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.near: Sequence[range] = slots
        self._all = slots
        self._fetch = fetch
        self._spawn = spawn
        self._away: dict[str, set[int]] = {}
        self._back = asyncio.Event()
        self._moves = 0
        self._held_off_until = 0.0

    @property
    def held_off(self) -> bool:
        """Whether a follower failed just now."""
        return runtime.monotonic() < self._held_off_until

    def send(self, url: str, slots: Iterable[int], manner: FollowerReadMode) -> None:
        """Read these slots, which are near, at ``url`` from now on."""
        away = self._away.get(url)
        if away is not None:
            away.update(slots)
        else:
            away = self._away[url] = set(slots)
            self._spawn(self._run(url, away, manner))
        self._divide()

    def _divide(self) -> None:
        if self._away:
            self.near = subtract(self._all, to_ranges(slot for away in self._away.values() for slot in away))
        else:
            self.near = self._all

    async def _run(self, url: str, away: set[int], manner: FollowerReadMode) -> None:
        """Fetch at ``url`` until every slot has come back. What is no error of a node is raised."""
        _log.debug("reading at a follower: node=%s queues=%d", url, len(away))
        slots: Sequence[range] = ()
        known = 0
        brought = False
        while away:
            if len(away) != known:
                slots, known = to_ranges(away), len(away)
            try:
                fetched = await self._fetch(url, slots, manner)
            except LsmqError as error:
                _log.debug("back to the leader: node=%s error=%s", url, error)
                self._hold_off()
                break
            brought = brought or fetched.moved
            self._moves += fetched.moved
            home = {slot for _, some in fetched.elsewhere for slot in some}
            if not home and not fetched.moved and not manner.stays:
                break
            if home:
                away -= home
                known = -1
                self._return()
        if not brought:  # It has less than the leader: being sent there again is no use.
            self._hold_off()
        self._away.pop(url, None)
        self._return()

    def _hold_off(self) -> None:
        self._held_off_until = runtime.monotonic() + HOLD_OFF_S

    def _return(self) -> None:
        self._divide()
        self._back.set()

    async def some_near(self) -> bool:
        """Return once there is a slot to ask the leader for; whether messages came while there was none."""
        moves = self._moves
        while not self.near:
            self._back.clear()
            await self._back.wait()
        return self._moves != moves

    async def unless_one_returns(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of ``work``; None when slots came back first, which are to be asked for as well."""
        if not self._away:
            return await work
        self._back.clear()
        return await unless(self._back, work)
