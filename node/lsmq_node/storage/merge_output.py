"""What a merge writes, and how it is put in place: whole, or piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .compaction import KeyPlace
from .edits import Edit
from .sorted_records import SortedRecords
from .sstable import TableMeta, TableWriter, table_name
from .table import Table
from .tables import Closing, TableSet


class MergeOutput:
    """The tables that a merge writes, and how they are put in place."""

    def __init__(
        self,
        tables: TableSet,
        sources: Sequence[Table],
        *,
        clean_lsn: int,
        in_place: bool,
        table_bytes: int,
        piece_bytes: int | None,
    ) -> None:
        """``sources`` are merged, freed of messages with tombstones before ``clean_lsn``.

        Args:
            in_place: what is written stands in the run where the sources stood; else it is a generation.
            piece_bytes: what is written is put in place whenever it is so much; None does it once, at the end.
        """
        self._tables = tables
        self._left = list(sources)
        self._sources = None if in_place else frozenset(table.meta.number for table in sources)
        self._first_lsn = min(table.meta.first_lsn for table in sources)
        self._end_lsn = max(table.meta.end_lsn for table in sources)
        self._clean_lsn = clean_lsn
        self._table_bytes = table_bytes
        self._piece_bytes = piece_bytes
        self._metas: list[TableMeta] = []
        self._writer: TableWriter | None = None
        self._behind: int | None = None
        self.written_bytes = 0

    def write(self, pieces: Iterator[tuple[KeyPlace, SortedRecords]], closing: Callable[[], bool]) -> None:
        """Write all, and put it in place. What is not in place when this raises is gone."""
        try:
            for place, records in pieces:
                if closing():
                    raise Closing
                if len(records):
                    if self._writer is None:
                        self._writer = self._tables.writer()
                    self._writer.add(records)
                    if self._writer.size_bytes >= self._table_bytes:
                        self._finish()
                if self._piece_bytes and sum(meta.size_bytes for meta in self._metas) >= self._piece_bytes:
                    self._install(place)
            self._install(None)
        except BaseException as error:
            names = [meta.name for meta in self._metas]
            if self._writer is not None:
                self._writer.abandon()
                names.append(table_name(self._writer.number))
            self._tables.discard(names, error)
            raise

    def _finish(self) -> None:
        if self._writer is not None:
            self._metas.append(self._writer.finish(self._first_lsn, self._end_lsn, self._clean_lsn))
            self._writer = None

    def _install(self, place: KeyPlace | None) -> None:
        """Put in place what is written, which is all up to ``place``; all there is without it."""
        self._finish()
        gone = [
            table for table in self._left if place is None or (table.meta.last_key, table.meta.last_offset) <= place
        ]
        taken = {table.meta.number for table in gone}
        self._left = [table for table in self._left if table.meta.number not in taken]
        clips = {
            table.meta.number: table.first_behind(*place)
            for table in self._left
            if place is not None and (table.meta.first_key, table.meta.first_offset) <= place
        }
        if self._metas:
            self._tables.sync_names()
        self._tables.edit(
            Edit(
                frozenset(taken),
                tuple(self._metas),
                clips,
                sources=self._sources,
                behind=self._behind,
            )
        )
        self.written_bytes += sum(meta.size_bytes for meta in self._metas)
        if self._metas:
            self._behind = self._metas[-1].number
        self._metas = []
