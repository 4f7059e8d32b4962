"""Leaders whose disks are full, as the overseer sees them: who is replaced, by whom, and how often."""

from __future__ import annotations

import pytest

from lsmq_coordinator.election import Flaw, ReplicaProgress
from lsmq_coordinator.full_disks import FullTiming
from lsmq_coordinator.heartbeats import NodeHeartbeat
from lsmq_coordinator.overseer import Overseer

from .test_overseer import LIFE, FakeRaft, VirtualTime, running

FULL = FullTiming(sure_s=0.2, room_s=0.5, calm_s=6.0)


def reports_full(raft: FakeRaft, overseer: Overseer, *full: str) -> None:
    """All hold all of shard 0, and the disks of some are full."""
    epoch = raft.state.shards[0].epoch
    for node in raft.state.shards[0].replicas:
        flawed = Flaw.FULL if node in full else 0
        overseer.heartbeat(NodeHeartbeat(node, LIFE, {0: ReplicaProgress(epoch, 9, 1, 1, flawed=flawed)}))


def test_a_leader_whose_disk_stays_full_is_replaced_by_one_with_room_and_leads_again_long_after_it_has_room() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        leader, second, third = raft.state.shards[0].replicas
        reports_full(raft, overseer, leader, second)
        began = time.now
        await time.until(lambda: raft.state.shards[0].leader == third)
        assert time.now - began >= FULL.sure_s
        assert raft.state.shards[0].epoch == 2 and len(raft.batches) == 1
        await time.passes(1.0)
        reports_full(raft, overseer)
        emptied = time.now
        await time.until(lambda: raft.state.shards[0].leader == leader)
        assert time.now - emptied >= FULL.calm_s

    # Of a replication factor of 3 two must have room; here one is enough.
    running(run, settle_s=0.05, full=FULL, min_in_sync=1)


@pytest.mark.parametrize(("full", "min_in_sync"), [((0, 1, 2), 1), ((0, 1), 2)])
def test_a_leader_whose_disk_is_full_stays_where_too_few_others_have_room(
    full: tuple[int, ...], min_in_sync: int
) -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        former = raft.state.shards[0]
        reports_full(raft, overseer, *(former.replicas[place] for place in full))
        await time.passes(20.0)
        assert raft.state.shards[0] == former

    running(run, full=FULL, min_in_sync=min_in_sync)


def test_a_disk_that_is_full_for_a_moment_costs_no_election_and_one_full_by_turns_does() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        former = raft.state.shards[0]
        for _ in range(3):
            reports_full(raft, overseer, str(former.leader))
            await time.passes(0.1)
            reports_full(raft, overseer)
            await time.passes(1.0)
        assert raft.state.shards[0] == former
        for _ in range(3):
            reports_full(raft, overseer, str(former.leader))
            await time.passes(0.1)
            reports_full(raft, overseer)
            await time.passes(0.1)
        assert raft.state.shards[0].leader != former.leader

    running(run, full=FULL)


def test_leaders_do_not_take_turns_where_disks_fill_one_after_the_other() -> None:
    async def run(raft: FakeRaft, overseer: Overseer, time: VirtualTime) -> None:
        for _ in range(100):  # Whoever leads is full, and has room when it does not.
            reports_full(raft, overseer, str(raft.state.shards[0].leader))
            await time.passes(0.1)
        assert 3 <= raft.state.shards[0].epoch <= 2 + 3 * 10 / FULL.calm_s

    running(run, settle_s=0.05, full=FULL)
