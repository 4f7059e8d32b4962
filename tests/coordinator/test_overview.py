"""What people see of the cluster."""

from __future__ import annotations

import json
from dataclasses import replace

from lsmq_coordinator.heartbeats import HeartbeatAnswer
from lsmq_coordinator.overview import overview
from lsmq_coordinator.state import EMPTY

from .test_state import founded, run


def test_nodes_and_shards_are_told_with_who_leads_what_and_what_moves_where() -> None:
    state = founded()
    state, _ = run(state, op="drain_node", node="n3")
    state, _ = run(state, op="set_target", shard=0, expected_version=1, replicas=["n4", "n1", "n2"])
    state, _ = run(state, op="set_replicas", shard=0, expected_version=2, replicas=["n0", "n1", "n3", "n4"])
    told = HeartbeatAnswer(
        1, 0.0, True, frozenset({"n0", "n1"}), problems={"n3": ("voter: full",)}, clocks_ms={"n3": 1.26}
    )
    seen = json.loads(json.dumps(overview(state, told, "n1")))
    assert (seen["cluster"], seen["version"], seen["control_leader"]) == ("c", state.version, "n1")
    node = seen["nodes"][3]
    assert node["id"] == "n3"
    assert (node["url"], node["internal_url"]) == ("http://n3", "http://n3:1")
    assert (node["voter"], node["state"], node["alive"]) == (False, "draining", False)
    assert (node["problems"], node["clock_ms"]) == (["voter: full"], 1.3)
    assert (seen["nodes"][0]["problems"], seen["nodes"][0]["clock_ms"]) == ([], None)
    assert (node["shards_led"], node["replicas"]) == (0, len(state.replicas_on("n3")))
    assert sum(node["shards_led"] for node in seen["nodes"]) == len(state.shards)
    shard = seen["shards"][0]
    assert shard == {
        "id": 0,
        "leader": "n0",
        "epoch": 1,
        "in_sync": list(state.shards[0].in_sync_nodes),
        "replicas": list(state.shards[0].replicas),
        "adding": list(state.shards[0].adding),
        "target": ["n4", "n1", "n2"],
        "pinned": False,
        "problem": None,
        "misplaced": None,
        "revived": [],
    }
    stuck = overview(state, replace(told, leaderless={0: "n0 is away"}), "n1")
    assert [entry["problem"] for entry in stuck["shards"]] == ["n0 is away", None, None]


def test_who_is_alive_may_be_unknown_and_nothing_may_be_founded() -> None:
    assert {node["alive"] for node in overview(founded())["nodes"]} == {None}
    assert {shard["problem"] for shard in overview(founded())["shards"]} == {None}
    (problem,) = {shard["problem"] for shard in overview(founded(), silent=True)["shards"]}
    assert "no leader of the control plane" in problem
    assert "n0, n1, n2" in problem
    assert overview(EMPTY)["nodes"] == overview(EMPTY)["shards"] == []
