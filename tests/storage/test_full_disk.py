"""A disk that is nearly full: the oldest messages go of topics that allow it, and what they took comes back."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from lsmq_node.storage import TopicOptions
from lsmq_node.storage.losses import LossReason
from lsmq_node.storage.merger import NoRoom

from .harness import KIB, abandon, flush, keep_house, merge, merge_checkpoint, retain, small_parts
from .test_limits import bounds, gone, send
from .test_retention import Bench


def opened(tmp_path: Path, min_free_bytes: int) -> Bench:
    """With so much that is to stay free, and no other shards to ask."""
    bench = Bench(tmp_path)
    abandon(bench.store)
    bench.store = bench.open(min_free_bytes=min_free_bytes)
    bench.store.retention.rest = None
    return bench


def fill(bench: Bench, topic_id: int) -> None:
    for _ in range(10):
        send(bench, topic_id, 0, 40, 400)
        flush(bench.store)
    with small_parts():
        merge(bench.store)


def test_a_disk_below_twice_what_is_kept_free_gets_room_and_no_more_goes_than_gives_it(tmp_path: Path) -> None:
    bench = opened(tmp_path, min_free_bytes=64 * KIB)
    topic = bench.store.create_topic("t", 1, TopicOptions(on_disk_full="drop_oldest"))
    fill(bench, topic.id)
    retain(bench.store)
    assert bounds(bench, topic.id, 0) == [(0, 400)], "there is room"
    bench.disk.capacity_bytes = bench.disk.used_bytes + 96 * KIB
    retain(bench.store)
    (start, _), *_ = bounds(bench, topic.id, 0)
    assert 24 * KIB <= start * 410 <= 48 * KIB, "about what is missing"
    retain(bench.store)
    assert bounds(bench, topic.id, 0) == [(start, 400)], "what is about to come back is enough"
    merge(bench.store)
    retain(bench.store)
    assert bounds(bench, topic.id, 0) == [(start, 400)], "and then it is enough"
    assert bench.store.stats().disk_dropped_messages_total == start
    abandon(bench.store)


def test_a_disk_nearly_full_gets_room_though_messages_go_all_the_time(tmp_path: Path) -> None:
    bench = opened(tmp_path, min_free_bytes=64 * KIB)
    topic = bench.store.create_topic("t", 1, TopicOptions(on_disk_full="drop_oldest"))
    ring = bench.store.create_topic("ring", 1, TopicOptions(queue_max_messages=1, overflow="drop_oldest"))
    fill(bench, topic.id)
    bench.disk.capacity_bytes = bench.disk.used_bytes + 96 * KIB
    for _ in range(3):
        send(bench, ring.id, 0, 2)
        retain(bench.store)
        (start, _), *_ = bounds(bench, topic.id, 0)
        assert 24 * KIB <= start * 410 <= 48 * KIB, "about what is missing"
    abandon(bench.store)


@pytest.mark.parametrize("queues", [1, 20])
def test_a_disk_nearly_full_stays_usable_though_little_of_the_store_goes(tmp_path: Path, queues: int) -> None:
    with small_parts():
        bench = opened(tmp_path, min_free_bytes=160 * KIB)
        topic = bench.store.create_topic("t", queues, TopicOptions(on_disk_full="drop_oldest"))
        for number in range(80):
            for queue in range(queues):
                send(bench, topic.id, queue, 40 // queues, 400)
            flush(bench.store)
            if number == 50:
                bench.disk.capacity_bytes = bench.disk.used_bytes + 400 * KIB
            retain(bench.store)
            for work in (bench.store._merger.merge_level0, bench.store._merger.merge_rest):
                for _ in range(3):
                    with suppress(NoRoom):
                        work()
            merge_checkpoint(bench.store)
            keep_house(bench.store)
            assert not bench.store.disk_full
        assert 0 < gone(bench, topic.id)[LossReason.DISK] < 1_600, "half of what was sent"
        abandon(bench.store)


def test_a_disk_that_a_flush_has_filled_gets_room_from_what_is_gone_and_what_the_log_keeps_to_use_again(
    tmp_path: Path,
) -> None:
    bench = opened(tmp_path, min_free_bytes=64 * KIB)
    gone, stays = (bench.store.create_topic(name, 1) for name in ("gone", "stays"))
    for _ in range(3):
        send(bench, gone.id, 0, 100, 400)
        send(bench, stays.id, 0, 1, 400)
        flush(bench.store)
    log = tmp_path / "shard" / "wal"
    assert any(name.endswith(".spare") for name in bench.disk.list(log))
    bench.store.wait(bench.store.trim(gone.id, 0, 300))
    bench.disk.capacity_bytes = bench.disk.used_bytes + 16 * KIB
    full = bench.disk.used_bytes
    for _ in range(3):
        with suppress(NoRoom):
            bench.store._merger.merge_rest()
    assert bench.disk.used_bytes < full - 100 * KIB
    assert bounds(bench, stays.id, 0) == [(0, 3)]
    abandon(bench.store)
