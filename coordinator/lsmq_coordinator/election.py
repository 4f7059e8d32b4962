"""Who leads, and who holds which replica: pure choices over the agreed state.

Nothing here acts. A caller proposes what these functions return as compare-and-set commands, so a choice made
on an old state is refused, not wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .state import ClusterState, Shard

#: How far a replica's log reaches: (last epoch in it, end LSN). Greater is further.
Progress = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Leadership of a shard that should go from one node to another."""

    shard: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A replica that should go from one node to another; ``target`` is None when no node can take it."""

    shard: int
    source: str
    target: str | None


def choose_candidate(
    shard: Shard,
    alive: Set[str],
    progress: Mapping[str, Progress] | None = None,
    preferred: str | None = None,
    loads: Mapping[str, int] | None = None,
) -> str | None:
    """The node to elect for a shard whose leader is gone, or None when nobody may lead.

    Only members of the in-sync set that are alive: each of them holds every write acknowledged at quorum.
    ``preferred`` wins when it is one of them; else whose log reaches furthest (nothing to fetch before it
    serves), then who leads least, then the order of the replicas.
    """
    eligible = [node for node in shard.replicas if node in shard.in_sync and node in alive]
    if preferred in eligible:
        return preferred
    reach, load = progress or {}, loads or {}
    return max(
        eligible,
        key=lambda node: (reach.get(node, (0, 0)), -load.get(node, 0), -shard.replicas.index(node)),
        default=None,
    )


def leader_counts(state: ClusterState, nodes: Set[str]) -> dict[str, int]:
    """How many shards each of ``nodes`` leads."""
    counts = dict.fromkeys(sorted(nodes), 0)
    for shard in state.shards.values():
        if shard.leader in counts:
            counts[shard.leader] += 1
    return counts


def spread_leaders(state: ClusterState, alive: Set[str]) -> list[Transfer]:
    """The next transfer towards an even spread of leaders: one at most, none while a shard has no live leader.

    In order: off a draining node; towards even counts (along a chain where no single transfer evens them out);
    to a shard's first replica where that leaves the counts as even as they are. Repeating it ends.
    """
    if any(shard.leader is None or shard.leader not in alive for shard in state.shards.values()):
        return []
    willing = alive & set(state.active_nodes())
    counts = leader_counts(state, willing)
    shards = [state.shards[id] for id in sorted(state.shards)]
    for shard in shards:
        if shard.leader not in counts:
            targets = _targets(shard, willing)
            if targets:
                target = min(targets, key=lambda node: (counts[node], shard.replicas.index(node)))
                return [Transfer(shard.id, str(shard.leader), target)]
    transfer = _even_out(shards, willing, counts)
    if transfer is not None:
        return [transfer]
    for shard in shards:
        first, leader = shard.replicas[0], shard.leader
        if leader in counts and first in _targets(shard, willing) and counts[first] < counts[leader]:
            return [Transfer(shard.id, leader, first)]
    return []


def _targets(shard: Shard, willing: Set[str]) -> list[str]:
    return [n for n in shard.replicas if n in shard.in_sync and n in willing and n != shard.leader]


def _even_out(shards: Sequence[Shard], willing: Set[str], counts: Mapping[str, int]) -> Transfer | None:
    """The last step of the shortest chain from a node to one that leads at least two shards less."""
    for source in sorted(counts, key=lambda node: (-counts[node], node)):
        steps: dict[str, Transfer | None] = {source: None}
        line = deque([source])
        while line:
            node = line.popleft()
            step = steps[node]
            if step is not None and counts[source] - counts[node] >= 2:
                return step
            led = [shard for shard in shards if shard.leader == node]
            # Where several shards could go, one that is away from its first replica goes first.
            for shard in sorted(led, key=lambda shard: (shard.replicas[0] == node, shard.id)):
                for target in sorted(_targets(shard, willing), key=lambda n: (n != shard.replicas[0], counts[n])):
                    if target not in steps:
                        steps[target] = Transfer(shard.id, node, target)
                        line.append(target)
    return None


def place_replicas(nodes: Sequence[str], shards: int, replicas: int) -> dict[int, tuple[str, ...]]:
    """Replicas for ``shards`` shards, the first of each its first leader.

    No two nodes differ by more than one replica, nor by more than one first replica. The other replicas are
    staggered, so that the load of a node that fails falls on many.
    """
    if not 1 <= replicas <= len(nodes):
        raise ValueError(f"{replicas} replicas do not fit on {len(nodes)} nodes")
    count = len(nodes)
    # Leaders take turns. Knowing them all beforehand, followers go where least is held.
    placed = {shard: [nodes[shard % count]] for shard in range(shards)}
    held = {node: sum(chosen[0] == node for chosen in placed.values()) for node in nodes}
    for shard, chosen in placed.items():
        stagger = 1 + shard // count
        turn = [nodes[(shard + stagger + step) % count] for step in range(count)]
        while len(chosen) < replicas:
            free = [node for node in turn if node not in chosen]
            chosen.append(min(free, key=held.__getitem__))
            held[chosen[-1]] += 1
    _even_followers(placed, held)
    return {shard: tuple(chosen) for shard, chosen in placed.items()}


def _even_followers(placed: Mapping[int, list[str]], held: dict[str, int]) -> None:
    """Move followers from nodes that hold most to nodes that hold least, until they differ by one at most."""
    while True:
        most = max(held, key=held.__getitem__)
        least = min(held, key=held.__getitem__)
        if held[most] - held[least] <= 1:
            return
        chosen = next(chosen for chosen in placed.values() if most in chosen[1:] and least not in chosen)
        chosen[chosen.index(most)] = least
        held[most] -= 1
        held[least] += 1


def drain_plan(state: ClusterState, node: str) -> list[ReplicaMove]:
    """Where the replicas of ``node`` should go: to the active nodes that hold least, one move a shard."""
    held = dict.fromkeys((id for id in state.active_nodes() if id != node), 0)
    for shard in state.shards.values():
        for replica in shard.replicas:
            if replica in held:
                held[replica] += 1
    moves = []
    for shard in state.replicas_on(node):
        free = [id for id in held if id not in shard.replicas]
        target = min(free, key=lambda id: (held[id], id), default=None)
        if target is not None:
            held[target] += 1
        moves.append(ReplicaMove(shard.id, node, target))
    return moves
