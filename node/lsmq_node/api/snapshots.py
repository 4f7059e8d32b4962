"""Snapshots of shards, for backups: begun, read piece by piece, let go.

The leader of a shard gives it; requests to others are passed on. Nobody's writes wait: a snapshot is the files of one
flush, which never change. It lasts for as long as it is asked for.
"""

from __future__ import annotations

import base64
from typing import Any

from aiohttp import web

from lsmq.errors import NotLeader, SnapshotGone
from lsmq_node.broker.snapshot_sessions import MAX_COMPARE_BYTES, MAX_PIECE_BYTES, SESSION_TIMEOUT_S, SnapshotSession
from lsmq_node.storage.snapshot import encode_snapshot

from . import schemas
from .codec import answer
from .routing import Call, Content, Parameter, Routes
from .schema import flag, integer, list_of, object_of, text

ROUTES = Routes("cluster")

_SHARD = Parameter("shard", integer(0, 1_023), "Number of the shard.")
_ID = Parameter("id", text(), "Id of the snapshot.")
_FILE = Parameter("file", text(), "Name of one of its files.")
_OFFSET = Parameter("offset", {**integer(0, 2**63 - 1), "default": 0}, "Where the range begins.")
_MINE = (_SHARD, _ID)
_HELD = {
    "id": text("What it is asked for by."),
    "shard": schemas.COUNT,
    "lsn": integer(0, description="It holds all that the shard had logged before, and nothing else."),
    "expires_ms": integer(0, description="It is let go when nobody asks for it for so long."),
}
_SNAPSHOT = object_of(
    {
        **_HELD,
        "snapshot_b64": text("What it is made of: the snapshot manifest (docs/formats/snapshot.md) in base64."),
        "files": list_of(object_of({"name": text(), "size_bytes": schemas.COUNT})),
    }
)


def _length(most: int) -> Parameter:
    return Parameter("length", integer(1, most), "Bytes of the range; less is given at the file's end.", required=True)


def _held(session: SnapshotSession) -> dict[str, Any]:
    return {
        "id": session.id,
        "shard": session.shard,
        "lsn": session.source.snapshot.applied_lsn,
        "expires_ms": int(SESSION_TIMEOUT_S * 1000),
    }


def _session(call: Call) -> SnapshotSession:
    return call.node.snapshots.get(call.path("shard"), call.path("id"))


@ROUTES.post(
    "/v1/shards/{shard}/snapshots",
    Content("It is held: its files stay as they are.", _SNAPSHOT, status=201),
    parameters=(_SHARD,),
    request=Content(
        "Who reads it, by a name that it chose: a new snapshot of a shard ends its reader's old one.",
        object_of({"holder": text(minLength=1, maxLength=64)}),
    ),
    errors=(NotLeader,),
)
async def begin_snapshot(call: Call) -> web.StreamResponse:
    """Hold a snapshot of a shard, to read its files.

    Of all that was acknowledged before the request. What is in memory is written to a table first; writing goes on.
    """
    document = await call.checked_document()
    session = await call.node.snapshots.begin(call.path("shard"), document["holder"])
    snapshot = session.source.snapshot
    found = {
        **_held(session),
        "snapshot_b64": base64.b64encode(encode_snapshot(snapshot)).decode(),
        "files": [{"name": file.name, "size_bytes": file.size_bytes} for file in snapshot.files],
    }
    return answer(call.request, found, 201)


@ROUTES.get(
    "/v1/shards/{shard}/snapshots/{id}",
    Content("It is held, and is from now on for as long again.", object_of(_HELD)),
    parameters=_MINE,
    errors=(SnapshotGone, NotLeader),
)
async def get_snapshot(call: Call) -> web.StreamResponse:
    """Have a snapshot held on."""
    return answer(call.request, _held(_session(call)))


@ROUTES.get(
    "/v1/shards/{shard}/snapshots/{id}/files/{file}",
    Content("The bytes as they lie in the file.", media_types=("application/octet-stream",)),
    parameters=(*_MINE, _FILE, _OFFSET, _length(MAX_PIECE_BYTES)),
    errors=(SnapshotGone, NotLeader),
)
async def read_snapshot_file(call: Call) -> web.StreamResponse:
    """A piece of a file of a snapshot."""
    session, length = _session(call), call.query["length"]
    await call.node.snapshots.throttle.take(length)
    call.hold.resize(length)
    piece = await call.node.snapshots.sessions.read(session, call.path("file"), call.query["offset"], length)
    return web.Response(body=piece, content_type="application/octet-stream")


@ROUTES.get(
    "/v1/shards/{shard}/snapshots/{id}/files/{file}/checksum",
    Content("Of the range.", object_of({"crc32c": integer(0, 2**32 - 1)})),
    parameters=(*_MINE, _FILE, _OFFSET, _length(MAX_COMPARE_BYTES)),
    errors=(SnapshotGone, NotLeader),
)
async def checksum_snapshot_file(call: Call) -> web.StreamResponse:
    """CRC32C of a range of a file of a snapshot, to compare it with what is there of an earlier one."""
    session, length = _session(call), call.query["length"]
    await call.node.snapshots.throttle.take(length)
    crc = await call.node.snapshots.sessions.checksum(session, call.path("file"), call.query["offset"], length)
    return answer(call.request, {"crc32c": crc})


@ROUTES.post(
    "/v1/shards/{shard}/snapshots/{id}/files/{file}/verify",
    Content(
        "Of all of it.",
        object_of(
            {
                "whole": flag("Every byte is what the snapshot says."),
                "damage": text("What is damaged, by file and byte.", null=True),
                "position": integer(0, description="The byte from which on it is.", null=True),
            }
        ),
    ),
    parameters=(*_MINE, _FILE),
    errors=(SnapshotGone, NotLeader),
)
async def verify_snapshot_file(call: Call) -> web.StreamResponse:
    """Read a whole file of a snapshot where it lies, and say whether it is whole."""
    session, file = _session(call), call.path("file")
    await call.node.snapshots.throttle.take(session.source.size_of(file))
    damage = await call.node.snapshots.sessions.verify(session, file)
    position = None if damage is None else int(damage.details.get("position", 0))
    return answer(
        call.request,
        {"whole": damage is None, "damage": None if damage is None else damage.message, "position": position},
    )


@ROUTES.delete(
    "/v1/shards/{shard}/snapshots/{id}",
    Content("It is let go.", status=204),
    parameters=_MINE,
    errors=(SnapshotGone, NotLeader),
)
async def end_snapshot(call: Call) -> web.StreamResponse:
    """Let a snapshot go: its files are removed where the shard needs them no more."""
    call.node.snapshots.sessions.end(_session(call))
    return web.Response(status=204)
