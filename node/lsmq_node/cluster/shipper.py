"""Carrying out ``Ship``: whole entries of the log to a peer, from memory where they are new, else from the files.

What cannot be shipped yet (not written yet, or the link is full) is tried again when there is reason to. Loop thread
only; files are read in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from lsmq.errors import CorruptFile, LogTrimmed, LsmqError
from lsmq_node.replication.actions import Ship
from lsmq_node.replication.events import LogRecycled, ReplicaEvent, Shipped
from lsmq_node.replication.messages import Frame
from lsmq_node.storage import ShardStore
from lsmq_node.storage.failures import may_pass

from .log_tail import LogTail, Piece

FRAME_BYTES = 1024 * 1024
_RETRY_S = 0.01
_log = structlog.get_logger("lsmq.cluster")

SendFrame = Callable[[str, Frame, bytes | memoryview], None]


class Shipper:
    """``handle`` feeds the core; ``store`` gives the store of the moment; ``congested`` asks for a peer's link."""

    def __init__(
        self,
        window_bytes: int,
        store: Callable[[], ShardStore | None],
        send: SendFrame,
        congested: Callable[[str], bool],
        handle: Callable[[ReplicaEvent], None],
        failed: Callable[[LsmqError], None],
    ) -> None:
        """``failed``: the log cannot be read."""
        self._store = store
        self._send = send
        self._congested = congested
        self._handle = handle
        self._failed = failed
        self._tail = LogTail(window_bytes)
        self._deferred: list[Ship] = []
        self._retry: asyncio.TimerHandle | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self._era = 0

    def wrote(self, piece: Piece) -> None:
        """The leader's newest group commit."""
        self._tail.add(piece)

    def log_changes(self) -> None:
        """The log is cut or replaced: what is being read may be gone, and must not be sent under what it was."""
        self._era += 1
        self._tail.clear()
        self._deferred.clear()

    def ship(self, action: Ship) -> None:
        store = self._store()
        if store is None:
            return
        if action.lsn == action.limit_lsn:
            self._send(action.peer, _frame(action, action.lsn), b"")
        elif self._congested(action.peer):
            self._defer(action)
        else:
            content = self._tail.read(action.lsn, action.limit_lsn, FRAME_BYTES)
            if content is not None:
                self._shipped(action, content)
            elif action.lsn >= store.replica.end_lsn:
                self._deferred.append(action)  # The disk thread has it in its queue.
            else:
                task = asyncio.get_running_loop().create_task(self._read(store, action, self._era))
                self._reading.add(task)
                task.add_done_callback(self._reading.discard)

    def _defer(self, action: Ship) -> None:
        self._deferred.append(action)
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.resume()

    def resume(self) -> None:
        """The log has grown: try what was put off."""
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            for action in deferred:
                self.ship(action)

    def _shipped(self, action: Ship, content: bytes | memoryview) -> None:
        end_lsn = action.lsn + len(content)
        self._send(action.peer, _frame(action, end_lsn), content)
        self._handle(Shipped(action.peer, action.session, end_lsn))

    async def _read(self, store: ShardStore, action: Ship, era: int) -> None:
        read = store.replica.read_entries
        try:
            content = await asyncio.to_thread(read, action.lsn, action.limit_lsn, FRAME_BYTES)
        except Exception as error:  # Whatever it is, the follower waits for this stream.
            if era == self._era:
                await self._not_read(store, action, error)
        else:
            if era == self._era:
                self._shipped(action, content)

    async def _not_read(self, store: ShardStore, action: Ship, error: Exception) -> None:
        if may_pass(error):
            self._deferred.append(action)  # There may be a descriptor by the next tick.
        elif isinstance(error, LsmqError):
            await self._cannot_read(store, action, error)
        else:
            _log.error("log_not_read", lsn=action.lsn, exc_info=error)
            self._failed(LsmqError(f"reading the log at LSN {action.lsn} failed: {error!r}"))

    async def _cannot_read(self, store: ShardStore, action: Ship, error: LsmqError) -> None:
        flushed_lsn = store.stats().flushed_lsn
        match error:
            case LogTrimmed():
                try:
                    first_lsn = await asyncio.to_thread(store.replica.first_lsn)
                except OSError as failure:
                    return await self._not_read(store, action, failure)
                self._handle(LogRecycled(first_lsn))
            case CorruptFile() if action.lsn < flushed_lsn:
                self._handle(LogRecycled(flushed_lsn))  # What it said is in the tables as well.
            case _:
                self._failed(error)

    async def close(self) -> None:
        """It may be used again, as where the replica is opened again."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)


def _frame(action: Ship, end_lsn: int) -> Frame:
    return Frame(action.session, action.epoch, action.lsn, end_lsn, action.high_watermark)
