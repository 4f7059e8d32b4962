"""How replicas get where they should be: pure, one small step at a time, all of it derived from the agreed state.

A shard's ``target`` says what it should have. Each step is a compare-and-set command, and whoever leads the control
plane takes the next one from the state alone, so a move can be interrupted anywhere:

1. a replica that is being added but no longer wanted is dropped;
2. a missing one is added, one at a time, to a node that is alive and to which nothing else is being added;
3. when it is in sync, one that is not wanted goes: those that are not in sync first, the leader last;
4. a leader that has to go hands over to the first replica of the target that is in sync and alive.

At most so many shards are filled at once as the caller says, and while moves are paused none begins to be.
A replica in sync is dropped only while as many as the target names stay in sync: a move never lowers the redundancy.
Draining nodes have their replicas moved to those that hold least, on hosts that have none of the shard, and replicas
that came to share a host, or a rack without need, are moved apart (:mod:`~.placement`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from .balance import ReplicaMove
from .placement import NodePlaces, better_places, choose, places_of
from .state import ClusterState, NodeState, Shard

#: Shards that are filled at once in the whole cluster, where nothing else is said.
MOVES_AT_ONCE = 4

ReassignmentStep = dict[str, Any]


def next_steps(state: ClusterState, alive: Set[str], at_once: int = MOVES_AT_ONCE) -> list[ReassignmentStep]:
    """The commands to submit now; empty when everything is where it should be, or has to wait for a replica.

    At most one a shard. Each may be refused when the state has changed meanwhile. At most ``at_once`` shards are
    filled.
    """
    targets = {} if state.moves_paused else {**better_places(state, alive), **drain_targets(state)}
    filling = _Filling(state, at_once)
    steps: list[ReassignmentStep] = []
    for id in sorted(state.shards):
        shard = state.shards[id]
        if id in targets:
            steps.append(_on(shard, "set_target", replicas=list(targets[id])))
        elif shard.target:
            steps += _step(state, shard, alive, filling)
    return steps


class _Filling:
    """Which nodes may take in a replica: one at a time each, and no more shards than may be filled at once."""

    def __init__(self, state: ClusterState, at_once: int) -> None:
        adding = [shard.adding for shard in state.shards.values() if shard.adding]
        self._busy = {node for nodes in adding for node in nodes}
        self._left = 0 if state.moves_paused else at_once - len(adding)

    def begin(self, nodes: list[str]) -> str | None:
        """The first of them that may, which then is busy."""
        ready = next((node for node in nodes if node not in self._busy), None) if self._left > 0 else None
        if ready is not None:
            self._busy.add(ready)
            self._left -= 1
        return ready


def _step(state: ClusterState, shard: Shard, alive: Set[str], filling: _Filling) -> list[ReassignmentStep]:
    if shard.leader not in alive or len(shard.in_sync) < state.settings.min_in_sync:
        return []
    unwanted = [node for node in shard.replicas if node not in shard.target]
    strays = [node for node in unwanted if node in shard.adding]
    if strays:
        return [_without(shard, strays[0])]
    if shard.adding:
        return []
    missing = [node for node in shard.target if node not in shard.replicas]
    if missing and len(shard.replicas) <= len(shard.target):
        ready = filling.begin([node for node in missing if node in alive and _is_active(state, node)])
        return [] if ready is None else [_on(shard, "set_replicas", replicas=[*shard.replicas, ready])]
    if unwanted:
        return _drop_one(state, shard, unwanted, alive)
    return [_on(shard, "set_replicas", replicas=list(shard.target))]


def _drop_one(state: ClusterState, shard: Shard, unwanted: list[str], alive: Set[str]) -> list[ReassignmentStep]:
    in_sync = set(shard.in_sync_nodes)
    out = [node for node in unwanted if node not in in_sync]
    if out:
        return [_without(shard, out[0])]
    if len(in_sync) <= max(len(shard.target), state.settings.min_in_sync):
        return []
    followers = [node for node in unwanted if node != shard.leader]
    if followers:
        # The newest first: what was there longest is left longest.
        return [_without(shard, followers[-1])]
    candidates = [node for node in shard.target if node in in_sync and node in alive]
    return [handover(shard, candidates[0])] if candidates else []


def _is_active(state: ClusterState, node: str) -> bool:
    return node in state.nodes and state.nodes[node].state is NodeState.ACTIVE


def _without(shard: Shard, node: str) -> ReassignmentStep:
    """The shard's replicas without one of them, in the order of the target when they are all that it names."""
    left = [replica for replica in shard.replicas if replica != node]
    return _on(shard, "set_replicas", replicas=list(shard.target) if set(left) == set(shard.target) else left)


def _on(shard: Shard, op: str, **fields: Any) -> ReassignmentStep:
    return {"op": op, "shard": shard.id, "expected_version": shard.version, **fields}


def beginning(state: ClusterState, move: ReplicaMove) -> ReassignmentStep:
    """The command that begins a move. Where only the order of replicas changes, it is done with that."""
    shard = state.shards[move.shard]
    op = "set_target" if move.added or shard.target else "set_replicas"
    return _on(shard, op, replicas=list(move.replicas))


def handover(shard: Shard, candidate: str) -> ReassignmentStep:
    """Leadership goes from a leader that is well to another replica in sync."""
    return {"op": "elect", "shard": shard.id, "candidate": candidate, "expected_epoch": shard.epoch}


def drain_targets(state: ClusterState) -> dict[int, tuple[str, ...]]:
    """New targets for shards that should have a replica on a node that is draining or gone.

    Each such replica goes to the active node that holds least, of those on other hosts than the rest and in the least
    crowded rack; best to one that still has it. Where there is none it stays. The preferred leader stays the same, or
    becomes the node that is preferred least.
    """
    active, places = state.active_nodes(), places_of(state.nodes.values())
    held, preferred = dict.fromkeys(active, 0), dict.fromkeys(active, 0)
    for shard in state.shards.values():
        for node in shard.wanted:
            if node in held:
                held[node] += 1
        if shard.wanted[0] in preferred:
            preferred[shard.wanted[0]] += 1
    targets = {}
    for id in sorted(state.shards):
        shard = state.shards[id]
        target = _drained(shard, held, places)
        if target == shard.wanted:
            continue
        if shard.wanted[0] not in held:
            fit = [node for node in target if node in preferred]
            if fit:
                first = min(fit, key=preferred.__getitem__)
                preferred[first] += 1
                target = (first, *(node for node in target if node != first))
        targets[id] = target
    return targets


def _drained(shard: Shard, held: dict[str, int], places: NodePlaces) -> tuple[str, ...]:
    """The shard's replicas with those on nodes that are not active (not in ``held``) replaced, in place."""
    target = list(shard.wanted)
    for node in shard.wanted:
        if node in held:
            continue
        place = target.index(node)
        others = [*target[:place], *target[place + 1 :]]
        free = (other for other in held if other not in target)
        chosen = choose(places, free, others, lambda other: (other not in shard.replicas, held[other], other))
        if chosen is not None:
            target[place] = chosen
            held[chosen] += 1
        elif node not in shard.replicas:
            # It was to go to a node that takes nothing any more: what is there stays.
            target[place : place + 1] = [other for other in shard.replicas if other not in target][:1]
    return tuple(target)


def waiting_shards(state: ClusterState, node: str) -> Mapping[int, bool]:
    """The shards that a draining node still has to give away, and for each whether there is a node to take it."""
    return {shard.id: node not in shard.wanted for shard in state.replicas_on(node)}
