"""The OpenAPI 3.1 document, made from the table of routes that also makes the router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lsmq.errors import (
    AntiForgeryFailed,
    ConnectionFailed,
    CorruptFile,
    DiskFull,
    DocumentsFull,
    Forbidden,
    HostNotAllowed,
    InvalidRequest,
    LsmqError,
    NotEnoughReplicas,
    NotLeader,
    OriginNotAllowed,
    RequestTimeout,
    RequestTooLarge,
    ShardStopped,
    ShuttingDown,
    StoreBusy,
    TimedOut,
    TooManyConnections,
    TooManyItems,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    WrongPort,
)
from lsmq_coordinator.errors import NoControlLeader
from lsmq_coordinator.http_status import status_of

from . import schemas
from .codec import JSON_TYPE, MSGPACK_TYPE
from .routing import ApiOperation, Content
from .schema import Schema

_TAGS = {
    "topics": "Topics and the bounds of their queues.",
    "messages": "Messages as JSON or msgpack objects: plain, and good for small rates.",
    "batches": "Record batches, as the client libraries use them: fast.",
    "groups": "Consumer groups: their members, and their committed offsets.",
    "push": "Held streams: the broker sends, as much as the consumer has given credit for.",
    "work": "Work queues: consumers compete for single messages, and settle each of them.",
    "cluster": "Nodes, shards, replicas and leaders: to look at and to change.",
    "system": "For operators and monitoring.",
}

_DESCRIPTION = """\
A durable message queue. Bodies are JSON, or msgpack with `Content-Type: application/msgpack`; answers follow
`Accept`. An error is `{"error": {"code", "message", "retriable", "refresh_route", ...}}` with the fitting
status; `retriable` errors come with `Retry-After` when waiting helps. What answers GET
answers HEAD, except for streams."""

_TOKEN = "Where the node asks who its clients are: see docs/security.md. Elsewhere there are no tokens."

#: What any operation may be refused with: for who asks, and how, and for the state of the node, of a leader or a disk.
ANYWHERE: tuple[type[LsmqError], ...] = (
    InvalidRequest,
    Unauthenticated,
    Forbidden,
    AntiForgeryFailed,
    OriginNotAllowed,
    HostNotAllowed,
    WrongPort,
    RequestTimeout,
    RequestTooLarge,
    TooManyItems,
    UnsupportedMediaType,
    NotLeader,
    TooManyRequests,
    TooManyConnections,
    Unavailable,
    ShuttingDown,
    ConnectionFailed,
    NoControlLeader,
    NotEnoughReplicas,
    StoreBusy,
    ShardStopped,
    CorruptFile,
    DiskFull,
    DocumentsFull,
    TimedOut,
)


def document(routes: Iterable[ApiOperation], version: str) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "LSMQ",
            "version": version,
            "summary": "A million durable queues on a small machine.",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {"Error": schemas.ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _TOKEN}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(route: ApiOperation) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "tags": [route.tag],
        "summary": route.summary,
        "responses": {**{str(content.status): _response(content) for content in route.answers}, **_errors(route)},
    }
    if route.description:
        operation["description"] = route.description
    if route.parameters:
        operation["parameters"] = [
            {
                "name": parameter.name,
                "in": "path" if route.is_in_path(parameter) else "query",
                "required": parameter.required or route.is_in_path(parameter),
                "description": parameter.description,
                "schema": _typed(parameter.schema),
            }
            for parameter in route.parameters
        ]
    if route.request is not None:
        operation["requestBody"] = {
            "required": True,
            "description": route.request.description,
            "content": _content(route.request.media_types, route.request.schema),
        }
    return operation


def _response(content: Content) -> dict[str, Any]:
    response: dict[str, Any] = {"description": content.description}
    if content.status not in (101, 204):
        response["content"] = _content(content.media_types, content.schema)
    if content.headers:
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in content.headers.items()
        }
    return response


def _content(media_types: Iterable[str], schema: Schema | None) -> dict[str, Any]:
    return {media_type: {} if schema is None else {"schema": _typed(schema)} for media_type in media_types}


def _typed(schema: Any) -> Any:
    """With the type of words that are enumerated, without which generators of clients take anything for them."""
    if isinstance(schema, list):
        return [_typed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _typed(each) for name, each in schema.items()}
    if isinstance(words := found.get("enum"), list) and "type" not in found:
        found["type"] = ["string", "null"] if None in words else "string"
    return found


def _errors(route: ApiOperation) -> dict[str, Any]:
    """One response a status, naming the codes that come with it."""
    kinds: list[type[LsmqError]] = list(route.errors)
    if route.parameters or route.request is not None:
        kinds.append(InvalidRequest)
    by_status: dict[int, list[str]] = {}
    for kind in kinds:
        codes = by_status.setdefault(status_of(kind), [])
        if kind.code not in codes:
            codes.append(kind.code)
    answers: dict[str, Any] = {
        str(status): {
            "description": "Error: " + ", ".join(f"`{code}`" for code in sorted(codes)),
            "content": _ERROR_CONTENT,
        }
        for status, codes in sorted(by_status.items())
    }
    answers["default"] = {"description": _ANY_ERROR, "content": _ERROR_CONTENT}
    return answers


_ANY_ERROR = "Any other error. Every operation may answer " + ", ".join(f"`{kind.code}`" for kind in ANYWHERE)
_ERROR_CONTENT: Mapping[str, Any] = {
    media_type: {"schema": {"$ref": "#/components/schemas/Error"}} for media_type in (JSON_TYPE, MSGPACK_TYPE)
}
