"""The control plane's part of a voter's internal HTTP server. Bodies are msgpack.

- ``GET /internal/control/state?after=V&topics=T&leader=ID&wait_ms=N``: the agreed state when its version is above
  ``V`` or the leader is not ``ID``, without its topics when their version is ``T``; else held, and after ``wait_ms``
  answered without a state. With ``changes=2``, and where ``V`` was known here lately, its ``changes`` since instead,
  topics with them; releases before ask for another form of those, and get the state.
- ``POST /internal/control/command``: carry out a command; only by the leader.
- ``POST /internal/control/heartbeat`` and ``/internal/control/ask_election``: what nodes report; only to the leader.
- ``GET /internal/control/version``: a version that holds all that was committed before; only from the leader.
- ``GET /internal/control/plan``: what the cluster is about to move by itself; only from the leader.
- ``GET /internal/control/growth?shards=N``: where new shards would lie; likewise.

- ``POST /death``: a node's process has ended (:mod:`~.death`); to any voter.

Mount them behind :func:`lsmq_coordinator.auth.auth_middleware`: they check nothing themselves, but for the last, whose
proof is in the notice, since nobody is left who could sign a request. Errors are those of ``lsmq.errors`` as msgpack,
``not_control_leader`` (421) naming the ``leader``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
from aiohttp import web

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, Unavailable

from . import death
from .auth import ClusterSecret
from .errors import NoControlLeader
from .heartbeats import NodeHeartbeat
from .http_status import status_of
from .overseer import Overseer
from .raft_control import RaftControl
from .state import CHANGES, ClusterState

MSGPACK = "application/msgpack"
MAX_WAIT_MS = 30_000
MAX_WAITERS = 1_000
MAX_TIMEOUT_MS = 30_000
#: Who knows one of so many latest states is told only what changed.
RECENT_STATES = 64


def control_routes(raft: RaftControl, overseer: Overseer, secret: ClusterSecret) -> list[web.RouteDef]:
    """The routes of a node, which answers what only voters can while it votes."""
    handlers = _Handlers(raft, overseer, secret)
    return [
        web.get("/internal/control/state", _answering(handlers.state)),
        web.post("/internal/control/command", _answering(handlers.command)),
        web.post("/internal/control/heartbeat", _answering(handlers.heartbeat)),
        web.post("/internal/control/ask_election", _answering(handlers.ask_election)),
        web.get("/internal/control/version", _answering(handlers.version)),
        web.get("/internal/control/plan", _answering(handlers.plan)),
        web.get("/internal/control/growth", _answering(handlers.growth)),
        web.post(death.PATH, _answering(handlers.died)),
    ]


def _answering(
    handle: Callable[[web.Request], Awaitable[dict[str, Any]]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        try:
            return _packed(await handle(request))
        except LsmqError as error:
            return _packed({"error": error.to_dict()}, status_of(error))
        except (KeyError, TypeError, ValueError) as error:
            refused = InvalidRequest(f"{type(error).__name__}: {error}")
            return _packed({"error": refused.to_dict()}, status_of(refused))

    return answer


def _packed(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgpack.packb(content), content_type=MSGPACK)


class _Handlers:
    def __init__(self, raft: RaftControl, overseer: Overseer, secret: ClusterSecret) -> None:
        self._raft, self._overseer, self._secret = raft, overseer, secret
        self._waiters: dict[asyncio.Event, None] = {}  # the longest waiting first
        self._packed: dict[bool, tuple[ClusterState, bytes]] = {}
        self._recent: dict[int, ClusterState] = {}  # The latest states, without results, by version.
        self._changes: dict[int, bytes] = {}  # Of the latest state, since such a version, encoded once for all who ask.
        raft.on_change(self._changed)
        raft.on_status(lambda _: self._wake())

    def _changed(self, state: ClusterState) -> None:
        self._recent[state.version] = state.without_results()
        while len(self._recent) > RECENT_STATES:
            del self._recent[next(iter(self._recent))]
        self._changes.clear()
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def state(self, request: web.Request) -> dict[str, Any]:
        raft, query = self._raft, request.query
        if not raft.votes:
            raise NoControlLeader(f"node {raft.config.node!r} does not vote")
        after, leader, topics = int(query.get("after", 0)), query.get("leader", ""), int(query.get("topics", -1))
        wait_ms = min(int(query.get("wait_ms", 0)), MAX_WAIT_MS)
        if wait_ms > 0 and len(self._waiters) >= MAX_WAITERS:
            raise Unavailable(f"{MAX_WAITERS} nodes are waiting for the state, the most there may be")
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        changed = asyncio.Event()
        self._waiters[changed] = None
        try:
            async with asyncio.timeout_at(deadline):
                while raft.state.version <= after and (raft.leader or "") == leader:
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            pass
        finally:
            del self._waiters[changed]
        state, with_topics = raft.state, topics != raft.state.topics_version
        asked = state.version > after
        changes = self._pack_changes(state, after) if asked and query.get("changes") == str(CHANGES) else None
        return {
            "version": state.version,
            "leader": raft.leader,
            "lease_age_ms": _age_ms(raft.lease),
            "state": self._pack(state, with_topics) if asked and changes is None else None,
            "changes": changes,
        }

    def _pack_changes(self, state: ClusterState, after: int) -> bytes | None:
        """Since a state that is among the latest; None where it is not."""
        former = self._recent.get(after)
        if former is None:
            return None
        if after not in self._changes:
            self._changes[after] = state.encode_changes(former)
        return self._changes[after]

    def _pack(self, state: ClusterState, topics: bool) -> bytes:
        """Encoded once for all who ask."""
        known = self._packed.get(topics)
        if known is None or known[0] is not state:
            known = self._packed[topics] = (state, state.without_results().encode(topics=topics))
        return known[1]

    async def command(self, request: web.Request) -> dict[str, Any]:
        body = await _body(request)
        timeout_ms = min(int(body["timeout_ms"]), MAX_TIMEOUT_MS)
        return {"result": await self._raft.submit(body["command"], timeout_ms / 1000)}

    async def heartbeat(self, request: web.Request) -> dict[str, Any]:
        return self._overseer.heartbeat(NodeHeartbeat.from_dict(await _body(request))).to_dict()

    async def died(self, request: web.Request) -> dict[str, Any]:
        content = await request.content.read(death.MAX_NOTICE_BYTES)
        notice = death.DeathNotice.verified(content, request.headers.get(death.HEADER), self._secret)
        self._overseer.died(notice.node, notice.life)
        return {}

    async def ask_election(self, request: web.Request) -> dict[str, Any]:
        body = await _body(request)
        besides = body.get("besides")
        self._overseer.ask_election(
            int(body["shard"]), int(body["above_epoch"]), None if besides is None else str(besides)
        )
        return {}

    async def version(self, request: web.Request) -> dict[str, Any]:
        return {"version": await self._raft.confirmed_version()}

    async def plan(self, request: web.Request) -> dict[str, Any]:
        return {"plan": self._overseer.plan()}

    async def growth(self, request: web.Request) -> dict[str, Any]:
        return {"growth": self._overseer.growth(int(request.query["shards"]))}


async def _body(request: web.Request) -> dict[str, Any]:
    body = msgpack.unpackb(await request.read(), strict_map_key=False)
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a msgpack map")
    return body


def _age_ms(moment: float) -> float:
    return min(max(0.0, runtime.monotonic() - moment), 1e6) * 1000
