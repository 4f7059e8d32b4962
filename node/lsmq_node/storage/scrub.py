"""Reading files of a store for no other reason than to see whether they are whole.

What is found is noted where a reader would note it: a file that is damaged is out of merges from then on, and named by
:meth:`.ShardStore.damage`. An index that is damaged is made again of its blocks, as when a reader meets it.

Not supported: the log, which is read whole at each start and lives until its messages are in tables.
"""

from __future__ import annotations

from collections.abc import Iterator

from .dedupe_file import IdFile
from .failures import disappeared
from .keyed_file import KeyedFile
from .table import Table
from .tables import TableSet

#: A table is read in pieces of about so many bytes.
PIECE_BYTES = 1 << 20


class Scrub:
    """Thread-safe; a file is read by one thread at a time."""

    def __init__(self, tables: TableSet) -> None:
        self._tables = tables

    def files(self) -> list[tuple[str, int]]:
        """Names and bytes of the files there are, of tables, checkpoint and ids."""
        tables = [(table.meta.name, table.meta.size_bytes) for table in self._tables.version.on_disk().tables()]
        return [*tables, *((file.path.name, file.size_bytes) for file in self._others())]

    def _others(self) -> list[KeyedFile | IdFile]:
        return [*self._tables.checkpoint.files, *self._tables.ids.files]

    def read(self, name: str) -> Iterator[int]:
        """Read a file piece by piece; gives the bytes of each, nothing for a file that is gone.

        Raises ``CorruptFile`` where it is damaged, which is noted then; ``OSError``.
        """
        for file in self._others():
            if file.path.name == name:
                yield from _read_small(file)
                return
        version, held = self._tables.hold(lambda now: [table for table in now.tables() if table.meta.name == name])
        try:
            for table in version.tables():
                if table.meta.name == name:
                    yield from _read_table(table)
        finally:
            self._tables.drop(held)


def _read_small(file: KeyedFile | IdFile) -> Iterator[int]:
    try:
        file.verify()
    except FileNotFoundError:
        return  # merged meanwhile
    yield file.size_bytes


def _read_table(table: Table) -> Iterator[int]:
    done = 0
    try:
        for block in table.scan():
            done += len(block.raw)
            if done >= PIECE_BYTES:
                yield done
                done = 0
    except FileNotFoundError as error:
        table.damage = disappeared("a table", error)
        raise table.damage from error
    yield done
