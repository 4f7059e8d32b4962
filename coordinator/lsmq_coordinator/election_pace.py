"""How often elections that replicas ask for are held: at once at first, and ever more seldom while they lead nowhere.

Without a clock: times are seconds, passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .election import ReplicaProgress
from .state import Shard

FIRST_S = 0.1
LONGEST_S = 10.0


@dataclass(slots=True)
class _Tried:
    at: float
    pause_s: float


class ElectionPace:
    """One for each leadership of the control plane."""

    def __init__(self) -> None:
        self._tried: dict[int, _Tried] = {}

    def is_due(self, shard: Shard, reports: Mapping[str, Mapping[int, ReplicaProgress]], now: float) -> bool:
        """Whether another election of the shard may be held; it is, then. One led somewhere when the leader's log has
        its epoch: what came before is forgiven."""
        tried = self._tried.get(shard.id)
        report = reports.get(shard.leader or "", {}).get(shard.id)
        was_led = report is not None and report.epoch >= shard.epoch
        if tried is None or was_led:
            pause_s, next_pause_s = FIRST_S, FIRST_S
        else:
            pause_s, next_pause_s = tried.pause_s, min(2 * tried.pause_s, LONGEST_S)
        if tried is not None and now - tried.at < pause_s:
            return False
        self._tried[shard.id] = _Tried(now, next_pause_s)
        return True
