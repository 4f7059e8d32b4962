"""Where a queue's records are, from an offset on.

A queue's offsets grow with time, and so do the sources: what a memtable or a run of tables holds of a queue lies wholly
before what newer ones hold of it. So the newest source that begins at or before an offset has it, if any has, and what
follows it is in that source and the newer ones. Where there are many runs, they are searched as an ordered list can be,
by the first offset of the queue in each: it is looked up by the index where that says so, and in one block otherwise.
A run that has nothing of the queue, as its filters say, leaves it to the next older.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lsmq.errors import CorruptFile

from .bloom import Probe, bloom_probe
from .index import IndexPage
from .memtable import Chunk, Memtable
from .table import Table
from .version import TableRun

#: So few runs are asked one by one.
FEW_RUNS = 4

#: A row of the index, for a block that may hold records of a queue.
LocatedRow = tuple[Table, IndexPage, int]


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

    Raises ``CorruptFile``, and ``FileNotFoundError`` for a table that is gone.
    """
    probe = bloom_probe(key)
    tried = runs if len(runs) <= FEW_RUNS else runs[:1]
    for at, run in enumerate(tried):
        rows = run.rows_from(key, probe, offset, end)
        row = _first_holding(rows, key, offset)
        if row is not None:
            yield row
            yield from rows
            left = runs[:at]
            break
    else:
        left = runs[: len(tried) + newest_holding(runs[len(tried) :], key, probe, offset) + 1]
    for run in left[::-1]:
        yield from run.rows_from(key, probe, offset, end)


def _first_holding(rows: Iterator[LocatedRow], key: int, offset: int) -> LocatedRow | None:
    """The first of the rows, if its run has the queue from ``offset`` or before on. What is damaged has nothing."""
    try:
        for table, page, row in rows:
            if table.begins(key) > offset:
                return None
            if page.first_keys[row] == key:
                return (table, page, row) if page.first_offsets[row] <= offset else None
            block = table.block_of(page, row)
            first, end = block.span(key)
            return (table, page, row) if first < end and block.offset(first) <= offset else None
    except CorruptFile:
        return None
    return None


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
