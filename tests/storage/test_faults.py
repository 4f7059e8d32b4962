"""A full disk and a failing disk, at every single operation: clear refusals, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import DataDirectoryUnusable, DiskFull, ShardStopped
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import Appended, QueueStore, ShardStore
from support.clock import SimClock
from support.extent import part_of

from .harness import (
    TINY,
    abandon,
    append,
    assert_no_orphans,
    background,
    bodies,
    body,
    contents,
    flush,
    freeze,
    keep_house,
    no_threads,
    open_stepped,
    put,
    table_files,
    tiny,
)
from .model import assert_shows, assert_shows_but_for_starts
from .workload import Workload

GROUPS = 4
#: What can want for space. A sync can, too: see the test of its own.
TAKES_SPACE = ("create", "write", "preallocate", "rename", "make_directory")


def workload(tmp_path: Path, seed: int = 0) -> Workload:
    return Workload(Drive(tmp_path, seed=seed), tmp_path / "data" / "shard", SimClock())


def operations(tmp_path: Path, kinds: tuple[str, ...]) -> int:
    work = workload(tmp_path)
    work.run()
    abandon(work.store)
    return sum(line.split()[0] in kinds for line in work.disk.log)


def recovered(work: Workload, disk: Drive) -> None:
    if work.opened is not None:
        abandon(work.opened)
    store = open_stepped(work.path, work.options, disk, work.clock)
    try:
        assert_shows(store, work.model, work.attempt)
        assert_no_orphans(store, disk, work.path)
    finally:
        abandon(store)


@pytest.mark.part(2)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "until space returns"])
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_full_disk_at_any_operation_is_survived(tmp_path: Path, group: int, lasting: bool) -> None:
    count = operations(tmp_path, TAKES_SPACE)
    for nth in part_of(range(1 + group, count + 1, GROUPS), 16):
        work = workload(tmp_path / str(nth), seed=nth)
        point = work.disk.at(nth, errno.ENOSPC, TAKES_SPACE, lasting=lasting)
        try:
            run_through_full_disk(work)
            assert point.hits >= 1
            recovered(work, work.disk.power_cut(nth))
        except BaseException as error:
            error.add_note(f"no space at operation {nth} of those that take space, lasting: {lasting}")
            raise


def run_through_full_disk(work: Workload) -> None:
    for step in work.steps():
        try:
            step()
            continue
        except DataDirectoryUnusable as error:
            assert "space" in error.message
        except DiskFull:
            store = work.store
            assert_shows(store, work.model, work.attempt if work.attempt is not work.model else None)
            if store._maintenance.disk_full and store.topics():
                with pytest.raises(DiskFull):
                    append(store, store.topics()[0].id, (0, b"refused"))
        except ShardStopped as error:
            assert isinstance(error.__cause__, OSError)
            assert error.__cause__.errno == errno.ENOSPC
            work.disk.heal()
            return  # what was written of it could not be taken back
        work.disk.heal()
        if work.opened is not None:
            keep_house(work.store)
            assert not work.store._maintenance.disk_full
        step()
    assert_shows(work.store, work.model)
    assert_no_orphans(work.store, work.disk, work.path)


@pytest.mark.part(2)
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_failing_operation_stops_the_shard_and_loses_nothing(tmp_path: Path, group: int) -> None:
    count = len(dry_log(tmp_path))
    for nth in part_of(range(1 + group, count + 1, GROUPS), 16):
        work = workload(tmp_path / str(nth), seed=nth)
        work.disk.at(nth, errno.EIO)
        try:
            run_to_the_stop(work)
            for seed in (nth, 10_000 + nth):
                recovered(work, work.disk.power_cut(seed))
        except BaseException as error:
            error.add_note(f"EIO at operation {nth}: {work.disk.log[nth - 1]}")
            raise


@pytest.mark.parametrize("nth", range(1, 5))
def test_what_is_read_back_after_a_failed_sync_is_on_the_disk_before_it_is_shown(tmp_path: Path, nth: int) -> None:
    """The system takes for clean what was not written when a sync failed: syncing again writes nothing of it."""
    path, disk = tmp_path / "shard", Drive(tmp_path)
    store = open_stepped(path, tiny(), disk)
    topic_id = store.create_topic("t", 1).id
    put(store, topic_id, (0, b"acknowledged"))
    disk.at(nth, errno.EIO, ("sync",))
    with pytest.raises(ShardStopped):
        for number in range(8):
            put(store, topic_id, (0, body(number, 700)))
    abandon(store)
    disk = disk.kill()
    store = open_stepped(path, tiny(), disk)
    shown = contents(store)
    assert len(shown["t", 0]) == nth + 1, "what the failed sync left is still read"
    put(store, topic_id, (0, b"later"))
    shown = contents(store)
    abandon(store)
    for seed in range(30):
        left = open_stepped(path, tiny(), disk.power_cut(seed))
        assert contents(left) == shown
        abandon(left)


def dry_log(tmp_path: Path) -> list[str]:
    work = workload(tmp_path)
    work.run()
    abandon(work.store)
    return work.disk.log


def run_to_the_stop(work: Workload) -> None:
    """Every later write is refused, without a retry; what was committed can still be read."""
    try:
        work.run()
    except DataDirectoryUnusable:
        assert work.opened is None
    except ShardStopped as failure:
        store = work.store
        assert store.stats().stopped == 1
        operations_then = work.disk.operations
        for topic in store.topics():
            with pytest.raises(ShardStopped) as again:
                append(store, topic.id, (0, b"refused"))
            assert again.value is failure
        with pytest.raises(ShardStopped):
            store.flush()
        assert work.disk.operations == operations_then
        assert_shows_but_for_starts(store, work.model)
    else:
        pytest.fail(f"the failure went unnoticed: {work.disk.log[-1]}")


def test_no_space_at_a_sync_stops_the_shard_too(tmp_path: Path) -> None:
    disk, path = Drive(tmp_path), tmp_path / "shard"
    store = open_stepped(path, tiny(), disk)
    topic = store.create_topic("t", 2)
    put(store, topic.id, (0, b"kept"))
    disk.at(1, errno.ENOSPC, ("sync",))
    with pytest.raises(ShardStopped):
        put(store, topic.id, (0, b"unknown"))
    with pytest.raises(ShardStopped):
        append(store, topic.id, (0, b"refused"))
    assert bodies(store, topic.id, 0) == {0: b"kept"}
    abandon(store)


def test_a_write_that_did_not_fit_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was reported dropped stays dropped, even if the next write has the length of its first entry."""
    disk, path = Drive(tmp_path), tmp_path / "shard"
    store = open_stepped(path, tiny(), disk)
    topic = store.create_topic("t", 1)
    for content in (b"first", b"other", b"third"):
        append(store, topic.id, (0, content))
    lsn, buffer = store._line._appender.lsn, store._line._appender.pending_bytes
    disk.chance.seed(3)
    point = disk.at(1, errno.ENOSPC, ("write",))
    monkeypatch.setattr(disk.chance, "randint", lambda low, high: high - 20)  # most of it got there
    with pytest.raises(DiskFull):
        store.commit()
    assert (point.hits, buffer > 100, lsn > buffer) == (1, True, True)
    keep_house(store)
    put(store, topic.id, (0, b"again"))  # as long as the first of the three
    abandon(store)
    store = open_stepped(path, tiny(), disk.kill())
    assert bodies(store, topic.id, 0) == {0: b"again"}
    abandon(store)


def test_memory_that_waits_for_its_flush_is_written_when_space_returns(tmp_path: Path) -> None:
    disk, path = Drive(tmp_path), tmp_path / "shard"
    store = open_stepped(path, tiny(), disk)
    topic = store.create_topic("t", 1)
    sent = {offset: body(offset, 1000) for offset in range(20)}
    put(store, topic.id, *[(0, content) for content in sent.values()])
    disk.capacity_bytes = disk.used_bytes + 4_000
    for _ in range(5):
        background(store, lambda: flush(store))
        assert store._maintenance.disk_full
        assert not store._writer.stopped
        assert_no_orphans(store, disk, path)  # attempts leave nothing behind
        assert bodies(store, topic.id, 0) == sent
        with pytest.raises(DiskFull, match="Free some space"):
            append(store, topic.id, (0, b"refused"))
    disk.capacity_bytes = 1 << 40
    keep_house(store)
    background(store, lambda: flush(store))
    assert store.stats().flushes_total == 1
    assert bodies(store, topic.id, 0) == sent
    assert put(store, topic.id, (0, b"taken")) == [20]
    abandon(store)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["fails", "is full"])
def test_a_store_that_holds_nothing_yet_is_opened_again_wherever_its_opening_ended(tmp_path: Path, error: int) -> None:
    path, fresh = tmp_path / "shard", Drive(tmp_path)
    store = open_stepped(path, tiny(), fresh)
    keep_house(store)
    store.close()
    nth, ended = 0, True
    while ended:
        nth += 1
        disk = fresh.copy()
        point = disk.at(nth, error)
        try:
            abandon(open_stepped(path, tiny(), disk))
        except DataDirectoryUnusable:
            assert point.hits
        ended = point.hits > 0
        for left in (disk.kill(), disk.power_cut(nth)):
            store = open_stepped(path, tiny(), left)
            topic = store.create_topic("t", 1)
            assert put(store, topic.id, (0, b"taken")) == [0]
            abandon(store)
            store = open_stepped(path, tiny(), left.power_cut(nth))
            assert bodies(store, topic.id, 0) == {0: b"taken"}
            abandon(store)
    assert nth > 5


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_store_that_is_given_no_more_threads_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """They would go on with a directory that is somebody else's by then."""
    with ShardStore.open(tmp_path / "shard", tiny()) as store:
        topic = store.create_topic("t", 1)
        put(store, topic.id, (0, b"kept"))
    before, left, start = set(threading.enumerate()), [nth], threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(RuntimeError, match="new thread"):
            ShardStore.open(tmp_path / "shard", tiny())
    assert set(threading.enumerate()) <= before
    with ShardStore.open(tmp_path / "shard", tiny()) as store:
        assert bodies(store, topic.id, 0) == {0: b"kept"}


def test_a_merge_whose_sources_cannot_be_removed_keeps_what_it_wrote(tmp_path: Path) -> None:
    """A full file system that copies what it changes has no room to remove a file either."""
    disk, path = Drive(tmp_path), tmp_path / "shard"
    store = open_stepped(path, tiny(level0_merge=2), disk)
    topic = store.create_topic("t", 1)
    for number in range(2):
        put(store, topic.id, (0, body(number, 1_000)))
        flush(store)
    sources = table_files(disk, path)
    point = disk.at(1, errno.ENOSPC, ("remove",), lasting=True)
    background(store, store._merger.merge_level0)
    assert point.hits and not store._writer.stopped
    expected = {number: body(number, 1_000) for number in range(2)}
    assert bodies(store, topic.id, 0) == expected
    assert set(sources) < set(table_files(disk, path)), "they could not be removed"
    disk.heal()
    for number in range(2, 4):
        put(store, topic.id, (0, body(number, 1_000)))
        flush(store)
        expected[number] = body(number, 1_000)
    background(store, store._merger.merge_level0)
    assert_no_orphans(store, disk, path)  # there is room again, and nothing stays behind
    abandon(store)
    store = open_stepped(path, tiny(level0_merge=2), disk.kill())
    assert bodies(store, topic.id, 0) == expected
    abandon(store)


def test_a_merge_that_fails_when_it_counts_keeps_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, path = Drive(tmp_path), tmp_path / "shard"
    store = open_stepped(path, tiny(level0_merge=2), disk)
    topic = store.create_topic("t", 1)
    expected = {number: body(number, 1_000) for number in range(2)}
    for content in expected.values():
        put(store, topic.id, (0, content))
        flush(store)

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(store._tables, "_version_of", no_memory)  # what comes first once the manifest is durable
    background(store, store._merger.merge_level0)
    assert store._writer.stopped
    abandon(store)
    store = open_stepped(path, tiny(level0_merge=2), disk.kill())
    assert bodies(store, topic.id, 0) == expected
    abandon(store)


@pytest.mark.parametrize("work", ["flush", "compact"])
def test_a_flush_on_a_full_disk_says_so_and_the_next_one_succeeds_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setattr("lsmq_node.storage.maintenance._TICK_SECONDS", 0.01)
    disk = Drive(tmp_path)
    with ShardStore.open(tmp_path / "shard", tiny(level0_merge=2), disk=disk) as store:
        topic = store.create_topic("t", 1)
        sent = {offset: body(offset, 1000) for offset in range(20)}
        put(store, topic.id, *[(0, content) for content in sent.values()])
        disk.capacity_bytes = disk.used_bytes + 4_000
        for _ in range(2):
            with pytest.raises(DiskFull, match="flush found no space"):
                getattr(store, work)()
            assert not store._writer.stopped
            assert bodies(store, topic.id, 0) == sent
        disk.capacity_bytes = 1 << 40
        getattr(store, work)()
        assert store.stats().flushes_total == 1
        assert bodies(store, topic.id, 0) == sent


def test_who_would_wait_for_a_flush_that_finds_no_space_is_told_so_at_once(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", tiny(slow_memtables=2, max_memtables=2), disk)
    topic = store.create_topic("t", 1)
    for number in range(2):
        put(store, topic.id, *[(0, body(at, 1000)) for at in range(20 * number, 20 * number + 20)])
        freeze(store)
    keep_house(store)
    disk.capacity_bytes = disk.used_bytes + 15_000
    background(store, store._tables.flush_oldest, "flush")
    keep_house(store)
    assert not store._maintenance.disk_full, "there is more than is to be kept"
    with pytest.raises(DiskFull, match="flush found no space"):
        append(store, topic.id, (0, b"refused"))
    disk.capacity_bytes = 1 << 40
    background(store, store._tables.flush_oldest, "flush")
    assert put(store, topic.id, (0, b"taken")) == [40]
    abandon(store)


def test_writes_are_refused_below_the_free_space_that_is_kept(tmp_path: Path) -> None:
    disk, path = Drive(tmp_path, capacity_bytes=10 << 20), tmp_path / "shard"
    store = open_stepped(path, tiny(min_free_bytes=8 << 20), disk)
    topic = store.create_topic("t", 1)
    keep_house(store)
    put(store, topic.id, (0, b"taken"))
    disk.capacity_bytes = 6 << 20
    keep_house(store)
    with pytest.raises(DiskFull, match="8192 KiB are kept free"):
        append(store, topic.id, (0, b"refused"))
    store.wait(store.trim(topic.id, 0, 1))  # what gives space back is taken
    disk.capacity_bytes = 10 << 20
    keep_house(store)
    assert put(store, topic.id, (0, b"taken again")) == [1]
    abandon(store)


def test_a_segment_that_just_began_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping that is overtaken by writers must not take the missing segment for missing space."""
    disk, path = Drive(tmp_path), tmp_path / "shard"
    store = open_stepped(path, tiny(), disk)
    topic = store.create_topic("t", 1)
    free_bytes = disk.free_bytes

    def overtaken(where: Path) -> int:
        for at in range(9):
            put(store, topic.id, (0, body(at, 8_000)))
        return free_bytes(where)

    monkeypatch.setattr(disk, "free_bytes", overtaken)
    keep_house(store)
    assert not store._maintenance.disk_full
    abandon(store)


def test_retention_that_finds_the_disk_full_or_its_topic_gone_does_not_stop_the_shard(tmp_path: Path) -> None:
    from lsmq_node.storage import TopicOptions

    disk, path, clock = Drive(tmp_path), tmp_path / "shard", SimClock()
    store = open_stepped(path, tiny(), disk, clock)
    topic = store.create_topic("t", 1, TopicOptions(retention_ms=1))
    put(store, topic.id, (0, b"old"))
    flush(store)
    clock.time_ms += 1_000
    disk.at(1, errno.ENOSPC, ("write",))
    background(store, store._maintenance._retain)
    assert not store._writer.stopped
    store._maintenance.disk_full = False
    trim = store.trim

    def deleted_first(*arguments: Any) -> object:
        store.delete_topic("t")
        return trim(*arguments)

    store._maintenance._retain.__self__._put_in_line = deleted_first  # type: ignore[attr-defined]
    background(store, store._maintenance._retain)
    assert not store._writer.stopped
    assert [topic.name for topic in store.topics()] == []
    abandon(store)


# -- queue store -----------------------------------------------------------------------------------------


def open_queues(path: Path, disk: Drive) -> QueueStore:
    with no_threads():
        return QueueStore(path, disk=disk, clock=SimClock(), **TINY)


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[tuple[QueueStore, Drive]]:
    disk = Drive(tmp_path)
    store = open_queues(tmp_path / "queues", disk)
    yield store, disk
    abandon(store)


@pytest.mark.part(2)
def test_names_of_queues_stay_right_through_a_full_disk_at_any_operation(tmp_path: Path) -> None:
    for nth in range(1, 60):
        disk, path = Drive(tmp_path, seed=nth), tmp_path / str(nth)
        store = open_queues(path, disk)
        point = disk.at(nth, errno.ENOSPC, TAKES_SPACE)
        model: dict[str, list[bytes]] = {}
        for turn in range(24):
            pairs = [(f"queue {turn % 7}-{at}", body(turn * 10 + at, 800)) for at in range(turn % 4 + 1)]
            try:
                offsets = store.put_many(pairs)
            except DiskFull:
                keep_house(store.store)
                offsets = store.put_many(pairs)
            for (name, content), offset in zip(pairs, offsets, strict=True):
                assert offset == len(model.setdefault(name, []))
                model[name].append(content)
            if turn % 8 == 7:
                background(store.store, lambda store=store: flush(store.store))  # type: ignore[misc]
                keep_house(store.store)
        for reopened in (False, True):
            if reopened:
                abandon(store)
                store = open_queues(path, disk.power_cut(nth))
            assert len(store) == len(model)
            assert {name: store.get(name, 0, 100) for name in model} == model
        abandon(store)
        if point.hits == 0:
            assert nth > 15
            break


def test_a_name_whose_round_was_dropped_meanwhile_is_given_again(
    queues: tuple[QueueStore, Drive], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread commits what the owner has put in line, and finds the disk full."""
    store, disk = queues
    inner: ShardStore = store.store
    store.put("first", b"1")
    append_many = ShardStore.append_many

    def append_then_fail(self: ShardStore, *given: Any, **options: Any) -> list[Appended]:
        appended = append_many(self, *given, **options)
        disk.at(1, errno.ENOSPC, ("write",))
        with pytest.raises(DiskFull):
            inner.commit()
        return appended

    with monkeypatch.context() as patch:
        patch.setattr(ShardStore, "append_many", append_then_fail)
        with pytest.raises(DiskFull):
            store.put("shared", b"lost")
    assert (len(store), store.length("shared"), store.get("shared", 0, 9)) == (1, 0, [])
    keep_house(inner)
    assert store.put("later", b"2") == 0
    assert store.put("shared", b"kept") == 0
    found = {name: store.get(name, 0, 9) for name in ("first", "shared", "later")}
    assert found == {"first": [b"1"], "shared": [b"kept"], "later": [b"2"]}
    assert len(store) == 3
