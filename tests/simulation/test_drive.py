"""A disk of a world that the storage engine's tests use alone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmq_lab.world.disk import PowerCut
from lsmq_lab.world.drive import Drive, drives

ROOT = Path("/data")


@pytest.fixture
def drive() -> Iterator[Drive]:
    with drives():
        yield Drive(ROOT)


def write(drive: Drive, name: str, content: bytes, *, sync: bool) -> None:
    file = drive.create(ROOT / name)
    file.pwrite(content, 0)
    if sync:
        file.sync()
        drive.sync_directory(ROOT)


def test_each_power_cut_leaves_what_was_synced_and_any_part_of_the_rest(drive: Drive) -> None:
    write(drive, "safe", b"a" * 9_000, sync=True)
    write(drive, "torn", b"b" * 9_000, sync=True)
    drive.open(ROOT / "torn", write=True).pwrite(b"c" * 9_000, 0)
    write(drive, "new", b"d" * 9_000, sync=False)
    left = [drive.power_cut(seed).files() for seed in range(40)]
    assert {files[ROOT / "safe"] for files in left} == {b"a" * 9_000}
    assert {b"b" * 9_000, b"c" * 9_000} < {files[ROOT / "torn"] for files in left}
    assert {None, b"d" * 9_000} < {files.get(ROOT / "new") for files in left}
    assert drive.kill().files()[ROOT / "torn"] == b"c" * 9_000


def test_who_is_left_over_after_a_power_cut_can_do_nothing(drive: Drive) -> None:
    write(drive, "file", b"old", sync=True)
    file = drive.open(ROOT / "file", write=True)
    after = drive.power_cut()
    for attempt in (
        lambda: file.pwrite(b"new", 0),
        lambda: file.pread(3, 0),
        file.sync,
        lambda: drive.create(ROOT / "other"),
        lambda: drive.rename(ROOT / "file", ROOT / "other"),
        lambda: drive.remove(ROOT / "file"),
        lambda: drive.list(ROOT),
    ):
        with pytest.raises(PowerCut):
            attempt()
    assert after.files() == {ROOT / "file": b"old"}


def test_two_names_of_a_file_stay_two_names_of_it(drive: Drive) -> None:
    write(drive, "one", b"old", sync=True)
    drive.link(ROOT / "one", ROOT / "two")
    drive.sync_directory(ROOT)
    for after in (drive.kill(), drive.power_cut(1)):
        after.open(ROOT / "one", write=True).pwrite(b"new", 0)
        assert after.content(ROOT / "two") == b"new"


def test_the_nth_operation_fails_half_done_and_space_ends_where_it_is_said(drive: Drive) -> None:
    write(drive, "file", b"", sync=True)
    file = drive.open(ROOT / "file", write=True)
    point = drive.at(2, errno.EIO, ("write",))
    file.pwrite(b"x" * 1_000, 0)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.pwrite(b"y" * 1_000, 1_000)
    assert point.hits == 1
    assert 1_000 <= file.size() <= 2_000
    drive.capacity_bytes = drive.used_bytes + 500
    assert drive.free_bytes(ROOT) <= 500
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.pwrite(b"z" * 1_000, file.size())
    assert drive.used_bytes == drive.capacity_bytes
    assert drive.log[-1] == "write file"


def test_a_sync_that_failed_is_never_made_good_by_another(drive: Drive) -> None:
    write(drive, "file", b"old", sync=True)
    file = drive.open(ROOT / "file", write=True)
    file.pwrite(b"new", 0)
    drive.at(1, errno.EIO, ("sync",))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.sync()
    file.sync()
    assert {drive.power_cut(seed).content(ROOT / "file") for seed in range(30)} >= {b"old", b"new"}


def test_threads_use_it_at_once(drive: Drive) -> None:
    def work(number: int) -> None:
        for at in range(50):
            write(drive, f"{number}-{at}", b"x" * at, sync=True)
            drive.remove(ROOT / f"{number}-{at - 1}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drive.sync_directory(ROOT)
    assert drive.power_cut(3).files() == {ROOT / f"{number}-49": b"x" * 49 for number in range(4)}


def test_a_drive_without_its_scope_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"within drives\(\)"):
        Drive(ROOT)
