"""The giving side of snapshots between nodes. See :mod:`.transfer` for the requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgpack
from aiohttp import web

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError
from lsmq_coordinator.http_status import status_of
from lsmq_node.broker.snapshot_sessions import (
    MAX_COMPARE_BYTES,
    MAX_PIECE_BYTES,
    SESSION_TIMEOUT_S,
    SnapshotSession,
    SnapshotSessions,
)
from lsmq_node.broker.throttle import Throttle
from lsmq_node.storage import ShardStore
from lsmq_node.storage.snapshot import encode_snapshot

MSGPACK = "application/msgpack"
#: The log is held so long after the files were read: by then the new replica asks for it.
LOG_GRACE_S = 30.0

_Handler = Callable[[web.Request], Awaitable[web.Response]]


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
        self._throttle = throttle
        self._sessions = SnapshotSessions(store, threads, session_timeout_s=session_timeout_s, log_grace_s=log_grace_s)
        self.close = self._sessions.close

    def routes(self) -> list[web.RouteDef]:
        base = "/internal/snapshots/{shard:[0-9]{1,9}}"
        return [
            web.post(base, _answering(self._begin)),
            web.get(base + "/{id}/{file}", _answering(self._piece), allow_head=False),
            web.get(base + "/{id}/{file}/checksum", _answering(self._checksum), allow_head=False),
            web.delete(base + "/{id}", _answering(self._end)),
        ]

    async def _begin(self, request: web.Request) -> web.Response:
        fields = msgpack.unpackb(await request.read())
        holder, at_least_lsn = str(fields["holder"]), int(fields["at_least_lsn"])
        session = await self._sessions.begin(int(request.match_info["shard"]), holder, at_least_lsn)
        content = {"id": session.id, "snapshot": encode_snapshot(session.source.snapshot)}
        return web.Response(body=msgpack.packb(content), content_type=MSGPACK)

    async def _piece(self, request: web.Request) -> web.Response:
        session = self._session(request)
        file, offset, length = _range(request, MAX_PIECE_BYTES)
        await self._throttle.take(length)
        piece = await self._sessions.read(session, file, offset, length)
        return web.Response(body=piece, content_type="application/octet-stream")

    async def _checksum(self, request: web.Request) -> web.Response:
        session = self._session(request)
        file, offset, length = _range(request, MAX_COMPARE_BYTES)
        crc = await self._sessions.checksum(session, file, offset, length)
        return web.Response(body=msgpack.packb({"crc32c": crc}), content_type=MSGPACK)

    async def _end(self, request: web.Request) -> web.Response:
        self._sessions.end(self._session(request))
        return web.Response(body=msgpack.packb({}), content_type=MSGPACK)

    def _session(self, request: web.Request) -> SnapshotSession:
        return self._sessions.get(int(request.match_info["shard"]), request.match_info["id"])


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
