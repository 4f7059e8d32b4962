"""Limits of topics, and messages that come later."""

from __future__ import annotations

import pytest

from lsmq.errors import QuotaExceeded, TooManyDelayed
from lsmq.record_batch import LAST_DUE_MS, BatchBuilder, RecordBatch
from lsmq_node.delayed.deliveries import moved
from lsmq_node.storage import TopicOptions
from lsmq_node.storage.delayed import BEGIN, DUE

from .harness import KIB, body
from .test_limits import alone, send
from .test_retention import HOUR_MS, Bench

bench = pytest.fixture(alone)


def test_what_comes_later_takes_no_room_before_it_is_due(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 2, TopicOptions(max_messages=2, max_bytes=1000))
    later = BatchBuilder()
    for _ in range(2):
        later.add(0, body(1, 400), due_ms=HOUR_MS)
    for _ in range(3):
        bench.store.wait(bench.store.append(topic.id, RecordBatch(later.build())))
    send(bench, topic.id, 0, 2)
    with pytest.raises(QuotaExceeded):
        send(bench, topic.id, 0, 1)


def test_a_delayed_message_is_put_at_another_time_though_its_topic_is_full(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_messages=1))
    later = BatchBuilder()
    later.add(0, b"later", due_ms=HOUR_MS)
    bench.store.wait(bench.store.append(topic.id, RecordBatch(later.build())))
    send(bench, topic.id, 0, 1)
    found = bench.store.delayed.read(BEGIN, LAST_DUE_MS, 10, KIB).records
    assert found is not None
    old_ms, old_offset = int(found.keys[0] & ~DUE), int(found.offsets[0])
    bench.store.wait(bench.store.append(topic.id, moved(found, 2 * HOUR_MS, old_ms, old_offset)))
    again = bench.store.delayed.read(BEGIN, LAST_DUE_MS, 10, KIB).records
    assert again is not None and len(again) == 1 and int(again.keys[0] & ~DUE) > old_ms


def test_a_delayed_message_is_put_at_another_time_though_no_more_may_be_pending(bench: Bench) -> None:
    bench.reopen(max_delayed=2)
    topic = bench.store.create_topic("t", 1)
    some = BatchBuilder()
    for due_ms in (0, 0, HOUR_MS, HOUR_MS):
        some.add(0, b"later" if due_ms else b"now", due_ms=due_ms)
    bench.store.wait(bench.store.append(topic.id, RecordBatch(some.build())))
    found = bench.store.delayed.read(BEGIN, LAST_DUE_MS, 1, KIB).records
    assert found is not None
    old_ms, old_offset = int(found.keys[0] & ~DUE), int(found.offsets[0])
    bench.store.wait(bench.store.append(topic.id, moved(found, 2 * HOUR_MS, old_ms, old_offset)))
    assert bench.store.delayed.count == 2
    with pytest.raises(TooManyDelayed, match="2 delayed messages are pending in this shard, and 2 more"):
        bench.store.append(topic.id, RecordBatch(some.build()))
