"""What a ``ReplicaCore`` asks of the shell. See ``core`` for the whole interface in one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lsmq_coordinator.lives import InSyncMember, LifeId

from .control import DiskStart, ReplicaRecord
from .messages import ReplicaMessage, ReplicaSession


@dataclass(frozen=True, slots=True)
class Persist:
    """Replace the record, durably; then ``Persisted``."""

    record: ReplicaRecord


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Drop the log from ``lsn`` on, durably; then ``Truncated``. Never below what was applied."""

    lsn: int


@dataclass(frozen=True, slots=True)
class AppendFrame:
    """Append the bytes of the frame just received, ``[lsn, end_lsn)``, and sync them soon; then ``LogDurable``."""

    lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Append the EPOCH entry, which names this life; then ``EpochBegun``."""

    epoch: int
    life: LifeId


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Apply the log up to ``lsn`` and show it to readers; answer quorum writes that end at or before it."""

    lsn: int


@dataclass(frozen=True, slots=True)
class Serve:
    """The replica leads: take writes and reads, see ``ReplicaCore.may_answer``."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StopServing:
    """Stop at once: every write not yet answered gets *unknown*. ``reason`` is for people."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; it may be lost. Messages to one peer go in order."""

    peer: str
    message: ReplicaMessage


@dataclass(frozen=True, slots=True)
class Ship:
    """Send a ``Frame`` with whole entries from ``lsn``, one at least, at most to ``limit_lsn``; then ``Shipped``.

    When both are equal it is a heartbeat, without bytes and without ``Shipped``. When the log no longer reaches back
    to ``lsn``, ``LogTrimmed`` instead. ``high_watermark`` may be replaced by a newer one.
    """

    peer: str
    session: ReplicaSession
    epoch: int
    lsn: int
    limit_lsn: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Fetch table files and install them in place of everything; then ``SnapshotInstalled`` or ``SnapshotFailed``."""

    peer: str


@dataclass(frozen=True, slots=True)
class KeepLog:
    """Recycle the log only before ``lsn``: a follower still reads from there."""

    lsn: int


@dataclass(frozen=True, slots=True)
class ProposeInSync:
    """Submit ``set_in_sync`` to the control plane, compare-and-set. The outcome comes as a view."""

    epoch: int
    expected_version: int
    members: frozenset[InSyncMember]


@dataclass(frozen=True, slots=True)
class ProposeLeave:
    """Submit ``leave_in_sync``: what the set lists under this incarnation no longer exists."""

    member: InSyncMember
    expected_version: int


@dataclass(frozen=True, slots=True)
class RegisterStart:
    """Submit ``register_start``: this start of the disk, which knows of ``starts``. The outcome comes as a view, or as
    ``StartRefused`` when another start of the disk is the latest.

    ``high_watermark`` is what it knows of what is committed, and ``epoch`` the latest that it knows of."""

    incarnation: int
    starts: tuple[DiskStart, ...]
    registered: int
    went_back: bool
    durable_lsn: int
    high_watermark: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class AskElection:
    """Ask for an election with an epoch above this one: the epoch at hand cannot be led.

    ``elsewhere``: not by this replica, which hears too few of the others; so of another one that works, or none.
    """

    above_epoch: int
    elsewhere: bool = False


class Distrust(Enum):
    """What is found when a replica is opened, and how much of it is not to be believed."""

    NOTHING = "nothing"
    LOG = "log"  # The log is not to be trusted, whatever it looks like.
    WENT_BACK = "went back"  # An older copy of the disk: intact, and another incarnation.
    ALL = "all"  # Set aside whatever is there, but for what was fetched.


@dataclass(frozen=True, slots=True)
class Reopen:
    """Close the replica and open it again as another incarnation: it is not what the cluster takes it for."""

    reason: str
    distrust: Distrust


@dataclass(frozen=True, slots=True)
class Halt:
    """The replica must not go on; an operator has to look. Nothing follows until it is opened again."""

    reason: str


ReplicaAction = (
    Persist
    | TruncateLog
    | AppendFrame
    | BeginEpoch
    | AdvanceHighWatermark
    | Serve
    | StopServing
    | Send
    | Ship
    | FetchSnapshot
    | KeepLog
    | ProposeInSync
    | ProposeLeave
    | RegisterStart
    | AskElection
    | Reopen
    | Halt
)
