"""Shards that come to a cluster that runs: where they go, what moves to them, and who has to know of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import InvalidRequest
from lsmq_coordinator.commands import apply
from lsmq_coordinator.errors import NoControlLeader
from lsmq_coordinator.growth import GROW_SHARDS, growth_plan
from lsmq_coordinator.heartbeats import NodeHeartbeat
from lsmq_coordinator.lives import UNCLAIMED, InSyncMember
from lsmq_coordinator.overseer import Overseer
from lsmq_coordinator.state import MAX_SHARDS, ClusterState, QueueRange, leveled_ranges, spread_queues

from .test_overseer import LIFE, FakeRaft, VirtualTime, running
from .test_state import NODES, founded, run


def grown(state: ClusterState, shards: int) -> ClusterState:
    replicas = growth_plan(state, shards, set(NODES))
    state, result = run(state, op=GROW_SHARDS, expected_shards=len(state.shards), replicas=replicas)
    assert result["ok"] and result["shards"] == shards
    return state


def test_new_shards_begin_as_those_of_the_founding_and_nothing_else_changes() -> None:
    before = founded()
    state = grown(before, 5)
    assert [before.shards[id] for id in range(3)] == [state.shards[id] for id in range(3)]
    assert (state.settings, state.topics) == (before.settings, before.topics)
    for id in (3, 4):
        shard = state.shards[id]
        assert (shard.epoch, shard.version, shard.leader, len(shard.replicas)) == (1, 1, shard.replicas[0], 3)
        assert shard.in_sync == tuple(InSyncMember(node, UNCLAIMED) for node in shard.replicas)
    assert ClusterState.decode(state.encode()) == state
    assert before.changed(state.encode_changes(before)) == state.without_results()


def test_leaders_and_replicas_of_new_shards_go_where_least_is_held() -> None:
    state = grown(founded(), 10)
    led = [sum(shard.leader == node for shard in state.shards.values()) for node in NODES]
    held = [sum(node in shard.replicas for shard in state.shards.values()) for node in NODES]
    assert led == [2] * 5 and held == [6] * 5


def test_nodes_that_are_gone_or_drained_get_no_new_shards() -> None:
    state, _ = run(founded(), op="drain_node", node="n0")
    for replicas in growth_plan(state, 9, set(NODES) - {"n1"}):
        assert sorted(replicas) == ["n2", "n3", "n4"]
    with pytest.raises(InvalidRequest, match="there are 2; start more"):
        growth_plan(state, 9, {"n0", "n3", "n4"})


def test_a_number_that_cannot_be_is_refused_and_the_same_again_changes_nothing() -> None:
    state = grown(founded(), 4)
    assert growth_plan(state, 4, set(NODES)) == []
    for wrong, why in ((3, "only grow"), (MAX_SHARDS + 1, "there may be")):
        with pytest.raises(InvalidRequest, match=why):
            growth_plan(state, wrong, set(NODES))
    again: dict[str, Any] = {"op": GROW_SHARDS, "expected_shards": 3, "replicas": [["n0", "n1"]]}
    assert run(state, **again)[1]["code"] == "stale"
    for replicas in ([["n0", "n0"]], [["n0"]], [["n0", "stranger"]], [[]], []):
        command = {**again, "expected_shards": 4, "replicas": replicas}
        assert run(state, **command)[1]["code"] == "invalid_command", replicas


def test_topics_stay_until_they_are_spread_and_new_ones_use_all_shards() -> None:
    state, _ = run(founded(), op="create_topic", name="old", queues=9, options={}, created_ms=1)
    state, _ = run(state, op="create_topic", name="strict", queues=3, options={"key_queues": 3}, created_ms=1)
    before = state.topics["old"].ranges
    state = grown(state, 5)
    assert state.topics["old"].ranges == before
    state, _ = run(state, op="create_topic", name="new", queues=5, options={}, created_ms=1)
    assert {part.shard for part in state.topics["new"].ranges} == set(range(5))
    spread: dict[str, Any] = {"op": "spread_topic", "name": "old", "expected_queues": 9, "keys": "stay"}
    assert run(state, **spread, expected_shards=3)[1]["code"] == "stale"
    state, _ = run(state, **spread, expected_shards=5)
    topic = state.topics["old"]
    assert topic.ranges == (*before, QueueRange(9, 12, 3), QueueRange(12, 15, 4))
    assert (topic.queues, dict(topic.options)) == (15, {"key_queues": 9, "revision": 1})
    assert run(state, **spread, expected_shards=5)[1]["code"] == "stale"
    again, _ = run(state, **{**spread, "expected_queues": 15}, expected_shards=5)
    assert again.topics == state.topics
    state, _ = run(state, op="spread_topic", name="strict", expected_queues=3, expected_shards=5, keys="move")
    assert dict(state.topics["strict"].options) == {"key_queues": 3}


def test_named_topics_are_not_spread() -> None:
    state, _ = run(founded(), op="create_topic", name="t", queues=64, options={"named": True}, created_ms=1)
    command = {"op": "spread_topic", "name": "t", "expected_queues": 64, "keys": "stay"}
    assert run(grown(state, 5), **command, expected_shards=5)[1]["code"] == "invalid_command"


@given(st.integers(1, 5_000), st.integers(1, 12), st.lists(st.integers(0, 8), max_size=4))
def test_spreading_keeps_every_queue_and_gives_new_shards_their_share(
    queues: int, shards: int, growth: list[int]
) -> None:
    ranges = spread_queues(0, queues, shards)
    for more in growth:
        shards += more
        former, ranges = ranges, leveled_ranges(ranges, shards)
        assert ranges[: len(former) - 1] == former[:-1] and ranges[len(former) - 1][::2] == former[-1][::2]
        assert [part.first for part in ranges[1:]] == [part.end for part in ranges[:-1]]
        held = [sum(part.end - part.first for part in ranges if part.shard == shard) for shard in range(shards)]
        assert min(held) == min(max(held), ranges[-1].end // shards)
        assert leveled_ranges(ranges, shards) == ranges


def test_all_nodes_have_to_know_of_it_before_a_cluster_grows() -> None:
    async def test(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        command = {"op": GROW_SHARDS, "expected_shards": 3, "replicas": [["n0", "n1", "n2"]]}
        assert len(overseer.growth(4)["shards"]) == 1
        assert raft.testify(command) == command
        old = NodeHeartbeat.from_dict(
            {name: value for name, value in NodeHeartbeat("n3", LIFE).to_dict().items() if name != "grows"}
        )
        assert overseer.heartbeat(old).alive
        for refused in (lambda: overseer.growth(4), lambda: raft.testify(command)):
            with pytest.raises(InvalidRequest, match="n3 may run a release"):
                refused()
        overseer.heartbeat(NodeHeartbeat("n3", LIFE))
        raft.testify(command)
        raft.leads(term=2)
        with pytest.raises(NoControlLeader, match="has not heard"):
            overseer.growth(4)

    running(test)


def test_a_node_that_knows_nothing_of_it_gets_no_lease_once_the_cluster_has_grown() -> None:
    async def test(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        raft.state, _ = apply(
            raft.state,
            {"op": GROW_SHARDS, "request_id": "g", "expected_shards": 3, "replicas": [["n0", "n1", "n2"]]},
        )
        assert not overseer.heartbeat(NodeHeartbeat("n3", LIFE, grows=False)).alive
        assert overseer.heartbeat(NodeHeartbeat("n3", LIFE)).alive

    running(test)
