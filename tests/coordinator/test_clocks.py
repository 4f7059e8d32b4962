"""Whose wall clock is wrong: only what more than half of all nodes show counts against another."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.clocks import SAME_MS, ahead_of_most

MONTH_MS = 30.0 * 86_400_000


@pytest.mark.parametrize("wrong_ms", [MONTH_MS, -MONTH_MS])
def test_one_of_three_is_as_far_off_as_it_is_and_the_others_are_right(wrong_ms: float) -> None:
    clocks = {"n1": 0.0, "n2": 40.0, "n3": wrong_ms}
    assert ahead_of_most("n3", clocks, 3) == wrong_ms - 20
    assert (ahead_of_most("n1", clocks, 3), ahead_of_most("n2", clocks, 3)) == (-20, 20)


@pytest.mark.parametrize(
    ("clocks", "nodes"),
    [
        ({"n1": 0.0, "n2": MONTH_MS}, 2),
        ({"n1": 0.0, "n2": MONTH_MS}, 3),  # the third was not heard yet, or is dead
        ({"n1": 0.0}, 3),
        ({"n1": 0.0, "n2": 0.0, "n3": MONTH_MS, "n4": MONTH_MS}, 4),
        ({"n1": 0.0, "n2": SAME_MS + 1, "n3": 2 * SAME_MS + 2}, 3),
        ({}, 3),
    ],
)
def test_where_no_more_than_half_show_the_same_nobody_is_told_to_be_wrong(clocks: dict[str, float], nodes: int) -> None:
    assert [ahead_of_most(node, clocks, nodes) for node in ("n1", "n2", "n3", "n4")] == [None] * 4


def test_of_a_node_that_was_not_measured_nothing_is_known() -> None:
    assert ahead_of_most("n3", {"n1": 0.0, "n2": 1.0}, 3) is None


@given(
    st.lists(st.floats(-SAME_MS / 2, SAME_MS / 2), min_size=2, max_size=5),
    st.lists(st.floats(-1e10, 1e10), max_size=1),
)
def test_who_is_among_most_is_never_taken_for_wrong(right: list[float], others: list[float]) -> None:
    clocks = {f"n{number}": ms for number, ms in enumerate((*right, *others))}
    for number in range(len(right)):
        off_ms = ahead_of_most(f"n{number}", clocks, len(clocks))
        assert off_ms is not None and abs(off_ms) <= SAME_MS
    if others and abs(others[0]) > 4 * SAME_MS:
        off_ms = ahead_of_most(f"n{len(right)}", clocks, len(clocks))
        assert off_ms is not None and abs(off_ms - (others[0] - median(right))) < 1e-3
