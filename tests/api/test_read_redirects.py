"""Who is sent elsewhere, and who is sent back: the rule, as pure functions and on a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.broker.read_redirects import NEAR_PART, FollowerTurns, caught_up, far, find_caught_up, find_far
from lsmq_node.storage import ShardStore, StoreOptions

KIB = 1024
LIMIT_BYTES = 10_000
counts = st.lists(st.integers(0, 1_000), min_size=1, max_size=20)


def of(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_near_queues_stay_however_far_the_others_are() -> None:
    assert far(of(0, 500, 1, 0), 100.0, LIMIT_BYTES).tolist() == [False, True, True, False]


def test_many_queues_that_are_each_a_little_behind_are_far_together() -> None:
    assert not far(of(*[10] * 10), 100.0, LIMIT_BYTES).any()
    assert far(of(*[10] * 11), 100.0, LIMIT_BYTES).all()


def test_a_follower_keeps_what_it_has_not_given_and_sends_back_the_rest() -> None:
    assert caught_up(of(0, 500, -3), 100.0, LIMIT_BYTES).tolist() == [True, False, True]
    assert caught_up(of(0, 20, 5), 100.0, LIMIT_BYTES).all()


@given(counts, st.data(), st.floats(0.5, 10_000), st.integers(0, 1 << 30))
def test_who_is_sent_back_is_not_sent_away_again(
    left: list[int], data: st.DataObject, record_bytes: float, limit_bytes: int
) -> None:
    """The leader may have less of it in memory than the follower, down to nothing."""
    lags = np.array(left, np.int64)
    home = caught_up(lags, record_bytes, limit_bytes)
    in_tables = np.array([data.draw(st.integers(0, lag)) for lag in left], np.int64)
    assert not far(in_tables[home], record_bytes, limit_bytes).any()
    if home.all() and lags.any():
        assert lags.sum() * record_bytes <= limit_bytes / NEAR_PART


def test_followers_take_turns() -> None:
    turns = FollowerTurns()
    assert sorted(turns.next(["a", "b", "c"]) for _ in range(6)) == ["a", "a", "b", "b", "c", "c"]


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    options = StoreOptions(memtable_bytes=256 * KIB, segment_bytes=256 * KIB, max_message_bytes=16 * KIB)
    return ShardStore.open(tmp_path / "shard", options)


def put(store: ShardStore, topic_id: int, queue: int, count: int, size_bytes: int) -> None:
    for first in range(0, count, 20):
        builder = BatchBuilder()
        for _ in range(min(20, count - first)):
            builder.add(queue, b"x" * size_bytes)
        store.wait(store.append(topic_id, RecordBatch(builder.build())))


def test_lag_counts_what_memory_does_not_hold(store: ShardStore) -> None:
    with store:
        topic = store.create_topic("t", 5).id
        other = store.create_topic("other", 1).id
        queues = np.arange(5, dtype=np.uint32)
        zero = np.zeros(5, np.int64)
        put(store, topic, 0, 300, 1_000)
        put(store, topic, 1, 10, 1_000)
        put(store, other, 0, 5_000, 20)
        store.flush()
        put(store, topic, 1, 7, 1_000)
        put(store, topic, 2, 5, 1_000)
        assert store.lag_in_tables(topic, queues, zero).tolist() == [300, 10, 0, 0, 0]
        assert store.lag_in_tables(topic, queues, of(299, 8, 2, 0, 9)).tolist() == [1, 2, 0, 0, 0]
        lags, record_bytes = store.lag(topic, queues, of(0, 17, 4, 0, 3))
        assert lags.tolist() == [300, 0, 1, 0, -3]
        assert 950 < record_bytes < 1_100, "of this topic, though another one shares the tables"
        assert 15 < store.lag(other, queues[:1], zero[:1])[1] < 60
        assert find_far(store, topic, queues, zero, 400_000).tolist() == [False] * 5
        assert find_far(store, topic, queues, zero, 200_000).tolist() == [True, True, False, False, False]
        assert find_far(store, topic, queues, of(300, 9, 0, 0, 0), 200_000).tolist() == [False] * 5
        assert find_caught_up(store, topic, queues, of(0, 17, 5, 0, 0), 4).tolist() == [False, True, True, True, True]


def test_lag_of_a_topic_that_is_only_in_memory(store: ShardStore) -> None:
    with store:
        topic = store.create_topic("t", 2).id
        queues = np.arange(2, dtype=np.uint32)
        assert find_caught_up(store, topic, queues, of(0, 0), 100).all()
        put(store, topic, 1, 50, 1_000)
        assert store.lag_in_tables(topic, queues, of(0, 0)).tolist() == [0, 0]
        assert store.lag(topic, queues, of(0, 10))[0].tolist() == [0, 40]
        assert 900 < store.lag(topic, queues, of(0, 0))[1] < 1_200
        assert not find_far(store, topic, queues, of(0, 0), 1).any()
