"""Lanes and chains in arrays against dictionaries and lists; what a tenant takes, and that who went takes nothing."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_node.workqueue import lanes as lanes_module
from lsmq_node.workqueue.lanes import NONE, Chains, Lanes
from lsmq_node.workqueue.turns import TenantTurns
from support.extent import part_in_number

DEEDS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30), st.integers(0, 2)), max_size=300)


@settings(deadline=None)
@given(DEEDS, st.sampled_from([1, 1 << 32, 1 << 59]))
def test_lanes_are_found_whoever_comes_and_goes(deeds: list[tuple[int, int, int]], stride: int) -> None:
    """With strides for which many tenants begin the search at one place."""
    lanes, model = Lanes(), dict[tuple[int, int], int]()
    for what, number, level in deeds:
        tenant = number * stride % (1 << 64)
        lane = lanes.find(level, tenant)
        assert lane == model.get((level, tenant), NONE)
        if lane == NONE:
            model[level, tenant] = lanes.add(level, tenant)
        elif what < 5:
            lanes.remove(lane)
            del model[level, tenant]
        assert lanes.count == len(model)
    for (level, tenant), lane in model.items():
        assert lanes.find(level, tenant) == lane
        assert (lanes.tenants[lane], lanes.levels[lane]) == (tenant, level)


@settings(deadline=None)
@given(DEEDS, st.booleans())
def test_chains_give_what_was_put_in_its_order(deeds: list[tuple[int, int, int]], timed: bool) -> None:
    chains, tails, model = Chains(), [NONE] * 3, [deque[int]() for _ in range(3)]
    for count, (what, number, which) in enumerate(deeds):
        if what < 6:
            tails[which] = chains.push(tails[which], number, count, 7 * count if timed else None)
            model[which].append(count)
        elif model[which]:
            assert chains.first_time(tails[which]) == (7 * model[which][0] if timed else 0)
            queue, offset, tails[which] = chains.pop(tails[which])
            assert offset == model[which].popleft() and queue == deeds[offset][1]
        else:
            assert tails[which] == NONE
        if what == 9:
            other = Chains()
            tails = [chains.moved_to(other, tail) for tail in tails]
            chains = other
        assert chains.count == sum(map(len, model))


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 12), st.integers(0, 2)), st.integers(1, 9)), max_size=120),
    st.sampled_from([0, 2]),
)
def test_turns_are_the_same_wherever_they_lie(deeds: list[tuple[int, int] | int], cap: int) -> None:
    """Made anew at each chance, and never: nobody can tell. With ``cap`` so many of a tenant may be taken at a time."""

    def play(slack: int, spare: int) -> list[object]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lanes_module, "_SLACK", slack)
            patch.setattr(lanes_module, "_SPARE", spare)
            flying: dict[int, int] = {}
            turns = TenantTurns({3: 2}, (lambda tenant: cap - flying.get(tenant, 0)) if cap else None)
            found: list[object] = []
            for number, deed in enumerate(deeds):
                if isinstance(deed, tuple):
                    turns.add(deed[1], deed[0], 0, number)
                    continue
                for turn in turns.take(deed):
                    found.append(turn)
                    flying[turn.tenant] = flying.get(turn.tenant, 0) + 1
                if deed % 2:
                    for tenant in list(flying):
                        del flying[tenant]
                        turns.unpark(tenant)
            return [*found, turns.lane_count, turns.parked_count]

    assert play(1, 0) == play(4, 1_024)


def test_a_million_tenants_take_less_than_27_bytes_each_and_none_when_they_have_nothing() -> None:
    # Tables grow by doubling: an eighth of a million fills them as far as a million does.
    count, chance = part_in_number(1_000_000, 8), random.Random(1)
    turns = TenantTurns({})
    nothing = turns.size_bytes
    for number in range(count):
        turns.add(0, chance.getrandbits(64), 0, number)
    assert turns.lane_count == count
    assert turns._chains.size_bytes == 16 * count
    assert turns._lanes.size_bytes < 27 * count
    for number, turn in enumerate(turns.take(count)):
        assert turn.item == (0, number)
        if number == count * 99 // 100:
            assert turns.size_bytes < 2 * count
    assert (turns.lane_count, turns.size_bytes) == (0, nothing)
