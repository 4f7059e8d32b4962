"""One process at a time in a data directory."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lsmq import runtime
from lsmq.errors import ClientClosed, DataDirectoryLocked, DataDirectoryUnusable


class DirectoryLock:
    """Holds ``LOCK`` in a directory, with the process id in it. The kernel drops it when the process dies.

    A child that the process forks does not hold it: it lets go of its copy of the descriptor at once, so that the
    directory is free when its owner has died, and tells ``on_fork``.
    """

    def __init__(self, directory: Path) -> None:
        """Makes the directory. Raises ``DataDirectoryLocked`` or ``DataDirectoryUnusable``."""
        path = directory / "LOCK"
        self.on_fork: list[Callable[[], None]] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirectoryUnusable(
                f"the data directory {directory} cannot be written: {error.strerror}. Check its owner and mode, or "
                "choose another.",
                directory=str(directory),
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            locked = _locked(directory, self._fd)
            os.close(self._fd)
            raise locked from None
        with suppress(OSError):  # A full disk: the lock is the kernel's, the number is for people.
            os.ftruncate(self._fd, os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0))
        _held.add(self)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def forked(self) -> None:
        """This is a child of the process that holds the lock."""
        self.release()
        for tell in self.on_fork:
            tell()


def _locked(directory: Path, fd: int) -> DataDirectoryLocked:
    pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
    is_own = pid == str(os.getpid())
    what = ", which is this one. Close what has it open" if is_own else ". Stop that process"
    return DataDirectoryLocked(
        f"the data directory {directory} is in use by process {pid or 'unknown'}{what}, or choose another directory.",
        directory=str(directory),
        pid=int(pid) if pid.isdigit() else None,
    )


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_held):
        lock.forked()


runtime.after_fork_in_child(_after_fork)


def forked(directory: Path | str) -> ClientClosed:
    """What a forked child is told."""
    return ClientClosed(
        f"the store {directory} belongs to the process that opened it, not to this one ({os.getpid()}), which was "
        "forked while it was open. Close it before forking, or open another one in the child.",
        directory=str(directory),
    )


@contextmanager
def unused_directory(directory: Path) -> Iterator[None]:
    """Nobody opens the store in a directory meanwhile. Writes nothing, and needs no right to.

    Raises ``DataDirectoryLocked`` when somebody has it open, ``DataDirectoryUnusable`` when it cannot be read.
    """
    try:
        fd = os.open(directory / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # it was never open, or was copied without
        yield
        return
    except OSError as error:
        raise DataDirectoryUnusable(
            f"the data directory {directory} cannot be read: {error.strerror}", directory=str(directory)
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise _locked(directory, fd) from None
        yield
    finally:
        os.close(fd)
