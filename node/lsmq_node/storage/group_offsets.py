"""What consumer groups have committed, in memory that follows the commits and not the queues there are.

A group's offsets of a topic lie in the pages of :mod:`.pages`. A page in which few queues have one is a dictionary,
which is replaced, never changed; one with more is an array. So a group that reads three queues of a million costs a few
hundred bytes, and one that reads all of them eight bytes a queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedDict

from lsmq import runtime

from .columns import I64, stable_sort
from .pages import PAGE_BITS

#: A page with more queues that have an offset is an array.
FEW = 64

#: By the row in its page, offset + 1. Rows beyond an array have none.
Page = dict[int, int] | I64


class CommittedOffsets:
    """One group's, of one topic: offset + 1 of each row, 0 for none. One thread changes it; any may read."""

    __slots__ = ("_pages", "row_count", "version")

    def __init__(self) -> None:
        self._pages: dict[int, Page] = {}
        self.row_count = 0  # that the topic had when it was last committed to
        self.version = 0  # another after each commit, and for each that a group has and had of a topic

    def at(self, rows: NDArray[Any]) -> I64:
        """Of these rows; there may be more than the topic had."""
        found = np.zeros(len(rows), np.int64)
        for number, places in _by_page(rows):
            page = self._pages.get(number)
            if page is not None:
                found[places] = _look_up(page, rows[places] & _mask())
        return found

    def first(self, count: int) -> I64:
        """Of the first ``count`` rows."""
        found = np.zeros(count, np.int64)
        for number, page in self._pages.copy().items():
            _fill(found[number << PAGE_BITS : number + 1 << PAGE_BITS], page)
        return found

    def committed(self) -> Iterator[tuple[I64, I64]]:
        """Rows that have one, and these, a page at a time."""
        for number, page in self._pages.copy().items():
            if isinstance(page, dict):
                rows, values = np.array(list(page), np.int64), np.array(list(page.values()), np.int64)
            else:
                rows, values = np.arange(len(page)), page
            yield rows + (number << PAGE_BITS), values

    def pages(self) -> list[int]:
        """Those in which a queue was ever committed to."""
        return list(self._pages)

    def page(self, number: int) -> I64:
        """A copy of a page, as far as the topic reached."""
        length = min(1 << PAGE_BITS, self.row_count - (number << PAGE_BITS))
        return _dense(self._pages.get(number, {}), length)

    def restore(self, number: int, values: I64) -> None:
        """Take over a page of a checkpoint."""
        self.row_count = max(self.row_count, (number << PAGE_BITS) + len(values))
        rows = np.flatnonzero(values)
        few = len(rows) <= FEW
        self._pages[number] = dict(zip(rows.tolist(), values[rows].tolist(), strict=True)) if few else values

    def set(self, rows: NDArray[Any], values: I64, *, reset: bool) -> list[int]:
        """Set offsets + 1; without ``reset`` they only move forward. Returns the pages they are in."""
        changed = []
        for number, places in _by_page(rows):
            page, wanted = self._pages.get(number, {}), rows[places] & _mask()
            if isinstance(page, dict):
                page = _with(page, wanted, values[places], reset)
            else:
                page = _long_enough(page, int(wanted.max()) + 1)
                _put(page, wanted, values[places], reset)
            self._pages[number] = page
            changed.append(number)
        return changed


def _mask() -> int:
    return (1 << PAGE_BITS) - 1


def _by_page(rows: NDArray[Any]) -> Iterator[tuple[int, Any]]:
    """Each page that rows lie in, and which of them do, in their order."""
    if len(rows) == 0:
        return
    if len(rows) == 1:
        yield int(rows[0]) >> PAGE_BITS, slice(None)
        return
    pages = (rows >> PAGE_BITS).astype(np.uint32)
    cuts = np.flatnonzero(pages[1:] != pages[:-1]) + 1
    order = None
    if len(cuts) and (pages[cuts] < pages[cuts - 1]).any():
        order, pages = stable_sort(pages)
        cuts = np.flatnonzero(pages[1:] != pages[:-1]) + 1
    for first, end in pairwise((0, *cuts.tolist(), len(pages))):
        places = slice(first, end)
        yield int(pages[first]), places if order is None else order[places]


def _look_up(page: Page, rows: NDArray[Any]) -> I64:
    if isinstance(page, dict):
        if len(rows) <= FEW:
            return np.array([page.get(row, 0) for row in rows.tolist()], np.int64)
        page = _dense(page, 1 << PAGE_BITS)
    found: I64 = _long_enough(page, int(rows.max()) + 1)[rows]
    return found


def _dense(page: Page, length: int) -> I64:
    """A page as an array of its own, of ``length`` rows."""
    found = np.zeros(length, np.int64)
    _fill(found, page)
    return found


def _fill(zeros: I64, page: Page) -> None:
    if isinstance(page, dict):
        for row, value in page.items():
            if row < len(zeros):
                zeros[row] = value
    else:
        zeros[: len(page)] = page[: len(zeros)]


def _with(page: dict[int, int], rows: NDArray[Any], values: I64, reset: bool) -> Page:
    """A copy with these set; an array once there are many."""
    if len(rows) <= FEW:
        page = page.copy()
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            if reset or value > page.get(row, 0):
                page[row] = value
        if len(page) <= FEW:
            return page
        return _dense(page, max(page) + 1)
    dense = _dense(page, max(max(page, default=0), int(rows.max())) + 1)
    _put(dense, rows, values, reset)
    return dense


def _put(page: I64, rows: NDArray[Any], values: I64, reset: bool) -> None:
    if reset:
        page[rows] = values
    else:
        np.maximum.at(page, rows, values)


def _long_enough(page: I64, length: int) -> I64:
    """The page, or a copy with so many rows at least. Doubles, so that growing row by row stays cheap."""
    if length <= len(page):
        return page
    longer = np.zeros(min(1 << PAGE_BITS, max(length, 2 * len(page))), np.int64)
    longer[: len(page)] = page
    return longer


class GroupOffsets:
    """Committed offsets by (group, topic id), and what of them changed since it was last asked."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, int], CommittedOffsets] = {}
        self._groups: dict[int, dict[str, None]] = {}  # by topic id
        self._topics: SortedDict[str, dict[int, None]] = SortedDict()  # ids, by group
        self._ordering = runtime.Lock()  # held while groups come and go, and by who reads their order
        self._changed: dict[tuple[str, int], set[int]] = {}  # pages
        self._dropped: dict[tuple[str, int | None], None] = {}
        self.changes = 0  # raised by every change

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(list(self._offsets))

    def get(self, group: str, topic_id: int) -> CommittedOffsets | None:
        return self._offsets.get((group, topic_id))

    def groups_of(self, topic_id: int) -> list[str]:
        """Groups that have committed offsets of a topic."""
        return list(self._groups.get(topic_id, ()))

    def topics_of(self, group: str) -> list[int]:
        """Ids of the topics that a group has committed offsets of."""
        return list(dict.keys(self._topics.get(group, {})))

    def groups(self, after: str | None = None, limit: int = 0) -> list[str]:
        """Groups that have committed offsets; or so many of them after a name, in order, which costs what is found."""
        if after is None:
            return list(dict.keys(self._topics))
        with self._ordering:
            return list(islice(self._topics.irange(after, inclusive=(False, True)), limit))

    def restore(self, group: str, topic_id: int, page: int, values: I64) -> None:
        """Take over a page of a checkpoint: offsets + 1."""
        (self._offsets.get((group, topic_id)) or self._new(group, topic_id)).restore(page, values)

    def _new(self, group: str, topic_id: int) -> CommittedOffsets:
        found = self._offsets[group, topic_id] = CommittedOffsets()
        self._groups.setdefault(topic_id, {})[group] = None
        with self._ordering:
            self._topics.setdefault(group, {})[topic_id] = None
        return found

    def commit(
        self, group: str, topic_id: int, row_count: int, rows: NDArray[Any], values: I64, *, reset: bool
    ) -> None:
        """Set offsets + 1; without ``reset`` they only move forward. ``row_count``: queues of the topic."""
        key = (group, topic_id)
        self.changes += 1
        offsets = self._offsets.get(key)
        if offsets is None:
            offsets = self._new(group, topic_id)
        offsets.row_count = max(offsets.row_count, row_count)
        self._changed.setdefault(key, set()).update(offsets.set(rows, values, reset=reset))
        offsets.version = self.changes  # last: whoever reads meanwhile reads again

    def drop(self, group: str | None = None, topic_id: int | None = None) -> None:
        """Forget the offsets of a group, or of a topic. Costs what there is of it."""
        self.changes += 1
        gone = self._keys(group, topic_id)
        for key in gone:
            del self._offsets[key]
            self._forget(*key)
            self._changed.pop(key, None)
        noted: list[tuple[str, int | None]] = [(group, None)] if gone and group and topic_id is None else [*gone]
        self._dropped.update(dict.fromkeys(noted))

    def _keys(self, group: str | None, topic_id: int | None) -> list[tuple[str, int]]:
        if group is not None:
            return [(group, each) for each in self._topics.get(group, ()) if topic_id in (None, each)]
        return [] if topic_id is None else [(each, topic_id) for each in self._groups.get(topic_id, ())]

    def _forget(self, group: str, topic_id: int) -> None:
        groups, topics = self._groups[topic_id], self._topics[group]
        del groups[group], topics[topic_id]
        if not groups:
            del self._groups[topic_id]
        if not topics:
            with self._ordering:
                del self._topics[group]

    def touch_all(self) -> None:
        """Have :meth:`take_change` give all there is."""
        self._dropped = {}
        for key, offsets in self._offsets.items():
            self._changed[key] = set(offsets.pages())

    def take_change(self) -> tuple[list[tuple[str, int, int, I64]], list[tuple[str, int | None]]]:
        """What changed since the last time, as in :class:`.state.StateChange`."""
        pages = [
            (*key, page, self._offsets[key].page(page))
            for key, changed in self._changed.items()
            for page in sorted(changed)
        ]
        dropped = list(self._dropped)
        self._changed, self._dropped = {}, {}
        return pages, dropped
