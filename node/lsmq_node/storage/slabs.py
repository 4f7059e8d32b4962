"""Memory for memtables that is used again: pages that were touched once need not be asked of the system once more.

Filling fresh memory costs a page fault every 4 KiB, which is as much as copying the records into it.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np

from .columns import U8


class Slabs:
    """Byte arrays of one size. One comes back by itself once it and every view of it are gone: nobody can see it."""

    def __init__(self, size_bytes: int, huge: Sequence[tuple[int, int]] = (), spares: int = 2) -> None:
        """The parts ``huge``, of bytes ``[begin, end)``, may be huge pages; up to ``spares`` unused slabs are kept."""
        self._size_bytes = size_bytes
        self._huge = huge
        self._spares: deque[mmap.mmap] = deque(maxlen=spares)
        self._taken = False

    def take(self) -> U8:
        """A slab, with whatever is in it."""
        self._taken = True
        try:
            memory = self._spares.pop()
        except IndexError:
            memory = self._map()
        slab: U8 = np.frombuffer(memory, np.uint8)  # every view of it refers to this very array
        weakref.finalize(slab, self._spares.append, memory).atexit = False
        return slab

    def _map(self) -> mmap.mmap:
        memory = mmap.mmap(-1, self._size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for begin, end in self._huge if hasattr(mmap, "MADV_HUGEPAGE") else ():
            first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            if first < end:
                with contextlib.suppress(OSError):  # a kernel without them
                    memory.madvise(mmap.MADV_HUGEPAGE, first, end - first)
        return memory

    def trim(self) -> None:
        """Give the spares back to the system, if none was wanted since the last call."""
        if not self._taken:
            self._spares.clear()
        self._taken = False
