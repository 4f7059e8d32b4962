"""Sessions of browsers: signing in and out, and what of a request shows that the node's own page sent it.

A browser sends a cookie along with whatever any page has it send. So a request by a cookie is taken only where nothing
says that another page sent it (``Origin``, ``Sec-Fetch-Site``), pages of ``browser_origins`` included; and one that
changes something, or is held as a stream, must say its ``Origin`` and the session's anti-forgery token.

The cookie is ``HttpOnly`` and ``SameSite=Strict``, of this host and all of its ports. Where the page came by TLS, it is
``Secure``, and its name begins with ``__Host-``, which no page of another host or without TLS can set.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

from aiohttp import web

from lsmq import runtime
from lsmq.errors import (
    AntiForgeryFailed,
    AuthenticationOff,
    InvalidRequest,
    OriginNotAllowed,
    TooManyRequests,
    TooManyRights,
    Unauthenticated,
)
from lsmq_node.config import NodeConfig
from lsmq_node.rights import BrowserSession, Proven, SessionCookie

from . import rights_schemas as schemas
from .codec import answer
from .origins import is_own_page
from .routing import ApiOperation, Call, Content, Routes

ANTI_FORGERY_HEADER: Final = "Lsmq-Anti-Forgery"
_NAME: Final = "lsmq-session"
SESSION_COOKIE: Final = f"__Host-{_NAME}"
_SET: Final = {"Set-Cookie": "The session's cookie."}
_ERRORS: Final = (AuthenticationOff, Unauthenticated, AntiForgeryFailed, OriginNotAllowed)

ROUTES = Routes("rights")


def shown_cookie(request: web.Request, config: NodeConfig) -> str | None:
    """What the browser holds of a session; the one that came by TLS counts before the other.

    Raises ``Unauthenticated`` for two of one name, or what is none of a session: somebody else has set it.
    """
    lines = request.headers.getall("Cookie", ())
    pairs = [pair.strip().partition("=") for line in lines for pair in line.split(";")]
    for known in (SESSION_COOKIE,) if config.tls_cert is not None else (SESSION_COOKIE, _NAME):
        found = [value for name, _, value in pairs if name == known]
        if len(found) > 1:
            raise Unauthenticated(f"the request has {len(found)} cookies {known}; delete them, and sign in again")
        if found and SessionCookie.parsed(found[0]) is None:
            raise Unauthenticated(f"the cookie {known} is none of this node's; sign in again")
        if found:
            return found[0]
    return None


def check_own_page(request: web.Request, config: NodeConfig) -> None:
    """Refuses what says that a page of another origin sent it. Raises ``OriginNotAllowed``."""
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    if site not in ("same-origin", "none") or (origin is not None and not is_own_page(request, origin, config)):
        raise OriginNotAllowed(
            f"a page of {origin or 'another origin'} may not use a session of this node's own console; pages of "
            "browser_origins send a token",
            origin=origin,
        )


def check_by_cookie(call: Call) -> None:
    """Whether the node's own page sent what a session's cookie came with.

    Raises ``OriginNotAllowed``, ``AntiForgeryFailed``, ``Unauthenticated``.
    """
    request, route = call.request, call.route
    check_own_page(request, call.broker.config)
    if _only_shows(route):
        return
    session, cookie = _session(call)
    if "Origin" not in request.headers:
        raise AntiForgeryFailed("a request that changes something by a session's cookie must say its Origin")
    given = request.headers.get(ANTI_FORGERY_HEADER, "").encode(errors="surrogateescape")
    if not hmac.compare_digest(given, session.anti_forgery(cookie.secret).encode()):
        raise AntiForgeryFailed(
            f"the header {ANTI_FORGERY_HEADER} must be the session's anti-forgery token, which GET /v1/session tells "
            "the node's own page",
            field=ANTI_FORGERY_HEADER,
        )


def _only_shows(route: ApiOperation) -> bool:
    return route.method == "GET" and not route.is_stream


def _session(call: Call) -> tuple[BrowserSession, SessionCookie]:
    """Raises ``AuthenticationOff``, ``InvalidRequest`` where the request came by none, ``Unauthenticated``."""
    proven, cookie = _proven(call), call.asker.cookie
    if cookie is None or proven.session is None:
        raise InvalidRequest("the request came with no session's cookie: POST /v1/session begins one")
    return call.node.rights.session(proven), cookie


def _proven(call: Call) -> Proven:
    if call.asker.proven is None:
        raise AuthenticationOff("this node does not ask who its clients are: nobody needs to sign in")
    return call.asker.proven


def _answer(
    call: Call, session: BrowserSession, cookie: SessionCookie, *, new: bool, status: int = 200
) -> web.Response:
    found: dict[str, Any] = {
        "name": session.principal,
        "expires_ms": session.expires_ms,
        "idle_until_ms": cookie.until_ms,
        "anti_forgery": session.anti_forgery(cookie.secret),
    }
    response = answer(call.request, found, status, {"Cache-Control": "no-store"})
    if new:
        _set_cookie(call, response, str(cookie), -(-max(0, cookie.until_ms - runtime.wall_ms()) // 1_000))
    return response


def _set_cookie(call: Call, response: web.Response, value: str, max_age_s: int) -> None:
    """Browsers keep no cookie whose age is 0."""
    by_tls = call.broker.config.tls_cert is not None or call.request.headers.get("Origin", "").startswith("https://")
    name = SESSION_COOKIE if by_tls else _NAME
    response.set_cookie(name, value, path="/", max_age=max_age_s, secure=by_tls, httponly=True, samesite="Strict")


@ROUTES.post(
    "/v1/session",
    Content("Signed in, on all nodes.", schemas.SESSION, headers=_SET, status=201),
    errors=(*_ERRORS, InvalidRequest, TooManyRequests, TooManyRights),
)
async def sign_in(call: Call) -> web.StreamResponse:
    """Begin a browser's session for whoever shows a token in `Authorization`.

    Its cookie stands for the token in the node's own pages, until the session ends, or the token does.
    """
    proven = _proven(call)
    check_own_page(call.request, call.broker.config)
    session, cookie = await call.node.rights.sessions.sign_in(proven)
    return _answer(call, session, cookie, new=True, status=201)


@ROUTES.get("/v1/session", Content("As it is.", schemas.SESSION), errors=(*_ERRORS, InvalidRequest))
async def get_session(call: Call) -> web.StreamResponse:
    """The session whose cookie came with the request, for the page to go on with after it was loaded again."""
    return _answer(call, *_session(call), new=False)


@ROUTES.post(
    "/v1/session/renew", Content("It goes on.", schemas.SESSION, headers=_SET), errors=(*_ERRORS, InvalidRequest)
)
async def renew_session(call: Call) -> web.StreamResponse:
    """Somebody uses the page: have the session go on for `browser_session_idle_ms` from now, up to its end."""
    session, cookie = _session(call)
    return _answer(call, session, call.node.rights.sessions.renewed(session, cookie.secret), new=True)


@ROUTES.delete(
    "/v1/session", Content("Ended, on all nodes.", status=204, headers=_SET), errors=(*_ERRORS, InvalidRequest)
)
async def sign_out(call: Call) -> web.StreamResponse:
    """End the session whose cookie came with the request."""
    session, _ = _session(call)
    await call.node.rights.sessions.sign_out(session)
    response = web.Response(status=204)
    _set_cookie(call, response, "", 0)
    return response
