"""The table files of a store that are open for reading: a bounded number, whatever the number of tables.

A file that was not used since it was last looked at is closed first, as in the block cache (:mod:`.cache`); a read of
an open one takes no lock. Closing means letting go: who reads from it at the moment keeps it open until then, and so
does an answer that goes out straight from the file, to which it is *lent*. Loans are bounded too: beyond, answers are
copied through memory.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol
from weakref import WeakSet

from lsmq import runtime
from lsmq.errors import ClientClosed
from lsmq_node.descriptors import DESCRIPTORS, Descriptors

from .disk import File


class Openable(Protocol):
    """A table as its store's open files see it."""

    opened: File | None
    used: bool

    def open_file(self) -> File: ...


class OpenTables:
    """Thread-safe."""

    def __init__(self, most: int, descriptors: Descriptors = DESCRIPTORS) -> None:
        """At most ``most`` files are open, and fewer where ``descriptors`` says so: half of its share."""
        self._most = most
        self._descriptors = descriptors
        self._lock = runtime.Lock()
        self._tables: OrderedDict[int, Openable] = OrderedDict()  # by id; those whose file is open
        self._gone: WeakSet[Openable] = WeakSet()
        self._loans: WeakSet[object] = WeakSet()
        self._closed = False
        descriptors.join(self)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def limit(self) -> int:
        """So many may be open now."""
        return max(1, min(self._most, self._descriptors.tables_each() // 2))

    def open(self, table: Openable) -> File:
        """The table's file, opened; others are closed for it. Raises ``OSError``, ``ClientClosed``."""
        try:
            file = table.open_file()  # without the lock: where descriptors run out, this very cache is asked for some
        except OSError:
            self._check_open()
            raise
        with self._lock:
            self._check_open()  # last: there may be another store's file of that name
            if table.opened is not None:
                return table.opened  # another reader was sooner
            table.opened, table.used = file, True
            if table not in self._gone:
                self._tables[id(table)] = table
                self._shrink(self.limit)
        return file

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the store is closed, and its tables are not read any more")

    def _shrink(self, limit: int) -> None:
        while len(self._tables) > limit:
            number, table = self._tables.popitem(last=False)
            if table.used:
                table.used = False
                self._tables[number] = table
            else:
                table.opened = None

    def forget(self, table: Openable) -> None:
        """The table is gone: its file is closed when the last reader has done."""
        with self._lock:
            self._gone.add(table)
            self._tables.pop(id(table), None)

    def may_lend(self) -> bool:
        """Whether one more range of a file may leave the store."""
        return len(self._loans) < self.limit

    def lend(self, loan: object) -> None:
        """``loan`` holds a file open for as long as it lives."""
        self._loans.add(loan)

    def give_back(self) -> bool:
        with self._lock:
            given = bool(self._tables)
            for table in self._tables.values():
                table.opened = None
            self._tables.clear()
        return given

    def close(self) -> None:
        """Let all of them go, and open none any more."""
        self._closed = True
        self.give_back()
        self._descriptors.leave(self)
