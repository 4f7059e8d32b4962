"""Sharing queues among subscribers, and handing them over."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_node.broker import queue_ranges
from lsmq_node.groups.ranges import RangePairs, count, each, intersect
from lsmq_node.push.part import NOBODY, PushedPart
from lsmq_node.push.sharing import share
from lsmq_node.storage import StoredTopic, TopicOptions


@settings(deadline=None)
@given(
    queues=st.integers(1, 40),
    first=st.integers(0, 20),
    crowds=st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=8), min_size=1, max_size=6),
)
def test_shares_are_even_complete_and_sticky(queues: int, first: int, crowds: list[set[str]]) -> None:
    shares: dict[str, RangePairs] = {}
    before: set[str] = set()
    for crowd in crowds:
        former, shares = shares, share(first, first + queues, crowd, shares)
        assert sorted(queue for ranges in shares.values() for queue in each(ranges)) == (
            list(range(first, first + queues)) if crowd else []
        )
        counts = [count(shares.get(name, ())) for name in crowd]
        assert not counts or max(counts) - min(counts) <= 1
        if crowd == before:
            assert shares == former
        before = crowd


def test_odd_queues_of_all_shards_come_out_even() -> None:
    for queues, shards, subscribers in ((3, 3, 3), (4, 3, 4), (4, 3, 3), (8, 4, 8), (6, 4, 6)):
        names = [f"s{number}" for number in range(subscribers)]
        found: Counter[str] = Counter()
        for part in queue_ranges(StoredTopic(1, "t", queues, TopicOptions(), 0), shards):
            for name, ranges in share(part.first, part.end, names, {}).items():
                found[name] += count(ranges)
        counts = [found[name] for name in names]
        assert max(counts) - min(counts) <= 1, (queues, shards, subscribers, counts)


def test_one_more_subscriber_takes_queues_from_the_others_and_moves_none_between_them() -> None:
    before = share(0, 12, "ab", {})
    after = share(0, 12, "abc", before)
    assert not intersect(before["a"], after["b"]) and not intersect(before["b"], after["a"])


def test_queues_that_are_cut_into_too_many_pieces_are_shared_out_anew() -> None:
    before = {"a": tuple((first, first + 1) for first in range(0, 600, 2)), "b": ((1, 2),)}
    assert share(0, 600, "ab", before) == {"a": ((0, 300),), "b": ((300, 600),)}


def test_a_queue_is_handed_over_when_nothing_of_it_is_unacknowledged() -> None:
    part = PushedPart(0, 10, 14, 1, np.zeros(4, np.int64))
    nothing = np.empty(0, np.int64)
    part.aim({"a": ((10, 14),)}, {"a": 1})
    part.hand_over(nothing)
    assert part.queues_of(1).tolist() == [10, 11, 12, 13]
    before = part.state()
    part.aim({"a": ((10, 12),), "b": ((12, 14),)}, {"a": 1, "b": 2})
    part.hand_over(np.array([13]))
    assert part.affected(before) == {1, 2}
    assert part.affected(part.state()) == set()
    assert part.queues_of(1).tolist() == [10, 11]
    assert part.owned_by(1).tolist() == [10, 11, 13]
    assert part.queues_of(2).tolist() == [12]
    assert part.hand_over_one(13) and not part.hand_over_one(13)
    assert part.queues_of(2).tolist() == [12, 13]
    part.free(2)
    assert part.owner.tolist() == [1, 1, NOBODY, NOBODY]
