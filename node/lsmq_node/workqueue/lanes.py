"""Who has messages to be delivered, and which: arrays in place of objects, since there may be a million of each. Pure.

A *lane* is a tenant at a level. It takes 18 bytes in arrays and six to nine in a table that finds it; a message takes
16, with its time 24. Lanes and messages that go leave room for others, and what is mostly such room is
:meth:`Lanes.compacted`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

#: No lane, no message.
NONE: Final = 0xFFFF_FFFF
_MASK: Final = (1 << 64) - 1
_LEAST: Final = 64
#: What has so many times more room than it needs, and this on top, is to be made anew.
_SLACK, _SPARE = 4, 1_024
_LEVEL, _SPREAD = 0xC2B2_AE3D_27D4_EB4F, 0x9E37_79B9_7F4A_7C15


def _size_bytes(*parts: array[int] | None) -> int:
    return sum(len(part) * part.itemsize for part in parts if part is not None)


class Chains:
    """Messages that wait, one behind another. A chain is known by its last message, whose next one is the first."""

    __slots__ = ("_free", "_nexts", "_offsets", "_queues", "_times", "count")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._queues, self._offsets, self._nexts = array("I"), array("Q"), array("I")
        self._times: array[int] | None = None
        self._free = NONE
        self.count = 0

    @property
    def size_bytes(self) -> int:
        return _size_bytes(self._queues, self._offsets, self._nexts, self._times)

    @property
    def is_sparse(self) -> bool:
        return len(self._nexts) > _SLACK * self.count + _SPARE

    def push(self, tail: int, queue: int, offset: int, stored_ms: int | None) -> int:
        """Behind all of a chain, or of none; returns what it is known by then. ``stored_ms``: always or never."""
        at = self._free
        if at == NONE:
            at = len(self._nexts)
            self._queues.append(queue)
            self._offsets.append(offset)
            self._nexts.append(at)
            if stored_ms is not None:
                self._times = array("Q") if self._times is None else self._times
                self._times.append(stored_ms)
        else:
            self._free = self._nexts[at]
            self._queues[at], self._offsets[at], self._nexts[at] = queue, offset, at
            if self._times is not None:
                self._times[at] = stored_ms or 0
        if tail != NONE:
            self._nexts[at], self._nexts[tail] = self._nexts[tail], at
        self.count += 1
        return at

    def pop(self, tail: int) -> tuple[int, int, int]:
        """Queue and offset of the first message of a chain, and what the rest is known by."""
        first = self._nexts[tail]
        queue, offset = self._queues[first], self._offsets[first]
        rest = NONE
        if first != tail:
            self._nexts[tail], rest = self._nexts[first], tail
        self._nexts[first], self._free = self._free, first
        self.count -= 1
        if not self.count:
            self._clear()
        return queue, offset, rest

    def first_time(self, tail: int) -> int:
        """When the first message of a chain was stored; 0 where that is not kept."""
        return 0 if self._times is None else self._times[self._nexts[tail]]

    def moved_to(self, other: Chains, tail: int) -> int:
        """Copy a chain; returns what it is known by there."""
        copied, at = NONE, tail
        while tail != NONE:
            at = self._nexts[at]
            stored_ms = None if self._times is None else self._times[at]
            copied = other.push(copied, self._queues[at], self._offsets[at], stored_ms)
            if at == tail:
                break
        return copied


class Lanes:
    """By number: ``tenants``, ``levels``, ``tails`` of what waits (:class:`Chains`), and ``nexts``, a lane each, which
    are whoever asks for them. The table finds numbers by open addressing."""

    __slots__ = ("_free", "_table", "count", "levels", "nexts", "tails", "tenants")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.tenants, self.levels, self.tails, self.nexts = array("Q"), array("H"), array("I"), array("I")
        self._table = array("I", [NONE]) * _LEAST
        self._free = NONE
        self.count = 0

    @property
    def size_bytes(self) -> int:
        return _size_bytes(self.tenants, self.levels, self.tails, self.nexts, self._table)

    @property
    def is_sparse(self) -> bool:
        return len(self.tenants) > _SLACK * self.count + _SPARE

    def _home(self, level: int, tenant: int, size: int) -> int:
        """Where the search begins."""
        return (((tenant ^ level * _LEVEL) * _SPREAD & _MASK) >> 32) * size >> 32

    def _place(self, level: int, tenant: int) -> int:
        """Where in the table it is, or is to be."""
        table, tenants, levels = self._table, self.tenants, self.levels
        size = len(table)
        at = self._home(level, tenant, size)
        while (lane := table[at]) != NONE and (tenants[lane] != tenant or levels[lane] != level):
            at = at + 1 if at + 1 < size else 0
        return at

    def find(self, level: int, tenant: int) -> int:
        """Its number; ``NONE`` where there is none."""
        return self._table[self._place(level, tenant)]

    def add(self, level: int, tenant: int) -> int:
        """The number of a new one, which has nothing."""
        if 10 * (self.count + 1) > 7 * len(self._table):
            self._resize(len(self._table) * 3 // 2)
        lane = self._free
        if lane == NONE:
            lane = len(self.tenants)
            self.tenants.append(tenant)
            self.levels.append(level)
            self.tails.append(NONE)
            self.nexts.append(NONE)
        else:
            self._free = self.nexts[lane]
            self.tenants[lane], self.levels[lane] = tenant, level
            self.tails[lane] = self.nexts[lane] = NONE
        self._table[self._place(level, tenant)] = lane
        self.count += 1
        return lane

    def remove(self, lane: int) -> None:
        table, size = self._table, len(self._table)
        hole = self._place(self.levels[lane], self.tenants[lane])
        at = hole
        while True:  # whoever was pushed on by what goes moves up
            at = at + 1 if at + 1 < size else 0
            other = table[at]
            if other == NONE:
                break
            home = self._home(self.levels[other], self.tenants[other], size)
            if (at - home) % size >= (at - hole) % size:
                table[hole], hole = other, at
        table[hole] = NONE
        self.nexts[lane], self._free = self._free, lane
        self.count -= 1
        if not self.count:
            self._clear()

    def _resize(self, size: int) -> None:
        """All at once, since a million may wait for it: in the order of their homes each is at its own, or right behind
        the one before it."""
        known: Any = np.frombuffer(self._table, np.uint32)
        known = known[known != NONE]
        tenants, levels = np.frombuffer(self.tenants, np.uint64)[known], np.frombuffer(self.levels, np.uint16)[known]
        mixed = (tenants ^ levels.astype(np.uint64) * np.uint64(_LEVEL)) * np.uint64(_SPREAD)
        homes = ((mixed >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)).astype(np.int64)
        order = np.argsort(homes, kind="stable")
        turns = np.arange(len(order))
        places = turns + np.maximum.accumulate(homes[order] - turns)
        table = np.full(size, NONE, np.uint32)
        fits = places < size
        table[places[fits]] = known[order[fits]]
        self._table = array("I", table.tobytes())
        for lane in known[order[~fits]].tolist():  # from the end on to the beginning
            self._table[self._place(self.levels[lane], self.tenants[lane])] = lane

    def compacted(self, chains: Chains, lanes: Iterable[int]) -> tuple[Lanes, Chains, dict[int, int]]:
        """These alone, which are all there are, with what they have; and their new numbers by the old ones."""
        others, moved, numbers = Lanes(), Chains(), dict[int, int]()
        for lane in lanes:
            number = numbers[lane] = others.add(self.levels[lane], self.tenants[lane])
            others.tails[number] = chains.moved_to(moved, self.tails[lane])
        return others, moved, numbers
