"""The agreed state under any commands: its invariants, compare-and-set, request ids, determinism."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_coordinator.commands import apply
from lsmq_coordinator.lives import RegisteredStart
from lsmq_coordinator.state import (
    EMPTY,
    MAX_NODES,
    MAX_RIGHT_BYTES,
    MAX_RIGHTS_BYTES,
    REMEMBERED_RESULTS,
    ClusterState,
    grown_ranges,
    spread_queues,
)
from support.extent import part_in_number

NODES = [f"n{number}" for number in range(5)]
SHARDS = 3


def bootstrap(
    shards: int = SHARDS, replicas: int = 3, min_in_sync: int = 2, nodes: list[str] = NODES
) -> dict[str, Any]:
    return {
        "op": "bootstrap",
        "request_id": "bootstrap",
        "settings": {
            "cluster": "c",
            "shards": shards,
            "replicas": replicas,
            "min_in_sync": min_in_sync,
            "segment_bytes": 1 << 20,
        },
        "nodes": {
            node: {"url": f"http://{node}", "internal_url": f"http://{node}:1", "voter": node in nodes[:3]}
            for node in nodes
        },
    }


def founded(**options: Any) -> ClusterState:
    """A new cluster, all of whose replicas have registered their first start."""
    state, result = apply(EMPTY, bootstrap(**options))
    assert result["ok"], result
    return with_starts(state)


def with_starts(state: ClusterState) -> ClusterState:
    """All replicas have registered a start as incarnation 1, those that had as what they are."""
    shards = {}
    for id, shard in state.shards.items():
        missing = [node for node in shard.replicas if shard.start_of(node) is None]
        fresh = [RegisteredStart(node, 1, 1, 1, confirmed=True) for node in missing]
        starts = tuple(sorted((*shard.starts, *fresh)))
        leading = next((start.life for start in starts if start.node == shard.leader), None)
        shards[id] = replace(shard, starts=starts, leading=shard.leading or leading)
    return replace(state, shards=MappingProxyType(shards))


def run(state: ClusterState, **command: Any) -> tuple[ClusterState, dict[str, Any]]:
    command.setdefault("request_id", f"{command['op']}-{len(state.results)}-{state.version}")
    after, result = apply(state, command)
    after.check()
    return after, result


def content(state: ClusterState) -> bytes:
    return state.without_results().encode()


node_ids = st.sampled_from([*NODES, "n7", "stranger"])
names = st.sampled_from(["a", "b", "c"])
shard_ids = st.integers(0, SHARDS)
small = st.integers(0, 6)
request_ids = st.integers(0, 60).map(str)
node_lists = st.lists(node_ids, max_size=4)
incarnations = st.integers(-1, 2)
member_lists = st.lists(st.tuples(node_ids, incarnations).map(list), max_size=4)


def command(op: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"op": st.just(op), "request_id": request_ids, **fields})


singles = st.one_of(
    command("create_topic", name=names, queues=st.integers(-1, 20), options=st.just({}), created_ms=st.just(1)),
    command("delete_topic", name=names),
    command("grow_topic", name=names, queues=st.integers(0, 60), expected_queues=st.integers(0, 20)),
    command(
        "alter_topic",
        name=names,
        options=st.fixed_dictionaries({"retention_ms": st.integers(1, 9)}),
        expected_revision=st.integers(0, 3),
    ),
    command(
        "register_node", node=node_ids, url=st.just("http://u"), internal_url=st.just("http://i"), life=st.just("l")
    ),
    command("elect", shard=shard_ids, candidate=node_ids, expected_epoch=small, suspects=node_lists),
    command("elect", shard=shard_ids, candidate=node_ids, expected_epoch=small, min_epoch=small),
    command("transfer_leader", shard=shard_ids, candidate=node_ids, expected_epoch=small),
    command("set_in_sync", shard=shard_ids, epoch=small, expected_version=small, in_sync=member_lists),
    command("set_replicas", shard=shard_ids, expected_version=small, replicas=node_lists),
    command("set_target", shard=shard_ids, expected_version=small, replicas=node_lists),
    command("set_target", shard=shard_ids, expected_version=small, replicas=node_lists, pinned=st.booleans()),
    command("cancel_target", shard=shard_ids, expected_version=small),
    command("unpin", shard=shard_ids, expected_version=small),
    command("pause_moves"),
    command("resume_moves"),
    command("leave_in_sync", shard=shard_ids, node=node_ids, incarnation=incarnations, expected_version=small),
    command("drain_node", node=node_ids),
    command("undrain_node", node=node_ids),
    command("remove_node", node=node_ids),
    st.just(bootstrap()),
    command("no such command"),
    st.dictionaries(st.sampled_from(["op", "shard", "node"]), st.one_of(st.none(), st.integers(), st.text())),
)
commands = st.one_of(singles, command("batch", commands=st.lists(singles, max_size=4)))


@settings(max_examples=part_in_number(200, 3))
@given(st.lists(commands, min_size=1, max_size=30), st.integers(0, 30))
def test_who_knows_an_earlier_state_comes_to_the_latest_by_what_changed(
    sequence: list[dict[str, Any]], known: int
) -> None:
    states = [founded()]
    for entry in sequence:
        states.append(apply(states[-1], entry)[0])
    former, latest = states[min(known, len(states) - 1)].without_results(), states[-1]
    changes = latest.encode_changes(former)
    assert content(former.changed(changes)) == content(latest)
    assert former.changed(changes) == latest.without_results()


def test_changes_of_another_state_are_refused_and_those_of_one_shard_are_small() -> None:
    state = founded(shards=500)
    shard = state.shards[7]
    after, result = run(state, op="elect", shard=7, candidate=shard.replicas[1], expected_epoch=1)
    assert result["ok"]
    changes = after.encode_changes(state)
    assert len(changes) < 1_000 < len(after.encode()) // 50
    with pytest.raises(ValueError, match="changes of state"):
        after.changed(changes)


@settings(max_examples=part_in_number(300, 3))
@given(st.lists(commands, max_size=40))
def test_whatever_commands_come_the_invariants_hold(sequence: list[dict[str, Any]]) -> None:
    state = founded()
    given_ids: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    topic_ids: dict[int, str] = {}
    for entry in sequence:
        after, result = apply(state, entry)
        after.check()
        request_id = entry.get("request_id")
        if request_id in given_ids:
            assert content(after) == content(state)
            assert {**result, "repeated": None} == {**given_ids[str(request_id)][1], "repeated": None}
        elif isinstance(request_id, str) and request_id:
            given_ids[request_id] = (entry, result)
        if not result["ok"]:
            assert content(after) == content(state), "a refused command changed something"
        assert after.version >= state.version
        assert (content(after) == content(state)) == (after.version == state.version)
        assert after.topics == state.topics or after.topics_version > state.topics_version
        for id, shard in after.shards.items():
            former = state.shards[id]
            assert shard.epoch >= former.epoch
            assert shard.version >= former.version
            assert (shard == former) == (shard.version == former.version)
            if shard.leader != former.leader and shard.leader is not None:
                assert shard.epoch > former.epoch, "a new leader without a new epoch"
                assert shard.listed(shard.leader) == former.listed(shard.leader) is not None, "not from the in-sync set"
            assert len(set(shard.replicas) ^ set(former.replicas)) <= 1 or entry["op"] == "batch"
            if set(shard.in_sync_nodes) < set(former.in_sync_nodes) and entry["op"] in ("elect", "set_replicas"):
                assert len(shard.in_sync) >= after.settings.min_in_sync
        for topic in after.topics.values():
            assert topic_ids.setdefault(topic.id, topic.name) == topic.name, "a topic id was used again"
        state = after


@settings(max_examples=part_in_number(100, 3))
@given(st.lists(commands, max_size=30))
def test_the_same_commands_give_the_same_bytes_and_bytes_give_the_state(sequence: list[dict[str, Any]]) -> None:
    def replay() -> ClusterState:
        state = EMPTY
        for entry in [bootstrap(), *sequence]:
            state, _ = apply(state, entry)
        return state

    first, second = replay(), replay()
    assert first.encode() == second.encode()
    decoded = ClusterState.decode(first.encode())
    assert decoded == first
    assert ClusterState.decode(first.encode(topics=False), first.topics) == first
    # Who starts from the decoded state goes on as who has it from the log.
    more = {"op": "create_topic", "request_id": "more", "name": "z", "queues": 9, "created_ms": 5}
    assert apply(decoded, more)[0].encode() == apply(first, more)[0].encode()


def test_before_the_bootstrap_nothing_else_is_taken() -> None:
    state, result = apply(EMPTY, {"op": "drain_node", "request_id": "1", "node": "n0"})
    assert result["code"] == "not_bootstrapped"
    assert state.version == 0


def test_a_second_bootstrap_is_refused_and_a_repeated_one_is_answered_as_the_first() -> None:
    state = founded()
    assert apply(state, bootstrap())[1]["ok"]
    assert run(state, **{**bootstrap(), "request_id": "other"})[1]["code"] == "already_bootstrapped"


def test_the_configuration_chooses_first_leaders() -> None:
    given_shards = {"shards": {0: {"replicas": ["n2", "n0", "n1"], "leader": "n1"}}}
    state, result = apply(EMPTY, {**bootstrap(), **given_shards})
    assert result["ok"]
    assert (state.shards[0].leader, state.shards[0].replicas) == ("n1", ("n2", "n0", "n1"))
    assert [state.shards[id].leader for id in (1, 2)] == ["n1", "n2"]


def test_an_election_raises_the_epoch_and_drops_suspects_but_never_the_candidate() -> None:
    state = founded()
    shard = state.shards[0]
    old, candidate, third = shard.replicas
    state, result = run(state, op="elect", shard=0, candidate=candidate, expected_epoch=1, suspects=[old])
    assert (result["ok"], result["epoch"]) == (True, 2)
    assert state.shards[0].leader == candidate
    assert set(state.shards[0].in_sync_nodes) == {candidate, third}
    stale = run(state, op="elect", shard=0, candidate=third, expected_epoch=1)[1]
    assert (stale["code"], stale["epoch"], stale["leader"]) == ("stale", 2, candidate)
    assert run(state, op="elect", shard=0, candidate=old, expected_epoch=2)[1]["code"] == "not_in_sync"
    assert (
        run(state, op="elect", shard=0, candidate=third, expected_epoch=2, suspects=[third])[1]["code"] == "not_in_sync"
    )
    state, result = run(state, op="elect", shard=0, candidate=third, expected_epoch=2, min_epoch=40)
    assert result["epoch"] == 40


def test_the_in_sync_set_changes_only_for_the_current_epoch_and_version() -> None:
    state = founded()
    shard = state.shards[0]
    keep = [[shard.leader, 7], [shard.replicas[1], 8]]
    change = {"op": "set_in_sync", "shard": 0, "in_sync": keep}
    assert run(state, **change, epoch=2, expected_version=1)[1]["code"] == "stale"
    assert run(state, **change, epoch=1, expected_version=9)[1]["code"] == "stale"
    followers = {**change, "in_sync": [[node, 7] for node in shard.replicas[1:]]}
    assert run(state, **followers, epoch=1, expected_version=1)[1]["code"] == "not_in_sync"
    strangers = {**change, "in_sync": [[shard.leader, 7], ["n7", 7]]}
    assert run(state, **strangers, epoch=1, expected_version=1)[1]["code"] == "invalid_command"
    state, result = run(state, **change, epoch=1, expected_version=1)
    assert result["shard_version"] == 2
    assert [list(member) for member in state.shards[0].in_sync] == keep


def test_a_replica_moves_in_steps_that_never_lose_the_in_sync_set() -> None:
    state = founded()
    leader, second, third = state.shards[0].replicas
    fresh = next(node for node in NODES if node not in state.shards[0].replicas)
    state, _ = run(state, op="set_replicas", shard=0, expected_version=1, replicas=[leader, second, third, fresh])
    assert state.shards[0].adding == (fresh,)
    assert fresh not in state.shards[0].in_sync
    away = {"op": "set_replicas", "shard": 0, "replicas": [second, third, fresh]}
    assert run(state, **away, expected_version=2)[1]["code"] == "is_leader"
    two = {"op": "set_replicas", "shard": 0, "replicas": [leader, fresh]}
    assert run(state, **two, expected_version=2)[1]["code"] == "invalid_command"
    listed = [[node, 7] for node in (leader, second)]
    state, _ = run(state, op="set_in_sync", shard=0, epoch=1, expected_version=2, in_sync=listed)
    early = {"op": "set_replicas", "shard": 0, "replicas": [leader, third, fresh]}
    assert run(state, **early, expected_version=3)[1]["code"] == "not_enough_replicas"
    listed.append([fresh, 9])
    state, _ = run(state, op="set_in_sync", shard=0, epoch=1, expected_version=3, in_sync=listed)
    assert state.shards[0].adding == ()
    state, result = run(state, op="set_replicas", shard=0, expected_version=4, replicas=[leader, third, fresh])
    assert result["ok"]
    assert set(state.shards[0].in_sync) == {(leader, 7), (fresh, 9)}


def test_a_damaged_replica_leaves_and_the_last_one_in_sync_may_not() -> None:
    state = founded()
    leader, second, third = state.shards[0].replicas
    leave: dict[str, Any] = {"op": "leave_in_sync", "shard": 0, "incarnation": 0}
    assert run(state, **{**leave, "incarnation": 5}, node=leader, expected_version=1)[0].shards[0] == state.shards[0]
    state, _ = run(state, **leave, node=leader, expected_version=1)
    assert state.shards[0].leader is None
    state, _ = run(state, **leave, node=second, expected_version=2)
    refused = run(state, **leave, node=third, expected_version=3)[1]
    assert refused["code"] == "sole_in_sync"
    state, result = run(state, op="elect", shard=0, candidate=third, expected_epoch=1)
    assert result["epoch"] == 2


def test_leadership_is_handed_over_to_who_may_keep_it() -> None:
    state = founded()
    leader, second, third = state.shards[0].replicas
    state, _ = run(state, op="drain_node", node=third)
    hand_over: dict[str, Any] = {"op": "transfer_leader", "shard": 0, "expected_epoch": 1}
    stranger = next(node for node in NODES if node not in state.shards[0].replicas)
    assert run(state, **hand_over, candidate=stranger)[1]["code"] == "not_in_sync"
    assert run(state, **hand_over, candidate=third)[1]["code"] == "draining"
    assert run(state, **{**hand_over, "expected_epoch": 7}, candidate=second)[1]["code"] == "stale"
    moving, _ = run(state, op="set_target", shard=0, expected_version=1, replicas=[stranger, leader])
    assert run(moving, **hand_over, candidate=second)[1]["code"] == "moving"
    state, result = run(state, **hand_over, candidate=second)
    assert (result["ok"], result["epoch"]) == (True, 2)
    assert (state.shards[0].leader, state.shards[0].replicas) == (second, (second, leader, third))
    # Once more, whoever repeats it: nothing is left to do.
    again, result = run(state, **hand_over, candidate=second)
    assert result["ok"] and again.version == state.version


def test_a_node_that_a_shard_is_to_move_to_is_not_removed() -> None:
    state = founded()
    state, _ = run(state, op="register_node", node="n7", url="http://u", internal_url="http://i", life="l")
    target = ["n7", *state.shards[0].replicas[:2]]
    state, _ = run(state, op="set_target", shard=0, expected_version=1, replicas=target)
    refused = run(state, op="remove_node", node="n7")[1]
    assert (refused["code"], refused["shards"]) == ("holds_replicas", [0])
    state, _ = run(state, op="cancel_target", shard=0, expected_version=2)
    assert run(state, op="remove_node", node="n7")[1]["ok"]


def test_a_node_is_removed_only_when_it_holds_nothing_and_does_not_vote() -> None:
    state = founded(shards=1)
    holder = state.shards[0].replicas[0]
    assert run(state, op="remove_node", node=holder)[1]["code"] == "holds_replicas"
    state, _ = run(state, op="register_node", node="n7", url="http://u", internal_url="http://i", life="l")
    state, result = run(state, op="remove_node", node="n7")
    assert result["ok"]
    again = run(state, op="register_node", node="n7", url="http://u", internal_url="http://i", life="l")[1]
    assert again["code"] == "node_removed"
    state = founded(shards=1, replicas=1, min_in_sync=1)
    assert run(state, op="remove_node", node="n1")[1]["code"] == "is_voter"


def test_a_node_that_was_removed_gives_way_where_there_is_no_room_and_no_other_does() -> None:
    def register(state: ClusterState, node: str, **fields: Any) -> tuple[ClusterState, dict[str, Any]]:
        return run(state, op="register_node", node=node, url="http://u", internal_url="http://i", life="l", **fields)

    state = founded(shards=1)
    for number in range(MAX_NODES - len(NODES)):
        state, result = register(state, f"x{number}", forget="x0")
        assert result["ok"], result
    state, _ = run(state, op="remove_node", node="x7")
    for forget in (None, "n0", "x8", "nobody", ["x7"]):
        assert register(state, "more", forget=forget)[1]["code"] in ("limit_reached", "invalid_command")
    state, result = register(state, "more", forget="x7")
    assert result["ok"] and len(state.nodes) == MAX_NODES
    assert "more" in state.nodes and "x7" not in state.nodes
    assert register(state, "another", forget="x7")[1]["code"] == "limit_reached"
    assert ClusterState.decode(state.encode()).encode() == state.encode()


def test_registering_again_changes_nothing_but_addresses_and_life() -> None:
    state = founded()
    again = {"op": "register_node", "node": "n0", "url": "http://new", "internal_url": "http://new:1"}
    state, _ = run(state, op="drain_node", node="n0")
    state, _ = run(state, **again, life="first")
    node = state.nodes["n0"]
    assert (node.url, node.state, node.voter, node.life) == ("http://new", "draining", True, "first")
    assert run(state, **again, life="first")[0].version == state.version
    for former in ({}, {"former": "another"}):
        refused = run(state, **again, life="second", **former)[1]
        assert (refused["code"], refused["life"]) == ("stale", "first"), "nobody has found that to be over"
    state, _ = run(state, **again, life="second", former="first")
    assert state.nodes["n0"].life == "second"
    assert ClusterState.decode(state.encode()).nodes == state.nodes
    assert run(state, **again)[1]["code"] == "invalid_command", "a start that does not say which"


def test_a_topic_deleted_and_made_again_has_a_new_id() -> None:
    state = founded()
    make = {"op": "create_topic", "name": "t", "queues": 10, "options": {"ack": "quorum"}, "created_ms": 7}
    state, first = run(state, **make)
    assert (first["created"], run(state, **make)[1]["created"]) == (True, False)
    assert run(state, **{**make, "queues": 11})[1]["code"] == "topic_exists"
    assert run(state, **{**make, "options": {}})[1]["code"] == "topic_exists"
    named = run(state, **{**make, "options": {"ack": "quorum", "named": True}})[1]
    assert "queues is 10, not named. Delete" in named["message"] and named["queues"] == 10
    state, _ = run(state, op="delete_topic", name="t", topic_id=first["topic_id"])
    state, second = run(state, **make)
    assert second["topic_id"] == first["topic_id"] + 1
    late = run(state, op="delete_topic", name="t", topic_id=first["topic_id"])[1]
    assert late["code"] == "unknown_topic"


def test_what_was_decided_by_the_topics_there_are_is_refused_once_there_are_others() -> None:
    state = founded()
    make = {"op": "create_topic", "queues": 10, "options": {"made_by": "anna"}, "created_ms": 7}
    seen = state.topics_version
    state, _ = run(state, **make, name="a", expected_topics_version=seen)
    refused = run(state, **make, name="b", expected_topics_version=seen)[1]
    assert (refused["code"], refused["topics_version"]) == ("stale", state.topics_version)
    grow = {"op": "grow_topic", "name": "a", "queues": 11, "expected_queues": 10}
    assert run(state, **grow, expected_topics_version=seen)[1]["code"] == "stale"
    assert run(state, **grow, expected_topics_version=state.topics_version)[1]["ok"]
    again = run(state, **{**make, "options": {"made_by": "bert"}}, name="a", expected_topics_version=seen)[1]
    assert again["created"] is False, "whoever made it, it is there"


def test_options_of_a_topic_change_one_revision_at_a_time_and_the_same_options_are_the_same_topic() -> None:
    state = founded()
    make = {"op": "create_topic", "name": "t", "queues": 10, "created_ms": 7}
    state, _ = run(state, **make, options={"ack": "quorum"})
    alter = {"op": "alter_topic", "name": "t", "options": {"ack": "leader"}}
    assert run(state, **alter, expected_revision=1)[1]["code"] == "stale"
    changed, _ = run(state, **alter, expected_revision=0)
    assert changed.topics["t"].options == {"ack": "leader", "revision": 1}
    assert changed.topics_version > state.topics_version
    assert run(changed, **alter, expected_revision=0)[1]["code"] == "stale"
    assert run(changed, **make, options={"ack": "leader"})[1]["created"] is False
    assert run(changed, **make, options={"ack": "quorum"})[1]["code"] == "topic_exists"
    assert ClusterState.decode(changed.encode()).topics == changed.topics
    assert run(state, op="alter_topic", name="x", options={}, expected_revision=0)[1]["code"] == "unknown_topic"


def test_growing_keeps_every_queue_where_it_is() -> None:
    state = founded()
    state, _ = run(state, op="create_topic", name="t", queues=10, created_ms=1)
    before = {queue: run_.shard for run_ in state.topics["t"].ranges for queue in range(run_.first, run_.end)}
    assert run(state, op="grow_topic", name="t", queues=25, expected_queues=9)[1]["code"] == "stale"
    state, _ = run(state, op="grow_topic", name="t", queues=25, expected_queues=10)
    after = {queue: run_.shard for run_ in state.topics["t"].ranges for queue in range(run_.first, run_.end)}
    assert len(after) == 25
    assert {queue: after[queue] for queue in before} == before


@given(st.integers(1, 200), st.integers(1, 20), st.lists(st.integers(1, 50), max_size=4))
def test_ranges_cover_all_queues_once_and_are_even(queues: int, shards: int, growth: list[int]) -> None:
    ranges = spread_queues(0, queues, shards)
    sizes = [run_.end - run_.first for run_ in ranges]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == queues
    total = queues
    for more in growth:
        total += more
        ranges = grown_ranges(ranges, total, shards)
    covered = [queue for run_ in ranges for queue in range(run_.first, run_.end)]
    assert covered == list(range(total))


def test_only_the_latest_results_are_remembered() -> None:
    state = founded()
    for number in range(REMEMBERED_RESULTS + 5):
        state, _ = apply(state, {"op": "drain_node", "request_id": f"r{number}", "node": "nobody"})
    assert len(state.results) == REMEMBERED_RESULTS
    assert "r4" not in state.results and "r5" in state.results


def test_a_batch_is_one_entry_whose_commands_stand_for_themselves() -> None:
    state = founded()
    good = {"op": "elect", "shard": 0, "candidate": state.shards[0].replicas[1], "expected_epoch": 1}
    bad = {**good, "shard": 1, "expected_epoch": 5}
    assert not run(state, op="batch", commands=[good, {"op": "batch", "commands": []}])[1]["ok"]
    state, result = run(state, op="batch", commands=[good, bad])
    assert [entry["ok"] for entry in result["results"]] == [True, False]
    assert state.shards[0].epoch == 2 and state.shards[1].epoch == 1


def rights(request: str, expected: int, **changes: bytes | None) -> dict[str, Any]:
    return {"op": "change_rights", "request_id": request, "expected_version": expected, "changes": changes}


def test_rights_are_changed_from_what_they_were_or_not_at_all() -> None:
    state = founded()
    assert b"rights" not in state.encode()  # Who has none has the bytes of earlier releases.
    changed, result = apply(state, rights("a", 0, one=b"1", two=b"2"))
    assert result["ok"] and changed.rights_version == changed.version == state.version + 1
    assert ClusterState.decode(changed.encode()).rights == {"one": b"1", "two": b"2"}
    assert ClusterState.decode(changed.encode()).rights_version == changed.rights_version
    same, result = apply(changed, rights("b", 0, one=None))
    assert result["code"] == "stale" and same.rights == changed.rights
    topic = {"op": "create_topic", "request_id": "t", "name": "t", "queues": 1, "created_ms": 1}
    changed, _ = apply(changed, topic)
    less, result = apply(changed, rights("c", changed.rights_version, one=None))
    assert result["ok"] and dict(less.rights) == {"two": b"2"}


@pytest.mark.parametrize(
    "changes", [{"k": b"x" * (MAX_RIGHT_BYTES + 1)}, {"k": "text"}, {"": b"x"}, {"k" * 513: b""}, {"k": 7}]
)
def test_rights_of_the_wrong_kind_are_refused(changes: dict[str, Any]) -> None:
    state = founded()
    changed, result = apply(state, rights("a", 0, **changes))
    assert not result["ok"] and changed.rights_version == 0


def test_rights_have_a_limit() -> None:
    state, body = founded(), b"x" * MAX_RIGHT_BYTES
    for number in range(MAX_RIGHTS_BYTES // MAX_RIGHT_BYTES):
        state, result = apply(state, rights(f"r{number}", state.rights_version, **{f"k{number}": body}))
    assert result["code"] == "limit_reached"
    assert len(state.rights) == MAX_RIGHTS_BYTES // MAX_RIGHT_BYTES - 1
