"""Who votes changes while voters run: by entries of the log, one voter at a time, whatever fails meanwhile."""

from __future__ import annotations

from random import Random

import msgpack
import pytest

from lsmq_coordinator.raft_core import RaftCore
from lsmq_coordinator.raft_following import Diverged
from lsmq_coordinator.raft_kept import MAX_LIVES, Restore
from lsmq_coordinator.raft_leading import Leading
from lsmq_coordinator.raft_membership import Electorate, Electorates, marked, membership_in, unwrapped, wrapped
from lsmq_coordinator.raft_messages import AppendAnswer, AppendEntries, PreVote, PreVoteAnswer, Vote, VoteAnswer
from lsmq_coordinator.raft_records import replay
from lsmq_coordinator.raft_terms import RaftEntry, RaftRole
from support.raft_simulation import Group

from .test_raft_core import Voter
from .test_raft_simulation import calm


def membership(number: int, voters: str, learners: str = "") -> Electorate:
    """Of voters and learners by their digits."""
    return Electorate(number, {f"v{n}": f"v{n}" for n in voters}, {f"v{n}": f"v{n}" for n in learners})


def says(changed: Electorate) -> bytes:
    return marked(msgpack.packb({"op": "set_voters", "membership": changed.to_dict()}))


# Values


def test_an_entry_and_a_snapshot_carry_who_votes_and_others_are_as_they_were() -> None:
    changed = membership(3, "124", "5")
    assert membership_in(says(changed)) == changed
    assert membership_in(msgpack.packb({"op": "anything"})) is None and membership_in(b"") is None
    assert unwrapped(wrapped(changed, b"state")) == (changed, b"state")
    configured = membership(0, "123")
    assert wrapped(configured, b"state") == b"state" and unwrapped(b"state") == (None, b"state")


def test_releases_that_know_of_no_changed_voters_take_the_entry_for_nothing_they_can_read() -> None:
    with pytest.raises(msgpack.FormatError):
        msgpack.unpackb(says(membership(1, "123", "4")))


def test_a_change_is_of_one_voter_and_counts_on() -> None:
    now = membership(4, "123")
    assert membership(5, "123", "4").follows(now) and membership(5, "1234").follows(now)
    assert membership(5, "12").follows(now)
    assert not membership(5, "124").follows(now), "majorities of 123 and 124 need not meet"
    assert not membership(6, "1234").follows(now) and not membership(4, "1234").follows(now)
    assert not membership(5, "").follows(membership(4, "1"))


def test_what_is_cut_counts_no_more_and_what_was_before_counts_again() -> None:
    known = Electorates(0, membership(0, "123"))
    for index, changed in ((3, membership(1, "123", "4")), (7, membership(2, "1234"))):
        known.add(RaftEntry(index, 1, says(changed)))
    assert known.latest.number == 2 and known.at(6).number == 1 and known.at(2).number == 0
    known.cut(7)
    assert known.latest.number == 1 and known.latest_index == 3
    known.forget_below(5)
    known.cut(1)
    assert known.latest.number == 1, "the base is never cut"


# One voter


def leading(voters: int = 3) -> Voter:
    """A leader that has committed an entry of its own term, and whose followers have caught up."""
    voter = Voter(voters=voters)
    while voter.core.role is not RaftRole.CANDIDATE:
        voter.pass_time(0.05)
    others = [f"v{number}" for number in range(2, voters + 1)]
    for peer in others:
        voter.receive(PreVoteAnswer(voter.core.term, voter.core.term + 1, True, 0.0), peer)
    for peer in others:
        voter.receive(VoteAnswer(voter.core.term, True), peer)
    voter.write()
    voter.write()
    for _ in range(2):
        for peer in others:
            voter.receive(AppendAnswer(voter.core.term, True, voter.core.log.last_index, 0, voter.now), peer)
        voter.pass_time(0.05)
    assert voter.core.kept.commit == voter.core.log.last_index
    return voter


def test_a_leader_changes_nothing_before_it_has_committed_an_entry_of_its_own_term() -> None:
    voter = Voter()
    voter.lead()
    voter.write()
    assert voter.core.propose(says(membership(1, "123", "4"))) is None
    for _ in range(2):
        voter.receive(AppendAnswer(voter.core.term, True, voter.core.log.last_index, 0, voter.now))
        voter.pass_time(0.05)
    assert voter.core.propose(says(membership(1, "123", "4"))) is not None


def test_one_change_at_a_time_counts_from_when_it_is_in_the_log() -> None:
    voter = leading()
    assert voter.core.propose(says(membership(1, "1234"))) is not None
    assert voter.core.propose(says(membership(2, "12345"))) is None
    voter.write()
    end = voter.core.log.last_index
    voter.receive(AppendAnswer(voter.core.term, True, end, 0, 0.0))
    assert voter.core.kept.commit < end, "two of three were enough before, and are not of four"
    voter.receive(AppendAnswer(voter.core.term, True, end, 0, 0.0), "v4")
    assert voter.core.kept.commit == end
    assert voter.core.propose(says(membership(2, "12345"))) is not None


def test_a_learner_is_sent_the_log_and_counts_for_nothing() -> None:
    voter = leading()
    voter.core.propose(says(membership(1, "123", "4")))
    voter.write()
    end = voter.core.log.last_index
    voter.pass_time(0.1)
    assert "v4" in voter.core.peers
    for _ in range(2):
        voter.receive(AppendAnswer(voter.core.term, True, end, 0, voter.now), "v4")
        voter.pass_time(0.05)
    assert voter.core.kept.commit < end
    assert voter.core.leading is not None and "v4" in voter.core.leading.caught_up(voter.now - 0.5)
    voter.pass_time(2.0)
    assert voter.core.role is not RaftRole.LEADER, "a learner that answers is no majority"


def test_a_leader_that_votes_no_more_does_not_count_itself_and_gives_way_once_that_is_agreed_on() -> None:
    voter = leading(5)
    assert voter.core.propose(says(membership(1, "2345"))) is not None
    voter.write()
    end = voter.core.log.last_index
    for peer in ("v2", "v3"):
        voter.receive(AppendAnswer(voter.core.term, True, end, 0, voter.now), peer)
    assert voter.core.kept.commit < end, "itself and two more: of four others these are two"
    voter.receive(AppendAnswer(voter.core.term, True, end, 0, voter.now), "v4")
    assert voter.core.kept.commit == end
    voter.pass_time(0.05)
    assert voter.core.role is RaftRole.FOLLOWER
    term = voter.core.term
    assert not [said for said in voter.pass_time(30.0) if isinstance(said, PreVote | Vote)]
    assert voter.core.term == term


def test_a_follower_obeys_the_newest_entry_of_its_log_and_the_one_before_when_that_is_cut() -> None:
    voter = Voter()
    entries = (RaftEntry(5, 2, says(membership(1, "23"))),)
    voter.receive(AppendEntries(2, 4, 1, entries, 4, 1.0, True))
    assert not voter.core.votes and set(voter.core.peers) == {"v2", "v3"}
    voter.write()
    voter.receive(AppendEntries(3, 4, 1, (RaftEntry(5, 3, b""),), 4, 1.0, True), "v3")
    assert voter.core.votes and voter.core.membership.number == 0


def test_who_does_not_know_a_candidate_votes_for_it_by_its_log_alone() -> None:
    voter = Voter()
    voter.pass_time(2.0)
    voter.receive(Vote(9, 7, 8, True), "v9")
    assert voter.write() == [VoteAnswer(9, True)]


def test_votes_of_who_does_not_vote_are_not_counted() -> None:
    voter = Voter()
    voter.receive(AppendEntries(2, 4, 1, (RaftEntry(5, 2, says(membership(1, "1235", "4"))),), 5, 1.0, True))
    voter.write()
    while voter.core.role is not RaftRole.CANDIDATE:
        voter.pass_time(0.05)
    for peer in ("v4", "v9"):
        voter.receive(PreVoteAnswer(2, 3, True, 0.0), peer)
    assert voter.core.term == 2
    for peer in ("v3", "v5"):
        voter.receive(PreVoteAnswer(2, 3, True, 0.0), peer)
    assert voter.core.term == 3


def test_a_snapshot_brings_who_votes() -> None:
    voter = leading()
    voter.core.propose(says(membership(1, "1234")))
    voter.write()
    for peer in ("v2", "v3"):
        voter.receive(AppendAnswer(voter.core.term, True, voter.core.log.last_index, 0, voter.now), peer)
    voter.core.kept.take_committed()
    snapshot = voter.core.kept.snapshot(lambda: b"state")
    other = Voter((), term=0, whole=False)
    other.core.kept.install(snapshot.index, snapshot.term, snapshot.encode())
    assert other.core.membership == membership(1, "1234")
    assert other.core.kept.take_committed() == [Restore(snapshot.index, b"state")]


def test_the_lives_of_voters_that_came_and_went_do_not_pile_up() -> None:
    voter = Voter()
    for number in range(500):
        assert voter.core.connected(f"w{number}", (1, "word"), None)
        assert voter.core.connected("v2", (1, "word"), None)
    voter.write()
    assert len(voter.core.kept.state.lives) <= MAX_LIVES
    assert voter.core.kept.state.lives["v2"] == (1, "word")
    assert not voter.core.connected("v2", (0, "earlier"), None), "those of the voters there are stay"


def test_a_change_that_no_majority_at_hand_could_commit_is_not_begun() -> None:
    voter = leading()
    voter.pass_time(0.3)
    voter.receive(AppendAnswer(voter.core.term, True, voter.core.log.last_index, 0, voter.now))
    voter.pass_time(0.3)  # v3 was not heard for longer than is waited, v2 was.
    assert voter.core.role is RaftRole.LEADER
    assert voter.core.propose(says(membership(1, "13"))) is None, "v3 does not answer"
    assert voter.core.propose(says(membership(1, "1234"))) is None, "v4 has nothing yet"
    assert voter.core.propose(says(membership(1, "12"))) is not None


# Groups of them


def replace(group: Group, old: str, new: str) -> None:
    """As the leader of the control plane does it: a learner, then a voter, then the old one goes."""
    steps = (
        lambda now: {"learners": {new: new}},
        lambda now: {"learners": {}, "voters": {**now.voters, new: new}},
        lambda now: {"voters": {id: at for id, at in now.voters.items() if id != old}},
    )
    for step in steps:
        wanted = group.newest().number + 1
        changed = False
        for _ in range(200):
            group.tell()
            if group.newest().number >= wanted:
                changed = True
                break
            if group.leader() is not None:
                group.change(**step(group.newest()))
            group.run(0.1)
        assert changed, f"seed {group.seed}: no change to {wanted}"
    assert set(group.newest().voters) == (set(group.newest().voters) | {new}) - {old}


def works(group: Group) -> None:
    assert group.run(10.0, lambda: group.leader() is not None), f"seed {group.seed}: no leader"
    before = len(group.committed)
    assert group.propose() is not None
    assert group.run(10.0, lambda: len(group.committed) > before), f"seed {group.seed}: not committed"


@pytest.mark.parametrize("seed", range(10))
def test_a_voter_that_is_gone_is_replaced_and_then_another_one_may_die(seed: int) -> None:
    group = Group(seed)
    works(group)
    leader = group.leader()
    old = leader if seed % 2 else next(name for name in group.voters if name != leader)
    assert old is not None
    group.crash(old)
    group.add("v3")
    replace(group, old, "v3")
    works(group)
    another = next(name for name in ("v0", "v1", "v2") if name != old)
    group.crash(another)
    works(group)
    group.start(old)  # With its old disk: it disturbs nobody, and learns that it is out.
    terms = len(group.leaders)
    for _ in range(20):
        group.run(0.5)
        group.tell()
    assert group.voters[old].out_at > 0 and len(group.leaders) == terms
    group.start(another)
    assert group.run(10.0, group.agreed)


def test_all_voters_are_replaced_one_after_another_and_one_that_was_away_meanwhile_finds_them() -> None:
    """It knows none of those who vote now, and its disk says that three others do."""
    for seed in range(5):
        group = Group(seed, compact_bytes=500, voters=5)
        works(group)
        group.crash("v4")
        for number in range(4):
            group.add(f"v{5 + number}")
            replace(group, f"v{number}", f"v{5 + number}")
            group.crash(f"v{number}")
            works(group)
        group.crash("v5")
        group.start("v4")
        for _ in range(20):
            group.run(0.5)
            group.tell()
        group.crash("v6")
        works(group)  # v7, v8 and the one that was away: all of them are needed.


def caught_up(group: Group, name: str) -> bool:
    leader = group.leader()
    core = None if leader is None else group.voters[leader].core
    return core is not None and core.leading is not None and name in core.leading.caught_up(group.now - 0.5)


def storm(seed: int, *, rate: float = 4.0, careless: bool = False) -> Group:
    """Changes of who votes beside crashes, pauses, partitions and lost messages. ``careless``: learners may vote that
    have not caught up, which costs no more than time."""
    random = Random(seed ^ 0xC0FFEE)
    group = Group(seed, voters=random.choice([1, 3, 3, 5]), sync_s=random.choice([0.0005, 0.002, 0.05]))
    group.drop, group.repeat = random.choice([0.0, 0.02, 0.2]), random.choice([0.0, 0.1])
    for _ in range(3):
        group.add(f"v{len(group.voters)}")
    while group.now < 20.0:
        group.run(random.expovariate(rate))
        name = random.choice(list(group.voters))
        now = group.newest()
        match random.randrange(12):
            case fault if fault < 7:
                group.befall(random, name, fault)
            case 7:
                group.tell()
            case 8:
                group.change(learners={name: name} if name not in now.voters else {})
            case 9 | 10 if name in now.voters and len(now.voters) > 1:
                group.change(voters={id: at for id, at in now.voters.items() if id != name})
            case 9 | 10 if name in now.learners and (careless or caught_up(group, name)):
                group.change(voters={**now.voters, name: name}, learners={})
            case _:
                group.tell()
        group.work(random)
        group.check_logs()
    return group


def recovers(group: Group) -> None:
    calm(group)
    for _ in range(60):
        group.run(0.5)
        group.tell()
        if group.leader() is not None:
            break
    count = len(group.committed)
    assert group.propose(b"after the storm") is not None, f"seed {group.seed}: no leader"
    for _ in range(60):
        group.run(0.5)
        group.tell()
        if group.agreed() and len(group.committed) > count:
            break
    assert group.agreed() and len(group.committed) > count, f"seed {group.seed}: not committed"
    group.check_logs()
    for name, voter in group.voters.items():
        if voter.core is not None:
            assert replay(voter.disk.content)[0].state.term <= max(group.leaders), name


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_storm_of_changes_breaks_an_invariant_and_after_it_commands_are_committed(first: int) -> None:
    changed = 0
    for seed in range(first, first + 10):
        group = storm(seed)
        recovers(group)
        changed += group.newest().number
    assert changed > 20


@pytest.mark.parametrize("first", range(100, 160, 20))
def test_a_voter_that_was_not_filled_breaks_no_invariant_either(first: int) -> None:
    for seed in range(first, first + 20):
        storm(seed, careless=True)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        pytest.param(Electorate, "follows", lambda self, former: bool(self.voters), id="any change at once"),
        pytest.param(Electorates, "cut", lambda self, first: None, id="what is cut counts on"),
        pytest.param(RaftCore, "stands", property(lambda core: True), id="who is none calls elections"),
        pytest.param(
            Leading, "_of_voters", lambda self, own, of: [own, *map(of, self._peers.values())], id="learners count"
        ),
    ],
)
def test_a_deliberate_bug_is_found(monkeypatch: pytest.MonkeyPatch, where: type, name: str, bug: object) -> None:
    monkeypatch.setattr(where, name, bug)
    with pytest.raises((AssertionError, Diverged)):
        for seed in range(200):
            storm(seed, rate=10.0, careless=True)
            recovers(storm(seed, rate=10.0))
