"""Requests that come by a proxy that this node trusts: see :mod:`lsmq_node.trusted_proxies`."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lsmq_node.trusted_proxies import TrustedProxies

_HEADER = "X-Forwarded-For"


def behind_proxies(proxies: TrustedProxies) -> Middleware:
    """Requests that come by one of them are from where it says, to all behind this."""

    @web.middleware
    async def told(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = request.remote
        if peer is not None and proxies.has(peer) and (said := request.headers.getall(_HEADER, ())):
            request = request.clone(remote=proxies.client(peer, said))
        return await handler(request)

    return told
