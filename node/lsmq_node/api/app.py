"""The aiohttp application: every route of the table, measured and with its errors answered alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

import lsmq
from lsmq import runtime
from lsmq.errors import (
    AntiForgeryFailed,
    Forbidden,
    LsmqError,
    NotLeader,
    OriginNotAllowed,
    TooManyConnections,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnknownTopic,
    WrongPort,
)
from lsmq_coordinator.auth import VERIFIED
from lsmq_coordinator.http_status import status_of
from lsmq_node.broker import Limited, asked_from, asking, client_of
from lsmq_node.broker.stages import LIMITS, stage
from lsmq_node.config import NodeConfig
from lsmq_node.metrics import HttpMetrics
from lsmq_node.node import Node
from lsmq_node.rights import Audit, ShownCredentials

from . import (
    arrivals,
    backups,
    batches,
    browser_sessions,
    busiest,
    cluster,
    console,
    consume,
    delayed,
    deletes,
    find,
    groups,
    offsets,
    produce,
    producers,
    push,
    queues,
    resets,
    rights,
    schedules,
    snapshots,
    system,
    topics,
    transactions,
    work_queues,
)
from .access import ACCESS, AUDITED, Access
from .asker import Asker
from .browser_sessions import check_by_cookie, shown_cookie
from .failures import HttpConnection, failures, go_on_or_refuse
from .forwarding import answered_elsewhere, answering_passed_on, told_address
from .openapi import document
from .origins import let_pages_read, own_pages
from .proxied import behind_proxies
from .routing import SYSTEM_TAG, ApiOperation, Call
from .sending import send_held
from .watching import SlowRequests, watched

_PARTS = (
    topics,
    queues,
    produce,
    consume,
    batches,
    arrivals,
    producers,
    find,
    deletes,
    delayed,
    schedules,
    groups,
    offsets,
    resets,
    push,
    work_queues,
    transactions,
    cluster,
    snapshots,
    backups,
    rights,
    browser_sessions,
    system,
    console,
    busiest,
)

NODE = web.AppKey("node", Node)
_NOTHING = ShownCredentials()
_REFUSALS = Unauthenticated | Forbidden | AntiForgeryFailed | OriginNotAllowed


def route_table(config: NodeConfig) -> tuple[ApiOperation, ...]:
    """Every route of a node."""
    return tuple(route.bound(config) for part in _PARTS for route in part.ROUTES)


def make_app(node: Node) -> web.Application:
    """HTTP in front of a node, which outlives it."""
    config, metrics = node.broker.config, HttpMetrics()
    checks = [failures, own_pages(config, metrics)]
    if config.proxies:
        checks.insert(0, behind_proxies(config.proxies))
    app = web.Application(middlewares=checks, client_max_size=config.max_request_bytes)
    let_pages_read(app, config)
    app[NODE] = node
    node.metrics.add(metrics)
    node.history.watch(metrics)
    table, slow = route_table(config), SlowRequests()
    app[system.OPENAPI_KEY] = document(table, lsmq.__version__, config)
    for route in table:
        handler = watched(route, node, metrics, slow, _handler(route, node, metrics))
        path = route.path.replace("}", ":[^/]+}")  # What is left out there takes no braces, which names may have.
        for method in route.methods:
            app.router.add_route(method, path, handler, name=route.operation, expect_handler=go_on_or_refuse)
    node.broker.topology.peers.answer_passed_on(answering_passed_on(app))
    return app


def _handler(
    route: ApiOperation, node: Node, metrics: HttpMetrics
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The route's handler with a memory reservation of its own, counted and timed."""
    series, broker, rights = metrics.series(route.operation), node.broker, node.rights
    config, allowances = broker.config, broker.allowances
    requests_per_s, bytes_per_s = config.address_requests_per_s, config.address_bytes_per_s
    asks = rights.on and (not ACCESS[route.operation].open or ACCESS[route.operation].tells)
    access, audit, noted = ACCESS[route.operation], node.audit, route.operation in AUDITED
    has_admin_port = config.admin_port is not None

    async def handle(request: web.Request) -> web.StreamResponse:
        began = runtime.monotonic()
        status = 499  # The caller went away: what remains when nothing below says otherwise.
        asker: Asker | None = None
        refusal_of: LsmqError | None = None
        limited: str | None = None  # the principal whose request is open, where he has limits
        is_admitted, answered_bytes = False, 0
        call: Call | None = None
        try:
            # What another node passed on counts among its client's there.
            client = None if VERIFIED in request else client_of(request.remote)
            with broker.budget.hold(client) as hold:
                is_counted = client is not None and route.tag != SYSTEM_TAG
                if client is not None and is_counted:
                    with stage(LIMITS):
                        await broker.request_pace.wait(client, requests_per_s, 1)
                        await broker.byte_pace.wait(client, bytes_per_s)
                asker = Asker(rights, access, _shown_if_any(request, config, access) if asks else _NOTHING)
                await asker.identify()
                asking.set(asker.name)
                asked_from.set(told_address(request) if client is None else client)
                if has_admin_port and access.administers:
                    _check_port(request, route)
                connection = request.protocol if is_counted else None
                if is_counted and asker.name is not None and allowances.is_limited(asker.name):
                    if isinstance(connection, HttpConnection):
                        connection.seat(allowances).take(asker.name)
                    allowances.add(Limited.OPEN_REQUESTS, asker.name)
                    limited = asker.name
                    with stage(LIMITS):
                        await allowances.pace(limited)
                elif isinstance(connection, HttpConnection):
                    connection.leave_seat()
                is_admitted = client is not None
                call = Call(request, node, route, hold, asker)
                if asker.cookie is not None:
                    try:
                        check_by_cookie(call)
                    except OriginNotAllowed:
                        if not access.open:
                            raise
                        asker.forget()
                call.check_needs(access)
                try:
                    response = await route.handler(call)
                except (NotLeader, Unavailable) as refusal:
                    response = await answered_elsewhere(call, refusal)
                except UnknownTopic as error:
                    raise call.told(error) from error
                if access.shows and not route.is_stream:
                    asker.check_again()
                if call.proof is None:
                    response = await send_held(request, response, hold, broker)
                answered_bytes = _body_bytes(response)
            status = response.status
            return response
        except LsmqError as error:
            status, refusal_of = status_of(error), error
            raise
        except Exception as error:
            status = 499 if isinstance(error, ConnectionError) else 500
            raise
        finally:
            counted = status if call is None or not call.refusals else _worst(call.refusals)
            series.observe(counted, runtime.monotonic() - began)
            if is_admitted and not route.is_stream:  # Also where it came to nothing: its body was read.
                moved_bytes = request.content.total_bytes + answered_bytes
                broker.byte_pace.took(client_of(request.remote), bytes_per_s, moved_bytes)
                if limited is not None:
                    allowances.took_bytes(limited, moved_bytes)
            if limited is not None:
                allowances.remove(Limited.OPEN_REQUESTS, limited)
            is_noted = noted or (asker is not None and asker.administers) or isinstance(refusal_of, _REFUSALS)
            if audit.on and VERIFIED not in request and is_noted:
                _note(audit, route, request, asker, status, refusal_of)
            elif audit.on and VERIFIED not in request and call is not None and call.refusals:
                for each in call.refusals:
                    if isinstance(each, Forbidden):
                        _note(audit, route, request, asker, status_of(each), each)
            elif audit.on and asker is not None and isinstance(refusal_of, TooManyRequests | TooManyConnections):
                audit.note_limited(asker.name, route.operation, request.remote, refusal_of)

    return handle


def _worst(refusals: Sequence[LsmqError]) -> int:
    """The status that a request counts with whose parts are answered by themselves: for what the node could not do
    rather than for what the caller, or a limit, would not have."""
    return max(map(status_of, refusals), key=lambda status: (500 <= status <= 506, status))


def _check_port(request: web.Request, route: ApiOperation) -> None:
    """Of a node with a port for administration. What another node passes on came by a port of that one's.

    Raises ``WrongPort``.
    """
    connection = request.protocol
    if VERIFIED not in request and not (isinstance(connection, HttpConnection) and connection.administers):
        raise WrongPort(
            f"{route.operation} is administration, which this node takes at a port of its own alone; ask there "
            "(its settings admin_host and admin_port)"
        )


def _shown_if_any(request: web.Request, config: NodeConfig, access: Access) -> ShownCredentials:
    """As :func:`_shown`; where everybody is answered, what is wrong is nothing."""
    try:
        return _shown(request, config)
    except Unauthenticated:
        if not access.open:
            raise
        return _NOTHING


def _shown(request: web.Request, config: NodeConfig) -> ShownCredentials:
    """What the client shows of who it is. What another node passed on has no cookie, and came over a connection of that
    node's own.

    Raises ``Unauthenticated``.
    """
    shown = request.headers.getall("Authorization", ())
    if len(shown) > 1:  # Whoever stands between might look at another of them than this node.
        raise Unauthenticated(f"the request has {len(shown)} headers Authorization; send one")
    authorization = shown[0] if shown else None
    if authorization is not None or VERIFIED in request or request.transport is None:
        return ShownCredentials(authorization)
    if (cookie := shown_cookie(request, config)) is not None:
        return ShownCredentials(f"Bearer {cookie}", by_cookie=True)
    return ShownCredentials(None, request.transport.get_extra_info("peercert") or None)


def _note(
    audit: Audit, route: ApiOperation, request: web.Request, asker: Asker | None, status: int, error: LsmqError | None
) -> None:
    """A line of the audit log. What a client was answered by another node is known by its status alone."""
    refused = status in (401, 403)
    audit.note(
        "refused" if refused else "failed" if status >= 400 else "done",
        principal=None if asker is None else asker.name,
        by=None if asker is None or asker.proven is None else asker.proven.by,
        operation=route.operation,
        method=request.method,
        path=request.path,
        remote=request.remote,
        status=status,
        code=None if error is None else error.code,
        right=None if error is None else error.details.get("right"),
    )


def _body_bytes(response: web.StreamResponse) -> int:
    """Of an answer, whether it has been sent or is about to be."""
    body = response.body if isinstance(response, web.Response) else None
    return len(body) if isinstance(body, bytes) else response.body_length if response.prepared else 0
