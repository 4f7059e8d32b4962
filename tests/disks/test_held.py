"""A node takes its disks, tells them apart, and never takes one that lost its shards for an empty one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import DataDirectoryLocked, DataDirectoryUnusable, DiskFull
from lsmq_node.disks import NodeDisks, NodeFile, held_disks
from lsmq_node.disks.held import NodeDisk
from lsmq_node.disks.mark import MARK_FILE, DiskMark
from lsmq_node.disks.node_file import write_durably
from lsmq_node.settings import InvalidConfig

SHARDS = 4


def anybody(file: NodeFile) -> None:
    """Whose the first disk is does not matter."""


@contextmanager
def held(*disks: Path) -> Iterator[NodeDisks]:
    with held_disks(disks, NodeFile(SHARDS), anybody) as found:
        yield found


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """Three disks of a node, with four shards: 0 and 3 on the first, 1 on the second, 2 on the third."""
    paths = [tmp_path / name for name in ("d1", "d2", "d3")]
    with held(*paths) as found:
        for shard in range(SHARDS):
            (found.place(shard) / "MANIFEST").write_text(f"{shard}")
    return paths


def where(found: NodeDisks) -> dict[int, str | None]:
    places = {shard: found.find(shard) for shard in range(SHARDS)}
    return {shard: None if place is None else place.parent.name for shard, place in places.items()}


def lost(found: NodeDisks) -> dict[str, str]:
    return {disk.path.name: disk.lost for disk in found.all if disk.lost is not None}


def formats(first: Path) -> int:
    return int(json.loads((first / "node.json").read_text())["format"])


def test_shards_are_spread_and_found_where_they_are(disks: list[Path]) -> None:
    with held(*disks) as found:
        assert where(found) == {0: "d1", 1: "d2", 2: "d3", 3: "d1"}
        assert found.shards_by_disk() == [[0, 3], [1], [2]]
        assert found.lost() == []


def test_the_name_of_a_new_directory_is_durable_before_anything_is_put_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    for _ in range(2):  # Whoever made it may have ended before.
        synced.clear()
        with held(tmp_path / "d1"):
            assert tmp_path in synced

    failure = OSError(errno.EIO, "Input/output error")

    def failing(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == tmp_path:
            raise failure

    monkeypatch.setattr(os, "fsync", failing)
    with (
        pytest.raises(DataDirectoryUnusable, match=r"the name of .*d1 cannot be made durable: Input/output"),
        held(tmp_path / "d1"),
    ):
        pass
    failure = OSError(errno.EINVAL, "no directory is synced there")
    with held(tmp_path / "d1") as found:
        assert found.lost() == []
    failure = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "d1")
    with held(tmp_path / "d1") as found:  # It has its name from elsewhere.
        assert found.lost() == []


def test_where_a_shard_lies_is_nowhere_written_down(disks: list[Path]) -> None:
    (disks[1] / "shard-1").rename(disks[2] / "shard-1")
    with held(*disks) as found:
        assert where(found)[1] == "d3"


def test_disks_are_known_in_any_order_and_under_other_names(disks: list[Path], tmp_path: Path) -> None:
    other = disks[1].rename(tmp_path / "other")
    for order in ((disks[0], disks[2], other), (disks[0], other, disks[2])):
        with held(*order) as found:
            assert where(found) == {0: "d1", 1: "other", 2: "d3", 3: "d1"}
    file = NodeFile.load(disks[0])
    assert file is not None and set(file.disks.values()) == {str(other), str(disks[2])}


def test_a_node_with_one_disk_has_the_format_that_earlier_releases_read(tmp_path: Path) -> None:
    with held(tmp_path / "d") as found:
        assert found.place(0) == tmp_path / "d" / "shard-0"
    assert json.loads((tmp_path / "d" / "node.json").read_text()) == {"format": 1, "shards": SHARDS}


def test_a_node_with_several_is_refused_by_earlier_releases(disks: list[Path]) -> None:
    assert formats(disks[0]) == 4


def test_a_disk_that_comes_later_is_used_for_what_comes(disks: list[Path], tmp_path: Path) -> None:
    with held(*disks, tmp_path / "d4") as found:
        assert found.place(9).parent == tmp_path / "d4"
    with held(*disks, tmp_path / "d4") as found:
        assert found.shards_by_disk() == [[0, 3], [1], [2], [9]]


def test_one_that_is_not_there_keeps_its_shards_from_being_found_and_nothing_else(disks: list[Path]) -> None:
    shutil.move(disks[1], disks[1].with_name("away"))
    with held(*disks) as found:
        assert where(found) == {0: "d1", 1: None, 2: "d3", 3: "d1"}
        assert "is not mounted, or was emptied or exchanged" in lost(found)["d2"]
        assert "forget" not in lost(found)["d2"], "a node of its own gives up nothing"
        assert str(disks[1]) in found.on_lost_disk(1).message
        assert found.place(9).parent != disks[1]
    assert not disks[1].exists(), "nothing is made in its place"
    shutil.move(disks[1].with_name("away"), disks[1])
    with held(*disks) as found:
        assert where(found)[1] == "d2" and lost(found) == {}


def test_one_that_was_emptied_is_not_taken_for_a_new_one(disks: list[Path]) -> None:
    shutil.rmtree(disks[1])
    disks[1].mkdir()
    with held(*disks) as found:
        assert where(found)[1] is None and "emptied" in lost(found)["d2"]
    assert list(disks[1].iterdir()) == []


def test_one_of_another_node_is_not_taken(disks: list[Path], tmp_path: Path) -> None:
    others = [tmp_path / "o1", tmp_path / "o2"]
    with held(*others) as found:
        for shard in range(SHARDS):
            found.place(shard)
    shutil.move(disks[1], tmp_path / "kept")
    shutil.move(others[1], disks[1])
    with held(*disks) as found:
        assert where(found)[1] is None, "though it has a shard of that number"
        assert "is a disk of another node" in lost(found)["d2"]
    with pytest.raises(InvalidConfig, match="it never was a disk of this node"), held(*others[:1], disks[2]):
        pass


def test_two_disks_that_changed_places_are_told_apart(disks: list[Path], tmp_path: Path) -> None:
    shutil.move(disks[1], tmp_path / "kept")
    shutil.move(disks[2], disks[1])
    shutil.move(tmp_path / "kept", disks[2])
    with held(*disks) as found:
        assert where(found) == {0: "d1", 1: "d3", 2: "d2", 3: "d1"} and lost(found) == {}


def test_a_copy_of_a_disk_is_refused(disks: list[Path], tmp_path: Path) -> None:
    shutil.copytree(disks[1], tmp_path / "copy")
    with pytest.raises(InvalidConfig, match="copies of one disk"), held(*disks, tmp_path / "copy"):
        pass


def test_a_shard_on_two_disks_is_refused_by_name(disks: list[Path]) -> None:
    shutil.copytree(disks[1] / "shard-1", disks[2] / "shard-1")
    with held(*disks) as found, pytest.raises(DataDirectoryUnusable, match="shard 1 lies on two disks") as refused:
        found.find(1)
    assert str(disks[1] / "shard-1") in refused.value.message and str(disks[2] / "shard-1") in refused.value.message


def test_a_first_directory_that_was_emptied_is_no_new_node(disks: list[Path]) -> None:
    shutil.rmtree(disks[0])
    with pytest.raises(InvalidConfig, match=r"has no node\.json"), held(*disks):
        pass
    with pytest.raises(InvalidConfig, match="name the node's own first directory first"), held(disks[1], disks[2]):
        pass
    assert not disks[0].exists()


def test_what_holds_something_else_is_refused(disks: list[Path], tmp_path: Path) -> None:
    strange = tmp_path / "strange"
    (strange / "shard-7").mkdir(parents=True)
    with pytest.raises(InvalidConfig, match="holds shard-7"), held(*disks, strange):
        pass
    (strange / "shard-7").rmdir()
    NodeFile(1).store(strange)
    with pytest.raises(InvalidConfig, match=r"holds node\.json"), held(*disks, strange):
        pass
    assert not (strange / MARK_FILE).exists()


def test_a_disk_that_is_named_no_more_is_missed(disks: list[Path]) -> None:
    with held(disks[0], disks[2]) as found:
        assert where(found)[1] is None and "no directory of data" in lost(found)["d2"]


def test_nobody_else_takes_a_disk_meanwhile(disks: list[Path]) -> None:
    with held(*disks):
        for first in (disks[0], disks[1]):
            with pytest.raises((DataDirectoryLocked, InvalidConfig)), held(first):
                pass
    with held(*disks):
        pass


def test_one_that_was_about_to_be_taken_is_taken_at_the_next_start(disks: list[Path], tmp_path: Path) -> None:
    file = NodeFile.load(disks[0])
    assert file is not None and file.token is not None
    (tmp_path / "d4").mkdir()
    DiskMark(file.token, "half-taken").store(tmp_path / "d4")
    with held(*disks, tmp_path / "d4") as found:
        assert lost(found) == {} and found.all[-1].id == "half-taken"


def test_a_damaged_mark_is_named_and_costs_the_disk_alone(disks: list[Path]) -> None:
    (disks[1] / MARK_FILE).write_text("{")
    with held(*disks) as found:
        assert where(found) == {0: "d1", 1: None, 2: "d3", 3: "d1"}
        assert "disk.json is damaged" in lost(found)["d2"]


def test_a_disk_that_goes_or_comes_back_meanwhile_is_noticed(disks: list[Path]) -> None:
    with held(*disks) as found:
        away = disks[1].rename(disks[1].with_name("away"))
        found.check()
        assert [disk.path for disk in found.unusable()] == [disks[1]] and found.lost() == []
        assert where(found)[1] is None and found.place(9).parent != disks[1]
        disks[1].mkdir()
        found.check()
        assert "not the disk any more" in str(found.unusable()[0].failing)
        disks[1].rmdir()
        away.rename(disks[1])
        found.check()
        assert found.unusable() == [] and where(found)[1] == "d2"


def copied(directory: Path) -> Path:
    """As it was at this moment."""
    return Path(shutil.copytree(directory, directory.with_name(f"{directory.name}-older")))


def put_back(older: Path, directory: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(older, directory)


def test_an_older_copy_of_a_disk_is_not_used(disks: list[Path]) -> None:
    older = copied(disks[1])
    with held(*disks):
        pass
    newer = disks[1].rename(disks[1].with_name("newer"))
    older.rename(disks[1])
    for _ in range(2):
        with held(*disks) as found:
            assert where(found) == {0: "d1", 1: None, 2: "d3", 3: "d1"}
            assert "is an older copy" in lost(found)["d2"] and "lsmq repair" in lost(found)["d2"]
    put_back(newer, disks[1])
    with held(*disks) as found:
        assert where(found)[1] == "d2" and lost(found) == {}


def test_an_older_first_disk_is_refused_before_it_does_harm(disks: list[Path]) -> None:
    older = copied(disks[0])
    with held(*disks):
        pass
    put_back(older, disks[0])
    before = [sorted(disk.rglob("*")) for disk in disks]
    for _ in range(2):
        with pytest.raises(InvalidConfig, match="d1 is an older copy: the node has started since with"), held(*disks):
            pass
    assert [sorted(disk.rglob("*")) for disk in disks] == before


def test_older_copies_of_all_disks_are_a_node(disks: list[Path]) -> None:
    older = [copied(disk) for disk in disks]
    with held(*disks):
        pass
    for old, disk in zip(older, disks, strict=True):
        put_back(old, disk)
    with held(*disks) as found:
        assert lost(found) == {}


def test_a_disk_that_was_away_for_some_starts_is_no_older_copy(disks: list[Path]) -> None:
    away = disks[1].rename(disks[1].with_name("away"))
    for _ in range(3):
        with held(*disks) as found:
            assert list(lost(found)) == ["d2"]
    away.rename(disks[1])
    with held(*disks) as found:
        assert lost(found) == {}


@pytest.mark.parametrize("away", [False, True])
def test_a_start_that_is_killed_anywhere_makes_no_disk_an_older_copy(disks: list[Path], away: bool) -> None:
    """Also where a disk is away at the start behind the one that was killed."""
    step, killed = 0, True
    while killed:
        step += 1
        killed = started_and_killed(step, disks)
        if away:
            disks[1].rename(disks[1].with_name("away"))
            with held(*disks) as found:
                assert list(lost(found)) == ["d2"], step
            disks[1].with_name("away").rename(disks[1])
        with held(*disks) as found:
            assert lost(found) == {}, step
    assert step > 8


def started_and_killed(step: int, disks: list[Path]) -> bool:
    """A start that dies before its rename or sync of that number; whether it did."""
    child = os.fork()
    if child == 0:
        left = step

        def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)
                return operation(*arguments, **named)

            return run

        try:
            Path.rename, os.fsync = counted(Path.rename), counted(os.fsync)  # type: ignore[method-assign]
            with held(*disks):
                pass
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_full_disk_is_used_and_not_taken_for_an_older_copy(
    disks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    full: set[Path] = set()

    def nothing_fits(file: Path, text: str) -> None:
        if file.parent in full:
            raise DiskFull("no space is left")
        write_durably(file, text)

    monkeypatch.setattr("lsmq_node.disks.mark.write_durably", nothing_fits)
    monkeypatch.setattr("lsmq_node.disks.node_file.write_durably", nothing_fits)
    for are_full in (disks[1:2], disks[:1], disks, []):
        full = set(are_full)
        with held(*disks) as found:
            assert lost(found) == {} and where(found) == {0: "d1", 1: "d2", 2: "d3", 3: "d1"}


def test_starts_of_a_member_of_a_cluster_are_not_counted(tmp_path: Path) -> None:
    paths, file = [tmp_path / "d1", tmp_path / "d2"], NodeFile(2, "lsmq", "n1")
    with held_disks(paths, file, anybody):
        pass
    older = copied(paths[1])
    with held_disks(paths, file, anybody):
        pass
    put_back(older, paths[1])
    with held_disks(paths, file, anybody) as found:
        assert found.lost() == [], "its replicas are known by starts of their own"


def test_a_disk_that_was_forgotten_is_refused_until_it_is_emptied(disks: list[Path]) -> None:
    shutil.move(disks[1], disks[1].with_name("away"))
    with held(*disks) as found:
        found.forget(found.lost())
        assert [disk.path.name for disk in found.all] == ["d1", "d3"] and found.unusable() == []
    shutil.move(disks[1].with_name("away"), disks[1])
    with held(*disks) as found:
        assert where(found)[1] is None and "was told to forget" in lost(found)["d2"]
    shutil.rmtree(disks[1])
    with held(*disks) as found:
        assert lost(found) == {} and found.place(1).parent == disks[1]


def test_what_is_said_of_a_lost_shard_does_not_break_where_its_disk_is_back(
    disks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread looks at disks every few seconds: one may be usable by the time that it is named."""
    problem = NodeDisk.problem
    assert isinstance(problem, property)

    def back_by_then(disk: NodeDisk) -> str | None:
        said: str | None = problem.__get__(disk)
        if disk.path == disks[1]:
            thread = threading.Thread(target=found.check)
            thread.start()
            thread.join()
        return said

    with held(*disks) as found:
        mark = (disks[1] / MARK_FILE).read_bytes()
        (disks[1] / MARK_FILE).unlink()
        found.check()
        assert found.all[1].problem is not None
        (disks[1] / MARK_FILE).write_bytes(mark)
        monkeypatch.setattr(NodeDisk, "problem", property(back_by_then))
        assert "is not the disk any more" in found.on_lost_disk(1).message
        assert "is back by now" in found.on_lost_disk(1).message


def test_a_file_in_the_place_of_the_directory_is_called_so_and_stays(tmp_path: Path) -> None:
    (place := tmp_path / "notes").write_text("mine")
    with pytest.raises(DataDirectoryUnusable, match="notes is no directory"), held(place):
        pass
    assert place.read_text() == "mine"
