"""JSON and msgpack: which one a request uses, and both ways of bodies."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Final

import msgpack
from aiohttp import web

from lsmq.errors import InvalidRequest

from .items import check_json_items, unpack_msgpack

JSON_TYPE: Final = "application/json"
MSGPACK_TYPE: Final = "application/msgpack"
BATCH_TYPE: Final = "application/vnd.lsmq.batch"
NAMED_BATCH_TYPE: Final = "application/vnd.lsmq.named-batch"
BATCHES_TYPE: Final = "application/vnd.lsmq.batches"


class Format(Enum):
    """The two forms of structured bodies. Anything that is not msgpack is read as JSON."""

    JSON = JSON_TYPE
    MSGPACK = MSGPACK_TYPE


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).decode
_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def media_type(request: web.BaseRequest) -> str:
    """Of the body, without parameters; empty where the request does not say."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def request_format(request: web.BaseRequest) -> Format:
    """By Content-Type: msgpack, or else JSON."""
    return Format.MSGPACK if media_type(request) == MSGPACK_TYPE else Format.JSON


def answer_format(request: web.BaseRequest) -> Format:
    """By Accept; where that leaves it open, as the request came."""
    accept = request.headers.get("Accept", "")
    if MSGPACK_TYPE in accept:
        return Format.MSGPACK
    if accept in ("", "*/*"):
        return request_format(request)
    return Format.JSON


def decode(body: bytes, form: Format) -> Any:
    """The value a body says. Raises :class:`InvalidRequest` saying where it stops making sense, ``TooManyItems``."""
    if not body:
        raise InvalidRequest(f"the request has no body; send {form.value}")
    try:
        if form is Format.MSGPACK:
            return unpack_msgpack(body)
        check_json_items(body)
        return _decode_json(body.decode())
    except InvalidRequest:
        raise
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid {form.value}: text that is not UTF-8 at byte {error.start}; "
            "send bytes as body_b64, or as msgpack bin"
        ) from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}; "
            f"for msgpack set Content-Type: {MSGPACK_TYPE}"
        ) from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except (ValueError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise InvalidRequest(f"the body is not valid {form.value}: {reason}") from error


def encode(value: Any, form: Format) -> bytes:
    """The body for a value of dicts, lists, text, numbers and (msgpack only) bytes."""
    if form is Format.MSGPACK:
        return msgpack.packb(value)  # type: ignore[no-any-return]
    return _encode_json(value).encode()


def answer(
    request: web.BaseRequest, value: Any, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """An answer in the format the caller asked for."""
    form = answer_format(request)
    return web.Response(
        body=encode(value, form), status=status, headers={"Content-Type": form.value, **(headers or {})}
    )
