"""Queues that keep more or less than their topic says: by age, by number and by bytes, over restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lsmq.errors import CorruptFile, InvalidRequest
from lsmq_node.storage import TopicOptions
from lsmq_node.storage.queue_options import UNLIMITED, QueueOptions, decode, encode, key_of

from .harness import abandon, bodies, flush, merge, put, retain, spoil
from .test_retention import HOUR_MS, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    abandon(bench.store)


def give(bench: Bench, topic_id: int, queue: int | str, **options: int | str | None) -> None:
    document = encode(queue, QueueOptions().altered(options))
    bench.store.wait(bench.store.put_documents({key_of(topic_id, queue): document}))


def starts(bench: Bench, topic_id: int) -> list[int]:
    found: list[int] = bench.store.earliest_offsets(topic_id).tolist()
    return found


def test_a_queue_is_kept_for_as_long_as_it_says_and_the_others_as_the_topic_does(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 4, TopicOptions(retention_ms=HOUR_MS))
    give(bench, topic.id, 1, retention_ms=3 * HOUR_MS)
    give(bench, topic.id, 2, retention_ms=UNLIMITED)
    give(bench, topic.id, 3, retention_ms=HOUR_MS // 2)
    sent = bench.fill(topic.id, 4, 5)
    bench.clock.time_ms += HOUR_MS // 2 + 1
    retain(bench.store)
    assert starts(bench, topic.id) == [0, 0, 0, 5]
    bench.clock.time_ms += HOUR_MS
    retain(bench.store)
    assert starts(bench, topic.id) == [5, 0, 0, 5]
    kept = {place: content for place, content in sent.items() if place[0] in (1, 2)}
    merge(bench.store)
    assert bench.shown(topic.id, 4) == kept, "their table is shared with queues of which nothing is left"
    bench.reopen()
    retain(bench.store)
    assert bench.shown(topic.id, 4) == kept, "and after a restart, before anybody looked"
    bench.clock.time_ms += 3 * HOUR_MS
    retain(bench.store)
    assert starts(bench, topic.id) == [5, 5, 0, 5]
    give(bench, topic.id, 2)
    retain(bench.store)
    assert starts(bench, topic.id) == [5, 5, 5, 5], "what follows the topic again goes with it"


def test_queues_of_a_topic_without_limits_have_their_own(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3)
    give(bench, topic.id, 0, retention_ms=HOUR_MS)
    give(bench, topic.id, 1, retention_messages=2)
    bench.fill(topic.id, 3, 5)
    retain(bench.store)
    assert starts(bench, topic.id) == [0, 3, 0]
    bench.clock.time_ms += HOUR_MS + 1
    retain(bench.store)
    assert starts(bench, topic.id) == [5, 3, 0]
    bench.fill(topic.id, 3, 1)
    retain(bench.store)
    assert starts(bench, topic.id) == [5, 4, 0], "each round, though no other queue has a limit"


def test_a_queue_keeps_another_number_of_messages_than_the_others(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3, TopicOptions(retention_messages=3))
    give(bench, topic.id, 1, retention_messages=UNLIMITED)
    give(bench, topic.id, 2, retention_messages=7)
    bench.fill(topic.id, 3, 10)
    retain(bench.store)
    assert starts(bench, topic.id) == [7, 0, 3]
    give(bench, topic.id, 2, retention_messages=1)
    retain(bench.store)
    assert starts(bench, topic.id) == [7, 0, 9], "what changes counts, though nothing came"
    give(bench, topic.id, 1)
    retain(bench.store)
    assert starts(bench, topic.id) == [7, 7, 9], "so does what is taken away"


@pytest.mark.parametrize("size", [100, 900])
def test_a_queue_keeps_so_many_bytes_to_within_a_piece(bench: Bench, size: int) -> None:
    topic = bench.store.create_topic("t", 2)
    limit = 32 * size
    give(bench, topic.id, 1, retention_bytes=limit)
    for turn in range(1, 13):
        bench.fill(topic.id, 2, 10, size)
        if turn == 6:
            bench.reopen()
        retain(bench.store)
        held = sum(map(len, bodies(bench.store, topic.id, 1).values()))
        assert min(limit, turn * 10 * size) <= held <= limit + 2 * size
    assert starts(bench, topic.id)[0] == 0
    bench.store.wait(bench.store.trim(topic.id, np.array((1,)), np.array((110,))))
    retain(bench.store)
    assert starts(bench, topic.id)[1] == 110, "what somebody trimmed is not counted twice"


def test_the_bytes_of_a_queue_are_counted_once(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 1)
    give(bench, topic.id, 0, retention_bytes=10_000)
    bench.fill(topic.id, 1, 50)
    retain(bench.store)
    read = bench.store.stats().records_read_total
    retain(bench.store)
    assert bench.store.stats().records_read_total == read
    bench.fill(topic.id, 1, 3)
    retain(bench.store)
    assert bench.store.stats().records_read_total == read + 3


def test_a_queue_of_which_not_all_can_be_read_holds_up_no_other(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3)
    for queue in range(3):
        give(bench, topic.id, queue, retention_bytes=5_000)
    for number in range(40):
        put(bench.store, topic.id, *((queue, b"%d %03d" % (queue, number) * 100) for queue in range(3)))
    flush(bench.store)
    spoil(bench.store, bench.disk, b"1 010" * 100)
    bench.reopen()
    for _ in range(3):
        retain(bench.store)
    first, damaged, last = starts(bench, topic.id)
    assert damaged <= 10 and 25 <= first == last <= 31


def test_while_it_cannot_be_read_what_queues_keep_nothing_of_their_topic_goes_and_others_do(bench: Bench) -> None:
    options = TopicOptions(retention_messages=2)
    topic, other = bench.store.create_topic("t", 2, options), bench.store.create_topic("other", 2, options)
    give(bench, topic.id, 0, retention_messages=UNLIMITED)
    place = key_of(topic.id, 1)
    bench.store.wait(bench.store.put_documents({place: b"of a release that is to come"}))
    bench.fill(topic.id, 2, 5)
    bench.fill(other.id, 2, 5)
    retain(bench.store)
    assert (starts(bench, topic.id), starts(bench, other.id)) == ([0, 0], [3, 3])
    bench.store.wait(bench.store.put_documents({place: None}))
    retain(bench.store)
    assert starts(bench, topic.id) == [0, 3]


def test_options_go_with_their_topic(bench: Bench) -> None:
    topic, other = bench.store.create_topic("t", 2), bench.store.create_topic("other", 2)
    give(bench, topic.id, 0, retention_ms=HOUR_MS)
    give(bench, other.id, 0, retention_ms=HOUR_MS)
    bench.store.delete_topic("t")
    left = [(key_of(other.id, 0), encode(0, QueueOptions(retention_ms=HOUR_MS)))]
    assert bench.store.documents() == left
    bench.reopen()
    assert bench.store.documents() == left


def test_bad_options_are_refused_by_name_and_a_bad_document_by_its_key() -> None:
    options = QueueOptions().altered({"retention_ms": 5, "retention_messages": UNLIMITED})
    assert options.to_dict() == {"retention_ms": 5, "retention_messages": UNLIMITED}
    assert options.altered({"retention_ms": None}).to_dict() == {"retention_messages": UNLIMITED}
    for wrong in (0, -1, "forever", 1.5, True):
        with pytest.raises(InvalidRequest, match="retention_bytes must be a whole number above 0, or 'unlimited'"):
            options.altered({"retention_bytes": wrong})
    with pytest.raises(InvalidRequest, match="unknown queue option 'ttl_ms'; there are: retention_ms, "):
        options.altered({"ttl_ms": 5})
    body = encode("a.b", options)
    assert body is not None and decode("k", body) == ("a.b", options)
    assert encode(7, QueueOptions()) is None
    for bad in (b"", b"\x90", body.replace(b"\x01", b"\x02", 1), body[:-1]):
        with pytest.raises(CorruptFile, match="the document 'k' cannot be read"):
            decode("k", bad)
