"""Deleting messages one by one costs the same for each, and leaves nothing behind."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore, compaction, reader
from lsmq_node.storage.compaction import Unreadable
from lsmq_node.storage.deletions import MAX_STRETCHES, Deletions
from lsmq_node.storage.memtable import Memtable
from lsmq_node.storage.version import Version
from support.clock import SimClock

from .harness import (
    Put,
    abandon,
    batch_of,
    bodies,
    body,
    flush,
    merge,
    open_stepped,
    profile,
    read_queue,
    small,
    small_parts,
    tiny,
)

COUNT = 6_000


class Queue:
    """A stepped store with one queue of many messages."""

    def __init__(self, root: Path) -> None:
        self.root, self.disk = root, Drive(root)
        self.store = self.open()
        self.topic = self.store.create_topic("t", 1).id
        for first in range(0, COUNT, 1_000):
            puts = [Put(0, b"%d" % offset) for offset in range(first, first + 1_000)]
            self.store.wait(self.store.append(self.topic, batch_of(puts)))
            if first % 2_000:
                flush(self.store)

    def open(self) -> ShardStore:
        return open_stepped(self.root / "shard", small(), self.disk, SimClock())

    def reopen(self) -> None:
        abandon(self.store)
        self.disk = self.disk.kill()
        self.store = self.open()

    def delete(self, *offsets: int) -> None:
        self.store.wait(self.store.delete(self.topic, np.zeros(len(offsets), np.uint32), np.array(offsets)))

    def next(self, offset: int = 0) -> int | None:
        """The first message that is left from an offset on."""
        found = self.store.read(self.topic, 0, offset, max_records=1)
        for batch in found.batches():
            for message in batch.messages("t"):
                if message.offset >= offset:
                    return message.offset
        return None


def test_what_was_deleted_ahead_is_not_counted_once_a_trim_has_reached_it(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.delete(3, 4)
    queue.store.wait(queue.store.trim(queue.topic, 0, 3))
    for _ in range(2):
        assert queue.store.retention.usage(queue.topic).holding.messages == COUNT - 5
        queue.reopen()


@pytest.mark.parametrize("size", [200, 4_000])
def test_a_merge_frees_its_tables_of_all_that_was_deleted_wherever_its_parts_are_cut(tmp_path: Path, size: int) -> None:
    options, disk = tiny(level0_merge=2, memtable_bytes=1 << 20), Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", options, disk)
    topic = store.create_topic("t", 1).id
    store.wait(store.append(topic, batch_of([Put(0, body(offset, size)) for offset in range(60)])))
    flush(store)
    deleted = np.arange(2, 60, 2)
    store.wait(store.delete(topic, np.zeros(len(deleted), np.uint32), deleted))
    flush(store)
    left = bodies(store, topic, 0)
    with small_parts():
        merge(store)
    assert left.keys() == set(range(60)) - set(deleted.tolist())
    assert bodies(store, topic, 0) == left
    metas = [table.meta for table in store._tables.version.tables()]
    assert sum(meta.record_count for meta in metas) == len(left) and not any(meta.tombstone_count for meta in metas)
    abandon(store)


def test_tombstones_of_the_same_offset_in_different_queues_are_all_kept(tmp_path: Path) -> None:
    store = open_stepped(tmp_path / "shard", tiny(level0_merge=9), Drive(tmp_path))
    topic = store.create_topic("t", 3).id
    store.wait(store.append(topic, batch_of([Put(queue, b"x") for queue in range(3) for _ in range(9)])))
    flush(store)
    for queue in (0, 1, 2, 1):
        store.wait(store.delete(topic, np.array([queue], np.uint32), np.array([5])))
        flush(store)
    *tombstones, messages = store._tables.version.level0
    unreadable = Unreadable(store._merger.log_starts, (), messages.tables, lambda stored, expires: expires < 0)
    merged = [records for _, records in compaction.merge(tombstones[::-1], unreadable)]
    kept = [place for part in merged for place in zip(part.keys.tolist(), part.offsets.tolist(), strict=True)]
    assert [(key & 0xFFFFFFFF, offset) for key, offset in kept] == [(0, 5), (1, 5), (2, 5)]
    abandon(store)


def tombstones_looked_at(offsets: list[int]) -> mock._patch[mock.Mock]:
    """Notes how many offsets each look for tombstones returns."""
    real = reader._deleted_offsets

    def counted(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        offsets.append(len(found))
        return found

    return mock.patch("lsmq_node.storage.reader._deleted_offsets", counted)


@pytest.mark.parametrize("window", [1, 40])
def test_draining_a_queue_from_its_beginning_looks_at_no_more_than_a_window(tmp_path: Path, window: int) -> None:
    """Acknowledged in order, or a few at a time in any order."""
    queue, chance, looked = Queue(tmp_path), random.Random(4), list[int]()
    with tombstones_looked_at(looked):
        for first in range(0, COUNT // 4, window):
            assert queue.next() == first
            for offset in chance.sample(range(first, first + window), window):
                queue.delete(offset)
            if first % 1_000 < window:
                flush(queue.store)
    assert sum(looked) <= 2 * window * len(looked)
    assert queue.next() == first + window
    for reopen in (lambda: None, queue.reopen):
        reopen()
        looked.clear()
        with tombstones_looked_at(looked):
            assert len(bodies(queue.store, queue.topic, 0)) == COUNT - first - window
        assert not looked, "what is behind is forgotten"
    abandon(queue.store)


def test_draining_a_queue_in_any_order_looks_at_tombstones_of_the_range_alone(tmp_path: Path) -> None:
    queue, looked = Queue(tmp_path), list[int]()
    order = list(range(COUNT))
    random.Random(5).shuffle(order)
    for at in range(0, COUNT, 50):
        queue.delete(*order[at : at + 50])
        if at % 1_500 == 0:
            flush(queue.store)
            merge(queue.store)
        gone = set(order[: at + 50])
        wanted = next((offset for offset in range(3_000, COUNT) if offset not in gone), None)
        with tombstones_looked_at(looked):
            assert queue.next(3_000) == wanted
    assert max(looked) <= 1024 + 2048 + 4096
    assert sum(looked) < COUNT * 10
    flush(queue.store)
    merge(queue.store)
    assert sum(run.tombstone_count for run in queue.store._tables.version.runs()) == 0
    queue.reopen()
    queue.store.wait(queue.store.append(queue.topic, batch_of([Put(0, b"new")])))
    looked.clear()
    with tombstones_looked_at(looked):
        assert queue.next(COUNT) == COUNT
    assert not looked
    abandon(queue.store)


def test_what_is_deleted_in_one_queue_costs_readers_of_the_others_nothing(tmp_path: Path) -> None:
    """In memory, in tables, after a start: no tombstone is looked for."""
    store, looked = open_stepped(tmp_path / "shard", small(), disk := Drive(tmp_path), SimClock()), list[int]()
    topic = store.create_topic("t", 2).id
    store.wait(store.append(topic, batch_of([Put(at % 2, b"%d" % at) for at in range(COUNT)])))
    flush(store)
    gone = np.arange(1, COUNT // 2, 3)
    store.wait(store.delete(topic, np.zeros(len(gone), np.uint32), gone))
    for change in (lambda: None, lambda: flush(store), lambda: merge(store)):
        change()
        with tombstones_looked_at(looked):
            assert len(bodies(store, topic, 1)) == COUNT // 2
            assert not looked
            assert len(bodies(store, topic, 0)) == COUNT // 2 - len(gone)
            assert looked, "there it is looked"
        looked.clear()
    abandon(store)
    store = open_stepped(tmp_path / "shard", small(), disk.kill(), SimClock())
    with tombstones_looked_at(looked):
        assert len(bodies(store, topic, 1)) == COUNT // 2
    assert not looked
    abandon(store)


def test_a_batch_of_messages_that_are_not_there_yet_deletes_none_of_those_that_come(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.delete(COUNT)
    queue.store.wait(queue.store.append(queue.topic, batch_of([Put(0, b"new")])))
    assert queue.next(COUNT) == COUNT
    abandon(queue.store)


@pytest.mark.parametrize("deleted", [1, 7])
def test_a_block_that_begins_with_deleted_messages_is_not_sent_whole(tmp_path: Path, deleted: int) -> None:
    with mock.patch.object(reader, "MIN_FILE_RANGE_BYTES", 100):
        store = open_stepped(tmp_path / "s", small(), Drive(tmp_path))
        topic = store.create_topic("t", 1).id
        store.wait(store.append(topic, batch_of([Put(0, b"%d" % number * 50) for number in range(10)])))
        flush(store)
        store.wait(store.delete(topic, np.zeros(deleted, np.uint32), np.arange(deleted)))
        assert [message.offset for message in read_queue(store, topic, 0)] == list(range(deleted, 10))
        abandon(store)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_that_is_met_where_a_table_ends_leaves_out_nothing_of_the_next(tmp_path: Path, limit: int) -> None:
    store = open_stepped(tmp_path / "s", small(), Drive(tmp_path))
    topic = store.create_topic("t", 1).id
    for number in range(6):
        store.wait(store.append(topic, batch_of([Put(0, b"%d" % number), Put(0, b"-")])))
        if number < 5:
            flush(store)
    store.wait(store.delete(topic, np.zeros(2, np.uint32), np.array([5, 8])))
    kept = [offset for offset in range(12) if offset not in (5, 8)]
    assert [message.offset for message in read_queue(store, topic, 0, max_records=limit)] == kept
    abandon(store)


def test_a_memtable_finds_the_tombstones_of_a_range_in_chunks_and_behind_them() -> None:
    with mock.patch("lsmq_node.storage.memtable.CHUNK_RECORDS", 10):
        memtable, chance = Memtable(0, 1 << 20), np.random.default_rng(6)
        offsets = chance.permutation(200)
        for at in range(0, 200, 4):
            part = offsets[at : at + 4].astype(np.int64)
            keys = np.full(4, 1 << 32 | 1 << 63, np.uint64)
            memtable.apply(at + 4, keys, part, np.zeros(4, np.uint32), 0, memoryview(b""), {})
            for low, high in ((0, 200), (50, 60), (199, 200), (7, 7)):
                expected = sorted(offset for offset in offsets[: at + 4].tolist() if low <= offset < high)
                found = reader._deleted_offsets(Version((memtable,), (), ()), 1 << 32, low, high)
                assert found.tolist() == expected


@profile(150)
@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=12)),
        max_size=30,
    )
)
def test_floor_and_end_say_what_sets_of_offsets_say(steps: list[tuple[bool, list[tuple[int, int]]]]) -> None:
    found, ends = Deletions(3), np.array([50, 20, 5])
    starts, gone = np.zeros(3, np.int64), [set[int](), set[int](), set[int]()]
    for is_trim, pairs in steps:
        rows, offsets = np.array([row for row, _ in pairs]), np.array([offset for _, offset in pairs])
        if is_trim:
            np.maximum.at(starts, rows, np.minimum(offsets, ends[rows]))
            found.trimmed(rows, starts)
        else:
            needed = found.apply(rows, offsets, starts, ends)
            for row, offset in pairs:
                if starts[row] <= offset < ends[row]:
                    gone[row].add(offset)
            for (row, offset), kept in zip(pairs, needed.tolist(), strict=True):
                floor = max(int(starts[row]), int(found.floor[row]))
                if kept:
                    assert floor <= offset < ends[row], "no tombstone for what is behind"
        again = Deletions(3)
        again.restore(0, 3, found.take([0], 2, starts).get(0))
        for known in (found, again):
            for row in range(3):
                floor = int(starts[row])
                while floor in gone[row]:
                    floor += 1
                assert max(int(starts[row]), int(known.floor[row])) == floor
                assert all(offset < max(int(known.end[row]), int(starts[row])) for offset in gone[row])


def test_stretches_that_are_remembered_are_bounded() -> None:
    found, starts, ends = Deletions(1), np.zeros(1, np.int64), np.full(1, 10_000)
    for offset in range(9_999, 0, -2):
        found.apply(np.zeros(1, np.int64), np.array([offset]), starts, ends)
    assert len(found.take([0], 2, starts)[0].stretches) == MAX_STRETCHES
    for offset in range(0, 2 * MAX_STRETCHES, 2):
        found.apply(np.zeros(1, np.int64), np.array([offset]), starts, ends)
    assert int(found.floor[0]) == 2 * MAX_STRETCHES
