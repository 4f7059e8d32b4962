"""Moments of a store: later than all before them, earlier than all that comes, and found again by reading."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from lsmq.record_batch import Column, RecordBatch, split_batches
from lsmq_node.storage import Moment, ShardStore, StoreOptions
from lsmq_node.storage.columns import I64, encode_one
from support.clock import SimClock

QUEUES = 40


def batch(queues: list[int]) -> RecordBatch:
    columns = {Column.QUEUE: np.array(queues, np.uint32), Column.LENGTH: np.full(len(queues), 50, np.uint32)}
    (made,) = split_batches(encode_one(columns, np.zeros(50 * len(queues), np.uint8)), source="test")
    return made


def note(store: ShardStore, topic_id: int) -> tuple[Moment, I64]:
    noted = store.named.moments.note(topic_id)
    store.wait(noted.appended)
    store.named.moments.landed(noted)
    return noted.moment, noted.ends[:QUEUES].copy()


@pytest.mark.parametrize("standing", [True, False])
def test_moments_are_found_again_by_reading(tmp_path: Path, standing: bool) -> None:
    """Under a clock that stands still, or falls back; from memory, tables and after merges."""
    clock, chance = SimClock(), random.Random(7)
    options = StoreOptions(memtable_bytes=64 << 10, max_message_bytes=16 << 10)
    noted: list[tuple[Moment, I64]] = []
    with ShardStore.open(tmp_path, options, clock=clock) as store:
        topic = store.create_topic("t", QUEUES)
        for turn in range(30):
            queues = [chance.randrange(QUEUES) for _ in range(chance.randrange(1, 200))]
            store.wait(store.append(topic.id, batch(queues)))
            noted.append(note(store, topic.id))
            if not standing:
                clock.wrong_ms += chance.choice((-5, 0, 3))
            if turn == 20:
                store.flush()
        assert store.named.moments.latest(topic.id) == noted[-1][0], "nothing came since"
        store.wait(store.append(topic.id, batch([3])))
        assert store.named.moments.latest(topic.id) is None
    times = [moment.time_ms for moment, _ in noted]
    assert times == sorted(set(times)), "each is later than the one before"
    assert [moment.messages for moment, _ in noted] == [int(ends.sum()) for _, ends in noted]
    for compact in (False, True):
        with ShardStore.open(tmp_path, options, clock=clock) as store:
            if compact:
                store.compact()
            for moment, ends in noted:
                found, kept = store.named.moments.ends_at(topic.id, moment.time_ms)
                assert not kept and found.tolist() == ends.tolist()
            assert store.named.moments.ends_at(topic.id, times[-1])[1], "it is kept now"
            never, _ = store.named.moments.ends_at(topic.id, times[-1] + 100)
            store.wait(store.append(topic.id, batch([5])))
            again, kept = store.named.moments.ends_at(topic.id, times[-1] + 100)
            assert not kept and again[5] == never[5] + 1, "what is not over is not kept"
