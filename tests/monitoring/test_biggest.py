"""Which topics and groups have a series of their own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lsmq_node.monitoring.biggest import biggest

SIZES = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(0, 50))


def test_the_biggest_are_chosen() -> None:
    assert biggest([], {"a": 1, "b": 5, "c": 3}, 2) == {"b", "c"}
    assert biggest([], {"a": 1}, 0) == set()


def test_there_is_room_for_those_without_anything() -> None:
    assert biggest([], {"a": 0, "b": 0}, 2) == {"a", "b"}


def test_one_that_has_a_series_stays_until_another_is_much_bigger() -> None:
    assert biggest(["a"], {"a": 5, "b": 10}, 1) == {"a"}
    assert biggest(["a"], {"a": 5, "b": 11}, 1) == {"b"}
    assert biggest(["a", "c"], {"a": 5, "b": 100, "c": 6}, 2) == {"b", "c"}, "the least makes room"


def test_one_that_is_idle_gives_way() -> None:
    assert biggest(["a"], {"b": 1}, 1) == {"b"}


@given(st.sets(st.sampled_from("abcdefghij"), max_size=4), SIZES, st.integers(4, 6))
def test_nobody_without_a_series_is_much_bigger_than_one_with(
    before: set[str], sizes: dict[str, int], limit: int
) -> None:
    chosen = biggest(before, sizes, limit)
    assert len(chosen) == min(limit, len(before | sizes.keys()))
    assert biggest(chosen, sizes, limit) == chosen, "what is settled stays"
    least = min((sizes.get(key, 0) for key in chosen), default=0)
    assert all(sizes[key] <= 2 * least for key in sizes.keys() - chosen)
