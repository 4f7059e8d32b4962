"""Snapshots that arrive: gathered in pieces, described, checked, and put in a store's place whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import crc32c
import pytest

from lsmq.cli import main
from lsmq.errors import (
    CorruptFile,
    DataDirectoryLocked,
    DiskFull,
    InvalidRequest,
    UnsupportedFormat,
)
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore
from lsmq_node.storage.dump import dump_manifest, dump_snapshot
from lsmq_node.storage.epochs import StoredEpochStart
from lsmq_node.storage.snapshot import SnapshotManifest, decode_snapshot, encode_snapshot
from lsmq_node.storage.snapshot_install import install
from lsmq_node.storage.snapshot_target import SnapshotTarget
from support.extent import part_of
from support.waiting import eventually

from .golden_files import GOLDEN, snapshot
from .harness import abandon, flush, merge, no_threads, tiny
from .leading import Leader, catch_up, open_replica, shown
from .snapshots import copy, take


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with ShardStore.open(tmp_path / "source", tiny(), replicated=True) as store:
        yield Leader(store)


# -- gathering -------------------------------------------------------------------------------------------


def test_what_came_is_kept_over_a_restart_and_compared_by_checksums(leader: Leader, tmp_path: Path) -> None:
    leader.write_much()
    path = tmp_path / "target"
    with leader.store.export_snapshot() as export:
        target = SnapshotTarget(path, export.snapshot)
        assert target.held_bytes == 0
        assert len(target.missing()) == len(export.snapshot.files) > 1
        first, second = export.snapshot.files[:2]
        target.write(first.name, 0, export.read(first.name, 0, first.size_bytes))
        target.complete(first.name)
        target.write(second.name, 0, export.read(second.name, 0, 100))
        with pytest.raises(InvalidRequest, match="not complete"):
            target.finish()
        with pytest.raises(InvalidRequest, match="has 100 bytes"):
            target.complete(second.name)
        with pytest.raises(InvalidRequest, match="ends at 100"):
            target.write(second.name, 150, b"later")
        with pytest.raises(InvalidRequest, match="ends at 100"):
            target.write(second.name, 100, bytes(second.size_bytes))
        target.close()
        (path / "incoming" / "000000777777.tbl").write_bytes(b"of another snapshot")
        again = SnapshotTarget(path, export.snapshot)
        assert again.held(first.name) == first.size_bytes
        assert again.held(second.name) == 100
        assert again.checksum(first.name, 0, first.size_bytes) == export.checksum(first.name, 0, first.size_bytes)
        assert again.checksum(first.name, 0, 50) != export.checksum(first.name, 1, 50)
        again.keep(second.name, 40)
        copy(export, again)
        assert {item.name for item in (path / "incoming").iterdir()} == {
            "SNAPSHOT",
            *(file.name for file in export.snapshot.files),
        }
        with pytest.raises(DiskFull, match="MiB more"):
            again.check_space(1 << 60)
    install(path)
    with open_replica(path) as store:
        assert shown(store) == shown(leader.store)


def test_a_complete_snapshot_is_not_complete_any_more_when_another_begins(leader: Leader, tmp_path: Path) -> None:
    leader.write_much(20)
    take(leader.store, tmp_path / "target")
    leader.write_much(2)
    with leader.store.export_snapshot() as export:
        target = SnapshotTarget(tmp_path / "target", export.snapshot)
        assert target.held_bytes, "tables that both have are kept"
        with pytest.raises(InvalidRequest, match="no complete snapshot"):
            install(tmp_path / "target")
        for file in target.missing():
            if target.held(file.name) and not file.name.endswith(".tbl"):
                target.keep(file.name, 0)
        copy(export, target)
    install(tmp_path / "target")
    with open_replica(tmp_path / "target") as store:
        assert shown(store) == shown(leader.store)


def test_a_flipped_byte_anywhere_in_a_file_is_found(leader: Leader, tmp_path: Path) -> None:
    leader.write_much(60)
    with leader.store.export_snapshot() as export:
        target = SnapshotTarget(tmp_path / "target", export.snapshot)
        for file in export.snapshot.files:
            whole = export.read(file.name, 0, file.size_bytes)
            places = {*range(0, file.size_bytes, 97), *range(max(0, file.size_bytes - 200), file.size_bytes)}
            for at in sorted(places):
                damaged = bytearray(whole)
                damaged[at] ^= 0x40
                target.write(file.name, 0, damaged)
                with pytest.raises((CorruptFile, UnsupportedFormat)):
                    target.complete(file.name)
                target.keep(file.name, 0)
            target.write(file.name, 0, whole)
            target.complete(file.name)
        target.finish()


def test_a_checkpoint_of_another_snapshot_is_refused(leader: Leader, tmp_path: Path) -> None:
    leader.write_much(20)
    leader.store.flush()
    with leader.store.export_snapshot() as export:
        known = export.snapshot.manifest.checkpoint
        checkpoint = export.snapshot.files[len(known) - 1]
        mixed = SnapshotManifest(export.snapshot.manifest, (StoredEpochStart(77, known[-1].first_lsn, 7, 1),))
        target = SnapshotTarget(tmp_path / "target", mixed)
        target.write(checkpoint.name, 0, export.read(checkpoint.name, 0, checkpoint.size_bytes))
        with pytest.raises(CorruptFile, match="another snapshot"):
            target.complete(checkpoint.name)
        assert target.held(checkpoint.name) == 0


# -- the description -------------------------------------------------------------------------------------


def test_a_golden_snapshot_manifest_is_read() -> None:
    found = decode_snapshot((GOLDEN / "SNAPSHOT").read_bytes(), "SNAPSHOT")
    assert (found.applied_lsn, found.epochs) == (4_096, ((1, 0, 21, 2), (4, 2_048, 22, 5)))
    checkpoint, table = ["000000000003.ckp", "000000000005.ckp"], "000000000004.tbl"
    assert [file.name for file in found.files] == [*checkpoint, table, table]
    assert encode_snapshot(found) == snapshot()


def test_a_dumped_snapshot_manifest_shows_where_it_was_taken_and_what_is_in_it() -> None:
    head, *rest = dump_snapshot(GOLDEN / "SNAPSHOT")
    assert (head["applied_lsn"], head["epochs"]) == (4_096, [[1, 0, 21, 2], [4, 2_048, 22, 5]])
    assert rest == list(dump_manifest(GOLDEN / "MANIFEST"))


@pytest.mark.parametrize("kind", ["manifest", "snapshot"])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_dumps_are_printed(kind: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dump", kind, str(GOLDEN / kind.upper()), *arguments])
    assert ended.value.code == 0
    assert "000000000004.tbl" in capsys.readouterr().out


def test_a_dumped_checkpoint_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dump", "checkpoint", str(GOLDEN / "000000000007.ckp")])
    assert ended.value.code == 0
    assert "producer 9" in capsys.readouterr().out


def test_a_newer_snapshot_manifest_is_refused() -> None:
    raw = bytearray(snapshot())
    raw[8:12] = (4).to_bytes(4, "little")
    raw[16:20] = crc32c.crc32c(raw[8:16] + raw[20:]).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormat, match="snapshot manifest version 4; this release reads 3"):
        decode_snapshot(bytes(raw), "SNAPSHOT")


def test_a_damaged_snapshot_manifest_is_refused() -> None:
    whole = snapshot()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        with pytest.raises(CorruptFile):
            decode_snapshot(bytes(damaged), "SNAPSHOT")
        with pytest.raises(CorruptFile):
            decode_snapshot(whole[:at], "SNAPSHOT")


# -- installing ------------------------------------------------------------------------------------------


def test_an_open_store_is_not_replaced(leader: Leader, tmp_path: Path) -> None:
    leader.write_much(10)
    with open_replica(tmp_path / "target"):
        take(leader.store, tmp_path / "target")
        with pytest.raises(DataDirectoryLocked):
            install(tmp_path / "target")
    install(tmp_path / "target")
    with pytest.raises(InvalidRequest, match="no complete snapshot"):
        install(tmp_path / "target")


@pytest.mark.parametrize("damage", ["none", "manifest", "log"])
def test_a_snapshot_replaces_whatever_was_there(leader: Leader, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "target"
    with open_replica(path) as old:
        other = Leader(old, seed=5)
        other.begin_epoch()
        other.write_much(300)
        old.replica.save_high_watermark()
    if damage == "manifest":
        (path / "MANIFEST").write_bytes(b"nonsense")
    if damage == "log":
        for segment in (path / "wal").glob("*.wal"):
            segment.write_bytes(b"x" * 65_536)
    leader.write_much(40)
    take(leader.store, path)
    install(path)
    assert not list((path / "wal").iterdir())
    with open_replica(path) as store:
        assert shown(store) == shown(leader.store)
        leader.write_much(30)
        catch_up(leader.store, store)
        store.flush()
        assert shown(store) == shown(leader.store)

        def only_live_tables() -> bool:
            live = {f"{number:012d}" for number in store._tables.manifest.numbers()}
            return {item.stem for item in (path / "tables").iterdir()} == live

        eventually(only_live_tables, "tables that no manifest names are gone, and merges over")


def test_a_snapshot_whose_files_are_gone_is_not_installed(leader: Leader, tmp_path: Path) -> None:
    leader.write_much(20)
    found = take(leader.store, tmp_path / "target")
    path = tmp_path / "target" / "incoming" / found.files[-1].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match="were verified"):
        install(tmp_path / "target")
    assert not (tmp_path / "target" / "MANIFEST").exists()


class Scene:
    """An old store and a complete snapshot beside it, on a simulated disk."""

    def __init__(self, tmp_path: Path, seed: int) -> None:
        self.disk = Drive(tmp_path, seed=seed)
        self.source_path, self.path = tmp_path / "source", tmp_path / "target"
        with self.opened(self.disk, self.source_path) as source:
            leader = Leader(source)
            leader.write_much(40)
            flush(source)
            merge(source)
            leader.write_much(10)
            flush(source)
            self.new = shown(source)
            with self.opened(self.disk, self.path) as old:
                other = Leader(old, seed=3)
                other.write_much(30)
                flush(old)
                other.write_much(10)
                old.replica.save_high_watermark()
                self.old = shown(old)
            take(source, self.path, self.disk)
        self.begun = self.disk.operations

    @contextlib.contextmanager
    def opened(self, disk: Drive, path: Path) -> Iterator[ShardStore]:
        with no_threads():
            store = ShardStore.open(path, tiny(), disk=disk, replicated=True)
        try:
            yield store
        finally:
            abandon(store)

    def view(self, disk: Drive) -> dict[str, Any]:
        with self.opened(disk, self.path) as store:
            if store.committed_lsn < self.old["committed_lsn"] and store.replica.history[-1:] == self.old["epoch"]:
                store.replica.advance(self.old["committed_lsn"])
            return shown(store)


@pytest.mark.part(3)
def test_a_crash_at_any_operation_of_an_installation_leaves_the_old_store_or_the_new(tmp_path: Path) -> None:
    dry = Scene(tmp_path / "dry", 0)
    install(dry.path, disk=dry.disk)
    operations = dry.disk.log[dry.begun :]
    assert dry.view(dry.disk) == dry.new
    outcomes = set()
    for nth in part_of(range(1, len(operations) + 1), 2):
        scene = Scene(tmp_path / str(nth), nth)
        scene.disk.at(nth)
        with contextlib.suppress(OSError):
            install(scene.path, disk=scene.disk)
        for disk in (*(scene.disk.power_cut(seed) for seed in (nth, nth + 1_000)), scene.disk.kill().power_cut(nth)):
            try:
                found = scene.view(disk)
                assert found in (scene.old, scene.new)
                outcomes.add(found == scene.new)
                if found == scene.old:
                    install(scene.path, disk=disk)
                    found = scene.view(disk)
                assert found == scene.new
                assert scene.view(disk.power_cut(nth)) == scene.new
            except BaseException as error:
                error.add_note(f"crash at operation {nth} ({operations[nth - 1]})")
                raise
    assert outcomes == {True, False}


def test_a_crash_while_gathering_leaves_a_beginning_that_can_be_gone_on_from(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "source", tiny(), replicated=True) as source:
        Leader(source).write_much(60)
        with source.export_snapshot() as export:
            for nth in count(1):
                disk = Drive(tmp_path / "t", seed=nth)
                point = disk.at(nth)
                path = tmp_path / "t" / "target"
                with contextlib.suppress(OSError):
                    copy(export, SnapshotTarget(path, export.snapshot, disk=disk), 30_000)
                disk = disk.power_cut(nth)
                if "SNAPSHOT" not in disk.list(path / "incoming"):
                    target = SnapshotTarget(path, export.snapshot, disk=disk)
                    for file in target.missing():  # as the downloader does, in one step
                        held = target.held(file.name)
                        if target.checksum(file.name, 0, held) != export.checksum(file.name, 0, held):
                            target.keep(file.name, 0)
                    copy(export, target)
                (tmp_path / "t" / "target").mkdir(parents=True, exist_ok=True)
                install(path, disk=disk)
                with no_threads(), ShardStore.open(path, tiny(), disk=disk, replicated=True) as store:
                    assert shown(store) == shown(source)
                if not point.hits:
                    break
