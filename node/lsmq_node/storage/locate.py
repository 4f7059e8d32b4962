"""Where a queue's records are, from an offset on.

A queue's offsets grow with time, and so do the sources: what a memtable or a run of tables holds of a queue lies wholly
before what newer ones hold of it. So the newest source that begins at or before an offset has it, if any has, and what
follows it is in that source and the newer ones. Where there are many runs, they are searched as an ordered list can be,
by the first offset of the queue in each: it is looked up by the index where that says so, and in one block otherwise.
A run that has nothing of the queue, as its filters say, leaves it to the next older.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from lsmq.errors import CorruptFile

from .block import Block
from .bloom import Probe, bloom_probe
from .index import IndexPage
from .memtable import Chunk, Memtable
from .table import Table
from .version import TableRun

#: So few runs are asked one by one.
FEW_RUNS = 4
#: And so many, at most, that have some of what is wanted: there may be more in each than a reader can take.
MOST_WALKED = 16

#: Records ``[first, stop)`` of a queue in a block, and the offset of the first.
InBlock = tuple[Block, int, int, int]
#: A row of the index, for a block that may hold records of a queue; and what it holds, where that was looked at.
LocatedRow = tuple[Table, IndexPage, int, InBlock | None]


def in_memory(
    memtables: Sequence[Memtable], key: int, offset: int, end: int
) -> tuple[int, list[tuple[Chunk, int, int, int]]]:
    """Where messages of the queue are in memory, from ``end`` back as far as ``offset``. All of them are there.

    Returns the offset where they begin, ``end`` for none, and chunks, oldest first: rows ``[first, stop)`` of each, and
    the offset of the first.
    """
    begins = end
    found: list[tuple[Chunk, int, int, int]] = []
    for memtable in memtables:
        if memtable.record_count:
            for chunk, first in memtable.holding(key):
                low = chunk.offset(first)
                if low < begins:  # the newer ones have the rest of the queue, without a gap
                    stop = first + begins - low
                    assert chunk.keys.item(stop - 1) == key, "a queue's offsets have no gaps"
                    found.append((chunk, first, stop, low))
                    begins = low
                    if low <= offset:
                        return low, found[::-1]
    return begins, found[::-1]


def in_tables(runs: Sequence[TableRun], key: int, offset: int, end: int) -> Iterator[LocatedRow]:
    """Where messages ``[offset, end)`` of the queue may be, oldest first. ``runs`` are newest first.

    They are asked one by one as long as they have something of that, which is read anyway, and searched from where they
    have not. Raises ``CorruptFile``, and ``FileNotFoundError`` for a table that is gone.
    """
    probe = bloom_probe(key)
    behind: list[tuple[LocatedRow | None, TableRun]] = []  # their first rows, and whose they are, newest first
    patience = MOST_WALKED
    for at, run in enumerate(runs):
        if patience <= 0 and len(runs) - at > FEW_RUNS:
            left = runs[at:]
            for older in left[newest_holding(left, key, probe, offset) :: -1]:
                for table, page, number in older.rows_from(key, probe, offset, end):
                    yield table, page, number, None
            break
        try:
            row, begins = _begin(run, key, probe, offset, end)
        except CorruptFile:  # which matters only to who reads as far
            row, begins = None, offset + 1
        if begins is None:
            patience -= MOST_WALKED // FEW_RUNS
        elif row is not None and begins >= end:
            patience = 0
        else:
            behind.append((row, run))
            if begins <= offset:
                break
            patience -= 1
    for row, run in behind[::-1]:
        if row is not None:
            yield row
            if row[1].last_keys[row[2]] != key:
                continue
        rows = run.rows_from(key, probe, offset, end)
        for table, page, number in rows if row is None else islice(rows, 1, None):
            yield table, page, number, None


def _begin(run: TableRun, key: int, probe: Probe, offset: int, end: int) -> tuple[LocatedRow | None, int | None]:
    """The first that :meth:`.TableRun.rows_from` gives, and where the queue begins there.

    None where the run has nothing of it, or nothing before ``end``. Raises ``CorruptFile``.
    """
    for table in run.tables_from(key, offset, end):
        begins = table.begins(key)
        found = table.seek(key, probe, offset if offset > begins else begins, end)
        if found is None:
            continue
        _, page, row = found
        if page.first_keys[row] == key:
            first = page.first_offsets[row]
            if first >= end:
                break
            return (table, page, row, None), first if first > begins else begins
        block = table.block_of(page, row)
        at, stop = block.span(key)
        if at < stop:
            first = block.offset(at)
            return (table, page, row, (block, at, stop, first)), first if first > begins else begins
        break
    return None, None


def newest_holding(runs: Sequence[TableRun], key: int, probe: Probe, offset: int) -> int:
    """Number of the newest run that has a record of the queue at or before ``offset``; how many ``runs`` if none.

    ``runs`` are newest first. A record at ``offset``, if there is one, is in that run. One that turns out to be damaged
    counts as having nothing: whoever reads on from the run that is found meets the damage where it matters, and not
    before. Raises ``FileNotFoundError`` for a table that is gone.
    """
    low, high = 0, len(runs)  # all before `low` begin behind the offset, or have nothing
    bound = high  # and all of [bound, high) have nothing
    while low < bound:
        middle = at = (low + bound) // 2
        while (behind := _begins_behind(runs[at], key, probe, offset)) is None and at + 1 < bound:
            at += 1
        if behind:
            low = at + 1
        else:
            bound = middle
            if behind is not None:
                high = at
    return high


def _begins_behind(run: TableRun, key: int, probe: Probe, offset: int) -> bool | None:
    """Whether the run's first record of the queue comes after ``offset``; None where it has none."""
    for table in run.tables_from(key, 0)[:1]:
        meta = table.meta
        if meta.first_key == key:
            return meta.first_offset > offset
        if meta.last_key == key and meta.last_offset <= offset:
            return False
        try:
            root = table.root()
            number = root.seek(key, 0)
            if number == root.count or root.first_keys[number] > key:
                return None
            if root.last_keys[number] == key and root.last_offsets[number] <= offset:
                return False
            page = table.page(number)
            if not page.may_contain(key, probe):
                return None
            row = page.seek(key, 0)
            if page.last_keys[row] == key and page.last_offsets[row] <= offset:
                return False
            if page.first_keys[row] >= key:
                return page.first_offsets[row] > offset if page.first_keys[row] == key else None
            block = table.block_of(page, row)
            first, end = block.span(key)
            return block.offset(first) > offset if first < end else None
        except CorruptFile:
            return None
    return None
