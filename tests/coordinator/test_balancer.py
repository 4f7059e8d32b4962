"""A cluster that moves its replicas by itself: what the overseer begins, when, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lsmq_coordinator.balance import Situation
from lsmq_coordinator.balancer import Balancer, BalanceTiming, given_up
from lsmq_coordinator.commands import apply
from lsmq_coordinator.election import Flaw, ReplicaProgress
from lsmq_coordinator.founding import register_command
from lsmq_coordinator.heartbeats import NodeHeartbeat
from lsmq_coordinator.liveness import FailureDetector, LivenessTiming
from lsmq_coordinator.overseer import Overseer, OverseerTiming
from lsmq_coordinator.state import ClusterState

from .test_overseer import LIFE, FakeRaft, VirtualTime, registered
from .test_state import founded, with_starts

REBUILD_S = 30.0


class House:
    """An overseer over nodes that do as they are told: what is added is filled at once, while ``filling``."""

    def __init__(self, nodes: int, shards: int = 8, **balance: Any) -> None:
        self.raft, self.time = (
            FakeRaft(registered(founded(nodes=[f"n{i}" for i in range(nodes)], shards=shards))),
            VirtualTime(),
        )
        timing = OverseerTiming(
            liveness=LivenessTiming(node_timeout_s=0.3),
            settle_s=0.5,
            balance=BalanceTiming(**{"rebuild_after_s": REBUILD_S, "look_s": 1.0, **balance}),
        )
        self.overseer = Overseer(self.raft, timing=timing, clock=lambda: self.time.now)  # type: ignore[arg-type]
        self.alive = set(self.raft.state.nodes)
        self.full: set[str] = set()
        self.filling = True
        self.most_at_once = 0
        self.fewest_in_sync = 3
        self.time.step = self._step

    async def _step(self) -> None:
        self.raft.state = state = with_starts(self.raft.state)
        for node in sorted(self.alive):
            flawed = Flaw.FULL if node in self.full else 0
            works = {
                shard.id: ReplicaProgress(shard.epoch, 9, 1, 1, flawed=flawed) for shard in state.replicas_on(node)
            }
            self.overseer.heartbeat(NodeHeartbeat(node, LIFE, works))
        await self.overseer.look()
        shards = list(self.raft.state.shards.values())
        self.most_at_once = max(self.most_at_once, sum(bool(shard.adding) for shard in shards))
        self.fewest_in_sync = min([self.fewest_in_sync, *(len(shard.in_sync) for shard in shards)])
        for shard in shards:
            if self.filling and shard.adding and shard.leader in self.alive and set(shard.adding) <= self.alive:
                fields = {"shard": shard.id, "epoch": shard.epoch, "expected_version": shard.version}
                filled = [[node, 1] for node in shard.adding]
                self.do(op="set_in_sync", **fields, in_sync=[*map(list, shard.in_sync), *filled])

    def do(self, **command: Any) -> None:
        self.raft.state, result = apply(self.raft.state, {**command, "request_id": str(self.time.now) + str(command)})
        self.raft.state.check()
        assert result["ok"], result

    def joins(self, node: str) -> None:
        self.do(**register_command(node, f"http://{node}", f"http://{node}:1", LIFE))
        self.alive.add(node)

    @property
    def state(self) -> ClusterState:
        return self.raft.state

    def held(self) -> Counter[str]:
        return Counter(node for shard in self.state.shards.values() for node in shard.replicas)

    def led(self) -> Counter[str | None]:
        return Counter(shard.leader for shard in self.state.shards.values())

    def is_quiet(self) -> bool:
        return not any(shard.target or shard.adding for shard in self.state.shards.values())


def house(nodes: int, test: Callable[[House], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        made = House(nodes, **options)
        await made.time.passes(2)
        await test(made)

    asyncio.run(main())


def test_a_node_that_joins_gets_its_share_without_being_told_and_no_more_than_may_move_at_once() -> None:
    async def test(house: House) -> None:
        house.joins("n9")
        await house.time.until(lambda: house.held()["n9"] == 6 and house.is_quiet(), within_s=120)
        await house.time.until(lambda: house.led()["n9"] == 2, within_s=120)
        assert set(house.held().values()) == {6}
        assert house.most_at_once <= 2
        assert house.fewest_in_sync == 3
        version = house.state.version
        await house.time.passes(60)
        assert house.state.version == version, "where it is even nothing moves"

    house(3, test, moves_at_once=2)


def test_a_node_that_is_lost_for_good_has_its_replicas_made_again_elsewhere() -> None:
    async def test(house: House) -> None:
        house.alive.discard("n1")
        await house.time.passes(REBUILD_S - 2)
        assert house.held()["n1"] > 0
        assert house.is_quiet()
        await house.time.until(lambda: not house.held()["n1"] and house.is_quiet(), within_s=120)
        assert all(len(shard.in_sync) == 3 for shard in house.state.shards.values())
        assert max(house.held().values()) - min(house.held().values()) <= 1

    house(5, test)


@pytest.mark.part(2)
def test_a_node_that_comes_back_in_time_keeps_all_that_nobody_has_begun_to_make_again() -> None:
    async def test(house: House) -> None:
        house.filling = False
        before = house.held()["n1"]
        house.alive.discard("n1")
        await house.time.until(lambda: not house.is_quiet(), within_s=60)
        await house.time.passes(5)
        begun = sum(bool(shard.target) for shard in house.state.shards.values())
        assert begun <= 2 < before
        house.alive.add("n1")
        house.filling = True
        await house.time.until(house.is_quiet, within_s=120)
        await house.time.passes(30)
        assert max(house.held().values()) - min(house.held().values()) <= 1
        moved = [move for batch in house.raft.batches for move in batch if move["op"] == "set_target"]
        assert len(moved) <= 2 * begun, "what was begun, and as much back for evenness"

    house(5, test, shards=10, moves_at_once=2)


def test_while_moves_are_paused_nothing_begins_and_what_was_begun_is_finished() -> None:
    async def test(house: House) -> None:
        house.filling = False
        house.joins("n9")
        await house.time.until(lambda: any(shard.adding for shard in house.state.shards.values()), within_s=60)
        house.do(op="pause_moves")
        begun = sum(bool(shard.target) for shard in house.state.shards.values())
        house.filling = True
        await house.time.passes(60)
        assert house.held()["n9"] == 1 <= begun
        assert not any(shard.adding for shard in house.state.shards.values())
        assert ClusterState.decode(house.state.encode()).moves_paused
        house.do(op="resume_moves")
        await house.time.until(lambda: house.held()["n9"] == 6 and house.is_quiet(), within_s=120)

    house(3, test)


def test_a_paused_cluster_does_not_drain_either_before_it_is_resumed() -> None:
    async def test(house: House) -> None:
        house.do(op="pause_moves")
        house.do(op="drain_node", node="n4")
        await house.time.passes(20)
        assert house.held()["n4"] > 0
        house.do(op="resume_moves")
        await house.time.until(lambda: not house.held()["n4"], within_s=120)

    house(5, test)


def test_what_people_placed_stays_and_others_make_up_for_it_until_it_is_unpinned() -> None:
    async def test(house: House) -> None:
        shard = house.state.shards[0]
        other = next(node for node in shard.replicas if node != shard.leader)
        fields = {"shard": 0, "candidate": other, "expected_epoch": shard.epoch, "pinned": True}
        house.do(op="transfer_leader", **fields)
        assert max(house.led().values()) == 2
        await house.time.until(lambda: set(house.led().values()) == {1}, within_s=60)
        assert house.state.shards[0].leader == other
        assert ClusterState.decode(house.state.encode()).shards[0].pinned
        house.do(op="unpin", shard=0, expected_version=house.state.shards[0].version)
        assert not house.state.shards[0].pinned

    house(3, test, shards=3)


def test_nothing_is_evened_where_that_is_turned_off_or_leaders_were_chosen_by_hand() -> None:
    async def test(house: House) -> None:
        house.joins("n9")
        await house.time.passes(60)
        assert house.held()["n9"] == 0

    house(3, test, even=False)

    async def leaders(house: House) -> None:
        house.joins("n9")
        await house.time.until(lambda: house.held()["n9"] == 6 and house.is_quiet(), within_s=120)

    house(3, leaders, even_leaders=False)


def test_a_node_whose_disk_is_full_is_given_nothing() -> None:
    async def test(house: House) -> None:
        house.full.add("n0")
        await house.time.passes(3)
        house.alive.discard("n1")
        held = house.held()["n0"]
        await house.time.until(lambda: not house.held()["n1"] and house.is_quiet(), within_s=120)
        assert house.held()["n0"] <= held

    house(5, test)


def test_the_plan_says_what_is_to_be_moved_why_and_who_is_away() -> None:
    async def test(house: House) -> None:
        house.do(op="pause_moves")
        house.joins("n9")
        house.alive.discard("n1")
        await house.time.passes(10)
        waiting = house.overseer.plan()
        assert waiting["paused"] and waiting["moves"] == [], "n1 may come back"
        (away,) = waiting["away"]
        assert away["node"] == "n1"
        assert away["away_s"] + away["rebuilt_in_s"] == pytest.approx(REBUILD_S, abs=0.2)
        await house.time.passes(REBUILD_S)
        planned = house.overseer.plan()
        assert len([move for move in planned["moves"] if move["why"] == "rebuild"]) == house.held()["n1"]
        assert house.is_quiet()

    house(4, test)


def test_where_half_of_the_cluster_is_away_nothing_is_made_again() -> None:
    state = founded(nodes=["n0", "n1", "n2", "n3"])
    assert given_up(state, {"n1"}) == {"n1"}
    assert given_up(state, {"n1", "n2"}) == frozenset()


def test_load_is_what_was_written_on_average_and_sizes_are_the_leaders_word() -> None:
    balancer = Balancer(BalanceTiming(load_s=100.0))
    state = founded(nodes=["n0", "n1", "n2"], shards=1)
    detector = FailureDetector()
    detector.begin(state.nodes, 0.0)
    for at in range(0, 201, 10):
        balancer.hear("n0", {0: ReplicaProgress(1, at * 1_000, 1, 1)}, {0: 5_000} if at == 0 else None, float(at))
        balancer.hear("n1", {}, {0: 7_000}, float(at))
    situation = balancer.situation(state, detector, frozenset(), 200.0)
    assert isinstance(situation, Situation)
    assert (situation.loads, situation.sizes) == ({0: 1_000.0}, {0: 5_000})
