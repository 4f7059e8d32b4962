"""A flipped bit anywhere in any file is found and named, and never served; what can be made again is."""

from __future__ import annotations

import errno
import gc
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsmq.errors import CorruptFile, LsmqError, StorageError
from lsmq.record_batch import Column, RecordBatch, encode_batch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import QueueStore, ShardStore, StoreOptions
from lsmq_node.storage.disk import File, OsDisk
from lsmq_node.storage.index import IndexPage
from lsmq_node.storage.sstable import TableMeta
from lsmq_node.storage.state import StoredTopic, TopicOptions
from support.clock import SimClock
from support.extent import part_of

from .harness import (
    TINY,
    Put,
    abandon,
    background,
    batch_of,
    bodies,
    body,
    flush,
    merge,
    no_threads,
    open_stepped,
    put,
    retain,
    small,
    tiny,
)
from .model import View, view


class Store:
    """A small store with two tables, a checkpoint, a manifest and a log, and what it shows."""

    def __init__(self, root: Path, options: StoreOptions | None = None) -> None:
        self.path = root / "shard"
        self.options = options or tiny()
        self.disk = Drive(root)
        store = open_stepped(self.path, self.options, self.disk, SimClock())
        topic = store.create_topic("t", 3)
        for turn in range(2):
            puts = [Put(at % 3, body(turn * 100 + at, 40 + at), key=f"k{at}" if at % 2 else None) for at in range(16)]
            store.wait(store.append(topic.id, batch_of(puts)))
            store.wait(store.commit_offsets("g", topic.id, np.array([1], np.uint32), np.array([turn + 1])))
            flush(store)
        put(store, topic.id, (0, b"in the log"))
        self.shown = view(store)
        self.tables: list[TableMeta] = list(store._tables.manifest.level0)
        abandon(store)
        self.disk = self.disk.kill()

    def file(self, pattern: str) -> Path:
        return min(path for path in self.disk.files() if path.match(pattern))

    def table(self) -> tuple[Path, TableMeta]:
        return self.path / "tables" / self.tables[0].name, self.tables[0]

    def index_at(self) -> int:
        """Where the table's first index page is: behind the blocks, and the keys of its messages."""
        path, meta = self.table()
        root = self.disk.content(path)[meta.root_position : meta.root_position + meta.root_bytes]
        return IndexPage.parse(root, "", 0, root=True).positions[0]

    def with_flip(self, path: Path, at: int, mask: int) -> tuple[View | LsmqError, int]:
        """What a store shows, or raises, that has one byte changed; and how many indexes it made again."""
        whole = self.disk.content(path)
        changed = bytearray(whole)
        changed[at] ^= mask
        self.disk.put(path, bytes(changed))
        before = self.disk.files()
        store: ShardStore | None = None
        try:
            store = open_stepped(self.path, self.options, self.disk, SimClock())
            return view(store), store.stats().rebuilt_indexes_total
        except LsmqError as error:
            if store is None:
                assert self.disk.files() == before, "a refused store is left as it is"
            return error, 0
        finally:
            if store is not None:
                abandon(store)
            self.disk.put(path, whole)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def assert_named(outcome: object, path: Path) -> CorruptFile:
    assert isinstance(outcome, CorruptFile), outcome
    assert outcome.details["file"] == str(path)
    assert path.name in outcome.message
    return outcome


@pytest.mark.parametrize("pattern", ["MANIFEST", "*.ckp"])
def test_any_flipped_byte_of_manifest_and_checkpoint_is_refused(store: Store, pattern: str) -> None:
    path = store.file(pattern)
    for at in part_of(range(len(store.disk.content(path)))):
        for mask in (1 << at % 8, 0xFF):
            outcome, _ = store.with_flip(path, at, mask)
            assert_named(outcome, path)


@pytest.mark.part(2)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_any_flipped_byte_of_a_block_is_refused_by_its_place(tmp_path: Path, compression: str) -> None:
    store = Store(tmp_path, tiny(compression=compression))
    path, meta = store.table()
    raw = store.disk.content(path)
    block = 0
    tried = set(part_of(range(meta.index_position)))
    for at in range(meta.index_position):
        if at == block + int.from_bytes(raw[block + 4 : block + 8], "little"):
            block = at
        if at not in tried:
            continue
        outcome, _ = store.with_flip(path, at, 1 << at % 8)
        assert assert_named(outcome, path).details["position"] == block


@pytest.mark.part(2)
def test_any_flipped_byte_of_the_index_is_made_good_from_the_blocks(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    path, meta = store.table()
    for at in part_of(range(store.index_at(), meta.root_position + meta.root_bytes)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "lsmq.storage"):
            assert store.with_flip(path, at, 1 << at % 8) == (store.shown, 1)
        [line] = [line for line in caplog.messages if path.name in line]
        assert "made again in memory from" in line


@pytest.mark.part(2)
def test_any_flipped_byte_of_properties_or_footer_is_named_and_does_no_harm(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    path, meta = store.table()
    for at in part_of(range(meta.root_position + meta.root_bytes, meta.size_bytes)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "lsmq.storage"):
            assert store.with_flip(path, at, 1 << at % 8) == (store.shown, 0)
        assert any(path.name in line for line in caplog.messages), at


@pytest.mark.part(2)
def test_any_flipped_byte_of_the_log_of_a_closed_store_is_refused(store: Store) -> None:
    path = store.path / "wal" / "0000000000000000.wal"
    used = len(store.disk.content(path).rstrip(b"\0"))
    store_ = open_stepped(store.path, store.options, store.disk, SimClock())
    flushed, end = store_._tables.manifest.flushed_lsn, store_.committed_lsn
    abandon(store_)
    assert flushed < used == end
    for at in (*range(0, flushed, 23), *range(flushed, used)):
        outcome, _ = store.with_flip(path, at, 1 << at % 8)
        if at < flushed:
            assert outcome == store.shown  # it is in the tables, nobody reads it any more
        else:
            assert_named(outcome, path)


@pytest.mark.parametrize("pattern", ["*.ckp", "MANIFEST", "tables/000000000001.tbl"])
def test_a_missing_file_is_named(store: Store, pattern: str) -> None:
    path = store.file(pattern)
    store.disk.remove(path)
    before = store.disk.files()
    with pytest.raises(CorruptFile) as refusal:
        open_stepped(store.path, store.options, store.disk, SimClock())
    assert refusal.value.details["file"] == str(path)
    assert store.disk.files() == before


@pytest.mark.parametrize("keep", [0.2, 0.8, 0.95, 0.999])
def test_a_table_cut_off_is_named_unless_only_its_tail_is_gone(store: Store, keep: float) -> None:
    path, meta = store.table()
    raw = store.disk.content(path)
    for length in (int(len(raw) * keep), meta.index_position - 1, meta.index_position, 0):
        store.disk.put(path, raw[:length])
        opened = open_stepped(store.path, store.options, store.disk, SimClock())
        try:
            assert view(opened) == store.shown
            assert length >= meta.index_position
        except CorruptFile as error:
            assert_named(error, path)
            assert length < meta.index_position
        finally:
            abandon(opened)


def test_a_checkpoint_of_another_moment_is_refused(store: Store) -> None:
    older, newer = sorted(path for path in store.disk.files() if path.match("*.ckp"))
    store.disk.put(newer, store.disk.content(older))
    with pytest.raises(CorruptFile, match="do not belong together"):
        open_stepped(store.path, store.options, store.disk, SimClock())


def test_an_index_that_is_damaged_beside_a_damaged_block_names_the_block(store: Store) -> None:
    path, _ = store.table()
    changed = bytearray(store.disk.content(path))
    changed[store.index_at() + 60] ^= 1
    changed[20] ^= 1
    store.disk.put(path, bytes(changed))
    opened = open_stepped(store.path, store.options, store.disk, SimClock())
    with pytest.raises(CorruptFile, match="block at byte 0") as refusal:
        view(opened)
    assert refusal.value.details == {"file": str(path), "position": 0}
    abandon(opened)


def test_a_rebuilt_index_serves_merges_and_is_counted_once(store: Store) -> None:
    path, _ = store.table()
    changed = bytearray(store.disk.content(path))
    changed[store.index_at() + 60] ^= 1
    store.disk.put(path, bytes(changed))
    opened = open_stepped(store.path, tiny(level0_merge=2, cache_bytes=0), store.disk, SimClock())
    for _ in range(3):
        assert view(opened) == store.shown
    assert opened.stats().rebuilt_indexes_total == 1
    merge(opened)
    assert opened.stats().merges_total == 1
    assert view(opened) == store.shown
    abandon(opened)
    opened = open_stepped(store.path, store.options, store.disk, SimClock())
    assert view(opened) == store.shown
    assert opened.stats().rebuilt_indexes_total == 0
    abandon(opened)


def damaged(store: Store, at: int = 50) -> Path:
    """The first table with a byte of its first block flipped."""
    path, _ = store.table()
    store.disk.put(path, flipped(store.disk.content(path), at))
    return path


def test_a_merge_that_meets_damage_leaves_the_table_and_goes_on_without_it(store: Store) -> None:
    path = damaged(store)
    opened = open_stepped(store.path, tiny(level0_merge=2), store.disk, SimClock())
    tables = set(store.disk.list(store.path / "tables"))
    assert opened.damage() == []
    background(opened, lambda: merge(opened))
    (named,) = opened.damage()
    assert path.name in named and "byte 0" in named
    assert opened.stats().damaged_tables == 1
    assert path.name in store.disk.list(store.path / "tables")
    assert len(tables) > 1
    topic = opened.topic("t").id
    for step in range(12):
        put(opened, topic, *((queue, body(step, 300)) for queue in range(3)))
        flush(opened)
        background(opened, lambda: merge(opened))
        assert opened.stats().level0_tables < 3, "what is damaged does not stand in the way"
    assert opened.pressure == "ok"
    assert opened.stats().merges_total > 0
    for _ in range(2):
        earliest, latest = opened.bounds(topic, 0)
        with pytest.raises(CorruptFile, match=path.name):
            for offset in range(earliest, latest):
                opened.read(topic, 0, offset, max_records=1)
        assert opened.read_bytes(topic, 2, opened.bounds(topic, 2)[1] - 12, 100) == [body(at, 300) for at in range(12)]
        abandon(opened)
        opened = open_stepped(store.path, tiny(level0_merge=2), store.disk, SimClock())
        merge(opened)
    abandon(opened)


class BadSector(OsDisk):
    """Of some files bytes cannot be read any more. ``lost``: of which, from where on, and up to where."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: tuple[str, int, int] = ("", 0, 0)

    def open(self, path: Path, *, write: bool = False, random: bool = False) -> File:
        return SectorFile(super().open(path, write=write, random=random), self, path)  # type: ignore[return-value]


class SectorFile:
    def __init__(self, file: File, disk: BadSector, path: Path) -> None:
        self._file, self._disk, self._path = file, disk, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pread(self, length: int, position: int) -> bytes:
        suffix, begin, end = self._disk.lost
        if suffix and self._path.name.endswith(suffix) and position < end and begin < position + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.pread(length, position)


@pytest.mark.parametrize("where", ["block", "index"])
def test_what_the_disk_cannot_read_of_a_table_is_damage_like_any_other(tmp_path: Path, where: str) -> None:
    disk, path = BadSector(), tmp_path / "shard"
    store = open_stepped(path, tiny(level0_merge=3, cache_bytes=0), disk)
    topic = store.create_topic("t", 2)
    for number in range(3):
        for queue in range(2):
            put(store, topic.id, (queue, body(10 * queue + number, 2_000)))
        flush(store)
    expected = {number: body(10 + number, 2_000) for number in range(3)}
    meta = store._tables.manifest.level0[0]
    block = store._tables.version.tables()[-1].page(0)
    position = block.positions[0] if where == "block" else meta.root_position
    store._tables.cache.drop(meta.number)
    disk.lost = meta.name, position, position + 1
    if where == "block":
        with pytest.raises(CorruptFile, match="cannot be read"):
            bodies(store, topic.id, 0)
        assert bodies(store, topic.id, 1) == expected
        background(store, lambda: merge(store))
        (named,) = store.damage()
        assert meta.name in named and not store._writer.stopped
    else:
        background(store, lambda: merge(store))
        assert not store.damage() and not store._writer.stopped
    assert bodies(store, topic.id, 1) == expected
    put(store, topic.id, (1, b"taken"))
    flush(store)
    abandon(store)


@pytest.mark.parametrize("suffix", [".ckp", ".ids"])
def test_what_the_disk_cannot_read_of_state_stops_no_shard(tmp_path: Path, suffix: str) -> None:
    disk, path = BadSector(), tmp_path / "shard"
    store = open_stepped(path, tiny(), disk)
    topic = store.create_topic("t", 1, TopicOptions(dedupe_window_ms=3_600_000))
    for number in range(8):
        puts = [Put(0, body(number, 100), dedupe_id=f"{number}-{at}") for at in range(8)]
        store.wait(store.append(topic.id, batch_of(puts, producer_id=number + 1, sequence=0)))
        flush(store)
    assert store._tables.checkpoint.merge_due()
    disk.lost = suffix, 0, 1 << 40
    background(store, store._tables.checkpoint.merge)
    background(store, lambda: store._tables.ids._merge(store._tables.ids._files))
    assert not store._writer.stopped
    assert suffix in str(store.damage())
    abandon(store)


def test_a_damaged_table_in_the_middle_of_level_0_lets_older_and_newer_ones_merge(store: Store) -> None:
    opened = open_stepped(store.path, tiny(level0_merge=4), store.disk, SimClock())
    topic = opened.topic("t").id
    merge(opened)
    before = {queue: opened.bounds(topic, queue)[1] for queue in range(3)}
    numbers = []
    for step in range(5):
        put(opened, topic, *((queue, body(step, 40)) for queue in range(3)))
        flush(opened)
        numbers.append(opened._tables.version.level0[0].tables[0].path)
        if step == 1:
            store.disk.put(numbers[1], flipped(store.disk.content(numbers[1]), 50))
            with pytest.raises(CorruptFile):
                opened.read(topic, 0, before[0] + 1)
    merges = merge(opened)
    assert 2 <= merges < 10
    assert [run.damaged for run in opened._tables.version.generations].count(True) == 1
    assert len(opened._tables.version.level0) < 4
    contents = [body(step, 40) for step in range(5)]
    for queue in (0, 2):
        for step in (2, 3, 4):
            assert opened.read_bytes(topic, queue, before[queue] + step, 1) == [contents[step]]
        assert opened.read_bytes(topic, queue, before[queue] + 2, 9) == contents[2:]
    assert opened.read_bytes(topic, 0, before[0], 1) == contents[:1]
    with pytest.raises(CorruptFile, match=numbers[1].name):
        opened.read_bytes(topic, 0, before[0], 9)
    wanted = np.arange(3, dtype=np.uint32)
    found = opened.read_many(topic, wanted, np.array([before[queue] + 2 for queue in range(3)]))
    assert found.record_count == 9
    abandon(opened)


def test_retention_goes_on_beside_a_damaged_table(store: Store) -> None:
    damaged(store)
    opened = open_stepped(store.path, store.options, store.disk, SimClock())
    topic = opened.topic("t")
    options = TopicOptions(retention_ms=1)
    appended = opened.put_topic(StoredTopic(topic.id, "t", topic.queues, options, topic.created_ms), 0, topic.queues)
    opened.wait(appended)
    opened._clock.time_ms += 1_000_000  # type: ignore[attr-defined]
    retain(opened)
    assert opened.earliest_offsets(topic.id).tolist() == opened.latest_offsets(topic.id).tolist()
    assert put(opened, topic.id, (0, b"taken"))
    abandon(opened)


def test_an_index_made_again_must_have_all_the_records_that_the_manifest_knows(store: Store) -> None:
    """Intact blocks that are not the table's own: the last ones are gone, and others stand in their place."""
    path, _ = store.table()
    content = store.disk.content(path)
    size_at = store.index_at()
    page = IndexPage.parse(
        content[size_at : size_at + int.from_bytes(content[size_at + 4 : size_at + 8], "little")], "", 0
    )
    assert page.count > 1
    begin, size = page.positions[1], page.sizes[1]
    joined = bytearray(content)
    batch = RecordBatch(content[begin : begin + size])
    fewer = encode_batch(1, {Column.TOPIC: 1, Column.QUEUE: 1, Column.OFFSET: 0, Column.LENGTH: 0}, b"")
    padded = encode_batch(
        1,
        {Column.TOPIC: 1, Column.QUEUE: 1, Column.OFFSET: 0, Column.LENGTH: size - len(fewer)},
        bytes(size - len(fewer)),
    )
    assert len(padded) == size
    assert batch.record_count > 1
    joined[begin : begin + size] = padded
    joined[store.index_at() + 60] ^= 1
    store.disk.put(path, bytes(joined))
    opened = open_stepped(store.path, store.options, store.disk, SimClock())
    with pytest.raises(CorruptFile, match="index"):
        view(opened)
    assert opened.stats().rebuilt_indexes_total == 0
    assert opened.stats().damaged_tables == 1
    abandon(opened)


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 4
    return bytes(changed)


@pytest.mark.parametrize("queues", [1, 40])
def test_damage_in_a_backlog_is_never_handed_out(tmp_path: Path, queues: int) -> None:
    """Whole blocks that would go out by sendfile, and single records, of a queue store."""
    disk, path = Drive(tmp_path), tmp_path / "q"

    def opened() -> QueueStore:
        with no_threads():
            return QueueStore(path, disk=disk, clock=SimClock(), **{**TINY, "max_message_bytes": 4096})

    store = opened()
    sent: dict[str, list[bytes]] = {}
    for at in range(240):
        name = f"queue {at % queues}"
        sent.setdefault(name, []).append(body(at, 1_000))
        store.put(name, sent[name][-1])
    flush(store.store)
    names = [meta.name for meta in store.store._tables.manifest.level0]
    abandon(store)
    damaged = 0
    for name in names:
        content = disk.content(path / "tables" / name)
        for at in range(700, len(content), 9_001):
            disk.put(path / "tables" / name, flipped(content, at))
            store_or_error: QueueStore | StorageError
            try:
                store_or_error = opened()
            except StorageError as error:
                store_or_error = error
            if isinstance(store_or_error, QueueStore):
                for queue, expected in sent.items():
                    try:
                        assert store_or_error.get(queue, 0, 1_000) == expected
                    except CorruptFile as error:
                        assert name in error.message
                        damaged += 1
                abandon(store_or_error)
            disk.put(path / "tables" / name, content)
    assert damaged >= 10


def test_a_reader_of_an_open_range_goes_on_after_its_table_was_merged_away(tmp_path: Path) -> None:
    """A slice that still has to be sent holds its file open, and on the real disk at that."""
    store = open_stepped(tmp_path / "s", small(level0_merge=2))
    topic = store.create_topic("t", 1)
    for turn in range(2):
        for at in range(10):
            put(store, topic.id, *[(0, body(turn * 100 + at * 10 + part, 2_000)) for part in range(10)])
        flush(store)
        if turn == 0:
            found = store.read(topic.id, 0, 0, max_records=1_000, max_bytes=1 << 20)
    assert any(not isinstance(part, bytes) for part in found.parts)
    merge(store)
    gc.collect()
    messages = [message for batch in found.batches() for message in batch.messages("t")]
    assert [message.offset for message in messages] == list(range(100))
    store.close()
