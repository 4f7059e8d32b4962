"""Which messages of a damaged store are there, which are deleted, and which are lost.

A queue's offsets have no gaps: between its log start and its end each is a message, or was deleted. What is missing
beyond that is lost. Offsets that nobody has any more become deleted ones, as far as readers are concerned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column

from ..columns import I64, U64, group_starts
from ..delayed import HAND, Hand, is_delayed, live_from
from ..deletions import Deletions
from ..sorted_records import SHADOW, SortedRecords, select
from ..state import TopicState
from .findings import FindingsBook, Loss
from .known import KnownShard
from .table_scan import Gaps, joined

#: Topic, row, and the offsets ``[first, end)``.
OnGap = Callable[[TopicState, int, int, int], None]


class _Seen:
    """Of a topic's queues, by row: the first offset that was met and the end of the last; 0, 0 for none."""

    def __init__(self, count: int) -> None:
        self.first: I64 = np.zeros(count, np.int64)
        self.end: I64 = np.zeros(count, np.int64)


class LossLedger:
    """Takes messages in key order, with the tombstones of their place; tells what is lost."""

    def __init__(
        self, known: KnownShard, gaps: Gaps, book: FindingsBook, name_of: Callable[[TopicState, int], str | None]
    ) -> None:
        """``name_of`` a topic's queue, where queues have names."""
        self._known = known
        self._name_of = name_of
        self._gaps = gaps
        self._book = book
        self._live: dict[int, _Seen] = {}
        self._met: dict[int, _Seen] = {}  # live, or with a tombstone
        topics = known.state.topics.items()
        #: As it is before what is lost is added.
        self._deleted: dict[int, Deletions] = {
            topic_id: item.deletions.copy() for topic_id, item in topics if item.deletions is not None
        }

    def take(self, messages: SortedRecords | None, graves: SortedRecords | None) -> SortedRecords | None:
        """The messages that may still be read, of those up to some place; ``graves`` are all up to the same."""
        keys, offsets = _places(messages)
        grave_keys, grave_offsets = _places(graves)
        grave_keys = grave_keys & ~SHADOW
        alive = self._kept(keys, offsets)
        both_keys, both_offsets = np.concatenate((grave_keys, keys)), np.concatenate((grave_offsets, offsets))
        order = np.lexsort((both_offsets, both_keys))  # stable: a grave stands before its message
        both_keys, both_offsets = both_keys[order], both_offsets[order]
        same = np.zeros(len(order), np.bool_)
        same[1:] = (both_keys[1:] == both_keys[:-1]) & (both_offsets[1:] == both_offsets[:-1])
        buried = order[same] - len(grave_keys)
        alive[buried[buried >= 0]] = False
        self._note(both_keys[~same], both_offsets[~same], self._met, self._missing)
        self._note(keys[alive], offsets[alive], self._live, self._hide)
        if messages is None or alive.all():
            return messages
        return select(messages, np.flatnonzero(alive)) if alive.any() else None

    def _kept(self, keys: U64, offsets: I64) -> NDArray[np.bool_]:
        """Which messages are of a queue that there is, and not known to be deleted without a tombstone."""
        kept = is_delayed(keys)
        kept[kept] = offsets[kept] >= live_from(keys[kept], Hand.decode(self._known.state.documents.get(HAND)))
        for item, mine in self._by_topic(keys):
            rows, own = (keys[mine] & np.uint64(0xFFFFFFFF)).astype(np.int64) - item.first, offsets[mine]
            kept[mine] = own >= item.live_from(rows)
            deleted = self._deleted.get(item.topic.id)
            if deleted is not None:
                kept[mine] &= ~deleted.remembered(rows, own)
        return kept

    def _by_topic(self, keys: U64) -> list[tuple[TopicState, I64]]:
        """Topics that there are, and the positions of those keys that are of their queues."""
        found = []
        topics = keys >> np.uint64(32)
        for topic_id in np.unique(topics).tolist():
            item = self._known.state.topics.get(topic_id)
            if item is not None:
                rows = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64) - item.first
                within = (topics == np.uint64(topic_id)) & (rows >= 0) & (rows < item.end - item.first)
                found.append((item, np.flatnonzero(within)))
        return found

    def _note(self, keys: U64, offsets: I64, seen: dict[int, _Seen], on_gap: OnGap) -> None:
        """Sorted records were met: tell of what is missing between them."""
        for item, mine in self._by_topic(keys):
            if len(mine) == 0:
                continue
            rows = (keys[mine] & np.uint64(0xFFFFFFFF)).astype(np.int64) - item.first
            own = offsets[mine]
            found = seen.setdefault(item.topic.id, _Seen(len(item.next)))
            firsts = group_starts(rows)
            lasts = np.append(firsts[1:], len(rows)) - 1
            queues = rows[firsts]
            began = found.end[queues] > 0
            late = began & (own[firsts] > found.end[queues])
            for at in np.flatnonzero(late).tolist():
                on_gap(item, int(queues[at]), int(found.end[queues[at]]), int(own[firsts[at]]))
            inner = np.flatnonzero((rows[1:] == rows[:-1]) & (own[1:] > own[:-1] + 1))
            for at in inner.tolist():
                on_gap(item, int(rows[at]), int(own[at]) + 1, int(own[at + 1]))
            found.first[queues] = np.where(began, found.first[queues], own[firsts])
            found.end[queues] = own[lasts] + 1

    # -- what is missing ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing more comes: tell of what is missing before the first and behind the last of each queue."""
        for item in self._known.state.topics.values():
            count = item.end - item.first
            self._ends(item, count, self._met, self._missing)
        for item in self._known.state.topics.values():
            count = item.end - item.first
            doubted = self._known.doubted(item)[:count]
            live = self._live.get(item.topic.id) or _Seen(count)
            first = np.where(live.end[:count] > 0, live.first[:count], item.next[:count])
            rows = np.flatnonzero(doubted & (first > item.start[:count]))
            item.start[rows] = first[rows]
            self._ends(item, count, self._live, self._hide)

    def _ends(self, item: TopicState, count: int, seen: dict[int, _Seen], on_gap: OnGap) -> None:
        found = seen.get(item.topic.id) or _Seen(count)
        first, end, ends = found.first[:count], found.end[:count], item.next[:count]
        starts = item.live_from(np.arange(count))
        none = end == 0
        for row in np.flatnonzero(none & (starts < ends)).tolist():
            on_gap(item, row, int(starts[row]), int(ends[row]))
        for row in np.flatnonzero(~none & (starts < first)).tolist():
            on_gap(item, row, int(starts[row]), int(first[row]))
        for row in np.flatnonzero(~none & (end < ends)).tolist():
            on_gap(item, row, int(end[row]), int(ends[row]))

    def _hide(self, item: TopicState, row: int, first: int, end: int) -> None:
        """Readers must not stumble over what is not there, unless they know already."""
        if end > item.holes_end(row):
            if item.deletions is None:
                item.deletions = Deletions(len(item.next))
            item.deletions.hide(row, first, end, int(item.start[row]))

    def _missing(self, item: TopicState, row: int, first: int, end: int) -> None:
        """Tell which of ``[first, end)``, of which there are neither messages nor tombstones, were not deleted."""
        deleted = self._deleted.get(item.topic.id)
        known = deleted is not None and row < len(deleted.end)
        first = max(first, int(item.start[row]), int(deleted.floor[row]) if deleted is not None and known else 0)
        if first >= end:
            return
        certain_from = end
        if not self._known.doubted(item)[row]:
            certain_from = max(first, int(deleted.end[row]) if deleted is not None and known else 0)
        if certain_from < end:
            self._lost(item, row, certain_from, end, certain=True)
        parts = self._gaps.concerned(item.topic.id << 32 | row + item.first, first, min(end, certain_from))
        lost_from = self._known.lost_from(item, row)
        if lost_from is not None and max(first, lost_from) < min(end, certain_from):
            parts.append((max(first, lost_from), min(end, certain_from)))
        stretches = deleted.stretches(row) if deleted is not None else []
        for low, high in joined(parts):
            for begin, stop in _less(low, high, stretches):
                self._lost(item, row, begin, stop, certain=False)

    def _lost(self, item: TopicState, row: int, first: int, end: int, *, certain: bool) -> None:
        name = self._name_of(item, row)
        self._book.add(Loss(item.topic.name, item.topic.id, row + item.first, name, first, end, certain))


def _places(records: SortedRecords | None) -> tuple[U64, I64]:
    if records is None:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    return records.keys, records.columns[Column.OFFSET]


def _less(first: int, end: int, without: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """``[first, end)`` without these ranges."""
    left = []
    for low, high in sorted(without):
        if low > first:
            left.append((first, min(low, end)))
        first = max(first, high)
    left.append((first, end))
    return [(low, high) for low, high in left if low < high]
