"""Bodies of requests: read as they arrive, charged as they arrive, bounded also after decompression."""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import web

from lsmq.errors import InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType
from lsmq_node.broker import Hold
from lsmq_node.config import NodeConfig
from lsmq_node.workers import LARGE_BYTES, Workers

#: By coding: what zlib is to expect.
CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


async def read_body(request: web.Request, hold: Hold, config: NodeConfig, workers: Workers) -> bytes:
    """The whole body, decompressed. ``hold`` has its bytes.

    Raises ``RequestTooLarge``, ``RequestTimeout``, ``UnsupportedMediaType``, ``InvalidRequest``, ``Unavailable``.
    """
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding != "identity" and coding not in CODINGS:
        raise UnsupportedMediaType(
            f"Content-Encoding is {coding!r}; bodies are sent as they are, or in {' or '.join(CODINGS)}", field=coding
        )
    limit = config.max_request_bytes
    length = request.content_length
    if length is not None and length > limit:
        raise RequestTooLarge(_too_large(f"{length} bytes", limit), limit=limit, size=length)
    body = await _arrived(request, hold, limit, config.body_timeout_ms)
    if coding == "identity":
        return body
    # What it becomes is not known before: it is bounded by what a request may have.
    large = len(body) >= LARGE_BYTES or _becomes_large(body, coding)
    unpacked = await workers.run(lambda: _decompress(body, coding, limit), large=large)
    hold.resize(len(unpacked))
    return unpacked


async def _arrived(request: web.Request, hold: Hold, limit: int, timeout_ms: int) -> bytes:
    content = request.content
    if content.is_eof():  # It is all here already: nothing to wait for.
        body = content.read_nowait()
        hold.resize(len(body))
        return body
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while piece := await content.readany():
                size += len(piece)
                if size > limit:
                    raise RequestTooLarge(_too_large("more", limit), limit=limit)
                hold.resize(size)
                pieces.append(piece)
    except TimeoutError:
        raise RequestTimeout(
            f"the request's body did not arrive within {timeout_ms} ms (body_timeout_ms)", limit=timeout_ms, sent=False
        ) from None
    except web.RequestPayloadError as error:
        raise InvalidRequest(f"the request's body cannot be read: {error}") from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _becomes_large(body: bytes, coding: str) -> bool:
    """A few bytes may become a thousand times as many."""
    try:
        return len(zlib.decompressobj(CODINGS[coding]).decompress(body, LARGE_BYTES)) == LARGE_BYTES
    except zlib.error:
        return False


def _decompress(body: bytes, coding: str, limit: int) -> bytes:
    unpacker = zlib.decompressobj(CODINGS[coding])
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {coding}: {error}") from error
    if len(unpacked) > limit:
        raise RequestTooLarge(_too_large("more, decompressed", limit), limit=limit)
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidRequest(f"the body is not one whole {coding} stream")
    return unpacked


def _too_large(size: str, limit: int) -> str:
    return (
        f"the request's body has {size}, the limit is {limit} bytes (max_request_bytes); send fewer messages a request"
    )
