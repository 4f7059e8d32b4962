"""Outages: what has been tried for a while without success, said in warnings that do not flood, and to a callback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Self

from lsmq import runtime
from lsmq.errors import LsmqError

FIRST_WORD_S = 1.0  # A failover takes about as long.
LONGEST_SILENCE_S = 60.0
_GROWTH = 2
_log = logging.getLogger("lsmq")


@dataclass(frozen=True, slots=True)
class Outage:
    """Something does not succeed, and is tried again and again; or, when ``over``, has succeeded.

    Attributes:
        what: what was tried, such as ``reading topic 'orders'``.
        lasted_ms: since the first failure.
        error: of the last attempt.
        over: everything that had failed has succeeded since.
    """

    what: str
    lasted_ms: int
    error: LsmqError
    over: bool = False


OnOutage = Callable[[Outage], None]


class Outages:
    """Of one client. Costs nothing while nothing fails.

    A word is said a second after the first failure, then after twice as long each time, at most once a minute.
    """

    def __init__(self, on_outage: OnOutage | None = None, *, warn: bool = True) -> None:
        self.on_outage = on_outage
        self.warn = warn
        self._since: dict[Hashable, float] = {}  # by what fails
        self._first_s = 0.0  # of all that failed since nothing did
        self._next_word_s = 0.0
        self._silence_s = FIRST_WORD_S
        self._told: Outage | None = None

    @property
    def is_failing(self) -> bool:
        """Whether something has failed and has not succeeded since."""
        return bool(self._since)

    def failed(self, parts: Collection[Hashable], what: str, error: LsmqError, *, began_s: float | None = None) -> None:
        now = runtime.monotonic()
        since_s = now if began_s is None else began_s
        if not self._since:
            self._told, self._silence_s, self._next_word_s = None, FIRST_WORD_S, now
            self._first_s = since_s
        self._first_s = min(self._first_s, since_s)
        for part in parts:
            self._since.setdefault(part, since_s)
        longest_s = now - min(self._since[part] for part in parts)
        if longest_s >= FIRST_WORD_S and now >= self._next_word_s:
            self._next_word_s = now + self._silence_s
            self._silence_s = min(self._silence_s * _GROWTH, LONGEST_SILENCE_S)
            self._say(Outage(what, int(longest_s * 1000), error))

    def passed(self, parts: Collection[Hashable]) -> None:
        self.forget(parts)
        if not self._since and self._told is not None:
            told, self._told = self._told, None
            self._say(Outage(told.what, int((runtime.monotonic() - self._first_s) * 1000), told.error, over=True))

    def forget(self, parts: Collection[Hashable]) -> None:
        for part in parts:
            self._since.pop(part, None)

    def _say(self, outage: Outage) -> None:
        seconds = outage.lasted_ms / 1000
        if not outage.over:
            self._told = outage
        if self.warn and outage.over:
            _log.warning("%s succeeds again after %.1f s", outage.what, seconds)
        elif self.warn:
            _log.warning("%s has had no success for %.1f s, trying on: %s", outage.what, seconds, outage.error)
        if self.on_outage is not None:
            try:
                self.on_outage(outage)
            except Exception:
                _log.exception("on_outage failed")


class Attempts:
    """Somebody's attempts at something, again and again: each failure is said, and the success after it.

    They may have parts that fail by themselves, such as the shards that are read. Whoever tries no more says so with
    :meth:`end`, or leaves the ``with`` block.
    """

    __slots__ = ("_began_s", "_failing", "_outages", "_what")

    def __init__(self, outages: Outages, what: str, *, began_s: float | None = None) -> None:
        """``began_s``: since when failures count on the monotonic clock; from each itself, when left out."""
        self._outages = outages
        self._began_s = began_s
        self._what = what
        self._failing: set[Hashable] = set()

    def failed(self, error: LsmqError, parts: Iterable[Hashable] = (None,)) -> None:
        """An attempt failed, and another one will follow."""
        mine = [(self, part) for part in parts]
        self._failing.update(mine)
        if mine:
            self._outages.failed(mine, self._what, error, began_s=self._began_s)

    def passed(self, parts: Iterable[Hashable] = (None,)) -> None:
        if self._failing:
            mine = [place for part in parts if (place := (self, part)) in self._failing]
            self._failing.difference_update(mine)
            if mine:
                self._outages.passed(mine)

    def end(self) -> None:
        self._outages.forget(self._failing)
        self._failing.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.end()
