"""Answers made of parts, some of which never enter this process: sendfile from table files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

import structlog
from aiohttp import web

from lsmq_node.storage import FileRange

from .routing import Call

_log = structlog.get_logger("lsmq.http")

_CHUNK_BYTES = 256 * 1024


async def send_parts(call: Call, parts: Sequence[bytes | FileRange], headers: Mapping[str, str]) -> web.StreamResponse:
    """Send the parts one after another as one body of known length.

    Once the headers are out nothing can be said about a failure: the connection is cut, so that the caller
    sees a body that is too short.
    """
    request = call.request
    size = sum(part.length if isinstance(part, FileRange) else len(part) for part in parts)
    if not any(isinstance(part, FileRange) for part in parts):
        body = b"".join(part for part in parts if not isinstance(part, FileRange))
        return web.Response(body=body, headers=headers)
    response = web.StreamResponse(headers=headers)
    response.content_length = size
    await response.prepare(request)
    try:
        for part in parts:
            if not isinstance(part, FileRange):
                await response.write(part)
            elif await _send_range(request, response, part):
                call.broker.sendfile_bytes += part.length
            else:
                raise OSError(f"{part.path} ended before byte {part.position + part.length}")
    except ConnectionError:
        raise
    except (OSError, RuntimeError) as error:
        if request.transport is not None:
            _log.error("answer_cut_short", path=request.path, exc_info=error)
            request.transport.abort()
        raise ConnectionResetError("the answer was cut short") from error
    await response.write_eof()
    return response


async def _send_range(request: web.Request, response: web.StreamResponse, part: FileRange) -> bool:
    """Send a range of a file; False when the file is too short for it."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the connection was lost")
    loop = asyncio.get_running_loop()
    try:
        return await loop.sendfile(transport, part.file, part.position, part.length) == part.length
    except NotImplementedError:
        return await _copy_range(response, part)


async def _copy_range(response: web.StreamResponse, part: FileRange) -> bool:
    """What sendfile does, for transports that cannot: read in threads, write."""
    position, end = part.position, part.position + part.length
    while position < end:
        wanted = min(_CHUNK_BYTES, end - position)
        chunk = await asyncio.to_thread(os.pread, part.file.fileno(), wanted, position)
        if not chunk:
            return False
        await response.write(chunk)
        position += len(chunk)
    return True
