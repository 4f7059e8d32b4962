"""Limits of topics and queues: what is over goes or is refused, and the log says which, so that replicas agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsmq.errors import LsmqError, QuotaExceeded, RequestTooLarge, TooManyMessages
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.storage import TopicOptions
from lsmq_node.storage.losses import LossReason
from lsmq_node.storage.producers import BROKER_PRODUCERS
from lsmq_node.storage.queue_options import QueueOptions, encode, key_of
from lsmq_node.storage.retention import Retention
from lsmq_node.storage.sample import BYTES_A_POINT
from lsmq_node.storage.shares import Holding, Measurement, Rest, allowed_share
from lsmq_node.storage.state import TopicState

from .harness import (
    abandon,
    append,
    bodies,
    body,
    flush,
    merge,
    put,
    retain,
    spoil,
)
from .test_retention import HOUR_MS, Bench


def alone(tmp_path: Path) -> Iterator[Bench]:
    """Whose shard is all there is of any topic."""
    bench = Bench(tmp_path)
    bench.store.retention.rest = None
    yield bench
    abandon(bench.store)


bench = pytest.fixture(alone)


def send(bench: Bench, topic_id: int, queue: int, count: int, size: int = 100) -> None:
    """One a millisecond."""
    for _ in range(count):
        bench.clock.time_ms += 1
        bench.serial += 1
        put(bench.store, topic_id, (queue, body(bench.serial, size)))


def others(*holdings: Holding, floor: Holding | None = None, **more: Any) -> Rest:
    """What a shard knows of others that hold this, and have been told all; the first may go down to ``floor``."""
    told = [Measurement(holding, holding) for holding in holdings]
    if floor is not None:
        told[0] = replace(told[0], floor=floor)
    return Rest(dict(enumerate(told, 1)), **more)


def bounds(bench: Bench, topic_id: int, *queues: int) -> list[tuple[int, int]]:
    return [bench.store.bounds(topic_id, queue) for queue in queues]


def gone(bench: Bench, topic_id: int) -> dict[int, int]:
    return bench.store.retention.usage(topic_id).gone


# Retention


def test_a_queue_keeps_its_newest_messages_and_the_rest_is_counted(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1_000, TopicOptions(retention_messages=3))
    send(bench, topic.id, 7, 5)
    send(bench, topic.id, 8, 2)
    retain(bench.store)
    assert bounds(bench, topic.id, 7, 8) == [(2, 5), (0, 2)]
    flush(bench.store)
    send(bench, topic.id, 7, 1)
    retain(bench.store)
    assert bounds(bench, topic.id, 7, 8) == [(3, 6), (0, 2)]
    assert gone(bench, topic.id) == {LossReason.EXPIRED: 3}
    bench.reopen()
    assert (bounds(bench, topic.id, 7), gone(bench, topic.id)) == ([(3, 6)], {LossReason.EXPIRED: 3})
    flush(bench.store)
    bench.reopen()
    assert gone(bench, topic.id) == {LossReason.EXPIRED: 3}


def test_what_queues_keep_may_be_less_and_more_and_less_again_though_nothing_comes(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 2, TopicOptions(retention_messages=8))
    send(bench, topic.id, 0, 10)
    for _ in range(2):  # The second time nothing is to go, which is remembered.
        retain(bench.store)
    assert bounds(bench, topic.id, 0) == [(2, 10)]
    for own, first in ((QueueOptions(retention_messages=5), 5), (None, 5)):
        document = None if own is None else encode(0, own)
        bench.store.wait(bench.store.put_documents({key_of(topic.id, 0): document}))
        retain(bench.store)
        assert bounds(bench, topic.id, 0) == [(first, 10)]
    for revision, (limit, first) in enumerate(((9, 5), (3, 7)), 1):
        bench.store.alter_topic("t", TopicOptions(retention_messages=limit, revision=revision))
        retain(bench.store)
        assert bounds(bench, topic.id, 0) == [(first, 10)]


def test_queues_come_down_to_each_new_limit_though_nothing_comes(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1)
    send(bench, topic.id, 0, 10)
    for revision, (limit, first) in enumerate(((8, 2), (5, 5), (None, 5), (9, 5), (3, 7)), 1):
        overflow = "refuse" if limit is None else "drop_oldest"
        options = TopicOptions(queue_max_messages=limit, overflow=overflow, revision=revision)
        bench.store.alter_topic("t", options)
        retain(bench.store)
        assert bounds(bench, topic.id, 0) == [(first, 10)]


def test_what_a_topic_holds_is_measured_anew_where_its_limit_is_gone(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_bytes=100_000))
    send(bench, topic.id, 0, 5)
    retain(bench.store)
    before = bench.store.retention.usage(topic.id).holding
    bench.store.alter_topic("t", TopicOptions(revision=1))
    retain(bench.store)
    send(bench, topic.id, 0, 5)
    after = bench.store.retention.usage(topic.id).holding
    assert (before.messages, after.messages) == (5, 10)
    assert after.size_bytes >= before.size_bytes + 500
    assert bench.store.retention.known_usage(topic.id) is None


@pytest.mark.parametrize("flushed", [False, True])
def test_a_topic_over_its_bytes_loses_its_oldest_in_memory_and_in_tables(bench: Bench, flushed: bool) -> None:
    topic = bench.store.create_topic("t", 4, TopicOptions(retention_bytes=10_000))
    other = bench.store.create_topic("other", 1)
    for _ in range(10):
        for queue in range(4):
            send(bench, topic.id, queue, 10)
    send(bench, other.id, 0, 50)
    if flushed:
        flush(bench.store)
    retain(bench.store)
    left = sum(len(bodies(bench.store, topic.id, queue)) for queue in range(4))
    assert 70 <= left <= 150, "to a point of the sample; a table takes more than the bodies"
    assert len(bodies(bench.store, other.id, 0)) == 50
    starts = bench.store.earliest_offsets(topic.id).tolist()
    retain(bench.store)
    assert bench.store.earliest_offsets(topic.id).tolist() == starts
    if flushed:
        before = bench.store.stats().table_bytes
        merge(bench.store)
        assert bench.store.stats().table_bytes < before / 2, "the space comes back"


def test_of_a_topics_bytes_each_shard_keeps_its_true_share(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(retention_bytes=10_000))
    send(bench, topic.id, 0, 90)
    bench.store.retention.rest = {topic.id: others(Holding(10, 1_000), Holding(), Holding())}
    retain(bench.store)
    assert bounds(bench, topic.id, 0) == [(0, 90)], "together they are at the limit"
    bench.store.retention.rest = {
        topic.id: others(Holding(110, 11_000), Holding(), Holding(), floor=Holding(55, 5_500))
    }
    retain(bench.store)
    assert bounds(bench, topic.id, 0) == [(45, 90)], "half is over, here as elsewhere"
    bench.store.retention.rest = {}
    send(bench, topic.id, 0, 10)
    retain(bench.store)
    assert bounds(bench, topic.id, 0) == [(45, 100)], "nothing goes that need not, while others are not known"


def test_an_altered_limit_is_obeyed_in_the_next_round(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 2)
    send(bench, topic.id, 0, 5)
    bench.clock.time_ms += HOUR_MS
    send(bench, topic.id, 1, 5)
    retain(bench.store)
    bench.store.alter_topic("t", TopicOptions(retention_ms=HOUR_MS, revision=1))
    retain(bench.store)
    assert bounds(bench, topic.id, 0, 1) == [(5, 5), (0, 5)]
    bench.store.alter_topic("t", TopicOptions(retention_messages=1, revision=2))
    bench.reopen()
    bench.clock.time_ms += HOUR_MS
    retain(bench.store)
    assert bounds(bench, topic.id, 1) == [(4, 5)], "by number, and by age no more"
    bench.store.alter_topic("t", TopicOptions(revision=3))
    send(bench, topic.id, 1, 5)
    retain(bench.store)
    assert bounds(bench, topic.id, 1) == [(4, 10)]


def test_an_emptied_topics_files_go_whole(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3)
    for _ in range(3):
        bench.fill(topic.id, 3, 5)
    queues, offsets, messages = bench.store.starts_after(topic.id, range(2, 100))
    assert (queues.tolist(), offsets.tolist(), messages) == ([2], [15], 15)
    bench.store.wait(bench.store.trim(topic.id, *bench.store.starts_after(topic.id, range(3))[:2]))
    merged = bench.store.stats().merged_bytes_total
    retain(bench.store)
    assert (bench.tables(), bench.store.stats().merged_bytes_total) == (0, merged)


# Quotas


def test_what_is_over_a_topics_messages_is_refused_until_there_is_room(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3, TopicOptions(max_messages=10))
    put(bench.store, topic.id, *((queue, b"x") for queue in (0, 1, 2) * 3))
    with pytest.raises(QuotaExceeded, match="max_messages is 10") as refused:
        append(bench.store, topic.id, (0, b"x"), (1, b"x"))
    assert refused.value.retriable
    limit = {"topic": "t", "limit": 10, "option": "max_messages", "field": "max_messages", "held": 9}
    assert refused.value.details == limit
    put(bench.store, topic.id, (0, b"the tenth"))
    with pytest.raises(QuotaExceeded):
        put(bench.store, topic.id, (0, b"x"))
    bench.store.wait(bench.store.trim(topic.id, 1, 2))
    put(bench.store, topic.id, (0, b"x"), (0, b"x"))
    with pytest.raises(QuotaExceeded):
        put(bench.store, topic.id, (2, b"x"))
    bench.reopen()
    with pytest.raises(QuotaExceeded):
        put(bench.store, topic.id, (2, b"x"))
    bench.store.wait(bench.store.delete(topic.id, np.array([0], np.uint32), np.array([0])))
    put(bench.store, topic.id, (2, b"x"))
    bench.store.alter_topic("t", TopicOptions(revision=1))
    put(bench.store, topic.id, *[(2, b"x")] * 100)


@pytest.mark.parametrize(
    ("limit", "error", "found"),
    [
        ({"max_messages": 6}, TooManyMessages, {"option": "max_messages", "limit": 6, "size": 7}),
        ({"queue_max_messages": 6}, TooManyMessages, {"option": "queue_max_messages", "size": 7, "queue": 1}),
        ({"max_bytes": 600}, RequestTooLarge, {"option": "max_bytes", "limit": 600, "size": 700}),
    ],
)
def test_what_can_never_fit_is_refused_for_good(
    bench: Bench, limit: dict[str, int], error: type[LsmqError], found: dict[str, object]
) -> None:
    topic = bench.store.create_topic("t", 2, TopicOptions.from_dict(limit))
    put(bench.store, topic.id, (1, b"x"))
    with pytest.raises(error, match=rf"7\d* \w+ are sent together to .*{found['option']}") as refused:
        put(bench.store, topic.id, *[(1, b"x" * 100)] * 7)
    assert not refused.value.retriable and refused.value.details.items() >= found.items()
    with pytest.raises(QuotaExceeded):  # as much as there may be, and there is one already
        put(bench.store, topic.id, *[(1, b"x" * 100)] * 6)
    bench.store.alter_topic("t", TopicOptions.from_dict({**limit, "overflow": "drop_oldest", "revision": 1}))
    put(bench.store, topic.id, *[(1, b"x" * 100)] * 7)


def test_what_is_in_line_counts_and_what_was_dropped_from_it_does_not(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_messages=2))
    append(bench.store, topic.id, (0, b"x"), (0, b"x"))
    with pytest.raises(QuotaExceeded):
        append(bench.store, topic.id, (0, b"x"))
    line = bench.store._line
    with line.lock:
        line.restart(bench.store.committed_lsn, (), bench.store.committed_lsn, QuotaExceeded("for the test"))
    append(bench.store, topic.id, (0, b"x"), (0, b"x"))


def test_bytes_are_limited_as_they_were_measured_and_came_since(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_bytes=1_000))
    send(bench, topic.id, 0, 10)
    with pytest.raises(QuotaExceeded, match="max_bytes is 1000"):
        send(bench, topic.id, 0, 1)
    flush(bench.store)
    retain(bench.store)
    bench.store.wait(bench.store.trim(topic.id, 0, 5))
    with pytest.raises(QuotaExceeded):
        send(bench, topic.id, 0, 1)
    retain(bench.store)
    send(bench, topic.id, 0, 3)


def test_a_full_queue_is_named_and_others_go_on(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3, TopicOptions(queue_max_messages=2))
    put(bench.store, topic.id, (0, b"x"), (1, b"x"), (1, b"x"))
    with pytest.raises(QuotaExceeded, match="queue 1 of topic 't' holds 2 messages") as refused:
        put(bench.store, topic.id, (0, b"x"), (1, b"x"))
    assert refused.value.details["queue"] == 1
    put(bench.store, topic.id, (0, b"x"), (2, b"x"))
    with pytest.raises(QuotaExceeded, match="queue 2"):
        put(bench.store, topic.id, (2, b"x"), (2, b"x"))


def test_the_oldest_of_a_queue_make_room_at_once_and_every_replica_knows(bench: Bench) -> None:
    options = TopicOptions(queue_max_messages=3, overflow="drop_oldest")
    topic = bench.store.create_topic("t", 5, options)
    put(bench.store, topic.id, (0, b"a"), (0, b"b"), (4, b"x"))
    put(bench.store, topic.id, (0, b"c"), (4, b"y"))
    assert bounds(bench, topic.id, 0, 4) == [(0, 3), (0, 2)]
    append(bench.store, topic.id, (0, b"d"))
    put(bench.store, topic.id, (4, b"z"), (0, b"e"), (4, b"!"))
    assert (bodies(bench.store, topic.id, 0), bodies(bench.store, topic.id, 4)) == (
        {2: b"c", 3: b"d", 4: b"e"},
        {1: b"y", 2: b"z", 3: b"!"},
    )
    put(bench.store, topic.id, *[(1, b"%d" % number) for number in range(8)])
    assert list(bodies(bench.store, topic.id, 1).values()) == [b"5", b"6", b"7"]
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 2 + 1 + 5}
    bench.reopen()
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 8}
    assert list(bodies(bench.store, topic.id, 1)) == [5, 6, 7]


def test_a_queue_that_is_over_a_new_limit_is_shortened_though_nobody_writes_to_it(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 2)
    send(bench, topic.id, 0, 5)
    send(bench, topic.id, 1, 5)
    retain(bench.store)
    for revision, limit, begins in ((1, 3, 2), (2, 4, 2), (3, 1, 4)):
        options = TopicOptions(queue_max_messages=limit, overflow="drop_oldest", revision=revision)
        bench.store.alter_topic("t", options)
        retain(bench.store)
        assert bounds(bench, topic.id, 0, 1) == [(begins, 5), (begins, 5)]
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 8}


def test_queues_are_brought_down_to_a_limit_that_was_lifted_and_set_again_between_two_rounds(bench: Bench) -> None:
    limit = TopicOptions(queue_max_messages=2, overflow="drop_oldest")
    topic = bench.store.create_topic("t", 1, limit)
    put(bench.store, topic.id, (0, b"1"), (0, b"2"))
    retain(bench.store)
    bench.store.alter_topic("t", TopicOptions(revision=1))
    put(bench.store, topic.id, *((0, b"more") for _ in range(5)))
    bench.store.alter_topic("t", replace(limit, revision=2))
    retain(bench.store)
    assert bench.store.bounds(topic.id, 0) == (5, 7)


@pytest.mark.parametrize("option", ["max_messages", "max_bytes"])
def test_the_oldest_of_a_topic_make_room_in_the_background(bench: Bench, option: str) -> None:
    limit = 20 if option == "max_messages" else 2_000
    topic = bench.store.create_topic("t", 3, TopicOptions.from_dict({option: limit, "overflow": "drop_oldest"}))
    for queue in (0, 1, 2) * 10:
        send(bench, topic.id, queue, 1)
    assert bench.store.retention.run(None) and not bench.store.retention.is_watchful, "a follower only watches"
    retain(bench.store)
    assert bench.store.retention.is_watchful
    left = [found for queue in range(3) for found in bodies(bench.store, topic.id, queue)]
    assert (len(left), gone(bench, topic.id)) == (20, {LossReason.OVERFLOW: 10})
    assert bench.store.earliest_offsets(topic.id).tolist() == [4, 3, 3], "whichever queue they lie in"
    retain(bench.store)
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 10}


@pytest.mark.parametrize("flushed", [False, True])
def test_small_messages_do_not_go_by_the_bytes_of_large_ones(bench: Bench, flushed: bool) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_messages=200, overflow="drop_oldest"))
    send(bench, topic.id, 0, 200, 40)
    send(bench, topic.id, 0, 10, 5_000)
    if flushed:
        flush(bench.store)
    retain(bench.store)
    ((start, end),) = bounds(bench, topic.id, 0)
    assert (start == 10 or flushed) and 10 <= start <= 10 + 2 * BYTES_A_POINT // 40 and end == 210


def test_what_expires_in_a_round_is_not_dropped_for_the_limit_as_well(bench: Bench) -> None:
    options = TopicOptions(max_messages=20, overflow="drop_oldest", retention_ms=HOUR_MS)
    topic = bench.store.create_topic("t", 1, options)
    send(bench, topic.id, 0, 30)
    bench.clock.time_ms += HOUR_MS
    send(bench, topic.id, 0, 10)
    bench.clock.time_ms += 10
    retain(bench.store)
    assert (bounds(bench, topic.id, 0), gone(bench, topic.id)) == ([(30, 40)], {LossReason.EXPIRED: 30})


def test_shares_of_limits_that_refuse() -> None:
    one, three = ({number: Measurement() for number in range(count)} for count in (1, 3))
    assert (allowed_share(100, 30, 40, Rest(one)), allowed_share(100, 40, 30, Rest(one))) == (45, 55)
    assert (allowed_share(100, 90, 40, Rest(one)), allowed_share(100, 0, 0, Rest(three))) == (90, 25)
    assert allowed_share(100, 30, 40, Rest(three, wants=True)) == 60, "all that is left"
    assert allowed_share(100, 30, 39, Rest(three, wants=True, wanting=1)) == 46
    assert allowed_share(100, 30, 40, Rest(three, wanting=1)) == 30, "it is another's"


def test_a_limit_is_shared_with_other_shards(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_messages=10))
    bench.store.retention.rest = {topic.id: others(Holding(4))}
    retain(bench.store)
    assert bench.store.retention.measurements[topic.id].holding == Holding(0, 0)
    put(bench.store, topic.id, *[(0, b"x")] * 3)
    with pytest.raises(QuotaExceeded, match="for the whole topic"):
        put(bench.store, topic.id, (0, b"x"))
    bench.store.retention.rest = {topic.id: others(Holding())}
    retain(bench.store)
    put(bench.store, topic.id, *[(0, b"x")] * 3)


# Consumed


def commit(bench: Bench, group: str, topic_id: int, *offsets: int) -> None:
    queues = np.arange(len(offsets), dtype=np.uint32)
    bench.store.wait(bench.store.commit_offsets(group, topic_id, queues, np.array(offsets)))


def test_what_all_groups_have_committed_goes(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3, TopicOptions(delete_consumed=True))
    for queue in range(3):
        send(bench, topic.id, queue, 5)
    retain(bench.store)
    assert bounds(bench, topic.id, 0, 1, 2) == [(0, 5)] * 3, "nobody consumes it"
    commit(bench, "a", topic.id, 3, 5)
    retain(bench.store)
    assert bounds(bench, topic.id, 0, 1, 2) == [(3, 5), (5, 5), (0, 5)]
    commit(bench, "b", topic.id, 4, 1)
    commit(bench, "a", topic.id, 5, 5, 5)
    retain(bench.store)
    assert bounds(bench, topic.id, 0, 1, 2) == [(4, 5), (5, 5), (0, 5)], "b has not come to the third"
    bench.reopen()
    bench.store.wait(bench.store.forget_group("b"))
    retain(bench.store)
    assert bounds(bench, topic.id, 2) == [(0, 5)], "whether there are other shards is not known by now"
    bench.store.retention.rest = None
    retain(bench.store)
    assert bounds(bench, topic.id, 0, 1, 2) == [(5, 5)] * 3
    assert gone(bench, topic.id) == {LossReason.CONSUMED: 15}


def test_a_group_of_another_shard_is_waited_for(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(delete_consumed=True))
    send(bench, topic.id, 0, 5)
    commit(bench, "a", topic.id, 5)
    for rest in (
        {},
        {topic.id: others(Holding(), groups=None)},
        {topic.id: others(Holding(), groups=frozenset("b"))},
    ):
        bench.store.retention.rest = rest
        retain(bench.store)
        assert bounds(bench, topic.id, 0) == [(0, 5)]
    bench.store.retention.rest = {topic.id: others(Holding(), groups=frozenset("a"))}
    retain(bench.store)
    assert bounds(bench, topic.id, 0) == [(5, 5)]


# Damage


def damage(bench: Bench, content: bytes) -> None:
    """Of the only table, in the block that has this; and begin again."""
    spoil(bench.store, bench.disk, content)
    bench.reopen()
    bench.store.retention.rest = None


@pytest.mark.parametrize("overflow", ["drop_lowest_priority", "drop_nearest_deadline"])
def test_a_queue_that_cannot_be_read_stays_and_others_are_brought_down(bench: Bench, overflow: str) -> None:
    topic = bench.store.create_topic("t", 3, TopicOptions(queue_max_messages=5, overflow=overflow))
    for number in range(40):
        put(bench.store, topic.id, *((queue, b"%d %03d" % (queue, number) * 100) for queue in range(3)))
    flush(bench.store)
    damage(bench, b"1 010" * 100)
    for _ in range(3):
        retain(bench.store)
    assert [len(bodies(bench.store, topic.id, queue)) for queue in (0, 2)] == [5, 5]
    assert gone(bench, topic.id) == {LossReason.OVERFLOW: 70}


# A full disk


def test_on_a_disk_nearly_full_the_oldest_of_yielding_topics_go_but_for_what_a_group_waits_for(bench: Bench) -> None:
    yields = TopicOptions(on_disk_full="drop_oldest")
    kept = bench.store.create_topic("kept", 1)
    old = bench.store.create_topic("old", 1, yields)
    new = bench.store.create_topic("new", 1, yields)
    read = bench.store.create_topic("read", 1, yields)
    for topic, count in ((kept, 10), (read, 10), (old, 10), (new, 10)):
        send(bench, topic.id, 0, count)
    commit(bench, "g", read.id, 4)
    flush(bench.store)
    retain(bench.store)
    assert bounds(bench, old.id, 0) == [(0, 10)], "there is room"
    bench.store.retention.disk_shortage = lambda: 1_500
    retain(bench.store)
    assert bounds(bench, kept.id, 0) == bounds(bench, new.id, 0) == [(0, 10)]
    assert bounds(bench, read.id, 0) == [(4, 10)], "its group has not read the rest"
    (start, _), *_ = bounds(bench, old.id, 0)
    assert 2 <= start <= 8
    assert gone(bench, read.id) == {LossReason.DISK: 4} and gone(bench, kept.id) == {}


def test_what_a_transaction_has_decided_is_stored_though_there_is_no_room(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_messages=1))
    put(bench.store, topic.id, (0, b"x"))
    builder = BatchBuilder()
    builder.add(0, b"decided")
    batch = RecordBatch(builder.build(producer_id=BROKER_PRODUCERS | 5))
    bench.store.wait(bench.store.append(topic.id, batch))
    assert list(bodies(bench.store, topic.id, 0).values()) == [b"x", b"decided"]
    with pytest.raises(QuotaExceeded):
        put(bench.store, topic.id, (0, b"x"))


def test_batches_that_come_together_count_together_and_none_is_stored(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 2, TopicOptions(max_messages=3))
    other = bench.store.create_topic("other", 1)
    items = [(topic.id, _batch(0, 2)), (other.id, _batch(0, 1)), (topic.id, _batch(1, 2))]
    with pytest.raises(TooManyMessages):
        bench.store.append_many(items)
    bench.store.commit()
    assert bounds(bench, topic.id, 0, 1) + bounds(bench, other.id, 0) == [(0, 0)] * 3
    bench.store.append_many(items[:2])
    bench.store.commit()
    assert bounds(bench, topic.id, 0) == [(0, 2)]


def _batch(queue: int, count: int) -> RecordBatch:
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(queue, b"x")
    return RecordBatch(builder.build())


def test_what_came_while_others_led_counts(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1, TopicOptions(max_messages=5))
    put(bench.store, topic.id, (0, b"x"))
    state = bench.store._state.topics[topic.id]
    assert state.quota is not None
    quota, state.quota = state.quota, None  # as a follower has it, which asks nobody
    put(bench.store, topic.id, *[(0, b"x")] * 4)
    state.quota = quota
    line = bench.store._line
    with line.lock:
        line.restart(bench.store.committed_lsn, (), bench.store.committed_lsn, QuotaExceeded("for the test"))
    with pytest.raises(QuotaExceeded):
        append(bench.store, topic.id, (0, b"x"))


def test_a_topic_in_which_nothing_has_changed_is_not_gone_through(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = TopicOptions(retention_messages=2, max_messages=100, delete_consumed=True, retention_ms=HOUR_MS)
    topic = bench.store.create_topic("t", 1_000, options)
    send(bench, topic.id, 0, 5)
    commit(bench, "g", topic.id, 4)
    retain(bench.store)
    retain(bench.store)
    looked: list[str] = []
    for kind, name in ((TopicState, "count_messages"), (Retention, "_move"), (TopicState, "live_from")):
        real = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda *given, real=real, name=name, **more: (looked.append(name), real(*given, **more))[1]
        )
    for _ in range(20):
        bench.clock.time_ms += 1_000
        retain(bench.store)
    assert looked == []
    send(bench, topic.id, 0, 1)
    retain(bench.store)
    assert {"count_messages", "_move"} <= set(looked)
    assert bounds(bench, topic.id, 0) == [(4, 6)]
