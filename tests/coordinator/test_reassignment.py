"""Replicas reach their target from anywhere, step by step, and nothing is lost on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_coordinator.commands import apply
from lsmq_coordinator.election import ReplicaProgress
from lsmq_coordinator.overseer import failovers, transfers
from lsmq_coordinator.reassignment import drain_targets, next_steps, waiting_shards
from lsmq_coordinator.state import NodeState, Shard
from support.extent import part_in_number

from .test_state import founded, with_starts

NODES = [f"n{number}" for number in range(5)]
JOINERS = ["n5", "n6"]
SHARDS = 3


class Cluster:
    """The agreed state, who is alive, and data planes that do what they should: all of it when told to."""

    def __init__(self, nodes: int = 5, shards: int = SHARDS, replicas: int = 3, min_in_sync: int = 2) -> None:
        self.state = founded(nodes=NODES[:nodes], shards=shards, replicas=replicas, min_in_sync=min_in_sync)
        self.alive = set(NODES[:nodes])
        self.commands = 0

    def do(self, **command: Any) -> dict[str, Any]:
        self.commands += 1
        before = self.state
        self.state, result = apply(before, {**command, "request_id": str(self.commands)})
        self.state.check()
        for id, shard in self.state.shards.items():
            self._check_step(before.shards[id], shard, command["op"])
        return result

    def _check_step(self, former: Shard, shard: Shard, op: str) -> None:
        enough = self.state.settings.min_in_sync
        if op not in ("leave_in_sync", "set_in_sync"):
            assert len(shard.in_sync) >= min(enough, len(former.in_sync)), "a move or election left too few in sync"
        if op == "set_replicas" and len(shard.in_sync) < len(former.in_sync):
            assert len(shard.in_sync) >= len(former.target), "a move lowered the redundancy"
        assert len(set(shard.replicas) ^ set(former.replicas)) <= 1, "more than one replica came or went"

    def drive(self, commands: Iterable[dict[str, Any]]) -> bool:
        """Submit what the overseer would; whether there was anything."""
        done = False
        for command in commands:
            done = True
            assert self.do(**command)["ok"], command
        adding = Counter(node for shard in self.state.shards.values() for node in shard.adding)
        assert max(adding.values(), default=0) <= 1, "two shards are being added to one node"
        return done

    def overseer(self, limit: int | None = None) -> bool:
        """One look of the overseer, interrupted after ``limit`` commands."""
        alive = frozenset(self.alive)
        self.state = with_starts(self.state)
        commands = (
            failovers(self.state, alive, self.reports())
            or next_steps(self.state, alive)
            or transfers(self.state, alive)
        )
        return self.drive(commands[:limit])

    def reports(self) -> dict[str, dict[int, ReplicaProgress]]:
        """What the nodes say of replicas that all work."""
        shards = self.state.shards.values()
        return {node: {shard.id: ReplicaProgress(1, 9, 1, 1) for shard in shards} for node in self.alive}

    def catch_up(self, id: int) -> bool:
        """The shard's leader, if it is alive, says that all replicas on live nodes are in sync; whether that is new."""
        shard = self.state.shards[id]
        listed = {member.node for member in shard.in_sync}
        more = [node for node in shard.replicas if node in self.alive and node not in listed]
        if shard.leader not in self.alive or not more:
            return False
        return self._set_in_sync(shard, [*listed, *more])

    def fall_behind(self, id: int) -> None:
        """The leader proposes the dead out, as far as enough remain."""
        shard = self.state.shards[id]
        left = [node for node in shard.in_sync_nodes if node in self.alive]
        if shard.leader in self.alive and len(left) >= self.state.settings.min_in_sync:
            self._set_in_sync(shard, left)

    def _set_in_sync(self, shard: Shard, nodes: list[str]) -> bool:
        in_sync = [[node, 1] for node in nodes]
        fields = {"shard": shard.id, "epoch": shard.epoch, "expected_version": shard.version, "in_sync": in_sync}
        return bool(self.do(op="set_in_sync", **fields)["ok"])

    def on(self, id: int, op: str, **fields: Any) -> dict[str, Any]:
        return self.do(op=op, shard=id, expected_version=self.state.shards[id].version, **fields)

    def settle(self) -> None:
        """Nothing more happens to the nodes; the overseer and the leaders go on until there is nothing to do."""
        for _ in range(400):
            progress = self.overseer()
            for id in self.state.shards:
                progress = self.catch_up(id) or progress
            if not progress:
                return
        raise AssertionError(f"it does not end: {next_steps(self.state, self.alive)}, {dict(self.state.shards)}")


nodes = st.sampled_from([*NODES, *JOINERS])
shards = st.integers(0, SHARDS - 1)
events = st.one_of(
    st.tuples(st.just("die"), nodes),
    st.tuples(st.just("return"), nodes),
    st.tuples(st.just("join"), st.sampled_from(JOINERS)),
    st.tuples(st.just("drain"), nodes),
    st.tuples(st.just("undrain"), nodes),
    st.tuples(st.just("remove"), nodes),
    st.tuples(st.just("target"), shards, st.permutations([*NODES, *JOINERS]), st.integers(1, 5)),
    st.tuples(st.just("cancel"), shards),
    st.tuples(st.just("transfer"), shards, nodes),
    st.tuples(st.just("catch_up"), shards),
    st.tuples(st.just("fall_behind"), shards),
    st.tuples(st.just("lose_disk"), shards, nodes),
    st.tuples(st.just("overseer"), st.integers(1, 4)),
)


def happen(cluster: Cluster, event: tuple[Any, ...]) -> None:
    state = cluster.state
    match event:
        case "die", node:
            cluster.alive.discard(node)
        case "return", node:
            if node in state.nodes and state.nodes[node].state is not NodeState.REMOVED:
                cluster.alive.add(node)
        case "join", node:
            if cluster.do(op="register_node", node=node, url="http://u", internal_url="http://i", life="l")["ok"]:
                cluster.alive.add(node)
        case "drain" | "undrain", node:
            cluster.do(op=f"{event[0]}_node", node=node)
        case "remove", node:
            if cluster.do(op="remove_node", node=node)["ok"]:
                cluster.alive.discard(node)
        case "target", id, order, count:
            cluster.on(id, "set_target", replicas=list(order[:count]))
        case "cancel", id:
            cluster.on(id, "cancel_target")
        case "transfer", id, node:
            cluster.do(op="transfer_leader", shard=id, candidate=node, expected_epoch=state.shards[id].epoch)
        case "catch_up", id:
            cluster.catch_up(id)
        case "fall_behind", id:
            cluster.fall_behind(id)
        case "lose_disk", id, node:
            incarnation = state.shards[id].listed(node)
            if incarnation is not None:
                cluster.on(id, "leave_in_sync", node=node, incarnation=incarnation)
        case "overseer", limit:
            cluster.overseer(limit)


@pytest.mark.part(2)
@settings(max_examples=part_in_number(400, 3))
@given(st.lists(events, max_size=40))
def test_whatever_happens_on_the_way_the_target_is_reached(sequence: list[tuple[Any, ...]]) -> None:
    cluster = Cluster()
    for event in sequence:
        happen(cluster, event)
    # Whoever died comes back, and what is wanted stays wanted from here on.
    cluster.alive = {node.id for node in cluster.state.nodes.values() if node.state is not NodeState.REMOVED}
    wanted = {id: shard.target for id, shard in cluster.state.shards.items()}
    active = set(cluster.state.active_nodes())
    cluster.settle()
    for id, shard in cluster.state.shards.items():
        assert (shard.target, shard.adding) == ((), ())
        assert set(shard.in_sync_nodes) == set(shard.replicas)
        if wanted[id] and set(wanted[id]) <= active:
            assert shard.replicas == wanted[id]
        assert set(shard.replicas) <= active or active <= set(shard.replicas), "a drained node has it without need"
        assert shard.leader == shard.replicas[0] or shard.replicas[0] not in active


@settings(max_examples=part_in_number(100, 3))
@given(st.sampled_from(NODES), st.sampled_from(NODES), st.lists(st.integers(1, 4), max_size=12))
def test_a_drained_node_can_be_removed_though_it_died_and_others_die_on_the_way(
    drained: str, other: str, interruptions: list[int]
) -> None:
    cluster = Cluster()
    # Not a voter: those stay.
    cluster.do(op="register_node", node="n5", url="http://u", internal_url="http://i", life="l")
    cluster.alive.add("n5")
    for shard in cluster.state.shards.values():
        cluster.on(shard.id, "set_target", replicas=["n5", *[node for node in shard.replicas if node != "n5"][:2]])
    cluster.settle()
    cluster.do(op="drain_node", node="n5")
    cluster.alive.discard("n5")
    for limit in interruptions:
        cluster.overseer(limit)
    cluster.alive.discard(other)
    cluster.overseer()
    for id in cluster.state.shards:
        cluster.fall_behind(id)
    cluster.alive.add(other)
    cluster.settle()
    assert cluster.do(op="remove_node", node="n5")["ok"]


def test_a_move_adds_one_waits_for_it_and_only_then_drops_one() -> None:
    cluster = Cluster(shards=1)
    first, second, third = cluster.state.shards[0].replicas
    fourth, fifth = (node for node in NODES if node not in (first, second, third))
    cluster.on(0, "set_target", replicas=[fourth, fifth, first])
    seen = [(cluster.state.shards[0].replicas, cluster.state.shards[0].adding)]
    while cluster.overseer() or cluster.catch_up(0):
        shard = cluster.state.shards[0]
        if (shard.replicas, shard.adding) != seen[-1]:
            seen.append((shard.replicas, shard.adding))
    assert seen == [
        ((first, second, third), ()),
        ((first, second, third, fourth), (fourth,)),
        ((first, second, third, fourth), ()),
        ((first, second, fourth), ()),
        ((first, second, fourth, fifth), (fifth,)),
        ((first, second, fourth, fifth), ()),
        ((fourth, fifth, first), ()),
    ]
    assert (cluster.state.shards[0].leader, cluster.state.shards[0].epoch) == (fourth, 2)


def test_nothing_is_dropped_while_the_new_replica_is_not_in_sync() -> None:
    cluster = Cluster(shards=1)
    shard = cluster.state.shards[0]
    fresh = next(node for node in NODES if node not in shard.replicas)
    cluster.on(0, "set_target", replicas=[fresh, *shard.replicas[1:]])
    assert cluster.overseer()
    assert not cluster.overseer(), "it has to wait"
    cluster.catch_up(0)
    # The old leader goes last: leadership is handed over first, in one election.
    assert cluster.overseer()
    assert (cluster.state.shards[0].leader, cluster.state.shards[0].epoch) == (fresh, 2)
    assert cluster.overseer()
    assert cluster.state.shards[0].replicas == (fresh, *shard.replicas[1:])


def test_a_replica_in_sync_stays_until_all_that_are_wanted_are_in_sync() -> None:
    cluster = Cluster(shards=1)
    before = cluster.state.shards[0].replicas
    fresh = next(node for node in NODES if node not in before)
    cluster.on(0, "set_target", replicas=[*before[:2], fresh])
    cluster.overseer()
    cluster.catch_up(0)
    cluster.alive.discard(before[1])
    cluster.fall_behind(0)
    assert not cluster.overseer(), "two of the three wanted are in sync"
    assert set(cluster.state.shards[0].in_sync_nodes) == {before[0], before[2], fresh}
    cluster.alive.add(before[1])
    cluster.settle()
    assert cluster.state.shards[0].replicas == (*before[:2], fresh)


def test_a_dead_node_is_not_added_to() -> None:
    cluster = Cluster(shards=1)
    shard = cluster.state.shards[0]
    fresh = next(node for node in NODES if node not in shard.replicas)
    cluster.alive.discard(fresh)
    cluster.on(0, "set_target", replicas=[fresh, *shard.replicas[1:]])
    assert not cluster.overseer()
    cluster.alive.add(fresh)
    assert cluster.overseer()


def test_cancelling_drops_what_is_being_added_and_keeps_what_is_in_sync() -> None:
    cluster = Cluster(shards=1)
    before = cluster.state.shards[0].replicas
    fresh = [node for node in NODES if node not in before]
    cluster.on(0, "set_target", replicas=[*fresh, before[0]])
    cluster.overseer()
    cluster.on(0, "cancel_target")
    cluster.settle()
    assert cluster.state.shards[0].replicas == before
    # With the new one in sync, but no old one dropped yet, there is one too many: the newest goes.
    cluster.on(0, "set_target", replicas=[*fresh, before[0]])
    cluster.overseer()
    cluster.catch_up(0)
    cluster.on(0, "cancel_target")
    cluster.settle()
    assert cluster.state.shards[0].replicas == before
    assert cluster.on(0, "cancel_target")["ok"]


def test_undraining_keeps_the_replicas_that_were_not_moved_yet() -> None:
    cluster = Cluster(nodes=4)
    before = {id: shard.replicas for id, shard in cluster.state.shards.items()}
    cluster.do(op="drain_node", node="n0")
    cluster.overseer()
    assert any(shard.target for shard in cluster.state.shards.values())
    cluster.overseer()
    assert any(shard.adding for shard in cluster.state.shards.values())
    cluster.do(op="undrain_node", node="n0")
    cluster.settle()
    assert {id: shard.replicas for id, shard in cluster.state.shards.items()} == before


def test_a_drained_nodes_replicas_go_where_least_is_held_and_leaders_stay_even() -> None:
    cluster = Cluster(nodes=5, shards=5)
    cluster.do(op="drain_node", node="n0")
    assert all(cluster.state.shards[id].replicas for id in drain_targets(cluster.state))
    assert set(waiting_shards(cluster.state, "n0").values()) == {False}
    cluster.overseer()
    assert set(waiting_shards(cluster.state, "n0").values()) == {True}
    cluster.settle()
    held = Counter(node for shard in cluster.state.shards.values() for node in shard.replicas)
    led = Counter(shard.leader for shard in cluster.state.shards.values())
    assert "n0" not in held
    assert max(held.values()) - min(held.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 1
    assert not waiting_shards(cluster.state, "n0")


def test_draining_without_a_node_to_take_the_replicas_moves_leaders_only_until_one_joins() -> None:
    cluster = Cluster(nodes=3)
    cluster.do(op="drain_node", node="n0")
    cluster.settle()
    assert set(waiting_shards(cluster.state, "n0").values()) == {False}
    assert all(shard.leader != "n0" for shard in cluster.state.shards.values())
    cluster.do(op="register_node", node="n5", url="http://u", internal_url="http://i", life="l")
    cluster.alive.add("n5")
    cluster.settle()
    assert not cluster.state.replicas_on("n0")
    assert len(cluster.state.replicas_on("n5")) == SHARDS


def test_a_target_that_begins_to_drain_is_replaced() -> None:
    cluster = Cluster(shards=1)
    shard = cluster.state.shards[0]
    fourth = next(node for node in NODES if node not in shard.replicas)
    cluster.on(0, "set_target", replicas=[*shard.replicas[:2], fourth])
    cluster.overseer()
    cluster.do(op="drain_node", node=fourth)
    cluster.settle()
    assert fourth not in cluster.state.shards[0].replicas
    assert len(cluster.state.shards[0].replicas) == 3


def test_a_replica_no_longer_wanted_is_dropped_before_it_has_caught_up() -> None:
    cluster = Cluster(shards=1)
    before = cluster.state.shards[0].replicas
    fourth, fifth = (node for node in NODES if node not in before)
    cluster.on(0, "set_target", replicas=[*before[:2], fourth])
    cluster.overseer()
    assert cluster.state.shards[0].adding == (fourth,)
    cluster.on(0, "set_target", replicas=[*before[:2], fifth])
    cluster.overseer()
    cluster.overseer()
    assert cluster.state.shards[0].adding == (fifth,)


def test_a_shard_that_was_to_grow_onto_a_node_that_drains_stays_as_it_is() -> None:
    cluster = Cluster(nodes=4, shards=1)
    before = cluster.state.shards[0].replicas
    cluster.on(0, "set_target", replicas=NODES[:4])
    cluster.do(op="drain_node", node=(fourth := next(node for node in NODES if node not in before)))
    cluster.settle()
    assert (cluster.state.shards[0].replicas, cluster.state.shards[0].target) == (before, ())
    assert not waiting_shards(cluster.state, fourth)


def test_what_cannot_be_a_target_is_refused() -> None:
    cluster = Cluster()
    replicas = list(cluster.state.shards[0].replicas)
    cluster.do(op="drain_node", node=(drained := next(node for node in NODES if node not in replicas)))
    for wrong in ([], [replicas[0]], [*replicas, replicas[0]], [*replicas, "nobody"], [*replicas, drained]):
        assert cluster.on(0, "set_target", replicas=wrong)["code"] == "invalid_command", wrong
    assert cluster.do(op="set_target", shard=0, expected_version=99, replicas=replicas)["code"] == "stale"
    version = cluster.state.version
    assert cluster.on(0, "set_target", replicas=replicas)["ok"]
    assert cluster.state.version == version, "what it has is no target"
