"""A shard's disk thread: one thing after another, group commits among them.

Requests append on the loop thread, which costs microseconds, and wait for their LSN (:mod:`.writes`). The thread writes
and syncs whatever is in line, all of it at once; requests that arrive during one fdatasync share the next. What became
of it the store tells its listeners, in this thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from lsmq import runtime
from lsmq.errors import LsmqError, ShardStopped
from lsmq_node.storage import ShardStore

_log = structlog.get_logger("lsmq.cluster")

Operation = TypeVar("Operation")


@dataclass(frozen=True, slots=True)
class WriteLine:
    """Write and sync what is in line."""


@dataclass(frozen=True, slots=True)
class ThreadFailed:
    """The thread does nothing more."""

    error: LsmqError


class DiskThread(Generic[Operation]):
    """:meth:`put` and :meth:`kick_soon` in the loop; ``on_failed`` is called in the thread."""

    def __init__(self, shard: int, store: ShardStore, on_failed: Callable[[ThreadFailed], None]) -> None:
        self.store = store
        self._shard = shard
        self._on_failed = on_failed
        self._operations: runtime.SimpleQueue[Operation | WriteLine | None] = runtime.SimpleQueue()
        self._put_back: list[Operation | WriteLine | None] = []
        self._kicked = False
        self._kick_scheduled = False
        self._failed = False
        self._thread = runtime.Thread(target=self._run, name=f"lsmq-disk-{shard}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, operation: Operation) -> None:
        self._operations.put(operation)

    def kick_soon(self) -> None:
        """Something is in line: write it after the handlers that are ready in this turn of the loop, so that they
        share the group commit."""
        if not self._kick_scheduled:
            self._kick_scheduled = True
            asyncio.get_running_loop().call_soon(self._kick)

    def _kick(self) -> None:
        self._kick_scheduled = False
        if not self._kicked:
            # The thread clears this before it writes, so while it is set a write is to come.
            self._kicked = True
            self._operations.put(WriteLine())

    def close(self) -> None:
        """Do what is queued, then end the thread. Blocking."""
        self._operations.put(None)
        self._thread.join()

    # In the thread

    def _run(self) -> None:
        while (operation := self._take()) is not None:
            if self._failed:
                continue
            try:
                if isinstance(operation, WriteLine):
                    self._write_line()
                else:
                    self._do(operation)
            except Exception as error:
                self._fail(error)

    def _take(self) -> Operation | WriteLine | None:
        return self._put_back.pop() if self._put_back else self._operations.get()

    def _write_line(self) -> None:
        self._kicked = False
        try:
            self.store.commit()
        except LsmqError:
            if self.store.stopped:
                raise  # Else it was a round that is over, of which the store has told.

    def _do(self, operation: Operation) -> None:
        raise AssertionError(f"{operation!r} is for a thread that does more")

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, LsmqError):
            _log.error("disk_thread_failed", shard=self._shard, exc_info=error)
            error = ShardStopped(f"shard {self._shard} failed: {error!r}; restart the node")
        self._failed = True
        self._on_failed(ThreadFailed(error))
