"""What the shell tells a ``ReplicaCore``. See ``core`` for the whole interface in one table."""

from __future__ import annotations

from dataclasses import dataclass

from .control import ControlView, ReplicaRecord
from .history import EpochHistory
from .messages import ReplicaMessage, ReplicaSession


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found when the replica was opened; given to the constructor. Everything in the log is durable.

    ``record`` is None when the directory holds none. ``fresh_incarnation`` is a random number above zero, used when
    the replica cannot be what it was: no record, ``damaged``, ``went_back``, or a log that ends before the record's
    floor. ``token`` is a random number for this start.
    ``end_lsn`` is where the intact log ends, at the end of a whole entry. Tables that are damaged, or that hold more
    than the log reaches to, cannot be kept: then everything is given as empty, and ``damaged``.
    """

    record: ReplicaRecord | None
    fresh_incarnation: int
    log_start_lsn: int
    applied_lsn: int
    end_lsn: int
    history: EpochHistory
    damaged: bool = False
    went_back: bool = False
    token: int = 0


@dataclass(frozen=True, slots=True)
class ControlViewed:
    """The control plane's state of the shard came in; older ones than known are ignored."""

    view: ControlView


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """A majority of the control plane confirmed its state of the shard to this node.

    ``valid_until``: when the question was *sent*, plus the lease. ``view`` is the state when it was answered: a lease
    that knows of a newer epoch does not extend an old leader's.
    """

    valid_until: float
    view: ControlView


@dataclass(frozen=True, slots=True)
class StartRefused:
    """``RegisterStart`` was refused: the disk is an older copy of the one that the control plane knows. ``reason`` is
    for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message from another replica. The bytes of a ``Frame`` stay with the shell until ``AppendFrame``."""

    sender: str
    message: ReplicaMessage


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The connection with a replica ended."""

    peer: str


@dataclass(frozen=True, slots=True)
class LogWritten:
    """The leader's own log was written (not yet synced) up to ``end_lsn``: ready to be shipped."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class LogDurable:
    """The log is synced up to ``lsn``."""

    lsn: int


@dataclass(frozen=True, slots=True)
class LogRecycled:
    """The log before ``log_start_lsn`` was recycled."""

    log_start_lsn: int


@dataclass(frozen=True, slots=True)
class Persisted:
    """``Persist`` is done and durable."""

    record: ReplicaRecord


@dataclass(frozen=True, slots=True)
class Truncated:
    """``TruncateLog`` is done and durable."""

    lsn: int


@dataclass(frozen=True, slots=True)
class EpochBegun:
    """``BeginEpoch`` is done: the EPOCH entry was written to ``[lsn, end_lsn)``. Always the very next event."""

    epoch: int
    lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """``FetchSnapshot`` is done and durable: it replaced table files and log in one step."""

    log_start_lsn: int
    applied_lsn: int
    end_lsn: int
    history: EpochHistory


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """``FetchSnapshot`` was given up; the replica is as it was before."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """``Ship`` was carried out up to ``end_lsn``, the end of an entry."""

    peer: str
    session: ReplicaSession
    end_lsn: int


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """A write or fsync failed: the replica is done until it is opened again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. At least every half ``heartbeat_s``."""


ReplicaEvent = (
    ControlViewed
    | LeaseGranted
    | StartRefused
    | MessageReceived
    | StreamBroken
    | LogWritten
    | LogDurable
    | LogRecycled
    | Persisted
    | Truncated
    | EpochBegun
    | SnapshotInstalled
    | SnapshotFailed
    | Shipped
    | StorageFailed
    | Tick
)
