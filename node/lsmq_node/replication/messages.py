"""What replicas say to each other. The shell encodes these; ``Frame`` is followed by the log's bytes.

======================  ===================  ================================================================
message                 from, to             says
======================  ===================  ================================================================
``Hello``               follower, leader     my log is this: ship to me; so does a candidate to a promiser
``Welcome``             leader, follower     our logs agree up to ``resume_lsn``: cut yours there and say hello
                                             again; or, when it ends there, frames follow
``TakeSnapshot``        leader, follower     my log no longer reaches back to yours
``TakeNewIncarnation``  leader, follower     your log is shorter than you reported durable
``Rejoin``              leader, follower     say hello again
``Stale``               leader, follower     your epoch is over; this is mine
``Frame``               leader, follower     bytes ``[lsn, end_lsn)`` and the high watermark; empty: heartbeat
``Progress``            follower, leader     my log is durable up to here and a prefix of yours
``PromiseRequest``      candidate, replica   I take over this epoch
``Promise``             replica, candidate   I follow nobody of a lower epoch, persisted; my log reaches to here
``PromiseRefusal``      replica, candidate   I have seen this epoch, with this leader
======================  ===================  ================================================================

A session is one stream: it begins with a hello and both sides drop what belongs to an older one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lsmq_coordinator.lives import LifeId

from .history import EpochHistory, LogPosition


class ReplicaSession(NamedTuple):
    """Ordered for one incarnation of a replica: the count of its starts, then a number that grows with its hellos."""

    start: int
    number: int


@dataclass(frozen=True, slots=True)
class Hello:
    """``borrows``: from a candidate to a replica that promised.

    The two must not be mixed up: a leader's log is a reason to cut one's own. Should the control plane name two
    leaders for one epoch, each may take the other for its leader, and neither for its borrower.
    """

    session: ReplicaSession
    epoch: int
    incarnation: int
    history: EpochHistory
    end_lsn: int
    borrows: bool


@dataclass(frozen=True, slots=True)
class Welcome:
    session: ReplicaSession
    epoch: int
    incarnation: int
    history: EpochHistory
    resume_lsn: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    session: ReplicaSession
    epoch: int
    log_start_lsn: int


@dataclass(frozen=True, slots=True)
class TakeNewIncarnation:
    session: ReplicaSession
    epoch: int
    durable_lsn: int


@dataclass(frozen=True, slots=True)
class Rejoin:
    session: ReplicaSession
    epoch: int


@dataclass(frozen=True, slots=True)
class Stale:
    epoch: int
    leader: str
    life: LifeId


@dataclass(frozen=True, slots=True)
class Frame:
    session: ReplicaSession
    epoch: int
    lsn: int
    end_lsn: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Progress:
    session: ReplicaSession
    epoch: int
    incarnation: int
    durable_lsn: int


@dataclass(frozen=True, slots=True)
class PromiseRequest:
    """``life``: who takes over. Another life of the same node needs an epoch of its own."""

    epoch: int
    life: LifeId


@dataclass(frozen=True, slots=True)
class Promise:
    epoch: int
    life: LifeId
    position: LogPosition


@dataclass(frozen=True, slots=True)
class PromiseRefusal:
    epoch: int
    seen_epoch: int
    seen_leader: str | None


ReplicaMessage = (
    Hello
    | Welcome
    | TakeSnapshot
    | TakeNewIncarnation
    | Rejoin
    | Stale
    | Frame
    | Progress
    | PromiseRequest
    | Promise
    | PromiseRefusal
)
