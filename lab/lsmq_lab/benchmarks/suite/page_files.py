"""Files that the page cache is to forget, and what the disk gives for them then."""

from __future__ import annotations

import os
import time
from pathlib import Path


def forget(directory: Path) -> None:
    """Have the system drop what it has in its cache of a directory's files, which it writes before."""
    for path in directory.rglob("*"):
        if not path.is_file():
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # Merged away meanwhile.
            continue
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_through(directory: Path) -> float:
    """Read all files of a directory from end to end; bytes a second."""
    buffer, taken, began = bytearray(1 << 20), 0, time.perf_counter()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    taken += count
    return taken / (time.perf_counter() - began)
