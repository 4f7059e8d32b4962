"""Starts of disks: who is what it was, who went back, and what is known of logs when nobody is left who knows more."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.commands import apply
from lsmq_coordinator.election import ReplicaProgress
from lsmq_coordinator.election_pace import FIRST_S, LONGEST_S, ElectionPace
from lsmq_coordinator.leaderless import PATIENCE_S, UNDER_WAY, LeaderlessShards
from lsmq_coordinator.overseer import failovers, restored_trust
from lsmq_coordinator.state import MAX_REVIVALS, ClusterState, Shard
from lsmq_coordinator.witness import NOTE_S, Witness

from .test_state import NODES, founded

EVERYBODY = frozenset(NODES)


class Disk:
    """What a disk remembers; ``copy`` is one of the disk as it is."""

    def __init__(self, node: str, incarnation: int = 1) -> None:
        self.node, self.incarnation = node, incarnation
        self.starts: list[list[int]] = []
        self.registered = 0
        self.durable_lsn = 0
        self.went_back = False

    def copy(self) -> Disk:
        made = Disk(self.node, self.incarnation)
        made.starts, made.registered, made.durable_lsn = list(self.starts), self.registered, self.durable_lsn
        return made

    def another(self, incarnation: int) -> Disk:
        """It was refused, and begins anew."""
        made = Disk(self.node, incarnation)
        made.durable_lsn, made.went_back = self.durable_lsn, True
        return made


class Cluster:
    """Of one shard, in whose commands only what is tested has to be said."""

    def __init__(self, **options: Any) -> None:
        self.state: ClusterState = founded(**{"shards": 1, **options})
        self.tokens = 100
        fresh = replace(self.state.shards[0], starts=(), leading=None)
        self.state = replace(self.state, shards=MappingProxyType({0: fresh}))

    @property
    def shard(self) -> Shard:
        return self.state.shards[0]

    def do(self, op: str, **fields: Any) -> dict[str, Any]:
        request = f"{op} {len(self.state.results)} {self.state.version} {self.tokens}"
        self.state, result = apply(self.state, {"op": op, "shard": 0, "request_id": request, **fields})
        self.state.check()
        return result

    def register(self, disk: Disk, *, witnessed_lsn: int = 0) -> dict[str, Any]:
        return self.do(
            "register_start",
            node=disk.node,
            life=self.state.nodes[disk.node].life,
            incarnation=disk.incarnation,
            starts=disk.starts,
            registered=disk.registered,
            went_back=disk.went_back,
            durable_lsn=disk.durable_lsn,
            witnessed_lsn=witnessed_lsn,
        )

    def begin(self, disk: Disk) -> None:
        """The disk notes a new start."""
        self.tokens += 1
        disk.starts.append([disk.starts[-1][0] + 1 if disk.starts else 1, self.tokens])

    def start(self, disk: Disk) -> None:
        """All of a start, up to where the replica may act."""
        self.begin(disk)
        assert self.register(disk)["ok"]
        disk.registered = disk.starts[-1][0]
        assert self.register(disk)["ok"]
        known = self.shard.start_of(disk.node)
        assert known is not None and known.confirmed

    def elect(self, node: str) -> dict[str, Any]:
        return self.do("elect", candidate=node, expected_epoch=self.shard.epoch)

    def list_as_they_are(self) -> None:
        members = [[start.node, start.incarnation] for start in self.shard.starts]
        version, epoch = self.shard.version, self.shard.epoch
        assert self.do("set_in_sync", epoch=epoch, expected_version=version, in_sync=members)["ok"]


def running() -> tuple[Cluster, dict[str, Disk]]:
    """Three replicas that were started once, all in sync."""
    cluster = Cluster()
    disks = {node: Disk(node, 10 + number) for number, node in enumerate(cluster.shard.replicas)}
    for disk in disks.values():
        cluster.start(disk)
    cluster.list_as_they_are()
    return cluster, disks


def test_a_disk_that_comes_back_as_it_was_is_what_it_was_wherever_its_start_was_cut_short() -> None:
    cluster, disks = running()
    disk = disks[cluster.shard.replicas[1]]
    cluster.start(disk)
    cluster.begin(disk)  # noted by the disk alone
    cluster.begin(disk)
    assert cluster.register(disk)["ok"]  # registered, and nothing heard of it
    cluster.begin(disk)
    assert cluster.register(disk)["ok"]
    disk.registered = disk.starts[-1][0]  # remembered, and not confirmed
    cluster.start(disk)


def test_a_copy_from_before_the_last_start_is_refused_however_often_it_was_started_since() -> None:
    cluster, disks = running()
    disk = disks[cluster.shard.replicas[1]]
    older = disk.copy()
    cluster.start(disk)
    before = cluster.state.shards
    for _ in range(3):
        cluster.begin(older)
        assert cluster.register(older)["code"] == "went_back"
    assert cluster.state.shards == before
    cluster.start(disk)  # the right one, put back


def test_a_copy_from_before_the_disk_knew_that_its_start_counts_is_refused() -> None:
    cluster, disks = running()
    disk = disks[cluster.shard.replicas[1]]
    cluster.begin(disk)
    older = disk.copy()
    cluster.register(disk)
    disk.registered = disk.starts[-1][0]
    cluster.register(disk)
    cluster.begin(older)
    assert cluster.register(older)["code"] == "went_back"


def test_a_late_copy_of_what_a_start_said_changes_nothing() -> None:
    cluster, disks = running()
    disk = disks[cluster.shard.replicas[1]]
    former = disk.registered
    cluster.start(disk)
    before = cluster.shard
    disk.registered = former
    assert cluster.register(disk)["ok"]
    assert cluster.shard == before


def test_of_two_processes_with_copies_of_one_disk_one_is_refused() -> None:
    cluster, disks = running()
    disk = disks[cluster.shard.replicas[1]]
    clone = disk.copy()
    cluster.start(disk)
    cluster.begin(clone)
    assert cluster.register(clone)["code"] == "went_back"
    assert cluster.register(disk)["ok"]


def test_only_the_process_that_is_agreed_on_registers_a_start() -> None:
    """Another one of the same name may have a copy of the disk, and would take the place of who runs."""
    plane, disk = Cluster(), Disk("n0")
    plane.start(disk)
    before = plane.state
    refused = plane.do(
        "register_start",
        node=disk.node,
        life="another",
        incarnation=disk.incarnation,
        starts=[*disk.starts, [disk.starts[-1][0] + 1, 99]],
        registered=disk.registered,
        went_back=False,
        durable_lsn=disk.durable_lsn,
    )
    assert refused["code"] == "another_life"
    assert plane.state.shards == before.shards


def test_an_incarnation_that_was_replaced_does_not_come_back() -> None:
    cluster, disks = running()
    disk = disks[cluster.shard.replicas[1]]
    never_acted = disk.copy()
    never_acted.registered = 0
    cluster.start(Disk(disk.node, incarnation=99))
    for former in (disk, never_acted):
        cluster.begin(former)
        assert cluster.register(former)["code"] == "went_back"


def test_a_control_plane_that_went_back_takes_a_disk_for_what_it_is() -> None:
    cluster, disks = running()
    disk = disks[cluster.shard.replicas[1]]
    past = cluster.state
    for _ in range(20):
        cluster.start(disk)
        disk.starts = disk.starts[-4:]
    cluster.state = past
    cluster.start(disk)


def test_a_log_that_ends_before_what_it_is_known_to_have_had_is_refused() -> None:
    cluster, disks = running()
    leader, disk = disks[cluster.shard.replicas[0]], disks[cluster.shard.replicas[1]]
    cluster.do("note_floors", floors=[[0, 500], [77, 1]])
    version = cluster.shard.version
    cluster.do("note_floors", floors=[[0, 400]])
    assert cluster.shard.version == version, "replicas need not know"
    assert {start.floor_lsn for start in cluster.shard.starts} == {500}
    for lsn, code in ((499, "went_back"), (500, None)):
        disk.durable_lsn = lsn
        cluster.begin(disk)
        assert cluster.register(disk).get("code") == code
    cluster.begin(disk)
    assert cluster.register(disk, witnessed_lsn=501)["code"] == "went_back"
    # One that is out of the set need not have more than it had when it was in there.
    members = [[leader.node, leader.incarnation]]
    cluster.do("set_in_sync", epoch=1, expected_version=cluster.shard.version, in_sync=members)
    assert cluster.register(disk, witnessed_lsn=501)["ok"]
    cluster.do("note_floors", floors=[[0, 900]])
    known = cluster.shard.start_of(disk.node)
    assert known is not None and known.floor_lsn == 500


def test_who_went_back_comes_again_as_another_is_never_elected_while_listed_and_distrusted_until_taken_in() -> None:
    cluster, disks = running()
    disk = disks[cluster.shard.replicas[1]]
    older = disk.copy()
    cluster.start(disk)
    another = older.another(99)
    cluster.start(another)
    assert cluster.shard.distrusted == (disk.node,)
    reports = {disk.node: {0: ReplicaProgress(1, 9, 99, 1)}}
    assert failovers(cluster.state, frozenset({disk.node}), reports) == []
    # The set that lists what it was does not take in what it is.
    version = cluster.shard.version
    members = [[listed.node, listed.incarnation] for listed in cluster.shard.in_sync[:2]]
    cluster.do("set_in_sync", epoch=1, expected_version=version, in_sync=members)
    assert cluster.shard.distrusted == (disk.node,)
    cluster.list_as_they_are()
    assert cluster.shard.distrusted == ()


def test_a_disk_is_trusted_again_when_a_majority_of_voters_besides_it_is_heard() -> None:
    cluster, disks = running()
    node = cluster.shard.replicas[1]
    cluster.start(disks[node].another(99))
    voters = frozenset(cluster.shard.replicas)
    one_besides = frozenset({node, cluster.shard.replicas[0]})
    assert restored_trust(cluster.state, one_besides, voters) == []
    [command] = restored_trust(cluster.state, voters, voters)
    assert cluster.do(**command)["ok"]
    assert cluster.shard.distrusted == ()
    assert restored_trust(cluster.state, voters, voters) == []


def test_a_leader_is_elected_in_one_life_and_must_have_been_started() -> None:
    cluster, disks = running()
    _, second, third = cluster.shard.replicas
    assert cluster.elect(second)["ok"]
    elected = cluster.shard.leading
    assert elected == (11, 1)
    cluster.start(disks[second])
    assert cluster.shard.leading == elected, "the epoch is that of the former life"
    assert cluster.elect(second)["ok"]
    assert cluster.shard.leading == (11, 2)
    cluster.begin(disks[third])
    cluster.register(disks[third])
    assert cluster.elect(third)["code"] == "not_started"


# The unclean way


def test_a_shard_is_revived_from_one_replica_and_that_is_remembered() -> None:
    cluster, disks = running()
    _, second, third = cluster.shard.replicas
    cluster.do("note_floors", floors=[[0, 500]])

    def revive(**fields: Any) -> dict[str, Any]:
        expected = {"expected_version": cluster.shard.version, "expected_epoch": cluster.shard.epoch}
        return cluster.do("revive", **{**expected, "node": third, "accept_loss": True, "at_ms": 7, **fields})

    assert revive(accept_loss="yes")["code"] == "loss_not_accepted"
    assert revive(node="n4" if "n4" not in cluster.shard.replicas else "n3")["code"] == "not_started"
    assert revive(expected_epoch=0)["code"] == "stale"
    assert revive()["epoch"] == 2
    shard = cluster.shard
    assert (shard.leader, shard.leading, shard.in_sync) == (third, (12, 1), ((third, 12),))
    assert shard.revivals == ((2, third, 12, 500, 7),)
    assert shard.revived_epoch == 2
    assert [shard.is_revived_from(node) for node in (second, third, "stranger")] == [False, True, False]
    disks[second].durable_lsn = 3
    cluster.start(disks[second])  # what was known of the log is void
    for _ in range(MAX_REVIVALS + 1):
        revive()
    assert len(cluster.shard.revivals) == MAX_REVIVALS
    assert cluster.elect(third)["ok"]
    assert cluster.shard.epoch > cluster.shard.revived_epoch and not cluster.shard.is_revived_from(third)


# What the control plane's leader knows


def reported(cluster: Cluster, node: str, high_watermark: int, start: int = 1) -> dict[int, ReplicaProgress]:
    incarnation = 10 + cluster.shard.replicas.index(node)
    return {0: ReplicaProgress(1, 900, incarnation, start, high_watermark), 77: ReplicaProgress(1, 1, 1, 1, 1)}


def test_a_witness_testifies_what_members_said_in_their_registered_lives() -> None:
    cluster, _ = running()
    witness, (first, second, _) = Witness(), cluster.shard.replicas
    register = {"op": "register_start", "shard": 0}
    assert witness.testify(register) == {**register, "witnessed_lsn": 0}
    witness.hear(cluster.state, first, reported(cluster, first, 300))
    witness.hear(cluster.state, second, reported(cluster, second, 200))
    witness.hear(cluster.state, second, reported(cluster, second, 900, start=2))
    assert witness.testify(register) == {**register, "witnessed_lsn": 300}
    assert witness.testify({"op": "elect"}) == {"op": "elect"}
    witness.testify({"op": "revive", "shard": 0})
    assert witness.testify(register) == {**register, "witnessed_lsn": 0}


def test_what_grew_is_noted_when_a_node_is_lost_and_now_and_then() -> None:
    cluster, _ = running()
    witness, first = Witness(), cluster.shard.replicas[0]
    assert witness.due(0.0, lost=True) is None, "nothing was heard"
    witness.hear(cluster.state, first, reported(cluster, first, 300))
    assert witness.due(NOTE_S - 1, lost=False) is None
    assert witness.due(NOTE_S - 1, lost=True) == {"op": "note_floors", "floors": [[0, 300]]}
    assert witness.due(3 * NOTE_S, lost=True) is None
    witness.hear(cluster.state, first, reported(cluster, first, 301))
    assert witness.due(5 * NOTE_S, lost=False) == {"op": "note_floors", "floors": [[0, 301]]}


def test_elections_that_lead_nowhere_are_held_ever_more_seldom() -> None:
    cluster, _ = running()
    pace, now, held = ElectionPace(), 0.0, []
    while now < 60.0:
        if pace.is_due(cluster.shard, {}, now):
            held.append(now)
            cluster.elect(cluster.shard.replicas[0])
        now += 0.05
    assert len(held) <= 14
    assert held[1] - held[0] == pytest.approx(FIRST_S, abs=0.06)
    assert held[-1] - held[-2] == pytest.approx(LONGEST_S, abs=0.06)
    shard = cluster.shard
    led = {str(shard.leader): {0: ReplicaProgress(shard.epoch, 9, 10, 1)}}
    now += LONGEST_S
    assert pace.is_due(shard, led, now)
    assert pace.is_due(shard, {}, now + 2 * FIRST_S), "an epoch that was led forgives what came before"


def test_a_shard_that_nobody_leads_is_named_with_the_reason_and_what_helps() -> None:
    cluster, disks = running()
    first, second, third = cluster.shard.replicas
    looked = LeaderlessShards()

    def why(alive: set[str], reports: dict[str, dict[int, ReplicaProgress]], at: float) -> str | None:
        looked.look(cluster.state, alive, reports, at)
        looked.look(cluster.state, alive, reports, at + PATIENCE_S)
        return looked.reasons.get(0)

    leads = {first: {0: ReplicaProgress(1, 9, 10, 1)}}
    assert why({first, second, third}, leads, 0.0) is None
    cluster.start(disks[second].another(99))
    reason = why({second}, {second: {0: ReplicaProgress(1, 9, 99, 1)}}, 10.0)
    assert reason is not None
    assert f"{first} is away" in reason
    assert f"{second} came back without what it had" in reason
    assert "lsmq shard revive 0 --from NODE --accept-loss" in reason
    assert "does not work" in str(why({first}, {}, 20.0))
    cluster.elect(first)
    assert "hears of too few" in str(why({first}, leads, 30.0))
    looked.look(cluster.state, {first}, {first: {0: ReplicaProgress(2, 9, 10, 1)}}, 40.0)
    assert looked.reasons == {}


def test_a_leader_that_was_elected_just_now_is_not_said_to_lack_replicas() -> None:
    cluster, _ = running()
    first = cluster.shard.replicas[0]
    looked = LeaderlessShards()
    elected = {first: {0: ReplicaProgress(1, 9, 10, 1)}}
    for at in (0.0, 60.0):
        looked.look(cluster.state, {first}, {}, at)
    assert "does not work" in looked.reasons[0]
    cluster.elect(first)
    for at in (61.0, 61.0 + PATIENCE_S / 2):
        for reports, reason in ((elected, UNDER_WAY), ({}, looked.reasons[0])):
            looked.look(cluster.state, {first}, reports, at)
            assert looked.reasons == {0: reason}
            assert not looked.epochs, "what it serves is not to be given up before it was heard"
    looked.look(cluster.state, {first}, elected, 61.0 + PATIENCE_S)
    assert "hears of too few" in looked.reasons[0]
    assert looked.epochs == {0: cluster.shard.epoch}


def test_where_a_shard_has_one_replica_no_other_one_is_proposed() -> None:
    state = founded(shards=1, replicas=1, min_in_sync=1)
    (only,) = state.shards[0].replicas
    looked = LeaderlessShards()
    for alive, reports in ((set[str](), dict[str, dict[int, ReplicaProgress]]()), ({only}, {only: {}})):
        for at in (0.0, PATIENCE_S):
            looked.look(state, alive, reports, at)
        assert "It has no other replica" in looked.reasons[0] and "revive" not in looked.reasons[0]


def test_nobody_is_elected_whose_replica_does_not_work_however_alone_it_is() -> None:
    cluster, _ = running()
    first = cluster.shard.replicas[0]
    assert failovers(cluster.state, frozenset({first}), {first: {}}, {0: 1}) == []
    assert failovers(cluster.state, frozenset({first}), {}, {0: 1}) == []


@given(st.lists(st.sampled_from(["start", "begin", "register", "copy", "back", "wipe"]), max_size=25))
def test_no_disk_acts_that_has_forgotten_a_life_that_acted(steps: list[str]) -> None:
    """Whatever is copied and put back when: who may act knows all the lives that did."""
    cluster = Cluster()
    node = cluster.shard.replicas[0]
    disk, copies, acted, incarnation = Disk(node, 50), list[Disk](), set[tuple[int, int, int]](), 50
    for step in steps:
        if step == "begin" or (step in ("start", "register") and not disk.starts):
            cluster.begin(disk)
        if step == "start":
            cluster.begin(disk)
        if step in ("start", "register"):
            result = cluster.register(disk)
            if not result["ok"]:
                incarnation += 1
                disk = disk.another(incarnation)
                acted = set()  # It says itself that it is another one.
                continue
        if step == "start":
            disk.registered = disk.starts[-1][0]
            assert cluster.register(disk)["ok"]
            known = {(disk.incarnation, number, token) for number, token in disk.starts}
            former = {life for life in acted if life[0] == disk.incarnation}
            assert former <= known, "it acts and has forgotten a life that did"
            acted.add((disk.incarnation, *disk.starts[-1]))
        elif step == "copy":
            copies.append(disk.copy())
        elif step == "back" and copies:
            disk = copies.pop(0)
        elif step == "wipe":
            incarnation += 1
            disk, acted = Disk(node, incarnation), set()
