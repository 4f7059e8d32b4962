"""Who should own which queues: even shares, every queue once, and nothing moves that need not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_node.groups import assignment
from lsmq_node.groups.assignment import Demand, assign, max_pieces
from lsmq_node.groups.ranges import (
    RangePairs,
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
from support.extent import part_in_number

pieces = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def queues(ranges: RangePairs) -> set[int]:
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
    shares: dict[str, RangePairs] = {}
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


@given(st.lists(members, min_size=1, max_size=6), st.integers(1, 12))
@settings(max_examples=part_in_number(50, 3))
def test_topics_of_fewer_queues_than_members_are_spread_over_all_members(
    rounds: list[tuple[str, ...]], queues: int
) -> None:
    names = [f"t{number}" for number in range(24)]
    shares: dict[str, dict[str, RangePairs]] = {}
    for some in rounds:
        shares = assign({name: Demand(queues, some) for name in names}, shares)
        totals = [sum(count(shares[name].get(member, ())) for name in names) for member in some]
        assert queues >= len(some) or max(totals) - min(totals) <= 1


few = st.lists(
    st.tuples(st.integers(1, 7), st.sets(st.sampled_from("abc"), min_size=1)).map(
        lambda pair: Demand(pair[0], tuple(pair[1]))
    ),
    min_size=2,
    max_size=4,
)


def choices(demand: Demand, before: dict[str, RangePairs]) -> tuple[int, list[dict[str, int]]]:
    """How many queues of a topic must move, and all the ways to share it out in which no more do: sizes by member."""
    share, rest = divmod(demand.queues, len(demand.members))
    held = {member: count(clip(before.get(member, ()), demand.queues)) for member in demand.members}
    ways: dict[int, list[dict[str, int]]] = {}
    for lucky in combinations(demand.members, rest):
        sizes = {member: share + (member in lucky) for member in demand.members}
        moved = demand.queues - sum(min(held[member], size) for member, size in sizes.items())
        ways.setdefault(moved, []).append(sizes)
    return min(ways), ways[min(ways)]


def unevenness(ways: Iterable[dict[str, int]]) -> int:
    """The sum of the squares of what members own in all."""
    totals: Counter[str] = Counter()
    for sizes in ways:
        totals.update(sizes)
    return sum(total * total for total in totals.values())


@given(few, few)
@settings(max_examples=part_in_number(300, 3))
def test_of_several_topics_only_what_must_move_moves_and_totals_are_as_even_as_that_allows(
    first: list[Demand], then: list[Demand]
) -> None:
    """Against all the ways there are."""
    before = assign({f"t{at}": demand for at, demand in enumerate(first)}, {})
    demands = {f"t{at}": demand for at, demand in enumerate(then)}
    shares = assign(demands, before)
    assert shares == assign({name: Demand(one.queues, one.members[::-1]) for name, one in demands.items()}, before)
    found: list[dict[str, int]] = []
    ways: list[list[dict[str, int]]] = []
    for name, demand in demands.items():
        had = before.get(name, {})
        must_move, possible = choices(demand, had)
        sizes = {member: count(shares[name].get(member, ())) for member in demand.members}
        stayed = sum(count(intersect(ranges, had.get(member, ()))) for member, ranges in shares[name].items())
        if demand.queues >= len(demand.members):
            assert demand.queues - stayed == must_move
            assert sizes in possible
        else:  # any of them may move, to even out
            possible = [
                {member: int(member in lucky) for member in demand.members}
                for lucky in combinations(demand.members, demand.queues)
            ]
        found.append(sizes)
        ways.append(possible)
    assert unevenness(found) == min(map(unevenness, product(*ways)))


def test_who_joins_or_leaves_moves_nothing_between_others() -> None:
    names = [f"t{number}" for number in range(10)]
    shares = assign({name: Demand(8, ("a", "b", "c")) for name in names}, {})
    for some in (("a", "b", "c", "d"), ("a", "b", "d"), ("b", "d"), ("b", "d", "e"), ("b", "e")):
        before = shares
        shares = assign({name: Demand(8, some) for name in names}, before)
        stayed = {member for name in names for member in before[name]} & set(some)
        for name in names:
            for member in stayed:
                gained = subtract(shares[name].get(member, ()), before[name].get(member, ()))
                others = (before[name].get(other, ()) for other in stayed - {member})
                assert not intersect(gained, union(*others)), f"{member} took queues of {name} from who stays"


def test_a_member_that_joins_gets_its_part_of_topics_of_one_queue() -> None:
    names = [f"t{number}" for number in range(24)]
    alone = assign({name: Demand(1, ("a",)) for name in names}, {})
    both = assign({name: Demand(1, ("a", "b")) for name in names}, alone)
    assert [sum(member in both[name] for name in names) for member in "ab"] == [12, 12]
    assert assign({name: Demand(1, ("a", "b")) for name in names}, both) == both


def test_many_members_of_many_topics_are_evened_out_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"m{number:03}" for number in range(60))
    demands = {f"t{number}": Demand(7 * (number % 5 + 1), names[number % 7 :: number % 3 + 1]) for number in range(60)}
    shares = assign(demands, {})
    monkeypatch.setattr(assignment, "_MOST_STEPS", 10)
    hasty = assign(demands, {})
    for found in (shares, hasty):
        for name, demand in demands.items():
            sizes = [count(found[name].get(member, ())) for member in demand.members]
            assert sum(sizes) == demand.queues and max(sizes) - min(sizes) <= 1


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


def test_many_members_of_many_topics_of_few_queues_cost_the_queues_not_members_times_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = tuple(f"m{number:03}" for number in range(300))
    demands = {f"t{number:03}": Demand(2, names) for number in range(300)}
    looks = Counter[str]()
    counted = assignment.count
    monkeypatch.setattr(assignment, "count", lambda ranges: looks.update(["count"]) or counted(ranges))
    shares = assign(demands, {})
    assert Counter(member for found in shares.values() for member in found) == Counter(dict.fromkeys(names, 2))
    assert assign(demands, shares) == shares
    assert looks["count"] < 20 * 600
