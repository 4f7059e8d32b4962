"""Asynchronous mode's promise: what is written is on the disk within ``flush_interval_ms`` or ``flush_bytes``.

A thread that does nothing else keeps it, so that neither merges nor retention nor a slow flush can be in its way. It
sleeps while nothing is written.
"""

from __future__ import annotations

from lsmq import runtime

from .log_writer import LogWriter
from .options import StoreOptions


class Syncer:
    """One thread runs; the writing thread notes what it has written."""

    def __init__(self, options: StoreOptions, writer: LogWriter) -> None:
        self._interval_s = options.flush_interval_ms / 1000
        self._flush_bytes = options.flush_bytes
        self._writer = writer
        self._changed = runtime.Condition()
        self._behind = False  # guarded by _changed, as all that follows
        self._overdue = False
        self._closing = False

    def note_written(self) -> None:
        """The log has grown. Wakes the thread when it was idle, and when too much is not on the disk."""
        overdue = self._unsynced_bytes >= self._flush_bytes
        with self._changed:
            if not self._behind or (overdue and not self._overdue):
                self._behind, self._overdue = True, overdue
                self._changed.notify_all()

    @property
    def _unsynced_bytes(self) -> int:
        return self._writer.written_lsn - self._writer.durable_lsn

    def run(self) -> None:
        """Sync in time until :meth:`close`. Raises ``OSError``."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._behind)
                self._changed.wait_for(lambda: self._closing or self._overdue, self._interval_s)
                if self._closing:
                    return
                self._behind = self._overdue = False
            self._writer.sync_now()

    def close(self) -> None:
        """End the thread; what is not synced yet is for the closing store."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
