"""Snapshots: what a flush left is taken elsewhere, put in a store's place, and the log goes on from there."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.cli import main
from lsmq.errors import (
    ClientClosed,
    CorruptFile,
    DataDirectoryLocked,
    DiskFull,
    InvalidRequest,
    LogTrimmed,
    StaleSequence,
    UnsupportedFormat,
)
from lsmq_node.storage import ShardStore
from lsmq_node.storage.disk import Disk
from lsmq_node.storage.dump import dump_manifest, dump_snapshot, dump_wal
from lsmq_node.storage.epochs import EpochStart
from lsmq_node.storage.snapshot import SnapshotManifest, decode_snapshot, encode_snapshot
from lsmq_node.storage.snapshot_install import install
from lsmq_node.storage.snapshot_source import SnapshotSource
from lsmq_node.storage.snapshot_target import SnapshotTarget
from support.sim_disk import SimDisk
from support.waiting import eventually

from .golden_files import GOLDEN, snapshot
from .harness import Put, abandon, batch_of, flush, merge, no_threads, profile, retain, tiny
from .leading import QUEUES, TOPIC, Leader, catch_up, log_bytes, open_replica, shown


def copy(source: SnapshotSource, target: SnapshotTarget, piece_bytes: int = 10_000) -> None:
    """All that is missing, and the end of it."""
    for file in target.missing():
        while (at := target.held(file.name)) < file.size_bytes:
            target.write(file.name, at, source.read(file.name, at, piece_bytes))
        target.complete(file.name)
    target.finish()
    target.close()


def take(source: ShardStore, path: Path, disk: Disk | None = None) -> SnapshotManifest:
    """A snapshot of ``source``, ready in ``path``."""
    with source.export_snapshot() as export:
        copy(export, SnapshotTarget(path, export.snapshot, disk=disk))
        return export.snapshot


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with ShardStore.open(tmp_path / "source", tiny(), replicated=True) as store:
        yield Leader(store)


# -- the whole way ---------------------------------------------------------------------------------------


def test_an_installed_snapshot_shows_all_that_the_source_showed(leader: Leader, tmp_path: Path) -> None:
    leader.write_much()
    found = take(leader.store, tmp_path / "target")
    assert found.applied_lsn == leader.store.committed_lsn
    assert found.epochs == tuple(leader.store.replica.history)
    expected = shown(leader.store)
    assert install(tmp_path / "target") == found
    with open_replica(tmp_path / "target") as store:
        assert shown(store) == expected
        replica = store.replica
        assert replica.first_lsn() == replica.end_lsn == replica.durable_lsn == found.applied_lsn
        assert not list((tmp_path / "target" / "incoming").iterdir())


def test_the_log_goes_on_after_a_snapshot_with_the_same_bytes_at_the_same_places(
    leader: Leader, tmp_path: Path
) -> None:
    leader.write_much()
    lsn = take(leader.store, tmp_path / "target").applied_lsn
    leader.store.replica.keep_from(lsn)
    install(tmp_path / "target")
    with open_replica(tmp_path / "target") as store:
        leader.write_much()
        catch_up(leader.store, store)
        assert store.replica.end_lsn == leader.store.replica.end_lsn > lsn + 64 * 1024
        first = max(store.replica.first_lsn(), leader.store.replica.first_lsn())
        assert log_bytes(store, first) == log_bytes(leader.store, first)
        assert shown(store) == shown(leader.store)
    with open_replica(tmp_path / "target") as store:
        store.replica.advance(leader.store.committed_lsn)
        assert shown(store) == shown(leader.store)


@profile(8)
@given(seed=st.integers(0, 1 << 32))
def test_a_snapshot_at_any_place_in_a_segment_and_block_is_built_upon(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance, path = random.Random(seed), tmp_path_factory.mktemp("place")
    pieces = iter(lambda: chance.choice((1, 6, 7, 8, 100, 4_096, 32_768, 70_000)), 0)
    with open_replica(path / "source", wal_keep_bytes=1 << 30) as source:
        leader = Leader(source, seed)
        source.replica.keep_from(0)
        for _ in range(chance.randrange(60)):
            leader.something()
        lsn = take(source, path / "target").applied_lsn
        install(path / "target")
        for _ in range(3):  # restarts in between, some with bytes of the log that are not known to be committed
            with open_replica(path / "target") as target:
                assert target.replica.first_lsn() == lsn
                for _ in range(chance.randrange(12)):
                    leader.something()
                catch_up(source, target, pieces)
                assert log_bytes(target, lsn) == log_bytes(source, lsn)
                assert shown(target) == shown(source)
                if chance.random() < 0.5:
                    target.replica.save_high_watermark()


def test_a_replica_made_from_a_snapshot_says_where_its_log_begins(leader: Leader, tmp_path: Path) -> None:
    leader.write_much(30)
    lsn = take(leader.store, tmp_path / "target").applied_lsn
    install(tmp_path / "target")
    with open_replica(tmp_path / "target") as store:
        leader.write_much(3)
        catch_up(leader.store, store)
        assert lsn % store.options.segment_bytes
        assert store.replica.first_lsn() == lsn
        with pytest.raises(LogTrimmed):
            store.replica.read(lsn - 1, 100)
        assert store.replica.read(lsn, 100) == leader.store.replica.read(lsn, 100)
    [segment] = sorted((tmp_path / "target" / "wal").glob("*.wal"))[:1]
    *entries, end = dump_wal(segment)
    assert entries[0]["lsn"] == lsn
    assert end["end_lsn"] > lsn


def test_a_snapshot_of_a_replica_made_from_a_snapshot(leader: Leader, tmp_path: Path) -> None:
    leader.write_much()
    take(leader.store, tmp_path / "second")
    install(tmp_path / "second")
    with open_replica(tmp_path / "second") as second:
        leader.write_much(20)
        catch_up(leader.store, second)
        second.flush()
        found = take(second, tmp_path / "third")
        install(tmp_path / "third")
        with open_replica(tmp_path / "third") as third:
            assert shown(third) == shown(leader.store)
            assert third.replica.first_lsn() == found.applied_lsn == leader.store.committed_lsn


def test_a_snapshot_of_a_shard_that_holds_nothing(tmp_path: Path) -> None:
    with open_replica(tmp_path / "source") as source:
        found = take(source, tmp_path / "target")
        assert (found.applied_lsn, found.files, found.total_bytes) == (0, (), 0)
        install(tmp_path / "target")
        with open_replica(tmp_path / "target") as target:
            Leader(source).write_much(5)
            catch_up(source, target)
            assert shown(target) == shown(source)


def test_a_producer_is_known_to_a_replica_made_from_a_snapshot(leader: Leader, tmp_path: Path) -> None:
    fields = {"producer_id": 77, "producer_epoch": 1}
    for sequence in range(12):
        leader.commit(leader.store.append(TOPIC, batch_of([Put(0, b"%d" % sequence)], sequence=sequence, **fields)))
    take(leader.store, tmp_path / "target")
    install(tmp_path / "target")
    with open_replica(tmp_path / "target") as store:
        store.replica.begin_epoch(leader.epoch + 1, 7, 1)
        assert store.append(TOPIC, batch_of([Put(0, b"11")], sequence=11, **fields)).duplicate
        with pytest.raises(StaleSequence):
            store.append(TOPIC, batch_of([Put(0, b"1")], sequence=1, **fields))


# -- exporting -------------------------------------------------------------------------------------------


def test_what_is_not_committed_is_in_no_snapshot(leader: Leader, tmp_path: Path) -> None:
    committed = leader.put(100)
    leader.store.append(TOPIC, batch_of([Put(0, b"open")]))
    leader.store.append(TOPIC, batch_of([Put(0, b"in line")]))
    leader.store.replica.write()
    leader.store.append(TOPIC, batch_of([Put(0, b"in line")]))
    end_lsn, queued = leader.store.replica.end_lsn, len(leader.store._line)
    found = take(leader.store, tmp_path / "target")
    assert found.applied_lsn == committed
    assert leader.store.replica.end_lsn == end_lsn > committed, "an export writes nothing to the log"
    assert len(leader.store._line) == queued == 1
    install(tmp_path / "target")
    with open_replica(tmp_path / "target") as store:
        assert shown(store) == shown(leader.store)
    leader.store.replica.truncate(committed)
    leader.begin_epoch()
    assert take(leader.store, tmp_path / "target").epochs == tuple(leader.store.replica.history)


def test_the_epochs_of_a_snapshot_end_where_it_does(leader: Leader, tmp_path: Path) -> None:
    lsn = leader.put(10)
    leader.store.replica.begin_epoch(40, 7, 1)
    leader.store.replica.write()
    assert leader.store.replica.history[-1] == (40, lsn, 7, 1)
    with leader.store.export_snapshot() as export:
        assert (export.snapshot.applied_lsn, export.snapshot.epochs[-1][0]) == (lsn, leader.epoch)


def test_an_export_holds_its_files_through_merges_and_drops_until_it_is_closed(leader: Leader, tmp_path: Path) -> None:
    leader.write_much()
    tables = tmp_path / "source" / "tables"
    export = leader.store.export_snapshot()
    held = {file.name for file in export.snapshot.files}
    for _ in range(4):
        leader.write_much(60)
        leader.store.flush()
    leader.store.compact()
    latest = leader.store.latest_offsets(TOPIC)
    leader.commit(leader.store.trim(TOPIC, np.arange(QUEUES, dtype=np.uint32), latest))
    retain(leader.store)
    needed = {f"{number:012d}" for number in leader.store._tables.manifest.numbers()}
    assert not {name.partition(".")[0] for name in held} & needed, "the store needs none of them any more"
    copy(export, SnapshotTarget(tmp_path / "target", export.snapshot))
    assert held <= {path.name for path in tables.iterdir()}
    export.close()
    export.close()
    eventually(lambda: {path.stem for path in tables.iterdir()} == needed, "nothing but what is needed is left")
    with pytest.raises(ClientClosed):
        export.read(next(iter(held)), 0, 10)


def test_two_exports_hold_the_same_files(leader: Leader, tmp_path: Path) -> None:
    leader.write_much(20)
    first, second = leader.store.export_snapshot(), leader.store.export_snapshot()
    assert first.snapshot == second.snapshot
    leader.write_much(60)
    leader.store.flush()
    first.close()
    copy(second, SnapshotTarget(tmp_path / "target", second.snapshot))
    second.close()


def test_files_that_a_killed_process_held_are_removed_at_the_next_start(leader: Leader, tmp_path: Path) -> None:
    leader.write_much()
    leader.store.export_snapshot()
    leader.write_much()
    leader.store.compact()
    abandon(leader.store)
    tables = tmp_path / "source" / "tables"
    before = len(list(tables.iterdir()))
    with open_replica(tmp_path / "source") as store:
        needed = {f"{number:012d}" for number in store._tables.manifest.numbers()}
        assert {path.stem for path in tables.iterdir()} == needed
    assert len(needed) < before


def test_closing_the_store_ends_its_exports(leader: Leader) -> None:
    leader.write_much(10)
    export = leader.store.export_snapshot()
    leader.store.close()
    with pytest.raises(ClientClosed):
        export.read(export.snapshot.files[0].name, 0, 10)
    export.close()
    with pytest.raises(ClientClosed):
        leader.store.export_snapshot()


def test_the_log_from_a_snapshot_on_is_held_until_the_export_is_closed(leader: Leader, tmp_path: Path) -> None:
    leader.write_much(30)
    export = leader.store.export_snapshot()
    lsn = export.snapshot.applied_lsn
    leader.write_much(200)
    leader.store.flush()
    assert leader.store.replica.read(lsn, 10), "it is what comes after the snapshot"
    export.release_files()
    leader.write_much(60)
    leader.store.flush()
    assert leader.store.replica.read(lsn, 10)
    export.close()
    leader.write_much(60)
    leader.store.flush()
    leader.write_much(60)
    leader.store.flush()
    with pytest.raises(LogTrimmed):
        leader.store.replica.read(lsn, 10)


def test_the_log_held_for_snapshots_has_a_limit(tmp_path: Path) -> None:
    with open_replica(tmp_path / "source", wal_keep_bytes=128 * 1024) as source:
        leader = Leader(source)
        with source.export_snapshot() as export:
            for _ in range(60):
                leader.put(7_000)
            source.flush()
            leader.put(7_000)
            source.flush()
            with pytest.raises(LogTrimmed):
                source.replica.read(export.snapshot.applied_lsn, 10)


def test_an_export_whose_flush_takes_too_long_takes_the_last_one(tmp_path: Path) -> None:
    with no_threads():
        source = open_replica(tmp_path / "source")
    leader = Leader(source)
    leader.write_much(20)
    with source.export_snapshot(flush_wait_s=0.01) as export:
        assert export.snapshot.applied_lsn == 0
    flush(source)
    flushed = source._tables.manifest.flushed_lsn
    leader.put(10)
    with source.export_snapshot(flush_wait_s=0.01) as export:
        assert export.snapshot.applied_lsn == flushed < source.committed_lsn
    source.close()


@pytest.mark.parametrize("name", ["../MANIFEST", "MANIFEST", "000000999999.tbl", ""])
def test_an_export_gives_its_own_files_only(leader: Leader, name: str) -> None:
    leader.write_much(10)
    with leader.store.export_snapshot() as export, pytest.raises(InvalidRequest):
        export.read(name, 0, 10)


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
        mixed = SnapshotManifest(export.snapshot.manifest, (EpochStart(77, known[-1].first_lsn, 7, 1),))
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
        self.disk = SimDisk(tmp_path, seed=seed)
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
    def opened(self, disk: SimDisk, path: Path) -> Iterator[ShardStore]:
        with no_threads():
            store = ShardStore.open(path, tiny(), disk=disk, replicated=True)
        try:
            yield store
        finally:
            abandon(store)

    def view(self, disk: SimDisk) -> dict[str, Any]:
        with self.opened(disk, self.path) as store:
            if store.committed_lsn < self.old["committed_lsn"] and store.replica.history[-1:] == self.old["epoch"]:
                store.replica.advance(self.old["committed_lsn"])
            return shown(store)


def test_a_crash_at_any_operation_of_an_installation_leaves_the_old_store_or_the_new(tmp_path: Path) -> None:
    dry = Scene(tmp_path / "dry", 0)
    install(dry.path, disk=dry.disk)
    operations = dry.disk.log[dry.begun :]
    assert dry.view(dry.disk) == dry.new
    outcomes = set()
    for nth in range(1, len(operations) + 1):
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
                disk = SimDisk(tmp_path / "t", seed=nth)
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
