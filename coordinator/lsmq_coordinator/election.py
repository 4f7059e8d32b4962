"""Who leads, and who holds which replica: pure choices over the agreed state.

Nothing here acts. A caller proposes what these functions return as compare-and-set commands, so a choice made
on an old state is refused, not wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntFlag
from types import MappingProxyType
from typing import NamedTuple

from .lives import UNCLAIMED
from .placement import NodePlaces, choose, may_replace, place_of
from .state import ClusterState, Shard


class Flaw(IntFlag):
    """What is wrong with a replica that works. On the wire: numbers stay."""

    DAMAGED = 1  # Files of it are: not all of its messages can be read.
    FULL = 2  # Its disk is: it takes no writes.


class ReplicaProgress(NamedTuple):
    """What a node reports of a replica: the last epoch in its log, where the log is durable to, which life of it acts,
    and up to where it knows the log to be committed.

    A replica that cannot work is not reported, and not elected. One that is ``flawed``, by its :class:`Flaw`, is
    elected when nobody else is left.
    """

    epoch: int
    end_lsn: int
    incarnation: int
    start: int
    high_watermark: int = 0
    flawed: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """Leadership of a shard that should go from one node to another."""

    shard: int
    source: str
    target: str


def choose_candidate(
    shard: Shard,
    alive: Set[str],
    progress: Mapping[str, ReplicaProgress] | None = None,
    preferred: str | None = None,
    loads: Mapping[str, int] | None = None,
) -> str | None:
    """The node to elect for a shard whose leader is gone, or None when nobody may lead.

    Only members of the in-sync set that are alive and report the life that is registered: each of them holds every
    write acknowledged at quorum. ``preferred`` wins when it is one of them; else who is least flawed, then whose
    log reaches furthest (nothing to fetch before it serves), then who leads least, then the order of the replicas.
    """
    reports, load = progress or {}, loads or {}
    eligible = [node for node in shard.replicas if node in alive and may_lead(shard, node, reports.get(node))]
    if preferred in eligible:
        return preferred

    def rank(node: str) -> tuple[bool, bool, int, int, int, int]:
        report = reports[node]
        whole, roomy = not report.flawed & Flaw.DAMAGED, not report.flawed & Flaw.FULL
        return whole, roomy, report.epoch, report.end_lsn, -load.get(node, 0), -shard.replicas.index(node)

    return max(eligible, key=rank, default=None)


def choose_successor(
    shard: Shard,
    alive: Set[str],
    progress: Mapping[str, ReplicaProgress],
    min_in_sync: int,
    resting: Set[str] = frozenset(),
) -> str | None:
    """The node to elect in place of a leader that takes no writes, or None when that would win nothing.

    ``alive`` without the leader, and without others that are no better. Who reports no replica, or a flawed one, does
    not count; and unless as many count as a write needs, nobody could acknowledge more than the leader there is.
    ``resting`` count, and are not to lead.
    """
    working = {
        node
        for node in shard.replicas
        if node in alive and node in progress and not progress[node].flawed and node not in shard.adding
    }
    return choose_candidate(shard, working - resting, progress) if len(working) >= min_in_sync else None


def may_lead(shard: Shard, node: str, report: ReplicaProgress | None) -> bool:
    """Whether the in-sync set lists the node as what it reports to be, and that is the life that is registered."""
    start = shard.start_of(node)
    if report is None or start is None or not start.confirmed:
        return False
    lives = (report.incarnation, report.start) == start.life
    return lives and shard.listed(node) in (UNCLAIMED, report.incarnation)


def why_leaderless(shard: Shard, alive: Set[str], progress: Mapping[str, ReplicaProgress]) -> str:
    """Why nobody can be elected for a shard, and what helps, in words."""
    reasons = []
    for node in shard.in_sync_nodes:
        start, report = shard.start_of(node), progress.get(node)
        if node not in alive:
            reasons.append(f"{node} is away")
        elif start is not None and shard.listed(node) not in (UNCLAIMED, start.incarnation):
            reasons.append(f"{node} came back without what it had: its disk was lost, damaged, or is an older copy")
        elif report is None:
            reasons.append(f"{node} runs, but its replica does not work")
        else:
            reasons.append(f"the replica at {node} is starting")
    if len(shard.replicas) == 1 and not any("came back" in reason for reason in reasons):
        return (
            f"nobody that has all acknowledged messages can lead: {'; '.join(reasons)}. It has no other replica: it is "
            "led again once this one works; warnings of `lsmq status` and its log say what it lacks"
        )
    return (
        f"nobody that has all acknowledged messages can lead: {'; '.join(reasons)}. Bring one of these back as it was; "
        f"if none ever can be, `lsmq shard revive {shard.id} --from NODE --accept-loss` goes on with what another has"
    )


def leader_counts(state: ClusterState, nodes: Set[str]) -> dict[str, int]:
    """How many shards each of ``nodes`` leads."""
    counts = dict.fromkeys(sorted(nodes), 0)
    for shard in state.shards.values():
        if shard.leader in counts:
            counts[shard.leader] += 1
    return counts


def spread_leaders(state: ClusterState, alive: Set[str], unfit: Set[tuple[int, str]] = frozenset()) -> list[Transfer]:
    """The next transfer towards leaders where they should be: one at most, none while a shard has no live leader.

    In order: off a draining node; to each shard's preferred leader, its first replica; and of the shards whose
    preferred leader cannot lead, towards even counts (along a chain where no single transfer evens them out).
    ``unfit`` are replicas that are not to be led from. Repeating it ends.
    """
    if any(shard.leader is None or shard.leader not in alive for shard in state.shards.values()):
        return []
    willing = alive & set(state.active_nodes())
    counts = leader_counts(state, willing)
    shards = [state.shards[id] for id in sorted(state.shards)]
    choices = {
        shard.id: [
            node
            for node in shard.wanted
            if node in willing and shard.listed(node) is not None and (shard.id, node) not in unfit
        ]
        for shard in shards
    }
    for shard in shards:
        if shard.leader not in counts and choices[shard.id]:
            first = shard.wanted[0]
            target = min(choices[shard.id], key=lambda node: (node != first, counts[node]))
            return [Transfer(shard.id, str(shard.leader), target)]
    for shard in shards:
        first = shard.wanted[0]
        if shard.leader != first and first in choices[shard.id]:
            return [Transfer(shard.id, str(shard.leader), first)]
    strays = {shard.id: choices[shard.id] for shard in shards if shard.wanted[0] not in choices[shard.id]}
    transfer = _even_out(state, strays, counts)
    return [] if transfer is None else [transfer]


def _even_out(state: ClusterState, choices: Mapping[int, list[str]], counts: Mapping[str, int]) -> Transfer | None:
    """The last step of the shortest chain from a node to one that leads at least two shards less.

    ``choices``: for each shard that may move, who may lead it.
    """
    for source in sorted(counts, key=lambda node: (-counts[node], node)):
        steps: dict[str, Transfer | None] = {source: None}
        line = deque([source])
        while line:
            node = line.popleft()
            step = steps[node]
            if step is not None and counts[source] - counts[node] >= 2:
                return step
            for shard, eligible in choices.items():
                if state.shards[shard].leader != node:
                    continue
                for target in sorted(eligible, key=lambda node: counts[node]):
                    if target not in steps:
                        steps[target] = Transfer(shard, node, target)
                        line.append(target)
    return None


def place_replicas(
    nodes: Sequence[str],
    shards: int,
    replicas: int,
    leaders: Sequence[str] = (),
    places: NodePlaces = MappingProxyType({}),
) -> dict[int, tuple[str, ...]]:
    """Replicas for ``shards`` shards, the first of each its first leader.

    No two replicas of a shard share a host, and they are as even over the racks as that allows; ``places`` says where
    nodes are, each on a host of its own where it does not. No two nodes differ by more than one first replica, and
    without labels by no more than one replica. The other replicas are staggered, so that the load of a node that fails
    falls on many. ``leaders`` says who leads first instead, in turn; replicas are then as even as that allows. Raises
    ``ValueError`` where that cannot be.
    """
    if not 1 <= replicas <= len(nodes):
        raise ValueError(f"{replicas} replicas do not fit on {len(nodes)} nodes")
    hosts = {place_of(places, node).host for node in nodes}
    if replicas > len(hosts):
        raise ValueError(
            f"{replicas} replicas do not fit on {len(hosts)} hosts ({', '.join(sorted(hosts))}): no two replicas of a "
            "shard may lie on one host"
        )
    if not set(leaders) <= set(nodes):
        raise ValueError(f"the first leaders {list(leaders)} must be some of {list(nodes)}")
    count, turns = len(nodes), leaders or nodes
    # Leaders take turns. Knowing them all beforehand, followers go where least is held.
    placed = {shard: [turns[shard % len(turns)]] for shard in range(shards)}
    held = {node: sum(chosen[0] == node for chosen in placed.values()) for node in nodes}
    for shard, chosen in placed.items():
        stagger = 1 + shard // count
        turn = [nodes[(shard + stagger + step) % count] for step in range(count)]
        while len(chosen) < replicas:
            node = choose(places, turn, chosen, held.__getitem__)
            assert node is not None, "there are as many hosts as replicas"
            chosen.append(node)
            held[node] += 1
    _even_followers(placed, held, places)
    return {shard: tuple(chosen) for shard, chosen in placed.items()}


def _even_followers(placed: Mapping[int, list[str]], held: dict[str, int], places: NodePlaces) -> None:
    """Move followers from nodes that hold more to nodes that hold less, until they differ by one or none may go.

    Each move makes the sum of squares of what is held less, so it ends.
    """
    while (move := _evening_move(placed, held, places)) is not None:
        chosen, source, target = move
        chosen[chosen.index(source)] = target
        held[source] -= 1
        held[target] += 1


def _evening_move(
    placed: Mapping[int, list[str]], held: Mapping[str, int], places: NodePlaces
) -> tuple[list[str], str, str] | None:
    """A follower, by its shard's replicas, that may go from a node to one that holds at least two less."""
    falling = sorted(held, key=lambda node: -held[node])
    for source in falling:
        for target in reversed(falling):
            if held[source] - held[target] <= 1:
                break
            for chosen in placed.values():
                if source in chosen[1:] and may_replace(places, chosen, source, target):
                    return chosen, source, target
    return None
