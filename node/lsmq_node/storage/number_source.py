"""Numbers that names are given: those that were given before and are free again, then such as nobody had yet."""

from __future__ import annotations

from array import array

import numpy as np

from .columns import U32


class NumberSource:
    """Not thread-safe: its owner has a lock. It is filled with what is free, again whenever that is forgotten."""

    def __init__(self) -> None:
        self._free: array[int] | None = None  # below ``_next``
        self._next = 0

    @property
    def is_known(self) -> bool:
        return self._free is not None

    def forget(self) -> None:
        """Others have given numbers, or what was given has come to nothing."""
        self._free = None

    def fill(self, free: U32, end: int) -> None:
        """These are free of the numbers below ``end``, and all from there on. The lowest are given first."""
        self._free = array("I")
        self._free.frombytes(free[::-1].tobytes())
        self._next = end

    def room(self, limit: int) -> int:
        """How many numbers below ``limit`` can be given."""
        return limit - self._next + len(self._known)

    def look(self, count: int) -> U32:
        """The next so many, which are not given yet."""
        taken = min(count, len(self._known))
        numbers = np.empty(count, np.uint32)
        numbers[:taken] = self._known[len(self._known) - taken :]
        numbers[taken:] = np.arange(self._next, self._next + count - taken)
        return numbers

    def take(self, count: int) -> None:
        """What :meth:`look` showed is given."""
        taken = min(count, len(self._known))
        del self._known[len(self._known) - taken :]
        self._next += count - taken

    def give_back(self, numbers: U32) -> None:
        """These are free again."""
        if self._free is not None:
            self._free.extend(numbers.tolist())

    @property
    def _known(self) -> array[int]:
        assert self._free is not None, "it was filled before"
        return self._free
