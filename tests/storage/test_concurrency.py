"""Threads that write, read, flush and merge at the same time: each queue stays dense and in order throughout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lsmq_node.storage import QueueStore, ShardStore

from .harness import TINY, Put, batch_of, body, put, tiny

STEPS = 100
BUSY = {**TINY, "level0_merge": 2, "slow_memtables": 2, "max_memtables": 4, "slow_level0": 8, "max_level0": 12}


def together(*works: Callable[[], object]) -> None:
    """Run all at the same time; raises what the first that failed raised."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def content(writer: int, queue: int, number: int) -> bytes:
    return b"%d/%d/%d/" % (writer, queue, number) + bytes(200)


@pytest.mark.part(2)
def test_queues_stay_dense_and_ordered_under_writers_readers_flush_and_merge(tmp_path: Path) -> None:
    store = QueueStore(tmp_path / "q", **{**BUSY, "flush_mode": "async"})
    queues, writers = 40, 3
    written = [[0] * queues for _ in range(writers)]
    done = threading.Event()

    def much_was_done() -> bool:
        stats = store.store.stats()
        return stats.flushes_total >= 6 and stats.merges_total >= 2

    def write(writer: int) -> None:
        step = 0
        while step < STEPS or not much_was_done():
            chosen = [(step * 7 + at * (writer + 1)) % queues for at in range(12)]
            pairs = []
            for queue in chosen:
                pairs.append((f"queue {queue}", content(writer, queue, written[writer][queue])))
                written[writer][queue] += 1
            offsets = store.put_many(pairs)
            last: dict[int, int] = {}
            for queue, offset in zip(chosen, offsets, strict=True):
                assert offset > last.get(queue, -1)
                last[queue] = offset
            step += 1
        done.set()

    def read() -> None:
        positions = [0] * queues
        next_of = [[0] * writers for _ in range(queues)]
        while not done.is_set():
            for queue in range(queues):
                latest = store.length(f"queue {queue}")
                found = store.get(f"queue {queue}", positions[queue], 50)
                for item in found:
                    writer, number_queue, number = map(int, item.split(b"/")[:3])
                    assert number_queue == queue
                    assert number == next_of[queue][writer], "a writer's messages come in its order, without gaps"
                    next_of[queue][writer] += 1
                    positions[queue] += 1
                assert len(found) == 50 or positions[queue] >= latest, "what was there is returned"

    def read_many() -> None:
        while not done.is_set():
            names = [f"queue {queue}" for queue in range(queues)] * 2
            lengths = [store.length(name) for name in names]
            found = store.get_many([(name, max(0, length - 5), 5) for name, length in zip(names, lengths, strict=True)])
            for queue, length, items in zip((*range(queues),) * 2, lengths, found, strict=True):
                assert min(length, 5) <= len(items) <= 5
                assert all(int(item.split(b"/")[1]) == queue for item in items)

    together(*(partial(write, writer) for writer in range(writers)), read, read, read_many)
    for reopened in (store, None):
        if reopened is None:
            store.close()
            reopened = QueueStore(tmp_path / "q", **BUSY)
        for queue in range(queues):
            items = [item.split(b"/")[:3] for item in reopened.get(f"queue {queue}", 0, 1 << 20)]
            assert len(items) == sum(counts[queue] for counts in written) == reopened.length(f"queue {queue}")
            for writer in range(writers):
                numbers = [int(item[2]) for item in items if int(item[0]) == writer]
                assert numbers == list(range(written[writer][queue]))
        reopened.close()


@pytest.mark.part(2)
def test_readers_never_see_a_gap_while_tables_are_merged_and_dropped(tmp_path: Path) -> None:
    store = ShardStore.open(tmp_path / "s", tiny(level0_merge=2))
    topic = store.create_topic("t", 4)
    stop = threading.Event()

    def write() -> None:
        for turn in range(60):
            store.append(topic.id, batch_of([Put(at % 4, body(turn * 40 + at, 300)) for at in range(40)]))
            store.wait_for_room(10)
            store.flush()
            if turn % 10 == 9:
                latest = store.latest_offsets(topic.id)
                store.wait(store.trim(topic.id, np.arange(4, dtype=np.uint32), latest // 2))
        stop.set()

    def read() -> None:
        while not stop.is_set():
            for queue in range(4):
                earliest, latest = store.bounds(topic.id, queue)
                found = store.read_many(topic.id, np.array([queue], np.uint32), np.array([0]), max_records=5_000)
                offsets = [message.offset for batch in found.batches() for message in batch.messages("t")]
                if latest > earliest:
                    offsets = [offset for offset in offsets if offset >= earliest]  # whole blocks may begin before
                    assert offsets
                    assert offsets == list(range(offsets[0], offsets[-1] + 1))
                    assert offsets[-1] + 1 == int(found.next_offsets[0]) or found.record_count == 5_000

    together(write, read, read)
    assert store.stats().merges_total >= 5
    store.close()


def test_threads_that_wait_share_commits(tmp_path: Path) -> None:
    store = ShardStore.open(tmp_path / "s", tiny())
    topic = store.create_topic("t", 8)
    before = store.stats()

    def write(queue: int) -> None:
        for number in range(40):
            assert put(store, topic.id, (queue, b"%d" % number)) == [number]

    together(*(partial(write, queue) for queue in range(8)))
    after = store.stats()
    assert after.committed_entries_total - before.committed_entries_total == 320
    assert after.commits_total - before.commits_total < 300
    store.close()


def test_a_topic_created_by_many_at_once_is_one_topic(tmp_path: Path) -> None:
    store = ShardStore.open(tmp_path / "s", tiny())
    for turn in range(10):
        barrier = threading.Barrier(6)
        found: list[int] = []

        def create(turn: int = turn, barrier: threading.Barrier = barrier, found: list[int] = found) -> None:
            barrier.wait()
            found.append(store.create_topic(f"t{turn}", 3).id)

        together(*[create] * 6)
        assert len(set(found)) == 1
    assert len(store.topics()) == 10
    together(*(partial(store.grow_topic, "t0", queues) for queues in (9, 5, 20, 7)))
    assert store.topic("t0").queues == 20
    store.close()


def read_while_columns_come(store: ShardStore) -> None:
    topic = store.create_topic("t", 1)
    put(store, topic.id, *[(0, b"plain")] * 50)
    started, stop = threading.Event(), threading.Event()

    def read() -> None:
        while not stop.is_set():
            started.set()
            assert store.read(topic.id, 0, 0).record_count >= 50

    def write() -> None:
        started.wait(10)
        for item in (Put(0, b"x", priority=1), Put(0, b"x", key="k"), Put(0, b"x", tag="t")):
            store.wait(store.append(topic.id, batch_of([item])))
        stop.set()

    together(read, write)


def test_an_optional_column_that_first_comes_while_others_read_does_no_harm(tmp_path: Path) -> None:
    """The memtable gets a column more in the middle of a reader's walk over them."""
    for turn in range(5):
        with ShardStore.open(tmp_path / str(turn), tiny()) as store:
            read_while_columns_come(store)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_closing_while_retention_and_merges_are_due_leaves_a_clean_store(tmp_path: Path, mode: str) -> None:
    for turn in range(5):
        store = QueueStore(tmp_path / f"{mode}{turn}", **{**BUSY, "flush_mode": mode, "retention_interval_ms": 1})
        for at in range(30):
            store.put_many([(f"q{at % 5}", body(at, 1_500)) for _ in range(10)])
        store.close()
        assert not store.store._writer.stopped
        again = QueueStore(tmp_path / f"{mode}{turn}", **BUSY)
        assert sum(again.length(f"q{at}") for at in range(5)) == 300
        again.close()
