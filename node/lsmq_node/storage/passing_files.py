"""Directories for files that only pass through this machine, and are gone when they have.

A process that is killed leaves its own behind: whoever makes the next one of a kind in the same place removes it. That
it is nobody's any more is known by its lock (``flock``), which the kernel drops with the process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def passing_directory(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """A new directory ``lsmq-<kind>-spool-...`` in ``parent``, or where the system has temporary files.

    Raises ``OSError``.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_left(kind, parent)
    directory, lock = _new(kind, parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _new(kind: str, parent: Path) -> tuple[Path, int]:
    while True:
        directory = Path(tempfile.mkdtemp(prefix=f"lsmq-{kind}-spool-", dir=parent))
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # Others have taken it for one that was left.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            return directory, lock
        os.close(lock)


def _remove_left(kind: str, parent: Path) -> None:
    for directory in parent.glob(f"lsmq-{kind}-spool-*"):
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # It is no directory, another user's, or gone.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            continue  # It is in use.
        finally:
            os.close(lock)
