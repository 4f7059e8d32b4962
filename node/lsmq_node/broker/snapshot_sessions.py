"""Snapshots that somebody reads, piece by piece: another replica, or a backup. Each is held for as long as it is used.

A session is a snapshot of a shard's store, under an id of its own. It ends when its reader says so, when nobody has
used it for a while, or with the store; whoever asks then is told to begin again. What bounds it: so many sessions a
node, one of a shard for each reader, and the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from lsmq import runtime
from lsmq.errors import ClientClosed, CorruptFile, LsmqError, SnapshotGone, StorageError, Unavailable
from lsmq_node.storage import ShardStore
from lsmq_node.storage.snapshot_source import SnapshotSource

_log = structlog.get_logger("lsmq.snapshots")

MAX_PIECE_BYTES = 1 << 20
MAX_COMPARE_BYTES = 16 << 20
#: Snapshots at a time; each holds files that the store would otherwise have removed.
MAX_SESSIONS = 32
#: A snapshot that nobody asks for so long is let go.
SESSION_TIMEOUT_S = 60.0
#: So many flushes for snapshots are waited for at a time.
MAX_EXPORTS = 2

T = TypeVar("T")


class SnapshotSession:
    """A snapshot of ``shard`` that ``holder`` reads."""

    def __init__(self, id: str, shard: int, holder: str, source: SnapshotSource, now: float) -> None:
        self.id = id
        self.shard = shard
        self.holder = holder
        self.source = source
        self.used_at = now
        self.read = False  # its reader has all of it: only the log is still held


class SnapshotSessions:
    """Loop thread only."""

    def __init__(
        self,
        store: Callable[[int], ShardStore | None],
        threads: runtime.ThreadPoolExecutor,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        log_grace_s: float | None = None,
        most: int = MAX_SESSIONS,
    ) -> None:
        """Args:
        store: the open store of a shard here, None where there is none.
        threads: for what blocks; a flush may be waited for in them.
        log_grace_s: the log from the snapshot on is held for so long after its files were read, since whoever read
            them goes on with it. None: the log is not held at all.
        """
        self._store = store
        self._threads = threads
        self._exporting = asyncio.Semaphore(MAX_EXPORTS)
        self._session_timeout_s = session_timeout_s
        self._log_grace_s = log_grace_s
        self._most = most
        self._sessions: dict[str, SnapshotSession] = {}
        self._beginning: set[tuple[int, str]] = set()
        self._background: set[asyncio.Future[Any]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    async def close(self) -> None:
        """Let go of everything."""
        self._closed = True
        for session in list(self._sessions.values()):
            self._drop(session)
        while self._background:
            await asyncio.wait(self._background)

    async def begin(self, shard: int, holder: str, at_least_lsn: int = 0) -> SnapshotSession:
        """A new snapshot, in place of one of it that ``holder`` has. Raises ``Unavailable``, ``ShardStopped``."""
        store = self._store(shard)
        if store is None:
            raise Unavailable(f"no replica of shard {shard} is open here", shard=shard)
        for session in [item for item in self._sessions.values() if (item.shard, item.holder) == (shard, holder)]:
            self._drop(session)
        if (shard, holder) in self._beginning:
            raise Unavailable(f"a snapshot of shard {shard} is being made for {holder!r} already")
        if len(self._sessions) + len(self._beginning) >= self._most:
            raise Unavailable(f"{self._most} snapshots are held here, which is the limit; try again later")
        self._beginning.add((shard, holder))
        # Not cancelled with the request: what it holds would never be let go.
        return await asyncio.shield(self._run(self._export(store, shard, holder, at_least_lsn)))

    async def _export(self, store: ShardStore, shard: int, holder: str, at_least_lsn: int) -> SnapshotSession:
        try:
            async with self._exporting:
                source = await self._in_thread(store.export_snapshot)
        except ClientClosed as error:
            raise Unavailable(f"the replica of shard {shard} is being closed here", shard=shard) from error
        finally:
            self._beginning.discard((shard, holder))
        lsn = source.snapshot.applied_lsn
        if self._closed or lsn < at_least_lsn:
            await self._in_thread(source.close)
            raise Unavailable(f"shard {shard} is at LSN {lsn} here; {at_least_lsn} is wanted", shard=shard, lsn=lsn)
        if self._log_grace_s is None:
            source.release_log()
        loop = asyncio.get_running_loop()
        session = SnapshotSession(runtime.token_hex(8), shard, holder, source, loop.time())
        self._sessions[session.id] = session
        self._timers[session.id] = loop.call_later(self._session_timeout_s, self._look_at, session)
        snapshot = source.snapshot
        _log.info("snapshot_begun", shard=shard, lsn=lsn, files=len(snapshot.files), bytes=snapshot.total_bytes)
        return session

    def find(self, shard: int, id: str) -> SnapshotSession | None:
        """The session, used by this; None where there is no such one any more."""
        session = self._sessions.get(id)
        if session is None or session.read or session.shard != shard:
            return None
        session.used_at = asyncio.get_running_loop().time()
        return session

    def get(self, shard: int, id: str) -> SnapshotSession:
        """The session, used by this. Raises ``SnapshotGone``."""
        session = self.find(shard, id)
        if session is None:
            raise SnapshotGone("the snapshot is not held here any more; begin again", shard=shard)
        return session

    async def read(self, session: SnapshotSession, file: str, offset: int, length: int) -> bytes:
        """A piece of a file. Raises ``InvalidRequest``, ``SnapshotGone``, ``StorageError``."""
        return await self._read(session, lambda: session.source.read(file, offset, length))

    async def checksum(self, session: SnapshotSession, file: str, offset: int, length: int) -> int:
        """CRC32C of a range of a file. Raises as :meth:`read`."""
        return await self._read(session, lambda: session.source.checksum(file, offset, length))

    async def verify(self, session: SnapshotSession, file: str) -> CorruptFile | None:
        """Read a whole file of it: what is damaged, None where it is whole. Raises as :meth:`read`."""

        def verified() -> CorruptFile | None:
            try:
                session.source.verify(file)
            except CorruptFile as damage:
                return damage
            return None

        return await self._read(session, verified)

    def end(self, session: SnapshotSession) -> None:
        """Its reader has read the files."""
        _log.info("snapshot_given", shard=session.shard, lsn=session.source.snapshot.applied_lsn)
        if self._log_grace_s is None:
            self._drop(session)
            return
        session.read = True
        self._timers[session.id].cancel()
        self._timers[session.id] = asyncio.get_running_loop().call_later(self._log_grace_s, self._drop, session)
        self._run(self._in_thread(session.source.release_files))

    async def _read(self, session: SnapshotSession, work: Callable[[], T]) -> T:
        try:
            result = await self._in_thread(work)
        except (ClientClosed, FileNotFoundError) as error:
            self._drop(session)
            raise SnapshotGone("the store of the snapshot was closed; begin again", shard=session.shard) from error
        except OSError as error:
            raise StorageError(f"reading the snapshot of shard {session.shard} failed: {error}") from error
        session.used_at = asyncio.get_running_loop().time()
        return result

    def _look_at(self, session: SnapshotSession) -> None:
        """The session's time is up, unless it was used meanwhile."""
        loop = asyncio.get_running_loop()
        rest = session.used_at + self._session_timeout_s - loop.time()
        if rest > 0:
            self._timers[session.id] = loop.call_later(rest, self._look_at, session)
        else:
            _log.warning("snapshot_abandoned", shard=session.shard, lsn=session.source.snapshot.applied_lsn)
            self._drop(session)

    def _drop(self, session: SnapshotSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._timers.pop(session.id).cancel()
            self._run(self._in_thread(session.source.close))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, LsmqError):
            _log.error("snapshot_failed", error=repr(error))
