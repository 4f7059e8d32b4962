"""Committed offsets: whatever is committed in whatever order is what is found, and memory follows the commits."""

from __future__ import annotations

import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lsmq_node.storage.group_offsets import CommittedOffsets, GroupOffsets
from lsmq_node.storage.pages import PAGE_QUEUES
from support.counted_lines import counted_lines

from .harness import profile

KIB = 1024
MILLION = 1 << 20
commits = st.lists(st.tuples(st.integers(0, 39), st.integers(0, 400)), min_size=1, max_size=20)


class OffsetsMachine(RuleBasedStateMachine):
    """Offsets of a topic of forty queues in pages of eight, few of which are two, against a list."""

    @initialize()
    def begin(self) -> None:
        self._small = mock.patch.multiple("lsmq_node.storage.group_offsets", PAGE_BITS=3, FEW=2)
        self._small.start()
        self.groups = GroupOffsets()
        self.known = [0] * 40
        self.taken: dict[int, list[int]] = {}

    def teardown(self) -> None:
        if hasattr(self, "_small"):
            self._small.stop()

    @rule(items=commits, reset=st.booleans())
    def commit(self, items: list[tuple[int, int]], reset: bool) -> None:
        rows, offsets = (np.array(column) for column in zip(*dict(items).items(), strict=True))
        self.groups.commit("g", 1, 40, rows.astype(np.uint32), offsets + 1, reset=reset)
        for row, offset in dict(items).items():
            self.known[row] = offset + 1 if reset else max(self.known[row], offset + 1)

    @rule()
    def go_on_from_a_checkpoint(self) -> None:
        pages, _ = self.groups.take_change()
        self.taken.update({number: values.tolist() for *_, number, values in pages})
        self.groups = GroupOffsets()
        for number, values in self.taken.items():
            self.groups.restore("g", 1, number, np.array(values))

    @rule()
    def forget(self) -> None:
        self.groups.drop("g")
        self.known = [0] * 40
        self.taken.clear()
        assert self.groups.get("g", 1) is None

    @rule(rows=st.lists(st.integers(0, 50), max_size=60))
    def look_up(self, rows: list[int]) -> None:
        found = self.groups.get("g", 1) or CommittedOffsets()
        wanted = [self.known[row] if row < 40 else 0 for row in rows]
        assert found.at(np.array(rows, np.int64)).tolist() == wanted

    @invariant()
    def all_are_found(self) -> None:
        if hasattr(self, "known"):
            found = self.groups.get("g", 1) or CommittedOffsets()
            assert found.first(40).tolist() == self.known
            assert found.first(21).tolist() == self.known[:21]


TestOffsetsAgainstAList = OffsetsMachine.TestCase
TestOffsetsAgainstAList.settings = profile(60, steps=30)


def used(groups: int, queues: list[int]) -> int:
    """Bytes that so many groups take which commit these queues of a topic of a million, one after another."""
    tracemalloc.start()
    try:
        offsets = GroupOffsets()
        for number in range(groups):
            for queue in queues:
                rows = np.array([queue], np.uint32)
                offsets.commit(f"group {number}", 1, MILLION, rows, np.array([1_000_000_007 + queue]), reset=False)
            offsets.take_change()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_group_costs_memory_for_the_queues_it_commits_not_for_those_there_are() -> None:
    assert used(100, [5, 500_000, 999_999]) < 100 * 2 * KIB
    whole = used(1, list(range(PAGE_QUEUES)))
    assert whole < 8 * PAGE_QUEUES + 4 * KIB


def test_few_queues_of_small_topics_are_not_given_pages() -> None:
    tracemalloc.start()
    try:
        offsets = GroupOffsets()
        for number in range(100):
            rows = np.arange(100, dtype=np.uint32)
            offsets.commit(f"group {number}", 1, 100, rows, rows.astype(np.int64) + 1, reset=False)
        offsets.take_change()
        assert tracemalloc.get_traced_memory()[0] < 100 * 3 * KIB
    finally:
        tracemalloc.stop()


def test_a_checkpoint_of_a_page_is_as_long_as_the_topic_reached() -> None:
    offsets = GroupOffsets()
    for queues in (10, 5_000):
        offsets.commit("g", 1, queues, np.array([queues - 1], np.uint32), np.array([7]), reset=False)
        pages, _ = offsets.take_change()
        [(_, _, number, values)] = pages
        assert number * PAGE_QUEUES + len(values) == queues
        assert values[-1] == 7


@pytest.mark.parametrize("spread", [1, 300])
def test_the_last_of_one_commit_that_names_a_queue_twice_counts_where_it_resets(spread: int) -> None:
    offsets = CommittedOffsets()
    rows = np.array([3, 5_000, 3, 5_000] * spread)
    values = np.arange(len(rows)) + 1
    offsets.set(rows, values, reset=True)
    assert offsets.at(np.array([3, 5_000])).tolist() == [len(rows) - 1, len(rows)]
    offsets.set(np.array([3, 3]), np.array([1_000_000, 5]), reset=False)
    assert offsets.at(np.array([3])).tolist() == [1_000_000]


def test_what_a_group_or_a_topic_had_is_dropped_at_the_cost_of_that_whatever_others_there_are() -> None:
    offsets, row = GroupOffsets(), np.array([0], np.uint32)
    for topic_id in (1, 2):
        for number in range(500):
            offsets.commit(f"group {number}", topic_id, 1, row, np.array([number + 1]), reset=False)
    offsets.commit("group 7", 3, 1, row, np.array([5]), reset=False)
    with counted_lines() as lines:
        offsets.drop("group 7")
        offsets.drop("nobody")
        offsets.drop(topic_id=3)
    assert lines.count < 200
    assert [offsets.get("group 7", topic_id) for topic_id in (1, 2, 3)] == [None] * 3
    assert len(offsets.groups_of(1)) == len(offsets.groups()) == 499
    offsets.drop("group 8", topic_id=2)
    assert "group 8" in offsets.groups_of(1)
    offsets.drop(topic_id=1)
    assert sorted(offsets.groups()) == sorted(f"group {number}" for number in range(500) if number not in (7, 8))
    offsets.drop(topic_id=2)
    assert (offsets.groups(), list(offsets)) == ([], [])
