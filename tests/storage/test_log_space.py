"""The log has space for what it is to take, and little more: on real file systems, also where they are full."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lsmq.errors import DiskFull
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import QueueStore
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.segments import SegmentFiles
from support.mounts import ext4, tmpfs

KIB, MIB = 1 << 10, 1 << 20


def allocated(path: Path) -> int:
    """Bytes of the disk that the log's files take."""
    return sum(file.stat().st_blocks * 512 for file in (path / "wal").iterdir())


def test_a_small_log_takes_little_space_and_a_larger_one_an_eighth_more_than_it_holds(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s", flush_mode="async", memtable_bytes=256 * MIB) as store:
        (file,) = (tmp_path / "s" / "wal").iterdir()
        assert file.stat().st_size == store.store.segment_bytes == 64 * MIB
        assert allocated(tmp_path / "s") <= MIB
        for count in (1, 7, 24):
            store.put_many([("q", bytes(MIB // 2))] * 2 * count)
            held = store.store._writer.written_lsn
            assert held <= allocated(tmp_path / "s") <= held * 9 // 8 + 3 * MIB


@pytest.mark.parametrize("segment_bytes", [64 * KIB, 256 * KIB, 4 * MIB])
def test_whatever_is_written_lies_where_there_is_space(tmp_path: Path, segment_bytes: int) -> None:
    """Also what spans segments, begins one, or comes after a restart; a recycled file has all of its space."""
    disk = Drive(tmp_path)
    segments = SegmentFiles(disk, tmp_path, segment_bytes)
    lsn, written = 0, bytearray()
    for number, size in enumerate((100, 40 * KIB, 3 * segment_bytes, segment_bytes - 100 - 40 * KIB, 1, 70 * KIB)):
        segments.prepare(lsn, lsn + size)
        piece, before = bytes([number + 1]) * size, len(disk.log)
        segments.write(lsn, piece)
        assert {line.split()[0] for line in disk.log[before:]} == {"write"}, "it had its space before"
        written += piece
        lsn += size
        if number == 2:
            segments.sync()
            segments.close()
            segments = SegmentFiles(disk, tmp_path, segment_bytes)
            segments.open_for_append(lsn)
    assert b"".join(segments.read(at, segment_bytes) for at in segments.start_lsns())[:lsn] == written
    segments.release(lsn, keep_spares=1)
    before = len(disk.log)
    segments.prepare(10 * segment_bytes, 11 * segment_bytes - 1)
    assert not any(line.startswith("preallocate") for line in disk.log[before:])
    segments.close()


@contextmanager
def small_disk(kind: str, tmp_path: Path) -> Iterator[Path]:
    """Smaller than a segment."""
    directory = tmp_path / "small"
    with tmpfs(directory, "size=40m") if kind == "tmpfs" else ext4(directory, tmp_path / "image", 48 * MIB):
        yield directory


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk_takes_what_makes_room_again_and_nothing_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    with small_disk(kind, tmp_path) as directory:
        store = QueueStore(directory / "s", min_free_bytes=0)
        bodies: list[bytes] = []

        def fill() -> None:
            with pytest.raises(DiskFull):
                for number in range(1_000):
                    store.put("kept", body := number.to_bytes(4, "big") * 16 * KIB)
                    bodies.append(body)

        filler = directory / "filler"
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(directory).free - 12 * MIB)
        fill()
        assert len(bodies) > 50
        for _ in range(300):
            store.store.trim(store._owner.writer.messages_id, 0, 0)
        assert store.get("kept", 0, 1_000) == bodies
        filler.unlink()
        store.close()
        store = QueueStore(directory / "s", min_free_bytes=0)
        assert store.get("kept", 0, 1_000) == bodies
        store.put("kept", b"again")
        assert store.get("kept", len(bodies), 2) == [b"again"]
        store.close()


_KILLED = """
import os, sys
from lsmq_node.storage import QueueStore
store = QueueStore(sys.argv[1], min_free_bytes=0, segment_bytes=1 << 20, memtable_bytes=4 << 20)
for number in range(20):
    store.put("kept", number.to_bytes(4, "big") * 16 * 1024)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_store_that_was_killed_opens_on_a_disk_without_a_byte_left(tmp_path: Path, kind: str) -> None:
    bodies = [number.to_bytes(4, "big") * 16 * KIB for number in range(20)]
    with small_disk(kind, tmp_path) as directory:
        subprocess.run([sys.executable, "-c", _KILLED, directory / "s"], check=True)
        fill_up(directory)
        for _ in range(2):  # killed, and closed when its end could not be noted
            with QueueStore(directory / "s", min_free_bytes=0) as store:
                assert store.get("kept", 0, 1_000) == bodies
        (directory / "filler").unlink()
        with QueueStore(directory / "s", min_free_bytes=0) as store:
            store.put("kept", b"again")
        with QueueStore(directory / "s", min_free_bytes=0) as store:
            assert store.get("kept", 0, 1_000) == [*bodies, b"again"]


def test_a_torn_end_is_erased_on_a_disk_without_a_byte_left(tmp_path: Path) -> None:
    begin = 100 * 64 * MIB  # the log is old: a share of all that was ever written is more than the disk
    with small_disk("tmpfs", tmp_path) as directory:
        (wal := directory / "s" / "wal").mkdir(parents=True)
        segments = SegmentFiles(OsDisk(), wal, 64 * MIB)
        segments.begins_lsn = begin
        segments.write(begin, b"x" * 8 * MIB)
        segments.close()
        fill_up(directory)
        segments = SegmentFiles(OsDisk(), wal, 64 * MIB)
        segments.open_for_append(begin + 5 * MIB)
        segments.erase_rest(begin + 5 * MIB)
        assert segments.read(begin + 5 * MIB - 1, 4 * MIB) == b"x" + bytes(4 * MIB - 1)
        segments.close()


def fill_up(directory: Path) -> None:
    """Leave no byte free."""
    with (directory / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4 * KIB))
