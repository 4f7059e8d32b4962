"""What befalls the disks of a node of its own: real file systems that become read-only, full, broken, or go back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from backups.commands import lsmq
from support.mounts import bound, ext4, tmpfs
from support.node_process import NodeProcess, StartFailed
from support.waiting import eventually

from .calls import Api
from .test_disks import MIB, QUEUES, SHARDS, Disks
from .test_start import failure

NodeMaker = Callable[..., NodeProcess]

SMALL = {"segment_bytes": MIB, "memtable_bytes": 2 * MIB, "max_message_bytes": MIB // 4, "min_free_bytes": 4 * MIB}


def filled(directory: Path) -> Path:
    """Nothing more fits beside this file."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(4096))
    return filler


@pytest.fixture
def disks(make_node: NodeMaker, tmp_path: Path) -> Disks:
    return Disks(make_node, tmp_path)


@pytest.fixture
def small(make_node: NodeMaker, tmp_path: Path) -> Iterator[Disks]:
    """On two file systems of their own."""
    with tmpfs(tmp_path / "d1", "size=64m"), tmpfs(tmp_path / "d2", "size=64m"):
        disks = Disks(make_node, tmp_path, **SMALL)
        yield disks
        if disks.node.alive:
            disks.node.kill9()


def test_an_older_copy_of_a_disk_gives_no_offset_a_second_time(disks: Disks, tmp_path: Path) -> None:
    disks.made()
    disks.node.stop()
    shutil.copytree(disks.second, tmp_path / "older")
    disks.start()
    for queue in range(QUEUES):
        disks.send(queue)
    disks.node.kill9()
    newer = disks.second.rename(tmp_path / "newer")
    (tmp_path / "older").rename(disks.second)
    disks.start()
    assert "is an older copy" in disks.refused(1)["message"]
    assert disks.all_there(0, 2) and "is an older copy" in disks.warnings()[0]
    disks.node.stop()
    shutil.rmtree(disks.second)
    newer.rename(disks.second)
    disks.start()
    assert disks.all_there() and disks.warnings() == []


def test_an_older_first_disk_deletes_nothing_on_the_others(disks: Disks, tmp_path: Path, make_node: NodeMaker) -> None:
    disks.made()
    disks.node.stop()
    older = Path(shutil.copytree(disks.first, tmp_path / "older"))
    api = disks.start()
    api.create("later", QUEUES)
    for queue in range(QUEUES):
        api.send("later", {"queue": queue, "body": "kept"})
    disks.node.stop()
    newer = disks.first.rename(tmp_path / "newer")
    older.rename(disks.first)
    assert f"{disks.first} is an older copy" in failure(disks.node)
    both = f"{disks.first},{disks.second}"
    lsmq("", "repair", both, "--out", tmp_path / "saved")
    saved = Api(make_node(tmp_path / "saved", shards=SHARDS).start().url)
    assert saved.bodies("later", 1) == ["kept"], "the topic is known by the second disk alone"
    shutil.rmtree(disks.first)
    newer.rename(disks.first)
    api = disks.start()
    assert disks.all_there() and all(api.bodies("later", queue) == ["kept"] for queue in range(QUEUES))


def test_a_disk_that_becomes_read_only_is_named_and_its_shards_go_to_another(
    make_node: NodeMaker, tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "d1", "size=128m"), ext4(tmp_path / "d2", tmp_path / "image", 128 * MIB):
        disks = Disks(make_node, tmp_path, **SMALL)
        try:
            api = disks.made()
            subprocess.run(["mount", "-o", "remount,abort", str(disks.second)], check=True)
            eventually(lambda: api.metric("lsmq_disk_usable") == 1, "it is said to be of no use")
            assert any("Read-only file system" in warning for warning in disks.warnings())
            disks.send(0)
            assert api.send("t", {"queue": 1, "body": "x"}, status=503).code == "shard_stopped"
            disks.node.kill9()
            disks.start()
            assert disks.all_there(0, 2) and "Read-only file system" in disks.refused(1)["message"]
            disks.node.stop()
            both = f"{disks.first},{disks.second}"
            said = lsmq("", "disk", "forget", disks.second, "--data", both, code=1)
            assert "can be used" not in said and "with its disk.json, on another one" in said
            third = Path(shutil.copytree(disks.second, tmp_path / "d3"))
            disks.node.data = Path(f"{disks.first},{third}")
            disks.start()
            assert disks.all_there() and disks.warnings() == []
        finally:
            if disks.node.alive:
                disks.node.kill9()


def test_a_disk_without_a_byte_left_at_the_start_is_read_and_costs_others_nothing(small: Disks) -> None:
    small.made()
    filler = filled(small.second)
    small.node.kill9()
    small.start()
    for queue in (0, 2):
        small.send(queue)
    assert small.all_there() and not small.takes(1)
    small.node.kill9()
    filler.unlink()
    small.start()
    assert small.all_there() and small.warnings() == []
    filler = filled(small.first)
    small.node.kill9()
    small.start()
    assert small.all_there() and not small.takes(0) and small.takes(1)
    small.node.kill9()
    filler.unlink()
    small.start()
    assert small.all_there() and small.warnings() == []


def test_a_topic_that_a_full_disk_has_not_heard_of_keeps_no_node_from_starting(small: Disks) -> None:
    small.made()
    small.node.stop()
    away = small.second.with_name("away")
    with moved_mount(small.second, away):
        small.start()
        small.api.create("new", QUEUES)
        small.node.stop()
    filler = small.second / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small.second).free - 5 * MIB // 2))

    def taken(queue: int) -> bool:
        return small.api.send("new", {"queue": queue, "body": "x"}, status=None).status == 200

    small.start()
    assert small.all_there() and any(warning.startswith("topics:") for warning in small.warnings())
    assert not taken(1)
    filler.unlink()

    for queue in range(QUEUES):
        eventually(lambda: taken(queue), "there is room")  # noqa: B023


@contextmanager
def moved_mount(directory: Path, away: Path) -> Iterator[None]:
    """What is mounted in a directory is not there meanwhile."""
    away.mkdir()
    subprocess.run(["mount", "--make-private", str(directory)], check=False)
    subprocess.run(["mount", "--bind", str(directory), str(away)], check=True)
    subprocess.run(["umount", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "--bind", str(away), str(directory)], check=True)
        subprocess.run(["umount", str(away)], check=True)


def test_damage_on_a_further_disk_costs_the_shard_alone(disks: Disks, tmp_path: Path, make_node: NodeMaker) -> None:
    disks.made()
    disks.node.stop()
    manifest = disks.second / "shard-1" / "MANIFEST"
    manifest.write_bytes(b"?" * manifest.stat().st_size)
    disks.start()
    assert disks.all_there(0, 2, 3) and "MANIFEST" in disks.refused(1)["message"]
    assert any("shard 1" in warning and "lsmq repair" in warning for warning in disks.warnings())
    disks.node.stop()
    both = f"{disks.first},{disks.second}"
    lsmq("", "repair", both, "--out", tmp_path / "saved", code=1)
    saved = Api(make_node(tmp_path / "saved", shards=SHARDS).start().url)
    assert all(saved.bodies("t", queue) == [f"{queue}-0"] for queue in (0, 2, 3))


def test_one_disk_by_two_names_is_refused(make_node: NodeMaker, tmp_path: Path) -> None:
    real, other = tmp_path / "real", tmp_path / "other"
    real.mkdir()
    with bound(other, real):
        for data in (f"{tmp_path / 'd1'},{real},{other}", f"{real},{other}"):
            with pytest.raises(StartFailed, match=f"{other}, which are one directory"):
                make_node(Path(data), shards=SHARDS).start()
        assert not any(real.iterdir())
        node = make_node(Path(f"{tmp_path / 'd1'},{real}"), shards=SHARDS)
        node.start()
        node.stop()
        node.data = Path(f"{tmp_path / 'd1'},{real},{other}")
        with pytest.raises(StartFailed, match=f"{other}, which are one directory"):
            node.start()


def test_disks_come_and_go_over_many_starts(disks: Disks) -> None:
    disks.made()
    away = disks.second.with_name("away")
    for round in range(10):
        disks.node.kill9() if round % 2 else disks.node.stop()
        gone = round % 3 == 1
        if gone:
            disks.second.rename(away)
        disks.start()
        for queue in (0, 2) if gone else range(QUEUES):
            disks.send(queue)
        if gone:
            disks.node.kill9()
            away.rename(disks.second)
            disks.start()
        assert disks.all_there() and disks.warnings() == []


def test_the_disk_of_another_node_is_not_repaired_as_ones_own(
    disks: Disks, make_node: NodeMaker, tmp_path: Path
) -> None:
    other = Disks(make_node, tmp_path / "other")
    for each in (disks, other):
        each.made()
        each.node.stop()
    mixed = f"{disks.first},{other.second}"
    for command in (("verify", mixed), ("repair", mixed, "--out", tmp_path / "saved")):
        assert "is a disk of another node" in lsmq("", *command, code=1)
    assert not (tmp_path / "saved").exists()
