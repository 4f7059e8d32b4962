"""Words of Raft that everybody around it needs: roles, outcomes, times, and what a voter keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from types import MappingProxyType

MAX_COMMAND_BYTES = 256 << 10
MAX_SNAPSHOT_BYTES = 256 << 20


class RaftRole(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ProposalOutcome(Enum):
    """What became of a proposed command."""

    APPLIED = "applied"
    NOT_LEADER = "not_leader"  # Not even written to the log.
    DISCARDED = "discarded"  # Another leader's entry took its place: it will never apply.
    UNKNOWN = "unknown"  # A snapshot took the place of the log it may have been in.
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class RaftEntry:
    """A command in the log. The empty command does nothing: with it a leader begins its term."""

    index: int
    term: int
    command: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after the entry ``index``, in place of the log up to there. ``encode`` may run in any thread."""

    index: int
    term: int
    encode: Callable[[], bytes]


def _nobody() -> Mapping[str, tuple[int, str]]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be durable before anything that rests on it leaves.

    ``whole``: this voter has held all that was committed, in a group of which all voters have. One that lost its
    disk has not, and must not vote as if it had never acknowledged anything.

    ``life``: how often this voter was started from this disk, and a random word for the start. ``lives``: the latest
    life of each other voter; a voter that comes with an earlier one, or with the same count and another word, has a
    disk that went back.
    """

    term: int = 0
    vote: str | None = None
    whole: bool = False
    life: tuple[int, str] = (0, "")
    lives: Mapping[str, tuple[int, str]] = field(default_factory=_nobody)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the disk held at a start. ``commit`` is a floor of what is committed, at most the last entry."""

    state: HardState = HardState()
    snapshot_index: int = 0
    snapshot_term: int = 0
    snapshot: bytes | None = None
    entries: tuple[RaftEntry, ...] = ()
    commit: int = 0


@dataclass(frozen=True, slots=True)
class RaftTiming:
    """Seconds. An election begins ``election_min_s`` to ``election_max_s`` after the leader was last heard.

    Where disks, or the interpreter, are slower than these times allow for, elections take their time:
    :class:`~.raft_pace.RaftPace`.
    """

    tick_s: float = 0.05
    heartbeat_s: float = 0.05
    election_min_s: float = 0.3
    election_max_s: float = 0.6
    #: A leader that hears no majority for so long stops being one.
    fallback_s: float = 0.5
    reconnect_s: float = 0.2
    #: A leader that resigned calls no election for so long: longer than the others need for one.
    aside_s: float = 2.0
    #: However slow disks are, and however often elections failed, the next one begins within so long.
    patience_s: float = 2.0

    def __post_init__(self) -> None:
        """Raises ``ValueError`` naming what cannot work."""
        for entry in fields(self):
            if not getattr(self, entry.name) > 0:
                raise ValueError(f"{entry.name} is {getattr(self, entry.name)}; it must be above 0")
        if self.election_min_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"election_min_s ({self.election_min_s}) is below three heartbeats ({self.heartbeat_s}): one late "
                "heartbeat would be taken for a failure"
            )
        if self.election_max_s < 1.2 * self.election_min_s:
            raise ValueError(
                f"election_max_s ({self.election_max_s}) must be a fifth above election_min_s ({self.election_min_s}), "
                "or voters call elections at the same moment and none wins"
            )
        if self.patience_s < self.election_max_s:
            raise ValueError(f"patience_s ({self.patience_s}) is below election_max_s ({self.election_max_s})")
