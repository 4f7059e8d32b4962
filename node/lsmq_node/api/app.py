"""The aiohttp application: every route of the table, measured and with its errors answered alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_coordinator.http_status import status_of
from lsmq_node.broker import client_of
from lsmq_node.config import NodeConfig
from lsmq_node.metrics import HttpMetrics
from lsmq_node.node import Node

from . import (
    batches,
    cluster,
    consume,
    deletes,
    groups,
    offsets,
    produce,
    push,
    system,
    topics,
    transactions,
    work_queues,
)
from .failures import failures
from .openapi import document
from .origins import own_pages
from .routing import Call, Route
from .sending import send_held

_PARTS = (topics, produce, consume, batches, deletes, groups, offsets, push, work_queues, transactions, cluster, system)

NODE = web.AppKey("node", Node)


def route_table(config: NodeConfig) -> tuple[Route, ...]:
    """Every route of a node."""
    return tuple(route.bound(config) for part in _PARTS for route in part.ROUTES)


def make_app(node: Node) -> web.Application:
    """HTTP in front of a node, which outlives it."""
    config, metrics = node.broker.config, HttpMetrics()
    app = web.Application(middlewares=[failures, own_pages(config, metrics)], client_max_size=config.max_request_bytes)
    app[NODE] = node
    node.metrics.add(metrics)
    table = route_table(config)
    app[system.OPENAPI_KEY] = document(table, system.version())
    for route in table:
        handler = _handler(route, node, metrics)
        for method in route.methods:
            app.router.add_route(method, route.path, handler, name=route.operation)
    return app


def _handler(route: Route, node: Node, metrics: HttpMetrics) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The route's handler with a memory reservation of its own, counted and timed."""
    series, broker = metrics.series(route.operation), node.broker

    async def handle(request: web.Request) -> web.StreamResponse:
        began = runtime.monotonic()
        status = 499  # The caller went away: what remains when nothing below says otherwise.
        try:
            with broker.budget.hold(client_of(request.remote)) as hold:
                response = await route.handler(Call(request, node, route, hold))
                response = await send_held(request, response, hold, broker)
            status = response.status
            return response
        except LsmqError as error:
            status = status_of(error)
            raise
        except Exception as error:
            status = 499 if isinstance(error, ConnectionError) else 500
            raise
        finally:
            series.observe(status, runtime.monotonic() - began)

    return handle
