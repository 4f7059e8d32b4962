"""Space comes back, whatever way it became unreadable; merges take no more of the disk than there is."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import DiskFull
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import FlushMode, ShardStore, TopicOptions
from lsmq_node.storage.garbage import MAX_SHARE
from lsmq_node.storage.merge_choice import MergePick, choose_level0, choose_tier
from lsmq_node.storage.merger import PIECE_TABLES, NoRoom
from lsmq_node.storage.sstable import TableWriter
from lsmq_node.storage.tables import Closing
from support.clock import SimClock
from support.waiting import PATIENCE_S, eventually

from .harness import (
    Put,
    abandon,
    batch_of,
    bodies,
    body,
    contents,
    flush,
    merge,
    open_stepped,
    profile,
    put,
    retain,
    small,
    small_parts,
    table_files,
    tiny,
)

HOUR_MS = 3_600_000
KIB = 1024


def table_bytes(store: ShardStore) -> int:
    return store.stats().table_bytes


def fresh_bytes(root: Path, store: ShardStore) -> int:
    """What the tables of a new store take with the same messages."""
    other = open_stepped(root / "fresh", store.options, Drive(root), SimClock())
    for (name, queue), messages in contents(store).items():
        topic = other.create_topic(f"{name}.{queue}", 1)
        for content in messages.values():
            put(other, topic.id, (0, content))
    flush(other)
    merge(other)
    size = table_bytes(other)
    abandon(other)
    return size


class Filled:
    """A store, stepped, with topics whose messages go in all ways there are."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.disk, self.clock = Drive(root), SimClock()
        self.store = self.open()
        self.serial = 0

    def open(self) -> ShardStore:
        return open_stepped(self.root / "shard", tiny(level0_merge=3), self.disk, self.clock)

    def topic(self, name: str) -> int:
        options = {"aged": TopicOptions(retention_ms=HOUR_MS), "sized": TopicOptions(retention_bytes=20 * KIB)}
        return self.store.create_topic(name, 4, options.get(name)).id

    def write(self, name: str) -> None:
        topic = self.topic(name)
        for _ in range(self.chance.randint(1, 4)):
            self.serial += 1
            queues = [self.chance.randrange(4) for _ in range(20)]
            puts = [Put(queue, body(self.serial, self.chance.randint(100, 900))) for queue in queues]
            self.store.wait(self.store.append(topic, batch_of(puts)))
            self.clock.time_ms += 60_000

    def trim(self, name: str) -> None:
        topic = self.topic(name)
        latest = self.store.latest_offsets(topic)
        offsets = (latest * self.chance.random()).astype(np.int64)
        self.store.wait(self.store.trim(topic, np.arange(4, dtype=np.uint32), offsets))

    def delete(self, name: str) -> None:
        topic = self.topic(name)
        queue = self.chance.randrange(4)
        offsets = list(bodies(self.store, topic, queue))
        chosen = [offset for offset in offsets if self.chance.random() < 0.6]
        if self.chance.random() < 0.3:
            chosen = offsets
        if chosen:
            self.store.wait(self.store.delete(topic, np.full(len(chosen), queue, np.uint32), np.array(chosen)))

    def drop(self, name: str) -> None:
        self.topic(name)
        self.store.delete_topic(name)

    def age(self, name: str) -> None:
        self.clock.time_ms += HOUR_MS // 2
        retain(self.store)

    def work(self, name: str) -> None:
        flush(self.store)
        merge(self.store)

    def reopen(self, name: str) -> None:
        abandon(self.store)
        self.disk = self.disk.kill()
        self.store = self.open()


STEPS = ("write", "write", "write", "trim", "delete", "drop", "age", "work", "reopen")


@profile(25)
@given(seed=st.integers(0, 1 << 20))
@pytest.mark.part(3)
def test_used_space_stays_within_half_more_of_what_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    filled = Filled(tmp_path_factory.mktemp("space"), seed)
    with small_parts():
        for _ in range(30):
            name = filled.chance.choice(("plain", "aged", "sized", "other"))
            getattr(filled, filled.chance.choice(STEPS))(name)
        before = contents(filled.store)
        filled.work("")
        assert contents(filled.store) == before
        live = fresh_bytes(filled.root, filled.store)
        # A table's sample has at least sixteen points; what is smaller than a few blocks is not worth a merge.
        assert table_bytes(filled.store) <= 1.5 * live + 8 * KIB
    abandon(filled.store)


@pytest.mark.parametrize("way", ["trim", "delete in order", "delete", "drop", "age"])
def test_a_store_gives_back_nearly_all_when_nearly_all_is_gone(tmp_path: Path, way: str) -> None:
    filled = Filled(tmp_path, 1)
    name = "aged" if way == "age" else "plain"
    for _ in range(12):
        filled.write(name)
        flush(filled.store)
    merge(filled.store)
    filled.topic("kept")
    put(filled.store, filled.topic("kept"), (0, b"kept"))
    flush(filled.store)
    assert table_bytes(filled.store) > 200 * KIB
    topic = filled.topic(name)
    queues = np.arange(4, dtype=np.uint32)
    match way:
        case "trim":
            filled.store.wait(filled.store.trim(topic, queues, filled.store.latest_offsets(topic)))
        case "drop":
            filled.store.delete_topic(name)
        case "age":
            filled.clock.time_ms += 2 * HOUR_MS
            retain(filled.store)
        case _:
            for queue in range(4):
                offsets = np.arange(filled.store.bounds(topic, queue)[1])
                if way == "delete":
                    offsets = np.random.default_rng(3).permutation(offsets)
                for offset in offsets.tolist():
                    filled.store.wait(filled.store.delete(topic, np.array([queue], np.uint32), np.array([offset])))
    filled.work("")
    assert table_bytes(filled.store) < 8 * KIB
    assert sum(run.tombstone_count for run in filled.store._tables.version.runs()) == 0
    filled.reopen("")
    assert bodies(filled.store, filled.topic("kept"), 0) == {0: b"kept"}
    abandon(filled.store)


def test_what_is_known_to_be_dead_is_right_within_the_grain_of_the_sample(tmp_path: Path) -> None:
    store = open_stepped(tmp_path / "shard", tiny(memtable_bytes=256 * KIB, level0_merge=40), Drive(tmp_path))
    topic = store.create_topic("t", 50).id
    for serial in range(8):
        store.wait(store.append(topic, batch_of([Put(queue, body(serial, 400)) for queue in range(50)])))
    flush(store)
    size = table_bytes(store)
    for offset in (2, 4, 6):
        store.wait(store.trim(topic, np.arange(50, dtype=np.uint32), np.full(50, offset)))
        store._merger.garbage.refresh(store._tables.version)
        [dead] = store._merger.garbage.known.values()
        assert dead.dead_bytes == pytest.approx(size * offset / 8, rel=0.15)
    store.close()


# -- room ------------------------------------------------------------------------------------------------


def three_tables(root: Path, disk: Drive, **changes: int) -> ShardStore:
    options = tiny(level0_merge=3, memtable_bytes=64 * KIB, **changes)
    store = open_stepped(root / "shard", options, disk)
    topic = store.create_topic("t", 2).id
    for serial in range(3):
        store.wait(store.append(topic, batch_of([Put(at % 2, body(serial, 500)) for at in range(60)])))
        flush(store)
    return store


def test_a_merge_without_room_writes_nothing_however_often_it_is_tried(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = three_tables(tmp_path, disk, min_free_bytes=100 * KIB)
    with mock.patch.object(disk, "free_bytes", lambda path: 200 * KIB):
        before = disk.operations
        for _ in range(20):
            with pytest.raises(NoRoom, match="needs"):
                store._merger.merge_level0()
        assert disk.operations == before
        store._maintenance._check_space()
        assert not store.disk_full, "writes are still taken"
    merge(store)
    assert store.stats().level0_tables == 0
    abandon(store)


def test_who_waits_for_merges_that_find_no_room_is_told(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = three_tables(tmp_path, disk, min_free_bytes=100 * KIB)
    abandon(store)
    disk = disk.kill()
    with mock.patch.object(disk, "free_bytes", lambda path: 200 * KIB):
        opened = ShardStore.open(tmp_path / "shard", tiny(level0_merge=3, min_free_bytes=100 * KIB), disk=disk)
        with pytest.raises(DiskFull, match="merge found no space"):
            opened.compact()
        opened.close()


def test_merges_of_generations_need_the_space_of_a_piece_and_not_of_all(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", tiny(level0_merge=2, generation_bytes=64 << 20), disk)
    topic = store.create_topic("t", 3).id
    sent: dict[int, list[bytes]] = {queue: [] for queue in range(3)}
    largest, total = 0, 0

    def measured() -> None:
        nonlocal largest, total
        files = {name: disk.open(store.path / "tables" / name).size() for name in table_files(disk, store.path)}
        known = {meta.name for meta in store._tables.manifest.tables()}
        largest = max(largest, sum(size for name, size in files.items() if name not in known))
        total = max(total, sum(files.values()))

    def fill() -> None:
        for serial in range(32):
            puts = [Put(queue, body(serial * 10 + part, 3_000)) for queue in range(3) for part in range(3)]
            store.wait(store.append(topic, batch_of(puts)))
            for item in puts:
                sent[item.queue].append(item.body)
            flush(store)
            while store._merger.due_level0() is not None:
                store._merger.merge_level0()

    with mock.patch("lsmq_node.storage.merger.PIECE_TABLES", 2), small_parts():
        fill()
        edit = store._tables.edit
        store._tables.edit = lambda change: (measured(), edit(change))[1]  # type: ignore[method-assign, assignment]
        runs = len(store._tables.version.runs())
        merge(store)
    assert len(store._tables.version.runs()) < runs
    assert {queue: list(bodies(store, topic, queue).values()) for queue in range(3)} == sent
    assert total > 600 * KIB
    assert largest < 240 * KIB, "two tables of 64 KiB, and what was begun of the next"
    abandon(store)


@pytest.mark.part(3)
def test_a_crash_between_two_pieces_of_a_merge_loses_and_doubles_nothing(tmp_path: Path) -> None:
    for stop in (1, 2, 4, 6, 99):
        root = tmp_path / str(stop)
        root.mkdir()
        disk = Drive(root)
        store = open_stepped(root / "shard", tiny(level0_merge=2, generation_bytes=64 << 20), disk)
        topic = store.create_topic("t", 3).id
        with mock.patch("lsmq_node.storage.merger.PIECE_TABLES", 1), small_parts():
            for serial in range(32):
                puts = [Put(queue, body(serial * 7 + part, 3_000)) for queue in range(3) for part in range(3)]
                store.wait(store.append(topic, batch_of(puts)))
                if serial == 6:
                    store.wait(store.delete(topic, np.array([0, 1], np.uint32), np.array([3, 9])))
                flush(store)
                while store._merger.due_level0() is not None:
                    store._merger.merge_level0()
            expected = contents(store)
            edit, edits = store._tables.edit, 0

            def counted(change: object) -> None:
                nonlocal edits
                edits += 1
                if edits == stop:  # noqa: B023
                    raise KeyboardInterrupt
                edit(change)  # type: ignore[arg-type]  # noqa: B023

            store._tables.edit = counted  # type: ignore[method-assign, assignment]
            try:
                merge(store)
                finished = True
            except KeyboardInterrupt:
                finished = False
            assert contents(store) == expected
            abandon(store)
            again = open_stepped(root / "shard", tiny(level0_merge=2, generation_bytes=64 << 20), disk.power_cut(stop))
            assert contents(again) == expected
            merge(again)
            assert contents(again) == expected
            abandon(again)
        assert finished == (stop == 99), "the merge has several pieces"


def test_a_store_that_is_closed_does_not_wait_for_a_merge(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = three_tables(tmp_path, disk)
    before, tables, writer = contents(store), table_files(disk, store.path), store._tables.writer

    def closing() -> TableWriter:
        store._tables.closing = True
        return writer()

    with small_parts(), mock.patch.object(store._tables, "writer", closing), pytest.raises(Closing):
        store._merger.merge_level0()
    assert table_files(disk, store.path) == tables
    store._tables.closing = False
    merge(store)
    assert store.stats().level0_tables == 0 and contents(store) == before
    abandon(store)


@pytest.mark.part(2)
def test_no_more_is_written_anew_at_once_than_a_piece(tmp_path: Path) -> None:
    """However long the run: what is deleted all over it makes every table of it a neighbour with garbage."""
    options = tiny(memtable_bytes=64 << 20, level0_merge=20, generation_bytes=64 << 20)
    store = open_stepped(tmp_path / "shard", options, Drive(tmp_path))
    topic = store.create_topic("t", 1).id
    chance = np.random.default_rng(5)
    for _ in range(20):
        store.wait(store.append(topic, batch_of([Put(0, chance.bytes(300)) for _ in range(250)])))
        flush(store)
    with small_parts():
        store._merger.merge_level0()
    [run] = store._tables.version.runs()
    assert len(run.tables) > 2 * PIECE_TABLES
    offsets = np.flatnonzero(chance.random(20 * 250) < 0.6)
    store.wait(store.delete(topic, np.zeros(len(offsets), np.uint32), offsets))
    flush(store)
    left = contents(store)
    written = []
    while (found := store._merger.due_rest()) is not None:
        assert found.tables, "there is one generation: nothing to merge it with"
        written.append(sum(table.meta.size_bytes for table in found.sources))
        store._merger.merge_rest()
    assert max(written) <= PIECE_TABLES * options.table_bytes
    assert sum(written) > PIECE_TABLES * options.table_bytes, "more than a piece was due"
    assert contents(store) == left
    abandon(store)


# -- what is not on the disk yet ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["trim", "drop", "delete"])
def test_no_table_lacks_what_a_power_cut_takes_from_the_log(tmp_path: Path, way: str) -> None:
    """In asynchronous mode a trim may be in no more than the page cache when a merge obeys it."""
    for seed in range(12):
        root = tmp_path / str(seed)
        root.mkdir()
        disk = Drive(root, seed=seed)
        options = tiny(level0_merge=2, flush_mode=FlushMode.ASYNC)
        store = open_stepped(root / "shard", options, disk)
        topic = store.create_topic("t", 1).id
        for serial in range(3):
            put(store, topic, *((0, body(serial * 10 + at, 400)) for at in range(10)))
            flush(store)
        store._writer.sync_now()
        whole = bodies(store, topic, 0)
        match way:
            case "trim":
                store.wait(store.trim(topic, 0, 25))
            case "drop":
                store.delete_topic("t")
            case _:
                store.wait(store.delete(topic, np.zeros(20, np.uint32), np.arange(20)))
        merge(store)
        abandon(store)
        again = open_stepped(root / "shard", options, disk.power_cut(seed))
        if "t" in [item.name for item in again.topics()]:
            found = bodies(again, topic, 0)
            assert found.items() <= whole.items()
            assert found, "a gap raises, and what is gone is gone in a prefix"
        abandon(again)


# -- choosing ----------------------------------------------------------------------------------------------


def test_sizes_grow_by_fours_and_runs_stay_few() -> None:
    generations: list[int] = []
    written = 0
    for _ in range(2_000):
        pick = choose_level0([1] * 8, generations, least=8, busy=24, limit_bytes=1 << 20)
        assert pick is not None
        merged = 8 + sum(generations[len(generations) - pick.generations :])
        written += merged
        generations = [*generations[: len(generations) - pick.generations], merged]
        while (tier := choose_tier(generations, [False] * len(generations), 1 << 20)) is not None:
            merged = sum(generations[slice(*tier)])
            written += merged
            generations[slice(*tier)] = [merged]
        assert len(generations) <= 22
    assert written / (8 * 2_000) < 5.2


def test_level_0_goes_alone_when_it_is_behind() -> None:
    assert choose_level0([1] * 8, [8, 8, 8], least=8, busy=24, limit_bytes=1 << 20).generations == 3  # type: ignore[union-attr]
    assert choose_level0([1] * 24, [8, 8, 8], least=8, busy=24, limit_bytes=1 << 20).generations == 0  # type: ignore[union-attr]
    assert choose_level0([1] * 7, [], least=8, busy=24, limit_bytes=1 << 20) is None


def test_runs_are_merged_with_those_of_about_their_size_up_to_the_limit() -> None:
    alike = {"least": 4, "busy": 24, "limit_bytes": 10_000}
    assert choose_level0([100] * 4, [800] * 3, **alike) == MergePick(4, 3)
    assert choose_level0([100] * 4, [801, 800, 800], **alike) == MergePick(4, 0)
    assert choose_level0([100] * 4, [800] * 3, **{**alike, "limit_bytes": 2_799}) == MergePick(4, 0)
    tiers = [64, 64, 64, 16, 16, 16, 16]
    assert choose_tier(tiers, [False] * 7, 256) == (0, 7), "what comes out is of the size of the next"
    assert choose_tier(tiers, [False] * 7, 255) == (3, 7)


def test_full_generations_have_a_second_tier_unless_they_are_to_expire() -> None:
    full = [100] * 8
    assert choose_tier(full, [False] * 8, 100) == (0, 8)
    assert choose_tier(full, [True] * 8, 100) is None
    assert choose_tier(full[1:], [False] * 7, 100) is None
    assert choose_tier([800, *full[1:]], [False] * 8, 100) is None
    assert MAX_SHARE < 1 / 3


def test_level_0_is_merged_while_all_other_merging_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, go_on = threading.Event(), threading.Event()

    def merge_for_long(*, at_once: bool) -> None:
        at_work.set()
        assert go_on.wait(PATIENCE_S)

    with ShardStore.open(tmp_path, small()) as store:
        monkeypatch.setattr(store._merger, "merge_rest", merge_for_long)
        monkeypatch.setattr(store._merger, "due_rest", lambda *, at_once: object())
        topic = store.create_topic("t", 4).id
        for _ in range(12):
            put(store, topic, (0, b"x" * 1000))
            store.flush()
        eventually(at_work.is_set, "the other merges are at work")
        eventually(lambda: store._merger.due_level0() is None, "level 0 is merged")
        assert store.stats().level0_tables < 12
        go_on.set()
        monkeypatch.undo()
