"""Names of queues: from any number of names to queue numbers, a batch at a time.

An open-addressing hash table in arrays: the lookup of a whole batch is a few numpy gathers, whose cache misses
overlap, where a dict takes one miss after another (0.05 us against 0.4 us a name at a million names). A name
is compared byte by byte before it is believed: names lie in one arena, and the names of a batch are compared
with it as a whole.

Memory: 12 bytes a slot at a load of at most a half, the name's bytes, and 12 bytes to find them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U8, U32, gather

_EMPTY = 0xFFFFFFFF
_FIRST_SLOTS = 1 << 12


class QueueNames:
    """Maps names to numbers 0, 1, 2, ... in the order they were added. Not thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self._slot_hashes: I64 = np.zeros(_FIRST_SLOTS, np.int64)
        self._slot_numbers: U32 = np.full(_FIRST_SLOTS, _EMPTY, np.uint32)
        self._hashes: I64 = np.empty(1024, np.int64)
        self._arena: U8 = np.empty(1 << 14, np.uint8)
        self._starts: I64 = np.zeros(1025, np.int64)  # start of each name in the arena, and the end of the last

    def __len__(self) -> int:
        return self.count

    def name(self, number: int) -> str:
        start, end = int(self._starts[number]), int(self._starts[number + 1])
        return self._arena[start:end].tobytes().decode()

    def find(self, names: Sequence[str]) -> NDArray[np.int64]:
        """The number of each name; -1 for those that are not known."""
        count = len(names)
        hashes = np.fromiter(map(hash, names), np.int64, count)
        numbers = self._probe(hashes)
        known = np.flatnonzero(numbers >= 0)
        if len(known) == 0:
            return numbers
        encoded = "".join(names).encode()
        lengths = np.fromiter(map(len, names), np.int64, count)
        if len(encoded) != int(lengths.sum()):  # some are not ASCII: lengths in bytes
            lengths = np.fromiter((len(name.encode()) for name in names), np.int64, count)
        mine = numbers if len(known) == count else numbers[known]
        starts = self._starts[mine]
        if len(known) == count:
            same_lengths = bool((self._starts[mine + 1] - starts == lengths).all())
            if same_lengths and gather(self._arena, starts, lengths).tobytes() == encoded:
                return numbers
        # Rare: unknown names among them, or two names with one hash. Compare one by one.
        for at in known.tolist():
            if self.name(int(numbers[at])) != names[at]:
                numbers[at] = self._find_slowly(names[at], int(hashes[at]))
        return numbers

    def find_one(self, name: str) -> int:
        """The number of one name, -1 when it is not known: :meth:`find` without its arrays."""
        hashed = hash(name)
        mask = len(self._slot_hashes) - 1
        slot = hashed & mask
        while (number := self._slot_numbers.item(slot)) != _EMPTY:
            if self._slot_hashes.item(slot) == hashed and self.name(number) == name:
                return number
            slot = (slot + 1) & mask
        return -1

    def _find_slowly(self, name: str, hashed: int) -> int:
        for number in np.flatnonzero(self._hashes[: self.count] == hashed).tolist():
            if self.name(number) == name:
                return int(number)
        return -1

    def _probe(self, hashes: I64) -> NDArray[np.int64]:
        mask = len(self._slot_hashes) - 1
        slots = hashes & mask
        numbers = self._slot_numbers[slots]
        result: I64 = numbers.astype(np.int64)
        empty = numbers == _EMPTY
        result[empty] = -1
        unresolved = np.flatnonzero(~empty & (self._slot_hashes[slots] != hashes))
        step = 0
        while len(unresolved):
            step += 1
            slots = (hashes[unresolved] + step) & mask
            numbers = self._slot_numbers[slots]
            empty = numbers == _EMPTY
            hit = ~empty & (self._slot_hashes[slots] == hashes[unresolved])
            result[unresolved[empty]] = -1
            result[unresolved[hit]] = numbers[hit]
            unresolved = unresolved[~empty & ~hit]
        return result

    def add(self, names: Sequence[str]) -> None:
        """Add names, none of which is known and no two of which are equal."""
        encoded = [name.encode() for name in names]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self.add_encoded(b"".join(encoded), lengths, names)

    def add_encoded(self, joined: bytes, lengths: NDArray[np.int64], names: Sequence[str]) -> None:
        """Add names whose UTF-8 bytes are already joined."""
        first, end = self.count, self.count + len(names)
        while end * 2 > len(self._slot_hashes):
            self._grow_slots()
        if end > len(self._hashes):
            self._hashes = np.resize(self._hashes, max(end, 2 * len(self._hashes)))
            self._starts = np.resize(self._starts, len(self._hashes) + 1)
        used = int(self._starts[first])
        if used + len(joined) > len(self._arena):
            self._arena = np.resize(self._arena, max(used + len(joined), 2 * len(self._arena)))
        self._arena[used : used + len(joined)] = np.frombuffer(joined, np.uint8)
        self._starts[first + 1 : end + 1] = used + np.cumsum(lengths)
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        self._hashes[first:end] = hashes
        self.count = end
        self._insert(hashes, np.arange(first, end, dtype=np.uint32))

    def truncate(self, count: int) -> None:
        """Forget the names numbered ``count`` and above."""
        if count < self.count:
            self.count = count
            self._slot_numbers[:] = _EMPTY
            self._insert(self._hashes[:count], np.arange(count, dtype=np.uint32))

    def _grow_slots(self) -> None:
        size = len(self._slot_hashes) * 2
        self._slot_hashes = np.zeros(size, np.int64)
        self._slot_numbers = np.full(size, _EMPTY, np.uint32)
        self._insert(self._hashes[: self.count], np.arange(self.count, dtype=np.uint32))

    def _insert(self, hashes: I64, numbers: U32) -> None:
        """Linear probing, all at once: each round, one claimant of every free slot wins it."""
        mask = len(self._slot_hashes) - 1
        step = 0
        while len(hashes):
            slots = (hashes + step) & mask
            free = np.flatnonzero(self._slot_numbers[slots] == _EMPTY)
            claimed, winners = np.unique(slots[free], return_index=True)
            chosen = free[winners]
            self._slot_numbers[claimed] = numbers[chosen]
            self._slot_hashes[claimed] = hashes[chosen]
            left = np.ones(len(hashes), np.bool_)
            left[chosen] = False
            hashes, numbers = hashes[left], numbers[left]
            step += 1
