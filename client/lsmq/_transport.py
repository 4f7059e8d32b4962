"""HTTP to one node: a request goes out, an answer or an error of :mod:`lsmq.errors` comes back.

The transport neither retries nor chooses a node. A connection that was never made raises
``ConnectionFailed`` with ``sent=False``: the node cannot have acted. Every other failure without an answer
carries ``sent=True`` and leaves open whether it did.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import ssl
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgpack

from lsmq._credentials import Credentials
from lsmq._rests import Rests
from lsmq._retries import LEAST_ATTEMPT_S
from lsmq._sockets import CleanConnector, ClientSockets
from lsmq._tls import ClientTls, refusal
from lsmq.errors import (
    ClientClosed,
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    LsmqError,
    RequestTimeout,
    RequestTooLarge,
    TimedOut,
    Unauthenticated,
    Unavailable,
    UnexpectedAnswer,
    from_dict,
)
from lsmq.topics import FETCH_SHARDS_HEADER, FORWARD_HEADER, Topic

T = TypeVar("T")

JSON = "application/json"
MSGPACK = "application/msgpack"
BATCH = "application/vnd.lsmq.batch"
BATCHES = "application/vnd.lsmq.batches"
NAMED_BATCH = "application/vnd.lsmq.named-batch"

#: What nodes answer with: values, batches, pieces of files.
_OF_NODES = frozenset((JSON, MSGPACK, BATCH, BATCHES, "application/octet-stream"))

MAX_ANSWER_BYTES = 256 << 20
_READ_BUFFER_BYTES = 1 << 20
_PIECEWISE_BYTES = 512 << 10
_REFUSED: dict[int, type[LsmqError]] = {401: Unauthenticated, 403: Forbidden}
#: What stands between says it with less words than a node.
_OF_OTHERS: dict[int, type[LsmqError]] = {**_REFUSED, 408: RequestTimeout, 413: RequestTooLarge}


@dataclass(frozen=True, slots=True)
class Response:
    """A node's answer to a request that succeeded."""

    status: int
    content_type: str
    headers: Mapping[str, str]
    body: bytes
    url: str = ""

    def value(self) -> Any:
        """The body decoded by its content type. Raises ``UnexpectedAnswer``."""
        return decode_value(self.content_type, self.body)

    def parsed(self, parse: Callable[[Any], T]) -> T:
        """What ``parse`` makes of the value. Raises ``UnexpectedAnswer`` where that has another form than it reads."""
        value = self.value()
        try:
            return parse(value)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UnexpectedAnswer(
                f"{self.url} answered what this client does not understand ({type(error).__name__}: {error}):"
                f" {value!r:.80}; is it an LSMQ node, and of which release?"
            ) from error


def decode_value(content_type: str, body: bytes) -> Any:
    """A JSON or msgpack body as Python values. Raises ``UnexpectedAnswer`` when it is neither."""
    try:
        if content_type == MSGPACK:
            return msgpack.unpackb(body, strict_map_key=False)
        return json.loads(body)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise UnexpectedAnswer(f"the answer is not {content_type}: {body[:80]!r}; is this URL an LSMQ node?") from error


def error_from_answer(url: str, status: int, content_type: str, body: bytes) -> LsmqError:
    """The error that an answer of status 300 and above stands for, whoever wrote it."""
    if content_type in (JSON, MSGPACK):
        try:
            fields = decode_value(content_type, body)
            return from_dict(fields["error"])
        except (LsmqError, KeyError, TypeError, ValueError):
            pass
    message = f"{url} answered {status}: {body[:200].decode(errors='replace').strip() or 'no text'}"
    if status >= 500 or status == 429:
        return Unavailable(message, status=status)
    if status < 400:
        message += "; a client is not sent elsewhere: give the URL that this one leads to"
    if status == 413:
        message += "; have what stands before the node take more in a request, or send less at once (batch_bytes)"
    return _OF_OTHERS.get(status, LsmqError)(message, status=status)


class Transport:
    """The connections of one client. Belongs to the event loop in which it is first used."""

    def __init__(
        self, *, connect_timeout_ms: float, credentials: Credentials | None = None, tls: ClientTls | None = None
    ) -> None:
        self._credentials = credentials or Credentials()
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._tls = tls or ClientTls(None, None, None)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the session
        self._sockets = ClientSockets()
        self._closed = False
        self._rests = Rests()
        self.has_been_answered = False  # by any node, with what it was asked for

    @property
    def is_open(self) -> bool:
        """Whether there was a request, and it was not closed."""
        return self._session is not None and not self._closed

    def check_loop(self) -> None:
        """Raises ``InvalidRequest`` in another event loop than that of the requests before."""
        if self._session is not None and self._loop is not asyncio.get_running_loop():
            raise InvalidRequest(
                "this client belongs to the event loop in which it was first used, and this is another one: make a"
                " client in each, and for each asyncio.run()"
            )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ClientClosed("this client is closed; make a new one")
        self.check_loop()
        if self._session is None:
            self._loop = asyncio.get_running_loop()
            self._session = aiohttp.ClientSession(
                connector=CleanConnector(limit=0, socket_factory=self._sockets.make),
                auto_decompress=True,
                read_bufsize=_READ_BUFFER_BYTES,
                skip_auto_headers=("Accept-Encoding",),
            )
            # aiohttp would repeat a request on its own and not say so; here, whoever asks counts attempts.
            self._session._retry_connection = False
        return self._session

    def _context(self, url: str) -> ssl.SSLContext | bool:
        """What a connection to this URL is checked with, where it is one of TLS."""
        return self._tls.context() if url.startswith("https:") else True

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        params: Mapping[str, str] | None = None,
        value: Any = None,
        body: bytes | None = None,
        content_type: str = MSGPACK,
        accept: str = MSGPACK,
        topic: Topic | None = None,
        stall_s: float | None = None,
        also: Container[int] = (),
        trace: Mapping[str, str] | None = None,
        must_lead: Sequence[int] = (),
        again: bool = False,
    ) -> Response:
        """Send one request. ``value`` is packed as msgpack; ``body`` goes out as it is.

        ``topic`` is the one in the path or in ``value``. ``stall_s`` bounds the time without any bytes.
        Answers with a status in ``also`` count as such, and not as errors. ``trace`` are headers that say of which
        trace it is. ``must_lead``: see ``FETCH_SHARDS_HEADER``. ``again``: with a newer token than the first time.

        Raises the node's error, ``ConnectionFailed`` or ``TimedOut``.
        """
        session = self._open_session()
        timeout_s = max(await self._rests.wait(_node(url), timeout_s), LEAST_ATTEMPT_S)
        # Who knows the leaders wants to hear that routes have changed, and not to have requests passed on for ever.
        shown = self._credentials.headers()
        headers = {"Accept": accept, FORWARD_HEADER: "refuse", **shown}
        if trace is not None:
            headers.update(trace)
        if topic is not None:
            headers.update(topic.identity)
        if must_lead:
            headers[FETCH_SHARDS_HEADER] = ",".join(map(str, must_lead))
        if value is not None:
            body = _packed(value)
        if body is not None:
            headers["Content-Type"] = content_type
        connect_s = min(self._connect_timeout_s, stall_s or self._connect_timeout_s)
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_s, sock_read=stall_s)
        try:
            async with session.request(
                method,
                url,
                params=params,
                data=_payload(body),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=self._context(url),
            ) as response:
                answered = await _body_of(response, url)
                if response.status == 401 and not again and self._credentials.renewed(shown):
                    return await self.request(
                        method,
                        url,
                        timeout_s=timeout_s,
                        params=params,
                        body=body,
                        content_type=content_type,
                        accept=accept,
                        topic=topic,
                        stall_s=stall_s,
                        also=also,
                        trace=trace,
                        must_lead=must_lead,
                        again=True,
                    )
                if response.status >= 300 and response.status not in also:
                    error = error_from_answer(url, response.status, response.content_type, answered)
                    self._rests.heed(_node(url), error)
                    raise error
                if not _is_a_nodes(response, answered):
                    raise UnexpectedAnswer(
                        f"{url} answered {response.status} with {response.content_type}, which no node does:"
                        f" {answered[:80]!r}; is this URL an LSMQ node?",
                        url=url,
                    )
                self.has_been_answered = True
                return Response(response.status, response.content_type, response.headers, answered, url)
        except aiohttp.InvalidURL as error:
            raise _no_url(url) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _no_connection(url, error, refusal(error)) from error
        except TimeoutError as error:
            within_s = min(timeout_s, stall_s or timeout_s)
            raise TimedOut(f"no answer from {url} within {within_s:.1f} s", url=url, sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            if (refused := refusal(error)) is not None:
                raise _no_connection(url, error, refused) from error
            perhaps = "does it speak TLS, at https://?" if self._may_be_tls(url, error) else "ask again: it may be done"
            raise ConnectionFailed(
                f"the connection to {url} broke before the answer: {_reason(error)}; {perhaps}", url=url, sent=True
            ) from error

    def _may_be_tls(self, url: str, error: Exception) -> bool:
        """What speaks TLS alone ends a connection that does not."""
        ended = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError)
        return url.startswith("http:") and not self.has_been_answered and ended

    async def websocket(
        self, url: str, *, params: Mapping[str, str], protocol: str, timeout_s: float, topic: Topic
    ) -> tuple[aiohttp.ClientWebSocketResponse, Callable[[], bool]]:
        """A WebSocket, whose pings are the caller's to answer, and what says whether there is a newer token than it was
        opened with.

        Raises ``ConnectionFailed`` or ``TimedOut``; what the node has against it, it says in a frame.
        """
        session, shown = self._open_session(), self._credentials.headers()
        try:
            async with asyncio.timeout(timeout_s):
                socket = await session.ws_connect(
                    url,
                    params=params,
                    protocols=(protocol,),
                    headers={**topic.identity, **shown},
                    autoping=False,
                    max_msg_size=MAX_ANSWER_BYTES,
                    ssl=self._context(url),
                )
                return socket, partial(self._credentials.renewed, shown)
        except aiohttp.InvalidURL as error:
            raise _no_url(url) from error
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _REFUSED and not self._credentials.renewed(shown):
                raise _REFUSED[error.status](f"{url} answered {error.status}, and opened no WebSocket") from error
            raise Unavailable(f"{url} answered {error.status}, and opened no WebSocket", status=error.status) from error
        except TimeoutError as error:
            raise TimedOut(f"no answer from {url} within {timeout_s:.1f} s", url=url, sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _no_connection(url, error, refusal(error)) from error

    async def close(self) -> None:
        """Close all connections. Requests under way fail."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await self._sockets.closed()


def _is_a_nodes(response: aiohttp.ClientResponse, body: bytes) -> bool:
    """Whether a node answers so. What stands between may say 200, with a page or with nothing, of what no node did."""
    if response.status == 204:
        return True
    return response.content_type in _OF_NODES and (bool(body) or response.content_type == BATCHES)


async def _body_of(response: aiohttp.ClientResponse, url: str) -> bytes:
    """All of an answer's body. Raises ``RequestTooLarge`` for one that is longer than any may be, as it says or as it
    comes."""
    size, pieces = response.content_length or 0, list[bytes]()
    if size <= MAX_ANSWER_BYTES:
        size = 0
        while piece := await response.content.readany():
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                break
            pieces.append(piece)
        else:
            return b"".join(pieces)
    response.close()
    raise RequestTooLarge(
        f"{url} answers with {size} bytes or more, over the client's limit of {MAX_ANSWER_BYTES}; ask for less with"
        " max_bytes",
        limit_bytes=MAX_ANSWER_BYTES,
    )


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    """Large bodies go out in pieces, so that the event loop has turns between them."""
    return body if body is None or len(body) < _PIECEWISE_BYTES else io.BytesIO(body)


def _node(url: str) -> str:
    """The node of a request's URL. Raises ``LsmqError`` for what is none."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _no_url(url) from error
    return f"{parts.scheme}://{parts.netloc}"


def _no_url(url: str) -> LsmqError:
    return LsmqError(f"{url!r} is not a URL of a node; it looks like http://host:7600")


def _no_connection(url: str, error: BaseException, refused: str | None) -> ConnectionFailed:
    """``refused``: what TLS has against it; then somebody is there."""
    said = {} if refused is None else {"tls": refused}
    why = f"{_reason(error)}; see that a node runs there, and that the URL is its" if refused is None else refused
    return ConnectionFailed(f"no connection to {_node(url)}: {why}", url=url, sent=False, **said)


def _reason(error: BaseException) -> str:
    """In the system's words where it said something, else in those of the library."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno is not None:
        found = error.os_error
        return str(found.strerror) if isinstance(found, socket.gaierror) else os.strerror(error.os_error.errno)
    return str(error) or type(error).__name__


def _packed(value: Any) -> bytes:
    """As msgpack. Raises ``InvalidRequest`` for what that has no form for, naming the field."""
    try:
        return msgpack.packb(value)  # type: ignore[no-any-return]
    except (OverflowError, ValueError, TypeError) as error:
        wrong = "a value"
        for name, field in value.items() if isinstance(value, Mapping) else ():
            try:
                msgpack.packb(field)
            except (OverflowError, ValueError, TypeError):
                wrong = str(name)
                break
        raise InvalidRequest(
            f"{wrong} cannot be sent: {error}; whole numbers are from -2**63 to 2**64 - 1, and text has no half of a "
            "surrogate pair",
            field=wrong,
        ) from error
