"""Names of queues: from any number of names to queue numbers, a batch at a time.

An open-addressing hash table whose slots are rows of one array::

    hash (8)   number (4) and length (4)   first 16 bytes of the name, zero padded (8 + 8)

A lookup of a whole batch is a few numpy gathers of rows, whose cache misses overlap, where a dict takes one miss
after another (0.1 us against 0.4 us a name at a million names). A name is compared byte by byte before it is
believed: the first 16 bytes are in the slot, the rest of longer names in an arena.

Memory: 32 bytes a slot, at a load of at most 3/4, and a name's bytes plus 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U8, gather

Number = TypeVar("Number", bound=np.generic)

_FIRST_SLOTS = 1 << 12
_HASH, _META, _HEAD = 0, 1, 2
_WORDS = 4
_HEAD_BYTES = 16
_ROW = np.dtype((np.void, 8 * _WORDS))
_FREE = -1
_NUMBER_MASK = 0xFFFFFFFF


class QueueNames:
    """Maps names to numbers 0, 1, 2, ... in the order they were added. Not thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self._slots: NDArray[np.int64] = _empty_slots(_FIRST_SLOTS)
        self._arena: U8 = np.zeros(1 << 14, np.uint8)
        self._starts: I64 = np.zeros(1025, np.int64)  # start of each name in the arena, and the end of the last

    def __len__(self) -> int:
        return self.count

    def name(self, number: int) -> str:
        start, end = int(self._starts[number]), int(self._starts[number + 1])
        return self._arena[start:end].tobytes().decode()

    def find(self, names: Sequence[str]) -> I64:
        """The number of each name; -1 for those that are not known."""
        count = len(names)
        if count == 0:
            return np.empty(0, np.int64)
        joined, lengths = _encode(names)
        rows = np.empty((count, _WORDS), np.int64)
        rows[:, _HASH] = np.fromiter(map(hash, names), np.int64, count)
        rows[:, _META] = lengths << 32
        rows[:, _HEAD:] = _heads(joined, lengths)
        numbers = self._probe(rows)
        if int(lengths.max()) > _HEAD_BYTES:
            self._check_tails(names, numbers, joined, lengths)
        return numbers

    def find_one(self, name: str) -> int:
        """The number of one name, -1 when it is not known: :meth:`find` without its arrays."""
        hashed = hash(name)
        mask = len(self._slots) - 1
        slot = hashed & mask
        slots = self._slots
        while (meta := slots.item(slot, _META)) != _FREE:
            if slots.item(slot, _HASH) == hashed and self.name(meta & _NUMBER_MASK) == name:
                return int(meta & _NUMBER_MASK)
            slot = (slot + 1) & mask
        return -1

    def _probe(self, rows: I64) -> I64:
        """The number in the slot that agrees with each row in hash, length and head."""
        mask = len(self._slots) - 1
        slots = self._rows_at(rows[:, _HASH] & mask)
        metas = slots[:, _META].copy()
        unresolved = np.flatnonzero((metas != _FREE) & ~_same(slots, rows))
        step = 0
        while len(unresolved):
            step += 1
            left = rows[unresolved]
            slots = self._rows_at((left[:, _HASH] + step) & mask)
            metas[unresolved] = slots[:, _META]
            unresolved = unresolved[(slots[:, _META] != _FREE) & ~_same(slots, left)]
        return np.where(metas == _FREE, _FREE, metas & _NUMBER_MASK)

    def _rows_at(self, places: I64) -> I64:
        """Rows of the table, moved as single items: three times as fast as by index into two dimensions."""
        items = self._slots.view(_ROW).reshape(-1)
        rows: I64 = items[places].view(np.int64).reshape(-1, _WORDS)
        return rows

    def _check_tails(self, names: Sequence[str], numbers: I64, joined: bytes, lengths: I64) -> None:
        """Names longer than a head: compare them as a whole, and look again for those that differ."""
        long = np.flatnonzero((lengths > _HEAD_BYTES) & (numbers >= 0))
        starts = (np.cumsum(lengths) - lengths)[long]
        given = gather(np.frombuffer(joined, np.uint8), starts, lengths[long])
        if np.array_equal(given, gather(self._arena, self._starts[numbers[long]], lengths[long])):
            return
        for at in long.tolist():  # two names of one length and head with one 64-bit hash: next to impossible
            if self.name(int(numbers[at])) != names[at]:
                numbers[at] = self.find_one(names[at])

    def add(self, names: Sequence[str]) -> None:
        """Add names, none of which is known and no two of which are equal."""
        first, end = self.count, self.count + len(names)
        if not names:
            return
        while end * 4 > len(self._slots) * 3:
            self._resize(len(self._slots) * 2)
        joined, lengths = _encode(names)
        used = int(self._starts[first])
        if end >= len(self._starts):
            self._starts = _longer(self._starts, first + 1, 2 * end)
        if used + len(joined) > len(self._arena):
            self._arena = _longer(self._arena, used, 2 * (used + len(joined)))
        self._arena[used : used + len(joined)] = np.frombuffer(joined, np.uint8)
        self._starts[first + 1 : end + 1] = used + np.cumsum(lengths)
        rows = np.empty((len(names), _WORDS), np.int64)
        rows[:, _HASH] = np.fromiter(map(hash, names), np.int64, len(names))
        rows[:, _META] = lengths << 32 | np.arange(first, end)
        rows[:, _HEAD:] = _heads(joined, lengths)
        self.count = end
        self._insert(rows)

    def truncate(self, count: int) -> None:
        """Forget the names numbered ``count`` and above."""
        if count < self.count:
            self.count = count
            self._resize(len(self._slots))

    def _resize(self, size: int) -> None:
        old = self._slots
        self._slots = _empty_slots(size)
        self._insert(old[(old[:, _META] != _FREE) & ((old[:, _META] & _NUMBER_MASK) < self.count)])

    def _insert(self, rows: I64) -> None:
        """Linear probing, all at once: each round, one claimant of every free slot wins it."""
        mask = len(self._slots) - 1
        step = 0
        while len(rows):
            slots = (rows[:, _HASH] + step) & mask
            free = np.flatnonzero(self._slots[slots, _META] == _FREE)
            claimed, winners = np.unique(slots[free], return_index=True)
            chosen = free[winners]
            self._slots[claimed] = rows[chosen]
            left = np.ones(len(rows), np.bool_)
            left[chosen] = False
            rows = rows[left]
            step += 1


def _empty_slots(size: int) -> NDArray[np.int64]:
    slots = np.zeros((size, _WORDS), np.int64)
    slots[:, _META] = _FREE
    return slots


def _same(slots: I64, rows: I64) -> NDArray[np.bool_]:
    """Which slots agree with their row in all but the number."""
    same: NDArray[np.bool_] = slots[:, _HASH] == rows[:, _HASH]
    same &= slots[:, _META] >> 32 == rows[:, _META] >> 32
    for word in range(_HEAD, _WORDS):
        same &= slots[:, word] == rows[:, word]
    return same


def _encode(names: Sequence[str]) -> tuple[bytes, I64]:
    """The names' UTF-8 bytes joined, and the length of each."""
    joined = "".join(names).encode()
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    if len(joined) != int(lengths.sum()):  # some are not ASCII
        lengths = np.fromiter((len(name.encode()) for name in names), np.int64, len(names))
    return joined, lengths


def _heads(joined: bytes, lengths: I64) -> I64:
    """The first 16 bytes of each name, zero padded, as two integers."""
    count, shortest, longest = len(lengths), int(lengths.min()), int(lengths.max())
    heads = np.zeros((count, _HEAD_BYTES), np.uint8)
    if shortest == longest:
        width = min(longest, _HEAD_BYTES)
        heads[:, :width] = np.frombuffer(joined, np.uint8).reshape(count, longest)[:, :width]
    else:
        padded = np.frombuffer(joined + bytes(_HEAD_BYTES), np.uint8)
        starts = np.cumsum(lengths) - lengths
        heads[:] = gather(padded, starts, np.full(count, _HEAD_BYTES)).reshape(count, _HEAD_BYTES)
        heads[np.arange(_HEAD_BYTES) >= lengths[:, None]] = 0
    return heads.view(np.int64)


def _longer(values: NDArray[Number], used: int, size: int) -> NDArray[Number]:
    longer = np.zeros(size, values.dtype)
    longer[:used] = values[:used]
    return longer
