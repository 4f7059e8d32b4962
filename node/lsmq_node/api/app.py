"""The aiohttp application: every route of the table, measured and with its errors answered alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from aiohttp import web

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_node.broker import Broker, client_of
from lsmq_node.broker.disk_watch import DiskWatch
from lsmq_node.config import NodeConfig
from lsmq_node.groups import GroupService
from lsmq_node.groups.metrics import GroupCollector
from lsmq_node.metrics import HttpMetrics, NodeMetrics
from lsmq_node.push import PushService
from lsmq_node.push.metrics import PushCollector
from lsmq_node.transactions import TransactionService
from lsmq_node.transactions.metrics import TransactionCollector
from lsmq_node.workqueue import WorkService
from lsmq_node.workqueue.metrics import WorkCollector

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
    transaction_routes,
    transactions,
    work_queues,
)
from .failures import failures
from .openapi import document
from .origins import own_pages
from .routing import Call, Content, Route
from .sending import send_held
from .workers import Workers

METRICS_KEY = web.AppKey("metrics", NodeMetrics)


async def _metrics(call: Call) -> web.StreamResponse:
    """GET /metrics"""
    body, content_type = call.request.app[METRICS_KEY].render()
    return web.Response(body=body, headers={"Content-Type": content_type})


def route_table(config: NodeConfig) -> tuple[Route, ...]:
    """Every route of a node."""
    metrics = Route(
        "GET",
        "/metrics",
        "metrics",
        "system",
        "Counters and gauges for Prometheus",
        _metrics,
        {200: Content("Prometheus text format.", {"type": "string"}, ("text/plain",))},
    )
    modules = (
        topics,
        produce,
        consume,
        batches,
        deletes,
        groups,
        offsets,
        push,
        work_queues,
        transaction_routes,
        cluster,
        system,
    )
    return (*(route for module in modules for route in module.routes(config)), metrics)


class _Service(Protocol):
    """What runs beside the routes of an app."""

    def start(self) -> None: ...

    def begin_stop(self) -> Awaitable[None] | None:
        """Answer what is held, and take no more."""

    async def stop(self) -> None: ...


async def _running(services: Sequence[_Service], workers: Workers) -> AsyncIterator[None]:
    for service in services:
        service.start()
    yield
    for service in reversed(services):
        await service.stop()
    await workers.close()


async def _stopping(services: Sequence[_Service]) -> None:
    for service in reversed(services):
        if (ended := service.begin_stop()) is not None:
            await ended


def make_app(broker: Broker) -> web.Application:
    """The application of a broker. The broker outlives it."""
    config = broker.config
    http_metrics = HttpMetrics()
    middlewares = [failures, own_pages(config, http_metrics)]
    app = web.Application(middlewares=middlewares, client_max_size=config.max_request_bytes)
    workers = Workers()
    app[groups.GROUPS_KEY] = service = GroupService(broker)
    app[work_queues.WORK_KEY] = work = WorkService(broker, service)
    app[push.PUSH_KEY] = pushing = PushService(broker, service)
    app[transactions.TRANSACTIONS_KEY] = deciding = TransactionService(broker)
    services = (service, work, deciding, pushing, DiskWatch(broker))
    collectors = (GroupCollector(service), WorkCollector(work), PushCollector(pushing), TransactionCollector(deciding))
    app[METRICS_KEY] = NodeMetrics(broker, http_metrics, *collectors)
    app.cleanup_ctx.append(lambda _: _running(services, workers))
    app.on_shutdown.append(lambda _: _stopping(services))
    table = route_table(config)
    app[system.OPENAPI_KEY] = document(table, system.version())
    for route in table:
        handler = _handler(route, broker, workers, http_metrics)
        for method in route.methods:
            app.router.add_route(method, route.path, handler, name=route.operation)
    return app


def _handler(
    route: Route, broker: Broker, workers: Workers, metrics: HttpMetrics
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The route's handler with a memory reservation of its own, counted and timed."""
    series = metrics.series(route.operation)

    async def handle(request: web.Request) -> web.StreamResponse:
        began = runtime.monotonic()
        status = 499  # The caller went away: what remains when nothing below says otherwise.
        try:
            with broker.budget.hold(client_of(request.remote)) as hold:
                response = await route.handler(Call(request, broker, workers, route, hold))
                response = await send_held(request, response, hold, broker)
            status = response.status
            return response
        except LsmqError as error:
            status = error.status
            raise
        except Exception as error:
            status = 499 if isinstance(error, ConnectionError) else 500
            raise
        finally:
            series.observe(status, runtime.monotonic() - began)

    return handle
