"""What a voter must never forget, on its disk: one file, durable before anything that rests on it leaves.

``JOURNAL`` in the voter's directory holds its term and vote, a snapshot and the log behind it
(:mod:`~.raft_records`); ``LOCK`` is held by the process that uses it. All of a batch of writes becomes durable with one
sync. A snapshot is written with all there is to keep into ``JOURNAL.new``, synced, renamed, and the directory synced:
so the file is always one or the other, and no crash between them loses an entry. That is also how a journal begins, so
a file without term and vote, or with a damaged record below what was durable, is refused: a voter that has lost what
it acknowledged must not vote.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from lsmq import runtime
from lsmq.errors import CorruptFile, DataDirectoryLocked, DataDirectoryUnusable

from .raft_membership import MARK
from .raft_outbox import SaveEntry, SaveSnapshot, SaveState, Write
from .raft_records import (
    MAGIC,
    MAGIC_CHANGED,
    JournalDamaged,
    encode_snapshot,
    encode_synced,
    encode_write,
    replay,
)
from .raft_terms import MAX_SNAPSHOT_BYTES, HardState, Loaded


class JournalFailed(Exception):
    """A write or sync failed. What the disk holds cannot be known: the voter must stop."""


class JournalFull(JournalFailed):
    """There is no room for a write, of which nothing counts: what was durable is as good as before."""


#: What passes by itself: a full disk or quota, too many open files.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class JournalDisk(Protocol):
    """What makes a file durable. Drills and tests put slow and failing ones here."""

    def sync(self, fd: int) -> None: ...


class _OsDisk:
    def sync(self, fd: int) -> None:
        os.fsync(fd)


OS_DISK: JournalDisk = _OsDisk()


class DelayedDisk:
    """A real one that takes ``delay_s`` longer for each sync."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def sync(self, fd: int) -> None:
        runtime.sleep(self.delay_s)
        OS_DISK.sync(fd)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Around what is told to nobody before it is durable."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise JournalFull(f"{path}: {error.strerror}; the voter stops until there is room") from error
        raise _failed(path, error) from error


def _failed(path: Path, error: OSError) -> JournalFailed:
    return JournalFailed(f"{path}: {error.strerror or error}; the voter stops")


class Journal:
    """The file of one voter. All calls come from one thread at a time; the sizes may be read from any."""

    def __init__(self, directory: Path, disk: JournalDisk = OS_DISK) -> None:
        """Opens or makes the file. Raises ``CorruptFile``, ``DataDirectoryLocked``, ``DataDirectoryUnusable``."""
        self._directory, self._disk = directory, disk
        self._path = directory / "JOURNAL"
        self._new_path = directory / "JOURNAL.new"
        self._fd = -1
        self._marked = True
        self._magic = MAGIC
        self._loaded: Loaded | None = None
        self.snapshot_bytes = 0
        self._lock = _lock(directory)
        try:
            self._open()
        except OSError as error:
            self.close()
            raise DataDirectoryUnusable(
                f"{self._path} cannot be opened: {error.strerror}. Check the disk.", directory=str(directory)
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        return self._end

    def take_loaded(self) -> Loaded:
        """What the file held when it was opened. Once: it is not kept."""
        assert self._loaded is not None, "what the journal held was taken already"
        taken, self._loaded = self._loaded, None
        return taken

    def _open(self) -> None:
        self._new_path.unlink(missing_ok=True)
        self._end = self._durable = 0
        if not self._path.exists():
            self._replace([encode_write(SaveState(HardState()), 0)])
        else:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        content = self._path.read_bytes()
        if content.startswith(MAGIC_CHANGED):
            self._magic = MAGIC_CHANGED
        try:
            self._loaded, self._end = replay(content)
        except JournalDamaged as damaged:
            raise CorruptFile(
                f"{self._path}: damaged at byte {damaged.position}: {damaged}. A voter that does not know what it "
                "promised must not vote. Remove this file to let it start anew from the other voters: it votes again "
                "once one of them has brought it up to date.",
                file=str(self._path),
                position=damaged.position,
            ) from damaged
        # Written anew as a whole: whoever wrote it may have ended before it was durable. And if its sync failed, the
        # system takes for clean what is not on the disk, and another sync would not put it there.
        self._replace([content[len(MAGIC) : self._end]])
        # Else a loss of power takes the directory's name, and all that was promised with it.
        self._sync_directory(self._directory.parent)
        self.snapshot_bytes = len(self._loaded.snapshot or b"")

    def write(self, writes: Sequence[Write], commit: int) -> None:
        """Durable on return. ``commit`` is known to be committed: noted, for the next start."""
        for number in range(len(writes) - 1, -1, -1):
            write = writes[number]
            if isinstance(write, SaveSnapshot):
                # It takes the place of all before it, written or not.
                self._compact(write)
                writes = writes[number + 1 :]
                break
        with _writing(self._path):
            if any(_says_who_votes(write) for write in writes):
                self._change_magic()
            if writes:
                self._append(b"".join(self._encode(write) for write in writes))
                self._sync()
            self._append(encode_synced(self._durable, commit))
            self._marked = False

    def _sync(self) -> None:
        """A failure is final, whatever its reason: what the disk holds after it cannot be known."""
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            raise _failed(self._path, error) from error
        self._durable = self._end

    def _encode(self, write: Write) -> bytes:
        assert not isinstance(write, SaveSnapshot)
        return encode_write(write, self._durable)

    def rest(self) -> None:
        """Nothing was to be written for a while: the mark behind the last write becomes durable too."""
        if not self._marked:
            self._sync()
            self._marked = True

    @property
    def marked(self) -> bool:
        return self._marked

    def close(self) -> None:
        fd, self._fd, lock, self._lock = self._fd, -1, self._lock, -1
        try:
            if fd >= 0:
                os.close(fd)
        finally:
            if lock >= 0:
                os.close(lock)

    # Files

    def _append(self, content: bytes) -> None:
        _write(self._fd, content, self._end)
        self._end += len(content)

    def _change_magic(self) -> None:
        """From now on, before anything is in the file that releases before would not understand."""
        if self._magic != MAGIC_CHANGED:
            _write(self._fd, MAGIC_CHANGED, 0)
            self._sync()
            self._magic = MAGIC_CHANGED

    def _compact(self, write: SaveSnapshot) -> None:
        content = write.snapshot.encode()
        if content.startswith(MARK) or any(entry.command.startswith(MARK) for entry in write.entries):
            self._magic = MAGIC_CHANGED
        if len(content) > MAX_SNAPSHOT_BYTES:
            raise JournalFailed(f"the control state takes {len(content)} bytes; the limit is {MAX_SNAPSHOT_BYTES}")
        parts = [encode_snapshot(write.snapshot.index, write.snapshot.term, content)]
        parts.append(encode_write(SaveState(write.state), 0))
        parts += [encode_write(SaveEntry(entry), 0) for entry in write.entries]
        with _writing(self._path):
            self._replace(parts)
        self.snapshot_bytes = len(content)

    def _replace(self, parts: Sequence[bytes]) -> None:
        content = self._magic + b"".join(parts)
        fd = os.open(self._new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, content, 0)
            self._disk.sync(fd)
            self._new_path.rename(self._path)
            self._sync_directory(self._directory)
        except BaseException:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._end = self._durable = len(content)

    def _sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._disk.sync(fd)
        finally:
            os.close(fd)


def _says_who_votes(write: Write) -> bool:
    return isinstance(write, SaveEntry) and write.entry.command.startswith(MARK)


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
