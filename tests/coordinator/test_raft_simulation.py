"""Raft in virtual time: what must hold whatever fails, and how soon it goes on when nothing fails any more."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from lsmq_coordinator.raft_core import RaftCore
from lsmq_coordinator.raft_following import Diverged
from lsmq_coordinator.raft_log import RaftLog
from lsmq_coordinator.raft_messages import RaftMessage
from lsmq_coordinator.raft_outbox import Outbox
from support.raft_simulation import Group


def storm(seed: int, *, seconds: float = 20.0, faults: Sequence[int] = range(9), rate: float = 4.0) -> Group:
    """Crashes, pauses, partitions, lost and repeated messages, and disks that become slow, at random."""
    random = Random(seed ^ 0x5EED)
    group = Group(seed, voters=random.choice([3, 3, 5]), sync_s=random.choice([0.0005, 0.002, 0.05, 0.2]))
    group.drop, group.repeat = random.choice([0.0, 0.02, 0.2]), random.choice([0.0, 0.1])
    names = list(group.voters)
    end = group.now + seconds
    while group.now < end:
        group.run(random.expovariate(rate))
        name = random.choice(names)
        match random.choice(faults):
            case fault if fault < 7:
                group.befall(random, name, fault)
            case 7:
                group.voters[name].disk.sync_s = random.choice([0.0005, 0.01, 0.1, 0.4])
            case _:
                leader = group.leader()
                core = None if leader is None else group.voters[leader].core
                if core is not None and random.random() < 0.3:
                    core.resign(group.now)
        group.work(random)
        group.check_logs()
    return group


def calm(group: Group) -> None:
    group.heal()
    group.drop = group.repeat = 0.0
    for name, voter in group.voters.items():
        voter.paused_until = 0.0
        if voter.core is None:
            group.start(name)


def recovers(group: Group) -> None:
    """With nothing wrong any more, a command is committed everywhere, soon."""
    calm(group)
    slowest = max(voter.disk.sync_s for voter in group.voters.values())
    assert group.run(6 + 12 * slowest, lambda: group.leader() is not None), f"seed {group.seed}: no leader"
    assert group.propose(b"after the storm") is not None
    count = len(group.committed)
    there = group.run(6 + 12 * slowest, lambda: group.agreed() and len(group.committed) > count)
    assert there, f"seed {group.seed}: not committed"
    group.check_logs()
    assert len({tuple(voter.commands) for voter in group.voters.values()}) == 1


@pytest.mark.part(2)
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_storm_breaks_an_invariant_and_after_it_commands_are_committed_within_seconds(first: int) -> None:
    for seed in range(first, first + 10):
        recovers(storm(seed))


def gap_after_kill(group: Group) -> float:
    """Virtual seconds from the death of the leader to the next one that is ready; the dead one then comes back."""
    leader = group.leader()
    assert leader is not None
    began = group.now
    group.crash(leader, heard=group.random.random() < 0.5)
    assert group.run(30.0, lambda: group.leader() is not None), f"seed {group.seed}: no leader in 30 s"
    gap = group.now - began
    group.start(leader)
    group.run(1.0)
    return gap


@pytest.mark.part(2)
@pytest.mark.parametrize("sync_s", [0.002, 0.1, 0.2, 0.4])
def test_however_slow_all_disks_are_a_leader_that_dies_is_replaced_within_seconds(sync_s: float) -> None:
    gaps = []
    for seed in range(20):
        group = Group(seed, sync_s=sync_s)
        assert group.run(10.0, lambda leader=group.leader: leader() is not None)
        gaps += [gap_after_kill(group) for _ in range(5)]
    gaps.sort()
    print(f"{sync_s} s a sync: median {gaps[50]:.2f}, longest {gaps[-1]:.2f}")
    assert gaps[-1] < 5.0


@pytest.mark.parametrize("work_s", [0.01, 0.05])
@pytest.mark.part(2)
def test_voters_whose_threads_come_late_keep_their_leader(work_s: float) -> None:
    """Others of the process hold the interpreter: each thing a voter does takes its time."""
    for seed in range(5):
        group = Group(seed)
        group.work_s = work_s
        assert group.run(10.0, lambda leader=group.leader: leader() is not None)
        terms = len(group.leaders)
        group.run(60.0)
        assert len(group.leaders) == terms and group.leader() is not None, f"seed {seed}"
        assert gap_after_kill(group) < 5.0


@pytest.mark.part(2)
def test_a_voter_that_comes_and_goes_costs_no_election() -> None:
    for seed in range(10):
        group = Group(seed)
        assert group.run(10.0, lambda leader=group.leader: leader() is not None)
        group.run(1.0)
        leader, terms = group.leader(), dict(group.leaders)
        other = next(name for name in group.voters if name != leader)
        for _ in range(20):
            group.isolate(other)
            group.run(1.5)
            group.heal()
            group.run(0.5)
        assert group.leaders == terms and group.leader() == leader, f"seed {seed}"


def test_voters_that_are_cut_off_for_long_raise_no_terms_and_disturb_nobody_when_they_come_back() -> None:
    for cut_off in (1, 2):
        group = Group(cut_off)
        assert group.run(10.0, lambda leader=group.leader: leader() is not None)
        group.run(1.0)
        leader, terms = group.leader(), dict(group.leaders)
        for name in [name for name in group.voters if name != leader][:cut_off]:
            group.isolate(name)
        group.run(300.0)
        assert {voter.core.term for voter in group.voters.values() if voter.core is not None} == {max(terms)}
        group.heal()
        assert group.run(10.0, lambda leader=group.leader: leader() is not None)
        group.run(10.0)
        assert len(group.leaders) - len(terms) <= (cut_off > 1), "one election, where nobody led meanwhile"
        if cut_off == 1:
            assert group.leaders == terms and group.leader() == leader


def test_one_that_hears_the_leader_no_more_replaces_it_only_with_another_who_does_not() -> None:
    """The link between leader and one follower is cut; the other one hears both."""
    for seed in range(10):
        group = Group(seed)
        assert group.run(10.0, lambda leader=group.leader: leader() is not None)
        leader = group.leader()
        assert leader is not None
        terms = dict(group.leaders)
        other = next(name for name in group.voters if name != leader)
        group.cut.add(frozenset((leader, other)))
        group.run(30.0)
        assert group.leaders == terms and group.leader() == leader, f"seed {seed}"


def test_a_voter_that_dies_at_its_start_again_and_again_is_not_taken_for_one_whose_disk_went_back() -> None:
    group = Group(1, sync_s=0.2)
    group.run(5.0)
    for _ in range(20):
        group.crash("v0")
        group.run(0.05)
        group.start("v0")
        group.run(group.random.uniform(0.0, 0.3))
        core = group.voters["v0"].core
        assert core is not None and core.kept.state.whole


def test_two_runs_of_a_seed_are_the_same() -> None:
    one, two = storm(7), storm(7)
    assert one.committed == two.committed and one.leaders == two.leaders
    assert [voter.disk.content for voter in one.voters.values()] == [
        voter.disk.content for voter in two.voters.values()
    ]


# The simulation finds what it is for.


#: Crashes and slow disks, mostly.
CRASHES = (0, 0, 2, 2, 2, 7, 8)


def _eager_vote(core: RaftCore, now: float) -> None:
    core._granted.add(core.name)
    if len(core._granted) >= 2:
        (core._lead if core._asked_term is None else core._stand)(now)


def _eager_send(outbox: Outbox, receiver: str, message: RaftMessage, after: int = 0) -> None:
    outbox._ready.append((receiver, message))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        pytest.param(RaftCore, "_count", _eager_vote, id="the own vote counts before it is durable"),
        pytest.param(Outbox, "send", _eager_send, id="votes leave before they are durable"),
        pytest.param(RaftCore, "_may_lead", lambda core, message: True, id="votes for a shorter log"),
        pytest.param(RaftLog, "cut", lambda log, first: None, id="what conflicts stays"),
    ],
)
def test_a_deliberate_bug_is_found(monkeypatch: pytest.MonkeyPatch, where: type, name: str, bug: Any) -> None:
    monkeypatch.setattr(where, name, bug)
    with pytest.raises((AssertionError, Diverged)):
        for seed in range(200):
            recovers(storm(seed))
            recovers(storm(seed, faults=CRASHES, rate=10.0))
