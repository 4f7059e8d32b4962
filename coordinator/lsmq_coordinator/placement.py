"""Where the replicas of a shard may lie: the labels of nodes, and what follows from them. Pure.

A node's ``host`` is the machine that it runs on, its ``rack`` whatever machines share and can lose at once: a rack, a
room, a zone. Several processes of one machine are several nodes with one host. Two rules follow:

- no two replicas of a shard lie on one host, whatever else would be even;
- they are spread over the racks as evenly as hosts allow.

A node without a host is a machine by itself, known by its id. Racks count once every node that may hold replicas
has one: while labels are being given, node by node, nothing is moved for the sake of those given first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .state import ClusterState, NodeRecord, NodeState


class NodePlace(NamedTuple):
    """Where a node is. ``rack`` is empty where racks do not count."""

    host: str
    rack: str = ""


NodePlaces = Mapping[str, NodePlace]


def places_of(nodes: Iterable[NodeRecord]) -> dict[str, NodePlace]:
    """The place of each node, by its id."""
    known = list(nodes)
    holding = [node for node in known if node.state is NodeState.ACTIVE]
    racks = all(node.rack for node in holding)
    return {node.id: NodePlace(node.host or node.id, node.rack if racks else "") for node in known}


def host_count(places: NodePlaces) -> int:
    """On how many hosts the nodes are: more replicas than that no shard can have."""
    return len({place.host for place in places.values()})


def place_of(places: NodePlaces, node: str) -> NodePlace:
    return places.get(node) or NodePlace(node)


def fits(places: NodePlaces, chosen: Iterable[str], node: str) -> bool:
    """Whether a node may hold a replica beside those that are ``chosen``: it is on a host of its own."""
    return place_of(places, node).host not in {place_of(places, other).host for other in chosen}


def crowding(places: NodePlaces, chosen: Iterable[str], node: str) -> int:
    """How many of ``chosen`` are in the node's rack: of nodes that fit, the least is best."""
    rack = place_of(places, node).rack
    return sum(place_of(places, other).rack == rack for other in chosen)


def choose(
    places: NodePlaces, free: Iterable[str], chosen: Sequence[str], rank: Callable[[str], Any] = lambda node: node
) -> str | None:
    """The node of ``free`` for one more replica beside ``chosen``; None when none fits.

    That in the rack with fewest of them, then the one of the least ``rank``. One replica after the other chosen in this
    way, racks come out as even as their hosts allow.
    """
    fitting = [node for node in free if node not in chosen and fits(places, chosen, node)]
    return min(fitting, key=lambda node: (crowding(places, chosen, node), rank(node)), default=None)


def fits_beside(state: ClusterState, alive: Iterable[str]) -> Callable[[str, Collection[str]], bool]:
    """For whoever plans moves: whether a node may hold a replica of a shard whose others are at the given nodes.

    It is on a host of its own, and no node that lives would be in a less crowded rack.
    """
    places = places_of(state.nodes.values())
    living = set(alive)
    free = [node for node in state.active_nodes() if node in living]
    one_of_each = {place_of(places, node): node for node in free}  # Of the processes of a host any one will do.
    racks = {place.rack for place in one_of_each}

    def fits_there(node: str, others: Collection[str]) -> bool:
        if len(racks) < 2 or not fits(places, others, node):
            return fits(places, others, node)
        best = choose(places, one_of_each.values(), list(others))
        return best is None or crowding(places, others, node) <= crowding(places, others, best)

    return fits_there


def may_replace(places: NodePlaces, replicas: Iterable[str], old: str, new: str) -> bool:
    """Whether a replica may go from one node to another without making hosts or racks worse."""
    others = [node for node in replicas if node != old]
    return (
        new not in others
        and fits(places, others, new)
        and crowding(places, others, new) <= crowding(places, others, old)
    )


def shared_hosts(places: NodePlaces, replicas: Iterable[str]) -> dict[str, list[str]]:
    """The hosts that hold more than one of ``replicas``, with these."""
    held: dict[str, list[str]] = {}
    for node in replicas:
        held.setdefault(place_of(places, node).host, []).append(node)
    return {host: nodes for host, nodes in held.items() if len(nodes) > 1}


def problem(places: NodePlaces, replicas: Iterable[str]) -> str | None:
    """What is wrong with these as the replicas of a shard, in words; None when nothing is."""
    for host, nodes in sorted(shared_hosts(places, replicas).items()):
        return (
            f"{' and '.join(nodes)} are on one host ({host}), which would take all of them with it when it fails; "
            "replicas of a shard belong on different hosts"
        )
    return None


def better_places(state: ClusterState, alive: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """New targets for shards that are not being moved, and whose replicas share a host or are uneven over the racks,
    where nodes that live can make it better. One replica of a shard at a time; the preferred leader goes last."""
    if not any(node.host or node.rack for node in state.nodes.values()):
        return {}
    places = places_of(state.nodes.values())
    living = set(alive)
    free = [node for node in state.active_nodes() if node in living]
    held = Counter(node for shard in state.shards.values() for node in shard.wanted)
    targets: dict[int, tuple[str, ...]] = {}
    for id in sorted(state.shards):
        shard = state.shards[id]
        target = None if shard.target else improved(shard.replicas, places, free, held)
        if target is not None:
            targets[id] = target
            held.update(set(target) - set(shard.replicas))
            held.subtract(set(shard.replicas) - set(target))
    return targets


def improved(
    replicas: Sequence[str], places: NodePlaces, free: Sequence[str], held: Mapping[str, int]
) -> tuple[str, ...] | None:
    """``replicas`` with one of them on another node of ``free``, the one of the fitting that holds least; None where
    that helps neither hosts nor racks."""
    shared = {node for nodes in shared_hosts(places, replicas).values() for node in nodes}
    if not shared and not _is_uneven(replicas, places, free):
        return None
    # The last comes first: the preferred leader stays where it is if another one can go.
    for old in reversed(replicas):
        others = [node for node in replicas if node != old]
        new = choose(places, free, others, lambda node: (held[node], node))
        if new is None or new == old:
            continue
        if old in shared or crowding(places, others, new) < crowding(places, others, old):
            place = replicas.index(old)
            return (*replicas[:place], new, *replicas[place + 1 :])
    return None


def _is_uneven(replicas: Iterable[str], places: NodePlaces, free: Iterable[str]) -> bool:
    """Whether a rack has two more of ``replicas`` than another one; there may be no remedy."""
    held = Counter(dict.fromkeys((place_of(places, node).rack for node in free), 0))
    held.update(place_of(places, node).rack for node in replicas)
    return max(held.values(), default=0) - min(held.values(), default=0) > 1


def objection(state: ClusterState, replicas: Sequence[str], alive: Iterable[str]) -> str | None:
    """Why a shard should not have these replicas, in words: by :func:`better_places` they would be moved on."""
    places = places_of(state.nodes.values())
    wrong = problem(places, replicas)
    if wrong is not None:
        return wrong
    living = set(alive)
    better = improved(replicas, places, [node for node in state.active_nodes() if node in living], Counter())
    if better is None:
        return None
    racks = ", ".join(f"{node} in {place_of(places, node).rack}" for node in replicas)
    return f"that is less even over the racks than can be ({racks}); {' '.join(better)} would be better"
