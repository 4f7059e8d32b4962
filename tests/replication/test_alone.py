"""Rules of a leader that is its shard's only replica: when it answers, whom it takes in, what leases tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lsmq_coordinator.lives import InSyncMember, LifeId
from lsmq_node.replication import EpochHistory, Recovered, ReplicaAction, ReplicaCore, ReplicaSession
from lsmq_node.replication import actions as act
from lsmq_node.replication import events as ev
from lsmq_node.replication.messages import Hello, Progress

from .test_rules import VIEW, B, persist, start


def leading(*, lease: bool = True) -> ReplicaCore:
    """The only replica of its shard, serving epoch 1, if it has a lease."""
    core = ReplicaCore("a", Recovered(None, 1, 0, 0, 0, EpochHistory()))
    persist(core, core.start(0.0))
    life = LifeId(1, 1)
    view = replace(
        VIEW,
        version=1,
        in_sync=frozenset({InSyncMember("a", 1)}),
        replicas=frozenset("a"),
        min_in_sync=1,
        leading=life,
        starts=frozenset({start("a", life)}),
    )
    assert persist(core, core.handle(ev.ControlViewed(view), 0.0)) == [act.BeginEpoch(1, life)]
    core.handle(ev.EpochBegun(1, 0, 5), 0.0)
    assert core.handle(ev.LogDurable(5), 0.0) == [act.AdvanceHighWatermark(5)]
    if lease:
        assert core.handle(ev.LeaseGranted(0.1, view), 0.0) == [act.Serve(1)]
    return core


def test_a_leader_is_over_when_another_start_of_its_replica_is_registered() -> None:
    core = leading()
    view = core.view
    assert view is not None
    taken = replace(view, version=9, starts=frozenset({start("a", LifeId(7, 1))}))
    said = core.handle(ev.ControlViewed(taken), 0.05)
    assert [type(action) for action in said] == [act.RegisterStart, act.StopServing]
    assert not core.serving


def test_a_leader_that_was_paused_does_not_begin_to_serve_on_what_it_hears_late() -> None:
    core = leading(lease=False)
    assert not core.serving
    assert core.handle(ev.Tick(), 5.0) is not None
    assert not core.serving


def test_a_lease_that_knows_of_a_newer_epoch_does_not_extend_an_old_leaders() -> None:
    core = leading()
    view = core.view
    assert view is not None
    core.handle(ev.LeaseGranted(1.0, view), 0.5)
    assert core.may_answer(0.9)
    core.handle(ev.LeaseGranted(9.0, replace(view, epoch=2, version=2, leader="b", leading=B)), 0.6)
    assert not core.may_answer(0.9)
    assert not core.may_answer(1.0)


def test_a_member_that_comes_and_goes_joins_ever_more_rarely() -> None:
    """It is heard for three seconds of six, for half an hour, and what it holds is always all there is."""
    core, now, asked = leading(), 0.0, 0
    assert core.view is not None
    starts = core.view.starts | {start("b", LifeId(2, 1)), start("c", LifeId(3, 1))}
    everybody, newcomers = frozenset("abc"), frozenset("bc")
    view = replace(core.view, version=2, replicas=everybody, adding=newcomers, min_in_sync=1, starts=starts)
    core.handle(ev.ControlViewed(view), now)
    end_lsn = core.log.end_lsn
    while now < 1800:
        now += 0.25
        actions: list[ReplicaAction] = []
        for node, incarnation in (("b", 2), ("c", 3)):
            session = ReplicaSession(1, round(now * 4))
            if node == "b" or now % 6 < 3:
                hello = Hello(session, 1, incarnation, core.log.history, end_lsn, borrows=False)
                actions += core.handle(ev.MessageReceived(node, hello), now)
                actions += core.handle(ev.MessageReceived(node, Progress(session, 1, incarnation, end_lsn)), now)
        for action in actions + core.handle(ev.Tick(), now):
            if isinstance(action, act.ProposeInSync):
                asked += 1
                view = replace(view, version=view.version + 1, in_sync=action.members, adding=frozenset())
                core.handle(ev.ControlViewed(view), now)
    assert 3 <= asked <= 20, "1 and 2 s are less than it stays, 4 s are more"
    assert InSyncMember("b", 2) in view.in_sync


def test_without_a_lease_a_leader_answers_nothing() -> None:
    core = leading()
    assert core.serving
    assert core.may_answer(0.0)
    assert not core.may_answer(0.1)


@pytest.mark.parametrize("forgotten", [{"epoch": 0, "version": 0}, {"leader": "b"}, {"min_in_sync": 2}])
def test_a_control_plane_that_went_back_is_asked_for_an_election(forgotten: dict[str, Any]) -> None:
    """Whether it knows less than it did, or something else under the same number."""
    core = leading()
    assert core.view is not None
    past = replace(core.view, **forgotten)
    core.handle(ev.LeaseGranted(1.0, past), 1.0)
    assert core.handle(ev.LeaseGranted(1.5, past), 1.5) == []
    assert core.handle(ev.LeaseGranted(2.5, past), 2.5) == [act.AskElection(1)]
