"""The giving side of snapshots between nodes. See :mod:`.transfer` for the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgpack
import structlog
from aiohttp import web

from lsmq import runtime
from lsmq.errors import ClientClosed, InvalidRequest, LsmqError, StorageError, Unavailable
from lsmq_coordinator.http_status import status_of
from lsmq_node.storage import ShardStore
from lsmq_node.storage.snapshot import encode_snapshot
from lsmq_node.storage.snapshot_source import SnapshotSource

from .transfer_throttle import Throttle

_log = structlog.get_logger("lsmq.cluster")

MSGPACK = "application/msgpack"
MAX_PIECE_BYTES = 1 << 20
MAX_COMPARE_BYTES = 16 << 20
#: Snapshots at a time; each holds files that the store would otherwise have removed.
MAX_SESSIONS = 32
#: A snapshot that nobody asks for so long is let go.
SESSION_TIMEOUT_S = 60.0
#: The log is held so long after the files were read: by then the new replica asks for it.
LOG_GRACE_S = 30.0
#: So many flushes for snapshots are waited for at a time.
MAX_EXPORTS = 2

T = TypeVar("T")
_Handler = Callable[[web.Request], Awaitable[web.Response]]


class SnapshotGone(Unavailable):
    """The snapshot was let go, or its store was closed: begin again."""

    code = "snapshot_gone"


class _Session:
    def __init__(self, id: str, shard: int, holder: str, source: SnapshotSource, now: float) -> None:
        self.id = id
        self.shard = shard
        self.holder = holder
        self.source = source
        self.used_at = now
        self.read = False  # DELETE came: only the log is still held


class SnapshotServer:
    """Loop thread only. Routes are to be mounted behind ``auth_middleware``: they check nothing themselves."""

    def __init__(
        self,
        store: Callable[[int], ShardStore | None],
        throttle: Throttle,
        threads: runtime.ThreadPoolExecutor,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        log_grace_s: float = LOG_GRACE_S,
    ) -> None:
        self._store = store
        self._throttle = throttle
        self._threads = threads
        self._exporting = asyncio.Semaphore(MAX_EXPORTS)
        self._session_timeout_s = session_timeout_s
        self._log_grace_s = log_grace_s
        self._sessions: dict[str, _Session] = {}
        self._beginning: set[tuple[int, str]] = set()
        self._background: set[asyncio.Future[Any]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def routes(self) -> list[web.RouteDef]:
        base = "/internal/snapshots/{shard:[0-9]{1,9}}"
        return [
            web.post(base, _answering(self._begin)),
            web.get(base + "/{id}/{file}", _answering(self._piece), allow_head=False),
            web.get(base + "/{id}/{file}/checksum", _answering(self._checksum), allow_head=False),
            web.delete(base + "/{id}", _answering(self._end)),
        ]

    async def close(self) -> None:
        """Let go of everything."""
        self._closed = True
        for session in list(self._sessions.values()):
            self._drop(session)
        while self._background:
            await asyncio.wait(self._background)

    # -- requests ----------------------------------------------------------------------------------------

    async def _begin(self, request: web.Request) -> web.Response:
        shard = int(request.match_info["shard"])
        fields = msgpack.unpackb(await request.read())
        holder, at_least_lsn = str(fields["holder"]), int(fields["at_least_lsn"])
        store = self._store(shard)
        if store is None:
            raise Unavailable(f"no replica of shard {shard} is open here", shard=shard)
        for session in [item for item in self._sessions.values() if (item.shard, item.holder) == (shard, holder)]:
            self._drop(session)
        if (shard, holder) in self._beginning:
            raise Unavailable(f"a snapshot of shard {shard} is being made for {holder!r} already")
        if len(self._sessions) + len(self._beginning) >= MAX_SESSIONS:
            raise Unavailable(f"{MAX_SESSIONS} snapshots are held here, which is the limit; try again later")
        self._beginning.add((shard, holder))
        # Not cancelled with the request: what it holds would never be let go.
        export = self._run(self._export(store, shard, holder, at_least_lsn))
        session = await asyncio.shield(export)
        content = {"id": session.id, "snapshot": encode_snapshot(session.source.snapshot)}
        return web.Response(body=msgpack.packb(content), content_type=MSGPACK)

    async def _export(self, store: ShardStore, shard: int, holder: str, at_least_lsn: int) -> _Session:
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
        loop = asyncio.get_running_loop()
        session = _Session(runtime.token_hex(8), shard, holder, source, loop.time())
        self._sessions[session.id] = session
        self._timers[session.id] = loop.call_later(self._session_timeout_s, self._look_at, session)
        snapshot = source.snapshot
        _log.info("snapshot_begun", shard=shard, lsn=lsn, files=len(snapshot.files), bytes=snapshot.total_bytes)
        return session

    async def _piece(self, request: web.Request) -> web.Response:
        session = self._session(request)
        file, offset, length = _range(request, MAX_PIECE_BYTES)
        await self._throttle.take(length)
        piece = await self._read(session, lambda: session.source.read(file, offset, length))
        return web.Response(body=piece, content_type="application/octet-stream")

    async def _checksum(self, request: web.Request) -> web.Response:
        session = self._session(request)
        file, offset, length = _range(request, MAX_COMPARE_BYTES)
        crc = await self._read(session, lambda: session.source.checksum(file, offset, length))
        return web.Response(body=msgpack.packb({"crc32c": crc}), content_type=MSGPACK)

    async def _end(self, request: web.Request) -> web.Response:
        session = self._session(request)
        session.read = True
        self._timers[session.id].cancel()
        self._timers[session.id] = asyncio.get_running_loop().call_later(self._log_grace_s, self._drop, session)
        self._run(self._in_thread(session.source.release_files))
        _log.info("snapshot_given", shard=session.shard, lsn=session.source.snapshot.applied_lsn)
        return web.Response(body=msgpack.packb({}), content_type=MSGPACK)

    # -- sessions ----------------------------------------------------------------------------------------

    def _session(self, request: web.Request) -> _Session:
        session = self._sessions.get(request.match_info["id"])
        if session is None or session.read or session.shard != int(request.match_info["shard"]):
            raise SnapshotGone("the snapshot is not held here any more; begin again")
        session.used_at = asyncio.get_running_loop().time()
        return session

    async def _read(self, session: _Session, work: Callable[[], T]) -> T:
        try:
            result = await self._in_thread(work)
        except (ClientClosed, FileNotFoundError) as error:
            self._drop(session)
            raise SnapshotGone("the store of the snapshot was closed; begin again") from error
        except OSError as error:
            raise StorageError(f"reading the snapshot of shard {session.shard} failed: {error}") from error
        session.used_at = asyncio.get_running_loop().time()
        return result

    def _look_at(self, session: _Session) -> None:
        """The session's time is up, unless it was used meanwhile."""
        loop = asyncio.get_running_loop()
        rest = session.used_at + self._session_timeout_s - loop.time()
        if rest > 0:
            self._timers[session.id] = loop.call_later(rest, self._look_at, session)
        else:
            _log.warning("snapshot_abandoned", shard=session.shard, lsn=session.source.snapshot.applied_lsn)
            self._drop(session)

    def _drop(self, session: _Session) -> None:
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


def _range(request: web.Request, limit: int) -> tuple[str, int, int]:
    offset, length = int(request.query["offset"]), int(request.query["length"])
    if offset < 0 or not 0 < length <= limit:
        raise InvalidRequest(f"a range has 1 to {limit} bytes, not {length} at {offset}", limit=limit)
    return request.match_info["file"], offset, length


def _answering(handle: _Handler) -> _Handler:
    async def answer(request: web.Request) -> web.Response:
        try:
            return await handle(request)
        except LsmqError as error:
            failure = error
        except (KeyError, TypeError, ValueError) as error:
            failure = InvalidRequest(f"{type(error).__name__}: {error}")
        body = msgpack.packb({"error": failure.to_dict()})
        return web.Response(status=status_of(failure), body=body, content_type=MSGPACK)

    return answer
