"""What operators ask a node: is it alive, is it ready, how is it doing, what can it do."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from aiohttp import web

from lsmq import runtime
from lsmq_node.broker import Broker
from lsmq_node.config import NodeConfig

from . import schemas
from .codec import answer
from .groups import service
from .routing import Call, Content, Route

OPENAPI_KEY = web.AppKey("openapi", dict[str, Any])


def version() -> str:
    """The installed release, or ``0`` when running from a tree that is not installed."""
    try:
        return metadata.version("lsmq")
    except metadata.PackageNotFoundError:
        return "0"


def failures_of(broker: Broker) -> list[str]:
    """Why the node must be restarted; empty when it need not be."""
    return [
        f"shard {port.number} stopped: {port.stopped.message}"
        for port in broker.topology.ports()
        if port.stopped is not None
    ]


async def healthz(call: Call) -> web.StreamResponse:
    """GET /healthz"""
    reasons = failures_of(call.broker)
    return _health(call, reasons)


async def readyz(call: Call) -> web.StreamResponse:
    """GET /readyz"""
    reasons = failures_of(call.broker)
    reasons.extend(call.broker.topology.not_ready())
    reasons.extend(call.broker.parts.problems(essential=True))
    if call.broker.shutting_down:
        reasons.append("the node is stopping")
    warnings = [
        f"shard {port.number}: {damage}" for port in call.broker.topology.ports() for damage in port.store.damage()
    ]
    warnings += service(call).stalled()
    warnings += call.broker.parts.problems(essential=False)
    return _health(call, reasons, warnings)


def _health(call: Call, reasons: list[str], warnings: Sequence[str] = ()) -> web.Response:
    body = {
        "status": "failing" if reasons else "ok",
        "reasons": reasons,
        **({"warnings": warnings} if warnings else {}),
    }
    return answer(call.request, body, 503 if reasons else 200)


async def status(call: Call) -> web.StreamResponse:
    """GET /v1/status"""
    broker = call.broker
    shards = [
        {
            "shard": port.number,
            **port.figures(),
            **dataclasses.asdict(port.store.stats()),
            "pressure": port.store.pressure,
            "damage": port.store.damage(),
        }
        for port in broker.topology.ports()
    ]
    return answer(
        call.request,
        {
            "version": version(),
            "uptime_s": round(runtime.monotonic() - broker.started_at, 3),
            "data_dir": str(broker.config.data.absolute()),
            "pid": os.getpid(),
            "shards": shards,
            "waiters": broker.waiters.count,
            "inflight_bytes": broker.budget.used_bytes,
            "config": broker.config.to_dict(),
        },
    )


async def openapi(call: Call) -> web.StreamResponse:
    """GET /v1/openapi.json"""
    return answer(call.request, call.request.app[OPENAPI_KEY])


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module. ``/metrics`` is the metrics module's."""
    return (
        Route(
            "GET",
            "/healthz",
            "healthz",
            "system",
            "Whether the process is alive and its disks are trusted",
            healthz,
            {
                200: Content("It is.", schemas.HEALTH),
                503: Content("It is not, and a restart is needed.", schemas.HEALTH),
            },
        ),
        Route(
            "GET",
            "/readyz",
            "readyz",
            "system",
            "Whether to send requests here",
            readyz,
            {200: Content("Yes.", schemas.HEALTH), 503: Content("Not now.", schemas.HEALTH)},
        ),
        Route(
            "GET",
            "/v1/status",
            "status",
            "system",
            "Version, limits and counters of this node",
            status,
            {200: Content("For people and scripts; monitoring reads /metrics.", schemas.STATUS)},
        ),
        Route(
            "GET",
            "/v1/openapi.json",
            "openapi",
            "system",
            "This document",
            openapi,
            {200: Content("OpenAPI 3.1.", {"type": "object"})},
        ),
    )
