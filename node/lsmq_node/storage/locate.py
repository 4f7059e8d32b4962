"""Which run of tables holds an offset of a queue, found without asking each.

A queue's offsets grow with time, and so do the sources: what a run holds of a queue lies wholly before what newer
runs hold of it. So where a run's first offset of the queue is known, it is known on which side of it the wanted one
lies, and the runs can be searched as an ordered list can. That first offset is looked up by the index where it says
so, and in one block otherwise. A run that has nothing of the queue, as its filters say, leaves it to the next older.
"""

from __future__ import annotations

from collections.abc import Sequence

from lsmq.errors import CorruptFile

from .bloom import Probe
from .version import Run

#: So few runs are asked one by one.
FEW_RUNS = 4


def newest_holding(runs: Sequence[Run], key: int, probe: Probe, offset: int) -> int:
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


def _begins_behind(run: Run, key: int, probe: Probe, offset: int) -> bool | None:
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
