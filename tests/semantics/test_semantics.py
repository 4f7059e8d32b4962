"""All that messages may be told to do, against a plain model: a real cluster, restarts, failovers, clocks that jump.

The cluster is the daemon as it is, in a world whose time, disks and network follow from a seed. A plan goes through a
few areas, so that each of them is seen in depth, beside others. What hypothesis finds it prints as a seed and steps,
for :func:`.played.play`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.extent import part_in_number

from .areas import AREAS
from .broken import BROKEN, nobody_looks_for_what_rests_and_goes, what_is_gone_holds_its_key
from .played import BEFALLS, Player, Step, play

#: So many areas are in a plan.
_MOST_AREAS = 4
#: One step of so many befalls the cluster.
_BEFALLS_OF = 8


def steps_of(areas: list[str]) -> st.SearchStrategy[Step]:
    deeds = [f"{area}.{deed}" for area in areas for deed in AREAS[area].deeds]
    befalls = BEFALLS * max(1, round(len(deeds) / len(BEFALLS) / (_BEFALLS_OF - 1)))
    numbers = st.integers(0, 59)
    return st.tuples(st.sampled_from((*deeds, *befalls)), numbers, numbers, numbers)


def plans(least: int, most: int) -> st.SearchStrategy[list[Step]]:
    areas = st.lists(st.sampled_from(sorted(AREAS)), min_size=2, max_size=_MOST_AREAS, unique=True)
    return areas.flatmap(lambda chosen: st.lists(steps_of(chosen), min_size=least, max_size=most))


def test_each_deed_of_a_plan_is_there() -> None:
    assert all(hasattr(area, deed) for area in AREAS.values() for deed in area.deeds)
    assert all(hasattr(Player, befall) for befall in BEFALLS)


def profile(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@profile(part_in_number(8, 4))
@given(st.integers(0, 999), plans(20, 40))
@pytest.mark.part(3)
def test_a_cluster_means_what_the_model_says(seed: int, plan: list[Step]) -> None:
    play(seed, plan)


@pytest.mark.slow
@profile(part_in_number(60, 10))
@given(st.integers(1_000, 9_999), plans(40, 80))
def test_longer_lives_mean_what_the_model_says(seed: int, plan: list[Step]) -> None:
    play(seed, plan)


def test_each_area_has_something_that_is_broken_in_it() -> None:
    assert {area for area, _ in BROKEN} == AREAS.keys()


@pytest.mark.slow
@pytest.mark.part(4)
@pytest.mark.parametrize(("area", "broken"), BROKEN, ids=[f"{area}-{broken.__name__}" for area, broken in BROKEN])
def test_what_is_broken_on_purpose_is_found_by_one_plan_of_ten(
    area: str, broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    deeds = [f"{area}.{deed}" for deed in AREAS[area].deeds]
    befalls = ["kill", "settle"]
    for seed in range(10):
        chance = Random(seed)
        names = [chance.choice(deeds if chance.random() < 0.9 else befalls) for _ in range(50)]
        plan: list[Step] = [(name, *(chance.randrange(60) for _ in range(3))) for name in names]
        try:
            play(seed, plan)
        except AssertionError:
            return
    pytest.fail("ten plans found nothing wrong")


@pytest.mark.parametrize("broken", [nobody_looks_for_what_rests_and_goes, what_is_gone_holds_its_key])
def test_whoever_waits_for_what_rests_and_is_deleted_comes(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of one key: the first is given back for a day, and deleted."""
    plan: list[Step] = [
        *(("keyed.send", 0, 2, 1), ("keyed.pop", 0, 0, 1), ("keyed.settle", 3, 2, 0)),
        *(("keyed.remove", 0, 3, 0), ("settle", 0, 0, 0)),
    ]
    play(2, plan)
    broken(monkeypatch)
    with pytest.raises(AssertionError, match="nobody was given"):
        play(2, plan)
