"""What the leader of the control plane has heard of logs: no disk is to come back with less.

Every member of a shard's in-sync set holds the log, durably, up to any high watermark that any replica knows. So each
heartbeat says something of the disks of all members. It is noted in the agreed state when a node was lost, and now and
then; and what was heard since goes along with each start that is registered.

Without a clock: times are seconds, passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .election import ReplicaProgress
from .state import ClusterState

#: What grew is noted so often while nothing happens: an entry of the log for all shards together.
NOTE_S = 10.0


class Witness:
    """One for each leadership of the control plane."""

    def __init__(self) -> None:
        self._heard: dict[int, int] = {}
        self._noted: dict[int, int] = {}
        self._noted_at = float("-inf")

    def hear(self, state: ClusterState, node: str, progress: Mapping[int, ReplicaProgress]) -> None:
        """A node's heartbeat. Only what a member of the set says in its registered life counts."""
        for id, report in progress.items():
            shard = state.shards.get(id)
            if shard is None or report.high_watermark <= self._heard.get(id, 0):
                continue
            start = shard.start_of(node)
            acts = start is not None and start.life == (report.incarnation, report.start)
            if acts and shard.listed(node) == report.incarnation and report.epoch >= shard.revived_epoch:
                self._heard[id] = report.high_watermark

    def testify(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """The command as it goes into the log: with what was heard, where a start is to be registered."""
        if command.get("op") == "revive":
            self._heard.pop(command.get("shard", -1), None)
        if command.get("op") != "register_start":
            return command
        return {**command, "witnessed_lsn": self._heard.get(command.get("shard", -1), 0)}

    def due(self, now: float, *, lost: bool) -> dict[str, Any] | None:
        """The command that notes what was heard, if it is time or a node was lost."""
        if not lost and now - self._noted_at < NOTE_S:
            return None
        self._noted_at = now
        floors = [[id, lsn] for id, lsn in sorted(self._heard.items()) if lsn > self._noted.get(id, 0)]
        self._noted = dict(self._heard)
        return {"op": "note_floors", "floors": floors} if floors else None
