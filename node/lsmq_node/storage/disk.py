"""The disk as the storage engine sees it: a small interface, so that faults can be simulated.

Everything the engine does to files goes through a :class:`Disk`. :class:`OsDisk` is the real one; the tests
have one on top of it that drops what was not synced, tears writes and fails on command.

The durability rules the engine relies on: bytes written to a file survive a crash once ``File.sync`` has
returned; a name that was created, renamed or removed survives once ``Disk.sync_directory`` of its parent has
returned.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Protocol

from lsmq import runtime
from lsmq_node.descriptors import DESCRIPTORS, Descriptors

Buffer = bytes | bytearray | memoryview

_IOV_LIMIT = 512

#: What the system says of bytes that the disk has lost.
LOST = (errno.EIO, errno.EBADMSG, errno.ENODATA, errno.EUCLEAN)


class Clock(Protocol):
    """Where the engine gets the time from."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back, and counts while the machine sleeps."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return runtime.wall_ms()

    def monotonic(self) -> float:
        return runtime.boot_time()


class File(Protocol):
    """An open file. Positions and lengths are bytes."""

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes at ``position``; fewer only at the end of the file."""

    def pwrite(self, buffer: Buffer, position: int) -> None:
        """Write the whole buffer."""

    def pwrite_many(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write buffers one after another."""

    def sync(self) -> None:
        """Make what was written durable (fdatasync)."""

    def preallocate(self, begin: int, end: int) -> None:
        """Reserve disk space for the bytes ``[begin, end)``; those that were not written read as zeros."""

    def lengthen(self, length: int) -> None:
        """Make a shorter file so long: what it has not held before reads as zeros, and takes no space."""

    def size(self) -> int: ...

    def close(self) -> None: ...

    def stream(self) -> BinaryIO:
        """The file as a Python stream, for sendfile."""


class Disk(Protocol):
    """The operations on names and files that the engine needs."""

    def create(self, path: Path) -> File:
        """A new, empty file, replacing one of that name."""

    def open(self, path: Path, *, write: bool = False, random: bool = False) -> File:
        """An existing file. ``random``: nothing but what is asked for is to be read. Raises ``FileNotFoundError``."""

    def read_all(self, path: Path) -> bytes: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, on the same file system. Raises ``FileExistsError`` when it is taken."""

    def remove(self, path: Path) -> None:
        """Remove a name; one that is not there is fine."""

    def list(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; none when it does not exist."""

    def make_directory(self, path: Path) -> None:
        """Make the directory and its parents where missing."""

    def sync_directory(self, path: Path) -> None: ...

    def free_bytes(self, path: Path) -> int:
        """Space left for this process on the file system of ``path``."""


class _Stream(FileIO):
    """Closed, without complaint, when the last user drops it: the file itself or a reader's range of it."""

    def __del__(self) -> None:
        self.close()


class OsFile:
    """A real file, by its descriptor. Closed when it and its stream are dropped."""

    __slots__ = ("_stream", "fd")

    def __init__(self, fd: int, *, write: bool) -> None:
        self.fd = fd
        self._stream: BinaryIO = _Stream(fd, "r+" if write else "r")

    def pread(self, length: int, position: int) -> bytes:
        chunk = os.pread(self.fd, length, position)
        if len(chunk) == length or not chunk:
            return chunk
        parts = [chunk]
        got = len(chunk)
        while got < length and (chunk := os.pread(self.fd, length - got, position + got)):
            parts.append(chunk)
            got += len(chunk)
        return b"".join(parts)

    def pwrite(self, buffer: Buffer, position: int) -> None:
        view = memoryview(buffer)
        while view:
            written = os.pwrite(self.fd, view, position)
            view = view[written:]
            position += written

    def pwrite_many(self, buffers: Sequence[Buffer], position: int) -> None:
        for first in range(0, len(buffers), _IOV_LIMIT):
            group = buffers[first : first + _IOV_LIMIT]
            size = sum(map(len, group))
            written = os.pwritev(self.fd, group, position)
            if written < size:
                self.pwrite(memoryview(b"".join(group))[written:], position + written)
            position += size

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def preallocate(self, begin: int, end: int) -> None:
        os.posix_fallocate(self.fd, begin, end - begin)

    def lengthen(self, length: int) -> None:
        if self.size() < length:
            os.ftruncate(self.fd, length)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        self._stream.close()

    def stream(self) -> BinaryIO:
        return self._stream


class OsDisk:
    """The operating system's files. Where no descriptor is left for one, what the process keeps back is used."""

    def __init__(self, descriptors: Descriptors = DESCRIPTORS) -> None:
        self._descriptors = descriptors

    def _open(self, path: Path, flags: int) -> int:
        return self._descriptors.opening(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))

    def create(self, path: Path) -> File:
        return OsFile(self._open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), write=True)

    def open(self, path: Path, *, write: bool = False, random: bool = False) -> File:
        fd = self._open(path, os.O_RDWR if write else os.O_RDONLY)
        if random:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return OsFile(fd, write=write)

    def read_all(self, path: Path) -> bytes:
        with open(self._open(path, os.O_RDONLY), "rb") as stream:
            return stream.read()

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(self._descriptors.opening(lambda: [entry.name for entry in directory.iterdir()]))
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        # A rename has come before: whether it is durable must be known.
        fd = self._descriptors.opening_at_last(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: Path) -> int:
        usage = os.statvfs(path)
        return usage.f_bavail * usage.f_frsize


def read_back(file: File, length: int, position: int) -> bytes:
    """What was written there. None of it where the disk cannot read it all: then it is damaged, like what was changed.

    Of a failed write nobody knows what the disk has, so the store stops; of this it is known what is lost.
    """
    try:
        return file.pread(length, position)
    except OSError as error:
        if error.errno not in LOST:
            raise
        return b""


def replace_file(disk: Disk, path: Path, content: bytes | Callable[[File], None]) -> None:
    """Replace a file in one step that survives a crash: write, sync, rename, sync the directory.

    ``content`` is all of it, or writes it to the new file. A reader sees the old content or the new, never a part.
    Durable on return. When it raises ``ENOSPC`` the old file is there as before.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with closing(disk.create(temporary)) as file:
            if isinstance(content, bytes):
                file.pwrite(content, 0)
            else:
                content(file)
            file.sync()
        disk.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise
    try:
        disk.sync_directory(path.parent)
    except OSError as error:
        # Not "disk full", which is survived: whether a crash leaves the old file or the new is not known now.
        raise OSError(errno.EIO, f"syncing {path.parent} failed: {error.strerror}") from error
