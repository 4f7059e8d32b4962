"""Whose wall clock is wrong: measured and told. Pure.

No lease, no election and no request rests on a wall clock. But stored times, expiry and delivery at a time are only as
right as the clocks of the nodes, so that who runs them must know; and a node that is far from most others stamps by
theirs (:func:`ahead_of_most`).

Each node measures by its heartbeats how far its clock is ahead of the control plane's leader's (Cristian's algorithm:
the answer's time against the middle between sending and receiving). The leader's own clock may be the wrong one, so
what is told of a node is its distance to the cluster's median.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

#: The middle of so many measurements counts.
_SAMPLES = 9
#: A slower exchange measures the network.
_MAX_ROUND_TRIP_MS = 200.0
#: Clocks that are no further apart show the same: those kept by NTP are nearer by far.
SAME_MS = 60_000.0


class ClockOffset:
    """How far this node's wall clock is ahead of another's."""

    def __init__(self) -> None:
        self._whose: str | None = None
        self._samples: deque[float] = deque(maxlen=_SAMPLES)

    @property
    def ms(self) -> float | None:
        """None while it is not known."""
        return median(self._samples) if self._samples else None

    def measured(self, whose: str, sent_ms: float, received_ms: float, theirs_ms: float) -> None:
        """``whose`` clock said ``theirs_ms`` between two readings of this node's."""
        if whose != self._whose:
            self._whose = whose
            self._samples.clear()
        if 0 <= received_ms - sent_ms <= _MAX_ROUND_TRIP_MS:
            self._samples.append((sent_ms + received_ms) / 2 - theirs_ms)


def deviations(ahead_ms: Mapping[str, float]) -> dict[str, float]:
    """How far each clock is ahead of the median of all."""
    middle = median(ahead_ms.values()) if ahead_ms else 0.0
    return {node: ms - middle for node, ms in ahead_ms.items()}


def ahead_of_most(node: str, ahead_ms: Mapping[str, float], nodes: int) -> float | None:
    """By how much a node's clock is ahead of those of more than half of all ``nodes``, which show the same to within
    :data:`SAME_MS`; None where no such majority is known, or nothing of the node.

    The median is not enough to act on: of two clocks it lies between, where neither is.
    """
    clocks, most = sorted(ahead_ms.values()), nodes // 2 + 1
    for first, last in zip(clocks, clocks[most - 1 :], strict=False):
        if last - first <= SAME_MS and node in ahead_ms:
            return ahead_ms[node] - median(ms for ms in clocks if first <= ms <= first + SAME_MS)
    return None
