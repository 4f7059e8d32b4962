"""Deduplication ids in memory: those that came since the last flush, as rows and a hash table over them.

A row is one id that a message was stored under; its id is the 128 bits of its hash, spread by the queue it belongs to
(:func:`.dedupe.scoped`), so that one table serves all queues of a shard::

    width field
     8    high       the upper half
     8    low        the lower half
     8    offset     of the message in its queue
     8    stored_ms
     4    topic      id of the topic; 0 in a row that a later one of the same id has taken the place of

Rows stand in the order of the log, those of writes that are in line at the end: what is dropped from the line is cut
off. Everything is done a batch at a time: a look-up costs a few cache misses an id, and no object.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime

from .columns import I64, U64, mix

#: One id, in memory and in files.
ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("offset", "<i8"), ("stored_ms", "<i8"), ("topic", "<u4")])
IdRows = NDArray[np.void]

_FIRST_ROWS = 512
#: Slots of the table for each row that there is room for.
_SLOTS_A_ROW = 2
#: So many rows are entered at a time: what is computed of them stays in the CPU's cache.
_PIECE_ROWS = 1 << 12


class IdLayer:
    """The ids of one memtable. Its owner lets one thread at a time add, and none look meanwhile."""

    def __init__(self, rows: IdRows | None = None) -> None:
        """With ``rows``, which are in line."""
        self._salt: np.uint64 | None = None  # so that nobody can choose ids that share a slot; once there are any
        self.count = 0
        #: So many rows, the first, are of entries that are applied.
        self.applied = 0
        self._rows: IdRows = np.empty(0, ROW)
        self._slots = np.zeros(0, np.int32)  # of each row's number + 1; 0: nothing
        self._tags = np.zeros(0, np.uint64)  # ``high`` of that row: most look-ups need nothing else
        if rows is not None and len(rows):
            self.add(rows)

    def __len__(self) -> int:
        return self.count

    @property
    def size_bytes(self) -> int:
        """Memory it takes."""
        return self._rows.nbytes + self._slots.nbytes + self._tags.nbytes

    def in_line(self) -> IdRows:
        """The rows that are not applied."""
        return self._rows[self.applied : self.count]

    def kept(self) -> IdRows:
        """Those that are applied, without what later ones have taken the place of; a copy."""
        rows = self._rows[: self.applied]
        kept: IdRows = rows[rows["topic"] != 0]
        return kept

    def find(self, high: U64, low: U64) -> tuple[I64, I64, I64]:
        """Which of these ids are here: their places among those asked for, the offsets, and when they were stored."""
        if not self.count:
            return _NOTHING
        at = self._home(high)
        left, mask = np.arange(len(high)), len(self._slots) - 1
        places = []
        while True:
            numbers = self._slots[at]
            taken = np.flatnonzero(numbers)
            if not len(taken):
                break
            left, at, numbers = left[taken], at[taken], numbers[taken]
            alike = self._tags[at] == high[left]
            if alike.any():
                alike[alike] = self._rows["low"][numbers[alike] - 1] == low[left[alike]]
                places.append((left[alike], numbers[alike].astype(np.int64) - 1))
                left, at = left[~alike], at[~alike]
            at = (at + 1) & mask
        if not places:
            return _NOTHING
        found, rows = (np.concatenate(each) for each in zip(*places, strict=True))
        there = rows < self.count
        chosen = self._rows[rows[there]]
        return found[there], chosen["offset"], chosen["stored_ms"]

    def add(self, rows: IdRows) -> None:
        """Ids, no two the same, that are stored from now on; what was here under them is forgotten."""
        if not len(rows):
            return
        end = self.count + len(rows)
        if end > len(self._rows):
            self._grow(end)
        self._rows[self.count : end] = rows
        self._place(self.count, end)
        self.count = end

    def cut(self) -> None:
        """What is in line is dropped."""
        if self.count > self.applied:
            self._slots[:] = 0
            self.count = self.applied
            self._place_all()

    def _grow(self, wanted: int) -> None:
        self._salt = self._salt or np.uint64(runtime.random_bits(64))
        capacity = max(_FIRST_ROWS, 4 * len(self._rows), 1 << (wanted - 1).bit_length())
        rows = np.empty(capacity, ROW)
        rows[: self.count] = self._rows[: self.count]
        self._rows = rows
        self._slots = np.zeros(_SLOTS_A_ROW * capacity, np.int32)
        self._tags = np.zeros(_SLOTS_A_ROW * capacity, np.uint64)
        self._place_all()

    def _place_all(self) -> None:
        for begin in range(0, self.count, _PIECE_ROWS):
            self._place(begin, min(self.count, begin + _PIECE_ROWS))

    def _home(self, high: U64) -> I64:
        """The slots where ids are looked for first."""
        assert self._salt is not None, "there are rows"
        at: I64 = (mix(high ^ self._salt) & np.uint64(len(self._slots) - 1)).view(np.int64)
        return at

    def _place(self, begin: int, end: int) -> None:
        """Enter rows into the table, but those that another has taken the place of."""
        rows, slots, tags = self._rows, self._slots, self._tags
        new = np.arange(begin, end)
        dead = rows["topic"][begin:end] == 0
        if dead.any():
            new = new[~dead]
        high, mask = rows["high"][new], len(slots) - 1
        numbers = (new + 1).astype(np.int32)
        at = self._home(high)
        while len(numbers):  # Of several that want one slot the last gets it, and the others look on.
            there = slots[at]
            free = there == 0
            slots[at[free]] = numbers[free]
            tags[at[free]] = high[free]
            left = ~free
            left[free] = slots[at[free]] != numbers[free]
            alike = ~free & (tags[at] == high)
            if alike.any():
                places = np.flatnonzero(alike)
                same = places[rows["low"][there[places] - 1] == rows["low"][numbers[places] - 1]]
                rows["topic"][there[same] - 1] = 0
                slots[at[same]] = numbers[same]
                left[same] = False
            at, high, numbers = (at[left] + 1) & mask, high[left], numbers[left]


_NONE: Any = np.empty(0, np.int64)
_NOTHING = (_NONE, _NONE, _NONE)
