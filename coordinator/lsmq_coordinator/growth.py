"""A cluster that gets more shards while it runs: where their replicas go, and the command that makes them. Pure.

The shards there are stay as they are, and so does all that lies on them or is coordinated there. A new shard begins as
those of the founding did: its replicas are listed in sync and have nothing yet.

Releases that know nothing of this would make something else of the commands that follow. So the leader of the control
plane asks of every node that it knows, before it takes the first (:meth:`.overseer.Overseer.growth`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from lsmq.errors import InvalidRequest

from .command_fields import Change, Command, Refused, members, number
from .election import leader_counts
from .lives import UNCLAIMED, InSyncMember
from .pieces import Pieces
from .placement import choose, place_of, places_of
from .state import MAX_REPLICAS, MAX_SHARDS, ClusterState, NodeState, Shard

GROW_SHARDS = "grow_shards"


def growth_plan(state: ClusterState, shards: int, alive: Set[str]) -> list[list[str]]:
    """Replicas of each shard that is new if there are ``shards`` in all, the first its first leader.

    Leaders and then followers go where least is held, among active nodes that live, on different hosts and over the
    racks. Raises ``InvalidRequest`` for fewer shards than there are, too many, or replicas that fit nowhere.
    """
    check_growth(len(state.shards), shards, MAX_SHARDS)
    fit = [node for node in state.active_nodes() if node in alive]
    places = places_of(state.nodes.values())
    held = {node: sum(node in shard.wanted for shard in state.shards.values()) for node in fit}
    led = leader_counts(state, set(fit))
    planned: list[list[str]] = []

    def to_hold(node: str) -> tuple[int, str]:
        return held[node], node

    def to_lead(node: str) -> tuple[int, int, str]:
        return led[node], *to_hold(node)

    for _ in range(shards - len(state.shards)):
        chosen: list[str] = []
        while len(chosen) < state.settings.replicas:
            node = choose(places, fit, chosen, to_hold if chosen else to_lead)
            if node is None:
                raise InvalidRequest(
                    f"{state.settings.replicas} replicas a shard need as many hosts with an active node that is alive, "
                    f"and there are {len({place_of(places, each).host for each in fit})}; start more, or wait",
                    reason="does_not_fit",
                )
            held[node] += 1
            chosen.append(node)
        led[chosen[0]] += 1
        planned.append(chosen)
    return planned


def check_growth(there: int, shards: int, limit: int) -> None:
    """Raises ``InvalidRequest`` for a number of shards that cannot be had from ``there`` on."""
    if shards < there:
        raise InvalidRequest(
            f"there are {there} shards, and there cannot be {shards}: shards only grow in number; for fewer, send "
            "topics to another node or cluster by `lsmq backup extract`",
            field="shards",
            limit=there,
        )
    if shards > limit:
        raise InvalidRequest(f"shards is {shards}; there may be {limit}", field="shards", limit=limit)


def grow_shards(state: ClusterState, command: Command) -> Change:
    """``expected_shards``, ``replicas``: of each new shard, the first its first leader."""
    count = len(state.shards)
    if command["expected_shards"] != count:
        raise Refused("stale", f"there are {count} shards now", shards=count)
    planned = command["replicas"]
    number(count + len(planned), "number of shards", count + 1, MAX_SHARDS)
    active = {node.id for node in state.nodes.values() if node.state is NodeState.ACTIVE}
    shards = Pieces.of(state.shards)
    for id, given in enumerate(planned, count):
        replicas = members(given, "replicas", active)
        number(len(replicas), f"number of replicas of shard {id}", state.settings.min_in_sync, MAX_REPLICAS)
        in_sync = tuple(InSyncMember(node, UNCLAIMED) for node in replicas)
        shards = shards.with_entry(id, Shard(id, replicas, replicas[0], epoch=1, in_sync=in_sync, version=1))
    return replace(state, shards=shards), {"shards": count + len(planned)}


def shown_plan(state: ClusterState, planned: list[list[str]]) -> dict[str, Any]:
    """A plan for people, and what it is for."""
    count = len(state.shards)
    return {
        "version": state.version,
        "expected_shards": count,
        "shards": [{"id": id, "replicas": replicas} for id, replicas in enumerate(planned, count)],
    }
