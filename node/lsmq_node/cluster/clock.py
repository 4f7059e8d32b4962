"""The time of a node of a cluster: its machine's, set right where that is far from the others'.

What is stored is stamped, and grows old, by the clock of whoever leads. A machine whose clock stands a month ahead
would, once it leads, delete what all others keep; one a month behind would stamp messages that the next leader deletes.
The control plane knows how far each clock is from the cluster's middle one; who is further off than ``FAR_MS`` goes by
that instead. A clock that is set right afterwards, or found out, is a step of the clock: the store takes it as one.

Not supported: telling which clock is wrong where half of them or more are.
"""

from __future__ import annotations

from collections.abc import Callable

from lsmq_node.storage.disk import Clock, SystemClock

#: Smaller differences are taken as they are: clocks kept by NTP are nearer than that by far.
FAR_MS = 60_000


class ClusterClock:
    """Implements :class:`lsmq_node.storage.disk.Clock`. For any thread."""

    def __init__(self, ahead_ms: Callable[[], float | None], clock: Clock | None = None) -> None:
        """``ahead_ms``: by how much the clock is ahead of the cluster's middle one; None while nobody knows, when what
        was known last counts."""
        self._ahead_ms = ahead_ms
        self._clock = clock or SystemClock()
        self._known_ms = 0.0  # replaced in one step

    def now_ms(self) -> int:
        ahead_ms = self._ahead_ms()
        if ahead_ms is None:
            ahead_ms = self._known_ms
        else:
            self._known_ms = ahead_ms
        now_ms = self._clock.now_ms()
        return now_ms if abs(ahead_ms) <= FAR_MS else now_ms - round(ahead_ms)

    def monotonic(self) -> float:
        return self._clock.monotonic()
