"""Epoch histories: where two logs part is found from epochs and starts alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.lives import LifeId
from lsmq_node.replication import EpochHistory, EpochStart, LogPosition, common_end

#: Who began an epoch, unless a test says something else.
SOMEBODY = LifeId(77, 1)
ANOTHER = LifeId(88, 1)


def history(*starts: tuple[int, int] | tuple[int, int, LifeId]) -> EpochHistory:
    return EpochHistory.of(EpochStart(*start) if len(start) == 3 else EpochStart(*start, SOMEBODY) for start in starts)


def test_an_empty_log_is_a_prefix_of_any() -> None:
    assert common_end(history((1, 0), (3, 50)), 80, EpochHistory(), 0) == 0


def test_a_log_that_ends_earlier_is_cut_nowhere() -> None:
    leader = history((1, 0), (3, 50))
    assert common_end(leader, 80, history((1, 0)), 30) == 30
    assert common_end(leader, 80, leader, 70) == 70


def test_an_epoch_the_leader_never_saw_is_cut() -> None:
    """The shared epoch ends sooner in the follower's log than in the leader's: what follows there is foreign."""
    leader, follower = history((1, 0), (3, 120)), history((1, 0), (2, 100))
    assert common_end(leader, 200, follower, 150) == 100
    assert common_end(follower, 150, leader, 200) == 100


def test_an_epoch_that_the_leader_ended_sooner_is_cut_to_there() -> None:
    leader, follower = history((1, 0), (2, 100)), history((1, 0))
    assert common_end(leader, 200, follower, 150) == 100


def test_the_same_epoch_with_another_start_is_not_shared() -> None:
    assert common_end(history((1, 0), (2, 60)), 90, history((1, 0), (2, 40)), 90) == 40


def test_the_same_epoch_at_the_same_place_begun_by_another_life_is_not_shared() -> None:
    """The bytes behind it differ, however alike the two look: one of them is cut off where they part."""
    mine = history((1, 0), (7, 90))
    theirs = history((1, 0), (7, 90, ANOTHER))
    assert common_end(mine, 200, theirs, 150) == common_end(theirs, 150, mine, 200) == 90
    assert common_end(mine, 200, history((1, 0, ANOTHER)), 80) == 0


def test_histories_that_share_nothing_say_so() -> None:
    tail = EpochHistory(history((4, 100)).starts[1:])
    assert common_end(tail, 200, history((1, 0)), 50) is None


def test_a_history_is_clipped_with_its_log() -> None:
    whole = history((1, 0), (3, 50))
    assert whole.clip(50) == history((1, 0))
    assert whole.position(51) == LogPosition(3, 51)
    assert whole.position(50) == LogPosition(1, 50)
    assert whole.position(0) == LogPosition(0, 0)


def test_epochs_must_rise() -> None:
    with pytest.raises(AssertionError, match="do not rise"):
        history((2, 0), (1, 10))


@st.composite
def families(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Two logs as they can come to be: each epoch extends a prefix of some log that was there before it; and as they
    should not, by epochs that several lives begin."""
    logs: list[list[tuple[int, ...]]] = [[]]
    for life in range(1, draw(st.integers(1, 6)) + 1):
        base = draw(st.sampled_from(logs))
        kept = base[: draw(st.integers(0, len(base)))]
        epoch = draw(st.integers(1, 3)) + (kept[-1][0] if kept else 0)
        grown = [*kept, *((epoch, life, number) for number in range(draw(st.integers(1, 5))))]
        logs += [grown[:end] for end in range(len(kept) + 1, len(grown) + 1)]
    return draw(st.sampled_from(logs)), draw(st.sampled_from(logs))


def history_of(log: list[tuple[int, ...]]) -> EpochHistory:
    """Of a log of entries (epoch, life, number), a byte each."""
    return history(*((epoch, lsn, LifeId(life, 1)) for lsn, (epoch, life, number) in enumerate(log) if number == 0))


@given(families())
def test_the_common_prefix_is_found_for_all_logs_that_can_come_to_be(
    logs: tuple[list[tuple[int, ...]], list[tuple[int, ...]]],
) -> None:
    mine, theirs = logs
    found = common_end(history_of(mine), len(mine), history_of(theirs), len(theirs))
    same = 0
    while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
        same += 1
    assert found == same


@given(families(), st.data())
def test_logs_that_were_recycled_are_compared_as_well_as_far_as_they_reach(
    logs: tuple[list[tuple[int, ...]], list[tuple[int, ...]]], data: st.DataObject
) -> None:
    """Each forgot the epochs before its beginning; what one has applied reaches to where the other begins, and is in
    it. What they share is found as if they were whole."""
    mine, theirs = logs
    same = 0
    while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
        same += 1
    applied = data.draw(st.integers(0, same))
    starts = [data.draw(st.integers(0, applied)) for _ in range(2)]
    found = common_end(history_of(mine).since(starts[0]), len(mine), history_of(theirs).since(starts[1]), len(theirs))
    assert found is not None and applied <= found <= same
    if max(starts) == 0:
        assert found == same


def test_epochs_before_the_beginning_of_the_log_are_forgotten_but_for_its_own() -> None:
    whole = history((1, 0), (3, 50), (4, 90), (6, 120))
    assert whole.since(0) == whole.since(-1) == whole
    assert [start.epoch for start in whole.since(50).starts] == [1, 3, 4, 6], "the entry at 50 is in the log"
    assert [start.epoch for start in whole.since(51).starts] == [3, 4, 6]
    assert [start.epoch for start in whole.since(1_000).starts] == [6]
    assert whole.since(100).since(60) == whole.since(100)
    assert EpochHistory().since(30) == EpochHistory()


def test_a_follower_knows_its_own_epochs_and_those_that_follow_in_its_leaders_log() -> None:
    """The leader may have forgotten what the follower's log still begins with, and the other way round."""
    whole = history((1, 0), (3, 50), (4, 90), (6, 120))
    for own in (whole.clip(80), whole.clip(80).since(70), whole.clip(120), EpochHistory()):
        for leaders in (whole, whole.since(60)):
            joined = own.followed_by(leaders)
            assert joined.starts[0] == own.starts[0]
            assert joined.starts[len(own.starts) :] == tuple(
                start for start in leaders.starts if start.epoch > own.last_epoch
            )
