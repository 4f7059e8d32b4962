"""Names of queues: from any number of names to queue numbers, a batch at a time.

A name is kept as a *head* of 16 bytes, and a *tail* in an arena where it has more than fifteen::

    head    the first 15 bytes, zero padded; then the length, or 255 where it is more; beyond 15 there is a tail
    tail    the 16th byte and those after it

Where names are longer mostly (:mod:`.name_table`) heads are of 24 bytes: what is in the head takes one look.

An open-addressing hash table leads to them; a slot is one integer::

    hash (39 bits)   number + 1 (24 bits)       0 is a free slot

A batch of names is one array of bytes: it is hashed, looked up and compared by a few numpy operations, whose cache
misses overlap, where a dict takes one miss after another. A name is compared byte by byte before it is believed.

Memory: 16 to 64 bytes for slots (at a load between an eighth and a half), 16 for the head, and the tail with 8 for
its place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime

from .columns import I64, U8, U64, gather, group_starts, windows

Number = TypeVar("Number", bound=np.generic)

_FIRST_SLOTS = 1 << 12
#: By twos, every name would be put in its place twice. Memory that is not used yet is not taken.
_GROWTH = 4
#: So many words are put into a table at a time: they stay in the processor's cache.
_PIECE = 1 << 14
NUMBER_BITS = 24
NUMBER_MASK = (1 << NUMBER_BITS) - 1
HASH_BITS = 63 - NUMBER_BITS
_LONG = 255
_WORD_BYTES = 8
_MASK64 = (1 << 64) - 1
_SEPARATOR = "\0"
_MULTIPLIER = runtime.random_bits(64) | 1  # random, so that nobody can choose names that collide
_FINISHER = runtime.random_bits(64) | 1
_MARK_SHIFT, _MIXED_SHIFT, _HASH_SHIFT = np.uint64(56), np.uint64(32), np.uint64(64 - HASH_BITS)
#: So far text goes on behind its last name.
PADDING_BYTES = 24


class Heads:
    """What heads of so many words of 8 bytes are like."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.bytes = 8 * words
        #: The longest name without a tail.
        self.short = self.bytes - 1
        #: What is kept of a head where a name has so many bytes.
        self.kept: U64 = (
            np.array([b"\xff" * size for size in (*range(self.bytes), self.short)], f"S{self.bytes}")
            .view(np.uint64)
            .reshape(-1, words)
        )
        self.packed = struct.Struct(f"<{words}Q")

    def room(self, count: int) -> U64:
        """For the heads of so many names."""
        room: U64 = np.zeros((count, self.words), np.uint64)
        return room


SHORT_HEADS, LONG_HEADS = Heads(2), Heads(3)


def padded(*pieces: U8) -> U8:
    """One after another, as text of names goes on."""
    return np.concatenate([*pieces, np.zeros(PADDING_BYTES, np.uint8)])


class NameBatch:
    """Names as bytes: where each begins and how long it is, its head as integers, and its hash."""

    __slots__ = ("hashes", "heads", "lengths", "separated", "shape", "starts", "text")

    def __init__(
        self,
        text: U8,
        starts: I64,
        lengths: I64,
        hash_bits: int = HASH_BITS,
        separated: bytes | None = None,
        shape: Heads = SHORT_HEADS,
    ) -> None:
        """``text`` goes on for at least ``PADDING_BYTES`` behind the last name.

        ``separated``: the names with separators between them, if that is known and none has one in it.
        """
        self.text = text
        self.separated = separated
        self.starts = starts
        self.lengths = lengths
        self.shape = shape
        sizes = np.minimum(lengths, shape.bytes)
        self.heads: U64 = windows(text, starts, shape.bytes).view(np.uint64).reshape(-1, shape.words)
        self.heads &= shape.kept.take(sizes, axis=0)
        self.heads[:, -1] |= np.minimum(lengths, _LONG).astype(np.uint64) << _MARK_SHIFT
        self.hashes: I64 = _hashes(self) >> (HASH_BITS - hash_bits)

    @classmethod
    def of_joined(cls, joined: bytes, hash_bits: int, shape: Heads) -> NameBatch:
        """Names with separators between them, none of which has one in it."""
        text = np.frombuffer(joined + bytes(PADDING_BYTES), np.uint8)
        ends = np.append(np.flatnonzero(text[: len(joined)] == 0), len(joined))
        starts = np.zeros(len(ends), np.int64)
        starts[1:] = ends[:-1] + 1
        return cls(text, starts, ends - starts, hash_bits, joined, shape)

    @classmethod
    def of_pieces(cls, text: U8, lengths: I64, hash_bits: int, shape: Heads) -> NameBatch:
        """Names that lie one after another."""
        return cls(padded(text), np.cumsum(lengths) - lengths, lengths, hash_bits, shape=shape)

    def __len__(self) -> int:
        return len(self.starts)

    def name(self, at: int) -> str:
        start = int(self.starts[at])
        return self.text[start : start + int(self.lengths[at])].tobytes().decode()

    def raw(self) -> list[bytes]:
        """The names in UTF-8."""
        if self.separated is not None:
            return self.separated.split(_SEPARATOR.encode())
        text, starts, ends = self.text.tobytes(), self.starts, self.starts + self.lengths
        return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def joined(self) -> U8:
        """The names' bytes one after another, with nothing between them."""
        if self.separated is not None:
            return np.frombuffer(self.separated.replace(_SEPARATOR.encode(), b""), np.uint8)
        return gather(self.text, self.starts, self.lengths)

    def take(self, which: I64) -> NameBatch:
        """Some of the names, in order, each at most once."""
        if len(which) == len(self):
            return self
        taken = NameBatch.__new__(NameBatch)
        taken.text, taken.starts, taken.lengths = self.text, self.starts[which], self.lengths[which]
        taken.heads, taken.hashes = self.heads[which], self.hashes[which]
        taken.separated, taken.shape = None, self.shape
        return taken

    @property
    def may_repeat(self) -> bool:
        """Whether two of the names may be equal: they have one hash."""
        ordered = np.sort(self.hashes)
        return bool((ordered[1:] == ordered[:-1]).any())

    def distinct(self) -> tuple[I64, I64]:
        """Where each name is met first, ascending; and for every name, which of those it equals."""
        count = len(self)
        if not self.may_repeat:
            return np.arange(count), np.arange(count)
        order = np.argsort(self.hashes)
        groups = group_starts(self.hashes[order])
        first = np.minimum.reduceat(order, groups)
        leaders = np.empty(count, np.int64)
        leaders[order] = np.repeat(first, np.diff(groups, append=count))
        if not self.equal(self.heads[leaders], self.text, lambda at: self._tails(leaders[at])).all():
            seen: dict[str, int] = {}  # two names with one hash
            leaders = np.fromiter((seen.setdefault(self.name(at), at) for at in range(count)), np.int64, count)
            first = np.unique(leaders)
        first.sort()
        return first, first.searchsorted(leaders)

    def _tails(self, which: I64) -> tuple[I64, I64]:
        """Where the tails of names that have one begin, and how long they are."""
        return self.starts[which] + self.shape.short, self.lengths[which] - self.shape.short

    def equal(self, heads: U64, text: U8, tails: Callable[[I64], tuple[I64, I64]]) -> NDArray[np.bool_]:
        """Which names have these heads, and these tails; ``tails`` says where in ``text``, if there are any."""
        same: NDArray[np.bool_] = heads[:, 0] == self.heads[:, 0]
        for word in range(1, self.shape.words):
            same &= heads[:, word] == self.heads[:, word]
        if int(self.lengths.max()) > self.shape.short:
            long = np.flatnonzero(same & (self.lengths > self.shape.short))
            (mine, sizes), (theirs, their_sizes) = self._tails(long), tails(long)
            same[long] = sizes == their_sizes
            alike = np.flatnonzero(sizes == their_sizes)
            if len(alike):
                sizes = sizes[alike]
                differ = gather(self.text, mine[alike], sizes) != gather(text, theirs[alike], sizes)
                same[long[alike]] = ~np.logical_or.reduceat(differ, np.cumsum(sizes) - sizes)
        return same


_SHORT = SHORT_HEADS.short


class QueueNames:
    """Maps names to numbers 0, 1, 2, ... in the order they were added.

    One thread adds and truncates. Others may call :meth:`find_one` meanwhile, for names that stay: what it looks at is
    in place before a slot leads to it, and tables are replaced by whole ones.
    """

    def __init__(self, hash_bits: int = HASH_BITS) -> None:
        """``hash_bits`` below the default make names collide."""
        self.count = 0
        self._hash_bits = hash_bits
        self._slots: I64 = np.zeros(_FIRST_SLOTS, np.int64)
        self._heads: U64 = SHORT_HEADS.room(1 << 10)
        self._arena: U8 = np.zeros(1 << 10, np.uint8)
        self._starts: I64 = np.zeros(1 + (1 << 10), np.int64)  # of each tail in the arena, and the end of the last

    def __len__(self) -> int:
        return self.count

    def name(self, number: int) -> str:
        return self._raw(number).decode()

    def _raw(self, number: int) -> bytes:
        head: bytes = self._heads[number].tobytes()
        if head[_SHORT] <= _SHORT:
            return head[: head[_SHORT]]
        tail: bytes = self._arena[self._starts.item(number) : self._starts.item(number + 1)].tobytes()
        return head[:_SHORT] + tail

    def batch(self, names: Sequence[str]) -> NameBatch:
        """One name or more, ready to be looked up and added. Raises as :func:`join_names`."""
        joined = join_names(names)
        if are_joined(joined, len(names)):
            return self.batch_joined(joined)
        lengths = np.fromiter((len(name.encode()) for name in names), np.int64, len(names))
        text = np.frombuffer(joined + bytes(PADDING_BYTES), np.uint8)
        return NameBatch(text, np.cumsum(lengths + 1) - (lengths + 1), lengths, self._hash_bits)

    def batch_joined(self, joined: bytes) -> NameBatch:
        """:meth:`batch` of what :func:`join_names` made of names of which :func:`are_joined` holds."""
        return NameBatch.of_joined(joined, self._hash_bits, SHORT_HEADS)

    def load(self, text: U8, lengths: I64) -> None:
        """:meth:`add` names that lie one after another in ``text``."""
        self.add(NameBatch.of_pieces(text, lengths, self._hash_bits, SHORT_HEADS))

    def find(self, names: NameBatch, end: int | None = None) -> I64:
        """The number of each name, below ``end`` if that is given; -1 for those that are not known.

        With ``end``, names from there on may be added or forgotten at the same time.
        """
        numbers = (self._probe(names.hashes) & NUMBER_MASK) - 1
        if end is not None:
            for at in np.flatnonzero(numbers >= end).tolist():  # there may be another one behind it
                numbers[at] = self.find_one(names.name(at), end)
        known = np.flatnonzero(numbers >= 0)
        if len(known) == 0:
            return numbers
        met, found = (names, numbers) if len(known) == len(names) else (names.take(known), numbers[known])
        same = met.equal(self._heads.take(found, axis=0), self._arena, lambda at: self._tails(found[at]))
        if not same.all():  # another name with the same hash
            for at in known[~same].tolist():
                numbers[at] = self.find_one(names.name(at), end)
        return numbers

    def _tails(self, numbers: I64) -> tuple[I64, I64]:
        starts = self._starts[numbers]
        return starts, self._starts[numbers + 1] - starts

    def find_one(self, name: str, end: int | None = None) -> int:
        """The number of one name, below ``end`` if that is given; -1 when it is not known: :meth:`find` without arrays.

        With ``end``, names from there on may be added or forgotten at the same time.
        """
        end = self.count if end is None else end
        raw = name.encode(errors="surrogatepass")  # what cannot be encoded is no name of any queue
        hashed = hash_of(raw, SHORT_HEADS) >> HASH_BITS - self._hash_bits
        slots, mask, step = self._slots, len(self._slots) - 1, 0
        slot = hashed & mask
        while word := slots.item(slot):
            number = (word & NUMBER_MASK) - 1
            if word >> NUMBER_BITS == hashed and number < end and self._raw(number) == raw:
                return int(number)
            step += 1
            slot = (slot + step) & mask
        return -1

    def _probe(self, hashes: I64) -> I64:
        """The first slot on the way of each hash that is free or has it."""
        slots = self._slots
        mask = len(slots) - 1
        words = slots.take(hashes & mask)
        left = np.flatnonzero((words >> NUMBER_BITS != hashes) & (words != 0))
        step = 0
        while len(left):
            step += 1
            wanted = hashes[left]
            found = slots.take((wanted + way(step)) & mask)
            words[left] = found
            left = left[(found != 0) & (found >> NUMBER_BITS != wanted)]
        return words

    def add(self, names: NameBatch) -> None:
        """Add names, none of which is known and no two of which are equal."""
        first, end = self.count, self.count + len(names)
        if end > NUMBER_MASK:
            raise ValueError(f"there is no room for more than {NUMBER_MASK} names")
        if end >= len(self._starts):
            self._heads = _longer(self._heads, first, _GROWTH * end)
            self._starts = _longer(self._starts, first + 1, _GROWTH * end + 1)
        self._heads[first:end] = names.heads
        used = int(self._starts[first])
        sizes = np.maximum(names.lengths - _SHORT, 0)
        tails = gather(names.text, names.starts + _SHORT, sizes)
        if used + len(tails) > len(self._arena):
            self._arena = _longer(self._arena, used, _GROWTH * (used + len(tails)))
        self._arena[used : used + len(tails)] = tails
        self._starts[first + 1 : end + 1] = used + np.cumsum(sizes)
        self.count = end
        size = len(self._slots)
        while size < 2 * end:
            size *= _GROWTH
        if size > len(self._slots):
            self._slots = self._rebuilt(size, first)
        insert(self._slots, names.hashes << NUMBER_BITS | np.arange(first + 1, end + 1))

    def truncate(self, count: int) -> None:
        """Forget the names numbered ``count`` and above."""
        if count < self.count:
            self.count = count
            self._slots = self._rebuilt(len(self._slots), count)

    def _rebuilt(self, size: int, count: int) -> I64:
        """A table of ``size`` slots with the names below ``count`` in it."""
        slots: I64 = np.zeros(size, np.int64)
        numbers = self._slots & NUMBER_MASK
        fill(slots, self._slots[(numbers > 0) & (numbers <= count)])
        return slots


def join_names(names: Sequence[str]) -> bytes:
    """The names in UTF-8 with separators between them. Raises ``UnicodeEncodeError``, ``TypeError``."""
    return _SEPARATOR.join(names).encode()


def are_joined(joined: bytes, count: int) -> bool:
    """Whether so many names can be told apart in what :func:`join_names` made: none has the separator in it."""
    if count == 1:
        return _SEPARATOR.encode() not in joined
    return len(joined) - int(np.count_nonzero(np.frombuffer(joined, np.uint8))) == count - 1


def split_names(joined: bytes) -> list[str]:
    """The names that :func:`join_names` joined, where :func:`are_joined` holds."""
    return joined.decode().split(_SEPARATOR)


def join_joined(parts: Sequence[bytes]) -> bytes:
    """The names of all parts, each of which :func:`join_names` has joined, as it would have joined them."""
    return parts[0] if len(parts) == 1 else _SEPARATOR.encode().join(parts)


def insert(slots: I64, words: I64) -> None:
    """Put words into a table, all at once.

    Each round, every word tries the next slot on its way, and one of those that do gets it.
    """
    mask, step = len(slots) - 1, 0
    while len(words):
        at = ((words >> NUMBER_BITS) + way(step)) & mask
        free = np.flatnonzero(slots.take(at) == 0)
        slots[at[free]] = words[free]
        words = words[slots.take(at) != words]
        step += 1


def fill(slots: I64, words: I64) -> None:
    """Put words into a table that is empty. Words that lie near one another are best given one after another."""
    mask, pieces = len(slots) - 1, [words[begin : begin + _PIECE] for begin in range(0, len(words), _PIECE)]
    for some in pieces:  # of several in one slot the last has it
        slots[(some >> NUMBER_BITS) & mask] = some
    for some in pieces:
        insert(slots, some[slots.take((some >> NUMBER_BITS) & mask) != some])


def way(step: int) -> int:
    """How far from its first slot a name looks after so many steps: in the end, at every slot of the table."""
    return step * (step + 1) // 2


def _hashes(names: NameBatch) -> I64:
    """:func:`hash_of` of each name."""
    shape, multiplier = names.shape, np.uint64(_MULTIPLIER)
    hashes = names.lengths.astype(np.uint64)
    for word in range(shape.words):
        hashes ^= names.heads[:, word]
        hashes *= multiplier
        hashes ^= hashes >> _MIXED_SHIFT
    longest = int(names.lengths.max())
    if longest > shape.short:
        left = np.flatnonzero(names.lengths > shape.short)
        for at in range(shape.short, longest, _WORD_BYTES):
            left = left[names.lengths[left] > at]
            words = windows(names.text, names.starts[left] + at, _WORD_BYTES).view(np.uint64)
            words &= shape.kept[np.minimum(names.lengths[left] - at, _WORD_BYTES), 0]
            mixed = (hashes[left] ^ words) * multiplier
            hashes[left] = mixed ^ mixed >> _MIXED_SHIFT
    hashes *= np.uint64(_FINISHER)
    hashes >>= _HASH_SHIFT
    return hashes.view(np.int64)


def hash_of(name: bytes, shape: Heads) -> int:
    """Length, head and tail mixed, 8 bytes after 8 bytes."""
    size = hashed = len(name)
    for word in shape.packed.unpack(name[: shape.short].ljust(shape.short, b"\0") + bytes((min(size, _LONG),))):
        hashed = (hashed ^ word) * _MULTIPLIER & _MASK64
        hashed ^= hashed >> 32
    for at in range(shape.short, size, _WORD_BYTES):
        hashed = (hashed ^ int.from_bytes(name[at : at + _WORD_BYTES], "little")) * _MULTIPLIER & _MASK64
        hashed ^= hashed >> 32
    return (hashed * _FINISHER & _MASK64) >> 64 - HASH_BITS


def _longer(values: NDArray[Number], used: int, size: int) -> NDArray[Number]:
    longer = np.zeros((size, *values.shape[1:]), values.dtype)
    longer[:used] = values[:used]
    return longer
