"""The overseer on a control plane that does as it is told: what it submits, when, and how often."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from lsmq_coordinator.commands import apply
from lsmq_coordinator.election import ReplicaProgress
from lsmq_coordinator.errors import NoControlLeader, NodeRuns, NotControlLeader
from lsmq_coordinator.founding import register_command
from lsmq_coordinator.heartbeats import HeartbeatAnswer, NodeHeartbeat
from lsmq_coordinator.liveness import LivenessTiming
from lsmq_coordinator.overseer import HEAR_STARTS_S, Overseer, OverseerTiming, departures
from lsmq_coordinator.raft_membership import Electorate
from lsmq_coordinator.resigning import ResignTiming
from lsmq_coordinator.state import ClusterState

from .test_state import NODES, founded

LIFE = "one"


def registered(state: ClusterState, life: str = LIFE) -> ClusterState:
    """All nodes have been started."""
    for node in state.nodes.values():
        command = {**register_command(node.id, node.url, node.internal_url, life), "former": node.life}
        state, _ = apply(state, {**command, "request_id": f"{node.id} {life}"})
    return state


class FakeRaft:
    """A voter that leads and commits at once."""

    testify: Callable[[Mapping[str, Any]], Mapping[str, Any]]

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.is_leader = True
        self.leader = "n0"
        self.membership = Electorate(0, {node: f"{node}:7602" for node in NODES[:3]})
        self.status = SimpleNamespace(term=1, resigned_term=0, membership=None)
        self.config = SimpleNamespace(node="n0")
        self.batches: list[list[dict[str, Any]]] = []
        self.refuse = False
        self.resigned = 0

    @property
    def lease(self) -> float:
        return monotonic()

    def on_status(self, callback: Any) -> Callable[[], None]:
        return lambda: None

    def leads(self, *, term: int) -> None:
        self.is_leader, self.leader, self.status.term = True, "n0", term

    def resign(self) -> None:
        self.resigned += 1
        self.is_leader, self.leader = False, None

    async def submit(self, command: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        self.batches.append(list(command["commands"]))
        if self.refuse:
            return {"ok": True, "results": [{"ok": False}] * len(command["commands"])}
        self.state, result = apply(self.state, {**command, "request_id": str(len(self.batches))})
        return result


class VirtualTime:
    """The time of an overseer: it passes when a test says so, in steps in which nodes send heartbeats and it looks."""

    STEP_S = 0.02

    def __init__(self) -> None:
        self.now = 1_000.0
        self.step: Callable[[], Awaitable[None]]

    async def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += self.STEP_S
            await self.step()

    async def until(self, condition: Callable[[], object], within_s: float = 20.0) -> None:
        end = self.now + within_s
        while not condition():
            assert self.now < end, f"not within {within_s} s"
            await self.passes(self.STEP_S)


def running(
    test: Callable[[FakeRaft, Overseer, VirtualTime], Awaitable[None]],
    *,
    beating: tuple[str, ...] = tuple(NODES),
    reporting: bool = True,
    min_in_sync: int = 2,
    **timing: Any,
) -> None:
    """``reporting``: the first heartbeat of each node says that its replicas work."""

    async def main() -> None:
        raft, time = FakeRaft(registered(founded(min_in_sync=min_in_sync))), VirtualTime()
        given = {"liveness": LivenessTiming(node_timeout_s=0.3), "settle_s": 3600.0, **timing}
        overseer = Overseer(raft, timing=OverseerTiming(**given), clock=lambda: time.now)  # type: ignore[arg-type]
        works = {id: ReplicaProgress(0, 0, 1, 1) for id in raft.state.shards} if reporting else None

        async def step() -> None:
            nonlocal works
            for node in beating:
                if raft.is_leader:
                    overseer.heartbeat(NodeHeartbeat(node, LIFE, works))
            works = None  # As before.
            await overseer.look()

        time.step = step
        await step()
        await test(raft, overseer, time)

    asyncio.run(main())


def test_an_election_asked_for_by_many_is_held_once() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        for _ in range(5):
            overseer.ask_election(1, 6)
        await time.until(lambda: raft.state.shards[1].epoch == 7)
        overseer.ask_election(1, 6)
        overseer.ask_election(77, 6)
        overseer.ask_election(1, 1 << 62)
        await time.passes(0.1)
        assert [[command["op"] for command in batch] for batch in raft.batches] == [["elect"]]
        assert overseer.elections == 1

    running(run)


def test_a_leader_that_hears_too_few_is_replaced_once_however_often_it_asks() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        former = raft.state.shards[1]
        deaf = str(former.leader)
        for node in NODES:
            overseer.heartbeat(NodeHeartbeat(node, LIFE, {1: ReplicaProgress(former.epoch, 9, 1, 1)}))
        for _ in range(60):
            overseer.ask_election(1, former.epoch, deaf)
            overseer.ask_election(77, former.epoch, deaf)
            await time.passes(0.01)
        after = raft.state.shards[1]
        assert after.epoch == former.epoch + 1
        assert after.leader in former.in_sync_nodes and after.leader != deaf
        assert after.in_sync == former.in_sync, "its lease may still hold: the new leader has to wait for it"

    running(run)


def test_a_leader_that_hears_too_few_stays_where_no_other_works() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        former = raft.state.shards[1]
        deaf = str(former.leader)
        overseer.heartbeat(NodeHeartbeat(deaf, LIFE, {1: ReplicaProgress(former.epoch, 9, 1, 1)}))
        for node in former.replicas:
            if node != deaf:
                overseer.heartbeat(NodeHeartbeat(node, LIFE, {}))
        for _ in range(60):
            overseer.ask_election(1, former.epoch, deaf)
            await time.passes(0.01)
        assert raft.state.shards[1] == former

    running(run, reporting=False)


def test_a_control_leader_that_a_majority_of_the_voters_cannot_call_resigns_and_condemns_nobody() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        await time.until(lambda: not raft.is_leader)
        assert raft.resigned == 1
        assert [shard.epoch for shard in raft.state.shards.values()] == [1] * len(raft.state.shards)

    running(run, beating=(), resign=ResignTiming(first_s=0.2))


def test_a_control_leader_that_none_can_call_holds_out_longer_after_each_resignation_whoever_resigned() -> None:
    """Where heartbeats are slow everywhere each leader would resign in its turn, and none would decide anything."""

    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        held_out = []
        for term in range(1, 10):
            if term % 3:  # Another voter leads, and resigns.
                raft.status.resigned_term = term
                await time.passes(0.02)
            else:
                raft.leads(term=term)
                began = time.now
                await time.until(lambda: not raft.is_leader, within_s=100.0)
                held_out.append(round(time.now - began))
        assert held_out == [4, 30, 30]

    running(run, beating=(), resign=ResignTiming(first_s=1.0, longest_s=30.0))


def test_a_control_leader_that_hears_a_majority_of_the_voters_leads_on() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        await time.passes(0.8)
        assert raft.resigned == 0

    running(run, beating=("n1",), resign=ResignTiming(first_s=0.1))


def test_who_does_not_lead_takes_no_reports() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        raft.is_leader, raft.leader = False, "n2"
        for report in (
            lambda: overseer.heartbeat(NodeHeartbeat("n1", LIFE)),
            lambda: overseer.ask_election(0, 5),
        ):
            with pytest.raises(NotControlLeader) as refused:
                report()
            assert refused.value.details["leader"] == "n2"

    running(run)


def test_a_heartbeat_is_answered_with_who_is_alive() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        await time.until(lambda: "n4" not in overseer.heartbeat(NodeHeartbeat("n1", LIFE)).living)
        assert overseer.heartbeat(NodeHeartbeat("n1", LIFE)).living == {"n0", "n1", "n2", "n3"}
        assert all(shard.leader != "n4" for shard in raft.state.shards.values())

    running(run, beating=("n0", "n1", "n2", "n3"))


def test_commands_that_change_nothing_are_not_repeated_at_every_tick() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        raft.refuse = True
        command = {"op": "drain_node", "node": "n0", "request_id": "d"}
        raft.state = apply(raft.state, command)[0]
        await time.until(lambda: raft.batches)
        await time.passes(0.2)
        assert len(raft.batches) == 1, "each would be an entry of the log"
        raft.refuse = False
        # Something changed: it is tried again at once.
        raft.state = apply(raft.state, {"op": "drain_node", "node": "n1", "request_id": "e"})[0]
        await time.until(lambda: any(shard.target for shard in raft.state.shards.values()))

    running(run, repeat_s=3600.0)


def test_leadership_is_not_returned_to_a_node_whose_replica_does_not_work() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        shard = raft.state.shards[0]
        preferred, other = shard.replicas[:2]
        command = {"op": "elect", "shard": 0, "candidate": other, "expected_epoch": 1, "request_id": "x"}
        overseer.heartbeat(NodeHeartbeat(preferred, LIFE, {}))
        raft.state = apply(raft.state, command)[0]
        await time.passes(0.2)
        assert raft.state.shards[0].leader == other
        overseer.heartbeat(
            NodeHeartbeat(preferred, LIFE, {id: ReplicaProgress(1, 0, 1, 1) for id in raft.state.shards})
        )
        await time.passes(0.2)
        assert raft.state.shards[0].leader == other, "the leader's epoch has not come there yet"
        overseer.heartbeat(
            NodeHeartbeat(preferred, LIFE, {id: ReplicaProgress(2, 9, 1, 1) for id in raft.state.shards})
        )
        await time.until(lambda: raft.state.shards[0].leader == preferred)

    running(run, settle_s=0.05)


def test_leadership_that_a_node_handed_over_is_not_returned_at_once() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        await time.passes(0.6)  # things have been quiet for long
        preferred, other = raft.state.shards[0].replicas[:2]
        command = {"op": "elect", "shard": 0, "candidate": other, "expected_epoch": 1, "request_id": "x"}
        raft.state, handed_over = apply(raft.state, command)[0], time.now
        overseer.heartbeat(NodeHeartbeat(preferred, LIFE, {0: ReplicaProgress(2, 9, 1, 1)}))
        await time.until(lambda: raft.state.shards[0].leader == preferred)
        assert time.now - handed_over >= 0.5, "never sooner than it is quiet"

    running(run, settle_s=0.5)


def listing(raft: FakeRaft, node: str) -> list[int]:
    return [id for id, shard in raft.state.shards.items() if node in shard.in_sync_nodes and shard.leader != node]


def test_who_is_proven_dead_leaves_the_sets_of_leaders_that_live_and_loses_its_own_shards_at_once() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        led = [id for id, shard in raft.state.shards.items() if shard.leader == "n2"]
        assert led and listing(raft, "n2")
        await time.until(lambda: overseer.heard == set(NODES))
        began = time.now
        overseer.died("n2", LIFE)
        await time.until(lambda: not listing(raft, "n2") and all(raft.state.shards[id].leader != "n2" for id in led))
        assert "n2" not in overseer.heartbeat(NodeHeartbeat("n2", LIFE)).living, "it was under way"
        assert len(raft.batches) == 1, f"all in one, after {time.now - began} s"
        for shard in raft.state.shards.values():
            assert len(shard.in_sync) >= raft.state.settings.min_in_sync

    running(run, liveness=LivenessTiming(node_timeout_s=60.0))


def test_a_proof_of_another_life_condemns_nobody() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        overseer.died("n2", "an earlier one")
        overseer.died("nobody", LIFE)
        await time.until(lambda: overseer.heartbeat(NodeHeartbeat("n2", LIFE)).alive)
        await time.passes(0.1)
        assert raft.batches == []
        # The proof may come before the news of the life that it is for.
        raft.state = registered(raft.state, "an earlier one")
        await time.until(lambda: "n2" not in overseer.alive)

    running(run, beating=tuple(NODES), liveness=LivenessTiming(node_timeout_s=60.0))


def test_a_proof_that_came_before_this_voter_led_counts_when_it_leads() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        raft.is_leader, raft.leader = False, "n1"
        overseer.died("n2", LIFE)
        await time.passes(0.05)
        assert raft.batches == []
        raft.leads(term=2)
        await time.until(lambda: not listing(raft, "n2"))

    running(run, liveness=LivenessTiming(node_timeout_s=60.0))


def test_a_life_that_the_cluster_does_not_know_gets_no_lease_and_keeps_nobody_alive() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        for _ in range(40):
            assert not overseer.heartbeat(NodeHeartbeat("n2", "unregistered")).alive
            await time.passes(0.02)
        assert "n2" not in overseer.alive

    running(run, beating=("n0", "n1", "n3", "n4"))


def test_who_is_not_well_is_dead_and_says_why() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        def sick() -> HeartbeatAnswer:
            return overseer.heartbeat(NodeHeartbeat("n2", LIFE, well=False, problems=("voter: the disk is full",)))

        await time.until(lambda: "n2" not in sick().living)
        assert not sick().alive
        assert overseer.heartbeat(NodeHeartbeat("n1", LIFE)).problems == {"n2": ("voter: the disk is full",)}
        assert overseer.heartbeat(NodeHeartbeat("n2", LIFE)).problems == {}

    running(run, beating=("n0", "n1", "n3", "n4"))


def test_who_lives_and_holds_no_lease_is_replaced() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        shard = next(shard for shard in raft.state.shards.values() if shard.leader == "n2")
        for node in NODES:
            overseer.heartbeat(NodeHeartbeat(node, LIFE, {shard.id: ReplicaProgress(shard.epoch, 9, 1, 1)}))

        def leaseless() -> bool:
            overseer.heartbeat(NodeHeartbeat("n2", LIFE, leased=False))
            return raft.state.shards[shard.id].leader != "n2"

        await time.until(leaseless)
        assert "n2" in raft.state.shards[shard.id].in_sync_nodes, "its lease may hold all the same"

    running(run, beating=("n0", "n1", "n3", "n4"), unleased_s=0.1)


def test_nobody_is_removed_from_a_set_whose_leader_may_hear_it() -> None:
    """Dead by heartbeat and alive on the data link: what one removes the other would add again, without end."""

    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        listed = listing(raft, "n2")
        assert listed
        await time.until(lambda: "n2" not in overseer.alive)
        await time.until(lambda: all(shard.leader != "n2" for shard in raft.state.shards.values()))
        await time.passes(0.1)
        assert listing(raft, "n2") == listed

    running(run, beating=("n0", "n1", "n3", "n4"))


def test_the_dead_stay_listed_where_too_few_would_be_left() -> None:
    ended = frozenset(NODES[3:])
    alive = frozenset(NODES[:3])
    state = founded()
    for command in departures(state, alive, ended):
        state, result = apply(state, {**command, "request_id": f"{command['shard']}-{command['node']}"})
        assert result["ok"], result
    for id, shard in state.shards.items():
        dead = [member for member in shard.in_sync if member.node not in alive]
        former = founded().shards[id]
        enough = sum(member.node in alive for member in former.in_sync) >= state.settings.min_in_sync
        assert bool(dead) == (
            any(node not in alive for node in former.in_sync_nodes) and not (enough and former.leader in alive)
        )


def test_all_are_told_how_far_each_clock_is_from_the_middle_one() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        for node, ms in (("n0", 0.0), ("n1", -3.0), ("n2", 41_000.0)):
            overseer.heartbeat(NodeHeartbeat(node, LIFE, clock_ms=ms))
        assert overseer.heartbeat(NodeHeartbeat("n3", LIFE)).clocks_ms == {"n0": 0.0, "n1": -3.0, "n2": 41_000.0}

    running(run, beating=())


# Two processes of one name.


def register(raft: FakeRaft, node: str, life: str) -> dict[str, Any]:
    """A process makes itself known to the leader of the control plane. Raises ``NodeRuns``."""
    url = f"http://{life}"
    command = raft.testify(register_command(node, url, url, life))
    raft.state, result = apply(raft.state, {**command, "request_id": f"{node} {life} {raft.state.version}"})
    return result


def test_a_second_process_of_a_name_is_refused_and_named_while_the_first_beats() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        before = raft.state
        for _ in range(20):
            with pytest.raises(NodeRuns, match="'n2' runs already, at http://") as refused:
                register(raft, "n2", "two")
            assert not overseer.heartbeat(NodeHeartbeat("n2", "two")).alive
            await time.passes(0.1)
        assert refused.value.details == {"node": "n2", "url": before.nodes["n2"].internal_url}
        assert refused.value.retriable
        assert overseer.heartbeat(NodeHeartbeat("n2", LIFE)).alive
        assert raft.state.nodes == before.nodes
        assert register(raft, "n2", LIFE)["ok"], "the first says again who it is"

    running(run)


def test_of_two_processes_of_a_new_name_the_first_is_taken() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        assert register(raft, "n9", "one")["ok"]
        with pytest.raises(NodeRuns):
            register(raft, "n9", "two")

    running(run)


def test_a_first_process_that_is_not_well_runs_all_the_same() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        for _ in range(100):
            overseer.heartbeat(NodeHeartbeat("n2", LIFE, well=False))
            await time.passes(0.02)
        assert "n2" not in overseer.alive
        with pytest.raises(NodeRuns):
            register(raft, "n2", "two")

    running(run, beating=("n0", "n1", "n3", "n4"))


def test_a_restarted_process_is_taken_at_once_when_the_death_of_the_first_is_proven() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        overseer.heartbeat(NodeHeartbeat("n2", LIFE))
        overseer.died("n2", LIFE)
        assert register(raft, "n2", "two")["ok"]
        assert overseer.heartbeat(NodeHeartbeat("n2", "two")).alive
        assert not overseer.heartbeat(NodeHeartbeat("n2", LIFE)).alive, "it was under way"

    running(run)


def test_a_restarted_process_is_taken_when_the_first_was_silent_for_as_long_as_any_lease_lasts() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        overseer.heartbeat(NodeHeartbeat("n2", LIFE))
        began = time.now

        def taken() -> bool:
            with suppress(NodeRuns):
                return bool(register(raft, "n2", "two")["ok"])
            return False

        await time.until(taken)
        assert 0.3 < time.now - began < 0.4

    running(run, beating=("n0", "n1", "n3", "n4"))


def test_a_new_control_leader_that_has_heard_nobody_yet_takes_no_second_process() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        raft.is_leader = False
        await time.passes(60.0)
        raft.leads(term=2)
        with pytest.raises(NodeRuns):
            register(raft, "n2", "two")
        await time.until(lambda: "n2" not in overseer.alive)
        assert register(raft, "n2", "two")["ok"]

    running(run, beating=("n0", "n1", "n3", "n4"))


def start_command(raft: FakeRaft) -> tuple[dict[str, Any], list[str]]:
    """A start of the first member of a shard's in-sync set, and the others."""
    shard = raft.state.shards[0]
    node, *others = shard.in_sync_nodes
    return {"op": "register_start", "shard": 0, "node": node, "incarnation": shard.listed(node)}, others


def test_a_new_control_leader_judges_no_disk_before_it_heard_who_knows_the_log() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        start, others = start_command(raft)
        raft.leads(term=2)
        for number, other in enumerate(others):
            with pytest.raises(NoControlLeader, match=f"has not heard yet what {', '.join(others[number:])} know"):
                raft.testify(start)
            assert raft.testify({**start, "incarnation": 99})["witnessed_lsn"] == 0, "it is no member"
            overseer.heartbeat(NodeHeartbeat(other, LIFE))
            with contextlib.suppress(NoControlLeader):
                raft.testify({**start, "life": LIFE, "node": other, "incarnation": raft.state.shards[0].listed(other)})
        assert raft.testify(start)["witnessed_lsn"] == 0

    running(run, beating=())


def test_where_all_start_at_once_each_says_what_it_knows_as_it_asks_to_be_registered() -> None:
    """Else the first of them would be judged by nobody: a log that lost its end would count as whole."""

    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        start, others = start_command(raft)
        shard = raft.state.shards[0]
        raft.leads(term=2)
        for other in others:
            overseer.heartbeat(NodeHeartbeat(other, LIFE))
        node = start["node"]
        overseer.heartbeat(NodeHeartbeat(node, LIFE))
        asks = {
            other: {**start, "life": LIFE, "node": other, "incarnation": shard.listed(other), "high_watermark": 70}
            for other in others
        }
        for number, other in enumerate(others):
            with pytest.raises(NoControlLeader, match=f"not heard yet what {', '.join(others[number:])} know"):
                raft.testify({**start, "life": LIFE})
            with contextlib.suppress(NoControlLeader):
                raft.testify({**asks[other], "life": "a process that is not agreed on", "high_watermark": 1_000})
            for wrong in ("70", 1 << 70, -1):
                with contextlib.suppress(NoControlLeader):
                    raft.testify({**asks[other], "high_watermark": wrong})
            with contextlib.suppress(NoControlLeader):
                raft.testify(asks[other])
        for ask in ({**start, "life": LIFE}, *asks.values()):
            agreed = raft.testify(ask)
            assert agreed["witnessed_lsn"] == 70 and "high_watermark" not in agreed

    running(run, beating=())


def test_who_says_nothing_of_a_shard_is_not_waited_for_for_ever() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        start, _ = start_command(raft)
        raft.leads(term=2)
        await time.passes(HEAR_STARTS_S - 0.1)
        with pytest.raises(NoControlLeader):
            raft.testify(start)
        await time.passes(0.2)
        assert raft.testify(start)["witnessed_lsn"] == 0

    running(run, reporting=False)


def test_the_dead_are_waited_for_while_they_may_be_about_to_start() -> None:
    """All may have lost power, and one of them a part of its log that only those know of who come later."""

    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        start, _ = start_command(raft)
        raft.leads(term=2)
        with pytest.raises(NoControlLeader):
            raft.testify(start)
        await time.passes(HEAR_STARTS_S - 0.1)
        others = [other for other in raft.state.shards[0].in_sync_nodes if other != start["node"]]
        assert others and not overseer._detector.alive & set(others)
        with pytest.raises(NoControlLeader, match=f"not heard yet what {', '.join(sorted(others))} know"):
            raft.testify(start)
        await time.passes(0.2)
        assert raft.testify(start)["witnessed_lsn"] == 0

    running(run, beating=("n1",))


def test_a_voter_that_does_not_lead_judges_no_process() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        raft.is_leader = False
        command = register_command("n2", "http://u", "http://i", "two")
        assert raft.testify(command) == command
        assert register(raft, "n2", "two")["code"] == "stale", "should it have become the leader meanwhile"

    running(run)
