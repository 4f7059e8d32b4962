"""Two threads in a store, one of them in the midst of a step of the other."""

from __future__ import annotations

import errno
import gc
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from lsmq.errors import ClientClosed, DiskFull, NotLeader
from lsmq.record_batch import RecordBatch
from lsmq_lab.world.drive import Drive
from lsmq_node.cluster.apply_worker import ApplyWorker
from lsmq_node.storage import QueueStore, ShardStore, Slots, TopicOptions
from lsmq_node.storage.deletions import Deletions
from lsmq_node.storage.group_offsets import CommittedOffsets
from lsmq_node.storage.state import StoredTopic
from support.clock import SimClock
from support.waiting import PATIENCE_S, eventually

from .harness import (
    KIB,
    TINY,
    Put,
    abandon,
    batch_of,
    bodies,
    body,
    flush,
    keep_house,
    open_stepped,
    put,
    retain,
    small,
    tiny,
)

FOREVER = TopicOptions(dedupe_window_ms="forever")


def in_another_thread(work: Callable[[], Any]) -> None:
    """Do it, and return when it is done."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for ever"
    if failures:
        raise failures[0]


def with_ids(*ids: str) -> RecordBatch:
    return batch_of([Put(0, each.encode(), dedupe_id=each) for each in ids])


def lead(store: ShardStore, epoch: int) -> None:
    store.replica.begin_epoch(epoch, 7, 1)
    store.replica.advance(store.replica.write())


def test_ids_are_known_though_the_disk_fills_while_a_batch_with_some_is_applied(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "s", tiny(), disk, replicated=True)
    lead(store, 1)
    store.put_topic(StoredTopic(1, "t", 1, FOREVER), 0, 1)
    store.replica.advance(store.replica.write())
    store.append(1, with_ids("a", "b"))
    written_lsn, room_for = store.replica.write(), store._tables.room_for
    store.append(1, with_ids("x"))

    def write_meanwhile(payload_bytes: int, record_count: int) -> Any:
        if not store._line.lock.locked():  # else the disk thread waits for it
            disk.at(1, errno.ENOSPC, ("write",))
            with pytest.raises(DiskFull):
                in_another_thread(store.replica.write)
        return room_for(payload_bytes, record_count)

    with mock.patch.object(store._tables, "room_for", write_meanwhile):
        store.replica.advance(written_lsn)
    keep_house(store)
    later = store.append(1, with_ids("c", "d"))
    store.replica.advance(store.replica.write())
    store.replica.leave(store.replica.end_lsn, NotLeader("another replica leads"))
    lead(store, 2)
    again = store.append(1, with_ids("a", "b", "c", "d"))
    assert again.offsets.tolist() == [0, 1, *later.offsets.tolist()], "each is stored once"
    abandon(store)


def test_a_named_topic_is_measured_while_it_gets_room_for_more_queues(tmp_path: Path) -> None:
    """As retention does, whose failure stops the shard, and whoever asks how much there is."""
    counted: list[int | Exception] = []
    widen = Deletions.widen

    def count() -> None:
        try:
            counted.append(store.retention.usage(topic.id).holding.messages)
        except Exception as error:
            counted.append(error)

    def measured_meanwhile(deletions: Deletions, rows: int) -> None:
        in_another_thread(count)
        widen(deletions, rows)
        in_another_thread(count)

    with ShardStore.open(tmp_path / "s", tiny()) as store:
        topic = store.create_topic("t", 4096, TopicOptions(named=True, max_messages=10_000))
        names = store.names(topic.id)
        appended, numbers = names.append(b"first", batch_of([Put(0, b"one"), Put(0, b"two")]), Slots(0, 4096))
        store.wait(appended)
        store.wait(store.delete(topic.id, numbers[:1], np.array([0])))
        with mock.patch.object(Deletions, "widen", measured_meanwhile):
            declared = names.declare([f"more {number}" for number in range(2_000)], Slots(0, 4096))
            assert declared is not None
            store.wait(declared)
        assert counted
        assert all(each == 1 for each in counted), counted


class Late:
    """A lock that is taken later than others do something."""

    def __init__(self, lock: Any, meanwhile: Callable[[], None]) -> None:
        self._lock = lock
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __enter__(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            in_another_thread(meanwhile)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("lock", ["_room_lock", "_names_lock"])
def test_a_segment_that_space_is_had_ahead_in_may_be_let_go_of_meanwhile(tmp_path: Path, lock: str) -> None:
    """By a thread that comes to it only when the log has gone on for more than a segment, and all of it is flushed."""
    size, disk = 256 * KIB, Drive(tmp_path)
    options = small(segment_bytes=size, memtable_bytes=2 * size, max_message_bytes=size // 2)
    store = open_stepped(tmp_path / "s", options, disk)
    topic, segments = store.create_topic("t", 1), store._segments
    put(store, topic.id, (0, body(0, 100 * KIB)))

    def go_on() -> None:
        for number in range(1, 12):
            put(store, topic.id, (0, body(number, 90 * KIB)))
        flush(store)

    with mock.patch.object(segments, lock, Late(getattr(segments, lock), go_on)):
        keep_house(store)
    begins = store.committed_lsn - store.committed_lsn % size
    assert min(segments.start_lsns()) == begins, "there is no segment where nothing is written any more"
    put(store, topic.id, (0, b"after"))
    assert list(bodies(store, topic.id, 0)) == list(range(13))
    abandon(store)


def test_who_reads_a_file_of_a_store_that_is_closed_removes_none_of_the_one_in_its_place(tmp_path: Path) -> None:
    """As where a replica is dropped, and made again, while one of its tables is scrubbed that a merge has done with."""
    path = tmp_path / "s"

    def with_a_table() -> ShardStore:
        store = ShardStore.open(path, small())
        put(store, store.create_topic("t", 1).id, (0, b"first"))
        store.flush()
        return store

    former = with_a_table()
    (name, _), *_ = former.scrub.files()
    scrubbed = former.scrub.read(name)
    assert next(scrubbed)
    for number in range(4):
        put(former, 1, (0, body(number, KIB)))
        former.flush()
    former.compact()
    assert name not in dict(former.scrub.files())
    former.close()
    shutil.rmtree(path)
    with with_a_table() as store:
        assert name in dict(store.scrub.files())
        assert next(scrubbed, None) is None
    with ShardStore.open(path, small()) as store:
        assert bodies(store, 1, 0) == {0: b"first"}


class Putting(logging.Handler):
    """Puts what is logged into a queue."""

    def __init__(self, store: QueueStore) -> None:
        super().__init__()
        self._store = store

    def emit(self, record: logging.LogRecord) -> None:
        self._store.put("log", record.getMessage().encode())


def test_a_log_handler_puts_what_a_thread_of_the_store_says_of_the_clock(tmp_path: Path) -> None:
    clock, logger = SimClock(), logging.getLogger("lsmq.storage")
    store = QueueStore(tmp_path / "q", clock=clock, **TINY)
    handler = Putting(store)
    logger.addHandler(handler)
    try:
        clock.wrong_ms = 3_600_000
        in_another_thread(lambda: retain(store.store))  # as it does by itself each ten seconds
        eventually(lambda: store.length("log"), "it is in the queue")
    finally:
        logger.removeHandler(handler)
    (said,) = store.get("log", 0, 9)
    assert b"the clock stepped by +3600 s" in said
    store.close()


def test_a_read_that_is_overtaken_by_the_end_of_its_store_says_so(tmp_path: Path) -> None:
    """And not that a table is damaged, since its file is gone or another store's."""
    store = QueueStore(tmp_path / "q", **TINY)
    store.put("q", b"x")
    store.flush()
    find = store._owner.find

    def find_and_close(name: str) -> int:
        number = find(name)
        in_another_thread(store.close)
        shutil.rmtree(tmp_path / "q")
        return number

    with mock.patch.object(store._owner, "find", find_and_close), pytest.raises(ClientClosed, match="is closed"):
        store.get("q", 0, 1)


def test_a_follower_does_not_wait_for_room_in_a_store_that_has_stopped(tmp_path: Path) -> None:
    """Nobody would make any: it looked for it again and again, without a pause."""
    disk, failures = Drive(tmp_path), []
    options = tiny(max_memtables=1, slow_memtables=1, segment_bytes=1024 * KIB)
    store = ShardStore.open(tmp_path / "s", options, disk=disk, replicated=True)
    lead(store, 1)
    store.put_topic(StoredTopic(1, "t", 1), 0, 1)
    store.replica.advance(store.replica.write())
    disk.at(1, errno.EIO, ("create",), lasting=True)
    number = 0
    while store.pressure != "refuse":
        number += 1
        store.append(1, batch_of([Put(0, body(number, 7 * KIB))]))
        store.replica.advance(store.replica.write())
    eventually(lambda: store.stopped, "its flush has failed")
    worker = ApplyWorker(0, lambda: store, failures.append)
    worker.start()
    worker.advance(store.replica.end_lsn + 1, leads=False)
    in_another_thread(worker.drain)
    worker.close()
    assert failures == []
    abandon(store)


def test_a_lag_that_is_counted_while_a_group_commits_is_counted_again(tmp_path: Path) -> None:
    counted: list[tuple[Any, int]] = []
    set_offsets = CommittedOffsets.set

    def count() -> None:
        ((_, _, mark),) = store.group_marks()
        counted.append((mark, store.group_lag("g", topic.id)))

    def counted_meanwhile(offsets: CommittedOffsets, rows: Any, values: Any, *, reset: bool) -> list[int]:
        in_another_thread(count)
        changed = set_offsets(offsets, rows, values, reset=reset)
        in_another_thread(count)
        return changed

    with ShardStore.open(tmp_path / "s", tiny()) as store:
        topic = store.create_topic("t", 1)
        put(store, topic.id, *((0, b"x") for _ in range(9)))
        with mock.patch.object(CommittedOffsets, "set", counted_meanwhile):
            for offset in (3, 9):
                store.wait(store.commit_offsets("g", topic.id, np.zeros(1, np.uint32), np.array([offset])))
        count()
    last, lag = counted[-1]
    assert lag == 0
    assert all(mark != last or known == lag for mark, known in counted), "what was counted has the mark of its time"


def test_topics_are_listed_while_others_are_made(tmp_path: Path) -> None:
    store, there = open_stepped(tmp_path / "s", tiny(), Drive(tmp_path)), [f"t{number}" for number in range(200)]
    for name in there:
        store.create_topic(name, 1)
    made: list[str] = []

    def make_another(phase: str, _: dict[str, int]) -> None:
        """A collection of garbage lets the interpreter go on with other threads, wherever it begins."""
        if phase == "start" and not made:
            made.append("new")
            in_another_thread(lambda: store.create_topic("new", 1))

    before = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(make_another)
    gc.set_threshold(100)
    try:
        listed = store.topics()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(make_another)
    assert {topic.name for topic in listed} >= set(there)
    abandon(store)
