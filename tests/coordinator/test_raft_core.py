"""The state machine of a voter, one event at a time: votes, what waits for the disk, who replaces a leader."""

from __future__ import annotations

from random import Random

import pytest

from lsmq_coordinator.raft_core import RaftCore
from lsmq_coordinator.raft_following import Diverged
from lsmq_coordinator.raft_kept import MAX_UNCOMMITTED_BYTES, MAX_UNWRITTEN_BYTES
from lsmq_coordinator.raft_membership import Electorate
from lsmq_coordinator.raft_messages import (
    AppendAnswer,
    AppendEntries,
    PreVote,
    PreVoteAnswer,
    RaftMessage,
    SnapshotPart,
    Vote,
    VoteAnswer,
)
from lsmq_coordinator.raft_outbox import SaveState
from lsmq_coordinator.raft_terms import HardState, Loaded, RaftEntry, RaftRole, RaftTiming

from .test_raft_messages import append, terms_of

LOG = (1, 1, 1, 1)


class Voter:
    """v1 of three, whose peers and disk are the test."""

    def __init__(self, log: tuple[int, ...] = LOG, *, whole: bool = True, term: int = 1, voters: int = 3) -> None:
        entries = tuple(RaftEntry(index, term, b"c%d" % index) for index, term in enumerate(log, 1))
        loaded = Loaded(HardState(term, None, whole), entries=entries)
        names = [f"v{number}" for number in range(1, voters + 1)]
        self.now = 100.0
        self.core = RaftCore("v1", Electorate(0, {n: n for n in names}), loaded, RaftTiming(), Random(1), self.now)
        self.write()

    def receive(self, message: RaftMessage, sender: str = "v2") -> list[RaftMessage]:
        self.core.receive(sender, message, self.now)
        return self.said()

    def said(self) -> list[RaftMessage]:
        return [message for _, message in self.core.take_messages()]

    def write(self) -> list[RaftMessage]:
        """The disk has everything: what leaves now."""
        _, number = self.core.take_writes()
        self.core.written(number, 0.001, self.now)
        return self.said()

    def pass_time(self, seconds: float) -> list[RaftMessage]:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.05)
            self.core.tick(self.now)
        return self.said()

    def lead(self) -> None:
        while self.core.role is not RaftRole.CANDIDATE:
            self.pass_time(0.05)
        self.receive(PreVoteAnswer(self.core.term, self.core.term + 1, True, 0.0))
        self.receive(VoteAnswer(self.core.term, True))
        self.write()
        assert self.core.role is RaftRole.LEADER

    def terms(self) -> list[int]:
        return terms_of(self.core.log)


# Votes


def test_a_vote_takes_one_write_and_leaves_after_it() -> None:
    voter = Voter()
    assert voter.receive(Vote(5, 4, 1, True)) == []
    writes, _ = voter.core.take_writes()
    assert len(writes) == 1 and isinstance(writes[0], SaveState)
    assert (writes[0].state.term, writes[0].state.vote) == (5, "v2")
    assert voter.write() == [VoteAnswer(5, True)]


def test_a_vote_is_given_once_a_term_and_given_again_to_the_same() -> None:
    voter = Voter()
    voter.receive(Vote(5, 4, 1, True))
    voter.write()
    assert voter.receive(Vote(5, 9, 3, True), "v3") == []
    assert voter.receive(Vote(5, 4, 1, True)) == [VoteAnswer(5, True)]
    assert voter.core.take_writes()[0] == []


def test_requests_that_came_late_cost_no_write_and_only_the_newest_is_answered() -> None:
    voter = Voter()
    for term in range(5, 9):
        assert voter.receive(Vote(term, 4, 1, True)) == []
    assert voter.receive(Vote(6, 4, 1, True), "v3") == [VoteAnswer(8, False)]
    assert voter.write() == [VoteAnswer(8, True)]


def test_who_has_less_of_the_log_gets_no_vote_and_no_hope_of_one() -> None:
    voter = Voter((1, 1, 3), term=3)
    for last_index, last_term in ((9, 2), (2, 3)):
        (answer,) = voter.receive(PreVote(3, 4, last_index, last_term, True))
        assert isinstance(answer, PreVoteAnswer) and not answer.granted
        assert voter.receive(Vote(4, last_index, last_term, True)) == []
    assert voter.core.kept.state.vote is None


def test_a_voter_that_lost_its_disk_votes_for_nobody_who_has_not_until_it_has_caught_up() -> None:
    voter = Voter((), whole=False, term=0)
    assert voter.receive(Vote(5, 9, 4, True)) == []
    assert voter.core.kept.state.vote is None
    log = [1, 6]
    voter.receive(append(0, log, 1, 1, term=6))
    voter.write()
    assert not voter.core.kept.state.whole, "the entry of the leader's own term was not committed yet"
    voter.receive(append(1, log, 1, 2, term=6))
    assert voter.core.kept.state.whole
    voter.write()
    voter.pass_time(0.4)
    assert voter.receive(Vote(9, 2, 6, True), "v3") == []
    assert voter.write() == [VoteAnswer(9, True)]


def test_a_candidates_own_vote_counts_once_it_is_durable_and_each_other_one_once() -> None:
    voter = Voter(voters=5)
    while voter.core.role is not RaftRole.CANDIDATE:
        voter.pass_time(0.05)
    for peer in ("v2", "v3"):
        voter.receive(PreVoteAnswer(1, 2, True, 0.0), peer)
    assert voter.core.term == 2
    for peer in ("v2", "v2", "v3"):
        voter.receive(VoteAnswer(2, True), peer)
    assert voter.core.role is RaftRole.CANDIDATE
    voter.write()
    assert voter.core.role is RaftRole.LEADER


# Pre-votes


def test_a_voter_that_cannot_win_raises_no_terms_and_writes_nothing() -> None:
    voter = Voter()
    said = voter.pass_time(60.0)
    assert {type(message) for message in said} == {PreVote}
    assert voter.core.term == 1 and voter.core.take_writes()[0] == []
    assert len(said) / 2 < 60, "elections that come to nothing are called less and less often"


def test_a_candidate_asks_who_connects_later_than_it_asked() -> None:
    voter = Voter()
    while voter.core.role is not RaftRole.CANDIDATE:
        voter.pass_time(0.05)
    assert voter.core.connected("v2", (1, "a"), None)
    assert voter.said() == [PreVote(1, 2, 4, 1, True)]
    voter.receive(PreVoteAnswer(1, 2, True, 0.0), "v3")
    assert voter.core.connected("v2", (1, "a"), None)
    assert voter.said() == [Vote(2, 4, 1, True)]


def test_nobody_is_helped_against_a_leader_that_was_heard_lately() -> None:
    voter = Voter()
    voter.receive(append(4, list(LOG), 0, 4, term=1))
    (answer,) = voter.receive(PreVote(1, 2, 9, 1, True), "v3")
    assert isinstance(answer, PreVoteAnswer) and not answer.granted
    assert voter.receive(Vote(2, 9, 1, True), "v3") == [] and voter.core.term == 1
    voter.core.lost("v2", voter.now)
    (answer,) = voter.receive(PreVote(1, 2, 9, 1, True), "v3")
    assert isinstance(answer, PreVoteAnswer) and answer.granted, "its connection broke"


def test_a_leader_that_was_replaced_learns_it_from_the_first_who_knows() -> None:
    voter = Voter(term=7)
    assert voter.receive(append(4, list(LOG), 0, 4, term=3)) == [AppendAnswer(7, False, 0, 0, 1.0)]
    other = Voter()
    other.lead()
    other.receive(AppendAnswer(7, False, 0, 0, 1.0))
    assert (other.core.role, other.core.term) == (RaftRole.FOLLOWER, 7)


def test_a_voter_that_was_paused_hears_what_was_said_before_it_calls_an_election() -> None:
    voter = Voter()
    voter.receive(append(4, list(LOG), 0, 4, term=1))
    voter.now += 30.0
    voter.core.tick(voter.now)
    assert voter.said() == []
    voter.receive(append(4, list(LOG), 0, 4, term=1))
    assert voter.pass_time(0.25) == []


def test_the_slower_a_disk_the_longer_a_candidate_waits() -> None:
    voter = Voter()
    for _ in range(3):
        voter.core.pace.synced(0.5)
    while voter.core.role is not RaftRole.CANDIDATE:
        voter.pass_time(0.05)
    voter.receive(PreVoteAnswer(1, 2, True, 0.5))
    assert voter.core.term == 2
    voter.pass_time(1.2)
    assert voter.core.term == 2 and voter.core.role is RaftRole.CANDIDATE
    voter.receive(VoteAnswer(2, True))
    voter.write()
    assert voter.core.role is RaftRole.LEADER


def test_a_candidate_does_not_wait_for_a_disk_that_was_slow_once_or_whose_voter_is_gone() -> None:
    voter = Voter()
    while voter.core.role is not RaftRole.CANDIDATE:
        voter.pass_time(0.05)
    voter.receive(PreVoteAnswer(1, 2, False, 60.0), "v3")
    asked = voter.pass_time(3)
    assert any(isinstance(message, PreVote) for message in asked), "another round has begun"
    voter.receive(PreVoteAnswer(1, 2, True, 0.001), "v2")
    assert voter.core.term == 2
    voter.write()
    asked = voter.pass_time(10)
    assert any(isinstance(message, PreVote) for message in asked), "the vote is lost, and another round has begun"


# What waits for the disk


def test_entries_are_acknowledged_once_they_are_durable_and_signs_of_life_at_once() -> None:
    voter = Voter()
    voter.receive(append(4, list(LOG), 0, 4, term=1))
    assert voter.receive(append(4, [*LOG, 1], 1, 4, term=1)) == []
    assert voter.receive(append(5, [*LOG, 1], 0, 4, term=1)) == [AppendAnswer(1, True, 4, 0, 1.0)]
    assert voter.write() == [AppendAnswer(1, True, 5, 0, 1.0)]


def test_nothing_is_acknowledged_to_a_leader_whose_term_is_not_on_the_disk() -> None:
    voter = Voter()
    assert voter.receive(append(4, list(LOG), 0, 4, term=3)) == []
    assert voter.write() == [AppendAnswer(3, True, 4, 0, 1.0)]


def test_a_leader_sends_before_it_has_written_and_its_signs_of_life_do_not_wait() -> None:
    voter = Voter()
    voter.lead()
    voter.said()
    assert voter.core.propose(b"command") == (6, 2)
    voter.core.tick(voter.now)
    assert [len(message.entries) for message in voter.said() if isinstance(message, AppendEntries)] == [1, 1]
    beats = voter.pass_time(0.3)
    assert len(beats) >= 8 and all(isinstance(message, AppendEntries) and not message.entries for message in beats)
    # Two others make a majority without it.
    for peer in ("v2", "v3"):
        voter.receive(AppendAnswer(2, True, 6, 0, voter.now), peer)
    assert voter.core.kept.commit == 6 and voter.core.kept.durable == 4


def test_acknowledgements_of_another_term_and_to_followers_do_not_count() -> None:
    voter = Voter()
    voter.receive(AppendAnswer(1, True, 4, 0, 1.0))
    assert voter.core.kept.commit == 0
    voter.lead()
    voter.write()
    voter.receive(AppendAnswer(1, True, 5, 0, voter.now))
    assert voter.core.kept.commit == 0 and voter.core.lease(voter.now) == float("-inf")
    voter.receive(AppendAnswer(2, True, 5, 0, voter.now))
    assert voter.core.kept.commit == 5 and voter.core.lease(voter.now) == voter.now


def test_entries_of_earlier_terms_are_committed_with_one_of_the_leaders_own_only() -> None:
    voter = Voter()
    voter.lead()
    voter.write()
    voter.receive(AppendAnswer(2, True, 4, 0, voter.now))
    assert voter.core.kept.commit == 0
    voter.receive(AppendAnswer(2, True, 5, 0, voter.now))
    assert voter.core.kept.commit == 5


def test_who_was_started_anew_has_to_acknowledge_anew() -> None:
    voter = Voter()
    assert voter.core.connected("v2", (1, "a"), None)
    voter.lead()
    voter.core.propose(b"command")
    voter.write()
    voter.receive(AppendAnswer(2, True, 6, 0, voter.now))
    assert voter.core.connected("v2", (2, "b"), None)
    assert voter.core.leading is not None
    assert voter.core.leading.committed(6) == 0


def test_a_disk_that_waits_too_much_is_given_no_more() -> None:
    voter = Voter()
    voter.lead()
    while voter.core.propose(b"x" * 250_000) is not None:
        assert voter.core.log.size_bytes < 2 * MAX_UNWRITTEN_BYTES
        for peer in ("v2", "v3"):
            voter.receive(AppendAnswer(2, True, voter.core.log.last_index, 0, voter.now), peer)
    assert voter.core.kept.commit == voter.core.log.last_index
    voter.write()
    assert voter.core.propose(b"x") is not None
    follower = Voter()
    index = 4
    while True:
        entry = RaftEntry(index + 1, 1, b"x" * 250_000)
        said = follower.receive(AppendEntries(1, index, 1, (entry,), 0, 1.0, True))
        if said:
            break
        index += 1
        assert index < 100
    assert said == [AppendAnswer(1, False, 0, index, 1.0)], "the leader is told from where to send again"
    follower.write()
    assert follower.receive(AppendEntries(1, index, 1, (entry,), 0, 1.0, True)) == []


def test_commands_that_no_majority_writes_do_not_pile_up() -> None:
    voter = Voter()
    voter.lead()
    while voter.core.propose(b"x" * 250_000) is not None:
        voter.write()
        assert voter.core.log.size_bytes < 2 * MAX_UNCOMMITTED_BYTES
    voter.receive(AppendAnswer(2, True, voter.core.log.last_index, 0, voter.now))
    assert voter.core.propose(b"x") is not None


# Logs


def test_a_late_append_entries_cuts_no_acknowledged_entry() -> None:
    voter = Voter((), term=0)
    voter.receive(append(0, [*LOG, 1], 5, 3, term=1))
    assert voter.write() == [AppendAnswer(1, True, 5, 0, 1.0)]
    assert voter.receive(append(1, [*LOG, 1], 1, 1, term=1)) == [AppendAnswer(1, True, 5, 0, 1.0)]
    assert voter.terms() == [1] * 5 and voter.core.kept.commit == 3


def test_a_newer_leader_replaces_what_was_not_committed_and_nothing_else() -> None:
    voter = Voter()
    voter.receive(append(4, list(LOG), 0, 2, term=1))
    newer = [1, 1, 2, 2]
    voter.receive(append(2, newer, 2, 2, term=2), "v3")
    assert voter.write() == [AppendAnswer(2, True, 4, 0, 1.0)]
    assert voter.terms() == newer
    with pytest.raises(Diverged, match="committed"):
        voter.receive(append(1, [1, 3, 3], 2, 1, term=3))
    assert voter.terms() == newer


def test_a_part_of_a_snapshot_is_a_sign_of_life_too() -> None:
    voter = Voter()
    for _ in range(100):
        voter.receive(SnapshotPart(1, 50, 1, 10, 0, 0, b"", voter.now, True))
        assert not any(isinstance(message, PreVote) for message in voter.pass_time(0.1))
    assert voter.core.leader == "v2"


# Lives


def test_a_disk_that_went_back_is_refused_and_told_so() -> None:
    voter = Voter()
    assert voter.core.connected("v2", (5, "a"), None)
    assert voter.core.connected("v2", (5, "a"), None), "the same life may connect again"
    assert not voter.core.connected("v2", (4, "b"), None)
    assert not voter.core.connected("v2", (5, "c"), None)
    assert voter.core.connected("v2", (6, "d"), None)
    count, _ = voter.core.kept.state.life
    assert not voter.core.connected("v3", (1, "a"), (count + 3, "later"))
    assert voter.core.kept.state.life[0] == count + 4
    assert not voter.core.kept.state.whole
    assert voter.core.connected("v3", (1, "a"), (count + 3, "later"))
