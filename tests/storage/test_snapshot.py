"""Snapshots: what a flush left is taken elsewhere, is held as long as it is needed, and the log goes on from there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import (
    ClientClosed,
    InvalidRequest,
    LogTrimmed,
    StaleSequence,
)
from lsmq_node.storage import ShardStore
from lsmq_node.storage.dump import dump_wal
from lsmq_node.storage.snapshot_install import install
from lsmq_node.storage.snapshot_target import SnapshotTarget
from support.waiting import eventually

from .harness import Put, abandon, batch_of, flush, no_threads, profile, retain, tiny
from .leading import QUEUES, TOPIC, Leader, catch_up, log_bytes, open_replica, shown
from .snapshots import copy, take


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
