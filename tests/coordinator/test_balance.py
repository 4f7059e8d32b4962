"""Plans in every layout: they end, move as little as it takes, and leave nothing to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lsmq_coordinator.balance import MoveReason, ReplicaMove, ReplicaMoves, Situation, first_moves, plan
from lsmq_coordinator.lives import InSyncMember, RegisteredStart
from lsmq_coordinator.state import ClusterSettings, ClusterState, NodeRecord, NodeState, Shard
from support.extent import part_in_number

GIB = 1 << 30


def cluster(placed: dict[int, tuple[str, ...]], nodes: Collection[str], **fields: Any) -> ClusterState:
    """Every shard is led by its first replica, and all are in sync. ``fields`` of single shards: ``pinned={2}``."""
    shards = {}
    for id, replicas in placed.items():
        starts = tuple(sorted(RegisteredStart(node, 1, 1, 1, confirmed=True) for node in replicas))
        members = tuple(InSyncMember(node, 1) for node in replicas)
        shard = Shard(id, replicas, replicas[0], 1, members, 1, starts=starts)
        shards[id] = replace(shard, **{name: True for name, of in fields.items() if id in of})
    known = {node: NodeRecord(node, f"http://{node}", f"http://{node}:1", voter=False) for node in nodes}
    least = min((len(replicas) for replicas in placed.values()), default=1)
    return ClusterState(
        1,
        ClusterSettings("c", len(placed), least, least // 2 + 1, 1),
        MappingProxyType(known),
        MappingProxyType(shards),
    )


def done(state: ClusterState, moves: Collection[ReplicaMove]) -> ClusterState:
    """The state when all moves have been carried out."""
    placed = {id: shard.wanted for id, shard in state.shards.items()}
    for move in moves:
        assert placed[move.shard] == move.former, "a move is meant for what those before it leave"
        placed[move.shard] = move.replicas
    pinned = {id for id, shard in state.shards.items() if shard.pinned}
    after = cluster(placed, state.nodes, pinned=pinned)
    return replace(after, nodes=state.nodes, settings=state.settings)


def flat(moves: Collection[ReplicaMoves]) -> list[ReplicaMove]:
    return [move for together in moves for move in together]


def held(state: ClusterState, nodes: Collection[str]) -> list[int]:
    counts = Counter(node for shard in state.shards.values() for node in shard.replicas)
    return [counts[node] for node in nodes]


def led(state: ClusterState, nodes: Collection[str]) -> list[int]:
    counts = Counter(shard.replicas[0] for shard in state.shards.values())
    return [counts[node] for node in nodes]


def fewest_moves(counts: list[int]) -> int:
    """How many replicas have to change their node so that counts differ by one at most."""
    least, more = divmod(sum(counts), len(counts))
    wanted = [least + (place < more) for place in range(len(counts))]
    return sum(max(0, has - want) for has, want in zip(sorted(counts, reverse=True), wanted, strict=True))


@st.composite
def layouts(draw: st.DrawFn) -> ClusterState:
    nodes = [f"n{number}" for number in range(draw(st.integers(2, 8)))]
    factor = draw(st.integers(1, min(3, len(nodes))))
    # Some of the nodes hold all; the others were just added.
    holders = nodes[: draw(st.integers(factor, len(nodes)))]
    placed = {id: tuple(draw(st.permutations(holders))[:factor]) for id in range(draw(st.integers(1, 4 * len(nodes))))}
    return cluster(placed, nodes)


weights = st.lists(st.integers(0, 40), min_size=40, max_size=40)


@settings(max_examples=part_in_number(150, 3))
@given(layouts())
def test_every_layout_is_evened_with_the_fewest_copies_and_then_left_alone(state: ClusterState) -> None:
    nodes = list(state.nodes)
    situation = Situation(alive=frozenset(nodes))
    moves = flat(list(plan(state, situation)))
    after = done(state, moves)
    assert max(held(after, nodes)) - min(held(after, nodes)) <= 1
    assert max(led(after, nodes)) - min(led(after, nodes)) <= 1
    assert all(len(set(shard.replicas)) == len(shard.replicas) for shard in after.shards.values())
    assert sum(len(move.added) for move in moves) == fewest_moves(held(state, nodes))
    assert list(plan(after, situation)) == []


@settings(max_examples=part_in_number(150, 3))
@given(layouts(), weights, weights)
def test_bytes_and_load_are_evened_without_making_counts_uneven_and_it_ends(
    state: ClusterState, gibibytes: list[int], megabytes_per_s: list[int]
) -> None:
    nodes = list(state.nodes)
    situation = Situation(
        alive=frozenset(nodes),
        sizes={id: gibibytes[id] * GIB for id in state.shards},
        loads={id: megabytes_per_s[id] * 1e6 for id in state.shards},
    )
    moves = flat(list(plan(state, situation)))
    after = done(state, moves)
    assert max(held(after, nodes)) - min(held(after, nodes)) <= 1
    assert max(led(after, nodes)) - min(led(after, nodes)) <= 1
    assert list(plan(after, situation)) == []


@pytest.mark.part(2)
@settings(max_examples=part_in_number(150, 3))
@given(layouts(), st.data())
def test_what_was_at_a_node_that_is_gone_is_made_again_elsewhere(state: ClusterState, data: st.DataObject) -> None:
    nodes = list(state.nodes)
    gone = data.draw(st.sampled_from(nodes))
    situation = Situation(alive=frozenset(nodes) - {gone}, gone=frozenset({gone}))
    lost = [shard for shard in state.shards.values() if gone in shard.replicas]
    assume(all(shard.leader != gone for shard in lost))
    moves = flat(list(plan(state, situation)))
    rebuilt = [move for move in moves if move.why is MoveReason.REBUILD]
    replaceable = [shard for shard in lost if len(shard.replicas) < len(nodes)]
    assert len(rebuilt) == len(replaceable)
    after = done(state, moves)
    for shard in replaceable:
        assert gone not in after.shards[shard.id].replicas
    assert all(move.replicas[:-1] == tuple(node for node in move.former if node != gone) for move in rebuilt)
    assert MoveReason.REBUILD not in {move.why for move in flat(list(plan(after, situation)))}


@pytest.mark.part(2)
@settings(max_examples=part_in_number(150, 3))
@given(layouts(), st.integers(1, 5), st.integers(0, 7), weights)
def test_carried_out_a_few_at_a_time_every_plan_ends_in_an_even_layout(
    state: ClusterState, at_once: int, absent: int, gibibytes: list[int]
) -> None:
    """Each look plans anew from what the last one left, as the overseer does."""
    nodes = list(state.nodes)
    gone = {node for node in nodes[absent : absent + 1] if all(shard.leader != node for shard in state.shards.values())}
    alive = frozenset(nodes) - gone
    sizes = {id: gibibytes[id] * GIB for id in state.shards}
    situation = Situation(alive=alive, gone=frozenset(gone), sizes=sizes)
    copies = 0
    for _ in range(2_000):
        moves = first_moves(plan(state, situation), state, alive, max(2, at_once))
        added = [node for move in moves for node in move.added]
        assert len(added) == len(set(added)), "a node fills one at a time"
        assert len(moves) <= max(2, at_once)
        if not moves:
            break
        copies += len(added)
        state = done(state, moves)
    else:
        raise AssertionError(f"it does not end: {state.shards}")
    assert list(plan(state, situation)) == []
    remaining = [node for node in nodes if node in alive]
    if not gone:
        assert max(held(state, remaining)) - min(held(state, remaining)) <= 1


def test_a_node_that_was_added_gets_its_share_of_replicas_and_of_leaders() -> None:
    nodes = ["n1", "n2", "n3", "n4"]
    order = ("n1", "n2", "n3")
    state = cluster({id: tuple(order[(id + step) % 3] for step in range(3)) for id in range(12)}, nodes)
    after = done(state, flat(list(plan(state, Situation(alive=frozenset(nodes))))))
    assert held(after, nodes) == [9, 9, 9, 9]
    assert led(after, nodes) == [3, 3, 3, 3]


def test_a_node_that_is_away_and_may_come_back_is_waited_for() -> None:
    nodes = ["n1", "n2", "n3", "n4"]
    state = cluster(dict.fromkeys(range(4), ("n1", "n2", "n3")), nodes)
    assert list(plan(state, Situation(alive=frozenset({"n1", "n2", "n4"})))) == []


def test_nothing_goes_to_a_node_whose_disk_is_full() -> None:
    nodes = ["n1", "n2", "n3"]
    state = cluster(dict.fromkeys(range(4), ("n1",)), nodes)
    moves = flat(list(plan(state, Situation(alive=frozenset(nodes), closed=frozenset({"n3"})))))
    assert moves
    assert {node for move in moves for node in move.added} == {"n2"}


def test_what_people_placed_stays_but_for_a_node_that_is_gone() -> None:
    nodes = ["n1", "n2", "n3"]
    state = cluster(dict.fromkeys(range(4), ("n1", "n2")), nodes, pinned={0, 1, 2, 3})
    assert list(plan(state, Situation(alive=frozenset(nodes)))) == []
    moves = flat(list(plan(state, Situation(alive=frozenset({"n1", "n3"}), gone=frozenset({"n2"})))))
    assert [(move.shard, move.replicas) for move in moves] == [(id, ("n1", "n3")) for id in range(4)]


def test_a_draining_node_is_given_nothing() -> None:
    nodes = ["n1", "n2", "n3"]
    state = cluster(dict.fromkeys(range(4), ("n1",)), nodes)
    draining = replace(state.nodes["n3"], state=NodeState.DRAINING)
    state = replace(state, nodes=MappingProxyType({**state.nodes, "n3": draining}))
    moves = flat(list(plan(state, Situation(alive=frozenset(nodes)))))
    assert {node for move in moves for node in move.added} == {"n2"}


def test_who_may_stand_beside_whom_is_asked() -> None:
    """Machines are a and b; no two replicas of a shard on one."""
    nodes = ["a1", "a2", "b1", "b2"]
    state = cluster(dict.fromkeys(range(8), ("a1", "b1")), nodes)

    def apart(node: str, others: Collection[str]) -> bool:
        return all(node[0] != other[0] for other in others)

    after = done(state, flat(list(plan(state, Situation(alive=frozenset(nodes), fits=apart)))))
    assert held(after, nodes) == [4, 4, 4, 4]
    assert all({node[0] for node in shard.replicas} == {"a", "b"} for shard in after.shards.values())


@pytest.mark.parametrize("leader", ["n1", None])
def test_a_shard_that_nobody_leads_holds_nothing_up(leader: str | None) -> None:
    nodes = ["n1", "n2", "n3", "n4"]
    state = cluster({0: ("n1", "n2"), 1: ("n2", "n1")}, nodes)
    shards = {**state.shards, 0: replace(state.shards[0], leader=leader)}
    state = replace(state, shards=MappingProxyType(shards))
    moves = flat(list(plan(state, Situation(alive=frozenset({"n2", "n3", "n4"}), gone=frozenset({"n1"})))))
    assert [move.shard for move in moves if move.why is MoveReason.REBUILD] == [1]


def test_bytes_that_differ_little_are_left_where_they_are() -> None:
    nodes = ["n1", "n2"]
    state = cluster({id: (nodes[id % 2],) for id in range(8)}, nodes)
    uneven = Situation(alive=frozenset(nodes), sizes={id: (2 + id % 2) * GIB for id in range(8)})
    assert {move.why for move in flat(list(plan(state, uneven)))} == {MoveReason.BYTES}
    even = Situation(alive=frozenset(nodes), sizes={id: (10 + id % 2) * GIB for id in range(8)})
    assert list(plan(state, even)) == []
