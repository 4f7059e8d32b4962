"""How far readers are behind, at a cost that follows neither the backlog nor idle queues.

A record is *in memory* while a memtable has it; everything older is read from tables. Two numbers say how far behind
a reader is: records, which offsets tell exactly, and bytes a record, which is a mean over the newest tables that have
the topic, counted by their index: whole blocks, without reading one.

The mean is of the topic, not of the queue: a queue whose messages are ten times as large as its topic's others counts
a tenth of what it is.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from lsmq.errors import CorruptFile
from lsmq.record_batch import Column

from .columns import I64, U64
from .index import IndexColumn
from .table import Table
from .version import Version

#: Tables of a topic that are looked at for the mean size of its records.
SAMPLE_TABLES = 4


def first_in_memory(version: Version, keys: U64, ends: I64) -> I64:
    """The least offset that a memtable has of each of the sorted, distinct ``keys``; its end where there is none."""
    firsts = ends.copy()
    for memtable in version.memtables:
        for chunk in chain.from_iterable(memtable.newest_first()):
            rows = np.minimum(chunk.keys.searchsorted(keys), len(chunk.keys) - 1)
            here = np.flatnonzero(chunk.keys[rows] == keys)
            firsts[here] = np.minimum(firsts[here], chunk.column_at(Column.OFFSET, rows[here]))
    return firsts


def record_bytes(version: Version, topic_id: int) -> float:
    """What a record of the topic takes in tables, about; in memory while there are no tables of it."""
    size_bytes = record_count = looked_at = 0
    for run in version.runs():
        for table in run.tables:
            if topic_id in table.meta.topics:
                size, count = _share(table, topic_id)
                size_bytes, record_count, looked_at = size_bytes + size, record_count + count, looked_at + 1
                if looked_at == SAMPLE_TABLES:
                    return size_bytes / max(record_count, 1)
    if record_count == 0:
        size_bytes = sum(memtable.size_bytes for memtable in version.memtables)
        record_count = sum(memtable.record_count for memtable in version.memtables)
    return size_bytes / max(record_count, 1)


def _share(table: Table, topic_id: int) -> tuple[int, int]:
    """Bytes and records of the blocks that have records of the topic. Those at both ends may have others as well."""
    meta = table.meta
    if len(meta.topics) > 1:
        try:
            found = _blocks_of(table, topic_id)
        except (CorruptFile, OSError):  # damaged, or merged away meanwhile: all of it is near enough
            found = None
        if found is not None:
            return found
    return meta.size_bytes, meta.record_count


def _blocks_of(table: Table, topic_id: int) -> tuple[int, int] | None:
    """By the root, and of the index's pages the first and the last that have some."""
    low, high = np.array((topic_id << 32, topic_id + 1 << 32), np.uint64)
    root = table.root()
    first = int(root.column(IndexColumn.LAST_KEY).searchsorted(low))
    last = int(root.column(IndexColumn.FIRST_KEY).searchsorted(high)) - 1
    if first > last:
        return None
    size_bytes = record_count = 0
    if last - first > 1:
        begins = root.column(IndexColumn.BLOCKS)
        size_bytes = int(begins[last] - begins[first + 1])
        record_count = int(root.column(IndexColumn.RECORDS)[first + 1 : last].sum())
    for number in {first, last}:
        page = table.page(number)
        begin = int(page.column(IndexColumn.LAST_KEY).searchsorted(low))
        end = int(page.column(IndexColumn.FIRST_KEY).searchsorted(high))
        size_bytes += int(page.column(IndexColumn.SIZE)[begin:end].sum())
        record_count += int(page.column(IndexColumn.RECORDS)[begin:end].sum())
    return (size_bytes, record_count) if record_count else None
