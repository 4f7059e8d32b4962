"""Limits of the bytes of single queues: what one holds is known to a piece, whoever led before and whatever went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsmq.errors import InvalidRequest, QuotaExceeded, RequestTooLarge
from lsmq_node.storage import TopicOptions
from lsmq_node.storage import queue_bytes as module
from lsmq_node.storage.losses import LossReason

from .harness import abandon, append, bodies, flush, put, retain
from .test_retention import Bench

LIMIT = 3_200
SIZE = 100


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.store.retention.rest = None
    yield bench
    abandon(bench.store)


def create(bench: Bench, queues: int = 3, **more: Any) -> int:
    options = TopicOptions.from_dict({"queue_max_bytes": LIMIT, **more})
    return bench.store.create_topic("t", queues, options).id


def send(bench: Bench, topic_id: int, queue: int, count: int, size: int = SIZE) -> None:
    put(bench.store, topic_id, *[(queue, b"x" * size)] * count)


def held(bench: Bench, topic_id: int, queue: int) -> int:
    return sum(map(len, bodies(bench.store, topic_id, queue).values()))


def test_a_queue_takes_no_more_bytes_than_it_may_and_others_go_on(bench: Bench) -> None:
    topic_id = create(bench)
    for count in (1, 1, 20, 10):
        send(bench, topic_id, 1, count)
    with pytest.raises(QuotaExceeded, match=r"queue 1 of topic 't' holds 3200 bytes.*queue_max_bytes is 3200") as full:
        put(bench.store, topic_id, (0, b"x"), (1, b"x"))
    assert full.value.details == {
        "topic": "t",
        "limit": LIMIT,
        "option": "queue_max_bytes",
        "field": "queue_max_bytes",
        "held": LIMIT,
        "queue": 1,
    }  # fmt: skip
    send(bench, topic_id, 0, 32)
    bench.store.wait(bench.store.trim(topic_id, 1, 3))
    send(bench, topic_id, 1, 3)
    with pytest.raises(QuotaExceeded):
        send(bench, topic_id, 1, 1)
    bench.store.wait(bench.store.delete(topic_id, np.array([0], np.uint32), np.array([0])))
    send(bench, topic_id, 0, 1)
    assert (held(bench, topic_id, 0), held(bench, topic_id, 1), held(bench, topic_id, 2)) == (LIMIT, LIMIT, 0)


def test_what_is_in_line_counts_and_what_can_never_fit_is_refused_for_good(bench: Bench) -> None:
    topic_id = create(bench)
    append(bench.store, topic_id, *[(2, b"x" * SIZE)] * 20)
    with pytest.raises(QuotaExceeded):
        append(bench.store, topic_id, *[(2, b"x" * SIZE)] * 13)
    append(bench.store, topic_id, *[(2, b"x" * SIZE)] * 12)
    bench.store.commit()
    with pytest.raises(RequestTooLarge, match=r"3300 bytes are sent together to queue 0 .*queue_max_bytes") as never:
        send(bench, topic_id, 0, 33)
    assert not never.value.retriable and never.value.details["queue"] == 0


@pytest.mark.parametrize("flushed", [False, True])
def test_after_a_restart_what_a_queue_had_is_read_once_it_is_written_to(bench: Bench, flushed: bool) -> None:
    topic_id = create(bench)
    send(bench, topic_id, 1, 32)
    if flushed:
        flush(bench.store)
    bench.reopen()
    bench.store.retention.rest = None
    send(bench, topic_id, 1, 1)  # what is there is not known yet
    retain(bench.store)
    with pytest.raises(QuotaExceeded) as full:
        send(bench, topic_id, 1, 1)
    assert full.value.details["held"] == 33 * SIZE
    read = bench.store.stats().records_read_total
    retain(bench.store)
    assert bench.store.stats().records_read_total == read, "once"
    bench.store.wait(bench.store.trim(topic_id, 1, 20))
    send(bench, topic_id, 1, 19)
    with pytest.raises(QuotaExceeded):
        send(bench, topic_id, 1, 1)


@pytest.mark.parametrize("size", [7, SIZE, 1_000])
def test_the_oldest_make_room_at_once_and_never_is_there_more(bench: Bench, size: int) -> None:
    topic_id = create(bench, overflow="drop_oldest")
    for count in (1, 3, 30, 2, 1, 32) * 9:
        send(bench, topic_id, 1, count, size)
        assert held(bench, topic_id, 1) <= LIMIT
    assert held(bench, topic_id, 1) >= LIMIT - LIMIT // 32 - 2 * size, "and no more goes than has to, to a piece"
    gone = bench.store.bounds(topic_id, 1)[0]
    assert bench.store.retention.usage(topic_id).gone == {LossReason.OVERFLOW: gone}
    send(bench, topic_id, 1, 1, 2 * LIMIT)
    assert held(bench, topic_id, 1) == 2 * LIMIT, "one that is larger stays alone"
    last = bench.store.bounds(topic_id, 1)
    bench.reopen()
    assert bench.store.bounds(topic_id, 1) == last, "it stands in the log"


@pytest.mark.parametrize("size", [LIMIT - 1, 2 * LIMIT])
def test_small_ones_make_room_for_a_large_one_that_is_sent_with_them(bench: Bench, size: int) -> None:
    topic_id = create(bench, overflow="drop_oldest")
    put(bench.store, topic_id, *[(1, b"x")] * 30, (1, b"x" * size), (2, b"x" * size), *[(2, b"x")] * 30)
    assert held(bench, topic_id, 1) == size and held(bench, topic_id, 2) == 30


def test_what_a_queue_held_before_makes_room_once_it_is_known(bench: Bench) -> None:
    topic_id = create(bench, overflow="drop_oldest")
    send(bench, topic_id, 1, 32)
    bench.reopen()
    bench.store.retention.rest = None
    send(bench, topic_id, 1, 10)
    retain(bench.store)
    assert LIMIT - 2 * SIZE <= held(bench, topic_id, 1) <= LIMIT


def test_what_is_new_is_dropped_of_the_full_queue_alone(bench: Bench) -> None:
    topic_id = create(bench, overflow="drop_newest")
    put(bench.store, topic_id, *[(queue, b"x" * SIZE) for _ in range(40) for queue in (0, 2)], (1, b"x"))
    assert [held(bench, topic_id, queue) for queue in range(3)] == [LIMIT, 1, LIMIT]
    bench.store.wait(bench.store.trim(topic_id, 2, 1))
    send(bench, topic_id, 2, 5)
    assert held(bench, topic_id, 2) == LIMIT
    assert bench.store.retention.usage(topic_id).gone == {LossReason.OVERFLOW: 8 + 8 + 4}


@pytest.mark.parametrize("of_topic", [False, True])
def test_what_is_larger_than_the_room_there_is_takes_none_of_it(bench: Bench, of_topic: bool) -> None:
    limits = {"queue_max_bytes": None, "max_bytes": LIMIT} if of_topic else {"queue_max_messages": 3}
    topic_id = create(bench, overflow="drop_newest", **limits)
    put(bench.store, topic_id, *[(0, b"x" * size) for size in (LIMIT + 1, SIZE, LIMIT + 1, SIZE, SIZE)])
    assert [len(body) for body in bodies(bench.store, topic_id, 0).values()] == [SIZE] * 3


def test_an_altered_limit_counts_what_is_there(bench: Bench) -> None:
    topic_id = bench.store.create_topic("t", 1).id
    send(bench, topic_id, 0, 30)
    bench.store.alter_topic("t", TopicOptions(queue_max_bytes=LIMIT, revision=1))
    send(bench, topic_id, 0, 1)
    retain(bench.store)
    send(bench, topic_id, 0, 1)
    with pytest.raises(QuotaExceeded):
        send(bench, topic_id, 0, 1)
    bench.store.alter_topic("t", TopicOptions(queue_max_bytes=LIMIT + SIZE, revision=2))
    send(bench, topic_id, 0, 1)
    retain(bench.store)
    with pytest.raises(QuotaExceeded):
        send(bench, topic_id, 0, 1)
    bench.store.alter_topic("t", TopicOptions(revision=3))
    send(bench, topic_id, 0, 100)
    state = bench.store._state.topics[topic_id]
    assert state.quota is None, "a topic without the limit remembers nothing"


def test_of_more_queues_than_are_remembered_each_is_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN_QUEUES", 2)
    topic_id = create(bench, 5)
    for _ in range(2):
        for queue in range(5):
            send(bench, topic_id, queue, 16)
            retain(bench.store)
    for queue in range(5):
        send(bench, topic_id, queue, 1)
        retain(bench.store)
        with pytest.raises(QuotaExceeded):
            send(bench, topic_id, queue, 1)
    quota = bench.store._state.topics[topic_id].quota
    assert quota is not None and quota.queue_bytes is not None and len(quota.queue_bytes._known) == 2


def test_what_is_dropped_by_rank_has_no_limit_of_bytes() -> None:
    with pytest.raises(InvalidRequest, match="queue_max_bytes is 5"):
        TopicOptions.from_dict({"overflow": "drop_lowest_priority", "queue_max_messages": 3, "queue_max_bytes": 5})
