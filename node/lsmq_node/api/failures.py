"""Errors on their way out: one middleware turns everything that goes wrong into the same kind of answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import structlog
from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler

from lsmq.errors import (
    InvalidRequest,
    LsmqError,
    MethodNotAllowed,
    ReadElsewhere,
    TooManyConnections,
    TooManyRequests,
    Unauthenticated,
    UnknownPath,
)
from lsmq_coordinator.http_status import status_of
from lsmq_node.broker import Allowances, Seat

from .codec import answer

_log = structlog.get_logger("lsmq.http")

RETRY_AFTER_S = "1"
_REASON_CHARACTERS = 200


def error_answer(request: web.BaseRequest, error: LsmqError, status: int | None = None) -> web.Response:
    """``{"error": {...}}`` with the error's status, Retry-After where trying again makes sense, Location elsewhere."""
    status = status_of(error) if status is None else status
    headers = {"Retry-After": RETRY_AFTER_S} if error.retriable and status in (503, 507) else {}
    if isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(-(-error.details["retry_after_ms"] // 1000))
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, ReadElsewhere):
        headers["Location"] = f"{error.details['url']}{request.path_qs}"
    response = answer(request, error_fields(error), status, headers)
    if isinstance(error, TooManyConnections):
        response.force_close()
    if status == 413:
        response.force_close()  # Rather than read and throw away the rest of what is too large.
    return response


def internal_error(error: Exception) -> LsmqError:
    """What a caller is told of what nobody expected, which is logged."""
    return LsmqError(f"internal error: {type(error).__name__}; the node's log has more")


def error_fields(error: LsmqError) -> dict[str, Any]:
    """``{"error": {...}}``, as it can be sent."""
    return {"error": _as_text(error.to_dict())}


def _as_text(value: Any) -> Any:
    """What can be sent: errors repeat what the caller sent, which may be no text (half a surrogate pair, raw bytes), or
    a number that msgpack, or JSON, has no form for."""
    match value:
        case int() if not -(1 << 63) <= value < 1 << 64:
            return str(value)
        case float() if not math.isfinite(value):
            return str(value)
        case str():
            return value.encode(errors="backslashreplace").decode()
        case bytes():
            return value.decode(errors="backslashreplace")
        case Mapping():
            return {_as_text(name): _as_text(item) for name, item in value.items()}
        case list() | tuple():
            return [_as_text(item) for item in value]
        case _:
            return value


class HttpConnection(web.RequestHandler):
    """A connection that answers what is no request, and so reaches no handler, with an error like any other."""

    __slots__ = ("_seat",)
    #: Whether it came by the port for administration.
    administers = False

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._seat: Seat | None = None

    def seat(self, allowances: Allowances) -> Seat:
        """Its place among the connections of whoever asks by it."""
        if self._seat is None:
            self._seat = Seat(allowances)
        return self._seat

    def leave_seat(self) -> None:
        """Whoever asks by it now has no limits."""
        if self._seat is not None:
            self._seat.leave()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.leave_seat()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            raise exc  # The caller is gone: nobody is answered, nothing is wrong, and the connection ends.
        super().handle_error(request, status, exc, message)  # It logs, and raises where an answer has begun.
        reason = " ".join((message or "").split())[:_REASON_CHARACTERS]
        error = InvalidRequest(f"this is no HTTP request: {reason}") if status == 400 else LsmqError("internal error")
        response = error_answer(request, error)
        response.force_close()
        return response


class AdminConnection(HttpConnection):
    __slots__ = ()
    administers = True


async def go_on_or_refuse(request: web.Request) -> web.StreamResponse | None:
    """Tells whoever waits for it to send the body (``Expect: 100-continue``); None: the request goes on. Of anything
    else that is expected nothing is known."""
    expected = request.headers.get("Expect", "")
    if request.version < HttpVersion11:
        return None
    if expected.lower() != "100-continue":
        refused = InvalidRequest(f"Expect is {expected[:_REASON_CHARACTERS]!r}; it may be 100-continue", field="Expect")
        response = error_answer(request, refused, 417)
        response.force_close()
        return response
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # Of the answer itself nothing is sent yet.
    return None


@web.middleware
async def failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost handler: answers errors, logs what nobody expected."""
    try:
        return await handler(request)
    except LsmqError as error:
        return error_answer(request, error)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        refused = MethodNotAllowed(f"{request.method} is not possible on {request.path}; possible: {allowed}")
        response = error_answer(request, refused)
        response.headers["Allow"] = allowed
        return response
    except web.HTTPNotFound:
        return error_answer(
            request, UnknownPath(f"there is nothing at {request.path}; /v1/openapi.json lists what there is")
        )
    except web.HTTPException as error:
        return error_answer(request, InvalidRequest(error.reason))
    except ConnectionError:
        raise  # To HttpConnection.handle_error
    except Exception as error:
        _log.error("request_failed", method=request.method, path=request.path, exc_info=error)
        return error_answer(request, internal_error(error))
