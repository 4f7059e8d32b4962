"""A limit that is kept by dropping what is old, over several shards that know what they were told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsmq_node.storage import TopicOptions
from lsmq_node.storage.shares import Holding, Measurement, ToldFloors, kept_share, rest_of

from .harness import abandon, put, retain
from .test_retention import Bench

_LIMIT = 10


@given(st.integers(1, 40), st.lists(st.integers(0, 60), min_size=1, max_size=6), st.data())
def test_the_parts_of_a_limit_are_the_limit_together(limit: int, held: list[int], data: st.DataObject) -> None:
    def part(at: int, held: list[int]) -> int:
        return kept_share(limit, held[at], [*held[:at], *held[at + 1 :]], at)

    parts = [part(at, held) for at in range(len(held))]
    if sum(held) <= limit:
        assert parts == [limit] * len(held), "nothing is over"
        return
    assert sum(parts) == limit
    assert all(kept <= each for kept, each in zip(parts, held, strict=True))
    at = data.draw(st.integers(0, len(held) - 1))
    less = [each if other == at else data.draw(st.integers(0, each)) for other, each in enumerate(held)]
    more = [each + 3 * (other == at) for other, each in enumerate(held)]
    assert min(part(at, less), part(at, more)) >= parts[at], "no part is less where a shard holds more, or others less"


def test_parts_lie_as_the_messages_do() -> None:
    assert (kept_share(100, 150, [50], 0), kept_share(100, 50, [150], 1)) == (75, 25)
    assert (kept_share(5, 40, [40], 0), kept_share(5, 40, [40], 1)) == (3, 2), "of two that hold as much, the first"
    assert [kept_share(2, 9, [9] * 4, place) for place in range(5)] == [1, 1, 0, 0, 0], "fewer than there are shards"


def test_a_shard_is_bound_by_the_floors_that_others_may_count_on() -> None:
    told = ToldFloors()
    floors = ((70, 30), (90, 10), (50, 50), (60, 40))
    assert [told.note(Holding(*floor)) for floor in floors] == [1, 2, 3, 4]
    assert [told.floor(heard) for heard in (0, 2, 3, 4, 5)] == [
        Holding(90, 50),
        Holding(90, 50),
        Holding(60, 50),
        Holding(60, 40),
        Holding(),
    ]
    for messages in range(1_000):
        told.note(Holding(messages))
    assert told.floor(0) == Holding(999) and len(told._floors) < 100


class Shards:
    """Stores of which each has a queue of one topic. ``said``: what each of them knows of each other."""

    def __init__(self, root: Path, count: int, options: TopicOptions) -> None:
        self.benches = [Bench(root / f"{number}") for number in range(count)]
        [self.topic_id] = {bench.store.create_topic("t", 1, options).id for bench in self.benches}
        self.said: list[dict[int, Measurement]] = [{} for _ in self.benches]
        for number in range(count):
            self.begin(number)

    def begin(self, shard: int) -> None:
        """Another leader knows nothing."""
        self.said[shard].clear()
        self.benches[shard].store.retention.rest = {}

    def send(self, shard: int, count: int, size: int = 1, *, apart_ms: int = 1) -> None:
        bench = self.benches[shard]
        for _ in range(count):
            bench.clock.time_ms += apart_ms
            put(bench.store, self.topic_id, (0, b"x" * size))

    def hear(self, shard: int, other: int) -> None:
        usage = self.benches[other].store.retention.known_usage(self.topic_id)
        if usage is not None:
            self.said[shard][other] = usage.measured
        if len(self.said[shard]) == len(self.benches) - 1:
            retention = self.benches[shard].store.retention
            retention.rest = {self.topic_id: rest_of(shard, retention.leadership, self.said[shard])}

    def look(self, shard: int) -> None:
        retain(self.benches[shard].store)

    def hear_all(self) -> None:
        for shard in range(len(self.benches)):
            for other in range(len(self.benches)):
                if other != shard:
                    self.hear(shard, other)

    def held(self) -> list[int]:
        bounds = [bench.store.bounds(self.topic_id, 0) for bench in self.benches]
        return [end - start for start, end in bounds]

    def settle(self) -> None:
        for _ in range(20):
            self.hear_all()
            for shard in range(len(self.benches)):
                self.look(shard)


made = count()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def over(root: Path, count: int, **limits: int) -> Shards:
    """Shards that know of each other, and hold nothing yet."""
    overflow = {} if "retention_bytes" in limits else {"overflow": "drop_oldest"}
    shards = Shards(root / f"{next(made)}", count, TopicOptions.from_dict({**limits, **overflow}))
    shards.settle()
    return shards


def end(shards: Shards) -> None:
    for bench in shards.benches:
        abandon(bench.store)


deeds = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 40)),
    st.tuples(st.just("look"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("hear"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("hear"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("look"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("lead"), st.integers(0, 2), st.just(0)),
)


@pytest.mark.part(2)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(deeds, max_size=60), st.integers(2, 3))
def test_no_more_goes_than_is_over_whatever_shards_have_heard_of_each_other(
    root: Path, plan: list[tuple[str, int, int]], count: int
) -> None:
    shards = over(root, count, max_messages=_LIMIT)
    try:
        for deed, shard, what in plan:
            shard, before = shard % count, sum(shards.held())
            if deed == "send":
                shards.send(shard, what)
            elif deed == "look":
                shards.look(shard)
                after = sum(shards.held())
                assert after == before or after >= _LIMIT, f"{before} came down to {after}"
            elif deed == "hear" and what % count != shard:
                shards.hear(shard, what % count)
            elif deed == "lead":
                shards.benches[shard].reopen()
                shards.begin(shard)
        before = sum(shards.held())
        shards.settle()
        assert sum(shards.held()) == min(before, _LIMIT)
    finally:
        end(shards)


@pytest.mark.parametrize("option", ["max_messages", "max_bytes", "retention_bytes"])
def test_what_went_on_other_shards_meanwhile_is_not_let_go_here_once_more(root: Path, option: str) -> None:
    """Two shards come to hold as much as the topic may, each: a half of it goes on each, at the same time."""
    shards = over(root, 2, **{option: 40 if option == "max_messages" else 40 * 5_100})
    for shard in (0, 1):
        shards.send(shard, 40, 5_000)
    for _ in range(4):
        for shard in (0, 1):
            for _ in range(3):  # and is looked at again before it is heard what has gone there
                shards.look(shard)
        assert sum(shards.held()) >= 39
        shards.hear_all()
    assert all(held in (19, 20, 21) for held in shards.held())
    end(shards)


def test_a_shard_that_others_have_not_heard_of_keeps_what_they_may_count_on(root: Path) -> None:
    shards = over(root, 2, max_messages=100)
    for shard in (0, 1):
        shards.send(shard, 60)
    shards.settle()
    assert shards.held() == [50, 50]
    kept = []
    for _ in range(3):  # The first hears nothing, nor is it heard of.
        shards.send(0, 50)
        shards.look(0)
        kept.append(shards.held())
    assert all(first in range(60, 80) and second == 50 for first, second in kept), (
        "no less than its part, nor all that comes"
    )
    shards.send(1, 100)
    shards.hear(1, 0)
    for _ in range(3):
        shards.look(1)
    assert shards.held()[1] in range(60, 80), "its part has grown, and the first does not know of that"
    end(shards)


def test_another_leader_that_knows_what_others_said_long_ago_lets_nothing_go_by_that(root: Path) -> None:
    shards = over(root, 2, max_messages=100)
    for shard in (0, 1):
        shards.send(shard, 60)
    shards.settle()
    long_ago = dict(shards.said[0])
    shards.send(0, 300)
    shards.settle()
    first, second = shards.held()
    assert first + second == 100 and first > 50, f"the second has made room: {first} and {second} are left"
    shards.benches[0].reopen()
    shards.begin(0)
    shards.look(0)
    retention = shards.benches[0].store.retention
    retention.rest = {shards.topic_id: rest_of(0, retention.leadership, long_ago)}
    shards.look(0)
    assert shards.held() == [first, second]
    end(shards)


@pytest.mark.parametrize(("shards_count", "limit"), [(2, 5), (3, 2), (3, 1), (2, 7)])
def test_of_what_was_stored_in_one_moment_as_many_go_as_are_over(root: Path, shards_count: int, limit: int) -> None:
    shards = over(root, shards_count, max_messages=limit)
    for shard in range(shards_count):
        shards.send(shard, 8, apart_ms=0)
    shards.settle()
    assert sum(shards.held()) == limit
    end(shards)
