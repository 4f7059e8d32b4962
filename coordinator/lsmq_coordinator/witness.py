"""What the leader of the control plane has heard of logs: no disk is to come back with less.

Every member of a shard's in-sync set holds the log, durably, up to any high watermark that any replica knows. So each
heartbeat says something of the disks of all members. It is noted in the agreed state when a node was lost, and now and
then; and what was heard since goes along with each start that is registered. Where all start at once nobody has a
registered life yet: then it is in what they ask to be registered with.

Without a clock: times are seconds, passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .election import ReplicaProgress
from .start_commands import MAX_LSN
from .state import ClusterState, Shard

#: What grew is noted so often while nothing happens: an entry of the log for all shards together.
NOTE_S = 10.0
#: What a start says for it alone; what was made of that goes into the log.
_FOR_THE_WITNESS = frozenset({"epoch", "high_watermark"})


class Witness:
    """One for each leadership of the control plane."""

    def __init__(self) -> None:
        self._heard: dict[int, int] = {}
        self._told: set[tuple[int, str]] = set()
        self._noted: dict[int, int] = {}
        self._noted_at = float("-inf")

    def hear(self, state: ClusterState, node: str, progress: Mapping[int, ReplicaProgress]) -> None:
        """A node's heartbeat. Only what a member of the set says in its registered life counts."""
        for id, report in progress.items():
            shard = state.shards.get(id)
            if shard is None or (report.high_watermark <= self._heard.get(id, 0) and (id, node) in self._told):
                continue
            start = shard.start_of(node)
            if start is not None and start.life == (report.incarnation, report.start):
                self._take(shard, node, report.incarnation, report.epoch, report.high_watermark)

    def hear_start(self, shard: Shard, command: Mapping[str, Any]) -> None:
        """A member that asks to be registered. It may be an older copy of itself: what that knew was right as well. One
        of a release before knows of nothing."""
        epoch, high_watermark = command.get("epoch", 0), command.get("high_watermark", 0)
        if type(epoch) is type(high_watermark) is int and 0 <= high_watermark <= MAX_LSN:
            self._take(shard, command["node"], command["incarnation"], epoch, high_watermark)

    def _take(self, shard: Shard, node: str, incarnation: int, epoch: int, high_watermark: int) -> None:
        if shard.listed(node) == incarnation and epoch >= shard.revived_epoch:
            self._told.add((shard.id, node))
            self._heard[shard.id] = max(high_watermark, self._heard.get(shard.id, 0))

    def has_told(self, shard: int, node: str) -> bool:
        """Whether the node has said what it knows of a shard, of whose in-sync set it is."""
        return (shard, node) in self._told

    def testify(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """The command as it goes into the log: with what was heard, where a start is to be registered."""
        if command.get("op") == "revive":
            self._heard.pop(command.get("shard", -1), None)
        if command.get("op") != "register_start":
            return command
        said = {name: value for name, value in command.items() if name not in _FOR_THE_WITNESS}
        return {**said, "witnessed_lsn": self._heard.get(command.get("shard", -1), 0)}

    def due(self, now: float, *, lost: bool) -> dict[str, Any] | None:
        """The command that notes what was heard, if it is time or a node was lost."""
        if not lost and now - self._noted_at < NOTE_S:
            return None
        self._noted_at = now
        floors = [[id, lsn] for id, lsn in sorted(self._heard.items()) if lsn > self._noted.get(id, 0)]
        self._noted = dict(self._heard)
        return {"op": "note_floors", "floors": floors} if floors else None
