"""The time of a node of a cluster: its machine's, set right where that is far from the others'.

What is stored is stamped, and grows old, by the clock of whoever leads. A machine whose clock stands a month ahead
would, once it leads, delete what all others keep; one a month behind would stamp messages that the next leader deletes.
The control plane knows how far each clock is from those of most nodes; who is further off than ``SAME_MS`` goes by
theirs. A clock that is set right afterwards, or found out, is a step of the clock: the store takes it as one.

Not supported: telling which clock is wrong where no more than half show the same, or before anything was heard.
"""

from __future__ import annotations

from lsmq_coordinator.clocks import SAME_MS
from lsmq_node.storage.disk import Clock, SystemClock


class ClusterClock:
    """Implements :class:`lsmq_node.storage.disk.Clock`. For any thread; one of them calls :meth:`correct`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._off_ms = 0  # replaced in one step

    def correct(self, ahead_ms: float | None) -> None:
        """The clock is so far ahead of those of most; None: nobody can tell, and what was known last counts.

        Who goes by the others does so until it is well within what counts as the same.
        """
        if ahead_ms is not None:
            self._off_ms = round(ahead_ms) if abs(ahead_ms) > (SAME_MS / 2 if self._off_ms else SAME_MS) else 0

    def now_ms(self) -> int:
        return self._clock.now_ms() - self._off_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()
