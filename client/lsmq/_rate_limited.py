"""Warnings that may come with each message: said at once, then ever more seldom, with how many were left out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lsmq import runtime

FIRST_SILENCE_S = 1.0
LONGEST_SILENCE_S = 60.0
_GROWTH = 2
_log = logging.getLogger("lsmq")


class RateLimitedWarnings:
    """Warnings of one kind, of one object.

    The next one is said a second after the first, then after twice as long each time, at most once a minute; the first
    after a minute without any is said at once. Those between are said at the level ``DEBUG``, and counted.
    """

    __slots__ = ("_clock", "_next_s", "_silence_s", "_unsaid")

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """``clock``: seconds that never go back."""
        self._clock = clock or runtime.monotonic
        self._next_s = float("-inf")
        self._silence_s = FIRST_SILENCE_S
        self._unsaid = 0

    def warn(self, message: str, *values: object, error: BaseException | None = None) -> None:
        """``message`` and ``values`` as in :mod:`logging`. ``error``: one whose place in the code is to be seen."""
        now = self._clock()
        if now < self._next_s:
            self._unsaid += 1
            _log.debug(message, *values, exc_info=error)
            return
        if now - self._next_s >= LONGEST_SILENCE_S:
            self._silence_s = FIRST_SILENCE_S
        if self._unsaid:
            message, values = f"{message} (and %d times more since this was said last)", (*values, self._unsaid)
        _log.warning(message, *values, exc_info=error)
        self._unsaid = 0
        self._next_s = now + self._silence_s
        self._silence_s = min(self._silence_s * _GROWTH, LONGEST_SILENCE_S)
