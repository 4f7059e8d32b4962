"""The write-ahead log: a torn end is cut off exactly, damage before it is refused, old bytes never come back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import CorruptFile
from lsmq_lab.world.drive import Drive
from lsmq_lab.world.medium import PAGE_BYTES
from lsmq_node.storage import FlushMode, ShardStore
from lsmq_node.storage.disk import OsFile
from lsmq_node.storage.segments import SegmentFiles
from lsmq_node.storage.wal import (
    BLOCK_BYTES,
    FRAGMENT_BYTES,
    SEGMENT_HEADER_BYTES,
    Appender,
    EntryKind,
    encode_entry_header,
    segment_name,
)
from lsmq_node.storage.wal_reader import LogReader
from support.clock import SimClock

from .harness import (
    abandon,
    append,
    bodies,
    body,
    flush,
    keep_house,
    merge,
    open_stepped,
    profile,
    put,
    small,
    sync,
    tiny,
)

SEGMENT = 64 * 1024


@pytest.fixture(autouse=True)
def narrow_window() -> Iterator[None]:
    """The log is read back a block at a time: it is short here, and would be in memory whole."""
    with mock.patch("lsmq_node.storage.wal_reader.WINDOW_BYTES", BLOCK_BYTES):
        yield


class Log:
    """A log of one store on a simulated disk, with one committed message an entry."""

    def __init__(self, root: Path) -> None:
        self.path = root / "shard"
        self.disk = Drive(root)
        self.ends: list[int] = []
        self.sent: dict[int, bytes] = {}
        store = self.open()
        self.topic_id = store.create_topic("t", 1).id
        abandon(store)

    def open(self) -> ShardStore:
        return open_stepped(self.path, tiny(), self.disk, SimClock())

    def write(self, *sizes: int) -> None:
        """One commit a message."""
        store = self.open()
        for size in sizes:
            content = body(len(self.sent), size)
            appended = append(store, self.topic_id, (0, content))
            store.wait(appended)
            self.sent[len(self.sent)] = content
            self.ends.append(appended.lsn)
        abandon(store)

    def segment(self, lsn: int) -> Path:
        return self.path / "wal" / segment_name(lsn - lsn % SEGMENT)

    def damaged(self, change: Callable[[bytearray], None], lsn: int = 0) -> Drive:
        """A copy of the disk with the segment of ``lsn`` changed."""
        disk = self.disk.copy()
        content = bytearray(disk.content(self.segment(lsn)))
        change(content)
        disk.put(self.segment(lsn), bytes(content))
        return disk

    def recovered(self, disk: Drive) -> dict[int, bytes]:
        store = open_stepped(self.path, tiny(), disk, SimClock())
        try:
            return bodies(store, self.topic_id, 0)
        finally:
            abandon(store)

    def first(self, count: int) -> dict[int, bytes]:
        return dict(list(self.sent.items())[:count])


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def cut(at: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[at:]

    return change


def zero(at: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[at:] = bytes(len(content) - at)

    return change


def flip(at: int, mask: int = 0xFF) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[at] ^= mask

    return change


def test_a_log_that_ends_anywhere_in_its_last_entry_has_exactly_the_entries_before(log: Log) -> None:
    log.write(20, 30, 90)
    for at in range(log.ends[-2], log.ends[-1]):
        assert log.recovered(log.damaged(zero(at))) == log.first(2), at
    assert log.recovered(log.damaged(zero(log.ends[-1]))) == log.sent


def test_a_segment_cut_off_where_the_log_reaches_is_named(log: Log) -> None:
    log.write(5, 8, 11)
    for at in range(log.ends[-1] + FRAGMENT_BYTES):
        with pytest.raises(CorruptFile, match=rf"{segment_name(0)}: segment file is short"):
            log.recovered(log.damaged(cut(at)))
    assert log.recovered(log.damaged(cut(log.ends[-1] + FRAGMENT_BYTES))) == log.sent


@pytest.mark.part(2)
def test_any_flipped_bit_of_the_last_entry_drops_that_entry_alone(log: Log) -> None:
    log.write(20, 30, 12)
    for at in range(log.ends[-2], log.ends[-1]):
        for mask in (0x01, 0x80, 0xFF, 1 << at % 8):
            assert log.recovered(log.damaged(flip(at, mask))) == log.first(2), (at, mask)


def test_any_flipped_byte_before_what_is_known_durable_is_refused_and_nothing_changed(log: Log) -> None:
    log.write(20, 30, 12, 5)
    name = segment_name(0)
    for at in range(log.ends[1]):
        disk = log.damaged(flip(at))
        before = disk.files()
        with pytest.raises(CorruptFile, match=name) as refusal:
            open_stepped(log.path, tiny(), disk, SimClock())
        assert refusal.value.details["file"].endswith(name)
        assert 0 <= refusal.value.details["position"] <= at
        assert "nothing was changed" in refusal.value.message
        assert disk.files() == before


@pytest.mark.parametrize("length", [1, 7, 512, 4096])
def test_zeros_in_the_middle_are_refused(log: Log, length: int) -> None:
    log.write(*[700] * 20)

    def change(content: bytearray) -> None:
        content[2_000 : 2_000 + length] = bytes(length)

    assert any(log.disk.content(log.segment(0))[2_000 : 2_000 + length])
    with pytest.raises(CorruptFile):
        log.recovered(log.damaged(change))


def test_damage_is_refused_across_blocks_and_segments(log: Log) -> None:
    log.write(*[8_000] * 20)
    segments = [name for name in log.disk.list(log.path / "wal") if name.endswith(".wal")]
    assert len(segments) >= 3
    chance = random.Random(4)
    for _ in range(60):
        lsn = chance.randrange(log.ends[-3])
        with pytest.raises(CorruptFile, match=log.segment(lsn).name):
            log.recovered(log.damaged(flip(lsn % SEGMENT), lsn))


def test_a_missing_segment_in_the_middle_is_refused(log: Log) -> None:
    log.write(*[8_000] * 20)
    disk = log.disk.kill()
    disk.remove(log.segment(SEGMENT))
    with pytest.raises(CorruptFile, match=log.segment(SEGMENT).name):
        log.recovered(disk)


@pytest.mark.part(2)
def test_a_torn_write_whose_later_pages_arrived_is_dropped_as_a_whole(log: Log) -> None:
    """One commit of several entries over many pages, of which any may be missing: a prefix of them remains."""
    log.write(100, 100)
    store = log.open()
    fresh = [body(100 + at, 3_000) for at in range(8)]
    for content in fresh:
        append(store, log.topic_id, (0, content))
    base = log.disk.copy()
    begin = store.committed_lsn
    store.commit()
    end = store.committed_lsn
    abandon(store)
    before, after = base.content(log.segment(0)), log.disk.content(log.segment(0))
    pages = range(begin // PAGE_BYTES, end // PAGE_BYTES + 1)
    seen = set()
    for missing in range(1, 1 << len(pages)):
        mixed = bytearray(after)
        for number, page in enumerate(pages):
            if missing >> number & 1:
                span = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
                mixed[span] = before[span]
        found = log.recovered(log.damaged(lambda content, mixed=mixed: content.__setitem__(slice(None), mixed)))  # type: ignore[misc]
        rest = list(found.values())[2:]
        assert list(found.values())[:2] == list(log.sent.values())
        assert rest == fresh[: len(rest)]
        seen.add(len(rest))
    assert {0, len(fresh) - 1} <= seen


def test_a_log_that_goes_on_over_junk_of_the_same_lengths_never_brings_it_back(log: Log) -> None:
    """Torn entries lie where new ones of the same length go; a crash right then must not find their rests."""
    log.write(100)
    store = log.open()
    for at in range(6):
        append(store, log.topic_id, (0, body(700 + at, 100)))
    store.commit()
    abandon(store)
    size = store.committed_lsn - log.ends[0]
    torn = log.damaged(flip(log.ends[0] + 3))  # the first of the six; the other five are whole
    for written in range(1, 4):
        disk = torn.kill()
        store = open_stepped(log.path, tiny(), disk, SimClock())
        assert bodies(store, log.topic_id, 0) == log.sent
        model = dict(log.sent)
        for at in range(written):
            content = body(900 + at, 100)
            [offset] = put(store, log.topic_id, (0, content))
            model[offset] = content
        assert store.committed_lsn == log.ends[0] + size // 6 * written
        abandon(store)
        for again in (disk.kill(), disk.power_cut(written)):
            assert log.recovered(again) == model


def test_old_bytes_of_a_recycled_segment_never_come_back(log: Log) -> None:
    store = log.open()
    for at in range(12):
        put(store, log.topic_id, (0, body(at, 8_000)))
    flush(store)
    keep_house(store)
    for at in range(12, 40):
        put(store, log.topic_id, (0, body(at, 8_000)))
        keep_house(store)
        if at % 9 == 0:
            flush(store)
            merge(store)
        expected = bodies(store, log.topic_id, 0)
        assert len(expected) == at + 1
        if at % 3 == 0:
            abandon(store)
            for disk in (log.disk.copy(), log.disk.copy().power_cut(at)):
                assert log.recovered(disk) == expected
            store = log.open()
    renamed = [line for line in log.disk.log if line.startswith("rename") and ".spare " in line]
    assert len(renamed) >= 2
    abandon(store)


def test_what_a_killed_process_did_not_sync_is_durable_before_anything_is_built_on_it(tmp_path: Path) -> None:
    """Written, not synced, process killed, reopened, more written, power cut: what was shown stays."""
    for seed in range(20):
        log = Log(tmp_path / str(seed))
        store = open_stepped(log.path, tiny(flush_mode=FlushMode.ASYNC), log.disk, SimClock())
        for at in range(10):
            put(store, log.topic_id, (0, body(at, 7_900)))
        abandon(store)
        disk = log.disk.kill()
        store = open_stepped(log.path, tiny(), disk, SimClock())
        shown = bodies(store, log.topic_id, 0)
        assert len(shown) == 10
        put(store, log.topic_id, (0, b"more"))
        abandon(store)
        assert log.recovered(disk.power_cut(seed)) == {**shown, 10: b"more"}


def test_asynchronous_mode_loses_no_more_than_what_was_not_synced(tmp_path: Path) -> None:
    for seed in range(20):
        log = Log(tmp_path / str(seed))
        store = open_stepped(log.path, tiny(flush_mode=FlushMode.ASYNC), log.disk, SimClock())
        sent = {}
        for at in range(12):
            sent[at] = body(at, 6_000)
            put(store, log.topic_id, (0, sent[at]))
            if at == 6:
                sync(store)
                assert store.stats().durable_lsn == store.committed_lsn
        abandon(store)
        found = log.recovered(log.disk.power_cut(seed))
        assert len(found) >= 7
        assert found == {at: sent[at] for at in range(len(found))}


def test_asynchronous_mode_keeps_what_was_flushed_whatever_became_of_the_log(tmp_path: Path) -> None:
    """A flush is durable though the log it came from never was; the log goes on behind it."""
    for seed in range(20):
        log = Log(tmp_path / str(seed))
        store = open_stepped(log.path, tiny(flush_mode=FlushMode.ASYNC), log.disk, SimClock())
        sent = {at: body(at, 5_000 + at) for at in range(20)}
        for at in range(16):
            put(store, log.topic_id, (0, sent[at]))
            if at % 5 == 4:
                flush(store)
        abandon(store)
        disk = log.disk.power_cut(seed)
        store = open_stepped(log.path, tiny(flush_mode=FlushMode.ASYNC), disk, SimClock())
        found = bodies(store, log.topic_id, 0)
        assert len(found) in (15, 16)
        for at in range(len(found), 20):
            assert put(store, log.topic_id, (0, sent[at])) == [at]
        store.close()
        assert log.recovered(disk.power_cut(seed)) == sent


@profile(60)
@given(
    sizes=st.lists(st.integers(0, 3 * BLOCK_BYTES), min_size=1, max_size=12),
    start=st.sampled_from((0, SEGMENT_HEADER_BYTES, BLOCK_BYTES - FRAGMENT_BYTES - 1, BLOCK_BYTES - 3, SEGMENT - 1)),
)
def test_entries_of_any_size_come_back_as_they_went_in(sizes: list[int], start: int) -> None:
    appender = Appender(0, SEGMENT)
    header = encode_entry_header(EntryKind.RECORDS, 1, 0, 2, 3, 4, 5)
    entries = []
    if start:  # begin right before the border of a block or a segment
        filler = header + bytes(max(0, start - SEGMENT_HEADER_BYTES - FRAGMENT_BYTES - len(header)))
        entries.append((*appender.append(filler), filler))
    for number, size in enumerate(sizes):
        payload = header + body(number, size)
        cut = number * size % (len(payload) + 1)  # in one part or in two, wherever that is
        entries.append((*appender.append(payload[:cut], payload[cut:]), payload))
    stream = b"".join(appender.take()[1])
    segments = range(0, len(stream), SEGMENT)

    def read(lsn: int, length: int) -> bytes:
        assert lsn // SEGMENT == (lsn + length - 1) // SEGMENT, "one file at a time is read"
        assert length <= BLOCK_BYTES, "no more than the window"
        return bytes(stream[lsn : lsn + length])

    reader = LogReader(read, segments, SEGMENT, "log")
    found = [(entry.lsn, entry.end_lsn, header + entry.body) for entry in reader.entries(0)]
    assert found == entries
    assert reader.end.lsn == appender.lsn
    for first in range(len(entries)):
        assert len(list(LogReader(read, segments, SEGMENT, "log").entries(entries[first][0]))) == len(entries) - first


def test_opening_a_store_holds_a_window_of_its_log_not_a_segment(tmp_path: Path) -> None:
    options = small(segment_bytes=8 << 20, memtable_bytes=16 << 20)
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "s", options, disk, SimClock())
    topic = store.create_topic("t", 1).id
    for at in range(100):
        put(store, topic, (0, body(at, 90_000)))
    abandon(store)
    read: list[int] = []
    pread, read_all = OsFile.pread, Drive.read_all

    def counted(file: OsFile, length: int, position: int) -> bytes:
        read.append(length)
        return pread(file, length, position)

    def counted_whole(disk: Drive, path: Path) -> bytes:
        content = read_all(disk, path)
        read.append(len(content))
        return content

    with (
        mock.patch("lsmq_node.storage.wal_reader.WINDOW_BYTES", 1 << 20),
        mock.patch.multiple(OsFile, pread=counted),
        mock.patch.multiple(Drive, read_all=counted_whole),
    ):
        again = open_stepped(tmp_path / "s", options, disk, SimClock())
    assert again.bounds(topic, 0) == (0, 100)
    assert sum(read) > 100 * 90_000
    assert max(read) <= 1 << 20
    abandon(again)


def test_files_of_other_names_are_left_alone(log: Log) -> None:
    log.write(20)
    for name in ("notes.wal", "0000000000000000.wal.bak"):
        log.disk.create(log.path / "wal" / name)
    assert log.recovered(log.disk) == log.sent
    assert "notes.wal" in log.disk.list(log.path / "wal")


def test_segments_are_recycled_and_the_rest_removed(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    segments = SegmentFiles(disk, tmp_path, SEGMENT)
    segments.prepare(0, 5 * SEGMENT)
    assert segments.start_lsns() == [at * SEGMENT for at in range(6)]
    segments.release(4 * SEGMENT - 1, keep_spares=2)
    names = disk.list(tmp_path)
    assert sum(name.endswith(".spare") for name in names) == 2
    assert segments.start_lsns() == [at * SEGMENT for at in range(3, 6)]
    created = sum(line.startswith("create") for line in disk.log)
    segments.prepare(6 * SEGMENT, 7 * SEGMENT)
    assert sum(line.startswith("create") for line in disk.log) == created
    assert not any(name.endswith(".spare") for name in disk.list(tmp_path))
