"""What a full topic or queue drops: the newest, or the lowest in rank; counted, and the same on every replica."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from lsmq.errors import InvalidRequest
from lsmq.messages import dedupe_hash, priority_value
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.storage import Slice, TopicOptions
from lsmq_node.storage.losses import LossReason
from lsmq_node.storage.shares import Holding

from .harness import bodies, flush, merge, put, retain, spoil
from .test_limits import bench, gone, others
from .test_retention import Bench

__all__ = ["bench"]


# Dropping what is new


def offsets_of(bench: Bench, topic_id: int, *messages: tuple[int, bytes], producer: int = 0) -> list[int]:
    builder = BatchBuilder()
    for queue, content in messages:
        builder.add(queue, content)
    appended = bench.store.append(topic_id, RecordBatch(builder.build(producer_id=producer)))
    bench.store.commit()
    found: list[int] = appended.offsets.tolist()
    return found


@pytest.mark.parametrize("flushed", [False, True])
def test_what_finds_no_room_in_its_queue_is_dropped_counted_and_remembered(bench: Bench, flushed: bool) -> None:
    options = TopicOptions(queue_max_messages=2, overflow="drop_newest")
    topic = bench.store.create_topic("t", 2, options)
    batch = [(0, b"a"), (0, b"b"), (1, b"x"), (0, b"c"), (1, b"y"), (1, b"z")]
    for _ in range(2):  # the second time the answer is remembered
        assert offsets_of(bench, topic.id, *batch, producer=5) == [0, 1, 0, -1, 1, -1]
        if flushed:
            flush(bench.store)
        bench.reopen()
    assert offsets_of(bench, topic.id, (0, b"d"), (1, b"d")) == [-1, -1], "nothing of the batch is stored"
    bench.store.wait(bench.store.trim(topic.id, 0, 1))
    assert offsets_of(bench, topic.id, (0, b"e"), (0, b"f"), (1, b"g")) == [2, -1, -1]
    bench.reopen()
    assert [bodies(bench.store, topic.id, queue) for queue in (0, 1)] == [{1: b"b", 2: b"e"}, {0: b"x", 1: b"y"}]
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 6}
    assert bench.store.retention.usage(topic.id).refused == 0


def test_of_a_topic_that_is_full_of_messages_or_bytes_the_newest_are_dropped(bench: Bench) -> None:
    few = bench.store.create_topic("few", 2, TopicOptions(max_messages=3, overflow="drop_newest"))
    assert offsets_of(bench, few.id, (0, b"a"), (1, b"b"), (0, b"c"), (1, b"d")) == [0, 0, 1, -1]
    bench.store.wait(bench.store.trim(few.id, 0, 1))
    assert offsets_of(bench, few.id, (1, b"e"), (1, b"f")) == [1, -1]
    small = bench.store.create_topic("small", 1, TopicOptions(max_bytes=250, overflow="drop_newest"))
    assert offsets_of(bench, small.id, *[(0, b"x" * 100)] * 4) == [0, 1, -1, -1]
    assert offsets_of(bench, small.id, (0, b"x" * 30), (0, b"x" * 30)) == [2, -1]


@pytest.mark.parametrize("limit", ["max_bytes", "queue_max_bytes"])
def test_what_is_larger_than_the_room_there_is_goes_alone(bench: Bench, limit: str) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions.from_dict({limit: 300, "overflow": "drop_newest"}))
    assert offsets_of(bench, topic.id, (0, b"x" * 250)) == [0]
    assert offsets_of(bench, topic.id, (0, b"x" * 60), (0, b"y" * 20), (0, b"z" * 20)) == [-1, 1, 2]


def test_nothing_is_dropped_while_other_shards_have_room(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_messages=12, overflow="drop_newest"))
    bench.store.retention.rest = {topic.id: others(Holding(4, 100), Holding(), Holding())}
    retain(bench.store)
    assert offsets_of(bench, topic.id, *[(0, b"x")] * 10) == [*range(8), -1, -1]


def test_a_repeat_by_its_id_needs_no_room_and_what_was_dropped_is_not_remembered(bench: Bench) -> None:
    options = TopicOptions(queue_max_messages=2, overflow="drop_newest", dedupe_window_ms="forever")
    topic = bench.store.create_topic("t", 1, options)

    def send_ids(*ids: str) -> list[int]:
        builder = BatchBuilder()
        for each in ids:
            builder.add(0, b"x", dedupe_hash=dedupe_hash(each))
        appended = bench.store.append(topic.id, RecordBatch(builder.build()))
        bench.store.commit()
        assert appended.repeats is None or not (appended.repeats & (appended.offsets < 0)).any()
        found: list[int] = appended.offsets.tolist()
        return found

    assert send_ids("a", "a", "b", "c", "c", "b") == [0, 0, 1, -1, -1, 1]
    bench.reopen()
    bench.store.wait(bench.store.trim(topic.id, 0, 1))
    assert send_ids("c", "d", "a") == [2, -1, 0]
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 3}


# Dropping by rank


def ranked(bench: Bench, topic_id: int, queue: int, *ranks: int, deadlines: bool = False) -> None:
    """Messages of these priorities, or times to live in minutes, which are their bodies too."""
    builder = BatchBuilder()
    for rank in ranks:
        kind = {"expires": rank * 60_000} if deadlines else {"priority": rank}
        builder.add(queue, b"%d" % rank, **kind)  # type: ignore[arg-type]
    bench.store.append(topic_id, RecordBatch(builder.build()))
    bench.store.commit()


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("deadlines", [False, True])
def test_of_a_full_queue_the_lowest_in_rank_go(bench: Bench, flushed: bool, deadlines: bool) -> None:
    policy = "drop_nearest_deadline" if deadlines else "drop_lowest_priority"
    options = {"queue_max_messages": 4, "overflow": policy}
    topic = bench.store.create_topic("t", 3, TopicOptions.from_dict(options))
    none = 0 if deadlines else 9  # what does not expire goes last, as what has the highest priority does
    ranked(bench, topic.id, 0, 3, none, 1, 5, 1, 2, deadlines=deadlines)
    ranked(bench, topic.id, 1, 1, 1, 1, 1, deadlines=deadlines)
    ranked(bench, topic.id, 2, 7, 7, 7, 7, 7, deadlines=deadlines)
    if flushed:
        flush(bench.store)
    retain(bench.store)
    assert bench.store.retention.is_watchful
    kept = [3, none, 5, 2]
    assert list(bodies(bench.store, topic.id, 0).values()) == [b"%d" % rank for rank in kept]
    assert [sorted(bodies(bench.store, topic.id, queue)) for queue in (1, 2)] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 3}
    retain(bench.store)
    ranked(bench, topic.id, 0, 4, 8, deadlines=deadlines)
    bench.reopen()
    retain(bench.store)
    retain(bench.store)
    assert list(bodies(bench.store, topic.id, 0).values()) == [b"%d" % rank for rank in (none, 5, 4, 8)]
    if flushed:
        flush(bench.store)
        merge(bench.store)
        bench.reopen()
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 5}


def test_topics_whose_messages_lie_side_by_side_are_told_apart(bench: Bench) -> None:
    options = TopicOptions.from_dict({"queue_max_messages": 2, "overflow": "drop_lowest_priority"})
    topics = [bench.store.create_topic(name, 2, options) for name in ("one", "other")]
    for rank in (5, 9, 7):
        for topic in topics:
            ranked(bench, topic.id, 0, rank)
        ranked(bench, topics[0].id, 1, rank - 1)
    ranked(bench, topics[1].id, 0, 8)
    flush(bench.store)
    retain(bench.store)
    kept = [list(bodies(bench.store, topic.id, queue).values()) for topic in topics for queue in (0, 1)]
    assert kept == [[b"9", b"7"], [b"8", b"6"], [b"9", b"8"], []]


def test_of_one_priority_the_lowest_subpriority_goes_first(bench: Bench) -> None:
    options = {"queue_max_messages": 2, "overflow": "drop_lowest_priority"}
    topic = bench.store.create_topic("t", 1, TopicOptions.from_dict(options))
    pairs = [(1, 9), (2, 0), (1, 200), (2, 1)]
    ranked(bench, topic.id, 0, *(priority_value(*pair) for pair in pairs))
    retain(bench.store)
    assert list(bodies(bench.store, topic.id, 0)) == [1, 3]


def test_a_long_queue_comes_down_to_a_new_limit_and_keeps_the_highest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq_node.storage.evictions._AT_ONCE", 12)
    monkeypatch.setattr("lsmq_node.storage.evictions._READ_RECORDS", 5)
    topic = bench.store.create_topic("t", 1)
    ranked(bench, topic.id, 0, *range(50, 0, -1), *range(60, 100))
    options = TopicOptions(queue_max_messages=5, overflow="drop_lowest_priority", revision=1)
    bench.store.alter_topic("t", options)
    for _ in range(60):
        retain(bench.store)
    assert sorted(bodies(bench.store, topic.id, 0).values()) == [b"95", b"96", b"97", b"98", b"99"]
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 85}


def test_a_queue_that_cannot_be_read_stays_others_come_down_and_it_is_not_read_again_until_something_comes(
    bench: Bench,
) -> None:
    limits = {"queue_max_messages": 20, "overflow": "drop_lowest_priority"}
    topic = bench.store.create_topic("t", 5)
    for queue in range(5):
        for number in range(40):
            put(bench.store, topic.id, (queue, b"%d %03d" % (queue, number) * 30))
    flush(bench.store)
    spoil(bench.store, bench.disk, b"3 030" * 30)
    bench.reopen()
    bench.store.alter_topic("t", TopicOptions.from_dict({**limits, "revision": 1}))
    asked = 0
    read_many = bench.store._queries.read_many

    def read(*positions: Any, **options: Any) -> Slice:
        nonlocal asked
        asked += 1
        return read_many(*positions, **options)

    with mock.patch.object(bench.store._queries, "read_many", read):
        for _ in range(3):
            retain(bench.store)
        assert gone(bench, topic.id) == {LossReason.OVERFLOW: 80}
        asked = 0
        retain(bench.store)
        assert not asked
        put(bench.store, topic.id, (0, b"another"))
        retain(bench.store)
    assert [len(bodies(bench.store, topic.id, queue)) for queue in (0, 1, 2, 4)] == [20] * 4
    assert bench.store.bounds(topic.id, 3) == (0, 40)
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 81}


def test_dropping_by_rank_has_its_limits() -> None:
    for other in ({"max_messages": 5}, {"max_bytes": 5}):
        with pytest.raises(InvalidRequest, match="queue_max_messages alone"):
            TopicOptions.from_dict({"overflow": "drop_lowest_priority", **other})
    with pytest.raises(InvalidRequest, match="100000 at most"):
        TopicOptions.from_dict({"overflow": "drop_nearest_deadline", "queue_max_messages": 100_001})
