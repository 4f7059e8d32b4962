"""Names by number, and numbers by name, where numbers are given from outside and names may go.

Names are kept as in :mod:`.queue_names`: heads, tails in an arena, and a hash table that a batch of names is looked up
in at once. Here a name has the number it was given; one that is forgotten leaves a mark in the table, until the next
time that this is built anew, and dead bytes in the arena, until half of them are dead.

A name that is not certain yet is *held*: whoever looks for it finds its number, which has no name and lies in no slot
before that is shown.

Memory: 16 to 32 bytes for slots of the table, 24 for the head, the tail with 4 for its place, and 2 for the slot of the
topic; all of it grows by twos. Where numbers are given again, 8 more for the offset at which their queue begins.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .columns import I64, U8, U32, U64, copy_slices, gather
from .name_log import U16
from .queue_names import HASH_BITS, LONG_HEADS, NUMBER_BITS, NUMBER_MASK, NameBatch, fill, hash_of, insert, way

Number = TypeVar("Number", bound=np.generic)

#: In the array of slots: the number has no name.
NO_SLOT = 0xFFFF
_FORGOTTEN = -1
_FIRST_SLOTS = 1 << 12
_FIRST_NUMBERS = 1 << 10
_HEAD_BYTES, _SHORT = LONG_HEADS.bytes, LONG_HEADS.short


class NameTable:
    """Not thread-safe: its owner has a lock."""

    def __init__(self, hash_bits: int = HASH_BITS) -> None:
        """``hash_bits`` below the default make names collide."""
        self.count = 0  # names there are, without those that are held
        self.end = 0  # above every number that has a name, holds one, or did
        self._hash_bits = hash_bits
        self._table: I64 = np.zeros(_FIRST_SLOTS, np.int64)
        self._entries = 0  # names in the table
        self._marks = 0  # of forgotten names, in the table
        self._heads: U64 = LONG_HEADS.room(_FIRST_NUMBERS)
        self._tails: U32 = np.zeros(_FIRST_NUMBERS, np.uint32)
        self._slots: U16 = np.full(_FIRST_NUMBERS, NO_SLOT, np.uint16)
        self._arena: U8 = np.zeros(1 << 10, np.uint8)
        self._arena_end = 0
        self._arena_dead = 0
        #: By number, from which offset on it is the queue's that has it, or will have it: 0 behind the array's end.
        self.begins: I64 = np.zeros(0, np.int64)
        self.begun = 0  # of how many this is known

    @property
    def slots(self) -> U16:
        """Of the numbers below :attr:`end`, the slot that the name lies in; ``NO_SLOT`` for none."""
        return self._slots[: self.end]

    @property
    def size_bytes(self) -> int:
        """What is allocated; pages that nothing has touched take no memory."""
        arrays = (self._table, self._heads, self._tails, self._slots, self._arena, self.begins)
        return sum(array.nbytes for array in arrays)

    def batch(self, text: U8, starts: I64, lengths: I64) -> NameBatch:
        """Names to look up or put, as :class:`.queue_names.NameBatch` has them."""
        return NameBatch(text, starts, lengths, self._hash_bits, shape=LONG_HEADS)

    def batch_joined(self, joined: bytes) -> NameBatch:
        """The same of names with separators between them."""
        return NameBatch.of_joined(joined, self._hash_bits, LONG_HEADS)

    # -- finding -----------------------------------------------------------------------------------------

    def find(self, names: NameBatch) -> I64:
        """The number of each name, those that are held too; -1 for those that are not there."""
        numbers = (self._probe(names.hashes) & NUMBER_MASK) - 1
        known = np.flatnonzero(numbers >= 0)
        if len(known) == 0:
            return numbers
        met, found = (names, numbers) if len(known) == len(names) else (names.take(known), numbers[known])
        same = met.equal(self._heads.take(found, axis=0), self._arena, lambda at: self._tails_of(found[at]))
        if not same.all():  # another name with the same hash
            for at in known[~same].tolist():
                numbers[at] = self.find_one(names.name(at).encode())
        return numbers

    def find_one(self, raw: bytes) -> int:
        """The number of one name in UTF-8, of one that is held too; -1 when it is not there."""
        hashed = hash_of(raw, LONG_HEADS) >> HASH_BITS - self._hash_bits
        table, mask, step = self._table, len(self._table) - 1, 0
        slot = hashed & mask
        while word := table.item(slot):
            number = (word & NUMBER_MASK) - 1
            if word >> NUMBER_BITS == hashed and self.raw(number) == raw:
                return int(number)
            step += 1
            slot = (slot + step) & mask
        return -1

    def _probe(self, hashes: I64) -> I64:
        """The first word on the way of each hash that is free or has it."""
        return self._look(hashes, hashes, NUMBER_BITS)[0]

    def _look(self, hashes: I64, wanted: I64, shift: int) -> tuple[I64, I64]:
        """Of each hash the first word on its way that is free or, shifted so far, what is wanted; and where it is."""
        mask = len(self._table) - 1
        places = hashes & mask
        words = self._table.take(places)
        left = np.flatnonzero((words >> shift != wanted) & (words != 0))
        step = 0
        while len(left):
            step += 1
            at = (hashes[left] + way(step)) & mask
            found = self._table.take(at)
            words[left], places[left] = found, at
            left = left[(found >> shift != wanted[left]) & (found != 0)]
        return words, places

    # -- what a number is called -------------------------------------------------------------------------

    def has(self, numbers: U32 | I64) -> NDArray[np.bool_]:
        """Which numbers have a name. There may be some below 0, which have none."""
        found = np.zeros(len(numbers), np.bool_)
        known = np.flatnonzero((numbers >= 0) & (numbers < self.end))
        found[known] = self._slots[numbers[known]] != NO_SLOT
        return found

    def raw(self, number: int) -> bytes:
        """The name of a number that has or holds one."""
        head: bytes = self._heads[number].tobytes()
        size = head[_SHORT]
        if size <= _SHORT:
            return head[:size]
        start = self._tails.item(number)
        return head[:_SHORT] + self._arena[start : start + size - _SHORT].tobytes()

    def text(self, numbers: U32 | I64) -> tuple[U8, I64]:
        """The names of numbers that have or hold one, one after another, and how long each is."""
        rows = self._heads[numbers].view(np.uint8).reshape(-1, _HEAD_BYTES)
        lengths = rows[:, _SHORT].astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        out = np.empty(int(lengths.sum()) if len(lengths) else 0, np.uint8)
        places = np.arange(_SHORT)
        kept = places < lengths[:, None]
        out[(starts[:, None] + places)[kept]] = rows[:, :_SHORT][kept]
        long = np.flatnonzero(lengths > _SHORT)
        if len(long):
            tails, sizes = self._tails_of(np.asarray(numbers, np.int64)[long])
            copy_slices(out, starts[long] + _SHORT, self._arena, tails, sizes)
        return out, lengths

    def names(self, numbers: U32 | I64) -> list[str]:
        """The names of numbers that have one."""
        text, lengths = self.text(numbers)
        raw, ends = text.tobytes(), np.cumsum(lengths).tolist()
        return [raw[begin:end].decode() for begin, end in pairwise((0, *ends))]

    def _tails_of(self, numbers: I64) -> tuple[I64, I64]:
        lengths = (self._heads[numbers, -1] >> np.uint64(56)).astype(np.int64)
        return self._tails[numbers].astype(np.int64), lengths - _SHORT

    # -- changing ----------------------------------------------------------------------------------------

    def put(self, numbers: U32 | I64, names: NameBatch, slots: U16) -> None:
        """Give distinct numbers that have none to distinct names that are not there."""
        if len(numbers):
            self.hold(numbers, names)
            self.show(numbers, slots)

    def show(self, numbers: U32 | I64, slots: U16) -> None:
        """The names that these numbers hold are there, and lie in these slots."""
        self._slots[numbers] = slots
        self.count += len(numbers)

    def hold(self, numbers: U32 | I64, names: NameBatch) -> None:
        """Distinct numbers that have none hold distinct names that are not there; one or more."""
        end = max(self.end, int(numbers.max()) + 1)
        if end > len(self._heads):
            size = max(2 * len(self._heads), end)
            self._heads = _longer(self._heads, self.end, size)
            self._tails = _longer(self._tails, self.end, size)
            wider = np.full(size, NO_SLOT, np.uint16)
            wider[: self.end] = self._slots[: self.end]
            self._slots = wider
        self.end = end
        self._heads[numbers] = names.heads
        if int(names.lengths.max()) > _SHORT:
            self._put_tails(numbers, names)
        self._entries += len(numbers)
        if 2 * (self._entries + self._marks) > len(self._table):
            self._rebuild(len(numbers))
        insert(self._table, names.hashes << NUMBER_BITS | (np.asarray(numbers, np.int64) + 1))

    def _put_tails(self, numbers: U32 | I64, names: NameBatch) -> None:
        sizes = np.maximum(names.lengths - _SHORT, 0)
        tails = gather(names.text, names.starts + _SHORT, sizes)
        if self._arena_end + len(tails) > len(self._arena):
            self._arena = _longer(self._arena, self._arena_end, 2 * (self._arena_end + len(tails)))
        self._tails[numbers] = self._arena_end + np.cumsum(sizes) - sizes
        self._arena[self._arena_end : self._arena_end + len(tails)] = tails
        self._arena_end += len(tails)

    def _rebuild(self, coming: int) -> None:
        """A table without marks, in which all names have room, ``coming`` of which are not in it yet."""
        size = _FIRST_SLOTS
        while size < 2 * self._entries:
            size *= 2
        words = self._table[self._table > 0]
        assert len(words) == self._entries - coming, "each name is in the table once"
        self._table = np.zeros(size, np.int64)
        self._marks = 0
        fill(self._table, words)

    def forget(self, numbers: U32 | I64) -> None:
        """Distinct numbers that have a name have none any more."""
        self.count -= len(numbers)
        self.drop(numbers)

    def drop(self, numbers: U32 | I64) -> None:
        """Distinct numbers that hold a name do not any more."""
        if len(numbers) == 0:
            return
        text, lengths = self.text(numbers)
        hashes = NameBatch.of_pieces(text, lengths, self._hash_bits, LONG_HEADS).hashes
        words = hashes << NUMBER_BITS | (np.asarray(numbers, np.int64) + 1)
        _, places = self._look(hashes, words, 0)
        self._table[places] = _FORGOTTEN
        self._entries -= len(numbers)
        self._marks += len(numbers)
        self._arena_dead += int(np.maximum(lengths - _SHORT, 0).sum())
        self._slots[numbers] = NO_SLOT
        self._heads[numbers] = 0
        if 2 * self._arena_dead > self._arena_end > 1 << 16:
            self._tidy()

    def begin(self, numbers: U32 | I64, offsets: I64) -> None:
        """What lies below these offsets is not of the queues that have the numbers from now on."""
        end = int(numbers.max()) + 1
        if end > len(self.begins):
            self.begins = _longer(self.begins, len(self.begins), max(end, 2 * len(self.begins)))
        self.begun += int((self.begins[np.unique(numbers[offsets > 0])] == 0).sum())
        np.maximum.at(self.begins, numbers, offsets)

    def _tidy(self) -> None:
        """An arena without what is dead."""
        live = np.flatnonzero(self._heads[: self.end, -1])  # its length is there
        starts, sizes = self._tails_of(live)
        some = sizes > 0
        live, starts, sizes = live[some], starts[some], sizes[some]
        self._arena = gather(self._arena, starts, sizes) if len(live) else np.zeros(1 << 10, np.uint8)
        self._tails[live] = np.cumsum(sizes) - sizes
        self._arena_end, self._arena_dead = int(sizes.sum()), 0


def _longer(values: NDArray[Number], used: int, size: int) -> NDArray[Number]:
    longer = np.zeros((size, *values.shape[1:]), values.dtype)
    longer[:used] = values[:used]
    return longer
