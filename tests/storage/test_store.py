"""What a store takes and refuses, and how it opens; each case was a way to get it wrong."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsmq.errors import (
    DataDirectoryLocked,
    DataDirectoryUnusable,
    InvalidBatch,
    InvalidRequest,
    MessageTooLarge,
    OutOfOrderSequence,
    StoreBusy,
    TooManyMessages,
    TopicExists,
)
from lsmq.record_batch import COLUMN, HEADER_BYTES, Column, RecordBatch, encode_batch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import Appended, QueueStore, ShardStore, StoreOptions, TopicOptions
from lsmq_node.storage import lock as lock_module
from lsmq_node.storage import options as options_module
from lsmq_node.storage.queue_writer import MESSAGES
from lsmq_node.storage.state import StoredTopic
from support.clock import SimClock

from .harness import (
    SMALL,
    TINY,
    Put,
    abandon,
    append,
    background,
    batch_of,
    bodies,
    body,
    flush,
    merge,
    no_threads,
    open_stepped,
    put,
    small,
    tiny,
)


def test_a_store_opens_with_smaller_memtables_than_its_log_was_written_with(tmp_path: Path, disk: Drive) -> None:
    path = tmp_path / "s"
    store = open_stepped(path, small(memtable_bytes=1 << 20), disk)
    topic = store.create_topic("t", 2)
    sent = [body(at, 90 * 1024) for at in range(5)]
    put(store, topic.id, *[(0, content) for content in sent])
    put(store, topic.id, (1, b"small"))
    abandon(store)
    store = open_stepped(path, tiny(), disk.kill())
    assert bodies(store, topic.id, 0) == dict(enumerate(sent))
    flush(store)
    assert bodies(store, topic.id, 0) == dict(enumerate(sent))
    assert bodies(store, topic.id, 1) == {0: b"small"}
    abandon(store)


def test_a_size_of_segments_that_is_not_taken_is_said_so(
    tmp_path: Path, disk: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    for options in (tiny(), tiny(), tiny(segment_bytes=128 << 10)):
        assert caplog.messages == []
        abandon(open_stepped(path, options, disk))
    assert [f"segment_bytes is {128 << 10}, but the store was made with {64 << 10}" in caplog.messages[0]] == [True]


def test_the_directory_of_a_new_store_survives_a_power_cut_with_all_its_parents(tmp_path: Path) -> None:
    for seed in range(10):
        disk, path = Drive(tmp_path), tmp_path / "data" / "shards" / str(seed)
        store = open_stepped(path, tiny(), disk)
        topic = store.create_topic("t", 1)
        put(store, topic.id, (0, b"acknowledged"))
        abandon(store)
        store = open_stepped(path, tiny(), disk.power_cut(seed))
        assert bodies(store, topic.id, 0) == {0: b"acknowledged"}
        abandon(store)


def test_a_directory_in_use_names_the_process(tmp_path: Path) -> None:
    store = ShardStore.open(tmp_path / "s", tiny())
    with pytest.raises(DataDirectoryLocked, match=f"in use by process {os.getpid()}, which is this one. Close"):
        ShardStore.open(tmp_path / "s", tiny())
    store.close()
    ShardStore.open(tmp_path / "s", tiny()).close()


def test_a_directory_is_taken_and_given_back_where_the_disk_is_too_full_for_the_number_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        lock = lock_module.DirectoryLock(tmp_path / "s")
    with pytest.raises(DataDirectoryLocked, match="in use by process unknown"):
        lock_module.DirectoryLock(tmp_path / "s")
    lock.release()
    lock_module.DirectoryLock(tmp_path / "s").release()


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"")
    with pytest.raises(DataDirectoryUnusable):
        ShardStore.open(tmp_path / "s", tiny())


def test_closing_releases_the_directory_even_when_the_last_sync_fails(tmp_path: Path, disk: Drive) -> None:
    import errno

    from lsmq_node.storage import FlushMode

    store = open_stepped(tmp_path / "s", tiny(flush_mode=FlushMode.ASYNC), disk)
    put(store, store.create_topic("t", 1).id, (0, b"x"))
    disk.at(1, errno.EIO, ("sync",))
    with pytest.raises(OSError, match="error"):
        store.close()
    open_stepped(tmp_path / "s", tiny(), disk).close()


def test_topics_are_one_thing_by_name(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "s", tiny()) as store:
        topic = store.create_topic("t", 3, TopicOptions(retention_ms=5))
        assert store.create_topic("t", 3, TopicOptions(retention_ms=5)) == topic
        with pytest.raises(TopicExists):
            store.create_topic("t", 4, TopicOptions(retention_ms=5))
        with pytest.raises(InvalidRequest, match="16000000"):
            store.grow_topic("t", 16_000_001)


# -- batches from outside --------------------------------------------------------------------------------


def sealed(raw: bytes) -> RecordBatch:
    return RecordBatch(raw, verify=False)


def test_a_column_of_an_impossible_width_is_an_invalid_batch(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    raw = bytearray(encode_batch(1, {Column.QUEUE: [0], Column.LENGTH: [3]}, b"abc"))
    raw[HEADER_BYTES + 1] = 3
    raw[4:8] = (len(raw) + 3).to_bytes(4, "little")
    widened = bytes(raw[: HEADER_BYTES + 2 * COLUMN.size]) + b"\0\0\0" + b"abc"
    with pytest.raises(InvalidBatch, match="width"):
        store.append(topic.id, sealed(widened))
    abandon(store)


def test_a_tiny_batch_of_very_many_records_is_refused_before_it_takes_memory(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    bomb = RecordBatch(encode_batch(16_000_000, {Column.QUEUE: 0, Column.LENGTH: 0}, b""))
    with pytest.raises(TooManyMessages, match="limit of 2048"):
        store.append(topic.id, bomb)
    abandon(store)


@pytest.mark.parametrize("flags", [1, 2, 3, 4, 9, 16])
def test_a_producer_cannot_set_the_brokers_flags(tmp_path: Path, disk: Drive, flags: int) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    columns: dict[int, list[int]] = {Column.QUEUE: [0], Column.LENGTH: [1], Column.FLAGS: [flags]}
    with pytest.raises(InvalidBatch, match="flags"):
        store.append(topic.id, RecordBatch(encode_batch(1, columns, b"x")))
    abandon(store)


@pytest.mark.parametrize("column", [Column.TRANSACTION, Column.TARGET])
def test_a_batch_with_a_column_that_nothing_obeys_is_refused_by_its_name(
    tmp_path: Path, disk: Drive, column: Column
) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    columns: dict[int, list[int]] = {Column.QUEUE: [0, 0], Column.LENGTH: [1, 1], column: [0, 5]}
    with pytest.raises(InvalidRequest, match=column.name):
        store.append(topic.id, RecordBatch(encode_batch(2, columns, b"ab")))
    assert store.bounds(topic.id, 0) == (0, 0)
    abandon(store)


def test_the_largest_message_passes_and_one_byte_more_does_not(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(max_message_bytes=90_000), disk)
    topic = store.create_topic("t", 1)
    assert put(store, topic.id, (0, body(1, 90_000))) == [0]
    with pytest.raises(MessageTooLarge, match="limit of 90000"):
        append(store, topic.id, (0, body(1, 90_001)))
    abandon(store)


# -- producers -------------------------------------------------------------------------------------------


def test_a_new_epoch_of_a_producer_is_not_taken_for_a_repeat_of_the_old_one(tmp_path: Path, disk: Drive) -> None:
    """The first batch of epoch 2 while the first of epoch 1 is still in line."""
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    one = store.append(topic.id, batch_of([Put(0, b"old")], producer_id=5, producer_epoch=1, sequence=0))
    two = store.append(topic.id, batch_of([Put(0, b"new")], producer_id=5, producer_epoch=2, sequence=0))
    assert (one.duplicate, two.duplicate) == (False, False)
    store.commit()
    assert bodies(store, topic.id, 0) == {0: b"old", 1: b"new"}
    again = store.append(topic.id, batch_of([Put(0, b"new")], producer_id=5, producer_epoch=2, sequence=0))
    assert (again.duplicate, again.offsets.tolist()) == (True, [1])
    abandon(store)


def test_batches_of_one_producer_may_come_together(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)

    def batches(*sequences: int, producer: int = 7) -> list[tuple[int, RecordBatch]]:
        return [
            (topic.id, batch_of([Put(0, b"%d" % sequence)], producer_id=producer, sequence=sequence))
            for sequence in sequences
        ]

    def offsets(appended: list[Appended]) -> list[int]:
        return [int(each.offsets[0]) for each in appended]

    first = store.append_many(batches(0, 1) + batches(0, producer=8) + batches(2))
    assert offsets(first) == [0, 1, 2, 3]
    assert not any(each.duplicate for each in first)
    again = store.append_many(batches(1, 2, 3))  # still in line, and one more
    assert offsets(again) == [1, 3, 4]
    assert [each.duplicate for each in again] == [True, True, False]
    for wrong in (batches(4, 6), batches(4) + batches(3, producer=8), batches(5)):
        with pytest.raises(OutOfOrderSequence):
            store.append_many(wrong)
    twice = store.append_many(batches(4, 4, 5))
    assert offsets(twice) == [5, 5, 6], "nothing was put in line by what was refused"
    assert [each.duplicate for each in twice] == [False, True, False]
    store.commit()
    assert offsets(store.append_many(batches(4, 5, 6))) == [5, 6, 7]
    store.commit()
    assert list(bodies(store, topic.id, 0).values()) == [*(b"0", b"1", b"0", b"2", b"3", b"4", b"5", b"6")]
    abandon(store)


def test_what_waits_in_line_has_a_limit(tmp_path: Path, disk: Drive) -> None:
    limit = 64 * 1024
    store = open_stepped(tmp_path / "s", tiny(max_waiting_bytes=limit), disk)
    topic = store.create_topic("t", 1)
    taken = 0
    with pytest.raises(StoreBusy, match="max_waiting_bytes") as refusal:
        while True:
            append(store, topic.id, (0, bytes(5_000)))
            taken += 1
    assert refusal.value.retriable
    assert refusal.value.details["limit"] == limit
    assert limit - 10_000 < store.stats().waiting_bytes <= limit
    with pytest.raises(StoreBusy, match="max_waiting_bytes"):
        for _ in range(100):  # what is not messages counts too
            store.commit_offsets("g", topic.id, np.zeros(1, np.uint32), np.zeros(1, np.int64))
    store.commit()
    assert store.stats().waiting_bytes == 0
    assert store.bounds(topic.id, 0) == (0, taken)
    assert put(store, topic.id, (0, b"taken")) == [taken]
    abandon(store)


def test_on_a_replica_what_waits_for_the_others_counts_too(tmp_path: Path, disk: Drive) -> None:
    with no_threads():
        store = ShardStore.open(tmp_path / "s", tiny(max_waiting_bytes=64 * 1024), disk=disk, replicated=True)
    store.replica.begin_epoch(1, 7, 1)
    store.put_topic(StoredTopic(1, "t", 1), 0, 1)
    store.replica.advance(store.replica.write())
    with pytest.raises(StoreBusy, match="other replicas"):
        for _ in range(100):
            append(store, 1, (0, bytes(5_000)))
            store.replica.write()
    store.replica.advance(store.replica.end_lsn)
    append(store, 1, (0, b"taken"))
    abandon(store)


def test_a_full_line_makes_room_for_puts_in_the_process(tmp_path: Path, disk: Drive) -> None:
    with no_threads(), QueueStore(tmp_path / "s", disk=disk, **{**TINY, "max_waiting_bytes": 64 * 1024}) as store:
        topic = next(topic for topic in store.store.topics() if topic.name == "messages")
        for _ in range(11):
            append(store.store, topic.id, (0, bytes(5_000)))
        assert store.put_many([("q", bytes(8_000))] * 7) == list(range(11, 18))


def test_a_producer_goes_on_after_a_reopening_though_its_last_topic_was_deleted(tmp_path: Path, disk: Drive) -> None:
    """Its last batch reached the log behind the deletion of the topic it was for."""
    path = tmp_path / "s"
    store = open_stepped(path, tiny(), disk)
    gone, kept = store.create_topic("gone", 1), store.create_topic("kept", 1)
    state = store._queries.topic_state(gone.id)
    store.delete_topic("gone")
    late = batch_of([Put(0, b"late")], producer_id=5, sequence=0)
    [appended] = store._line.append_records([(state, late)])
    store.wait(appended)
    abandon(store)
    store = open_stepped(path, tiny(), disk.kill())
    following = batch_of([Put(0, b"next")], producer_id=5, sequence=1)
    store.wait(store.append(kept.id, following))
    assert bodies(store, kept.id, 0) == {0: b"next"}
    with pytest.raises(OutOfOrderSequence):
        store.append(kept.id, batch_of([Put(0, b"x")], producer_id=5, sequence=3))
    abandon(store)


# -- positions -------------------------------------------------------------------------------------------


def test_the_highest_of_several_positions_of_one_queue_counts(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 2)
    put(store, topic.id, *[(0, b"x")] * 9)
    queues, offsets = np.array([0, 0, 0], np.uint32), np.array([2, 7, 4])
    store.wait(store.commit_offsets("g", topic.id, queues, offsets))
    assert store.committed_offsets("g", topic.id).tolist() == [7, -1]
    store.wait(store.trim(topic.id, queues, offsets))
    assert store.bounds(topic.id, 0) == (7, 9)
    store.wait(store.commit_offsets("g", topic.id, np.array([0], np.uint32), np.array([1]), reset=True))
    assert store.committed_offsets("g", topic.id).tolist() == [1, -1]
    abandon(store)


def test_an_entry_that_cannot_be_applied_stops_the_shard(tmp_path: Path, disk: Drive) -> None:
    """It is in the log, but not readable: nothing may be built on it."""
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    apply = store._tables.memtable.apply
    store._tables.memtable.apply = None  # type: ignore[method-assign, assignment]
    with pytest.raises(Exception, match="failed"):
        put(store, topic.id, (0, b"x"))
    store._tables.memtable.apply = apply  # type: ignore[method-assign]
    with pytest.raises(Exception, match="failed"):
        append(store, topic.id, (0, b"y"))
    abandon(store)


# -- queue store -----------------------------------------------------------------------------------------


def open_queues(path: Path, disk: Drive, **changes: object) -> QueueStore:
    with no_threads():
        return QueueStore(path, disk=disk, clock=SimClock(), **{**TINY, **changes})


def test_names_in_whole_blocks_are_loaded_once(tmp_path: Path, disk: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of many queues take several reads, which end in the middle of blocks."""
    path = tmp_path / "q"
    store = open_queues(path, disk, **SMALL)
    names = [f"a queue with rather a long name, number {number:06d}" for number in range(6_000)]
    for first in range(0, len(names), 500):
        store.put_many([(name, name.encode()) for name in names[first : first + 500]])
    flush(store.store)
    merge(store.store)
    read = ShardStore.read

    def short(self: ShardStore, topic_id: int, queue: int, offset: int, **limits: int) -> object:
        return read(self, topic_id, queue, offset, max_records=1_337, max_bytes=90_000)

    for limited in (False, True):
        abandon(store)
        disk = disk.kill()
        if limited:
            monkeypatch.setattr(ShardStore, "read", short)
        store = open_queues(path, disk, **SMALL)
        assert len(store) == len(names)
        assert [store.get(name, 0, 9) for name in names[::7]] == [[name.encode()] for name in names[::7]]
    abandon(store)


def test_a_large_put_is_split_to_what_the_memtables_take(tmp_path: Path, disk: Drive) -> None:
    store = open_queues(tmp_path / "q", disk)
    pairs = [(f"queue {at % 3}", body(at, 1_000)) for at in range(200)]
    assert store.put_many(pairs) == [at // 3 for at in range(200)]
    assert store.put_many([("small", b"")] * 5_000) == list(range(5_000))
    long = [(f"{at:04d}" * 240, b"x") for at in range(100)]
    assert store.put_many(long) == [0] * 100
    assert all(store.get(name, 0, 2) == [b"x"] for name, _ in long)
    with pytest.raises(MessageTooLarge):
        store.put("q", bytes(9_000))
    abandon(store)


@pytest.mark.parametrize("name", ["", "x" * 1_001, "\ud800"])
def test_an_illegal_name_is_refused_and_nothing_of_its_batch_stored(tmp_path: Path, disk: Drive, name: str) -> None:
    store = open_queues(tmp_path / "q", disk)
    with pytest.raises(InvalidRequest, match="queue name"):
        store.put_many([("good", b"1"), (name, b"2")])
    assert (len(store), store.get("good", 0, 1)) == (0, [])
    assert store.put("good", b"1") == 0
    abandon(store)


def test_queues_beyond_the_first_many_are_made_as_they_come(
    tmp_path: Path, disk: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq_node.storage.queue_writer._FIRST_QUEUES", 4)
    store = open_queues(tmp_path / "q", disk)
    for at in range(30):
        assert store.put(f"queue {at}", b"%d" % at) == 0
    assert store.store.topic(MESSAGES).queues >= 30
    abandon(store)
    store = open_queues(tmp_path / "q", disk.power_cut(1))
    assert [store.get(f"queue {at}", 0, 1) for at in range(30)] == [[b"%d" % at] for at in range(30)]
    background(store.store, lambda: flush(store.store))
    assert store.put("queue 3", b"more") == 1
    abandon(store)


@pytest.mark.parametrize(
    "options",
    [
        {"memtable_size": 1},
        {"block_bytes": 1},
        {"compression": "lzma"},
        {"flush_mode": "never"},
        {"max_waiting_bytes": 1},
        {"wal_keep_bytes": (64 << 20) - 1},
        {"segment_bytes": 4 << 30},
        {"segment_bytes": float(64 << 20)},
        {"memtable_bytes": 8 << 30},
        {"flush_interval_ms": 10**13},
        {"retention_interval_ms": 10**13},
        {"max_memtables": "4"},
    ],
)
def test_impossible_options_are_refused_by_name(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        QueueStore(tmp_path / "q", **options)


@pytest.mark.parametrize("name", ["flush_interval_ms", "retention_interval_ms"])
def test_threads_can_wait_for_as_long_as_an_option_may_say(tmp_path: Path, name: str) -> None:
    longest_ms = options_module._RANGES[name][1]
    assert longest_ms / 1000 <= threading.TIMEOUT_MAX
    with QueueStore(tmp_path / "q", **{name: longest_ms}) as store:
        assert store.put("q", b"1") == 0
        store.flush()
        assert store.get("q", 0, 2) == [b"1"]


def test_an_option_there_is_not_is_answered_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no option 'flush_mod'; did you mean flush_mode"):
        QueueStore(tmp_path / "q", flush_mod="sync")
    with pytest.raises(InvalidRequest, match="no option 'zzz'; there are block_bytes, "):
        QueueStore(tmp_path / "q", zzz=1)


def test_every_option_that_is_a_number_has_a_range() -> None:
    numbers = {field.name for field in fields(StoreOptions) if field.type == "int"}
    assert numbers == set(options_module._RANGES)
    with pytest.raises(InvalidRequest, match="flush_mode"):
        StoreOptions(flush_mode="async").validate()  # type: ignore[arg-type]
