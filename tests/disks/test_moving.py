"""Shards go to other disks of a node that does not run, and disks are forgotten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import DataDirectoryLocked, DataDirectoryUnusable, DiskFull, InvalidRequest
from lsmq_node.disks import NodeFile, held_disks
from lsmq_node.disks import held as held_module
from lsmq_node.disks.held import NodeDisk
from lsmq_node.disks.looking import shard_directory
from lsmq_node.disks.mark import MARK_FILE
from lsmq_node.disks.moving import forget_disk, move_shard
from lsmq_node.storage import DirectoryLock, ShardStore, StoreOptions

from .test_held import anybody, held, where

SMALL = StoreOptions(segment_bytes=64 << 10, memtable_bytes=1 << 20, max_message_bytes=1 << 18)
WRITTEN = {"MANIFEST": b"m" * 100, "wal/1.wal": b"w" * 70_000, "tables/1.tbl": b"t" * (3 << 20), "tables/2.tbl": b""}


def written(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "LOCK"
    }


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """Two disks: shards 0 and 2 on the first, 1 and 3 on the second."""
    paths = [tmp_path / "d1", tmp_path / "d2"]
    with held(*paths) as found:
        for shard in range(4):
            directory = found.place(shard)
            for name, content in WRITTEN.items():
                (directory / name).parent.mkdir(exist_ok=True)
                (directory / name).write_bytes(content + b"%d" % shard)
    return paths


def is_whole(disks: list[Path], shard: int) -> bool:
    """Whether the next start finds it, once, and all of it."""
    with held(*disks) as found:
        place = found.find(shard)
        assert place is not None and place.name == f"shard-{shard}"
        left = [path for disk in disks for path in disk.glob("shard-*.*")]
    return not left and written(place) == {name: content + b"%d" % shard for name, content in WRITTEN.items()}


def test_a_shard_goes_to_another_disk_with_all_that_it_has(disks: list[Path]) -> None:
    copied: list[int] = []

    def begin(total: int) -> Callable[[int], None]:
        copied.append(-total)
        return copied.append

    assert move_shard(disks, 2, disks[1], begin=begin) == disks[1] / "shard-2"
    assert sum(copied) == 0 and len(copied) > 2
    assert is_whole(disks, 2) and not (disks[0] / "shard-2").exists()
    assert move_shard(disks, 2, disks[1]) == disks[1] / "shard-2", "it is there"
    assert move_shard(disks, 2, disks[0]) == disks[0] / "shard-2"
    assert is_whole(disks, 2)


def test_a_disk_that_comes_is_filled_by_moves(disks: list[Path], tmp_path: Path) -> None:
    all_disks = [*disks, tmp_path / "d3"]
    move_shard(all_disks, 1, tmp_path / "d3")
    with held(*all_disks) as found:
        assert where(found) == {0: "d1", 1: "d3", 2: "d1", 3: "d2"}


def test_a_move_of_a_shard_that_there_is_not_takes_no_disk(disks: list[Path], tmp_path: Path) -> None:
    before = (disks[0] / "node.json").read_bytes()
    with pytest.raises(InvalidRequest, match="shard 9 is on none of the disks"):
        move_shard([*disks, tmp_path / "d3"], 9, tmp_path / "d3")
    assert not (tmp_path / "d3").exists() and (disks[0] / "node.json").read_bytes() == before


def killed_at(step: int, disks: list[Path], shard: int, to: Path) -> bool:
    """Move in a process that dies before the operation of that number; whether it did."""
    child = os.fork()
    if child == 0:
        count = 0

        def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count == step:
                    os._exit(9)
                return operation(*arguments, **named)

            return run

        try:
            Path.rename = counted(Path.rename)  # type: ignore[method-assign]
            Path.mkdir = counted(Path.mkdir)  # type: ignore[method-assign]
            os.unlink, os.rmdir, os.fsync = counted(os.unlink), counted(os.rmdir), counted(os.fsync)
            move_shard(disks, shard, to)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 9


def test_a_move_that_is_killed_anywhere_leaves_the_shard_whole_on_one_disk(disks: list[Path]) -> None:
    places, step, here = set(), 1, 0
    while killed_at(step, disks, 2, disks[1 - here]):
        assert is_whole(disks, 2), step
        here = int((disks[1] / "shard-2").exists())
        places.add(here)
        if here:
            move_shard(disks, 2, disks[0])
            here = 0
        step += 1
    assert places == {0, 1} and step > 20, "it was killed before and behind the moment that decides"
    assert is_whole(disks, 2)


def test_a_shard_whose_new_disk_is_away_is_not_taken_from_what_it_left(disks: list[Path], tmp_path: Path) -> None:
    moved = disks[0] / "shard-2"
    shutil.copytree(moved, disks[1] / "shard-2.moving")
    moved.rename(moved.with_name("shard-2.moved"))
    shutil.move(disks[1], tmp_path / "away")
    with held(*disks) as found:
        assert found.find(2) is None and found.unusable()
    shutil.move(tmp_path / "away", disks[1])
    assert is_whole(disks, 2) and (disks[1] / "shard-2").exists()


def test_what_cannot_move_stays(disks: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for shard, to, why in (
        (0, disks[1], "stays in its first"),
        (9, disks[1], "shard 9 is on none of the disks"),
        (2, tmp_path / "d9", "none of the node's directories"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            move_shard(disks, shard, to)
    with pytest.raises(InvalidRequest, match="not the first directory of a node"):
        move_shard([tmp_path / "nothing"], 0, disks[1])
    with held_disks(disks, NodeFile(4), anybody), pytest.raises(DataDirectoryLocked):
        move_shard(disks, 2, disks[1])
    lock = DirectoryLock(disks[0] / "shard-2")
    with pytest.raises(DataDirectoryLocked):
        move_shard(disks, 2, disks[1])
    lock.release()
    with monkeypatch.context() as patch:
        patch.setattr(NodeDisk, "measure", lambda disk: None)  # As a disk that has nothing left.
        with pytest.raises(DiskFull, match="has 0 MiB left"):
            move_shard(disks, 2, disks[1])
    assert is_whole(disks, 2) and (disks[0] / "shard-2").exists()


def test_a_replica_of_a_cluster_may_leave_the_first_disk(tmp_path: Path) -> None:
    paths, file = [tmp_path / "d1", tmp_path / "d2"], NodeFile(1, "lsmq", "n1")
    with held_disks(paths, file, anybody) as found:
        ShardStore.open(found.place(0), SMALL, replicated=True).close()
    move_shard(paths, 0, paths[1])
    ShardStore.open(shard_directory(paths[1], 0), SMALL, replicated=True).close()


def test_of_a_node_in_several_processes_those_of_one_are_to_be_named(tmp_path: Path) -> None:
    NodeFile(2, processes=2).store(tmp_path)
    with pytest.raises(InvalidRequest, match=f"--data {tmp_path}/p0"):
        move_shard([tmp_path], 0, tmp_path)


def test_a_process_of_a_node_of_its_own_gives_up_nothing_unasked(tmp_path: Path) -> None:
    paths, file = [tmp_path / "d1" / "p0", tmp_path / "d2" / "p0"], NodeFile(2, "local", "p0")
    paths[0].mkdir(parents=True)
    NodeFile(2, processes=2).store(tmp_path / "d1")
    with held_disks(paths, file, anybody) as found:
        for shard in range(2):
            found.place(shard)
    away = paths[1].rename(tmp_path / "away")
    with pytest.raises(InvalidRequest, match="which have nothing twice"):
        forget_disk(paths, paths[1])
    away.rename(paths[1])
    with held_disks(paths, file, anybody) as found:
        assert found.lost() == [] and found.shards() == [0, 1]
    shutil.rmtree(paths[1])
    assert forget_disk(paths, paths[1], accept_loss=True) == [0]


def test_a_process_leaves_a_disk_without_shards(tmp_path: Path) -> None:
    paths, file = [tmp_path / "d1" / "p0", tmp_path / "d2" / "p0"], NodeFile(2, "local", "p0")
    paths[0].mkdir(parents=True)
    NodeFile(2, processes=2).store(tmp_path / "d1")
    with held_disks(paths, file, anybody):
        pass
    assert forget_disk(paths[:1], paths[1]) == []


def test_a_member_of_a_cluster_leaves_a_disk_that_can_be_read_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, file = [tmp_path / "d1", tmp_path / "d2"], NodeFile(2, "lsmq", "n1")
    with held_disks(paths, file, anybody) as found:
        for shard in range(2):
            found.place(shard)
    locked = held_module.DirectoryLock

    def lock(directory: Path) -> DirectoryLock:
        if directory == paths[1]:
            raise DataDirectoryUnusable(f"{directory} cannot be written: Read-only file system")
        return locked(directory)

    with monkeypatch.context() as patch:
        patch.setattr(held_module, "DirectoryLock", lock)
        with held_disks(paths, file, anybody) as found:
            assert [disk.path for disk in found.lost()] == [paths[1]]
        assert forget_disk(paths, paths[1]) == [0]
    with held_disks(paths, file, anybody) as found:
        assert "was told to forget" in str(found.all[1].lost) and found.find(1) is None


def test_a_disk_without_shards_is_forgotten_and_the_format_goes_back(disks: list[Path]) -> None:
    with pytest.raises(InvalidRequest, match="has the shards 1, 3"):
        forget_disk(disks, disks[1])
    for shard in (1, 3):
        move_shard(disks, shard, disks[0])
    assert forget_disk(disks, disks[1]) == [0, 1, 2, 3]
    assert not (disks[1] / MARK_FILE).exists()
    file = NodeFile.load(disks[0])
    assert file is not None and not file.disks
    assert '"format": 1' in (disks[0] / "node.json").read_text()
    with held(disks[0]) as found:
        assert found.lost() == []


def test_a_node_of_its_own_gives_up_nothing(disks: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no further disk"):
        forget_disk(disks, disks[0])
    shutil.move(disks[1], tmp_path / "away")
    with pytest.raises(InvalidRequest, match="shards 1, 3 are on no other disk"):
        forget_disk(disks, disks[1])


def test_a_member_of_a_cluster_gives_up_what_a_lost_disk_had(tmp_path: Path) -> None:
    paths, file = [tmp_path / "d1", tmp_path / "d2"], NodeFile(2, "lsmq", "n1")
    with held_disks(paths, file, anybody) as found:
        for shard in range(2):
            found.place(shard)
    shutil.rmtree(paths[1])
    assert forget_disk(paths, paths[1]) == [0]
    paths[1].mkdir()
    with held_disks(paths, file, anybody) as found:
        assert found.lost() == [] and found.find(1) is None and found.place(1).parent == paths[1]


def test_a_disk_that_cannot_be_read_does_not_take_moves(disks: list[Path]) -> None:
    (disks[1] / MARK_FILE).unlink()
    with pytest.raises(DataDirectoryUnusable, match="is not mounted"):
        move_shard(disks, 2, disks[1])
    assert (disks[0] / "shard-2" / "MANIFEST").exists()
