"""Files that the page cache is to forget, and what the disk gives for them then."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

BUFFER_BYTES = 1 << 20


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
    """Read what there is in all files of a directory from end to end; bytes a second.

    Space that a file has and nothing was written to is passed over: the disk is not asked for it.
    """
    buffer, taken, began = memoryview(bytearray(BUFFER_BYTES)), 0, time.perf_counter()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                for start, end in written_parts(path):
                    file.seek(start)
                    while start < end and (count := file.readinto(buffer[: end - start])):
                        start += count
                        taken += count
    return taken / (time.perf_counter() - began)


def written_parts(path: Path) -> Iterator[tuple[int, int]]:
    """Where a file has bytes: begin and end of each part."""
    end = 0
    with path.open("rb") as file:
        while True:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing behind it
                    return
                raise
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, end
