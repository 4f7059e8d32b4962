"""Replication of a shard: the protocol as pure state machines. Begin with ``core``."""

from .actions import Action
from .control import NOBODY, ControlView, DiskStart, ReplicaRecord, Timings
from .core import ReplicaCore, ReplicaRole
from .events import Event, Recovered
from .history import EpochHistory, EpochStart, LogPosition, common_end
from .messages import Message, ReplicaSession

__all__ = [
    "NOBODY",
    "Action",
    "ControlView",
    "EpochHistory",
    "EpochStart",
    "Event",
    "LogPosition",
    "Message",
    "Recovered",
    "ReplicaCore",
    "ReplicaRecord",
    "ReplicaRole",
    "ReplicaSession",
    "DiskStart",
    "Timings",
    "common_end",
]
