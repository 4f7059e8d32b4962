"""The commands that keep who a replica is: starts of disks, and up to where their logs are known to be durable.

A disk and the control plane remember the same starts (see ``lsmq_node.replication.identity`` for the handshake). A
disk that does not know the start that was confirmed last, or whose log ends before what it is known to have had, is an
older copy of itself: it is refused here, before it did anything, and comes again as another incarnation.

See :mod:`~.commands`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from .command_fields import (
    Change,
    Command,
    Refused,
    expect_epoch,
    expect_version,
    known_shard,
    number,
    with_shard,
)
from .lives import InSyncMember, RegisteredStart
from .pieces import Pieces
from .state import MAX_REVIVALS, MAX_SHARDS, ClusterState, Revival, Shard

MAX_INCARNATION = (1 << 64) - 1
MAX_LSN = (1 << 62) - 1
MAX_STARTS = 64
_MAX_NUMBER = 1 << 53


def register_start(state: ClusterState, command: Command) -> Change:
    """``shard``, ``node``, ``life``, ``incarnation``, ``starts``, ``registered``, ``went_back``, ``durable_lsn``;
    optional ``witnessed_lsn``, which the leader makes of ``high_watermark`` and ``epoch``, and of what it heard.

    ``starts`` are ``[number, token]`` of all starts that the disk remembers, the one at hand last; it knows of those up
    to the number ``registered`` that they were registered. Registered once, and again when the disk remembers that:
    then it is confirmed, and the replica may act. ``witnessed_lsn`` is what the leader of the control plane has heard
    of the shard's high watermark: every member of the in-sync set holds the log up to there. Only the ``life`` of the
    node that is agreed on is heard: a second process with a copy of the disk would take its place.
    """
    shard, disk = known_shard(state, command), _Disk(command)
    if command["life"] != state.nodes[disk.node].life:
        raise Refused("another_life", f"node {disk.node!r} is another process")
    if disk.node not in shard.replicas:
        raise Refused("no_replica", f"shard {shard.id} has no replica at {disk.node!r}")
    known = shard.start_of(disk.node)
    listed = shard.listed(disk.node)
    if not disk.is_known(known, listed):
        raise Refused(
            "went_back",
            f"shard {shard.id}: the disk of {disk.node!r} is an older copy: it does not know of a start that was "
            f"registered, or was replaced by another one",
        )
    count, token = disk.starts[-1]
    repeated = known is not None and known[1:4] == (disk.incarnation, count, token)
    former_lsn = known.floor_lsn if known is not None and known.incarnation == disk.incarnation else 0
    witnessed_lsn = number(command.get("witnessed_lsn", 0), "witnessed_lsn", 0, MAX_LSN)
    floor_lsn = max(former_lsn, witnessed_lsn if listed == disk.incarnation else 0)
    if disk.durable_lsn < floor_lsn and not repeated:  # What it had when it was registered was enough.
        raise Refused(
            "went_back",
            f"shard {shard.id}: the log of {disk.node!r} ends at LSN {disk.durable_lsn}, and is known to have been "
            f"durable up to {floor_lsn}: the disk is an older copy, or lost a part of the log",
        )
    confirmed = disk.registered >= count or (repeated and known is not None and known.confirmed)
    start = RegisteredStart(disk.node, disk.incarnation, count, token, confirmed, floor_lsn)
    if start == known:
        return state, {"shard_version": shard.version}
    another = known is None or known.incarnation != start.incarnation
    doubted = disk.went_back and another and disk.node not in shard.distrusted
    return with_shard(
        state,
        shard,
        starts=tuple(sorted((*(other for other in shard.starts if other.node != disk.node), start))),
        distrusted=(*shard.distrusted, disk.node) if doubted else shard.distrusted,
        leading=start.life if shard.leader == disk.node and shard.leading is None else shard.leading,
    )


class _Disk:
    """What a disk says of itself."""

    def __init__(self, command: Command) -> None:
        self.node = str(command["node"])
        self.incarnation = number(command["incarnation"], "incarnation", 1, MAX_INCARNATION)
        self.starts = [_start(entry) for entry in command["starts"]]
        number(len(self.starts), "number of starts", 1, MAX_STARTS)
        self.registered = number(command["registered"], "registered", 0, _MAX_NUMBER)
        self.durable_lsn = number(command["durable_lsn"], "durable_lsn", 0, MAX_LSN)
        self.went_back = bool(command["went_back"])

    def is_known(self, known: RegisteredStart | None, listed: int | None) -> bool:
        """Whether ``known`` is a start of this disk and the disk has forgotten nothing since. A new incarnation is no
        older copy, unless it is the one that the in-sync set lists. One that was registered and is not known here was
        replaced, or its replica was taken away meanwhile."""
        if known is None:
            return self.registered == 0
        if known.incarnation != self.incarnation:
            return self.registered == 0 and listed != self.incarnation
        start = known.number, known.token
        if start[0] < self.starts[0][0]:
            return start[0] < self.registered
        remembered = start in self.starts and (not known.confirmed or known.number <= self.registered)
        return start == self.starts[-1] or remembered


def _start(entry: Sequence[Any]) -> tuple[int, int]:
    count, token = entry
    return number(count, "number of a start", 1, _MAX_NUMBER), number(token, "token", 0, MAX_INCARNATION)


def note_floors(state: ClusterState, command: Command) -> Change:
    """``floors``: ``[shard, lsn]``, high watermarks that were heard of. All members of the in-sync set hold the log up
    to there, and never less again. Shards that there are not are passed over."""
    number(len(command["floors"]), "number of floors", 0, MAX_SHARDS)
    for id, lsn in command["floors"]:
        shard = state.shards.get(id)
        if shard is None:
            continue
        floor_lsn = number(lsn, "floor", 0, MAX_LSN)
        starts = tuple(
            start._replace(floor_lsn=max(start.floor_lsn, floor_lsn))
            if shard.listed(start.node) == start.incarnation
            else start
            for start in shard.starts
        )
        if starts != shard.starts:  # Replicas need not know: the shard's version stays.
            shards = Pieces.of(state.shards).with_entry(id, replace(shard, starts=starts))
            state = replace(state, shards=shards)
    return state, {}


def trust(state: ClusterState, command: Command) -> Change:
    """``shard``, ``nodes``: the promises of these count again, although their disks went back. For the leader of the
    control plane, when a majority of voters besides them have been heard: it has forgotten nothing then."""
    shard = known_shard(state, command)
    nodes = set(command["nodes"])
    return with_shard(state, shard, distrusted=tuple(node for node in shard.distrusted if node not in nodes))


def revive(state: ClusterState, command: Command) -> Change:
    """``shard``, ``node``, ``expected_version``, ``expected_epoch``, ``accept_loss``, ``at_ms``: unclean. The replica
    alone is in sync and leads, whatever it lacks; what others hold beyond is given up, and they are filled from it.
    """
    shard = known_shard(state, command)
    expect_version(shard, command)
    expect_epoch(shard, command["expected_epoch"])
    if command.get("accept_loss") is not True:
        raise Refused("loss_not_accepted", "reviving a shard loses acknowledged messages; say that this is accepted")
    start = started(shard, command["node"])
    epoch = shard.epoch + 1
    known_lsn = max(other.floor_lsn for other in shard.starts)
    revival = Revival(epoch, start.node, start.incarnation, known_lsn, number(command["at_ms"], "at_ms", 0, MAX_LSN))
    changed, facts = with_shard(
        state,
        shard,
        leader=start.node,
        epoch=epoch,
        leading=start.life,
        in_sync=(InSyncMember(start.node, start.incarnation),),
        adding=tuple(node for node in shard.adding if node != start.node),
        distrusted=tuple(node for node in shard.distrusted if node != start.node),
        starts=tuple(other._replace(floor_lsn=0) for other in shard.starts),
        revivals=(*shard.revivals, revival)[-MAX_REVIVALS:],
    )
    return changed, {"epoch": epoch, **facts}


def started(shard: Shard, node: str) -> RegisteredStart:
    """The start in which a replica may lead. Raises :class:`Refused`."""
    start = shard.start_of(node)
    if start is None or not start.confirmed:
        raise Refused("not_started", f"shard {shard.id}: the replica at {node!r} has not registered its start yet")
    return start


def trusted(shard: Shard, in_sync: Iterable[InSyncMember]) -> tuple[str, ...]:
    """Who is still distrusted when ``in_sync`` are: those that the set took in as they are, are not."""
    taken_in = set(in_sync)
    return tuple(
        node
        for node in shard.distrusted
        if (start := shard.start_of(node)) is None or InSyncMember(node, start.incarnation) not in taken_in
    )
