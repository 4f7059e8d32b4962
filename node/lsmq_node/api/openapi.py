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
    TopicReplaced,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    WrongPort,
)
from lsmq.topics import FORWARD_HEADER, TOPIC_CREATED_HEADER, TOPIC_ID_HEADER
from lsmq_coordinator.errors import NoControlLeader
from lsmq_coordinator.http_status import status_of
from lsmq_node.config import Forward, NodeConfig

from .bodies import CODINGS
from .browser_sessions import ANTI_FORGERY_HEADER, SESSION_COOKIE
from .codec import JSON_TYPE, MSGPACK_TYPE
from .components import Components
from .routing import ApiOperation, Content, Parameter
from .schema import Schema, integer

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

_SESSION = "Of a browser that signed in on the console; without TLS its name has no `__Host-`."
_ANTI_FORGERY = "As GET /v1/session tells it: with a session, for all that changes something, beside `Origin`."

#: Headers of requests that several operations heed.
FORWARD = Parameter(
    FORWARD_HEADER,
    {"enum": [each.value for each in Forward]},
    "What becomes of it where another node leads the shard: it is passed on, answered by 307, or by 421; else as the "
    "setting `forward` says.",
    header=True,
)
MEANT = (
    Parameter(TOPIC_ID_HEADER, integer(0), "Id of the topic that is meant: no later one of its name.", header=True),
    Parameter(
        TOPIC_CREATED_HEADER, integer(0), "Its `created_ms`: none that another cluster has under its id.", header=True
    ),
)
CODING = Parameter("Content-Encoding", {"enum": ["identity", *CODINGS]}, "How the body is compressed.", header=True)
_HEADERS = (FORWARD, *MEANT, CODING)

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


def document(routes: Iterable[ApiOperation], version: str, config: NodeConfig) -> dict[str, Any]:
    """The whole document."""
    components = Components(config)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
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
            "schemas": components.schemas(),
            "parameters": {each.name: _parameter(each, "header", components) for each in _HEADERS},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": _TOKEN},
                "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE, "description": _SESSION},
                "antiForgery": {
                    "type": "apiKey",
                    "in": "header",
                    "name": ANTI_FORGERY_HEADER,
                    "description": _ANTI_FORGERY,
                },
            },
        },
        "security": [{"token": []}, {"session": [], "antiForgery": []}, {}],
    }


def _operation(route: ApiOperation, components: Components) -> dict[str, Any]:
    answers = {str(content.status): _response(content, components) for content in route.answers}
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "tags": [route.tag],
        "summary": route.summary,
        "responses": {**answers, **_errors(route)},
    }
    if route.description:
        operation["description"] = route.description
    operation["parameters"] = [
        *(_parameter(each, _place(route, each), components) for each in route.parameters),
        *({"$ref": f"#/components/parameters/{each.name}"} for each in _headers(route)),
    ]
    if route.request is not None:
        operation["requestBody"] = {
            "required": True,
            "description": route.request.description,
            "content": _content(route.request.media_types, route.request.schema, components),
        }
    return operation


def _parameter(parameter: Parameter, place: str, components: Components) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.required or place == "path",
        "description": parameter.description,
        "schema": components.referring(parameter.schema),
    }


def _place(route: ApiOperation, parameter: Parameter) -> str:
    return "path" if route.is_in_path(parameter) else "header" if parameter.header else "query"


def _headers(route: ApiOperation) -> list[Parameter]:
    """Those of :data:`_HEADERS` that it heeds. It means a topic, and no other of its name, where it can say so."""
    found = [FORWARD]
    if TopicReplaced in route.errors:
        found += MEANT
    if route.request is not None:
        found.append(CODING)
    return found


def _response(content: Content, components: Components) -> dict[str, Any]:
    response: dict[str, Any] = {"description": content.description}
    if content.status not in (101, 204):
        response["content"] = _content(content.media_types, content.schema, components)
    if content.headers:
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in content.headers.items()
        }
    return response


def _content(media_types: Iterable[str], schema: Schema | None, components: Components) -> dict[str, Any]:
    said = {} if schema is None else {"schema": components.referring(schema)}
    return dict.fromkeys(media_types, said)


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
