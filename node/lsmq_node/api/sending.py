"""Answers on their way out: held in the budget until the client has taken them, and made of parts where they are large.

Some parts never enter this process: sendfile from table files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence

import structlog
from aiohttp import web

from lsmq_node.broker import Broker, Hold
from lsmq_node.broker.stages import stage
from lsmq_node.storage import FileRange

from .routing import Call

_log = structlog.get_logger("lsmq.http")

_CHUNK_BYTES = 256 * 1024
#: Smaller answers are handed to the system in one piece, which takes them at once.
_SMALL_BYTES = 64 * 1024


async def send_parts(call: Call, parts: Sequence[bytes | FileRange], headers: Mapping[str, str]) -> web.StreamResponse:
    """Send the parts one after another as one body of known length.

    Once the headers are out nothing can be said about a failure: the connection is cut, so that the caller
    sees a body that is too short. To a node that passed the request on it goes whole, for that proves it; there must
    be no files then.
    """
    if call.proof is not None:
        return web.Response(body=_joined(parts), headers=headers)
    size = sum(part.length if isinstance(part, FileRange) else len(part) for part in parts)
    if size < _SMALL_BYTES and not any(isinstance(part, FileRange) for part in parts):
        return web.Response(body=_joined(parts), headers=headers)
    response = web.StreamResponse(headers=headers)
    await _send(call.request, response, parts, size, call.broker)
    return response


async def send_held(
    request: web.Request, response: web.StreamResponse, hold: Hold, broker: Broker
) -> web.StreamResponse:
    """Send a large answer while ``hold`` has its bytes; small ones, and headers alone, are left to the caller."""
    if request.method == "HEAD":
        return response
    if not isinstance(response, web.Response) or response.prepared or not isinstance(response.body, bytes):
        return response
    size = len(response.body)
    if size < _SMALL_BYTES:
        return response
    hold.resize_made(size)
    sent = web.StreamResponse(status=response.status, headers=response.headers)
    await _send(request, sent, (response.body,), size, broker)
    return sent


async def _send(
    request: web.Request, response: web.StreamResponse, parts: Sequence[bytes | FileRange], size: int, broker: Broker
) -> None:
    response.content_length = size
    timeout_ms = broker.config.answer_timeout_ms
    try:
        with stage("answer"):
            async with asyncio.timeout(timeout_ms / 1000):
                await response.prepare(request)
                for part in _pieces(parts):
                    if not isinstance(part, FileRange):
                        await response.write(part)
                    elif await _send_range(request, response, part):
                        broker.sendfile_bytes += part.length
                    else:
                        raise OSError(f"{part.path} ended before byte {part.position + part.length}")
                await response.write_eof()
    except ConnectionError:
        raise
    except TimeoutError:
        _cut(request)
        raise ConnectionResetError(f"the client did not take the answer within {timeout_ms} ms") from None
    except (OSError, RuntimeError) as error:
        if request.transport is not None:
            _log.error("answer_cut_short", path=request.path, exc_info=error)
            _cut(request)
        raise ConnectionResetError("the answer was cut short") from error


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _joined(parts: Sequence[bytes | FileRange]) -> bytes:
    return b"".join(part for part in parts if not isinstance(part, FileRange))


def _pieces(parts: Sequence[bytes | FileRange]) -> Iterator[bytes | memoryview | FileRange]:
    """Small parts together and large ones in pieces: what waits in the connection's buffer is a piece at most."""
    small: list[bytes] = []
    waiting = 0
    for part in parts:
        if not isinstance(part, FileRange) and len(part) < _SMALL_BYTES:
            small.append(part)
            waiting += len(part)
            if waiting < _CHUNK_BYTES:
                continue
        if small:
            yield b"".join(small)
        if isinstance(part, FileRange):
            yield part
        elif len(part) >= _SMALL_BYTES:
            view = memoryview(part)
            for at in range(0, len(view), _CHUNK_BYTES):
                yield view[at : at + _CHUNK_BYTES]
        small, waiting = [], 0
    if small:
        yield b"".join(small)


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
