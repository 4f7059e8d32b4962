"""A voter's file: what was written is there again, torn ends are cut, damage is refused, crashes lose nothing."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgpack
import pytest

from lsmq.errors import CorruptFile, DataDirectoryLocked, DataDirectoryUnusable
from lsmq_coordinator.journal import OS_DISK, Journal, JournalFailed, JournalFull
from lsmq_coordinator.journal_dump import dump_journal
from lsmq_coordinator.raft_kept import RaftKept
from lsmq_coordinator.raft_membership import Electorate, marked, wrapped
from lsmq_coordinator.raft_outbox import SaveCut, SaveEntry, SaveSnapshot, SaveState, Write
from lsmq_coordinator.raft_records import MAGIC, JournalKind, records
from lsmq_coordinator.raft_terms import HardState, Loaded, RaftEntry, Snapshot

STATE = HardState(9, "n1", True, (3, "abc"), {"n2": (7, "def")})


def entries(count: int, first: int = 1) -> list[RaftEntry]:
    return [RaftEntry(index, 1 + index // 3, b"command-%d" % index) for index in range(first, first + count)]


def saved(count: int, first: int = 1) -> list[Write]:
    return [SaveEntry(entry) for entry in entries(count, first)]


def snapshot(index: int, *after: RaftEntry) -> SaveSnapshot:
    return SaveSnapshot(Snapshot(index, 1 + index // 3, lambda: b"state-%d" % index), STATE, after)


def filled(directory: Path, count: int = 6) -> None:
    journal = Journal(directory)
    journal.write([SaveState(STATE)], 0)
    for write in saved(count):
        journal.write([write], 2)
    journal.close()


def contents(directory: Path) -> Loaded:
    journal = Journal(directory)
    try:
        return journal.take_loaded()
    finally:
        journal.close()


class CountingDisk:
    """Fails at the sync with the number ``fails``."""

    def __init__(self, fails: int = 0) -> None:
        self.syncs, self.fails = 0, fails

    def sync(self, fd: int) -> None:
        self.syncs += 1
        if self.syncs == self.fails:
            raise OSError(5, "Input/output error")
        OS_DISK.sync(fd)


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    filled(tmp_path)
    assert contents(tmp_path) == Loaded(STATE, 0, 0, None, tuple(entries(6)), 2)


def test_golden_bytes(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write([snapshot(3, *entries(1, 4)), SaveEntry(entries(1, 5)[0]), SaveCut(5), SaveState(HardState(10))], 4)
    journal.close()
    assert (tmp_path / "JOURNAL").read_bytes() == (Path(__file__).parent / "golden" / "JOURNAL").read_bytes()
    assert contents(tmp_path) == Loaded(HardState(10), 3, 2, b"state-3", tuple(entries(1, 4)), 4)


def test_the_dump_says_what_is_there_and_changes_nothing() -> None:
    path = Path(__file__).parent / "golden" / "JOURNAL"
    before = path.read_bytes()
    dumped = list(dump_journal(path))
    assert [entry.get("kind") for entry in dumped] == [
        "snapshot",
        "state",
        "entry",
        "entry",
        "cut",
        "state",
        "synced",
        None,
    ]
    assert dumped[1] == {"position": 52, "kind": "state", "term": 9, "vote": "n1", "whole": True, "starts": 3}
    assert (dumped[2]["index"], dumped[4]["from_index"], dumped[6]["commit_index"]) == (4, 5, 4)
    assert dumped[-1] == {"end": len(before), "torn_bytes": 0}
    assert path.read_bytes() == before


def test_the_dump_of_a_damaged_journal_ends_with_its_name(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / "JOURNAL"
    content = bytearray(path.read_bytes())
    content[-60] ^= 1
    path.write_bytes(content)
    dumped = dump_journal(path)
    with pytest.raises(CorruptFile, match="damaged at byte"):
        for _ in dumped:
            pass


def who_votes(*nodes: str) -> Electorate:
    return Electorate(1, {node: f"{node}:7602" for node in nodes})


def test_a_journal_that_says_who_votes_is_one_that_releases_before_refuse_and_others_are_as_they_were(
    tmp_path: Path,
) -> None:
    """These look for the first eight bytes."""
    filled(tmp_path)
    path = tmp_path / "JOURNAL"
    assert path.read_bytes().startswith(b"LSMQRFT2")
    command = marked(msgpack.packb({"op": "set_voters", "membership": who_votes("n2", "n3").to_dict()}))
    entry = RaftEntry(7, 3, command)
    journal = Journal(tmp_path)
    journal.write([SaveEntry(entry)], 6)
    journal.close()
    assert path.read_bytes().startswith(b"LSMQRFT3")
    assert contents(tmp_path).entries == (*entries(6), entry)
    assert path.read_bytes().startswith(b"LSMQRFT3"), "what was read is written anew as what it was"
    assert {"voters": {"n2": "n2:7602", "n3": "n3:7602"}, "learners": {}, "op": "set_voters"}.items() <= next(
        dumped for dumped in dump_journal(path) if dumped.get("index") == 7
    ).items()


def test_so_is_one_whose_snapshot_says_it(tmp_path: Path) -> None:
    content = wrapped(who_votes("n4"), b"state")
    journal = Journal(tmp_path)
    journal.write([SaveSnapshot(Snapshot(6, 3, lambda: content), STATE, tuple(entries(1, 7)))], 6)
    journal.close()
    assert (tmp_path / "JOURNAL").read_bytes().startswith(b"LSMQRFT3")
    kept = RaftKept(contents(tmp_path), Random(1), who_votes("n1"))
    assert kept.memberships.latest == who_votes("n4")
    dumped = next(dump_journal(tmp_path / "JOURNAL"))
    assert (dumped["voters"], dumped["bytes"]) == ({"n4": "n4:7602"}, len(b"state"))


def test_no_crash_leaves_who_votes_in_a_journal_that_releases_before_would_read(tmp_path: Path) -> None:
    """They would take the record for a torn one, or for a command that does nothing."""
    command = marked(msgpack.packb({"op": "set_voters", "membership": who_votes("n2").to_dict()}))
    for fails in (1, 2):
        directory = tmp_path / str(fails)
        filled(directory)
        disk = CountingDisk()
        journal = Journal(directory, disk)
        disk.syncs, disk.fails = 0, fails
        with pytest.raises(JournalFailed):
            journal.write([SaveEntry(RaftEntry(7, 3, command))], 6)
        journal.close()
        content = (directory / "JOURNAL").read_bytes()
        assert content.startswith(b"LSMQRFT3") and (command in content) == (fails == 2)


def test_a_batch_takes_one_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    journal = Journal(tmp_path, disk)
    opened = disk.syncs
    journal.write([SaveState(STATE), *saved(5), SaveCut(4), SaveState(HardState(11, "n2"))], 3)
    assert disk.syncs == opened + 1
    journal.close()


def test_the_mark_behind_the_last_write_becomes_durable_at_rest_once(tmp_path: Path) -> None:
    disk = CountingDisk()
    journal = Journal(tmp_path, disk)
    journal.write(saved(1), 1)
    written = disk.syncs
    assert not journal.marked
    journal.rest()
    journal.rest()
    assert journal.marked and disk.syncs == written + 1
    journal.close()


def test_every_length_of_a_torn_last_write_is_cut_to_what_was_whole(tmp_path: Path) -> None:
    """The last two entries were written together and not synced: any part of them may be there."""
    filled(tmp_path, 4)
    path = tmp_path / "JOURNAL"
    durable = path.read_bytes()
    journal = Journal(tmp_path)
    journal.write(saved(2, 5), 4)
    journal.close()
    whole = path.read_bytes()
    ends = [position for position, record in records(whole) if position > len(durable)]
    for length in range(len(durable), ends[-1] + 1):
        path.write_bytes(whole[:length])
        kept = 4 + sum(length >= end for end in ends)
        assert contents(tmp_path).entries == tuple(entries(kept)), length
        assert path.stat().st_size == [len(durable), *ends][kept - 4], "the torn end was left to come back to life"


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_every_flipped_byte_of_what_was_durable_is_refused_in_the_last_record_too(
    tmp_path: Path, with_snapshot: bool
) -> None:
    filled(tmp_path)
    if with_snapshot:
        journal = Journal(tmp_path)
        journal.write([snapshot(4, *entries(2, 5))], 4)
        journal.write(saved(1, 7), 4)
        journal.close()
    path = tmp_path / "JOURNAL"
    whole = path.read_bytes()
    before = contents(tmp_path)
    found = list(records(whole))
    assert found[-1][1].kind is JournalKind.SYNCED and found[-2][1].kind is JournalKind.ENTRY
    for position in range(found[-1][0]):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :])
        with pytest.raises(CorruptFile, match="Remove this file to let it start anew"):
            Journal(tmp_path)
        assert path.stat().st_size == len(whole), "evidence was cut away"
    for position in range(found[-1][0], len(whole)):
        # The mark itself promises nothing.
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :])
        assert contents(tmp_path).entries == before.entries


@pytest.mark.parametrize("content", [b"", b"garbage!", MAGIC[:3], MAGIC, b"LSMQRFT1" + b"x" * 40])
def test_a_file_without_term_and_vote_is_refused_and_not_taken_for_a_new_one(tmp_path: Path, content: bytes) -> None:
    filled(tmp_path)
    (tmp_path / "JOURNAL").write_bytes(content)
    with pytest.raises(CorruptFile, match="must not vote"):
        Journal(tmp_path)


def test_a_voter_whose_file_was_removed_starts_anew_and_knows_that_it_has_not_held_everything(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "JOURNAL").unlink()
    assert contents(tmp_path) == Loaded() and not contents(tmp_path).state.whole


def test_cut_entries_never_come_back_and_others_take_their_place(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = Journal(tmp_path)
    journal.write([SaveCut(4)], 3)
    journal.close()
    assert contents(tmp_path).entries == tuple(entries(3))
    journal = Journal(tmp_path)
    journal.write([SaveEntry(RaftEntry(4, 7, b"other"))], 3)
    journal.close()
    assert contents(tmp_path).entries == (*entries(3), RaftEntry(4, 7, b"other"))


def test_a_snapshot_takes_the_place_of_all_before_it(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = Journal(tmp_path)
    before = journal.size_bytes
    journal.write([snapshot(5, *entries(1, 6)), *saved(1, 7)], 5)
    assert journal.size_bytes < before and journal.snapshot_bytes == len(b"state-5")
    journal.close()
    assert contents(tmp_path) == Loaded(STATE, 5, 2, b"state-5", tuple(entries(2, 6)), 5)


def test_a_crash_at_any_sync_around_a_snapshot_loses_no_durable_entry(tmp_path: Path) -> None:
    """What the disk then holds: the file before, or the new one, in whatever part of it was written."""
    for fails in range(1, 6):
        directory = tmp_path / str(fails)
        filled(directory)
        old = (directory / "JOURNAL").read_bytes()
        disk = CountingDisk()
        journal = Journal(directory, disk)
        disk.syncs, disk.fails = 0, fails
        journal.take_loaded()
        done = True
        try:
            journal.write([*saved(1, 7), snapshot(5, *entries(2, 6)), *saved(1, 8)], 5)
        except JournalFailed:
            done = False
        journal.close()
        assert done == (fails > 3), "the file, its directory, and what follows are synced"
        for left in left_behind(directory, tmp_path / "crashed", old):
            loaded = contents(left)
            last = loaded.snapshot_index + len(loaded.entries)
            assert loaded.state == STATE
            assert (loaded.snapshot, last) in ((None, 6), (b"state-5", 7), (b"state-5", 8))
            assert not done or last == 8, "it was reported as durable"
            assert loaded.entries == tuple(entries(last - loaded.snapshot_index, loaded.snapshot_index + 1))
            assert not (left / "JOURNAL.new").exists()


def left_behind(directory: Path, crashed: Path, old: bytes) -> Iterator[Path]:
    """Copies of the directory as a crash may have left it. A rename may not have come about unless what follows was
    synced, and a file that was not synced may be there in part."""

    def copy() -> Path:
        shutil.rmtree(crashed, ignore_errors=True)
        return Path(shutil.copytree(directory, crashed))

    yield copy()
    if (directory / "JOURNAL.new").exists():
        whole = (directory / "JOURNAL.new").read_bytes()
        for length in (0, 5, len(whole) // 2):
            (copy() / "JOURNAL.new").write_bytes(whole[:length])
            yield crashed
    if directory.name == "2":
        (copy() / "JOURNAL.new").write_bytes((directory / "JOURNAL").read_bytes())
        (crashed / "JOURNAL").write_bytes(old)
        yield crashed


def test_a_first_start_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    for fails in (1, 2):
        with pytest.raises(DataDirectoryUnusable, match="Input/output error"):
            Journal(tmp_path / str(fails), CountingDisk(fails))
        assert contents(tmp_path / str(fails)) == Loaded()


def test_the_name_of_its_directory_is_durable_before_anything_is_promised(tmp_path: Path) -> None:
    """Else a loss of power soon after the first start takes votes with it, and two lead in one term."""
    synced: list[str] = []

    class Noted:
        def sync(self, fd: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))

    for _ in range(2):  # Whoever made the directory may have ended before.
        synced.clear()
        Journal(tmp_path / "n1" / "raft", Noted()).close()
        assert synced[-1] == str(tmp_path / "n1") and str(tmp_path / "n1" / "raft") in synced[:-1]


def test_two_processes_do_not_share_a_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(DataDirectoryLocked):
        Journal(tmp_path)
    journal.close()


def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    disk = CountingDisk()
    journal = Journal(tmp_path, disk)
    disk.fails = disk.syncs + 1
    with pytest.raises(JournalFailed, match="stops"):
        journal.write(saved(1), 0)
    journal.close()


def test_a_sync_that_fails_at_the_start_is_told_by_name(tmp_path: Path) -> None:
    filled(tmp_path / "raft")

    class Failing:
        def sync(self, fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(DataDirectoryUnusable, match="JOURNAL cannot be opened: Input/output error"):
        Journal(tmp_path / "raft", Failing())
    Journal(tmp_path / "raft").close()


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    filled(tmp_path)
    assert (tmp_path / "JOURNAL").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_told_from_a_failed_one_and_what_was_durable_is_as_good_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    journal = Journal(tmp_path)
    pwrite, left = os.pwrite, 40

    def full(fd: int, content: bytes, position: int) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = pwrite(fd, bytes(content)[:left], position)
        left -= written
        return written

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(JournalFull, match="until there is room"):
        journal.write(saved(1, 7), 6)
    monkeypatch.undo()
    journal.close()
    assert contents(tmp_path).entries == tuple(entries(6))
