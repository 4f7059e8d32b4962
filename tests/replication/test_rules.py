"""Single rules of the protocol that a simulated schedule meets only by luck."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lsmq.errors import InvalidRequest
from lsmq_coordinator.lives import InSyncMember, LifeId, RegisteredStart
from lsmq_node.replication import (
    ControlView,
    DiskStart,
    EpochHistory,
    EpochStart,
    Recovered,
    ReplicaAction,
    ReplicaCore,
    ReplicaRecord,
    ReplicaRole,
    ReplicaSession,
    Timings,
)
from lsmq_node.replication import actions as act
from lsmq_node.replication import events as ev
from lsmq_node.replication.insync import Peer, desired_in_sync, hears_enough
from lsmq_node.replication.messages import (
    Hello,
    Progress,
    Promise,
    PromiseRefusal,
    PromiseRequest,
    TakeSnapshot,
    Welcome,
)
from lsmq_node.replication.shipping import OutgoingStream, answer_hello
from lsmq_node.replication.state import LogState, ReplicaState

A, B, C = LifeId(1, 2), LifeId(2, 2), LifeId(3, 2)


def start(node: str, life: LifeId, *, confirmed: bool = True) -> RegisteredStart:
    return RegisteredStart(node, life.incarnation, life.start, token=0, confirmed=confirmed)


VIEW = ControlView(
    epoch=1,
    version=3,
    leader="a",
    in_sync=frozenset({InSyncMember("a", 1), InSyncMember("b", 2), InSyncMember("c", 3)}),
    replicas=frozenset("abc"),
    min_in_sync=2,
    leading=A,
    starts=frozenset({start("a", A), start("b", B), start("c", C)}),
)
#: What the record of b held when it was started for the second time.
KEPT = ReplicaRecord(incarnation=2, starts=(DiskStart(1, 7),), registered=1, epoch=1, leader="a", leading=A)
HISTORY = EpochHistory.of([EpochStart(1, 0, A)])


def peer(incarnation: int, durable_lsn: int, heard_at: float = 10.0) -> Peer:
    return Peer(heard_at, heard_at, heard_at, 0, incarnation=incarnation, durable_lsn=durable_lsn)


def opened(
    node: str = "b", *, record: ReplicaRecord | None = None, end_lsn: int = 100, applied_lsn: int = 40
) -> ReplicaCore:
    """A replica with a log of epoch 1, its record persisted."""
    core = ReplicaCore(
        node, Recovered(record or replace(KEPT, floor_lsn=end_lsn), 99, 0, applied_lsn, end_lsn, HISTORY)
    )
    persist(core, core.start(0.0))
    return core


def acting(**options: Any) -> ReplicaCore:
    """A replica whose start is registered. It knows no leader yet."""
    core = opened(**options)
    core.handle(ev.ControlViewed(replace(VIEW, epoch=0, version=0, leader=None, leading=None)), 0.0)
    assert core.registered
    return core


def persist(core: ReplicaCore, actions: list[ReplicaAction]) -> list[ReplicaAction]:
    """Report as persisted what was asked for."""
    following: list[ReplicaAction] = []
    for action in actions:
        if isinstance(action, act.Persist):
            following += core.handle(ev.Persisted(action.record), 0.0)
    return following


# Numbers.


@pytest.mark.parametrize(
    ("replicas", "min_in_sync", "needed"), [(1, 1, 1), (2, 1, 2), (2, 2, 2), (3, 1, 3), (3, 2, 2), (3, 3, 2), (5, 3, 3)]
)
def test_promises_meet_every_acknowledging_set_and_each_other(replicas: int, min_in_sync: int, needed: int) -> None:
    view = replace(VIEW, replicas=frozenset("abcde"[:replicas]), in_sync=frozenset(), min_in_sync=min_in_sync)
    assert view.promises_needed == needed
    assert needed + min_in_sync > replicas
    assert 2 * needed > replicas


def test_a_replica_that_is_being_added_is_no_voter_until_it_is_in_sync() -> None:
    view = replace(VIEW, replicas=frozenset("abcd"), adding=frozenset("d"))
    assert view.voters == frozenset("abc")
    assert replace(view, in_sync=view.in_sync | {InSyncMember("d", 4)}).voters == frozenset("abcd")


@pytest.mark.parametrize(
    "wrong", [{"heartbeat_s": 0.0}, {"replica_timeout_s": 0.15}, {"replica_lag_s": 0.4}, {"deaf_s": 0.9}]
)
def test_timings_that_do_not_fit_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        Timings(**wrong).validate()  # type: ignore[arg-type]


# The in-sync set.


def test_a_silent_member_is_proposed_out() -> None:
    peers = {"b": peer(2, 100), "c": peer(3, 100, heard_at=9.0)}
    assert desired_in_sync(VIEW, InSyncMember("a", 1), peers, 100, 10.0, Timings()) == VIEW.in_sync - {
        InSyncMember("c", 3)
    }


def test_the_set_is_not_shrunk_below_min_in_sync() -> None:
    peers = {"b": peer(2, 100, heard_at=9.0), "c": peer(3, 100, heard_at=9.0)}
    assert desired_in_sync(VIEW, InSyncMember("a", 1), peers, 100, 10.0, Timings()) == VIEW.in_sync


def test_a_member_that_no_longer_exists_is_dropped_even_then() -> None:
    peers = {"b": peer(2, 100, heard_at=9.0), "c": peer(33, 0)}
    wanted = frozenset({InSyncMember("a", 1), InSyncMember("b", 2)})
    assert desired_in_sync(VIEW, InSyncMember("a", 1), peers, 100, 10.0, Timings()) == wanted


def test_a_leader_that_slept_gives_its_followers_time() -> None:
    follower = peer(2, 100, heard_at=5.0)
    assert follower.is_late(8.0, Timings())
    follower.slept(3.0)
    assert not follower.is_late(8.0, Timings())


# Ears.


def test_a_leader_hears_enough_while_it_heard_min_in_sync_members_lately() -> None:
    own, timings = InSyncMember("a", 1), Timings()
    silent, heard = peer(2, 100, heard_at=7.9), peer(3, 100, heard_at=8.1)
    assert hears_enough(VIEW, own, {"b": silent, "c": heard}, 10.0, timings)
    assert not hears_enough(VIEW, own, {"b": silent, "c": silent}, 10.0, timings)
    assert not hears_enough(replace(VIEW, min_in_sync=3), own, {"b": silent, "c": heard}, 10.0, timings)
    without_c = replace(VIEW, in_sync=VIEW.in_sync - {InSyncMember("c", 3)})
    assert not hears_enough(without_c, own, {"b": silent, "c": heard}, 10.0, timings)
    assert hears_enough(replace(VIEW, in_sync=frozenset({own})), own, {"b": silent, "c": silent}, 10.0, timings)


def ticked(core: ReplicaCore, first: int, last: int) -> list[tuple[float, act.AskElection]]:
    """The elections asked for in ticks of 50 ms, from the first to the last, each with the time."""
    asked = []
    for number in range(first, last):
        for action in core.handle(ev.Tick(), number * 0.05):
            if isinstance(action, act.AskElection):
                asked.append((number * 0.05, action))
    return asked


def deaf_leader() -> ReplicaCore:
    """It led epoch 2 of three replicas when it heard nobody any more, at 0 s."""
    core = opened(record=KEPT)
    view = replace(VIEW, epoch=2, version=4, leader="b", leading=B)
    persist(core, core.handle(ev.ControlViewed(view), 0.0))
    core.handle(ev.MessageReceived("c", Promise(2, C, HISTORY.position(100))), 0.0)
    core.handle(ev.EpochBegun(2, 100, 105), 0.0)
    assert core.role is ReplicaRole.LEADING
    return core


def test_a_leader_that_hears_nobody_asks_for_another_after_a_while_and_now_and_then() -> None:
    asked = ticked(deaf_leader(), 1, 70)
    assert {action for _, action in asked} == {act.AskElection(2, elsewhere=True)}
    assert [round(at, 2) for at, _ in asked] == [2.05, 2.55, 3.05]


def test_a_leader_that_hears_again_or_slept_itself_asks_for_nobody() -> None:
    core = deaf_leader()
    assert ticked(core, 1, 30) == []
    assert ticked(core, 80, 90) == [], "from 1.5 s to 4 s it stood still"
    core = deaf_leader()
    assert ticked(core, 1, 40) == []
    core.handle(ev.MessageReceived("c", Hello(ReplicaSession(2, 1), 2, 3, HISTORY, 100, borrows=False)), 2.0)
    assert ticked(core, 41, 79) == []
    assert ticked(core, 81, 82) != []


def test_a_candidate_that_hears_no_promise_asks_for_another_after_a_while() -> None:
    core = opened(record=KEPT)
    persist(core, core.handle(ev.ControlViewed(replace(VIEW, epoch=2, version=4, leader="b", leading=B)), 0.0))
    asked = ticked(core, 1, 60)
    assert core.role is ReplicaRole.TAKING_OVER
    assert {action for _, action in asked} == {act.AskElection(2, elsewhere=True)}
    assert [round(at, 2) for at, _ in asked] == [2.05, 2.55]


# Starts.


def test_a_replica_whose_start_is_not_confirmed_promises_follows_and_answers_nothing() -> None:
    core = opened()
    unknown = replace(VIEW, starts=frozenset({start("b", LifeId(2, 1)), start("a", A), start("c", C)}))
    said = core.handle(ev.ControlViewed(unknown), 0.0)
    assert said == [
        act.RegisterStart(
            2, (DiskStart(1, 7), DiskStart(2, 0)), 1, went_back=False, durable_lsn=100, high_watermark=40, epoch=1
        )
    ]
    for message in (PromiseRequest(5, C), Hello(ReplicaSession(2, 1), 1, 1, HISTORY, 100, borrows=True)):
        assert core.handle(ev.MessageReceived("a", message), 0.0) == []
    assert (core.role, core.epoch) == (ReplicaRole.WAITING, 1)
    assert not core.may_show(0.0, found=True)


def test_a_replica_that_was_moved_elsewhere_meanwhile_asks_for_nothing_until_it_is_taken_away() -> None:
    core = opened()
    gone = replace(VIEW, replicas=frozenset("ac"), starts=frozenset({start("a", A), start("c", C)}))
    assert core.handle(ev.ControlViewed(gone), 0.0) == []
    assert ticked(core, 1, 40) == []
    back = replace(gone, version=gone.version + 1, replicas=VIEW.replicas)
    assert [type(action) for action in core.handle(ev.ControlViewed(back), 3.0)] == [act.RegisterStart]


def test_a_start_is_confirmed_when_the_disk_remembers_that_it_was_registered() -> None:
    core = opened()
    known = frozenset({start("a", A), start("b", B, confirmed=False), start("c", C)})
    (keep,) = core.handle(ev.ControlViewed(replace(VIEW, starts=known)), 0.0)
    assert isinstance(keep, act.Persist)
    assert keep.record.registered == 2
    (confirm,) = core.handle(ev.Persisted(keep.record), 0.0)
    assert isinstance(confirm, act.RegisterStart)
    assert confirm.registered == 2
    assert not core.registered
    core.handle(ev.ControlViewed(replace(VIEW, version=4)), 0.0)
    assert core.registered


def test_who_is_refused_is_opened_again_as_another_incarnation() -> None:
    core = opened()
    (reopen,) = core.handle(ev.StartRefused("older"), 0.0)
    assert reopen == act.Reopen("older", act.Distrust.WENT_BACK)
    another = ReplicaCore("b", Recovered(KEPT, 99, 0, 40, 100, HISTORY, went_back=True))
    assert another.record.life == LifeId(99, 1)
    assert another.record.went_back
    assert (another.record.epoch, another.record.leader) == (1, "a"), "what it promised as another one it still keeps"


def test_who_acts_heeds_a_refusal_only_where_the_control_plane_has_forgotten_its_start() -> None:
    core = acting()
    assert core.handle(ev.StartRefused("a late copy"), 0.0) == []
    former = RegisteredStart("b", 2, 1, token=7, confirmed=True)
    forgot = frozenset({start("a", A), former, start("c", C)})
    core.handle(ev.ControlViewed(replace(VIEW, version=4, starts=forgot)), 0.0)
    assert core.registered, "it is known to have been registered"
    assert act.Reopen("older", act.Distrust.WENT_BACK) in core.handle(ev.StartRefused("older"), 0.0)


def test_an_epoch_that_another_life_of_this_node_was_elected_for_is_not_led() -> None:
    core = opened(record=KEPT)
    view = replace(VIEW, epoch=2, version=4, leader="b", leading=LifeId(2, 1))
    said = persist(core, core.handle(ev.ControlViewed(view), 0.0))
    assert said == [act.AskElection(2)]
    assert core.role is ReplicaRole.WAITING


def test_a_log_that_was_given_up_is_set_aside_and_not_halted_for() -> None:
    core = opened(applied_lsn=40)
    session = following(core).session
    core.handle(ev.ControlViewed(replace(VIEW, version=9, revived_epoch=2)), 0.0)
    (reopen,) = core.handle(ev.MessageReceived("a", Welcome(session, 1, 1, HISTORY, resume_lsn=39)), 0.0)
    assert isinstance(reopen, act.Reopen)
    assert reopen.distrust is act.Distrust.ALL


# Promises.


def test_a_promise_is_given_only_when_it_is_persisted() -> None:
    core = acting()
    asked = core.handle(ev.MessageReceived("c", PromiseRequest(5, C)), 0.0)
    assert [type(action) for action in asked] == [act.Persist]
    given = persist(core, asked)
    assert act.Send("c", Promise(5, B, HISTORY.position(100))) in given


def test_a_second_candidate_of_an_epoch_is_refused_and_so_is_a_lower_epoch() -> None:
    core = acting()
    persist(core, core.handle(ev.MessageReceived("c", PromiseRequest(5, C)), 0.0))
    for sender, epoch, life in (("a", 5, A), ("a", 4, A), ("c", 5, LifeId(3, 3)), ("c", 5, LifeId(9, 2))):
        answer = core.handle(ev.MessageReceived(sender, PromiseRequest(epoch, life)), 0.0)
        assert answer == [act.Send(sender, PromiseRefusal(epoch, 5, "c"))]


def test_a_refusal_survives_a_restart() -> None:
    core = acting(record=replace(KEPT, epoch=5, leader="c", leading=C))
    for sender, life in (("a", A), ("c", LifeId(3, 3))):
        answer = core.handle(ev.MessageReceived(sender, PromiseRequest(5, life)), 0.0)
        assert answer == [act.Send(sender, PromiseRefusal(5, 5, "c"))]


def test_a_promise_is_counted_only_of_the_life_that_is_registered_and_listed() -> None:
    core = opened(record=KEPT)
    view = replace(
        VIEW, epoch=2, version=4, leader="b", leading=B, in_sync=frozenset({InSyncMember("b", 2), InSyncMember("c", 3)})
    )
    persist(core, core.handle(ev.ControlViewed(view), 0.0))
    stranger = Promise(2, LifeId(33, 2), HISTORY.position(0))
    assert core.handle(ev.MessageReceived("c", stranger), 0.0) == []
    assert act.BeginEpoch(2, LifeId(2, 2)) in core.handle(ev.MessageReceived("c", replace(stranger, life=C)), 0.0)


def test_a_promiser_that_comes_back_as_another_is_no_reason_to_cut() -> None:
    """It promised a longer log and lost it since: what the candidate holds may be all there is."""
    core = opened(applied_lsn=10)
    view = replace(VIEW, epoch=2, version=4, leader="b", leading=B)
    persist(core, core.handle(ev.ControlViewed(view), 0.0))
    pulled = core.handle(ev.MessageReceived("c", Promise(2, C, HISTORY.position(150))), 0.0)
    hello = next(action.message for action in pulled if isinstance(action, act.Send))
    assert isinstance(hello, Hello)
    lost = Welcome(hello.session, 2, 33, HISTORY, resume_lsn=50)
    assert core.handle(ev.MessageReceived("c", lost), 0.0) == []
    assert core.log.end_lsn == 100


def test_a_follower_that_takes_this_replica_for_its_leader_is_not_lent_to() -> None:
    """The control plane went back and named b for an epoch that b has promised to a: a follows b, and b follows a."""
    core = opened()
    following(core)
    hello = Hello(ReplicaSession(1, 1), 1, 1, HISTORY, 120, borrows=False)
    assert core.handle(ev.MessageReceived("a", hello), 0.0) == []
    lent = core.handle(ev.MessageReceived("a", replace(hello, borrows=True)), 0.0)
    assert act.Send("a", Welcome(hello.session, 1, 2, HISTORY, resume_lsn=100)) in lent


# Sessions and logs.


def following(core: ReplicaCore) -> Hello:
    """Make the replica follow a in epoch 1; returns its hello."""
    said = core.handle(ev.ControlViewed(VIEW), 0.0)
    return next(action.message for action in said if isinstance(action, act.Send) and isinstance(action.message, Hello))


def test_a_welcome_of_an_older_session_is_not_heeded() -> None:
    core = opened()
    hello = following(core)
    old = Welcome(ReplicaSession(hello.session.start - 1, 9), 1, 1, HISTORY, resume_lsn=50)
    assert core.handle(ev.MessageReceived("a", old), 0.0) == []


@pytest.mark.parametrize("late_s", [0.0, 0.25, 1.0])
def test_a_follower_whose_leader_answers_late_comes_to_follow_all_the_same(late_s: float) -> None:
    """Each hello voids those before it: said again as often as ever, it would void the one that is being answered."""
    core = opened(end_lsn=60)
    asked = [(0.0, following(core))]
    for now in (step * 0.05 for step in range(200)):
        said: list[ReplicaAction] = []
        for said_at, hello in asked:
            if now >= said_at + late_s:
                said += core.handle(ev.MessageReceived("a", Welcome(hello.session, 1, 1, HISTORY, resume_lsn=60)), now)
        asked = [(said_at, hello) for said_at, hello in asked if now < said_at + late_s]
        sent = [each.message for each in [*said, *core.handle(ev.Tick(), now)] if isinstance(each, act.Send)]
        if any(isinstance(message, Progress) for message in sent):
            break
        asked += [(now, message) for message in sent if isinstance(message, Hello)]
    assert now <= 4 * late_s, "an answer was heeded"


def test_a_welcome_that_comes_again_after_the_stream_broke_is_not_heeded() -> None:
    core = opened(end_lsn=60)
    welcome = Welcome(following(core).session, 1, 1, HISTORY, resume_lsn=60)
    core.handle(ev.MessageReceived("a", welcome), 0.0)
    assert core.handle(ev.StreamBroken("a"), 0.0) == []
    assert core.handle(ev.MessageReceived("a", replace(welcome, resume_lsn=50)), 0.0) == []


def test_a_log_is_never_cut_below_what_was_applied() -> None:
    core = opened(applied_lsn=40)
    welcome = Welcome(following(core).session, 1, 1, HISTORY, resume_lsn=39)
    (halt,) = core.handle(ev.MessageReceived("a", welcome), 0.0)
    assert isinstance(halt, act.Halt)
    assert core.role is ReplicaRole.HALTED
    assert core.handle(ev.Tick(), 1.0) == []


def test_an_epoch_of_another_life_at_the_same_place_is_cut_off() -> None:
    """The follower's log has what a process with a copy of some disk wrote as epoch 2, while a led it."""
    mine = HISTORY.begin(2, 90, C)
    core = ReplicaCore("b", Recovered(replace(KEPT, floor_lsn=100), 99, 0, 40, 100, mine))
    persist(core, core.start(0.0))
    hello = following(core)
    assert hello.history.starts[-1] == EpochStart(2, 90, C)
    leader = ReplicaState("a", Timings(), LogState(0, 40, 200, HISTORY.begin(2, 90, A)), ReplicaRecord(1))
    assert answer_hello(leader, "b", hello, 2) is None, "nothing is shipped behind other bytes"
    (said,) = leader.outbox
    assert isinstance(said, act.Send) and isinstance(said.message, Welcome) and said.message.resume_lsn == 90
    cut = core.handle(ev.MessageReceived("a", replace(said.message, epoch=1)), 0.0)
    assert act.TruncateLog(90) in cut


@pytest.mark.parametrize("log_start_lsn", [20, 40])
def test_a_log_that_shares_no_epoch_with_what_was_applied_here_is_not_taken_in_its_place(log_start_lsn: int) -> None:
    """Both reach to the same place and what they hold there is another's: a snapshot would hide it."""
    core = opened(applied_lsn=40)
    (halt,) = core.handle(ev.MessageReceived("a", TakeSnapshot(following(core).session, 1, log_start_lsn)), 0.0)
    assert isinstance(halt, act.Halt)
    assert f"begins at LSN {log_start_lsn}" in halt.reason and "up to 40" in halt.reason


def test_a_log_that_ends_before_the_leaders_begins_is_replaced() -> None:
    core = opened(applied_lsn=40)
    outside = replace(VIEW, version=9, in_sync=VIEW.in_sync - {InSyncMember("b", 2)})
    core.handle(ev.ControlViewed(outside), 0.0)
    taken = core.handle(ev.MessageReceived("a", TakeSnapshot(ReplicaSession(2, 1), 1, 41)), 0.0)
    assert act.FetchSnapshot("a") in taken


def test_a_lender_that_shares_no_epoch_with_what_was_applied_here_is_of_no_use() -> None:
    core = opened(applied_lsn=40)
    view = replace(VIEW, epoch=2, version=4, leader="b", leading=B)
    persist(core, core.handle(ev.ControlViewed(view), 0.0))
    pulled = core.handle(ev.MessageReceived("c", Promise(2, C, HISTORY.position(150))), 0.0)
    hello = next(action.message for action in pulled if isinstance(action, act.Send))
    assert isinstance(hello, Hello)
    assert core.handle(ev.MessageReceived("c", TakeSnapshot(hello.session, 2, 30)), 0.0) == []
    assert core.log.end_lsn == 100 and not core.log.busy


def test_the_floor_is_lowered_before_the_log_is_cut() -> None:
    core = opened()
    lower, cut = core.handle(
        ev.MessageReceived("a", Welcome(following(core).session, 1, 1, HISTORY, resume_lsn=50)), 0.0
    )
    assert isinstance(lower, act.Persist)
    assert lower.record.floor_lsn == 50
    assert cut == act.TruncateLog(50)


def test_what_the_disk_says_about_bytes_that_are_being_cut_is_not_heeded() -> None:
    core = opened()
    core.handle(ev.MessageReceived("a", Welcome(following(core).session, 1, 1, HISTORY, resume_lsn=50)), 0.0)
    assert core.handle(ev.LogDurable(100), 0.0) == []
    assert core.log.durable_lsn == 50


def test_a_log_that_ends_before_its_floor_is_another_incarnation() -> None:
    core = opened(record=replace(KEPT, floor_lsn=100), end_lsn=90)
    assert core.record.life == LifeId(99, 1)
    (register,) = core.handle(ev.ControlViewed(VIEW), 0.0)
    assert register == act.RegisterStart(
        99, (DiskStart(1, 0),), registered=0, went_back=False, durable_lsn=90, high_watermark=40, epoch=1
    )
    view = replace(VIEW, version=9, starts=frozenset({start("b", LifeId(99, 1))}))
    (leave,) = core.handle(ev.ControlViewed(view), 0.0)
    assert leave == act.ProposeLeave(InSyncMember("b", 2), 9)


def test_a_failed_disk_stops_a_replica_for_good() -> None:
    core = opened()
    following(core)
    assert core.handle(ev.StorageFailed("fsync"), 0.0) == [act.Halt("fsync")]
    assert core.handle(ev.MessageReceived("c", PromiseRequest(9, C)), 0.0) == []


# The lease.


def test_who_left_joins_at_once_where_it_is_needed() -> None:
    view = replace(VIEW, in_sync=frozenset({InSyncMember("a", 1), InSyncMember("b", 2)}))
    gone, back = peer(2, 100, heard_at=9.0), peer(3, 100)
    back.stream = OutgoingStream("c", ReplicaSession(1, 1), 1, 100)
    back.left(9.0, Timings())
    back.look(10.0, Timings())
    both = {"b": peer(2, 100), "c": back}
    assert desired_in_sync(view, InSyncMember("a", 1), both, 100, 10.0, Timings()) == view.in_sync
    assert desired_in_sync(view, InSyncMember("a", 1), both, 100, 11.5, Timings()) == view.in_sync, "now it is late"
    alone = {"b": gone, "c": back}
    wanted = frozenset({InSyncMember("a", 1), InSyncMember("c", 3)})
    assert desired_in_sync(view, InSyncMember("a", 1), alone, 100, 10.0, Timings()) == wanted


def test_pauses_double_up_to_a_limit_and_are_forgotten_in_calm() -> None:
    found, now, pauses = peer(3, 100), 0.0, []
    for _ in range(9):
        found.left(now, Timings())
        found.left(now, Timings())
        pauses.append(found.pause_s)
        found.joined_at = now = now + 300.0
        now += 1.0
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    found.left(now + 601.0, Timings())
    assert found.pause_s == 1


def test_sessions_of_two_lives_are_never_the_same() -> None:
    """A disk that was lost counts its starts from one again; an answer to what it said before must not be heeded."""

    def sessions(incarnation: int, token: int) -> set[tuple[int, int]]:
        record = ReplicaRecord(incarnation, (DiskStart(1, token),), registered=1)
        state = ReplicaState("b", Timings(), LogState(0, 0, 0, HISTORY), record)
        return {tuple(state.next_session()) for _ in range(100)}

    assert not sessions(8, 0x1234_5678_9ABC_DEF0) & sessions(9, 0x0FED_CBA9_8765_4321)
