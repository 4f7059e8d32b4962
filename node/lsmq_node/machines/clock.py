"""Time for sessions. Pure."""

from __future__ import annotations

TICK_S = 0.25


class AwakeClock:
    """Seconds during which the loop ran and the shard was served. Ask ``now``; call ``advance`` each tick.

    A stopped process or a lost lease ends nobody's session.
    """

    def __init__(self, time: float) -> None:
        self._seen = time
        self._awake = 0.0

    def advance(self, time: float, *, serving: bool) -> None:
        if serving:
            self._awake = self.now(time)
        self._seen = time

    def now(self, time: float) -> float:
        return self._awake + min(time - self._seen, 2 * TICK_S)
