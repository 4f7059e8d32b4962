"""The keys of a table: which of its blocks hold messages with a key, newest first.

A table with messages that have keys has a section between its blocks and the pages of its index: an *entry* of twelve
bytes for each such message, sorted by topic and key, as a hash of both, and within that from the newest to the oldest.
So who looks for a key reads the directory, which is small, the page with the key's newest entries, and the blocks that
these name; and one who goes on from a time begins there. Entries may name a block in vain: hashes are 28 bits long. All
integers are little-endian::

    directory   0  4  crc       CRC32C of bytes [4, size)
                4  4  size      of the directory
                8  8  entries   in all
               16  8  base_ms   the latest time that an entry can have
               24  4  shift     times are counted back from it in units of 2**shift ms
               28  4  (0)
               32  8 a page     the first entry of each
    pages       0  4  crc       CRC32C of the rest of the page
                4  4  entries   340, in the last page fewer
                8  8 an entry   hash << 36 | age
                .  4 an entry   position of the block

What is damaged counts as not being there: then the blocks are looked through. A table of 4 GiB or more, and one of an
earlier release, has none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import ClassVar, Final

import crc32c
import numpy as np
from numpy.typing import NDArray

from .columns import I64, U64, mix

ENTRY_BYTES: Final = 8 + 4
PAGE_ENTRIES: Final = 340
PAGE_BYTES: Final = 4 + 4 + PAGE_ENTRIES * ENTRY_BYTES  # 4088
DIRECTORY: Final = struct.Struct("<IIQqII")
DIRECTORY_BYTES: Final = DIRECTORY.size  # 4 + 4 + 8 + 8 + 4 + 4 = 32
_PAGE_HEAD: Final = struct.Struct("<II")
_AGE_BITS: Final = 36
_MOST_AGE: Final = (1 << _AGE_BITS) - 1
_MOST_POSITION: Final = (1 << 32) - 1
#: What a parsed directory or page takes beside its bytes.
_OVERHEAD_BYTES: Final = 500


class NoKeys(Exception):
    """There is nothing that says which blocks have a key, or it is damaged."""


def entry_hashes(topics: NDArray[np.uint32], hashes: U64) -> U64:
    """What the entries of messages with these key hashes begin with, in their place."""
    with np.errstate(over="ignore"):
        mixed = mix(hashes ^ mix(topics.astype(np.uint64))) >> np.uint64(_AGE_BITS)
        return mixed << np.uint64(_AGE_BITS)


class KeyIndexWriter:
    """Collects the entries of a table that is written. Twenty bytes a message with a key, until the table is done."""

    __slots__ = ("_hashes", "_positions", "_times")

    def __init__(self) -> None:
        self._hashes: list[U64] = []
        self._positions: list[I64] = []
        self._times: list[I64] = []

    def add(self, topics: NDArray[np.uint32], hashes: U64, stored_ms: I64, cuts: I64, positions: I64) -> None:
        """Records of blocks that begin at the rows ``cuts``, the last of which is the end, and at ``positions``."""
        rows = np.flatnonzero(hashes)
        if len(rows):
            self._hashes.append(entry_hashes(topics[rows], hashes[rows]))
            self._times.append(stored_ms[rows])
            self._positions.append(positions[cuts.searchsorted(rows, "right") - 1])

    def finish(self) -> bytes:
        """The section; no bytes where no message has a key."""
        if not self._hashes:
            return b""
        hashes: U64 = np.concatenate(self._hashes)
        times: I64 = np.concatenate(self._times)
        positions: I64 = np.concatenate(self._positions)
        if int(positions[-1]) > _MOST_POSITION:
            return b""
        base_ms = int(times.max())
        shift = max(0, (base_ms - int(times.min())).bit_length() - _AGE_BITS)
        entries = hashes | ((base_ms - times) >> shift).astype(np.uint64)
        order = np.argsort(entries, kind="stable")
        entries, places = entries[order].astype("<u8"), positions[order].astype("<u4")
        pages = []
        for first in range(0, len(entries), PAGE_ENTRIES):
            some = entries[first : first + PAGE_ENTRIES]
            body = len(some).to_bytes(4, "little") + some.tobytes() + places[first : first + PAGE_ENTRIES].tobytes()
            pages.append(crc32c.crc32c(body).to_bytes(4, "little") + body)
        firsts = entries[::PAGE_ENTRIES].tobytes()
        head = DIRECTORY.pack(0, DIRECTORY_BYTES + len(firsts), len(entries), base_ms, shift, 0)[4:] + firsts
        return crc32c.crc32c(head).to_bytes(4, "little") + head + b"".join(pages)


class KeyDirectory:
    """The directory, parsed: says which pages may have a key's entries, and of which times."""

    CHANCES: ClassVar[int] = 4
    __slots__ = ("_firsts", "_shift", "base_ms", "entries", "memory_bytes", "recent")

    def __init__(self, raw: bytes) -> None:
        """Raises ``NoKeys`` when it is damaged."""
        crc, size, self.entries, self.base_ms, self._shift, _ = _unpacked(DIRECTORY, raw)
        if size != len(raw) or crc32c.crc32c(memoryview(raw)[4:]) != crc:
            raise NoKeys("the directory of the keys is damaged")
        self._firsts: U64 = np.frombuffer(raw, "<u8", -1, DIRECTORY_BYTES)
        self.recent = 0
        self.memory_bytes = len(raw) + _OVERHEAD_BYTES

    @property
    def size_bytes(self) -> int:
        """On the disk; the pages follow."""
        return DIRECTORY_BYTES + 8 * len(self._firsts)

    @property
    def page_count(self) -> int:
        return len(self._firsts)

    def page_bytes(self, number: int) -> int:
        count = min(PAGE_ENTRIES, self.entries - number * PAGE_ENTRIES)
        return _PAGE_HEAD.size + count * ENTRY_BYTES

    def first_page(self, begin: int) -> int:
        """The first page with an entry at or above ``begin``, if any has."""
        return max(0, int(self._firsts.searchsorted(np.uint64(begin))) - 1)

    def begins_before(self, number: int, end: int) -> bool:
        """Whether there is such a page, and it begins below ``end``."""
        return number < len(self._firsts) and int(self._firsts[number]) < end

    def bounds(self, digest: int, from_ms: int, to_ms: int) -> tuple[int, int]:
        """Entries of a key in ``[from_ms, to_ms]`` lie in the half-open range of values that is returned."""
        newest, oldest = ((self.base_ms - at) >> self._shift for at in (to_ms, from_ms))
        if oldest < 0:
            return 0, 0
        return digest | min(max(newest, 0), _MOST_AGE), (digest | min(oldest, _MOST_AGE)) + 1

    def latest_ms(self, entry: int) -> int:
        """The latest time at which an entry's message can have been stored."""
        return self.base_ms - ((entry & _MOST_AGE) << self._shift)


class KeyPage:
    """A page, parsed."""

    CHANCES: ClassVar[int] = 1
    __slots__ = ("entries", "memory_bytes", "positions", "recent")

    def __init__(self, raw: bytes) -> None:
        """Raises ``NoKeys`` when it is damaged."""
        crc, count = _unpacked(_PAGE_HEAD, raw)
        if len(raw) != _PAGE_HEAD.size + count * ENTRY_BYTES or crc32c.crc32c(memoryview(raw)[4:]) != crc:
            raise NoKeys("a page of the keys is damaged")
        self.entries: U64 = np.frombuffer(raw, "<u8", count, _PAGE_HEAD.size)
        self.positions: NDArray[np.uint32] = np.frombuffer(raw, "<u4", count, _PAGE_HEAD.size + 8 * count)
        self.recent = 0
        self.memory_bytes = len(raw) + _OVERHEAD_BYTES

    def within(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The entries in ``[begin, end)``, and the blocks they name."""
        first, stop = (int(self.entries.searchsorted(np.uint64(at))) for at in (begin, end))
        return zip(self.entries[first:stop].tolist(), self.positions[first:stop].tolist(), strict=True)


def _unpacked(form: struct.Struct, raw: bytes) -> tuple[int, ...]:
    if len(raw) < form.size:
        raise NoKeys("the keys are cut off")
    return form.unpack_from(raw)
