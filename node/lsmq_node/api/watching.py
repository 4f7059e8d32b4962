"""Watching requests: which are slow, and where their time went; and their spans, where the node traces.

What a request waits for, because there is nothing to answer yet, is no part of its time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_coordinator.http_status import status_of
from lsmq_node.broker.stages import Stages, under_way
from lsmq_node.metrics import HttpMetrics
from lsmq_node.node import Node

from .routing import SYSTEM_TAG, ApiOperation

#: More lines a second say nothing more, and would be the next slow thing.
MAX_SLOW_LINES_A_SECOND = 10

_log = structlog.get_logger("lsmq.http")

RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SlowRequests:
    """Tells of requests that took longer than ``slow_request_ms``, so many a second at most."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0
        self._not_told = 0

    def tell(self, operation: str, status: int, seconds: float, stages: Stages, **more: str | None) -> None:
        second = int(runtime.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= MAX_SLOW_LINES_A_SECOND:
            self._not_told += 1
            return
        self._lines += 1
        parts = {f"{name}_ms": _ms(stage.seconds) for name, stage in stages.by_name.items()}
        rest = seconds + stages.waited_s - sum(stage.seconds for stage in stages.by_name.values())
        untold = {"not_told": self._not_told} if self._not_told else {}
        self._not_told = 0
        _log.warning(
            "slow_request",
            operation=operation,
            status=status,
            ms=_ms(seconds),
            **parts,
            rest_ms=_ms(max(0.0, rest)),
            **{name: value for name, value in more.items() if value is not None},
            **untold,
        )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)


def watched(
    route: ApiOperation, node: Node, metrics: HttpMetrics, slow: SlowRequests, handle: RequestHandler
) -> RequestHandler:
    """The handler with its requests watched, where the node wants that; held streams never are."""
    limit_s, tracing = node.broker.config.slow_request_ms / 1000, node.tracing
    if route.is_stream or route.tag == SYSTEM_TAG or (not limit_s and tracing is None):
        return handle
    series = metrics.series(route.operation)

    async def watch(request: web.Request) -> web.StreamResponse:
        began, status, topic = runtime.monotonic(), 499, request.match_info.get("topic")
        stages = Stages()
        token = under_way.set(stages)
        traced = None if tracing is None else tracing.begin(route.operation, topic, request.headers)
        if traced is not None:
            structlog.contextvars.bind_contextvars(trace_id=traced.trace_id)
        try:
            response = await handle(request)
            status = response.status
            return response
        except LsmqError as error:
            status = status_of(error)
            raise
        except Exception as error:
            status = 499 if isinstance(error, ConnectionError) else 500
            raise
        finally:
            under_way.reset(token)
            seconds = runtime.monotonic() - began - stages.waited_s
            if limit_s and seconds >= limit_s:
                series.slow += 1
                slow.tell(route.operation, status, seconds, stages, topic=topic, remote=request.remote)
            if traced is not None:
                traced.end(status, stages)
                structlog.contextvars.unbind_contextvars("trace_id")

    return watch
