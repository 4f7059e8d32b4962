"""What of the newest ids is known in memory, without a store: filters, layers, and what they say of each other."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lsmq_node.storage.dedupe import BatchIds, DedupeIds, scoped
from lsmq_node.storage.dedupe_recent import RecentIds, bits_of

from .harness import (
    profile,
)


def ids_of(*names: int) -> BatchIds:
    halves = np.array(names, np.uint64) + np.uint64(1)  # 0 is no id
    return scoped(1, np.zeros(len(names), np.uint32), halves, halves)


def test_ids_that_were_looked_for_before_a_layer_began_are_known_once_they_are_noted_in_it() -> None:
    """A flush and the reading of an old file may come between a batch's look-up and its place in line."""
    with mock.patch("lsmq_node.storage.dedupe_recent._SIZES", ((64, 16), (64, 16))):
        ids, asked = DedupeIds(), ids_of(7, 8)
        earlier = ids_of(*range(100, 110))
        ids.find(earlier, 0)
        ids.note(earlier.noted(None, 1, np.arange(10), 5))
        ids.landed(10)
        assert ids.find(asked, 0).tolist() == [-1, -1]
        for begin in range(200, 400, 10):  # filters come and go
            ids.find(ids_of(*range(begin, begin + 10)), 0)
        ids.freeze()
        ids.note(asked.noted(None, 1, np.array([41, 42]), 6))
        assert ids.find(ids_of(8, 9, 7), 0).tolist() == [42, -1, 41]
        assert ids.find(ids_of(100, 109), 0).tolist() == [0, 9]


def test_what_is_not_flushed_is_known_however_many_filters_it_fills() -> None:
    with mock.patch("lsmq_node.storage.dedupe_recent._SIZES", ((64, 16), (64, 32))):
        ids = DedupeIds()
        for number in range(50):
            sent = ids_of(*range(10 * number, 10 * number + 10))
            assert (ids.find(sent, 0) == -1).all()
            ids.note(sent.noted(None, 1, np.arange(10 * number, 10 * number + 10), 5))
            for back in (0, number // 2, number):
                assert ids.find(ids_of(10 * back, 10 * back + 9), 0).tolist() == [10 * back, 10 * back + 9]


@profile(60)
@given(
    batches=st.lists(st.lists(st.integers(0, (1 << 64) - 1), max_size=60), max_size=12), asked=st.integers(0, 1 << 63)
)
def test_what_is_in_no_filter_was_not_added_while_they_are_kept(batches: list[list[int]], asked: int) -> None:
    with mock.patch("lsmq_node.storage.dedupe_recent._SIZES", ((2, 4), (3, 30))):
        recent, added = RecentIds(), dict[int, list[int]]()
        one = np.array([asked], np.uint64)
        assert [each.tolist() for each in recent.look(one, bits_of(one)).may_have] == [[False]]
        for batch in batches:
            keys = np.array(batch, np.uint64)
            look = recent.look(keys, bits_of(keys))
            assert (look.oldest, look.number) == (recent.oldest, recent.newest)
            for since, names in added.items():
                if since >= look.oldest:
                    known = np.isin(keys, np.array(names, np.uint64))
                    assert look.may_have[since - look.oldest][known].all()
            added.setdefault(look.number, []).extend(batch)
        assert recent.newest - recent.oldest <= 3 and recent.size_bytes <= 8 * (2 + 3 * 3)
