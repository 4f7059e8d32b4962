"""Words of Raft that everybody around it needs, whatever library runs the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Outcome(Enum):
    """What became of a proposed command."""

    APPLIED = "applied"
    NOT_LEADER = "not_leader"  # Not even written to the log.
    DISCARDED = "discarded"  # Another leader's entry took its place: it will never apply.
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class RaftTiming:
    """Seconds. An election begins ``election_min_s`` to ``election_max_s`` after the leader was last heard."""

    tick_s: float = 0.05
    heartbeat_s: float = 0.05
    election_min_s: float = 0.3
    election_max_s: float = 0.6
    #: A leader that hears no majority for so long stops being one.
    fallback_s: float = 0.5
    reconnect_s: float = 0.2
    #: A leader that resigned calls no election for so long: longer than the others need for one.
    aside_s: float = 2.0
