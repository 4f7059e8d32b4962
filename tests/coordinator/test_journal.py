"""A voter's files: what was flushed is there again, torn ends are cut, damage is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lsmq.errors import CorruptFile, DataDirectoryLocked
from lsmq_coordinator.journal import MAGIC, Journal, JournalFailed

Entries = list[tuple[bytes, int, int]]


def entries(count: int) -> Entries:
    return [(b"command-%d" % index, index, 1 + index // 3) for index in range(1, count + 1)]


def filled(directory: Path, count: int = 6) -> Entries:
    journal = Journal(directory)
    journal.setCurrentTerm(9, "n1")
    for entry in entries(count):
        journal.add(*entry)
        journal.flush()
    journal._destroy()
    return entries(count)


def contents(directory: Path) -> Entries:
    journal = Journal(directory)
    try:
        return journal[:]
    finally:
        journal._destroy()


def test_what_was_flushed_is_there_again(tmp_path: Path) -> None:
    written = filled(tmp_path)
    journal = Journal(tmp_path)
    assert journal[:] == written
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (9, "n1")
    assert journal.term_at(3) == 2 and journal.term_at(0) is None and journal.term_at(7) is None
    assert (journal.last_index, len(journal), journal[-1]) == (6, 6, written[-1])
    journal._destroy()


def test_every_length_of_a_torn_last_write_is_cut_to_what_was_whole(tmp_path: Path) -> None:
    """The last two entries were written together and not synced: any part of them may be there."""
    journal = Journal(tmp_path)
    journal.setCurrentTerm(1, None)
    for entry in entries(4):
        journal.add(*entry)
    journal.flush()
    durable = journal.size_bytes
    ends = [durable]
    for entry in entries(6)[4:]:
        journal.add(*entry)
        ends.append(journal.size_bytes)
    journal._destroy()
    path = tmp_path / "JOURNAL"
    whole = path.read_bytes()
    for length in range(durable, len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = 4 + sum(length >= end for end in ends[1:])
        assert contents(tmp_path) == entries(kept), length
        assert path.stat().st_size == ends[kept - 4], "the torn end was left to come back to life"


def test_every_flipped_byte_below_what_was_durable_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / "JOURNAL"
    whole = path.read_bytes()
    # The last record's own damage looks like a torn write, unless the commit index says otherwise.
    last = whole.rindex(b"RLOG")
    for position in range(last):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :])
        with pytest.raises(CorruptFile):
            Journal(tmp_path)
    path.write_bytes(whole)
    assert contents(tmp_path) == entries(6)


def test_an_end_that_is_missing_below_the_commit_index_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = Journal(tmp_path)
    journal.setRaftCommitIndex(6)
    journal.onOneSecondTimer()
    journal._destroy()
    path = tmp_path / "JOURNAL"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptFile, match="commit index 6"):
        Journal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"00000000 {}\n"])
def test_a_vote_that_cannot_be_read_is_refused_and_not_taken_for_none(tmp_path: Path, content: bytes) -> None:
    filled(tmp_path)
    (tmp_path / "VOTE").write_bytes(content)
    with pytest.raises(CorruptFile, match="must not vote"):
        Journal(tmp_path)


@pytest.mark.parametrize("name", ["VOTE", "JOURNAL"])
def test_one_file_without_the_other_is_refused(tmp_path: Path, name: str) -> None:
    filled(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CorruptFile, match="missing"):
        Journal(tmp_path)


def test_a_first_start_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    Journal(tmp_path)._destroy()
    (tmp_path / "JOURNAL").unlink()
    Journal(tmp_path)._destroy()
    (tmp_path / "JOURNAL").write_bytes(MAGIC[:3])
    assert contents(tmp_path) == []


def test_cut_entries_never_come_back_and_others_take_their_place(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = Journal(tmp_path)
    journal.deleteEntriesFrom(3)
    assert journal.last_index == 3
    journal._destroy()
    assert contents(tmp_path) == entries(3)
    journal = Journal(tmp_path)
    journal.add(b"other", 4, 7)
    journal.flush()
    journal._destroy()
    assert contents(tmp_path) == [*entries(3), (b"other", 4, 7)]


def test_an_entry_out_of_turn_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add(b"", 1, 0)
    with pytest.raises(ValueError, match="does not follow"):
        journal.add(b"", 3, 0)
    journal._destroy()


def test_two_processes_do_not_share_a_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(DataDirectoryLocked):
        Journal(tmp_path)
    journal._destroy()


def test_a_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.add(b"", 1, 0)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(JournalFailed, match="stops"):
        journal.flush()
    monkeypatch.undo()
    journal._destroy()


def test_committing_makes_durable_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    synced = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
    journal.add(b"x", 1, 0)
    assert synced == []
    journal.setRaftCommitIndex(1)
    assert len(synced) == 1
    journal._destroy()
