"""Nodes that come and go: what the overseer keeps of them, and of those that were removed."""

from __future__ import annotations

from lsmq_coordinator.commands import apply
from lsmq_coordinator.election import ReplicaProgress
from lsmq_coordinator.heartbeats import NodeHeartbeat
from lsmq_coordinator.overseer import Overseer
from lsmq_coordinator.state import MAX_NODES

from .test_overseer import LIFE, NODES, FakeRaft, VirtualTime, register, running


def test_the_clock_of_a_node_that_was_removed_counts_no_more_though_it_runs_on_and_says_what_is_wrong() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        assert register(raft, "n9", LIFE)["ok"]
        for node, ms in (("n0", 0.0), ("n1", 9_000.0), ("n9", 9_000.0)):
            overseer.heartbeat(NodeHeartbeat(node, LIFE, clock_ms=ms))
        raft.state, result = apply(raft.state, {"op": "remove_node", "node": "n9", "request_id": "remove"})
        assert result["ok"], result
        await time.passes(0.1)
        overseer.heartbeat(NodeHeartbeat("n9", LIFE, clock_ms=9_000.0, problems=("it was removed",)))
        told = overseer.heartbeat(NodeHeartbeat("n2", LIFE, clock_ms=0.0))
        assert told.clocks_ms == {"n0": 0.0, "n1": 9_000.0, "n2": 0.0}
        assert told.problems == {"n9": ("it was removed",)}

    running(run, beating=())


def test_of_nodes_that_come_and_go_nothing_is_kept() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        def kept() -> int:
            tables = (overseer._reports, overseer._ended, overseer._growing, overseer._balancer.sizes)
            return sum(map(len, (*tables, overseer._voters.addresses)))

        await time.passes(0.1)
        before = kept()
        for number in range(20):
            node = f"gone-{number}"
            assert register(raft, node, LIFE)["ok"]
            await time.passes(0.05)
            beat = NodeHeartbeat(node, LIFE, {0: ReplicaProgress(0, 0, 1, 1)}, sizes={0: 1}, raft=f"{node}:1")
            assert overseer.heartbeat(beat).alive
            overseer.died(node, LIFE)
            await time.passes(0.05)
            command = {"op": "remove_node", "node": node, "request_id": f"remove {node}"}
            raft.state, result = apply(raft.state, command)
            assert result["ok"], result
        await time.passes(0.1)
        overseer.died("n4", "another")
        assert kept() == before + 1

    running(run)


def test_removed_nodes_give_way_to_new_ones_once_all_voters_know_what_that_means() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        for number in range(MAX_NODES - len(NODES)):
            assert register(raft, f"gone-{number:03}", LIFE)["ok"]
            raft.state, _ = apply(
                raft.state, {"op": "remove_node", "node": f"gone-{number:03}", "request_id": f"{number}"}
            )
        for node in ("n0", "n1"):
            overseer.heartbeat(NodeHeartbeat(node, LIFE))
        overseer.heartbeat(NodeHeartbeat("n2", LIFE, forgets=False))
        assert register(raft, "too early", LIFE)["code"] == "limit_reached"
        overseer.heartbeat(NodeHeartbeat("n2", LIFE))
        for number in range(3):
            assert register(raft, f"new-{number}", LIFE)["ok"]
        assert len(raft.state.nodes) == MAX_NODES
        assert min(id for id in raft.state.nodes if id.startswith("gone")) == "gone-003"

    running(run, beating=())
