"""Epoch histories: where two logs part is found from epochs and starts alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_node.replication import EpochHistory, LogPosition, common_end


def test_an_empty_log_is_a_prefix_of_any() -> None:
    assert common_end(EpochHistory.of(((1, 0), (3, 50))), 80, EpochHistory(), 0) == 0


def test_a_log_that_ends_earlier_is_cut_nowhere() -> None:
    leader = EpochHistory.of(((1, 0), (3, 50)))
    assert common_end(leader, 80, EpochHistory.of(((1, 0),)), 30) == 30
    assert common_end(leader, 80, leader, 70) == 70


def test_an_epoch_the_leader_never_saw_is_cut() -> None:
    """The shared epoch ends sooner in the follower's log than in the leader's: what follows there is foreign."""
    leader, follower = EpochHistory.of(((1, 0), (3, 120))), EpochHistory.of(((1, 0), (2, 100)))
    assert common_end(leader, 200, follower, 150) == 100
    assert common_end(follower, 150, leader, 200) == 100


def test_an_epoch_that_the_leader_ended_sooner_is_cut_to_there() -> None:
    leader, follower = EpochHistory.of(((1, 0), (2, 100))), EpochHistory.of(((1, 0),))
    assert common_end(leader, 200, follower, 150) == 100


def test_the_same_epoch_with_another_start_is_not_shared() -> None:
    assert common_end(EpochHistory.of(((1, 0), (2, 60))), 90, EpochHistory.of(((1, 0), (2, 40))), 90) == 40


def test_histories_that_share_nothing_say_so() -> None:
    tail = EpochHistory(EpochHistory.of(((4, 100),)).starts[1:])
    assert common_end(tail, 200, EpochHistory.of(((1, 0),)), 50) is None


def test_a_history_is_clipped_with_its_log() -> None:
    history = EpochHistory.of(((1, 0), (3, 50)))
    assert history.clip(50) == EpochHistory.of(((1, 0),))
    assert history.position(51) == LogPosition(3, 51)
    assert history.position(50) == LogPosition(1, 50)
    assert history.position(0) == LogPosition(0, 0)


def test_epochs_must_rise() -> None:
    with pytest.raises(AssertionError, match="do not rise"):
        EpochHistory.of(((2, 0), (1, 10)))


@st.composite
def families(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Two logs as they can come to be: each epoch extends a prefix of some log that was there before it."""
    logs: list[list[tuple[int, ...]]] = [[]]
    for epoch in range(1, draw(st.integers(1, 6)) + 1):
        base = draw(st.sampled_from(logs))
        kept = base[: draw(st.integers(0, len(base)))]
        grown = [*kept, *((epoch, number) for number in range(draw(st.integers(1, 5))))]
        logs += [grown[:end] for end in range(len(kept) + 1, len(grown) + 1)]
    return draw(st.sampled_from(logs)), draw(st.sampled_from(logs))


def history_of(log: list[tuple[int, ...]]) -> EpochHistory:
    return EpochHistory.of(tuple((epoch, lsn) for lsn, (epoch, number) in enumerate(log) if number == 0))


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
