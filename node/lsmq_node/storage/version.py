"""A version: the memtables and tables that together hold a shard's records at a moment.

Versions are immutable. A flush or a merge makes a new one; readers go on with the one they began with, and a
table's file is closed when the last of them is done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from .bloom import Probe
from .index import IndexPage
from .memtable import Memtable
from .sstable import TableMeta
from .table import Table

_NO_END = 1 << 63


class TableRun:
    """Tables in key order that do not overlap: one table of level 0, or a generation of level 1."""

    __slots__ = ("_firsts", "_high", "_is_one", "_lasts", "_low", "metas", "size_bytes", "tables", "tombstone_count")

    def __init__(self, tables: tuple[Table, ...], metas: tuple[TableMeta, ...] | None = None) -> None:
        """``metas``: of the tables, where the manifest's own tuple is at hand."""
        self.tables = tables
        self.metas = tuple(table.meta for table in tables) if metas is None else metas
        self.size_bytes = sum(meta.size_bytes for meta in self.metas)
        self.tombstone_count = sum(meta.tombstone_count for meta in self.metas)
        self._firsts = [(table.meta.first_key, table.meta.first_offset) for table in tables]
        self._lasts = [(table.meta.last_key, table.meta.last_offset) for table in tables]
        self._is_one = len(tables) == 1
        self._low, self._high = (self._firsts[0][0], self._lasts[-1][0]) if tables else (0, -1)

    @property
    def damaged(self) -> bool:
        """Whether a table of it was found to be damaged."""
        return any(table.damage is not None for table in self.tables)

    @property
    def numbers(self) -> set[int]:
        """Of its tables."""
        return {meta.number for meta in self.metas}

    def tables_from(self, key: int, offset: int, end: int = _NO_END) -> tuple[Table, ...]:
        """Tables that may hold records of the queue in ``[offset, end)``, in order."""
        if self._is_one:  # as all of level 0: asked by each read
            return self.tables if self._low <= key <= self._high else ()
        first = bisect_left(self._lasts, (key, offset))
        return self.tables[first : bisect_left(self._firsts, (key, end), first)]

    def rows_from(
        self, key: int, probe: Probe, offset: int, end: int = _NO_END
    ) -> Iterator[tuple[Table, IndexPage, int]]:
        """Rows of the index, in order, whose blocks may hold records of the queue in ``[offset, end)``.

        ``probe`` is that of ``key``. Raises ``CorruptFile``, and ``FileNotFoundError`` for a table that is gone.
        """
        for table in self.tables_from(key, offset, end):
            found = table.seek(key, probe, max(offset, table.begins(key)), end)
            while found is not None:
                number, page, begin = found
                first_keys, first_offsets, last_keys = page.first_keys, page.first_offsets, page.last_keys
                for row in range(begin, page.count):
                    first_key = first_keys[row]
                    if first_key > key or (first_key == key and first_offsets[row] >= end):
                        return
                    yield table, page, row
                    if last_keys[row] > key:
                        return
                found = table.seek(key, probe, offset, end, number)


@dataclass(frozen=True, slots=True)
class Version:
    """Newest first, each of them. ``memtables[0]`` takes writes, the others wait for their flush."""

    memtables: tuple[Memtable, ...]
    level0: tuple[TableRun, ...]
    generations: tuple[TableRun, ...]

    def runs(self) -> tuple[TableRun, ...]:
        return (*self.level0, *self.generations)

    def on_disk(self) -> Version:
        """The same without memtables. For who keeps it a while: as long as he did, the memory would not be free."""
        return Version((), self.level0, self.generations)

    def tables(self) -> list[Table]:
        """All tables, newest first."""
        return [table for run in self.runs() for table in run.tables]
