"""What a route is: its address, handler and description in one place.

The table of routes is the only source of both the router and the OpenAPI document, and query and path
parameters are parsed by the schemas they are documented with.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partialmethod
from typing import Any, assert_never
from urllib.parse import unquote_to_bytes

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from lsmq.errors import InvalidQueueName, InvalidRequest, LsmqError, UnknownTopic
from lsmq.queue_names import check_queue_name
from lsmq.topics import FORWARD_HEADER, TOPIC_CREATED_HEADER, TOPIC_ID_HEADER
from lsmq_coordinator.auth import VERIFIED, Verified
from lsmq_node.broker import Ack, Hold, ReadFrom
from lsmq_node.broker.meant_topic import deleted
from lsmq_node.broker.stages import stage
from lsmq_node.config import Forward, NodeConfig
from lsmq_node.node import Node
from lsmq_node.rights import EVERYTHING, ResourceKind
from lsmq_node.storage import FlushMode, StoredTopic
from lsmq_node.workers import LARGE_BYTES

from .access import Access
from .arrays import queue_offsets
from .asker import Asker
from .bodies import read_body
from .codec import JSON_TYPE, MSGPACK_TYPE, answer_format, decode, encode_columns, request_format
from .schema import Schema, bound, check, integer, text

_NAMED = re.compile(r"{(\w+)}")
#: Operations that monitoring calls, often with query parameters of its own; those are passed over.
SYSTEM_TAG = "system"

_INTEGER = re.compile(r"-?[0-9]{1,19}")
#: So many numbers are packed within a millisecond.
_MANY_VALUES = 5_000
#: Numbers of queues, or bytes of them, that are sorted within a millisecond.
_MANY_QUEUES = 20_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the path where that has its name, else of the query: it may be absent without a ``default``.

    ``header``: of the request's headers, which who reads it parses.
    """

    name: str
    schema: Schema
    description: str
    required: bool = False
    header: bool = False

    def parse(self, text: str) -> Any:
        """The value of the parameter's text. Raises :class:`InvalidRequest`."""
        takes_integer = any(option.get("type") == "integer" for option in self.schema.get("anyOf", (self.schema,)))
        value: Any = int(text) if takes_integer and _INTEGER.fullmatch(text) else text
        check(value, self.schema, self.name)
        return value


@dataclass(frozen=True, slots=True)
class Content:
    """A body: what it says and in which media types. Of an answer with ``status`` 204 there is none."""

    description: str
    schema: Schema | None = None
    media_types: tuple[str, ...] = (JSON_TYPE, MSGPACK_TYPE)
    headers: Mapping[str, str] | None = None
    status: int = 200


OperationHandler = Callable[["Call"], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation of the API. A GET answers HEAD as well, unless it ``is_stream``, a connection that is held."""

    method: str
    path: str
    operation: str
    tag: str
    summary: str
    description: str
    handler: OperationHandler
    answers: tuple[Content, ...]
    parameters: tuple[Parameter, ...] = ()
    request: Content | None = None
    errors: tuple[type[LsmqError], ...] = ()
    is_stream: bool = False
    queries: tuple[Parameter, ...] = field(init=False)
    #: Of the body's fields: what stands for those that are left out.
    defaults: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        queries = tuple(each for each in self.parameters if not self.is_in_path(each) and not each.header)
        object.__setattr__(self, "queries", queries)
        fields = {} if self.request is None else (self.request.schema or {}).get("properties", {})
        defaults = {name: schema["default"] for name, schema in fields.items() if "default" in schema}
        object.__setattr__(self, "defaults", defaults)

    def is_in_path(self, parameter: Parameter) -> bool:
        return f"{{{parameter.name}}}" in self.path

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that the operation answers to."""
        return ("GET", "HEAD") if self.method == "GET" and not self.is_stream else (self.method,)

    def bound(self, config: NodeConfig) -> ApiOperation:
        """With the numbers of a node's configuration in its schemas."""

        def content(found: Content) -> Content:
            return replace(found, schema=bound(found.schema, config))

        return replace(
            self,
            answers=tuple(map(content, self.answers)),
            parameters=tuple(replace(each, schema=bound(each.schema, config)) for each in self.parameters),
            request=None if self.request is None else content(self.request),
        )


class Routes:
    """The operations of a part of the API: handlers, whose names are the operations' and whose docstrings say them."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._routes: list[ApiOperation] = []

    def __iter__(self) -> Iterator[ApiOperation]:
        return iter(self._routes)

    def add(
        self,
        method: str,
        path: str,
        *answers: Content,
        parameters: tuple[Parameter, ...] = (),
        request: Content | None = None,
        errors: tuple[type[LsmqError], ...] = (),
        is_stream: bool = False,
    ) -> Callable[[OperationHandler], OperationHandler]:
        """A decorator of the handler. ``parameters`` need not say what :data:`_PATH` says of the path."""

        def decorate(handler: OperationHandler) -> OperationHandler:
            first, *others = handler.__name__.split("_")
            operation = first + "".join(map(str.capitalize, others))
            summary, _, description = (handler.__doc__ or "").partition("\n")
            own = {parameter.name for parameter in parameters}
            in_path = tuple(_PATH[name] for name in _NAMED.findall(path) if name not in own)
            route = ApiOperation(
                method,
                path,
                operation,
                self._tag,
                summary.removesuffix("."),
                " ".join(description.split()),
                handler,
                answers,
                (*in_path, *parameters),
                request,
                errors,
                is_stream,
            )
            self._routes.append(route)
            return handler

        return decorate

    get = partialmethod(add, "GET")
    put = partialmethod(add, "PUT")
    patch = partialmethod(add, "PATCH")
    post = partialmethod(add, "POST")
    delete = partialmethod(add, "DELETE")


class Call:
    """One request on its way through a handler."""

    __slots__ = (
        "_body",
        "_topics",
        "asker",
        "broker",
        "forward",
        "hold",
        "node",
        "proof",
        "query",
        "refusals",
        "request",
        "route",
        "workers",
    )

    def __init__(self, request: web.Request, node: Node, route: ApiOperation, hold: Hold, asker: Asker) -> None:
        """Raises :class:`InvalidRequest` when a query parameter is wrong or unknown."""
        self.request = request
        self.asker = asker
        #: Of the node that passed it on; None where it came from a client.
        self.proof: Verified | None = request.get(VERIFIED)
        self.forward = node.broker.config.forward
        if self.proof is not None:
            self.forward = Forward.REFUSE
        elif (given := request.headers.get(FORWARD_HEADER)) is not None:
            self.forward = _forward(given)
        self._body: bytes | None = None
        self._topics: dict[int, str] = {}  # those that were asked for by name, and were there
        #: Of parts of what was asked, where each is answered by itself: those that were refused.
        self.refusals: list[LsmqError] = []
        self.node = node
        self.broker = node.broker
        self.workers = node.broker.workers
        self.route = route
        self.hold = hold
        self.query: dict[str, Any] = self._parse_query() if route.queries or request.query_string else {}

    def path(self, name: str) -> Any:
        """A path parameter, parsed. Raises :class:`InvalidRequest`."""
        text = self.request.match_info[name]
        for parameter in self.route.parameters:
            if parameter.name == name:
                return parameter.parse(text)
        raise LookupError(name)

    def check_needs(self, access: Access) -> None:
        """Whether the asker may do this to what path and query name. Raises ``Forbidden``."""
        for need in access.needs:
            if (name := EVERYTHING if need.every else self.name_of(need.kind)) is not None:
                self.asker.check(need.kind, name, need.action)

    def name_of(self, kind: ResourceKind) -> str | None:
        """The resource of a kind that path or query name; None where only the body does."""
        match kind:
            case ResourceKind.TOPIC:
                found: str | None = self.request.match_info.get("topic") or self.query.get("topic")
                return found
            case (
                ResourceKind.GROUP | ResourceKind.PRODUCER_GROUP
            ):  # A member of a broadcast group has offsets under both names.
                return self.request.match_info["group"].partition("/")[0]
            case ResourceKind.CLUSTER | ResourceKind.RIGHTS:
                return ""
            case _:
                assert_never(kind)

    async def topic(
        self, name: str | None = None, meant: int | None = None, created_ms: int | None = None
    ) -> StoredTopic:
        """The topic of this name, or of the path's, and no other that is meant, by headers or as said here; see
        :meth:`Broker.topic`.

        Raises ``Forbidden`` first.
        """
        self.asker.check_named(ResourceKind.TOPIC, self.request.match_info["topic"] if name is None else name)
        meant = self._integer_of(TOPIC_ID_HEADER, "a topic's id", meant)
        created_ms = self._integer_of(TOPIC_CREATED_HEADER, "the created_ms of a topic", created_ms)
        name = self.request.match_info["topic"] if name is None else name
        topic = await self.broker.topic(name, meant, created_ms)
        self._topics[topic.id] = topic.name
        return topic

    def _integer_of(self, header: str, what: str, default: int | None) -> int | None:
        given = self.request.headers.get(header)
        if given is None:
            return default
        if not _INTEGER.fullmatch(given):
            raise InvalidRequest(f"{header} is {given!r}; it must be {what}", field=header)
        return int(given)

    def integers_of(self, header: str, what: str) -> frozenset[int]:
        """The integers of a header, between which there are commas. Raises ``InvalidRequest``."""
        given = self.request.headers.get(header)
        if given is None:
            return frozenset()
        items = given.split(",")
        if not all(_INTEGER.fullmatch(item) for item in items):
            raise InvalidRequest(f"{header} is {given!r}; it must be {what}, with commas between them", field=header)
        return frozenset(map(int, items))

    def told(self, error: LsmqError) -> LsmqError:
        """What is told of it: who asked for a topic by name, and had it deleted meanwhile, knows of no id."""
        topic_id = error.details.get("topic_id") if isinstance(error, UnknownTopic) else None
        if topic_id is None or (known := self._topics.get(topic_id)) is None:
            return error
        return deleted(known, topic_id)

    def queue(self, topic: StoredTopic) -> int | str:
        """The queue of the path: its number, or its name where queues are named.

        Raises ``InvalidRequest``, ``InvalidQueueName``, ``UnknownQueue`` for a number that is none.
        """
        if topic.named:
            return self.queue_name()
        text = self.request.match_info["queue"]
        if not _INTEGER.fullmatch(text):
            raise InvalidRequest(
                f"queue is {text[:60]!r}; the queues of topic {topic.name!r} are numbers from 0 to {topic.queues - 1}",
                field="queue",
            )
        self.broker.admission.queue(topic, int(text))
        return int(text)

    def queue_name(self) -> str:
        """The path's queue, by its name. Raises ``InvalidQueueName``."""
        try:
            unquote_to_bytes(self.request.rel_url.raw_path).decode()
        except UnicodeDecodeError as error:  # The router takes such bytes for the text that stands for them.
            raise InvalidQueueName(
                f"the path {self.request.rel_url.raw_path[:300]!r} has bytes that are not UTF-8: {error.reason}; "
                "percent-encode the UTF-8 of the queue's name",
            ) from error
        return check_queue_name(self.request.match_info["queue"])

    async def queue_number(
        self, topic: StoredTopic, source: ReadFrom = ReadFrom.LEADER, wait_ms: int = 0
    ) -> tuple[int, int | str]:
        """The number of the path's queue, and what it is called. Waits for one with a name to be there.

        Raises as :meth:`queue`, ``UnknownQueue``, ``NotLeader``.
        """
        queue = self.queue(topic)
        if isinstance(queue, int):
            return queue, queue
        return await self.broker.names.number(topic, queue, source, wait_ms), queue

    def _parse_query(self) -> dict[str, Any]:
        """All query parameters, parsed, with defaults."""
        known = {parameter.name: parameter for parameter in self.route.queries}
        values = {name: parameter.schema.get("default") for name, parameter in known.items()}
        if self.request.query_string:
            given = self.request.query
            for name in given:
                if name not in known and self.route.tag == SYSTEM_TAG:
                    continue
                if name not in known:
                    expected = ", ".join(known) or "there are none here"
                    raise InvalidRequest(f"query parameter {name!r} is not known; expected: {expected}", field=name)
                if len(given.getall(name)) > 1:
                    raise InvalidRequest(f"query parameter {name!r} is given more than once", field=name)
                values[name] = known[name].parse(given[name])
        for name, parameter in known.items():
            if parameter.required and values[name] is None:
                raise InvalidRequest(f"query parameter {name!r} is missing", field=name)
        return values

    def ack(self, given: str | None) -> Ack | None:
        """What the request says of its acknowledgement."""
        return None if given is None else Ack(given)

    def flush(self, given: str | None) -> FlushMode | None:
        """What the request says of how durable a message is before it counts."""
        return None if given is None else FlushMode(given)

    @property
    def schema(self) -> Schema:
        """Of the body, as the route is documented with it."""
        assert self.route.request is not None and self.route.request.schema is not None
        return self.route.request.schema

    async def body(self) -> bytes:
        """The request's body, within the limits of size, memory and time. The same again."""
        if self._body is None:
            with stage("body"):
                self._body = await read_body(self.request, self.hold, self.broker.config, self.workers)
            if self.proof is not None:
                self.proof.check_body(self._body)
        return self._body

    async def document(self) -> Any:
        """The body decoded from JSON or msgpack. Raises :class:`InvalidRequest`."""
        body, form = await self.body(), request_format(self.request)
        return await self.workers.run(lambda: decode(body, form), large=len(body) >= LARGE_BYTES)

    async def checked_document(self, *, filled: bool = True) -> dict[str, Any]:
        """:meth:`document`, checked against the schema that the route is documented with.

        What is left out is ``filled`` in with the defaults that stand there.
        """
        body, form = await self.body(), request_format(self.request)

        def read() -> dict[str, Any]:
            value: dict[str, Any] = decode(body, form)
            check(value, self.schema, "")
            return {**self.route.defaults, **value} if filled else value

        return await self.workers.run(read, large=len(body) >= LARGE_BYTES)

    async def queue_offsets(self, document: dict[str, Any]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """``queues`` and ``offsets`` of the body, see :func:`.arrays.queue_offsets`."""
        large = len(document["queues"]) >= _MANY_QUEUES
        return await self.workers.run(lambda: queue_offsets(document, self.broker.admission), large=large)

    async def answer_columns(self, columns: Mapping[str, NDArray[np.integer[Any]]]) -> web.Response:
        """An answer of lists of numbers: made in a thread, where they are many."""
        form = answer_format(self.request)
        count = sum(map(len, columns.values()))
        body = await self.workers.run(lambda: encode_columns(columns, form), large=count >= _MANY_VALUES)
        return web.Response(body=body, headers={"Content-Type": form.value})


def _forward(given: str) -> Forward:
    try:
        return Forward(given)
    except ValueError:
        choices = ", ".join(choice.value for choice in Forward)
        raise InvalidRequest(
            f"{FORWARD_HEADER} is {given!r}; it must be one of {choices}", field=FORWARD_HEADER
        ) from None


_PATH = {
    "topic": Parameter("topic", text(), "Name of the topic."),
    "queue": Parameter(
        "queue",
        {"anyOf": [integer(0, 2**32 - 1), text()]},
        "Number of the queue, from 0; its name in a topic with named queues.",
    ),
    "group": Parameter(
        "group",
        text(
            "A group's name has 1 to 249 letters, digits, dots, underscores and hyphens, and is neither '.' nor '..'",
            pattern=r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}",
        ),
        "Name of the consumer group.",
    ),
    "id": Parameter("id", text(), "Id of the message, 32 hex digits."),
}

TOPIC = Parameter("topic", text(), "Name of the topic.", required=True)
QUEUES = Parameter("queues", text(), "Such as `0-99,200`. Without it, all queues.")
FROM = Parameter(
    "from",
    {"enum": [source.value for source in ReadFrom], "default": ReadFrom.LEADER.value},
    "Who is to answer. `leader`: the leader, all of it. `follower`: a follower in sync; a leader that has one says "
    "where (307). `any`: whoever is asked. `auto`: whoever is asked, and the leader sends a reader that is far "
    "behind to a follower. A follower answers what is replicated, and nothing beyond.",
)
