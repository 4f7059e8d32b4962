"""A version: the memtables and tables that together hold a shard's records at a moment.

Versions are immutable. A flush or a merge makes a new one; readers go on with the one they began with, and a
table's file is closed when the last of them is done.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from .memtable import Memtable
from .sstable import TableMeta
from .table import Table

_NO_END = 1 << 63


class Run:
    """Tables in key order that do not overlap: one table of level 0, or a generation of level 1."""

    __slots__ = ("_firsts", "_lasts", "tables")

    def __init__(self, tables: tuple[Table, ...]) -> None:
        self.tables = tables
        self._firsts = [(table.meta.first_key, table.meta.first_offset) for table in tables]
        self._lasts = [(table.meta.last_key, table.meta.last_offset) for table in tables]

    @property
    def size_bytes(self) -> int:
        return sum(table.meta.size_bytes for table in self.tables)

    @property
    def tombstone_count(self) -> int:
        return sum(table.meta.tombstone_count for table in self.tables)

    @property
    def damaged(self) -> bool:
        """Whether a table of it was found to be damaged."""
        return any(table.damage is not None for table in self.tables)

    def metas(self) -> tuple[TableMeta, ...]:
        return tuple(table.meta for table in self.tables)

    def tables_from(self, key: int, offset: int, end: int = _NO_END) -> tuple[Table, ...]:
        """Tables that may hold records of the queue in ``[offset, end)``, in order."""
        first = bisect_left(self._lasts, (key, offset))
        return self.tables[first : bisect_left(self._firsts, (key, end), first)]


@dataclass(frozen=True, slots=True)
class Version:
    """Newest first, each of them. ``memtables[0]`` takes writes, the others wait for their flush."""

    memtables: tuple[Memtable, ...]
    level0: tuple[Run, ...]
    generations: tuple[Run, ...]

    def runs(self) -> tuple[Run, ...]:
        return (*self.level0, *self.generations)
