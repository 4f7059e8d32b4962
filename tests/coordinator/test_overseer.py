"""The overseer on a control plane that does as it is told: what it submits, when, and how often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lsmq_coordinator.commands import apply
from lsmq_coordinator.election import Progress
from lsmq_coordinator.errors import NotControlLeader
from lsmq_coordinator.liveness import LivenessTiming
from lsmq_coordinator.overseer import Overseer, OverseerTiming, departures
from lsmq_coordinator.state import ClusterState
from support.raft_group import until

from .test_state import NODES, founded


class FakeRaft:
    """A voter that leads and commits at once."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.is_leader = True
        self.leader = "n0"
        self.status = SimpleNamespace(term=1)
        self.config = SimpleNamespace(node="n0", voters=dict.fromkeys(NODES[:3], "address"))
        self.batches: list[list[dict[str, Any]]] = []
        self.refuse = False
        self.resigned = 0

    @property
    def lease(self) -> float:
        return time.monotonic()

    def on_status(self, callback: Any) -> Callable[[], None]:
        return lambda: None

    def resign(self) -> None:
        self.resigned += 1
        self.is_leader, self.leader = False, None

    async def submit(self, command: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        self.batches.append(list(command["commands"]))
        if self.refuse:
            return {"ok": True, "results": [{"ok": False}] * len(command["commands"])}
        self.state, result = apply(self.state, {**command, "request_id": str(len(self.batches))})
        return result


def running(
    test: Callable[[FakeRaft, Overseer], Awaitable[None]], *, beating: tuple[str, ...] = tuple(NODES), **timing: Any
) -> None:
    async def main() -> None:
        raft = FakeRaft(founded())
        liveness = LivenessTiming(node_timeout_s=0.3, quiet_s=0.2)
        timings = OverseerTiming(tick_s=0.01, liveness=liveness, **{"settle_s": 3600.0, **timing})

        async def unknown(url: str) -> bool | None:
            return None

        overseer = Overseer(raft, timing=timings, probe=unknown)  # type: ignore[arg-type]

        async def beat() -> None:
            while True:
                for node in beating:
                    if raft.is_leader:
                        overseer.heartbeat(node, "one", None)
                await asyncio.sleep(0.02)

        tasks = [asyncio.create_task(overseer.run()), asyncio.create_task(beat())]
        try:
            await test(raft, overseer)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_an_election_asked_for_by_many_is_held_once() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        for _ in range(5):
            overseer.ask_election(1, 6)
        await until(lambda: raft.state.shards[1].epoch == 7)
        overseer.ask_election(1, 6)
        overseer.ask_election(77, 6)
        overseer.ask_election(1, 1 << 62)
        await asyncio.sleep(0.1)
        assert [[command["op"] for command in batch] for batch in raft.batches] == [["elect"]]
        assert overseer.elections == 1

    running(run)


def test_elections_of_one_shard_asked_for_again_and_again_keep_an_interval() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        first = raft.state.shards[1].epoch
        began = time.monotonic()
        while time.monotonic() - began < 0.55:
            overseer.ask_election(1, raft.state.shards[1].epoch)
            await asyncio.sleep(0.01)
        assert 2 <= raft.state.shards[1].epoch - first <= 4

    running(run, ask_interval_s=0.2)


def test_a_leader_that_hears_too_few_is_replaced_once_however_often_it_asks() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        former = raft.state.shards[1]
        deaf = str(former.leader)
        for node in NODES:
            overseer.heartbeat(node, "one", {1: Progress(former.epoch, 9)})
        for _ in range(60):
            overseer.ask_election(1, former.epoch, deaf)
            overseer.ask_election(77, former.epoch, deaf)
            await asyncio.sleep(0.01)
        after = raft.state.shards[1]
        assert after.epoch == former.epoch + 1
        assert after.leader in former.in_sync_nodes and after.leader != deaf
        assert after.in_sync == former.in_sync, "its lease may still hold: the new leader has to wait for it"

    running(run)


def test_a_leader_that_hears_too_few_stays_where_no_other_works() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        former = raft.state.shards[1]
        deaf = str(former.leader)
        overseer.heartbeat(deaf, "one", {1: Progress(former.epoch, 9)})
        for node in former.replicas:
            if node != deaf:
                overseer.heartbeat(node, "one", {})
        for _ in range(60):
            overseer.ask_election(1, former.epoch, deaf)
            await asyncio.sleep(0.01)
        assert raft.state.shards[1] == former

    running(run)


def test_a_control_leader_that_a_majority_of_the_voters_cannot_call_resigns_and_condemns_nobody() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        await until(lambda: not raft.is_leader)
        assert raft.resigned == 1
        assert [shard.epoch for shard in raft.state.shards.values()] == [1] * len(raft.state.shards)

    running(run, beating=(), resign_s=0.2)


def test_a_control_leader_that_hears_a_majority_of_the_voters_leads_on() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        await asyncio.sleep(0.8)
        assert raft.resigned == 0

    running(run, beating=("n1",), resign_s=0.1)


def test_who_does_not_lead_takes_no_reports() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        raft.is_leader, raft.leader = False, "n2"
        for report in (
            lambda: overseer.heartbeat("n1", "one", {}),
            lambda: overseer.ask_election(0, 5),
            lambda: overseer.suspect("n1"),
        ):
            with pytest.raises(NotControlLeader) as refused:
                report()
            assert refused.value.details["leader"] == "n2"

    running(run)


def test_a_heartbeat_is_answered_with_who_is_alive() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        await until(lambda: "n4" not in overseer.heartbeat("n1", "one", None).living)
        assert overseer.heartbeat("n1", "one", None).living == {"n0", "n1", "n2", "n3"}
        assert all(shard.leader != "n4" for shard in raft.state.shards.values())

    running(run, beating=("n0", "n1", "n2", "n3"))


def test_commands_that_change_nothing_are_not_repeated_at_every_tick() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        raft.refuse = True
        command = {"op": "drain_node", "node": "n0", "request_id": "d"}
        raft.state = apply(raft.state, command)[0]
        await until(lambda: raft.batches)
        await asyncio.sleep(0.2)
        assert len(raft.batches) == 1, "each would be an entry of the log"
        raft.refuse = False
        # Something changed: it is tried again at once.
        raft.state = apply(raft.state, {"op": "drain_node", "node": "n1", "request_id": "e"})[0]
        await until(lambda: any(shard.target for shard in raft.state.shards.values()))

    running(run, repeat_s=3600.0)


def test_leadership_is_not_returned_to_a_node_whose_replica_does_not_work() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        shard = raft.state.shards[0]
        preferred, other = shard.replicas[:2]
        command = {"op": "elect", "shard": 0, "candidate": other, "expected_epoch": 1, "request_id": "x"}
        overseer.heartbeat(preferred, "one", {})
        raft.state = apply(raft.state, command)[0]
        await asyncio.sleep(0.2)
        assert raft.state.shards[0].leader == other
        overseer.heartbeat(preferred, "one", {id: Progress(1, 0) for id in raft.state.shards})
        await asyncio.sleep(0.2)
        assert raft.state.shards[0].leader == other, "the leader's epoch has not come there yet"
        overseer.heartbeat(preferred, "one", {id: Progress(2, 9) for id in raft.state.shards})
        await until(lambda: raft.state.shards[0].leader == preferred)

    running(run, settle_s=0.05)


def test_leadership_that_a_node_handed_over_is_not_returned_at_once() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        await asyncio.sleep(0.6)  # things have been quiet for long
        preferred, other = raft.state.shards[0].replicas[:2]
        command = {"op": "elect", "shard": 0, "candidate": other, "expected_epoch": 1, "request_id": "x"}
        raft.state, handed_over = apply(raft.state, command)[0], time.monotonic()
        await until(lambda: raft.state.shards[0].leader == preferred)
        assert time.monotonic() - handed_over >= 0.5, "never sooner than it is quiet"

    running(run, settle_s=0.5)


def test_the_dead_leave_the_sets_of_leaders_that_live() -> None:
    async def run(raft: FakeRaft, overseer: Overseer) -> None:
        def listed() -> list[int]:
            return [id for id, shard in raft.state.shards.items() if "n4" in shard.in_sync_nodes]

        assert listed()
        await until(lambda: not listed())
        for shard in raft.state.shards.values():
            assert "n4" in shard.replicas or "n4" not in shard.in_sync_nodes
            assert len(shard.in_sync) >= raft.state.settings.min_in_sync

    running(run, beating=("n0", "n1", "n2", "n3"))


def test_the_dead_stay_listed_where_too_few_would_be_left() -> None:
    alive = frozenset(NODES[:3])
    state = founded()
    for command in departures(state, alive):
        state, result = apply(state, {**command, "request_id": f"{command['shard']}-{command['node']}"})
        assert result["ok"], result
    for id, shard in state.shards.items():
        dead = [member for member in shard.in_sync if member.node not in alive]
        former = founded().shards[id]
        enough = sum(member.node in alive for member in former.in_sync) >= state.settings.min_in_sync
        assert bool(dead) == (
            any(node not in alive for node in former.in_sync_nodes) and not (enough and former.leader in alive)
        )
