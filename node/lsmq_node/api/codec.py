"""JSON and msgpack: which one a request uses, and both ways of bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgpack
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

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

#: Numbers that are encoded in a few milliseconds, in which no other thread has a turn.
_NUMBERS_A_TURN = 10_000


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


def encode_columns(columns: Mapping[str, NDArray[np.integer[Any]]], form: Format) -> bytes:
    """:func:`encode` of a dict of lists of numbers, in pieces: in a thread it leaves others their turns."""
    pack = _msgpack_columns if form is Format.MSGPACK else _json_columns
    return b"".join(pack(columns))


def _json_columns(columns: Mapping[str, NDArray[np.integer[Any]]]) -> Iterator[bytes]:
    for place, (name, column) in enumerate(columns.items()):
        yield f"{',' if place else '{'}{_encode_json(name)}:[".encode()
        for begin, piece in _pieces(column):
            yield (("," if begin else "") + _encode_json(piece)[1:-1]).encode()
        yield b"]"
    yield b"}" if columns else b"{}"


def _msgpack_columns(columns: Mapping[str, NDArray[np.integer[Any]]]) -> Iterator[bytes]:
    packer = msgpack.Packer()
    yield packer.pack_map_header(len(columns))
    for name, column in columns.items():
        yield packer.pack(name)
        yield packer.pack_array_header(len(column))
        for _, piece in _pieces(column):
            yield packer.pack(piece)[len(packer.pack_array_header(len(piece))) :]


def _pieces(column: NDArray[np.integer[Any]]) -> Iterator[tuple[int, list[int]]]:
    """Where each begins, and its numbers."""
    for begin in range(0, len(column), _NUMBERS_A_TURN):
        yield begin, column[begin : begin + _NUMBERS_A_TURN].tolist()


def answer(
    request: web.BaseRequest, value: Any, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """An answer in the format the caller asked for."""
    form = answer_format(request)
    return web.Response(
        body=encode(value, form), status=status, headers={"Content-Type": form.value, **(headers or {})}
    )
