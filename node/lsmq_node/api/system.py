"""What operators ask a node: is it alive, is it ready, how is it doing, what can it do."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from aiohttp import web

import lsmq
from lsmq import runtime
from lsmq_node.disks import NodeDisks

from . import schemas
from .codec import answer
from .routing import Call, Content, Routes
from .schema import text

OPENAPI_KEY = web.AppKey("openapi", dict[str, Any])

ROUTES = Routes("system")
_WITHHELD = "what it is, is told to who shows a token that may describe the cluster"


@ROUTES.get(
    "/healthz",
    Content("It is.", schemas.HEALTH),
    Content("It is not, and a restart is needed.", schemas.HEALTH, status=503),
)
async def healthz(call: Call) -> web.StreamResponse:
    """Whether the process is alive and its disks are trusted."""
    return _health(call, call.node.failures())


@ROUTES.get("/readyz", Content("Yes.", schemas.HEALTH), Content("Not now.", schemas.HEALTH, status=503))
async def readyz(call: Call) -> web.StreamResponse:
    """Whether to send requests here."""
    return _health(call, call.node.not_ready(), call.node.warnings())


def _health(call: Call, reasons: list[str], warnings: Sequence[str] = ()) -> web.Response:
    """What is not well names files, addresses and groups, so strangers are only told that there is something."""
    if not call.asker.is_told:
        reasons, warnings = [_WITHHELD] * bool(reasons), [_WITHHELD] * bool(warnings)
    body = {
        "status": "failing" if reasons else "ok",
        "reasons": reasons,
        **({"warnings": warnings} if warnings else {}),
    }
    return answer(call.request, body, 503 if reasons else 200)


@ROUTES.get("/v1/status", Content("For people and scripts; monitoring reads /metrics.", schemas.STATUS))
async def status(call: Call) -> web.StreamResponse:
    """Version, limits and counters of this node."""
    broker = call.broker
    shards = [
        {
            "shard": port.number,
            "disk": str(port.store.path.parent.absolute()),
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
            "version": lsmq.__version__,
            "uptime_s": round(runtime.monotonic() - broker.started_at, 3),
            "data_dir": str(broker.config.data.absolute()),
            "disks": _disks(broker.topology.disks),
            "pid": os.getpid(),
            "processes": [dataclasses.asdict(process) for process in call.node.processes],
            "shards": shards,
            "waiters": broker.waiters.count,
            "inflight_bytes": broker.budget.used_bytes,
            "config": broker.config.to_dict(),
        },
    )


def _disks(disks: NodeDisks) -> list[dict[str, Any]]:
    return [
        {
            "path": str(disk.path),
            "problem": disk.problem,
            "size_bytes": disk.size_bytes,
            "free_bytes": disk.free_bytes,
            "shards": shards,
        }
        for disk, shards in zip(disks.all, disks.shards_by_disk(), strict=True)
    ]


@ROUTES.get("/v1/openapi.json", Content("OpenAPI 3.1.", {"type": "object"}))
async def openapi(call: Call) -> web.StreamResponse:
    """This document."""
    return answer(call.request, call.request.app[OPENAPI_KEY])


@ROUTES.get("/metrics", Content("Prometheus text format.", text(), ("text/plain",)))
async def metrics(call: Call) -> web.StreamResponse:
    """Counters and gauges for Prometheus."""
    body, content_type = call.node.metrics.render()
    return web.Response(body=body, headers={"Content-Type": content_type})
