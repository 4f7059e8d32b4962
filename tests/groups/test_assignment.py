"""Who should own which queues: even shares, every queue once, and nothing moves that need not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_node.groups.assignment import Demand, assign, max_pieces
from lsmq_node.groups.ranges import (
    Ranges,
    clip,
    count,
    each,
    flat,
    from_flat,
    intersect,
    normal,
    overlap,
    subtract,
    union,
)

pieces = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def queues(ranges: Ranges) -> set[int]:
    return set(each(ranges))


@given(pieces, pieces, st.integers(0, 40))
def test_sets_of_ranges_are_sets_of_queues(left: list[tuple[int, int]], right: list[tuple[int, int]], end: int) -> None:
    one, other = normal(left), normal(right)
    a, b = queues(one), queues(other)
    assert a == {queue for first, last in left for queue in range(first, last)}
    assert count(one) == len(a)
    for found, expected in (
        (union(one, other), a | b),
        (subtract(one, other), a - b),
        (intersect(one, other), a & b),
        (clip(one, end), {queue for queue in a if queue < end}),
    ):
        assert queues(found) == expected
        assert found == normal(found), "sorted, disjoint, not touching, not empty"
    assert overlap(one, other) == bool(a & b)
    assert from_flat(flat(one)) == one


members = st.sets(st.sampled_from([f"m{number}" for number in range(12)]), max_size=12).map(lambda some: tuple(some))
steps = st.lists(st.tuples(members, st.integers(1, 60)), min_size=1, max_size=8)


@given(steps)
def test_shares_are_even_and_whole_and_only_what_is_too_much_moves(steps: list[tuple[tuple[str, ...], int]]) -> None:
    shares: dict[str, Ranges] = {}
    for names, total in steps:
        before, demand = shares, Demand(total, names)
        shares = assign({"t": demand}, {"t": before})["t"]
        assert shares == assign({"t": Demand(total, names[::-1])}, {"t": dict(reversed(before.items()))})["t"]
        if not names:
            assert shares == {}
            continue
        owned = [queue for ranges in shares.values() for queue in each(ranges)]
        assert sorted(owned) == list(range(total)), "every queue once"
        sizes = [count(shares.get(name, ())) for name in names]
        assert max(sizes) - min(sizes) <= 1
        floor, rest = divmod(total, len(names))
        held = sorted((count(clip(before.get(name, ()), total)) for name in names), reverse=True)
        quotas = [floor + (place < rest) for place in range(len(names))]
        must_move = total - sum(min(size, quota) for size, quota in zip(held, quotas, strict=True))
        stayed = sum(count(intersect(ranges, before.get(name, ()))) for name, ranges in shares.items())
        assert total - stayed == must_move


@given(st.lists(members, min_size=1, max_size=6), st.integers(1, 10))
@settings(max_examples=50)
def test_many_topics_of_few_queues_are_spread_over_all_members(rounds: list[tuple[str, ...]], queues: int) -> None:
    names = [f"t{number}" for number in range(24)]
    shares: dict[str, dict[str, Ranges]] = {}
    for some in rounds:
        shares = assign({name: Demand(queues, some) for name in names}, shares)
        totals = [sum(count(shares[name].get(member, ())) for name in names) for member in some]
        assert not totals or max(totals) - min(totals) <= 1


def test_a_topic_is_shared_by_those_who_subscribe_to_it() -> None:
    shares = assign({"a": Demand(10, ("x", "y")), "b": Demand(3, ("y",)), "c": Demand(5, ())}, {})
    assert {name: sorted(shares[name]) for name in shares} == {"a": ["x", "y"], "b": ["y"], "c": []}
    assert shares["b"]["y"] == ((0, 3),)


def test_a_first_share_is_one_range_a_member() -> None:
    assert assign({"t": Demand(10, ("c", "a", "b"))}, {})["t"] == {"a": ((0, 4),), "b": ((4, 7),), "c": ((7, 10),)}


def test_a_member_that_leaves_and_comes_back_leaves_no_more_pieces_than_before() -> None:
    names = tuple(f"m{number}" for number in range(10))
    shares = assign({"t": Demand(1_000_000, names)}, {})
    for number in range(40):
        gone = names[number % 10]
        shares = assign({"t": Demand(1_000_000, tuple(name for name in names if name != gone))}, shares)
        shares = assign({"t": Demand(1_000_000, names)}, shares)
    assert sum(map(len, shares["t"].values())) <= max_pieces(10)


@pytest.mark.parametrize(("members", "total"), [(1_000, 1_000_000), (1_000, 10), (1, 16_000_000)])
def test_large_groups_and_topics_cost_ranges_not_queues(members: int, total: int) -> None:
    names = tuple(f"m{number:04}" for number in range(members))
    shares = assign({"t": Demand(total, names)}, {})
    assert sum(count(ranges) for ranges in shares["t"].values()) == total
    assert len(shares["t"]) == min(members, total)
    fewer = assign({"t": Demand(total, names[:-1])}, shares)
    assert sum(map(len, fewer.get("t", {}).values())) <= max_pieces(members)
