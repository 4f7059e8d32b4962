"""Replicas whose disk fails, fills up, forgets or lies."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lsmq.errors import DataDirectoryUnusable, DiskFull, LsmqError, NotLeader, ShardStopped, StoreBusy
from lsmq_lab.world.drive import Drive
from lsmq_node.broker.topology import Ack
from lsmq_node.cluster import transfer
from lsmq_node.cluster.opening import Directory
from lsmq_node.cluster.record import NAME, decode_record
from lsmq_node.cluster.transfer_client import Download
from lsmq_node.replication import ReplicaRecord, ReplicaRole
from lsmq_node.replication.actions import Distrust
from lsmq_node.storage import ShardStore
from lsmq_node.storage.disk import Disk, OsDisk, SystemClock
from lsmq_node.storage.failures import may_pass
from lsmq_node.storage.log_mark import LogMark, store_log_mark
from lsmq_node.storage.recovery import unusable
from lsmq_node.storage.replica_log import ReplicaLog
from lsmq_node.storage.segments import SegmentFiles
from lsmq_node.storage.snapshot import SnapshotManifest
from lsmq_node.storage.snapshot_install import install
from storage.harness import KIB, bodies, body, small, tiny
from support.waiting import PATIENCE_S

from .replica_group import SHARD, Group, batch, group, run, until

pytestmark = pytest.mark.usefixtures("drives_there")

MEGABYTE = 1 << 20


async def fill(nodes: Group, name: str, count: int, size: int = 6_000) -> None:
    for number in range(count):
        await nodes.put(nodes[name], body(number, size), queue=number % 4)


async def ready(nodes: Group, name: str = "a") -> None:
    leader = await nodes.lead(name)
    await nodes.all_in_sync()
    await nodes.make_topic(leader)


@asynccontextmanager
async def b_behind(path: Path) -> AsyncIterator[Group]:
    """Replicas of which b is stopped, and so far behind that it needs a snapshot."""
    async with group(path, options=tiny(wal_keep_bytes=64 * KIB), start=False) as nodes:
        nodes.timings = replace(nodes.timings, window_bytes=32 * KIB)
        for name in nodes.sites:
            await nodes.start(name)
        await ready(nodes)
        await fill(nodes, "a", 10)
        await nodes.stop("b")
        await fill(nodes, "a", 80)
        await until(lambda: nodes["a"].store.replica.first_lsn() > 64 * KIB, "b needs a snapshot")
        yield nodes


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_failed_fsync_ends_the_replica_and_the_others_go_on(tmp_path: Path, victim: str) -> None:
    async def test() -> None:
        async with group(tmp_path, start=False) as nodes:
            disk = nodes.sites[victim].disk = Drive(tmp_path)
            for name in nodes.sites:
                await nodes.start(name)
            await ready(nodes)
            await nodes.put(nodes["a"], b"one")
            disk.at(1, errno.EIO, ("sync",), lasting=True)
            write = nodes["a"].wait(nodes["a"].store.append(1, batch(b"two")), Ack.QUORUM)
            if victim == "a":
                with pytest.raises((ShardStopped, NotLeader)):
                    await write
                await until(lambda: nodes["a"].role is ReplicaRole.HALTED, "a gives up")
                with pytest.raises(LsmqError):
                    nodes["a"].check_writable(Ack.QUORUM)
            else:
                await write
            leader = await nodes.lead("c", without=(victim,))
            await nodes.put(leader, b"three")
            assert nodes[victim].role is ReplicaRole.HALTED
            assert nodes[victim].failure is not None
            found = list(bodies(leader.store, 1, 0).values())
            assert [content for content in found if content != b"two"] == [b"one", b"three"]
            assert victim == "a" or b"two" in found

    run(test)


@pytest.mark.parametrize(("error", "refusal"), [(errno.ENOSPC, DiskFull), (errno.EMFILE, StoreBusy)])
def test_want_of_space_or_descriptors_at_the_leader_drops_a_write_and_takes_the_next(
    tmp_path: Path, error: int, refusal: type[LsmqError]
) -> None:
    async def test() -> None:
        async with group(tmp_path, start=False) as nodes:
            disk = nodes.sites["a"].disk = Drive(tmp_path)
            for name in nodes.sites:
                await nodes.start(name)
            await ready(nodes)
            await nodes.put(nodes["a"], b"one")
            disk.at(1, error, ("pwrite", "write"))
            with pytest.raises(refusal):
                await nodes.put(nodes["a"], b"two")
            assert nodes["a"].role is ReplicaRole.LEADING
            await until(lambda: not nodes["a"].store.disk_full, "there is space again")
            await nodes.put(nodes["a"], b"three")
            assert bodies(nodes["a"].store, 1, 0) == {0: b"one", 1: b"three"}
            await nodes.equal()

    run(test)


@pytest.mark.part(2)
def test_a_full_disk_of_a_follower_makes_it_wait_and_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, start=False) as nodes:
            disk = nodes.sites["b"].disk = Drive(tmp_path)
            for name in nodes.sites:
                await nodes.start(name)
            await ready(nodes)
            await nodes.put(nodes["a"], b"one")
            disk.capacity_bytes = disk.used_bytes
            await fill(nodes, "a", 60)
            await until(lambda: {member.node for member in nodes.view.in_sync} == {"a", "c"}, "b leaves the set")
            await nodes.put(nodes["a"], b"without b")
            assert nodes["b"].failure is None
            disk.capacity_bytes = 1 << 40
            await nodes.all_in_sync()
            await nodes.equal()

    run(test)


def test_an_emptied_disk_is_another_member_and_is_filled_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            await ready(nodes)
            await fill(nodes, "a", 20)
            former = nodes["b"].incarnation
            await nodes.stop("b")
            shutil.rmtree(nodes.sites["b"].path)
            await nodes.start("b")
            await until(lambda: nodes.view.listed("b") not in (None, former), "it joins under another name")
            await nodes.put(nodes["a"], b"more")
            await nodes.equal()

    run(test)


@pytest.mark.part(2)
def test_a_follower_that_was_away_for_long_gets_table_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_node.cluster.shell.KEEP_BYTES", 0)

    async def test() -> None:
        async with group(tmp_path, options=tiny(wal_keep_bytes=64 * KIB), start=False) as nodes:
            nodes.timings = replace(nodes.timings, window_bytes=32 * KIB)  # and so much is in memory
            for name in nodes.sites:
                await nodes.start(name)
            await ready(nodes)
            await fill(nodes, "a", 10)
            await nodes.stop("b")
            away = nodes.sites["b"].path
            await fill(nodes, "a", 80)
            await until(
                lambda: nodes["a"].store.replica.first_lsn() > 64 * KIB, "the log that b would need is recycled"
            )
            await nodes.start("b")
            await nodes.all_in_sync()
            assert nodes["b"].store.replica.first_lsn() > 64 * KIB
            await fill(nodes, "a", 5)
            await nodes.equal()
            await nodes.stop("b")
            await nodes.start("b")
            await nodes.all_in_sync()
            await nodes.equal()
            assert decode_record((away / NAME).read_bytes(), "") is not None

    run(test)


def test_a_damaged_follower_that_is_given_table_files_is_filled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else writes where they lie while they take the place of its own, and then it is not damaged any more."""
    monkeypatch.setattr("lsmq_node.cluster.shell.KEEP_BYTES", 0)
    monkeypatch.setattr("lsmq_node.cluster.shell._LOOK_AROUND_S", 0.0)
    installing, go_on, gathered = threading.Event(), threading.Event(), list[Path]()

    def slowly(path: Path) -> SnapshotManifest:
        installing.set()
        go_on.wait(PATIENCE_S)
        return install(path)

    class Counted(Download):
        async def run(self, at_least_lsn: Callable[[], int], patience_s: float) -> SnapshotManifest:
            gathered.append(self._path)
            return await super().run(at_least_lsn, patience_s)

    monkeypatch.setattr(transfer, "install", slowly)
    monkeypatch.setattr(transfer, "Download", Counted)

    async def test() -> None:
        async with b_behind(tmp_path) as nodes:
            shell = (await nodes.start("b"))._shell
            await until(lambda: shell._fetching is not None, "it fetches one")
            shell.repair.note("a table is damaged")
            former = nodes["b"].incarnation
            await until(installing.is_set, "the snapshot takes the place of what is there")
            for _ in range(2):
                looked_at = shell._looked_at
                await until(lambda looked_at=looked_at: shell._looked_at > looked_at, "it looks around")  # type: ignore[misc]
            go_on.set()
            await nodes.all_in_sync()
            await fill(nodes, "a", 5)
            await nodes.equal()
            assert shell.repair.found == () and nodes["b"].incarnation == former and len(gathered) == 1

    try:
        run(test)
    finally:
        go_on.set()


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def test_a_log_damaged_in_the_middle_is_replaced_after_leaving_the_set(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, options=small(segment_bytes=4 * MEGABYTE)) as nodes:
            await ready(nodes)
            await fill(nodes, "a", 30)
            former = nodes["b"].incarnation
            await nodes.stop("b")
            (segment,) = sorted((nodes.sites["b"].path / "wal").glob("*.wal"))[:1]
            flip(segment, 50_000)
            await nodes.start("b")
            await until(lambda: nodes.view.listed("b") not in (None, former), "it joins under another name")
            await nodes.put(nodes["a"], b"more")
            await nodes.equal()

    run(test)


def test_a_damaged_log_is_cut_when_there_is_space_to_note_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, refused = True, 0
    honest = store_log_mark

    async def test() -> None:
        nonlocal full
        async with group(tmp_path, options=small(segment_bytes=4 * MEGABYTE)) as nodes:
            await ready(nodes)
            await fill(nodes, "a", 30)
            former, path = nodes["b"].incarnation, nodes.sites["b"].path
            await nodes.stop("b")
            flip(min((path / "wal").glob("*.wal")), 50_000)

            def noted(disk: Disk, directory: Path, mark: LogMark) -> None:
                nonlocal refused
                if full and directory == path:
                    refused += 1
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                honest(disk, directory, mark)

            monkeypatch.setattr("lsmq_node.storage.segments.store_log_mark", noted)
            await nodes.start("b")
            await until(lambda: refused > 2, "it is tried again and again")
            assert nodes["b"].failure is None
            full = False
            await until(lambda: nodes.view.listed("b") not in (None, former), "it joins under another name")
            await nodes.put(nodes["a"], b"more")
            await nodes.equal()

    run(test)


def test_damaged_tables_are_set_aside_and_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_node.cluster.shell.KEEP_BYTES", 0)

    async def test() -> None:
        async with group(tmp_path, options=tiny(wal_keep_bytes=64 * KIB)) as nodes:
            await ready(nodes)
            await fill(nodes, "a", 60)
            nodes["b"].store.flush()
            former, epoch = nodes["b"].incarnation, nodes["b"].epoch
            await nodes.stop("b")
            path = nodes.sites["b"].path
            flip(path / "MANIFEST", 30)
            await nodes.start("b")
            assert nodes["b"].epoch >= epoch, "what was promised holds"
            await until(lambda: nodes.view.listed("b") not in (None, former), "it joins under another name")
            await nodes.put(nodes["a"], b"more")
            await nodes.equal()
            assert [item.name.startswith(f"{path.name}.damaged-") for item in path.parent.iterdir()].count(True) == 1

    run(test)


def test_the_only_member_with_a_damaged_log_waits_and_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        names = ("a",)
        async with group(tmp_path, names=names, min_in_sync=1, options=small(segment_bytes=4 * MEGABYTE)) as nodes:
            await nodes.lead("a")
            await nodes.make_topic(nodes["a"])
            await fill(nodes, "a", 30)
            await nodes.stop("a")
            (segment,) = sorted((nodes.sites["a"].path / "wal").glob("*.wal"))[:1]
            flip(segment, 50_000)
            damaged = segment.read_bytes()
            await nodes.start("a")
            nodes.elect("a")
            await until(lambda: nodes["a"].role is ReplicaRole.WAITING, "it waits")
            with pytest.raises(NotLeader):
                nodes["a"].check_writable(Ack.LEADER)
            assert segment.read_bytes() == damaged
            await nodes.stop("a")
            assert segment.read_bytes() == damaged

    run(test)


def test_bytes_that_were_damaged_on_their_way_are_asked_for_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            await ready(nodes)
            nodes.spoiled = {"b"}
            incarnation = nodes["b"].incarnation
            await fill(nodes, "a", 20)
            assert not nodes.spoiled
            await nodes.all_in_sync()
            await nodes.equal()
            assert nodes["b"].incarnation == incarnation

    run(test)


@pytest.mark.part(2)
def test_a_full_disk_does_not_keep_a_replica_from_promising(tmp_path: Path) -> None:
    async def test() -> None:
        async with group(tmp_path, start=False) as nodes:
            disk = nodes.sites["b"].disk = Drive(tmp_path)
            for name in nodes.sites:
                await nodes.start(name)
            await ready(nodes)
            await fill(nodes, "a", 3)
            disk.at(1, errno.ENOSPC, ("preallocate",), lasting=True)
            await fill(nodes, "a", 30)
            await until(lambda: {member.node for member in nodes.view.in_sync} == {"a", "c"}, "b leaves the set")
            await nodes.stop("a")
            nodes.elect("c", without=("a",))
            await until(lambda: nodes["c"].role is ReplicaRole.LEADING, "b promises, and c begins its epoch")
            assert nodes["b"].failure is None
            disk.heal()
            await until(lambda: nodes["c"].serving, "b makes up the number")
            await nodes.start("a")
            await nodes.all_in_sync()
            await nodes.put(nodes["c"], b"more")
            await nodes.equal()

    run(test)


@pytest.mark.part(2)
def test_a_log_found_damaged_while_it_is_shipped_ends_the_leader_which_is_filled_again(tmp_path: Path) -> None:
    async def test() -> None:
        options = small(segment_bytes=4 * MEGABYTE, memtable_bytes=4 * MEGABYTE)
        async with group(tmp_path, options=options, start=False) as nodes:
            nodes.timings = replace(nodes.timings, window_bytes=64 * KIB)  # so much of the log is kept in memory
            for name in nodes.sites:
                await nodes.start(name)
            await ready(nodes)
            await nodes.stop("c")
            await until(lambda: {member.node for member in nodes.view.in_sync} == {"a", "b"}, "c leaves the set")
            await fill(nodes, "a", 60)
            former = nodes["a"].incarnation
            (segment,) = sorted((nodes.sites["a"].path / "wal").glob("*.wal"))[:1]
            with segment.open("r+b") as file:
                file.seek(50_000)
                file.write(b"damage")
            await nodes.start("c")
            await until(lambda: nodes["a"].role is ReplicaRole.HALTED, "a finds it")
            assert "damaged" in nodes["a"].damage[0]
            leader = await nodes.lead("b")
            await nodes.put(leader, b"more")
            await nodes.all_in_sync()
            await until(lambda: nodes["a"].incarnation not in (0, former), "a begins anew")
            await nodes.all_in_sync()
            await nodes.equal()
            assert nodes["a"].failure is None

    run(test)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_leader_is_elected_while_the_disks_have_no_room_and_serves_when_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """The beginning of its epoch is what it cannot write: at the end of a segment, or of the last block."""
    prepare, tries = SegmentFiles.prepare, [0]

    def full(self: SegmentFiles, lsn: int, end_lsn: int) -> None:
        tries[0] += 1
        raise OSError(error, os.strerror(error))

    async def test() -> None:
        async with group(tmp_path) as nodes:
            await ready(nodes)
            await nodes.put(nodes["a"], b"one")
            await nodes.stop("a")
            monkeypatch.setattr(SegmentFiles, "prepare", full)
            nodes.elect("b", without=("a",))
            await until(lambda: tries[0] > 0, "b tries to begin its epoch")
            await until(lambda: bool(nodes.asked), "it is said that the epoch cannot be led")
            assert [nodes[name].failure for name in ("b", "c")] == [None, None]
            monkeypatch.setattr(SegmentFiles, "prepare", prepare)
            leader = await nodes.lead("b", without=("a",))
            await until(lambda: not leader.store.disk_full, "b has noticed that there is room")
            await nodes.put(leader, b"two")
            await nodes.start("a")
            await nodes.all_in_sync()
            await nodes.equal()
            assert list(bodies(leader.store, 1, 0).values()) == [b"one", b"two"]

    run(test)


class NoRoom:
    """Stores in ``path`` are not opened while the disk is ``full``, from the ``nth`` time on."""

    def __init__(self, patch: pytest.MonkeyPatch, path: Path, nth: int) -> None:
        self.full, self.times, self.refused = True, 0, 0
        honest = Directory.open_store

        def opened(directory: Directory, record: ReplicaRecord | None) -> ShardStore:
            if directory.path == path:
                self.times += 1
                if self.full and self.times >= nth:
                    self.refused += 1
                    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    raise unusable(path, error) from error
            return honest(directory, record)

        patch.setattr(Directory, "open_store", opened)


@pytest.mark.part(2)
def test_a_snapshot_that_took_the_last_space_is_opened_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq_node.cluster.shell.KEEP_BYTES", 0)

    async def test() -> None:
        async with b_behind(tmp_path) as nodes:
            disk = NoRoom(monkeypatch, nodes.sites["b"].path, nth=2)  # the first time is the start
            with capture_logs() as logs:
                await nodes.start("b")
                await until(lambda: disk.refused > 2, "it is tried again and again")
                assert [line["event"] for line in logs].count("replica_waits_for_room") == 1
            assert nodes["b"].failure is None and "No space left" in str(nodes["b"].wants_room)
            disk.full = False
            await nodes.all_in_sync()
            assert nodes["b"].wants_room is None
            await fill(nodes, "a", 5)
            await nodes.equal()

    run(test)


def test_a_replica_that_begins_anew_on_a_full_disk_says_so_and_begins_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with group(tmp_path) as nodes:
            await ready(nodes)
            await fill(nodes, "a", 20)
            former, path = nodes["b"].incarnation, nodes.sites["b"].path
            disk = NoRoom(monkeypatch, path, nth=1)
            nodes["b"]._shell._begin_anew("its tables are damaged")
            await until(lambda: disk.refused > 1, "it is tried again and again")
            stopped = nodes["b"].stopped
            assert stopped is not None and "No space left" in stopped.message
            assert nodes["b"].role is ReplicaRole.HALTED
            disk.full = False
            await until(lambda: nodes.view.listed("b") not in (None, former), "it joins under another name")
            assert nodes["b"].stopped is None and nodes["b"].failure is None
            await nodes.put(nodes["a"], b"more")
            await nodes.equal()
            assert [item.name.startswith(f"{path.name}.damaged-") for item in path.parent.iterdir()].count(True) == 1

    run(test)


class FewDescriptors(OsDisk):
    """No directory is listed any more after so many, by the thread of the test; or by a thread whose name begins so."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 30
        self.wanting: str | None = None
        self.refused = 0
        self._thread = threading.get_ident()

    def list(self, directory: Path) -> list[str]:
        self.left -= threading.get_ident() == self._thread
        wanting = self.wanting is not None and threading.current_thread().name.startswith(self.wanting)
        if self.left < 0 or wanting:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(directory))
        return super().list(directory)


def test_a_replica_that_could_not_be_opened_for_want_of_descriptors_is_opened_when_there_are_some(
    tmp_path: Path,
) -> None:
    """Wherever they end: what was opened by then is closed, and is free for the next attempt."""
    disk = FewDescriptors()
    directory = Directory(SHARD, "a", tmp_path / "shard", small(), disk, SystemClock())
    for _ in range(2):  # At first there is more to be done.
        before = disk.left
        directory.open(Distrust.NOTHING)[0].close()
    for left in range(before - disk.left):
        disk.left = left
        with pytest.raises(DataDirectoryUnusable) as refused:
            directory.open(Distrust.NOTHING)
        assert may_pass(refused.value)
    disk.left = before
    directory.open(Distrust.NOTHING)[0].close()


@pytest.mark.parametrize("victim", ["a", "b"])
def test_want_of_descriptors_where_a_replica_looks_around_ends_nothing(tmp_path: Path, victim: str) -> None:
    async def test() -> None:
        async with group(tmp_path, start=False) as nodes:
            disk = nodes.sites[victim].disk = FewDescriptors()
            for name in nodes.sites:
                await nodes.start(name)
            await ready(nodes)
            disk.wanting = "lsmq-disk"
            await until(lambda: disk.refused > 1 or nodes[victim].failure is not None, "it is tried again")
            assert nodes[victim].failure is None and nodes[victim].stopped is None
            disk.wanting = None
            await nodes.put(nodes["a"], b"taken")
            await nodes.equal()

    run(test)


def test_a_leader_that_lacks_a_descriptor_to_read_its_log_ships_it_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, read = [0], ReplicaLog.read_entries

    def wanting(log: ReplicaLog, lsn: int, limit_lsn: int, max_bytes: int) -> bytes:
        if refused[0] < 3:
            refused[0] += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(log, lsn, limit_lsn, max_bytes)

    async def test() -> None:
        async with group(tmp_path) as nodes:
            nodes.timings = replace(nodes.timings, window_bytes=32 * KIB)
            await ready(nodes)
            await nodes.stop("b")
            await fill(nodes, "a", 20)
            await nodes.stop("a")
            await nodes.start("a")  # what it shipped last is not in its memory any more
            await nodes.lead("a")
            monkeypatch.setattr(ReplicaLog, "read_entries", wanting)
            await nodes.start("b")
            await nodes.all_in_sync()
            assert refused == [3] and nodes["a"].failure is None and nodes["a"].serving
            await nodes.equal()

    run(test)
