"""Replication of a shard: the protocol as pure state machines. Begin with ``core``."""

from .actions import Action
from .control import (
    NOBODY,
    UNCLAIMED,
    ControlView,
    DiskStart,
    InSyncMember,
    LifeId,
    RegisteredStart,
    ReplicaRecord,
    Timings,
)
from .core import ReplicaCore, ReplicaRole
from .events import Event, Recovered
from .history import EpochHistory, EpochStart, LogPosition, common_end
from .messages import Message, ReplicaSession

__all__ = [
    "NOBODY",
    "UNCLAIMED",
    "Action",
    "ControlView",
    "EpochHistory",
    "EpochStart",
    "Event",
    "LifeId",
    "LogPosition",
    "InSyncMember",
    "Message",
    "Recovered",
    "RegisteredStart",
    "ReplicaCore",
    "ReplicaRecord",
    "ReplicaRole",
    "ReplicaSession",
    "DiskStart",
    "Timings",
    "common_end",
]
