"""What operators ask a node: is it alive, is it ready, how is it doing, what can it do."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from aiohttp import web

from lsmq_node.config import NodeConfig

from . import schemas
from .codec import answer
from .routing import Call, Content, Route

OPENAPI_KEY = web.AppKey("openapi", dict[str, Any])


def version() -> str:
    """The installed release, or ``0`` when running from a tree that is not installed."""
    try:
        return metadata.version("lsmq")
    except metadata.PackageNotFoundError:
        return "0"


async def healthz(call: Call) -> web.StreamResponse:
    """GET /healthz"""
    return _health(call, call.node.failures())


async def readyz(call: Call) -> web.StreamResponse:
    """GET /readyz"""
    return _health(call, call.node.not_ready(), call.node.warnings())


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
            "uptime_s": round(time.monotonic() - broker.started_at, 3),
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
