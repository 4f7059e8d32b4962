"""A log whose end is missing is refused by name: what was acknowledged is never silently gone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from lsmq.errors import CorruptFile, LsmqError
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import QueueStore, ShardStore
from lsmq_node.storage.log_mark import LogMark, load_log_mark, store_log_mark
from lsmq_node.storage.wal import segment_name
from support.clock import SimClock

from .harness import abandon, append, bodies, body, flush, freeze, keep_house, open_stepped, put, tiny

SEGMENT = 64 * 1024
COUNT = 60


class Filled:
    """A store with a log of several segments, the first of them flushed."""

    def __init__(self, root: Path, *, close: bool) -> None:
        self.path = root / "s"
        self.disk = Drive(root)
        store = self.open()
        self.topic_id = store.create_topic("t", 1).id
        self.sent: dict[int, bytes] = {}
        for number in range(COUNT):
            if number == COUNT // 3:
                flush(store)
            self.sent[number] = body(number, 6_000)
            put(store, self.topic_id, (0, self.sent[number]))
            keep_house(store)
        self.end_lsn = store.committed_lsn
        self.flushed_lsn = store._tables.manifest.flushed_lsn
        if close:
            store.close()
        else:
            abandon(store)

    def open(self) -> ShardStore:
        return open_stepped(self.path, tiny(), self.disk, SimClock())

    def shown(self) -> dict[int, bytes]:
        store = self.open()
        try:
            return bodies(store, self.topic_id, 0)
        finally:
            abandon(store)

    def segments(self) -> list[str]:
        return sorted(path.name for path in self.disk.files() if path.suffix == ".wal")

    def remove(self, *names: str) -> None:
        for name in names:
            self.disk.remove(self.path / "wal" / name)
        self.disk.sync_directory(self.path / "wal")

    def last(self) -> str:
        """The segment that the log ends in."""
        return segment_name(self.end_lsn - self.end_lsn % SEGMENT)


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_a_log_without_its_segments_is_named_and_left_as_it_is(tmp_path: Path, close: bool) -> None:
    for which in ("all", "first", "middle", "last with messages"):
        filled = Filled(tmp_path / which, close=close)
        assert filled.shown() == filled.sent
        used = [name for name in filled.segments() if name <= filled.last()]
        assert len(used) >= 3
        gone = {"all": filled.segments(), "first": used[:1], "middle": used[1:2], "last with messages": used[-1:]}[
            which
        ]
        filled.remove(*gone)
        before = filled.disk.files()
        with pytest.raises(CorruptFile, match=f"{gone[0]}: the file is missing") as refusal:
            filled.open()
        assert "lsmq repair" in refusal.value.message and "nothing was changed" in refusal.value.message
        assert filled.disk.files() == before


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_a_segment_that_was_only_allocated_ahead_is_no_loss(tmp_path: Path, close: bool) -> None:
    filled = Filled(tmp_path, close=close)
    ahead = [name for name in filled.segments() if name > filled.last()]
    assert ahead
    filled.remove(*ahead)
    assert filled.shown() == filled.sent


def test_a_log_of_a_closed_store_that_ends_early_anywhere_is_named(tmp_path: Path) -> None:
    filled = Filled(tmp_path, close=True)
    path = filled.path / "wal" / filled.last()
    whole = filled.disk.content(path)
    end = filled.end_lsn % SEGMENT
    for at in (*range(0, end, 977), *range(end - 8, end)):
        filled.disk.put(path, whole[:at] + bytes(len(whole) - at))
        with pytest.raises(CorruptFile, match=f"{filled.last()}.*up to LSN {filled.end_lsn}"):
            filled.open()
    filled.disk.put(path, whole)
    assert filled.shown() == filled.sent


def test_what_a_flush_noted_is_missed_after_a_kill(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "s", tiny(), disk, SimClock())
    topic_id = store.create_topic("t", 1).id
    put(store, topic_id, (0, b"one"))
    freeze(store)
    put(store, topic_id, (0, b"two"))
    noted = store.committed_lsn
    store._tables.flush_oldest()
    put(store, topic_id, (0, b"three"))
    abandon(store)
    path = tmp_path / "s" / "wal" / segment_name(0)
    whole = disk.content(path)
    flushed = store._tables.manifest.flushed_lsn
    disk.put(path, whole[:flushed] + bytes(len(whole) - flushed))
    with pytest.raises(CorruptFile, match=f"up to LSN {noted}"):
        open_stepped(tmp_path / "s", tiny(), disk, SimClock())


@pytest.mark.parametrize("at", range(29))
def test_a_damaged_mark_is_named(tmp_path: Path, at: int) -> None:
    filled = Filled(tmp_path, close=True)
    path = filled.path / "LOG_MARK"
    raw = bytearray(filled.disk.content(path))
    assert len(raw) == 29
    raw[at] ^= 1 << at % 8
    filled.disk.put(path, bytes(raw))
    with pytest.raises(CorruptFile, match="LOG_MARK"):
        filled.open()


def test_a_mark_alone_is_no_new_shard(tmp_path: Path) -> None:
    filled = Filled(tmp_path, close=True)
    for path in filled.disk.files():
        if path.name != "LOG_MARK":
            filled.disk.remove(path)
    with pytest.raises(CorruptFile, match="the manifest is missing"):
        filled.open()


def test_the_mark_never_goes_back_but_with_the_log(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    disk.make_directory(tmp_path / "s")
    store_log_mark(disk, tmp_path / "s", LogMark(7, 64, closed=True))
    assert load_log_mark(disk, tmp_path / "s") == LogMark(7, 64, closed=True)
    filled = Filled(tmp_path / "filled", close=True)
    mark = load_log_mark(filled.disk, filled.path)
    assert mark is not None
    assert (mark.durable_lsn, mark.closed) == (filled.end_lsn, True)
    store = filled.open()
    opened = load_log_mark(filled.disk, filled.path)
    assert opened is not None and (opened.durable_lsn, opened.closed) == (filled.end_lsn, False)
    store._segments.note(5)
    assert load_log_mark(filled.disk, filled.path) == opened
    abandon(store)


def test_a_full_disk_at_the_close_leaves_the_mark_before(tmp_path: Path) -> None:
    filled = Filled(tmp_path, close=False)
    store = filled.open()
    point = filled.disk.at(1, errno.ENOSPC, kinds=("create",))
    store.close()
    assert point.hits == 1
    filled.disk.heal()
    assert filled.shown() == filled.sent


def test_a_queue_store_without_its_log_does_not_open_empty(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s") as store:
        for number in range(200):
            store.put("q", b"%d" % number)
    for segment in (tmp_path / "s").rglob("*.wal"):
        segment.unlink()
    with pytest.raises(LsmqError, match="the file is missing"):
        QueueStore(tmp_path / "s")


def test_whole_entries_behind_a_torn_one_are_kept_aside_until_the_next(tmp_path: Path) -> None:
    disk, path = Drive(tmp_path), tmp_path / "s"
    store = open_stepped(path, tiny(), disk, SimClock())
    topic_id = store.create_topic("t", 1).id
    put(store, topic_id, (0, b"before"))
    end = store.committed_lsn
    for number in range(8):
        last = append(store, topic_id, (0, body(number, 7_000)))
    store.wait(last)  # one write for all
    abandon(store)
    segment = path / "wal" / segment_name(0)
    raw = bytearray(disk.content(segment))
    raw[end + 100] ^= 1
    disk.put(segment, bytes(raw))
    store = open_stepped(path, tiny(), disk, SimClock())
    assert (store.committed_lsn, bodies(store, topic_id, 0)) == (end, {0: b"before"})
    abandon(store)
    kept = path / "wal" / segment_name(0).replace(".wal", ".torn")
    assert disk.content(kept) == bytes(raw).rstrip(b"\0")
    store = open_stepped(path, tiny(), disk, SimClock())
    abandon(store)
    assert disk.content(kept) == bytes(raw).rstrip(b"\0"), "an open that cuts nothing off leaves it"
