"""A machine that has been up for a while: its memory is full of files, and what is written takes the place of those.

Fresh memory is another matter: the host of a virtual machine hands it out at first touch, which can cost more than all
that is then done with it, and takes it back when it is free for a moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: So much may stay free: about what the system itself likes to keep.
FREE_BYTES = 512 << 20
#: A machine with more memory is not filled.
MAX_BYTES = 64 << 30
NOTE = (
    "Before each measurement the page cache is filled with a file of zeros, as on a machine that has been up for a "
    "while: fresh memory is handed out by the host of a virtual machine, and may cost more than what is measured."
)
_CHUNK_BYTES = 1 << 20


class PageCache:
    """Filled by reading a file that is one hole: it takes no room on the disk."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def fill(self, free_bytes: int = FREE_BYTES) -> int:
        """Leave so much free memory, and return how many bytes were read for it: 0 on a machine above ``MAX_BYTES``, or
        one that does not say what is free."""
        total = _memory_bytes("SC_PHYS_PAGES")
        if not 0 < total <= MAX_BYTES:
            return 0
        buffer = bytearray(_CHUNK_BYTES)
        with open(self._file, "ab+", buffering=0) as hole:
            hole.truncate(total)
            position = 0
            while position < total and _memory_bytes("SC_AVPHYS_PAGES") >= free_bytes:
                position += os.preadv(hole.fileno(), [buffer], position)
        return position


@contextmanager
def page_cache(directory: Path) -> Iterator[PageCache]:
    """To be filled by a file in ``directory``, which is removed afterwards."""
    file = directory / "hole"
    try:
        yield PageCache(file)
    finally:
        file.unlink(missing_ok=True)


def _memory_bytes(name: str) -> int:
    """0 where the system has no such figure."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)
    except ValueError:
        return 0
