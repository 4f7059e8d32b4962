"""Backups that this node makes itself: begun, looked at, ended. See :mod:`lsmq_node.backups.service`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lsmq.errors import InvalidRequest
from lsmq_node.backups.service import MAX_TOLD, EndedBackup, RunningBackup

from . import schemas
from .codec import answer
from .routing import Call, Content, Routes
from .schema import integer, list_of, object_of, text

ROUTES = Routes("cluster")

_RUNNING = {
    **object_of(
        {
            "began_ms": schemas.COUNT,
            "total_bytes": integer(0, description="Of all files; null until all shards have been taken.", null=True),
            "done_bytes": integer(0, description="Of these, what the place has by now."),
        }
    ),
    "type": ["object", "null"],
    "description": "The one that is under way.",
}
_LAST = {
    **object_of(
        {
            "began_ms": schemas.COUNT,
            "ended_ms": schemas.COUNT,
            "id": text("Null: there is none, see `error`.", null=True),
            "size_bytes": integer(0, null=True),
            "fetched_bytes": integer(0, description="Of these, what no earlier backup had.", null=True),
            "removed": list_of(text(), "Ids of those that were removed then."),
            "unread": list_of(
                text(), "Ids of those there that cannot be read: while they are there no file of the place is removed."
            ),
            "error": text("Why there is none.", null=True),
        }
    ),
    "type": ["object", "null"],
    "description": "The last one that was begun at this node since its start, and is over.",
}
STATE = object_of(
    {
        "place": text("Where they go (`backup_to`); null: this node makes none.", null=True),
        "keep": integer(0, description="So many are kept (`backup_keep`); 0: all."),
        "running": _RUNNING,
        "last": _LAST,
        "backups": list_of(text(), f"Ids of those in the place, which say when; the newest {MAX_TOLD} first."),
        "problem": text("Why the place does not say what it has.", null=True),
    }
)


def _running(found: RunningBackup | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"began_ms": found.began_ms, "total_bytes": found.total_bytes, "done_bytes": found.done_bytes}


def _last(found: EndedBackup | None) -> dict[str, Any] | None:
    if found is None:
        return None
    made = found.made
    return {
        "began_ms": found.began_ms,
        "ended_ms": found.ended_ms,
        "id": None if made is None else made.backup.id,
        "size_bytes": None if made is None else made.backup.size_bytes,
        "fetched_bytes": None if made is None else made.fetched_bytes,
        "removed": [] if made is None else made.removed,
        "unread": [] if made is None else made.unread,
        "error": found.error,
    }


async def _state(call: Call, status: int = 200) -> web.Response:
    backups = call.node.backups
    ids = await backups.ids()
    found = {
        "place": backups.place,
        "keep": backups.keep,
        "running": _running(backups.running),
        "last": _last(backups.last),
        "backups": ids,
        "problem": backups.problem,
    }
    return answer(call.request, found, status)


@ROUTES.get("/v1/backups", Content("Of the node that is asked.", STATE))
async def list_backups(call: Call) -> web.StreamResponse:
    """How far a backup is that this node makes, what came of the last one, and which there are."""
    return await _state(call)


@ROUTES.post(
    "/v1/backups",
    Content("It is begun, and goes on by itself.", STATE, status=202),
    Content("One is under way already.", STATE),
    errors=(InvalidRequest,),
)
async def start_backup(call: Call) -> web.StreamResponse:
    """Have this node make a backup of all shards, its own and others', where its setting `backup_to` says.

    As `lsmq backup create` does elsewhere. It goes on when whoever asked for it has gone.
    """
    return await _state(call, 202 if call.node.backups.begin() else 200)


@ROUTES.delete("/v1/backups/running", Content("None is under way.", STATE), errors=(InvalidRequest,))
async def stop_backup(call: Call) -> web.StreamResponse:
    """End the backup that this node makes. What it fetched is kept, and the next one goes on from there."""
    await call.node.backups.cancel()
    return await _state(call)
