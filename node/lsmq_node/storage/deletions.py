"""What is known of a topic's deleted messages without reading a tombstone.

Two numbers a queue, for queues in which something was deleted:

- the *floor*: all messages below it are deleted, or below the log start. Messages that are deleted in order raise it
  and leave no tombstone. So do messages that are deleted a little out of order, once those before them are: stretches
  that are deleted ahead of the floor are remembered, the lowest ``MAX_STRETCHES`` of a queue.
- the *end*: no message from there on is deleted. A read from the end on needs no tombstones; when the floor has reached
  it the queue is one like any other.

It follows from the log alone, so all replicas have the same, and a checkpoint carries it. Who reads from below the
floor finds the first message from the floor on: deleting moves no log start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import I64, group_starts

#: Stretches ahead of the floor that are remembered of a queue. Of those beyond, only tombstones tell.
MAX_STRETCHES = 64


class Deleted(NamedTuple):
    """What is known of some neighbouring queues, for a checkpoint; ``stretches`` are rows of it, first, end."""

    floors: I64
    ends: I64
    stretches: list[tuple[int, int, int]]


class Deletions:
    """Of the queues of one topic, by row. One thread applies; readers may run beside it."""

    __slots__ = ("_ahead", "end", "floor")

    def __init__(self, count: int) -> None:
        self.floor: I64 = np.zeros(count, np.int64)
        self.end: I64 = np.zeros(count, np.int64)
        self._ahead: dict[int, list[tuple[int, int]]] = {}

    def widen(self, count: int) -> None:
        """More queues at the end."""
        self.floor, self.end = _widened(self.floor, count), _widened(self.end, count)

    def apply(self, rows: I64, offsets: I64, starts: I64, ends: I64) -> NDArray[np.bool_]:
        """Messages of the queues in ``rows`` are deleted; returns which of them need a tombstone.

        ``starts`` and ``ends`` are the bounds of all queues. What is not within them is passed over.
        """
        needed = np.zeros(len(rows), np.bool_)
        order = np.lexsort((offsets, rows))
        rows_, offsets_ = rows[order], offsets[order]
        fresh = np.ones(len(order), np.bool_)
        fresh[1:] = (rows_[1:] != rows_[:-1]) | (offsets_[1:] != offsets_[:-1])
        fresh &= (offsets_ >= np.maximum(starts, self.floor)[rows_]) & (offsets_ < ends[rows_])
        order, rows_, offsets_ = order[fresh], rows_[fresh], offsets_[fresh]
        if len(order) == 0:
            return needed
        firsts = group_starts(rows_)
        stops = np.append(firsts[1:], len(rows_))
        floors = np.maximum(starts, self.floor)[rows_[firsts]]
        lasts = offsets_[stops - 1]
        in_order = (offsets_[firsts] == floors) & (lasts - floors == stops - firsts - 1)
        for group in range(len(firsts)):
            row = int(rows_[firsts[group]])
            if not in_order[group] or row in self._ahead:
                own = offsets_[firsts[group] : stops[group]]
                floor = self._apply_one(row, own, int(floors[group]))
                needed[order[firsts[group] : stops[group]]] = own >= floor
        simple = np.flatnonzero(in_order)
        simple_rows = rows_[firsts[simple]]
        self.floor[simple_rows] = np.maximum(self.floor[simple_rows], lasts[simple] + 1)
        np.maximum.at(self.end, rows_, offsets_ + 1)
        return needed

    def _apply_one(self, row: int, offsets: I64, floor: int) -> int:
        """Take in what is deleted of one queue; returns its floor."""
        breaks = np.flatnonzero(np.diff(offsets) > 1) + 1
        parts = np.split(offsets, breaks) if len(offsets) else []
        return self._add(row, [(int(part[0]), int(part[-1]) + 1) for part in parts], floor)

    def hide(self, row: int, first: int, end: int, start: int) -> None:
        """There are no messages ``[first, end)`` of a queue with this log start, whatever became of them."""
        self._add(row, [(first, end)], max(start, int(self.floor[row])))
        self.end[row] = max(end, int(self.end[row]))

    def stretches(self, row: int) -> list[tuple[int, int]]:
        """What is remembered of deleted messages ahead of the floor."""
        return list(self._ahead.get(row, ()))

    def remembered(self, rows: I64, offsets: I64) -> NDArray[np.bool_]:
        """Which messages, sorted by row and offset, lie in a stretch that is remembered as deleted."""
        found = np.zeros(len(rows), np.bool_)
        for row in self._ahead.keys() & set(rows.tolist()) if self._ahead else ():
            low, high = int(rows.searchsorted(row)), int(rows.searchsorted(row, "right"))
            for first, end in self._ahead[row]:
                begin, stop = offsets[low:high].searchsorted((first, end))
                found[low + begin : low + stop] = True
        return found

    def copy(self) -> Deletions:
        """The same, which stays as it is."""
        twin = Deletions(0)
        twin.floor, twin.end = self.floor.copy(), self.end.copy()
        twin._ahead = {row: list(stretches) for row, stretches in self._ahead.items()}
        return twin

    def _add(self, row: int, stretches: list[tuple[int, int]], floor: int) -> int:
        left: list[tuple[int, int]] = []
        for first, end in sorted(stretches + self._ahead.get(row, [])):
            if first <= floor:
                floor = max(floor, end)
            elif left and first <= left[-1][1]:
                left[-1] = left[-1][0], max(left[-1][1], end)
            else:
                left.append((first, end))
        del left[MAX_STRETCHES:]
        if left:
            self._ahead[row] = left
        else:
            self._ahead.pop(row, None)
        self.floor[row] = floor
        return floor

    def trimmed(self, rows: I64, starts: I64) -> None:
        """Log starts have moved: a stretch that they have reached is behind the floor now."""
        for row in self._ahead.keys() & set(rows.tolist()) if self._ahead else ():
            self._apply_one(row, np.empty(0, np.int64), max(int(starts[row]), int(self.floor[row])))

    def take(self, pages: Sequence[int], page_bits: int, starts: I64) -> dict[int, Deleted]:
        """What is known of pages of ``1 << page_bits`` queues, as copies; those of which nothing is are left out.

        So are queues whose log start is past all that was deleted.
        """
        found: dict[int, Deleted] = {}
        for page in pages:
            queues = slice(page << page_bits, min(len(starts), page + 1 << page_bits))
            live = self.end[queues] > starts[queues]
            if live.any():
                found[page] = Deleted(self.floor[queues] * live, self.end[queues] * live, [])
        if found:
            for row, stretches in sorted(self._ahead.items()):
                deleted = found.get(row >> page_bits)
                if deleted is not None:
                    deleted.stretches.extend((row & (1 << page_bits) - 1, *stretch) for stretch in stretches)
        return found

    def restore(self, begin: int, count: int, deleted: Deleted | None) -> None:
        """Know of the ``count`` queues from row ``begin`` on what :meth:`take` gave, and nothing else."""
        queues = slice(begin, begin + count)
        for row in [row for row in self._ahead if begin <= row < begin + count]:
            del self._ahead[row]
        if deleted is None:
            self.floor[queues] = self.end[queues] = 0
            return
        self.floor[queues], self.end[queues] = deleted.floors, deleted.ends
        for row, first, end in deleted.stretches:
            self._ahead.setdefault(begin + row, []).append((first, end))


def _widened(values: I64, count: int) -> I64:
    wider = np.zeros(max(count, len(values)), np.int64)
    wider[: len(values)] = values
    return wider
