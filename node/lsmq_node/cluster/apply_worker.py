"""The thread of a replica that applies what is committed, while the disk thread writes and syncs what comes next."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_node.storage import ShardStore

_log = structlog.get_logger("lsmq.cluster")
_ROOM_WAIT_S = 0.25


class ApplyWorker:
    """:meth:`advance` never blocks. What was applied is told by the store (``ReplicaLog.listen``)."""

    def __init__(self, shard: int, store: Callable[[], ShardStore], on_failed: Callable[[LsmqError], None]) -> None:
        """``on_failed`` is called in the thread."""
        self._shard = shard
        self._store = store
        self._on_failed = on_failed
        self._changed = runtime.Condition()
        self._wanted_lsn = 0
        self._applied_lsn = 0
        self._patient = True
        self._closing = False
        self._thread = runtime.Thread(target=self._run, name=f"lsmq-apply-{shard}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def advance(self, lsn: int, *, leads: bool) -> None:
        """Apply up to ``lsn``. Where writes are not refused by the store itself, wait while its memory is full."""
        with self._changed:
            self._wanted_lsn = max(self._wanted_lsn, lsn)
            self._patient = not leads
            self._changed.notify_all()

    def drain(self) -> None:
        """Return when all that was asked for is done, or never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._applied_lsn >= self._wanted_lsn)

    def close(self) -> None:
        """End the thread; what is not applied is applied when the store is opened again. Blocking."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._wanted_lsn > self._applied_lsn)
                if self._closing:
                    return
                lsn = self._wanted_lsn
            store = self._store()
            try:
                while self._patient and not self._closing and store.pressure == "refuse" and not store.stopped:
                    store.wait_for_room(_ROOM_WAIT_S)  # one that has stopped makes none, and does not wait
                store.replica.advance(lsn)
            except Exception as error:
                self._fail(error)
            with self._changed:
                self._applied_lsn = lsn
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, LsmqError):
            _log.error("replica_apply_failed", shard=self._shard, exc_info=error)
            error = LsmqError(f"applying the log of shard {self._shard} failed: {error!r}")
        self._on_failed(error)
