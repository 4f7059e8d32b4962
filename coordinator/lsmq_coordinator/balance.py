"""Where replicas and preferred leaders should be: a plan, move after move. Pure.

A plan is made from what is agreed and from what is known of the nodes (:class:`Situation`), in this order:

1. **rebuild**: a replica at a node that is gone is made again at another;
2. **replicas**: nodes hold equally many, to within one;
3. **bytes**: nodes hold about as much, by moves and exchanges that leave the counts even;
4. **leaders**: nodes are preferred by equally many shards, to within one; only the order of replicas changes;
5. **load**: nodes lead about as much of what is written, in the same way.

Each move makes its measure strictly better and leaves those before it as they are, so that every plan ends, and where
it was carried out the next one is empty. Bytes and load change by themselves: they are evened only from a difference on
that is well above what the last move leaves (:data:`UNEVEN`).

A shard that is being moved, or is not in sync, is left alone, but for the rebuilding. So is one that people have placed
(``pinned``), and nothing is evened while a node is away that may yet come back.

``Fits`` says whether a node may hold a replica beside those of others: that the nodes differ is seen to here.

Not supported: the load of readers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from .state import ClusterState, Shard

#: ``fits(node, others)``: whether the node may hold a replica of a shard whose other replicas are at ``others``.
Fits = Callable[[str, Collection[str]], bool]
#: Bytes and load are evened where two nodes differ by more than this share of what a node has on average.
UNEVEN = 0.3
#: And by more than this: to move less is not worth it.
UNEVEN_BYTES = 1 << 30
UNEVEN_BYTES_PER_S = 1 << 20
#: Of the nodes that differ most so many are tried on each side.
_TRIED = 8
#: Of the nodes that hold least so many are tried for what another one holds too much.
_TAKERS_TRIED = 64


class MoveReason(StrEnum):
    """What a move is for. Names reach logs and the API: never renamed."""

    REBUILD = "rebuild"
    REPLICAS = "replicas"
    BYTES = "bytes"
    LEADERS = "leaders"
    LOAD = "load"


class ReplicaMove(NamedTuple):
    """What a shard has, or is to have, and what it should have instead; the first of each is the preferred leader."""

    shard: int
    former: tuple[str, ...]
    replicas: tuple[str, ...]
    why: MoveReason

    @property
    def added(self) -> tuple[str, ...]:
        """Nodes that are to be filled; none when only the order changes."""
        return tuple(node for node in self.replicas if node not in self.former)


def anywhere(node: str, others: Collection[str]) -> bool:
    """Every node is as good as any other."""
    return True


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan rests on beside the agreed state.

    Attributes:
        alive: Nodes that are held alive.
        gone: Nodes that are away for so long that they are not waited for any more.
        closed: Nodes that may be given nothing now: their disks are full, or they come and go.
        sizes: Bytes of a replica of each shard, as far as known.
        loads: Bytes a second written to each shard, as far as known.
        even: Whether anything is evened; else only what is gone is made again.
        even_leaders: Whether leaders are.
    """

    alive: Set[str]
    gone: Set[str] = frozenset()
    closed: Set[str] = frozenset()
    sizes: Mapping[int, int] = field(default_factory=dict)
    loads: Mapping[int, float] = field(default_factory=dict)
    even: bool = True
    even_leaders: bool = True
    fits: Fits = anywhere


#: What belongs together: one move, or the two of an exchange.
ReplicaMoves = tuple[ReplicaMove, ...]


def plan(state: ClusterState, situation: Situation) -> Iterator[ReplicaMoves]:
    """All moves, lazily; each is meant for the layout that those before it leave."""
    layout = _Layout(state, situation)
    yield from _rebuild(state, layout)
    waited_for = {id for id in state.active_nodes() if id not in situation.alive and id not in situation.gone}
    if not situation.even or waited_for:
        return
    yield from _even_replicas(layout)
    yield from _even_bytes(layout)
    if situation.even_leaders:
        yield from _even_leaders(layout)
        yield from _even_load(layout)


class _Layout:
    """Where everything is to be, changed by each move that is made."""

    def __init__(self, state: ClusterState, situation: Situation) -> None:
        self.situation = situation
        active = [id for id in state.active_nodes() if id in situation.alive]
        #: What counts, in order; of these the open ones may be given something.
        self.nodes = active
        self.open = {id for id in active if id not in situation.closed}
        self.wanted = {id: shard.wanted for id, shard in state.shards.items()}
        self.movable = {id for id, shard in state.shards.items() if _is_at_rest(shard)}
        self.on: dict[str, set[int]] = {id: set() for id in state.nodes}
        self.first: dict[str, set[int]] = {id: set() for id in state.nodes}
        for id, replicas in self.wanted.items():
            self.first[replicas[0]].add(id)
            for node in replicas:
                self.on[node].add(id)
        self.bytes = {node: sum(situation.sizes.get(id, 0) for id in self.on[node]) for node in active}
        self.load = {node: sum(situation.loads.get(id, 0.0) for id in self.first[node]) for node in active}

    def can_take(self, node: str, shard: int, instead_of: str) -> bool:
        replicas = self.wanted[shard]
        if node in replicas or node not in self.open:
            return False
        return self.situation.fits(node, [other for other in replicas if other != instead_of])

    def replace(self, shard: int, former: str, node: str, why: MoveReason) -> ReplicaMove:
        """A replica goes to another node, and leads there if it did."""
        return self.put(shard, tuple(node if one == former else one for one in self.wanted[shard]), why)

    def prefer(self, shard: int, node: str, why: MoveReason) -> ReplicaMove:
        """The replica at ``node`` and the one that was preferred change places."""
        first = self.wanted[shard][0]
        swapped = {first: node, node: first}
        return self.put(shard, tuple(swapped.get(one, one) for one in self.wanted[shard]), why)

    def put(self, shard: int, replicas: tuple[str, ...], why: MoveReason) -> ReplicaMove:
        move = ReplicaMove(shard, self.wanted[shard], replicas, why)
        sizes, loads = self.situation.sizes, self.situation.loads
        for nodes, sign in ((move.former, -1), (replicas, 1)):
            for node in nodes:
                (self.on[node].discard if sign < 0 else self.on[node].add)(shard)
                if node in self.bytes:
                    self.bytes[node] += sign * sizes.get(shard, 0)
            (self.first[nodes[0]].discard if sign < 0 else self.first[nodes[0]].add)(shard)
            if nodes[0] in self.load:
                self.load[nodes[0]] += sign * loads.get(shard, 0.0)
        self.wanted[shard] = replicas
        return move


def _is_at_rest(shard: Shard) -> bool:
    """Whether a shard may be moved for the sake of evenness."""
    return not (shard.target or shard.adding or shard.pinned) and set(shard.in_sync_nodes) == set(shard.replicas)


# What is gone


def _rebuild(state: ClusterState, layout: _Layout) -> Iterator[ReplicaMoves]:
    for node in sorted(layout.situation.gone & layout.on.keys()):
        for id in sorted(layout.on[node]):
            shard = state.shards[id]
            if shard.leader not in layout.situation.alive or len(shard.in_sync) < state.settings.min_in_sync:
                continue
            takers = [one for one in layout.nodes if layout.can_take(one, id, node)]
            if not takers:
                continue
            # A replica that was to cease has it all.
            present = set(shard.in_sync_nodes)
            taker = min(takers, key=lambda one: (one not in present, len(layout.on[one]), layout.bytes[one], one))
            layout.movable.discard(id)
            # The new replica comes last: who leads now is preferred from here on.
            rest = tuple(one for one in layout.wanted[id] if one != node)
            yield (layout.put(id, (*rest, taker), MoveReason.REBUILD),)


# Counts


def _even_replicas(layout: _Layout) -> Iterator[ReplicaMoves]:
    while (found := _from_most_to_least(layout)) is not None:
        yield (layout.replace(*found, MoveReason.REPLICAS),)


def _from_most_to_least(layout: _Layout) -> tuple[int, str, str] | None:
    """A shard, a node that holds most of those that can give it away, and the node that holds least of its takers."""
    rising = sorted(layout.nodes, key=lambda node: (len(layout.on[node]), layout.bytes[node], node))
    least = [node for node in rising if node in layout.open]
    for source in reversed(rising):
        held = len(layout.on[source])
        if not least or held - len(layout.on[least[0]]) < 2:
            return None
        for taker in islice(least, _TAKERS_TRIED):
            if held - len(layout.on[taker]) < 2:
                break
            shard = _fittest(layout, source, taker)
            if shard is not None:
                return shard, source, taker
    return None


def _fittest(layout: _Layout, source: str, taker: str) -> int | None:
    """Which of the shards at ``source`` goes to ``taker``: one that evens out leaders as well, then bytes."""
    leads = len(layout.first[source]) > len(layout.first[taker])
    half = (layout.bytes[source] - layout.bytes[taker]) / 2
    sizes = layout.situation.sizes

    def rank(shard: int) -> tuple[bool, float, int]:
        return (layout.wanted[shard][0] == source) != leads, abs(sizes.get(shard, 0) - half), shard

    able = (id for id in layout.on[source] & layout.movable if layout.can_take(taker, id, source))
    return min(able, key=rank, default=None)


def _even_leaders(layout: _Layout) -> Iterator[ReplicaMoves]:
    """Along the shortest chain of shards from a node that too many prefer to one that at least two fewer do."""
    while True:
        counts = {node: len(layout.first[node]) for node in layout.nodes}
        fewest = min((counts[node] for node in layout.open), default=0)
        sources = sorted((node for node in counts if counts[node] - fewest >= 2), key=lambda node: -counts[node])
        chain = next((found for source in sources if (found := _chain(layout, source, counts))), [])
        if not chain:
            return
        for shard, node in chain:
            yield (layout.prefer(shard, node, MoveReason.LEADERS),)


def _chain(layout: _Layout, source: str, counts: Mapping[str, int]) -> list[tuple[int, str]]:
    """Shards and who is to be preferred for each, the last one first; empty where there is no such chain."""
    steps: dict[str, tuple[int, str]] = {source: (-1, "")}
    line = deque([source])
    while line:
        node = line.popleft()
        if counts[source] - counts[node] >= 2:
            chain = []
            while node != source:
                shard, former = steps[node]
                chain.append((shard, node))
                node = former
            return chain
        for shard in sorted(layout.first[node] & layout.movable):
            for other in layout.wanted[shard][1:]:
                if other in layout.open and other not in steps:
                    steps[other] = (shard, node)
                    line.append(other)
    return []


# Bytes and load


def _even_bytes(layout: _Layout) -> Iterator[ReplicaMoves]:
    while (found := _uneven_pair(layout, layout.bytes, UNEVEN_BYTES, _replica_trade)) is not None:
        most, least, given, taken = found
        moves = [layout.replace(given, most, least, MoveReason.BYTES)]
        if taken is not None:
            moves.append(layout.replace(taken, least, most, MoveReason.BYTES))
        yield tuple(moves)


def _even_load(layout: _Layout) -> Iterator[ReplicaMoves]:
    while (found := _uneven_pair(layout, layout.load, UNEVEN_BYTES_PER_S, _leader_trade)) is not None:
        most, least, given, taken = found
        moves = [layout.prefer(given, least, MoveReason.LOAD)]
        if taken is not None:
            moves.append(layout.prefer(taken, most, MoveReason.LOAD))
        yield tuple(moves)


_Trade = tuple[int, int | None]
_ChooseTrade = Callable[["_Layout", str, str], "_Trade | None"]


def _uneven_pair(
    layout: _Layout,
    has: Mapping[str, float],
    least_unevenness: float,
    trade: Callable[[_Layout, str, str], _Trade | None],
) -> tuple[str, str, int, int | None] | None:
    """Two nodes that differ by too much, and what one gives the other; for that it may be given another in return."""
    if not has:
        return None
    limit = max(least_unevenness, UNEVEN * sum(has.values()) / len(has))
    rising = sorted((node for node in has if node in layout.open), key=lambda node: (has[node], node))
    for most in rising[: -_TRIED - 1 : -1]:
        for least in rising[:_TRIED]:
            if has[most] - has[least] <= limit:
                break
            found = trade(layout, most, least)
            if found is not None:
                return most, least, *found
    return None


def _replica_trade(layout: _Layout, most: str, least: str) -> _Trade | None:
    given = [id for id in layout.on[most] & layout.movable if layout.can_take(least, id, most)]
    taken = [id for id in layout.on[least] & layout.movable if layout.can_take(most, id, least)]
    alone = len(layout.on[most]) > len(layout.on[least])
    return _best_trade(given, taken, layout.situation.sizes, layout.bytes[most] - layout.bytes[least], alone=alone)


def _leader_trade(layout: _Layout, most: str, least: str) -> _Trade | None:
    given = [id for id in layout.first[most] & layout.movable if least in layout.wanted[id]]
    taken = [id for id in layout.first[least] & layout.movable if most in layout.wanted[id]]
    alone = len(layout.first[most]) > len(layout.first[least])
    return _best_trade(given, taken, layout.situation.loads, layout.load[most] - layout.load[least], alone=alone)


def _best_trade(
    given: list[int], taken: list[int], weights: Mapping[int, float], difference: float, *, alone: bool
) -> _Trade | None:
    """What leaves the smallest difference, and at most three quarters of it. ``alone``: for nothing in return."""
    offers = sorted((float(weights.get(id, 0)), id) for id in taken)
    best: tuple[float, _Trade] | None = None
    for id in sorted(given):
        weight = float(weights.get(id, 0))
        choices: list[tuple[float, int | None]] = [(weight, None)] if alone else []
        place = bisect_left(offers, (weight - difference / 2, -1))
        choices += [(weight - back, other) for back, other in islice(offers, max(0, place - 1), place + 1)]
        for shifted, other in choices:
            left = abs(difference - 2 * shifted)
            if left <= 0.75 * difference and (best is None or left < best[0]):
                best = left, (id, other)
    return None if best is None else best[1]


# What may begin


def first_moves(moves: Iterator[ReplicaMoves], state: ClusterState, alive: Set[str], at_once: int) -> list[ReplicaMove]:
    """What of a plan may begin now, so that at most ``at_once`` shards are moved, and each node fills one at a time.

    What rests on a move that has to wait waits for the next plan.
    """
    filling = {shard.id: missing for shard in state.shards.values() if (missing := _filling(shard, alive))}
    busy = set[str]().union(*filling.values())
    touched, chosen, left = set(filling), list[ReplicaMove](), at_once - len(filling)
    for together in islice(moves, 8 * at_once if left > 0 else 0):
        added = [node for move in together for node in move.added]
        shards = {move.shard for move in together}
        if len(together) <= left and not busy & set(added) and not touched & shards:
            busy |= set(added)
            chosen += together
            left -= len(together)
        touched |= shards
    return chosen


def _filling(shard: Shard, alive: Set[str]) -> set[str]:
    """Nodes that a move under way fills, or will; none where it waits for a node that is away."""
    missing = {*shard.adding, *shard.target} - set(shard.in_sync_nodes) if shard.target else set(shard.adding)
    return missing if missing <= alive and shard.leader in alive else set()
