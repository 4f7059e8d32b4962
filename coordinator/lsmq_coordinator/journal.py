"""What a voter must never forget: its log, its term and vote. Durable before anything that rests on it leaves.

Two files in the voter's directory, and ``LOCK``, held by the process that uses them.

``VOTE``: one line of a CRC and a JSON map: term, vote, the commit index last known, and whether this voter
has held all that was committed. Replaced as a whole: written, synced, renamed, directory synced.

``JOURNAL``: 8 bytes of magic, then records, little-endian:

    ========  =====  ==============================================
    marker      4    ``RLOG``
    length      4    of the command, at most 16 MiB
    crc32c      4    of all that follows
    durable     8    file position below which all was synced before
    index       8    counts up by one
    term        8    never falls
    command     n
    ========  =====  ==============================================

A file that ends in a record that is not whole was torn by a crash, before any answer rested on it: it is cut
there. Damage below what was durable (a later record's ``durable``, or the commit index, says so) is refused:
a voter that has lost acknowledged entries must not vote.

The class has the methods pysyncobj asks of a journal, with its names. ``add`` only writes: :meth:`flush` makes
durable, and is called before a message leaves and before an entry counts as committed. Cutting syncs at once.

Not supported: compaction. A command takes some hundred bytes; the log keeps all of them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import crc32c

from lsmq.errors import CorruptFile, DataDirectoryLocked, DataDirectoryUnusable

Entry = tuple[bytes, int, int]

MAGIC = b"LSMQRFT1"
MARKER = b"RLOG"
_HEADER = struct.Struct("<4sII")
_FIELDS = struct.Struct("<QQQ")
MAX_COMMAND_BYTES = 16 << 20


class JournalFailed(Exception):
    """A write or sync failed. What the disk holds cannot be known: the voter must stop."""


class JournalFull(JournalFailed):
    """There is no room for a write, of which nothing counts: what was durable is as good as before."""


#: What passes by itself: a full disk or quota, too many open files.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Around what counts as a whole or not at all."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise JournalFull(f"{path}: {error.strerror}; the voter stops until there is room") from error
        raise JournalFailed(f"{path}: {error.strerror or error}; the voter stops") from error


@contextmanager
def _final(path: Path) -> Iterator[None]:
    """Around a sync of what is in place already."""
    try:
        yield
    except OSError as error:
        raise JournalFailed(f"{path}: {error.strerror or error}; the voter stops") from error


class Journal:
    """The log of one voter. All calls come from one thread. ``command, index, term`` is an entry."""

    def __init__(self, directory: Path) -> None:
        """Opens or makes the files. Raises ``CorruptFile``, ``DataDirectoryLocked``, ``DataDirectoryUnusable``."""
        self._directory = directory
        self._path = directory / "JOURNAL"
        self._vote_path = directory / "VOTE"
        self._lock = _lock(directory)
        self._entries: list[Entry] = []
        self._positions: list[int] = []
        self._dirty = False
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        vote = self._read_vote()
        if vote is None:
            if self._path.exists():
                raise CorruptFile(
                    f"{self._vote_path} is missing although {self._path} exists: the voter no longer knows whom it "
                    "voted for. Remove both files to let it start anew from the other voters.",
                    file=str(self._vote_path),
                )
            vote = {"term": 0, "vote": None, "commit": 1, "whole": False}
        elif not self._path.exists() and vote["term"] > 0:
            raise CorruptFile(
                f"{self._path} is missing although {self._vote_path} exists: the voter has lost its log. Remove both "
                "files to let it start anew from the other voters.",
                file=str(self._path),
            )
        self._vote = vote
        self._saved = dict(vote)
        if not self._vote_path.exists():
            self._save_vote()
        fresh = not self._path.exists()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._load()
        except BaseException:
            os.close(self._fd)
            raise
        if fresh:
            _sync_directory(self._directory)

    # The log

    def add(self, command: bytes, index: int, term: int) -> None:
        """Write an entry. Not durable before :meth:`flush`."""
        if self._entries and index != self._entries[-1][1] + 1:
            raise ValueError(f"entry {index} does not follow entry {self._entries[-1][1]}")
        body = _FIELDS.pack(self._durable, index, term) + command
        record = _HEADER.pack(MARKER, len(command), crc32c.crc32c(body)) + body
        with _whole(self._path):
            _write(self._fd, record, self._end)
        self._entries.append((bytes(command), index, term))
        self._positions.append(self._end)
        self._end += len(record)
        self._dirty = True

    def flush(self) -> None:
        """Make all entries durable. A failure is final: what the disk holds after it cannot be known."""
        if self._dirty:
            with _final(self._path):
                os.fdatasync(self._fd)
            self._durable = self._end
            self._dirty = False

    def deleteEntriesFrom(self, position: int) -> None:
        """Drop the entries from a list position on; durable on return, so that they can never come back."""
        if position >= len(self._entries):
            return
        self._end = self._positions[position]
        del self._entries[position:]
        del self._positions[position:]
        with _final(self._path):
            os.ftruncate(self._fd, self._end)
            os.fsync(self._fd)
        self._durable = self._end
        self._dirty = False

    def deleteEntriesTo(self, position: int) -> None:
        raise NotImplementedError("the log is never compacted")

    def clear(self) -> None:
        raise NotImplementedError("the log is never cleared")

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last_index(self) -> int:
        return self._entries[-1][1] if self._entries else 0

    @property
    def size_bytes(self) -> int:
        return self._end

    def term_at(self, index: int) -> int | None:
        """The term of the entry at ``index``; None when there is none."""
        position = index - self._entries[0][1] if self._entries else -1
        return self._entries[position][2] if 0 <= position < len(self._entries) else None

    # Term, vote and what is known to be committed

    def setCurrentTerm(self, term: int, vote: str | None) -> None:
        """Durable on return: the caller sends or grants a vote next."""
        self._vote.update(term=term, vote=vote)
        self._save_vote()

    def getCurrentTerm(self) -> int:
        return int(self._vote["term"])

    def getVotedForNodeId(self) -> str | None:
        vote = self._vote["vote"]
        return None if vote is None else str(vote)

    def setRaftCommitIndex(self, index: int) -> None:
        """Note what is committed, before it is applied. What this voter holds of it is durable on return."""
        self.flush()
        self._vote["commit"] = index

    def getRaftCommitIndex(self) -> int:
        return int(self._vote["commit"])

    @property
    def whole(self) -> bool:
        """Whether this voter has held all that was committed, in a group of which all voters have.

        One that lost its disk has not, and must not vote as if it had never acknowledged anything.
        """
        return bool(self._vote["whole"])

    def mark_whole(self) -> None:
        """Durable on return."""
        self.flush()
        self._vote["whole"] = True
        self._save_vote()

    def onOneSecondTimer(self) -> None:
        if self._vote != self._saved:
            self._save_vote()

    def _destroy(self) -> None:
        """Close the files; called once by pysyncobj."""
        os.close(self._fd)
        os.close(self._lock)

    # Files

    def _save_vote(self) -> None:
        text = json.dumps(self._vote, sort_keys=True).encode()
        temporary = self._vote_path.with_suffix(".tmp")
        with _whole(self._vote_path):
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write(fd, b"%08x %s\n" % (crc32c.crc32c(text), text), 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.rename(self._vote_path)
            _sync_directory(self._directory)
        self._saved = dict(self._vote)

    def _read_vote(self) -> dict[str, Any] | None:
        try:
            content = self._vote_path.read_bytes()
        except FileNotFoundError:
            return None
        checksum, _, text = content.rstrip(b"\n").partition(b" ")
        if checksum != b"%08x" % crc32c.crc32c(text):
            raise CorruptFile(
                f"{self._vote_path}: the checksum does not match. A voter that does not know its vote must not vote; "
                "remove this file and the journal beside it to let it start anew from the other voters.",
                file=str(self._vote_path),
                position=0,
            )
        vote: dict[str, Any] = json.loads(text)
        return vote

    def _load(self) -> None:
        content = Path(self._path).read_bytes()
        if len(content) < len(MAGIC):
            if self._vote["term"] > 0:
                raise self._damaged(0)
            _write(self._fd, MAGIC, 0)
            content = MAGIC
            self._dirty = True
        elif not content.startswith(MAGIC):
            raise self._damaged(0)
        position = len(MAGIC)
        while (found := _record(content, position)) is not None:
            _, entry, end = found
            if self._entries and (entry[1] != self._entries[-1][1] + 1 or entry[2] < self._entries[-1][2]):
                raise self._damaged(position)
            self._entries.append(entry)
            self._positions.append(position)
            position = end
        if position < len(content):
            if any(durable > position for durable in _later_records(content, position + 1)):
                raise self._damaged(position)
            os.ftruncate(self._fd, position)
        if max(self.last_index, 1) < self._vote["commit"]:
            raise self._damaged(position)
        os.fsync(self._fd)
        self._end = self._durable = position
        self._dirty = False

    def _damaged(self, position: int) -> CorruptFile:
        return CorruptFile(
            f"{self._path}: damaged at byte {position}, below what was durable (commit index {self._vote['commit']}). "
            "Remove this file and VOTE beside it to let the voter start anew from the other voters.",
            file=str(self._path),
            position=position,
        )


def _record(content: bytes, position: int) -> tuple[int, Entry, int] | None:
    """``(durable, entry, end)`` of the record at ``position``, or None when none is intact there."""
    start = position + _HEADER.size
    if start + _FIELDS.size > len(content):
        return None
    marker, length, checksum = _HEADER.unpack_from(content, position)
    end = start + _FIELDS.size + length
    if marker != MARKER or length > MAX_COMMAND_BYTES or end > len(content):
        return None
    body = content[start:end]
    if crc32c.crc32c(body) != checksum:
        return None
    durable, index, term = _FIELDS.unpack_from(body)
    return durable, (body[_FIELDS.size :], index, term), end


def _later_records(content: bytes, position: int) -> Iterator[int]:
    """What each intact record from ``position`` on, wherever it begins, says was durable."""
    while (position := content.find(MARKER, position)) >= 0:
        found = _record(content, position)
        if found is not None:
            yield found[0]
        position += 1


def _lock(directory: Path) -> int:
    """Take the directory for this process; the kernel gives it back when the process ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirectoryUnusable(
            f"the directory {directory} cannot be written: {error.strerror}. Check its owner and mode.",
            directory=str(directory),
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise DataDirectoryLocked(
            f"the directory {directory} is in use by another voter process. Stop it, or choose another directory.",
            directory=str(directory),
        ) from None
    return fd


def _write(fd: int, content: bytes, position: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
