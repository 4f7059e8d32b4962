"""A shard's time: what messages are stamped with, and what has expired, under clocks that are wrong.

A wall clock may stand wrong for a while and be set right. Two rules keep that from deleting anything early:

- Stamps never go back within a log: a clock that falls back stands still until it is where it was.
- Time that the wall clock skipped did not pass. A step forward, seen against the clock that only counts, is noted as an
  *era*: what was stamped before it is as much younger than it looks. A step back takes back the steps forward before
  it. So a clock that jumps a month ahead and back expires nothing; one that was a month behind, and is set right,
  expires nothing that came meanwhile.

Between two lives of the process nothing counts. So a gap between the last stamp and the clock at the start is an era
for the first hour: time enough for a clock that was wrong at boot to be set right.

Not supported: telling how late the messages of a clock that was ahead are; they stay longer, which ``ahead_ms`` shows.
"""

from __future__ import annotations

import logging

from lsmq import runtime

from .disk import Clock

#: Steps smaller than this are taken as they come.
TOLERANCE_MS = 10_000
#: At the start a gap larger than this may be a wrong clock, for so long.
GAP_MS = 3_600_000
SETTLING_SECONDS = 3_600.0

_log = logging.getLogger("lsmq.storage")


class ShardTime:
    """Implements :class:`.disk.Clock`. Thread-safe."""

    def __init__(self, clock: Clock, source: str) -> None:
        self._clock = clock
        self._source = source
        self._lock = runtime.Lock()  # guards all below
        self._last_ms = 0
        self._wall_ms, self._counted = clock.now_ms(), clock.monotonic()
        self._eras: list[tuple[int, int]] = []  # the last stamp of each, and how much younger than it looks
        self._settled_at = self._counted + SETTLING_SECONDS
        self._gap_ms = 0  # of the first era, while it is there
        self.steps = 0

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_ms(self) -> int:
        """The time to stamp with: never before an earlier one."""
        with self._lock:
            self._last_ms = max(self._last_ms, self._look())
            return self._last_ms

    def check(self) -> None:
        """Look at the clock, so that a step of it is noticed."""
        with self._lock:
            self._look()

    def saw(self, stamp_ms: int) -> None:
        """There is an entry in the log with this stamp."""
        with self._lock:
            self._last_ms = max(self._last_ms, stamp_ms)

    def opened(self, last_ms: int) -> None:
        """The log was read back; its last stamp is this, 0 for none."""
        with self._lock:
            self._last_ms = last_ms
            gap = self._wall_ms - last_ms
            if last_ms and gap > GAP_MS:
                self._eras, self._gap_ms = [(last_ms, gap)], gap
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
    def ahead_ms(self) -> int:
        """How far the latest stamp is ahead of the clock: above 0 the clock is behind, or was ahead."""
        return max(0, self._last_ms - self._clock.now_ms())

    def expired_before(self, age_ms: int) -> int:
        """Messages stamped before this are older than ``age_ms``, whatever the clock has done."""
        with self._lock:
            before = self._look() - age_ms
            for last_ms, younger_ms in reversed(self._eras):
                if before - younger_ms > last_ms:
                    break
                before -= younger_ms
            return before

    def _look(self) -> int:
        """The wall clock; notes a step of it."""
        wall_ms, counted = self._clock.now_ms(), self._clock.monotonic()
        step = wall_ms - self._wall_ms - int(1000 * (counted - self._counted))
        self._wall_ms, self._counted = wall_ms, counted
        if abs(step) > TOLERANCE_MS:
            self._stepped(step, wall_ms)
        if self._gap_ms and counted >= self._settled_at:
            self._gap_ms = 0
            del self._eras[0]
        return wall_ms

    def _stepped(self, step: int, wall_ms: int) -> None:
        self.steps += 1
        _log.warning(
            "%s: the clock stepped by %+d s. No message expires early by that, and stamps do not go back; see to the "
            "clock of this machine",
            self._source,
            step // 1000,
        )
        if step > 0:
            # Where the clock had been ahead of this before, stamps stood still meanwhile, and no more than that counts.
            younger_ms = min(step, wall_ms - self._last_ms)
            if self._last_ms and younger_ms > 0:
                self._eras.append((self._last_ms, younger_ms))
            return
        back = -step
        while back and self._eras:
            last_ms, younger_ms = self._eras.pop()
            taken = min(back, younger_ms)
            back -= taken
            if taken < younger_ms:
                self._eras.append((last_ms, younger_ms - taken))
        if not self._eras:
            self._gap_ms = 0
