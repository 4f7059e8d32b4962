"""A shard's time: what messages are stamped with, and what has expired, under clocks that are wrong.

A wall clock may stand wrong for a while and be set right. Two rules keep that from deleting anything early:

- Stamps never go back within a log: a clock that falls back stands still until it is where it was.
- Time that the wall clock skipped did not pass. A step of it, seen against the clock that only counts, begins another
  *era*. What is older than an age is what was stamped before the moment so long ago, on the clock that counts; and
  what stamps of then were, the era of that moment says. So a clock that jumps a month ahead and back, however often,
  expires nothing; one that was a month behind, and is set right, expires nothing that came meanwhile.

Between two lives of the process nothing counts: what was there at the start has the age that the wall clock says, or
said when it stood lowest in this life. A gap between the last stamp and the clock at the start did not pass for the
first hour: time enough for a clock that was wrong at boot to be set right.

Whether a message has expired is asked in the same way, with its own time to live as the age; but who reads believes the
clock at the start, so that nothing is delivered for an hour after its time. What a merge drops is gone for good, so
there the gap does not count.

Not supported: telling how late the messages of a clock that was ahead are; they stay longer, which ``ahead_ms`` shows.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.record_batch import MAX_TTL_MS

from .columns import I64
from .disk import Clock

#: Steps smaller than this are taken as they come.
TOLERANCE_MS = 10_000
#: At the start a gap larger than this may be a wrong clock, for so long.
GAP_MS = 3_600_000
SETTLING_SECONDS = 3_600.0
#: Of more eras than this the first become one: what was stamped in them stays longer, never shorter.
MAX_ERAS = 64

_log = logging.getLogger("lsmq.storage")


@dataclass(frozen=True, slots=True)
class _Era:
    """From ``began_ms`` on the clock that counts the wall clock was ``skew_ms`` ahead of that one, and no stamp was
    below ``last_ms``."""

    began_ms: int
    skew_ms: int
    last_ms: int

    def stamp(self, counted_ms: int) -> int:
        """The least that could be stamped at a moment of it."""
        return max(self.last_ms, counted_ms + self.skew_ms)


class ShardTime:
    """Implements :class:`.disk.Clock`. Thread-safe."""

    def __init__(self, clock: Clock, source: str) -> None:
        self._clock = clock
        self._source = source
        self._lock = runtime.Lock()  # guards all below
        self._last_ms = 0
        self._began_ms = self._era_ms = self._counted_ms = int(
            1000 * clock.monotonic()
        )  # of this life, and of the present era
        self._skew_ms = self._lowest_ms = clock.now_ms() - self._began_ms  # as seen last, and the lowest of this life
        self._era_last_ms = 0
        self._eras: list[_Era] = []  # those before the present one
        self._gap_ms = 0  # while it does not count
        self.steps = 0
        self._unsaid_ms: list[int] = []  # steps

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_ms(self) -> int:
        """The time to stamp with: never before an earlier one."""
        with self._lock:
            self._last_ms = max(self._last_ms, self._look())
            return self._last_ms

    def check(self) -> None:
        """Look at the clock, so that a step of it is noticed; say of all that were noticed by now.

        Nobody else says anything: what is told may itself ask for the time, as a log handler that stores what it is
        told, and so no lock is held.
        """
        with self._lock:
            self._look()
            steps_ms, self._unsaid_ms = self._unsaid_ms, []
        for step_ms in steps_ms:
            _log.warning(
                "%s: the clock stepped by %+d s. No message expires early by that, and stamps do not go back; see to "
                "the clock of this machine",
                self._source,
                step_ms // 1000,
            )

    def saw(self, stamp_ms: int) -> None:
        """There is an entry in the log with this stamp."""
        with self._lock:
            self._last_ms = max(self._last_ms, stamp_ms)

    def opened(self, last_ms: int) -> None:
        """The log was read back; its last stamp is this, 0 for none."""
        with self._lock:
            self._last_ms = self._era_last_ms = last_ms
            gap = self._began_ms + self._skew_ms - last_ms
            if last_ms and gap > GAP_MS:
                self._gap_ms = gap
                _log.info(
                    "%s: the clock is %d s past the last entry: down for so long, or a wrong clock. What was there "
                    "expires by it in an hour, not before",
                    self._source,
                    gap // 1000,
                )

    @property
    def last_ms(self) -> int:
        """The latest stamp."""
        return self._last_ms

    @property
    def present_ms(self) -> int:
        """What would be stamped now, where nothing is: what moments that users give are compared with."""
        return max(self._last_ms, self._clock.now_ms())

    @property
    def ahead_ms(self) -> int:
        """How far the latest stamp is ahead of the clock: above 0 the clock is behind, or was ahead."""
        return max(0, self._last_ms - self._clock.now_ms())

    def expired_before(self, age_ms: int) -> int:
        """Messages stamped before this are older than ``age_ms``, whatever the clock has done."""
        with self._lock:
            self._look()
            moment_ms = self._counted_ms - age_ms
            least: float = math.inf  # of what could be stamped later than in the era that is looked at
            for era in (_Era(self._era_ms, self._skew_ms, self._era_last_ms), *reversed(self._eras)):
                least = min(least, era.stamp(max(moment_ms, era.began_ms)))
                if moment_ms >= era.began_ms:
                    return int(least)
            return min(int(least), moment_ms + self._lowest_ms - self._gap_ms)

    def expired(self, stored_ms: I64, expires_ms: I64) -> NDArray[np.bool_]:
        """Which messages are not to be delivered any more, by the moments at which they expire.

        What is no moment, but 0 or a time to live that has not begun, expires none.
        """
        return (expires_ms > MAX_TTL_MS) & (stored_ms < self._expired_before(expires_ms - stored_ms, 0))

    def surely_expired(self, stored_ms: I64, expires_ms: I64) -> NDArray[np.bool_]:
        """:meth:`expired`, if the clock at the start is not believed: these may go."""
        return (expires_ms > MAX_TTL_MS) & (stored_ms < self._expired_before(expires_ms - stored_ms, self._gap_ms))

    def _expired_before(self, ages_ms: I64, gap_ms: int) -> I64:
        """:meth:`expired_before` of many ages."""
        with self._lock:
            self._look()
            moments = self._counted_ms - ages_ms
            found = np.minimum(moments + (self._lowest_ms - gap_ms), np.iinfo(np.int64).max)
            least = np.full(len(ages_ms), np.iinfo(np.int64).max)
            left = np.ones(len(ages_ms), np.bool_)
            for era in (_Era(self._era_ms, self._skew_ms, self._era_last_ms), *reversed(self._eras)):
                stamps = np.maximum(era.last_ms, np.maximum(moments, era.began_ms) + era.skew_ms)
                least = np.minimum(least, stamps)
                here = left & (moments >= era.began_ms)
                found[here] = least[here]
                left &= ~here
            found[left] = np.minimum(least, found)[left]
            return found

    def _look(self) -> int:
        """The wall clock; notes a step of it."""
        wall_ms, self._counted_ms = self._clock.now_ms(), int(1000 * self._clock.monotonic())
        skew_ms = wall_ms - self._counted_ms
        if abs(skew_ms - self._skew_ms) > TOLERANCE_MS:
            self._stepped(skew_ms - self._skew_ms)
        self._skew_ms = skew_ms
        self._lowest_ms = min(self._lowest_ms, skew_ms)
        if self._counted_ms - self._began_ms >= 1000 * SETTLING_SECONDS:
            self._gap_ms = 0
        return wall_ms

    def _stepped(self, step_ms: int) -> None:
        self.steps += 1
        self._unsaid_ms.append(step_ms)
        self._eras.append(_Era(self._era_ms, self._skew_ms, self._era_last_ms))
        self._era_ms, self._era_last_ms = self._counted_ms, self._last_ms
        if len(self._eras) > MAX_ERAS:
            first, second, *later = self._eras
            self._eras = [_Era(first.began_ms, min(first.skew_ms, second.skew_ms), first.last_ms), *later]
