"""All that messages may be told to do, against a plain model: a real cluster, restarts, failovers, clocks that jump.

The cluster is the daemon as it is, in a world whose time, disks and network follow from a seed. What hypothesis finds
it prints as a seed and steps, for :func:`.played.play`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lsmq_node.broker import selection
from lsmq_node.storage import search as searching
from lsmq_node.storage import shard_store
from lsmq_node.storage.queries import Queries
from lsmq_node.storage.retention import Gone, Retention
from lsmq_node.storage.search import SearchFound, SearchQuery
from lsmq_node.workqueue.burial import DeadLetterMover
from lsmq_node.workqueue.turns import TenantTurns, Turn
from simulation import test_uses
from support.extent import part_in_number

from .played import Player, Step, play

DEEDS = (
    "send",
    "send",
    "send",
    "read",
    "find",
    "delete",
    "keep",
    "name",
    "name",
    "list",
    "later",
    "later",
    "pop",
    "share",
    "share",
    "fill",
    "fill",
    "make_room",
    "move",
    "move",
    "eat",
    "eat",
    "doom",
    "doom",
    "empty",
)
RARE = ("ask", "ask", "see_who_left", "commit", "wait_for_later", "kill", "jump", "blackout", "settle")

numbers = st.integers(0, 59)
steps: st.SearchStrategy[Step] = st.tuples(st.sampled_from(DEEDS + DEEDS + RARE), numbers, numbers, numbers)


def test_each_deed_of_a_plan_is_there() -> None:
    assert all(hasattr(Player, f"_{name}") for name in DEEDS + RARE)


def profile(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@profile(part_in_number(4, 2))
@given(st.integers(0, 999), st.lists(steps, min_size=20, max_size=40))
@pytest.mark.part(3)
def test_a_cluster_means_what_the_model_says(seed: int, plan: list[Step]) -> None:
    play(seed, plan)


@pytest.mark.slow
@profile(part_in_number(25, 5))
@given(st.integers(1_000, 9_999), st.lists(steps, min_size=40, max_size=80))
def test_longer_lives_mean_what_the_model_says(seed: int, plan: list[Step]) -> None:
    play(seed, plan)


def a_turn_never_ends(patch: pytest.MonkeyPatch) -> None:
    take_turn = TenantTurns._take_turn

    def all_at_once(self: TenantTurns, level: int, limit: int) -> Iterator[Turn]:
        self._credits[level] = 1_000
        return take_turn(self, level, limit)

    patch.setattr(TenantTurns, "_take_turn", all_at_once)


def what_all_have_read_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retention, "_drop_consumed", lambda self, item, trim: Gone.ALL)


def the_dead_are_not_put_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeadLetterMover, "wake", lambda self: None)


def pages_leave_one_out(patch: pytest.MonkeyPatch) -> None:
    def search(queries: Queries, query: SearchQuery) -> SearchFound:
        queue, offset = query.begin
        return searching.search(queries, replace(query, begin=(queue, offset + (offset > 0))))

    patch.setattr(shard_store, "search", search)


def parts_of_names_are_any_rest(patch: pytest.MonkeyPatch) -> None:
    expression = selection._expression
    patch.setattr(selection, "_expression", lambda pattern: expression(re.sub(r"(?<!\*)\*$", "**", pattern)))


BROKEN: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    test_uses.ids_are_forgotten,
    test_uses.due_too_early,
    test_uses.deleted_queues_stay,
    test_uses.everything_is_picked,
    test_uses.trims_leave_a_message,
    test_uses.nothing_expires,
    test_uses.priorities_are_one,
    test_uses.queues_hold_twice_their_bytes,
    test_uses.what_a_queue_had_counts_for_nothing,
    a_turn_never_ends,
    what_all_have_read_stays,
    the_dead_are_not_put_away,
    pages_leave_one_out,
    parts_of_names_are_any_rest,
)


@pytest.mark.slow
@pytest.mark.part(4)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_what_is_broken_on_purpose_is_found_by_one_plan_of_ten(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    befalls = ("kill",) if broken is test_uses.what_a_queue_had_counts_for_nothing else ()
    for seed in range(10):
        chance = Random(seed)
        names = [chance.choice((*DEEDS, *befalls, "settle", "wait_for_later")) for _ in range(80)]
        plan: list[Step] = [(name, *(chance.randrange(60) for _ in range(3))) for name in names]
        try:
            play(seed, plan)
        except AssertionError:
            return
    pytest.fail("ten plans found nothing wrong")
