"""Route documents: small, and never replaced by older ones."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.commands import apply
from lsmq_coordinator.routes import cluster_document, pack, resolve, routes, same, supersedes, topic_document, unpack
from lsmq_coordinator.state import ClusterState

from .test_state import founded


def with_topic(state: ClusterState, queues: int = 10) -> ClusterState:
    return apply(state, {"op": "create_topic", "request_id": "t", "name": "t", "queues": queues, "created_ms": 1})[0]


def elected(state: ClusterState, shard: int = 0) -> ClusterState:
    current = state.shards[shard]
    candidate = next(node for node in current.in_sync_nodes if node != current.leader)
    command = {"op": "elect", "shard": shard, "candidate": candidate, "expected_epoch": current.epoch}
    after, result = apply(state, {**command, "request_id": f"e{state.version}"})
    assert result["ok"]
    return after


def test_routes_say_where_each_queue_is_led() -> None:
    state = with_topic(founded())
    found = routes(state, state.topics["t"])
    assert [(route["first"], route["end"], route["shard"], route["epoch"]) for route in found] == [
        (0, 3, 0, 1),
        (3, 6, 1, 1),
        (6, 10, 2, 1),
    ]
    assert {route["leader"] for route in found} == {f"http://{shard.leader}" for shard in state.shards.values()}
    state = elected(state)
    moved = routes(state, state.topics["t"])[0]
    assert (moved["epoch"], moved["leader"]) == (2, f"http://{state.shards[0].leader}")
    state = apply(
        state,
        {
            "op": "leave_in_sync",
            "request_id": "l",
            "shard": 0,
            "node": state.shards[0].leader,
            "incarnation": 0,
            "expected_version": 2,
        },
    )[0]
    assert routes(state, state.topics["t"])[0]["leader"] is None


def test_documents_stay_small_for_a_million_queues() -> None:
    state = with_topic(founded(shards=64), 1_000_000)
    assert len(pack(topic_document(state, state.topics["t"]))) < 2_000
    assert len(pack(cluster_document(state))) < 8_000


def test_an_election_changes_the_cluster_document_only() -> None:
    before = with_topic(founded())
    after = elected(before)
    assert same(topic_document(before, before.topics["t"]), topic_document(after, after.topics["t"]))
    assert not same(cluster_document(before), cluster_document(after))


def test_documents_survive_packing_and_what_is_none_is_none() -> None:
    state = with_topic(founded())
    topic, cluster = topic_document(state, state.topics["t"]), cluster_document(state)
    packed = unpack(pack(topic)), unpack(pack(cluster))
    assert packed == (topic, cluster)
    assert packed[0] is not None and packed[1] is not None
    assert resolve(packed[0], packed[1]) == routes(state, state.topics["t"])
    for content in (b"", b"x", b"[]", b"{}", b'{"version":"1"}'):
        assert unpack(content) is None


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 9), st.integers(1, 9))
def test_only_a_later_state_with_no_lower_epoch_supersedes(old: int, new: int, old_epoch: int, new_epoch: int) -> None:
    def document(version: int, epoch: int) -> dict[str, Any]:
        return {"version": version, "shards": {"0": {"epoch": epoch}}}

    expected = new > old and new_epoch >= old_epoch
    assert supersedes(document(new, new_epoch), document(old, old_epoch)) == expected


def test_anything_supersedes_what_is_no_document() -> None:
    assert supersedes(cluster_document(founded()), {"version": -1})
