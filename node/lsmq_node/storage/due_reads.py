"""Reading delayed messages in the order in which they are due.

Every source, a chunk of a memtable or a run of tables, holds its records in that order, so the next ones are found by a
search in each, a few records at a time; what lies beyond the last record of a source that had more is left for the
next call. Those with a tombstone are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lsmq.record_batch import LAST_DUE_MS, Column

from .compaction import KeyPlace, tombstones_among
from .delayed import DuePlace, due_key
from .sorted_records import SHADOW, SortedPart, SortedRecords, concatenate, select
from .table import Table
from .version import TableRun, Version

_SHADOW = int(SHADOW)
LAST_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DueRead:
    """Attributes:

    records: in the order in which they are due; None: none.
    reached: all that is pending up to here was looked at.
    more: there may be more up to where was asked.
    """

    records: SortedRecords | None
    reached: DuePlace
    more: bool


@dataclass(slots=True)
class _Limits:
    """Of one source."""

    records: int
    bytes: int


def read_due(version: Version, after: DuePlace, upto_ms: int, max_records: int, max_bytes: int) -> DueRead:
    """Delayed messages behind ``after`` that are due up to ``upto_ms``: no more than the limits say, of all sources.

    One record is read whatever its size. Raises ``CorruptFile``, and ``FileNotFoundError`` for a table that is gone.
    """
    upto_ms = min(upto_ms, LAST_DUE_MS)
    if after >= (upto_ms, LAST_OFFSET):
        return DueRead(None, after, more=False)
    begin, stop = (due_key(after[0]), after[1] + 1), due_key(upto_ms) + 1
    parts: list[SortedRecords] = []
    cut: KeyPlace = (stop, -1)  # what lies from here on is left
    for part, reached in _sources(version, begin, stop, max_records, max_bytes):
        parts.append(part)
        cut = min(cut, reached)
    more = cut[0] < stop
    end = (cut[0] - due_key(0), cut[1]) if more else (upto_ms, LAST_OFFSET)
    found = _until(parts, cut)
    if found is None:
        return DueRead(None, end, more)
    marks = [mark for mark in _tombstones(version, begin, cut) if len(mark)]
    if marks:
        dead = tombstones_among(found, marks)
        found = select(found, np.flatnonzero(~dead)) if dead.any() else found
    if not len(found):
        return DueRead(None, end, more)
    fits = min(max_records, int(found.lengths.cumsum(dtype=np.int64).searchsorted(max_bytes, "right")))
    if max(1, fits) < len(found):  # each source had its limits: together they are over them
        found = select(found, np.arange(max(1, fits)))
        return DueRead(found, (found.keys.item(-1) - due_key(0), found.offsets.item(-1)), more=True)
    return DueRead(found, end, more)


def _until(parts: Sequence[SortedRecords], cut: KeyPlace) -> SortedRecords | None:
    """The records of all parts up to ``cut``, in order."""
    if not parts:
        return None
    records = concatenate(parts)
    order = np.lexsort((records.offsets, records.keys))
    keys, offsets = records.keys[order], records.offsets[order]
    last = np.uint64(cut[0])
    order = order[(keys < last) | ((keys == last) & (offsets <= cut[1]))]
    if len(order) == len(records) and (len(order) < 2 or bool((order[1:] > order[:-1]).all())):
        return records
    return select(records, order)


def _sources(
    version: Version, begin: KeyPlace, stop: int, max_records: int, max_bytes: int
) -> Iterator[tuple[SortedRecords, KeyPlace]]:
    """The first records of each source from ``begin`` on, of keys below ``stop``; and up to where it had no others."""
    for memtable in version.memtables:
        for chunk, first, end in memtable.between(begin[0], stop):
            part = _taken(chunk, first, end, begin, _Limits(max_records, max_bytes))
            if part is not None:
                rows, complete = part
                yield rows, (stop, -1) if complete else _place(rows)
    for run in version.runs():
        limits = _Limits(max_records, max_bytes)
        found: list[SortedRecords] = []
        complete = True
        for block, first, end in _rows(run, begin, stop):
            part = _taken(block, first, end, begin, limits)
            if part is not None:
                found.append(part[0])
                complete = part[1]
            if not complete or limits.records <= 0 or limits.bytes <= 0:
                complete = False
                break
        if found:
            rows = concatenate(found)
            yield rows, (stop, -1) if complete else _place(rows)


def _place(records: SortedRecords) -> KeyPlace:
    return records.keys.item(-1), records.offsets.item(-1)


def _taken(
    part: SortedPart, first: int, end: int, begin: KeyPlace, limits: _Limits
) -> tuple[SortedRecords, bool] | None:
    """Records of the rows ``[first, end)`` from ``begin`` on, within limits, and whether those are all."""
    if part.keys.item(first) == begin[0]:
        same = int(part.keys.searchsorted(np.uint64(begin[0]), "right"))
        first = _first_from(part, first, min(same, end), begin[1])
    if first == end:
        return None
    upto = min(end, first + max(1, limits.records))
    lengths = part.column(Column.LENGTH, first, upto).astype(np.int64)
    upto = first + max(1, int(lengths.cumsum().searchsorted(limits.bytes, "right")))
    upto = min(upto, first + len(lengths))
    limits.records -= upto - first
    limits.bytes -= int(lengths[: upto - first].sum())
    return part.records(first, upto), upto == end


def _first_from(part: SortedPart, first: int, end: int, offset: int) -> int:
    """Of records of one key the first with this offset or a greater one."""
    return first + int(part.column(Column.OFFSET, first, end).searchsorted(offset))


def _rows(run: TableRun, begin: KeyPlace, stop: int) -> Iterator[tuple[SortedPart, int, int]]:
    """Blocks of a run with records from ``begin`` on and of keys below ``stop``, and the rows of these."""
    for table in run.tables:
        meta = table.meta
        if (meta.last_key, meta.last_offset) < begin:
            continue
        if meta.first_key >= stop:
            return
        yield from _rows_of(table, max(begin, (meta.first_key, meta.first_offset)), stop)


def _rows_of(table: Table, begin: KeyPlace, stop: int) -> Iterator[tuple[SortedPart, int, int]]:
    root = table.root()
    for number in range(root.seek(*begin), root.count):
        if root.first_keys[number] >= stop:
            return
        page = table.page(number)
        for row in range(page.seek(*begin), page.count):
            if page.first_keys[row] >= stop:
                return
            block = table.block_of(page, row)
            first = block.place(*begin) if (page.first_keys[row], page.first_offsets[row]) < begin else 0
            end = block.count if page.last_keys[row] < stop else int(block.keys.searchsorted(np.uint64(stop)))
            if first < end:
                yield block, first, end


def _tombstones(version: Version, begin: KeyPlace, cut: KeyPlace) -> Iterator[SortedRecords]:
    """Tombstones of delayed messages from ``begin`` up to ``cut``."""
    low, stop = (begin[0] | _SHADOW, begin[1]), (cut[0] | _SHADOW) + 1
    for memtable in version.memtables:
        if memtable.tombstone_count:
            for chunk, first, end in memtable.between(low[0], stop):
                yield chunk.records(first, end)
    for run in version.runs():
        if run.tombstone_count:
            for block, first, end in _rows(run, low, stop):
                yield block.records(first, end)
