"""Which numbers have got names lately: for those who have looked at all names once, and ask what is new."""

from __future__ import annotations

from collections import deque
from itertools import takewhile

import numpy as np

from .columns import U32

#: Of so many names it is remembered that they came.
REMEMBERED = 1 << 16


class RecentNames:
    """Not thread-safe: its owner has a lock. Versions are offsets in the log of names."""

    def __init__(self) -> None:
        self._from = 0
        self._puts: deque[tuple[int, U32]] = deque()
        self._count = 0

    def restart(self, version: int) -> None:
        """Nothing is known of what came before."""
        self._puts.clear()
        self._from, self._count = version, 0

    def note(self, version: int, numbers: U32) -> None:
        """These have got names; who knows the names as of ``version`` does not know them."""
        if len(numbers):
            self._puts.append((version, numbers))
            self._count += len(numbers)
        while self._count > REMEMBERED and len(self._puts) > 1:
            self._count -= len(self._puts.popleft()[1])
            self._from = self._puts[0][0]

    def since(self, version: int) -> U32 | None:
        """Those that have got names since, ascending; None where any may have."""
        if version < self._from:
            return None
        found = [numbers for _, numbers in takewhile(lambda put: put[0] >= version, reversed(self._puts))]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint32)
