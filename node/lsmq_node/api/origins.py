"""Web pages: which may use this node from the browser of somebody who reaches it.

A browser lets any page send requests to any address. It says in ``Origin`` which page asks, except where it takes the
address for the page's own; and it takes whatever a page's host name leads to for that, a private address included ("DNS
rebinding"). So, for every path and method:

- where there is an ``Origin``, it is one of ``browser_origins``, the node's own, or that of the host the request was
  sent to;
- ``Host`` is a name that is the node's: an IP address, a name that nobody can own on the Internet, one that the
  configuration knows, or one of ``allowed_hosts``;
- a body that comes from a page is of a type that pages of other origins cannot send without asking first.

Pages of ``browser_origins`` may read the answers as well, and are answered what their browsers ask before they send
(CORS). They have no part in cookies, see :mod:`.browser_sessions`: a page that has a token sends it itself.

Clients that are no browsers send no ``Origin``, and reach the node by a name that is its own.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lsmq.errors import HostNotAllowed, LsmqError, OriginNotAllowed, UnsupportedMediaType
from lsmq_coordinator.http_status import status_of
from lsmq_node.config import NodeConfig
from lsmq_node.metrics import HttpMetrics

from .codec import media_type

#: Names that cannot be had on the Internet (RFC 6761, 6762, 8375, 9476, ICANN for `.internal`).
_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa", ".test", ".cluster.local", ".svc")
#: What a page may send to another origin without the browser asking it first.
_SIMPLE_TYPES = frozenset({"", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})
_REMEMBERED = 1_000
_ASKED = "Access-Control-Request-Method"
#: What a page of an allowed origin may send, and read of an answer. Browsers remember it for so many seconds.
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Lsmq-Forward, Lsmq-Topic-Id, Lsmq-Topic-Created, "
    "Lsmq-Fetch-Shards",
    "Access-Control-Max-Age": "600",
}
_READABLE = "Lsmq-Duplicate, Lsmq-Fetch-Session, Retry-After, WWW-Authenticate"


def own_pages(config: NodeConfig, metrics: HttpMetrics) -> Middleware:
    """Refuses what pages of other origins send, and counts it as their operation's answer.

    Raises ``OriginNotAllowed``, ``HostNotAllowed``, ``UnsupportedMediaType``.
    """
    origins, hosts = Origins(config), Hosts(config)

    def check(request: web.Request) -> None:
        host = request.headers.get("Host")
        if host is not None:
            hosts.check(host)
        origin = request.headers.get("Origin")
        if origin is not None:
            origins.check(origin, host)
            _check_type(request)
        elif "Sec-Fetch-Site" in request.headers:
            _check_type(request)

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check(request)
        except LsmqError as error:
            metrics.series(request.match_info.route.name or "unknown").observe(status_of(error), 0.0)
            raise
        if request.method == "OPTIONS" and "Origin" in request.headers and _ASKED in request.headers:
            return web.Response(status=204, headers=_PREFLIGHT)
        return await handler(request)

    return checked


def let_pages_read(app: web.Application, config: NodeConfig) -> None:
    """Say in every answer to a page of one of ``browser_origins`` that it may read it; errors and streams included."""
    if not config.browser_origins:
        return
    origins = Origins(config)

    async def allow(request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get("Origin")
        if origin is None:
            return
        with contextlib.suppress(OriginNotAllowed):
            origins.check(origin, None)
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _READABLE
            response.headers["Vary"] = "Origin"

    app.on_response_prepare.append(allow)


def _check_type(request: web.Request) -> None:
    if request.can_read_body and (found := media_type(request)) in _SIMPLE_TYPES:
        raise UnsupportedMediaType(
            f"a page sent a body of type {found or 'none'!r}; from browsers bodies are application/json or "
            "application/msgpack",
            field="Content-Type",
        )


def is_own_page(request: web.Request, origin: str, config: NodeConfig) -> bool:
    """Whether a page of this origin is one that this node serves, or the host that the request was sent to, which
    :class:`Hosts` has passed."""
    own, given = urlsplit(config.public_url), origin.lower()
    scheme, _, host = given.partition("://")
    if not host or (config.tls_cert is not None and scheme != "https"):
        return False  # Whoever stands between says what a page without TLS does.
    return given == f"{own.scheme}://{own.netloc}".lower() or host == request.headers.get("Host", "").lower()


class Origins:
    """Origins of pages that may use a node."""

    def __init__(self, config: NodeConfig) -> None:
        own = urlsplit(config.public_url)
        self._any = "*" in _listed(config.browser_origins)
        self._known = {*_listed(config.browser_origins), f"{own.scheme}://{own.netloc}".lower()}

    def check(self, origin: str, host: str | None) -> None:
        """Raises ``OriginNotAllowed``. ``host`` is where the request was sent, which :class:`Hosts` has passed."""
        given = origin.lower()
        if self._any or given in self._known or (host is not None and given.partition("://")[2] == host.lower()):
            return
        raise OriginNotAllowed(
            f"pages of {origin} may not use this node from a browser; name the origin in the setting browser_origins",
            origin=origin,
        )


class Hosts:
    """Names by which a node is reached."""

    def __init__(self, config: NodeConfig) -> None:
        listed = _listed(config.allowed_hosts)
        urls = [config.public_url, *(origin for origin in _listed(config.browser_origins) if "://" in origin)]
        if config.cluster is not None:
            urls += [voter.url for voter in config.cluster.voters.values()]
        self._any = "*" in listed
        self._known = {
            *(name for name in listed if not name.startswith(".")),
            *(host for host in (urlsplit(url).hostname for url in urls) if host is not None),
            config.host.lower(),
            socket.gethostname().lower(),
        }
        self._suffixes = (*_PRIVATE_SUFFIXES, *(name for name in listed if name.startswith(".")))
        self._passed: set[str] = set()  # what was found right, as it was sent

    def check(self, host: str) -> None:
        """Raises ``HostNotAllowed``."""
        if host in self._passed:
            return
        name = _name(host)
        if not (self._any or self._is_own(name)):
            raise HostNotAllowed(
                f"{name} is not known here for a name of this node; name it in the setting allowed_hosts, or in "
                "advertised_url",
                host=name,
            )
        if len(self._passed) < _REMEMBERED:
            self._passed.add(host)

    def _is_own(self, name: str) -> bool:
        return "." not in name or name in self._known or name.endswith(self._suffixes) or _is_address(name)


def _name(host: str) -> str:
    """``host:port`` without the port, as names are compared."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _listed(setting: str) -> Iterable[str]:
    return [name for item in setting.split(",") if (name := item.strip().rstrip("/").lower())]
