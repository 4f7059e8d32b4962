"""Replication of a shard: the protocol as pure state machines. Begin with ``core``."""

from .actions import ReplicaAction
from .control import NOBODY, ControlView, DiskStart, ReplicaRecord, Timings
from .core import ReplicaCore, ReplicaRole
from .events import Recovered, ReplicaEvent
from .history import EpochHistory, EpochStart, LogPosition, common_end
from .messages import ReplicaMessage, ReplicaSession

__all__ = [
    "NOBODY",
    "ReplicaAction",
    "ControlView",
    "EpochHistory",
    "EpochStart",
    "ReplicaEvent",
    "LogPosition",
    "ReplicaMessage",
    "Recovered",
    "ReplicaCore",
    "ReplicaRecord",
    "ReplicaRole",
    "ReplicaSession",
    "DiskStart",
    "Timings",
    "common_end",
]
