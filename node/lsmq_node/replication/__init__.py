"""Replication of a shard: the protocol as pure state machines. Begin with ``core``."""

from .actions import Action
from .control import NOBODY, UNCLAIMED, ControlView, LifeId, Member, RegisteredStart, ReplicaRecord, Start, Timings
from .core import ReplicaCore, Role
from .events import Event, Recovered
from .history import EpochHistory, EpochStart, LogPosition, common_end
from .messages import Message, Session

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
    "Member",
    "Message",
    "Recovered",
    "RegisteredStart",
    "ReplicaCore",
    "ReplicaRecord",
    "Role",
    "Session",
    "Start",
    "Timings",
    "common_end",
]
