"""The commands that change a shard: who leads it, who is in sync, where its replicas are. See :mod:`~.commands`.

They keep the rules that replication rests on: leaders come from the in-sync set and raise the epoch; a member counts
under its incarnation only; replicas come and go one at a time; neither an election nor a dropped replica leaves fewer
than ``min_in_sync`` in sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .command_fields import (
    Change,
    Command,
    Refused,
    expect_epoch,
    expect_version,
    known_shard,
    members,
    number,
    with_shard,
)
from .lives import InSyncMember
from .start_commands import MAX_INCARNATION, started, trusted
from .state import MAX_REPLICAS, ClusterState, NodeState, Shard

MAX_EPOCH = 1 << 62


def elect(state: ClusterState, command: Command) -> Change:
    """``shard``, ``candidate``, ``expected_epoch``; optional ``suspects``, ``min_epoch``.

    The candidate must be in sync: it holds every write acknowledged at quorum. It leads in the life that is registered
    now, and in no later one. Suspects, given by node, leave the
    in-sync set with the election, so that the new leader need not wait for them; but all stay when fewer than
    ``min_in_sync`` would remain: then nothing can be acknowledged anyway, and who is listed may still be elected.
    ``min_epoch`` lifts the epoch above one that a replica has seen.
    """
    shard = known_shard(state, command)
    expect_epoch(shard, command["expected_epoch"])
    candidate, suspects = command["candidate"], set(command.get("suspects") or ())
    if shard.listed(candidate) is None or candidate in suspects:
        raise Refused("not_in_sync", f"shard {shard.id}: {candidate!r} is not in sync: {list(shard.in_sync_nodes)}")
    leading = started(shard, candidate).life
    epoch = max(shard.epoch + 1, number(command.get("min_epoch") or 0, "min_epoch", 0, MAX_EPOCH))
    in_sync = tuple(member for member in shard.in_sync if member.node not in suspects)
    if len(in_sync) < state.settings.min_in_sync:
        in_sync = shard.in_sync
    changed, facts = with_shard(state, shard, leader=candidate, epoch=epoch, leading=leading, in_sync=in_sync)
    return changed, {"epoch": epoch, **facts}


def transfer_leader(state: ClusterState, command: Command) -> Change:
    """``shard``, ``candidate``, ``expected_epoch``: hand leadership over, and prefer the new leader from now on.

    Optional ``pinned``: as for ``set_target``.
    """
    shard = known_shard(state, command)
    candidate, pinned = command["candidate"], _pinned(shard, command)
    if shard.leader == candidate and shard.wanted[0] == candidate and shard.pinned == pinned:
        return state, {"epoch": shard.epoch, "shard_version": shard.version}
    expect_epoch(shard, command["expected_epoch"])
    if shard.listed(candidate) is None:
        raise Refused("not_in_sync", f"shard {shard.id}: {candidate!r} is not in sync: {list(shard.in_sync_nodes)}")
    if state.nodes[candidate].state is not NodeState.ACTIVE:
        raise Refused("draining", f"node {candidate!r} is {state.nodes[candidate].state}; it should lead nothing")
    if shard.target and candidate not in shard.target:
        raise Refused("moving", f"shard {shard.id} moves to {list(shard.target)}; the new leader must be one of them")
    epoch = shard.epoch if shard.leader == candidate else shard.epoch + 1
    changed, facts = with_shard(
        state,
        shard,
        leader=candidate,
        epoch=epoch,
        leading=shard.leading if shard.leader == candidate else started(shard, candidate).life,
        replicas=_first(candidate, shard.replicas),
        target=_first(candidate, shard.target) if shard.target else (),
        pinned=pinned,
    )
    return changed, {"epoch": epoch, **facts}


def _pinned(shard: Shard, command: Command) -> bool:
    return shard.pinned or command.get("pinned") is True


def _first(node: str, replicas: tuple[str, ...]) -> tuple[str, ...]:
    return (node, *(replica for replica in replicas if replica != node))


def set_in_sync(state: ClusterState, command: Command) -> Change:
    """``shard``, ``epoch``, ``expected_version``, ``in_sync`` (``[[node, incarnation], ..]``): by the leader."""
    shard = known_shard(state, command)
    expect_version(shard, command)
    expect_epoch(shard, command["epoch"])
    wanted = _listed_members(command["in_sync"], shard)
    if shard.leader is None or shard.leader not in wanted:
        raise Refused("not_in_sync", f"shard {shard.id}: the in-sync set must hold its leader {shard.leader!r}")
    in_sync = tuple(wanted[node] for node in shard.replicas if node in wanted)
    adding = tuple(node for node in shard.adding if node not in wanted)
    if set(in_sync) == set(shard.in_sync):
        return state, {"shard_version": shard.version}
    return with_shard(state, shard, in_sync=in_sync, adding=adding, distrusted=trusted(shard, in_sync))


def _listed_members(given: Sequence[Sequence[Any]], shard: Shard) -> dict[str, InSyncMember]:
    pairs = [(node, number(incarnation, "incarnation", 0, MAX_INCARNATION)) for node, incarnation in given]
    members([node for node, _ in pairs], "in_sync", set(shard.replicas))
    return {node: InSyncMember(node, incarnation) for node, incarnation in pairs}


def leave_in_sync(state: ClusterState, command: Command) -> Change:
    """``shard``, ``node``, ``incarnation``, ``expected_version``: what the set lists under it no longer exists.

    A leader that leaves leads no more. The last member may not: nobody would be left who may lead.
    """
    shard = known_shard(state, command)
    expect_version(shard, command)
    leaving = InSyncMember(command["node"], number(command["incarnation"], "incarnation", 0, MAX_INCARNATION))
    if leaving not in shard.in_sync:
        return state, {"shard_version": shard.version}
    in_sync = tuple(member for member in shard.in_sync if member != leaving)
    if not in_sync:
        raise Refused("sole_in_sync", f"shard {shard.id}: {leaving.node!r} alone is in sync; nobody else has all of it")
    leader = None if shard.leader == leaving.node else shard.leader
    return with_shard(state, shard, in_sync=in_sync, leader=leader)


def set_replicas(state: ClusterState, command: Command) -> Change:
    """``shard``, ``expected_version``, ``replicas``: one more, one less, or another order; the first is preferred.

    A new replica is ``adding`` until it is in sync. The leader stays: hand leadership over first. Replicas come and go
    only while ``min_in_sync`` of those that stay are in sync.
    """
    shard = known_shard(state, command)
    expect_version(shard, command)
    replicas = members(command["replicas"], "replicas", set(state.active_nodes()) | set(shard.replicas))
    fresh, gone = set(replicas) - set(shard.replicas), set(shard.replicas) - set(replicas)
    # One more than there should be in the end: a new one comes before an old one goes.
    number(len(replicas), "number of replicas", 1, MAX_REPLICAS + 1)
    if len(fresh) + len(gone) > 1:
        raise Refused(
            "invalid_command",
            f"shard {shard.id}: replicas come and go one at a time, not {sorted(fresh | gone)} at once; set a target",
        )
    if (fresh or gone) and shard.leader is None:
        raise Refused("no_leader", f"shard {shard.id} has no leader; elect one first")
    if shard.leader in gone:
        raise Refused("is_leader", f"shard {shard.id}: {shard.leader!r} leads it; elect another one first")
    in_sync = tuple(member for member in shard.in_sync if member.node in replicas)
    if (fresh or gone) and len(in_sync) < state.settings.min_in_sync:
        raise Refused(
            "not_enough_replicas",
            f"shard {shard.id}: only {[member.node for member in in_sync]} would be in sync; wait until more are",
        )
    adding = tuple(node for node in replicas if node in fresh or node in shard.adding)
    return with_shard(
        state,
        shard,
        replicas=replicas,
        in_sync=in_sync,
        adding=adding,
        starts=tuple(start for start in shard.starts if start.node in replicas),
        distrusted=tuple(node for node in shard.distrusted if node in replicas),
    )


def set_target(state: ClusterState, command: Command) -> Change:
    """``shard``, ``expected_version``, ``replicas``: what the shard should have; the first is the preferred leader.

    The leader of the control plane takes it there in steps. Replaces a target not yet reached. Optional ``pinned``:
    people say so, and it is not moved for the sake of evenness until it is unpinned.
    """
    shard = known_shard(state, command)
    expect_version(shard, command)
    target = members(command["replicas"], "replicas", set(state.active_nodes()) | set(shard.replicas))
    number(len(target), "number of replicas", state.settings.min_in_sync, MAX_REPLICAS)
    return with_shard(state, shard, target=target, pinned=_pinned(shard, command))


def unpin(state: ClusterState, command: Command) -> Change:
    """``shard``, ``expected_version``: the cluster may move it again as it sees fit."""
    shard = known_shard(state, command)
    expect_version(shard, command)
    return with_shard(state, shard, pinned=False)


def cancel_target(state: ClusterState, command: Command) -> Change:
    """``shard``, ``expected_version``: stop moving. Replicas being added are dropped, those in sync stay."""
    shard = known_shard(state, command)
    expect_version(shard, command)
    return stay(state, shard)


def stay(state: ClusterState, shard: Shard) -> Change:
    """Give up the shard's target. If it has a replica too many by now, the newest, which is last, goes again."""
    if not shard.target:
        return state, {"shard_version": shard.version}
    kept = tuple(node for node in shard.replicas if node not in shard.adding)
    enough = max(len(shard.target), state.settings.replicas)
    return with_shard(state, shard, target=kept[:enough])
