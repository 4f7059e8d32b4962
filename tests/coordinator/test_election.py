"""Who is elected, how leaders spread, where replicas go."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_coordinator.commands import apply
from lsmq_coordinator.election import (
    choose_candidate,
    drain_plan,
    leader_counts,
    place_replicas,
    spread_leaders,
)
from lsmq_coordinator.overseer import failovers, transfers
from lsmq_coordinator.state import ClusterState, Node, NodeState, Settings, Shard

NAMES = ["a", "b", "c", "d", "e"]


def cluster(shards: list[Shard], nodes: list[str] = NAMES, draining: tuple[str, ...] = ()) -> ClusterState:
    entries = {
        name: Node(name, "u", "i", True, NodeState.DRAINING if name in draining else NodeState.ACTIVE) for name in nodes
    }
    return ClusterState(
        1,
        Settings("c", len(shards), 3, 2),
        MappingProxyType(entries),
        MappingProxyType({shard.id: shard for shard in shards}),
    )


@st.composite
def clusters(draw: st.DrawFn, max_shards: int = 8) -> ClusterState:
    nodes = NAMES[: draw(st.integers(1, 5))]
    shards = []
    for id in range(draw(st.integers(1, max_shards))):
        replicas = tuple(draw(st.permutations(nodes))[: draw(st.integers(1, len(nodes)))])
        in_sync = tuple(node for node in replicas if draw(st.booleans())) or replicas[:1]
        shards.append(Shard(id, replicas, draw(st.sampled_from(in_sync)), 1, in_sync, 1))
    draining = tuple(node for node in nodes if draw(st.integers(0, 4)) == 0)
    return cluster(shards, nodes, draining)


SHARD = Shard(0, ("a", "b", "c"), "a", 3, ("a", "b", "c"), 1)


def test_only_a_live_member_of_the_in_sync_set_is_a_candidate() -> None:
    shard = replace(SHARD, in_sync=("a", "b"))
    assert choose_candidate(shard, {"c"}) is None
    assert choose_candidate(shard, {"b", "c"}, {"c": (9, 9)}) == "b"
    assert choose_candidate(shard, {"b", "c"}, preferred="c") == "b"


def test_the_candidate_is_the_preferred_one_else_who_reaches_furthest_else_who_leads_least() -> None:
    alive = {"b", "c"}
    assert choose_candidate(SHARD, alive, {"b": (3, 100), "c": (3, 200)}) == "c"
    assert choose_candidate(SHARD, alive, {"b": (4, 1), "c": (3, 200)}) == "b"
    assert choose_candidate(SHARD, alive, {"b": (3, 100), "c": (3, 200)}, preferred="b") == "b"
    assert choose_candidate(SHARD, alive, loads={"b": 5, "c": 1}) == "c"
    assert choose_candidate(SHARD, alive) == "b"


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 40))
def test_replicas_are_placed_evenly(nodes: int, replicas: int, shards: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    replicas = min(replicas, nodes)
    placed = place_replicas(names, shards, replicas)
    held = Counter(dict.fromkeys(names, 0))
    led = Counter(dict.fromkeys(names, 0))
    for chosen in placed.values():
        assert len(set(chosen)) == replicas
        held.update(chosen)
        led.update(chosen[:1])
    assert max(held.values()) - min(held.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 1


def run_transfers(state: ClusterState, alive: frozenset[str]) -> ClusterState:
    """Take every transfer, one at a time, as the overseer would."""
    for turn in range(200):
        commands = transfers(state, alive)
        assert len(commands) <= 1, "more than one shard in motion"
        if not commands:
            return state
        state, result = apply(state, {**commands[0], "request_id": str(turn)})
        assert result["ok"], result
        state.check()
    raise AssertionError("transfers do not end")


@settings(max_examples=300, deadline=None)
@given(clusters(), st.sets(st.sampled_from(NAMES)))
def test_spreading_ends_and_leaves_no_better_single_transfer(state: ClusterState, dead: set[str]) -> None:
    alive = frozenset(state.nodes) - frozenset(dead)
    if any(shard.leader not in alive for shard in state.shards.values()):
        assert spread_leaders(state, alive) == []
        return
    after = run_transfers(state, alive)
    counts = leader_counts(after, alive & set(after.active_nodes()))
    for shard in after.shards.values():
        for target in shard.in_sync:
            if target in counts and shard.leader in counts:
                assert counts[shard.leader] - counts[target] <= 1
            assert not (target in counts and shard.leader not in counts), "a draining node leads on without need"


@settings(max_examples=100, deadline=None)
@given(clusters(max_shards=5))
def test_spreading_is_as_even_as_any_choice_of_leaders(state: ClusterState) -> None:
    alive = frozenset(state.nodes)
    willing = set(state.active_nodes())
    choices = [[n for n in shard.in_sync if n in willing] or [shard.leader] for shard in state.shards.values()]
    best = min(sum(count * count for count in Counter(choice).values()) for choice in product(*choices))
    after = run_transfers(state, alive)
    assert sum(count * count for count in Counter(s.leader for s in after.shards.values()).values()) == best


def test_leaders_return_to_their_first_replicas_when_a_node_comes_back() -> None:
    placed = place_replicas(["a", "b", "c"], 6, 3)
    shards = [Shard(id, chosen, chosen[0], 1, chosen, 1) for id, chosen in placed.items()]
    everybody = frozenset("abc")
    state = cluster(shards, ["a", "b", "c"])
    for number, command in enumerate(failovers(state, everybody - {"a"}, {})):
        state, result = apply(state, {**command, "request_id": f"f{number}"})
        assert result["ok"]
    assert leader_counts(state, everybody) == {"a": 0, "b": 3, "c": 3}
    whole = {id: replace(shard, in_sync=shard.replicas) for id, shard in state.shards.items()}
    state = run_transfers(replace(state, shards=MappingProxyType(whole)), everybody)
    assert {shard.leader == shard.replicas[0] for shard in state.shards.values()} == {True}


@given(clusters(), st.sets(st.sampled_from(NAMES)))
def test_a_failover_elects_the_living_and_keeps_enough_in_sync(state: ClusterState, dead: set[str]) -> None:
    alive = frozenset(state.nodes) - frozenset(dead)
    for number, command in enumerate(failovers(state, alive, {})):
        former = state.shards[command["shard"]]
        state, result = apply(state, {**command, "request_id": str(number)})
        assert result["ok"], result
        shard = state.shards[former.id]
        assert shard.leader in alive
        assert len(shard.in_sync) >= min(len(former.in_sync), state.settings.min_in_sync)
    for shard in state.shards.values():
        assert shard.leader in alive or not set(shard.in_sync) & alive


def test_a_drained_nodes_replicas_go_where_least_is_held() -> None:
    shards = [Shard(id, ("a", "b"), "a", 1, ("a", "b"), 1) for id in range(4)]
    moves = drain_plan(cluster(shards, ["a", "b", "c", "d"]), "a")
    assert Counter(move.target for move in moves) == {"c": 2, "d": 2}
    nowhere = drain_plan(cluster(shards, ["a", "b"]), "a")
    assert {move.target for move in nowhere} == {None}
