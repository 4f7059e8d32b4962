"""Connections between nodes: one outgoing to each peer, shared by all shards.

A node sends over the connection that it dialled, and receives over those that others dialled. Connections are dialled
when there is something to send. Nothing is kept for later: what cannot be sent is dropped, as the protocol allows, and
whoever is concerned hears ``on_broken``.

A connection begins as a request to the internal HTTP server and is then upgraded::

    GET /internal/replication?node=ID&to=ID     Upgrade: lsmq-replication     Lsmq-Auth: ...
    101 Switching Protocols                     Lsmq-Auth-Answer: ...

Both sides have so proved the cluster secret, the dialler for all of the path. ``to`` is who is meant: a node refuses
what is for another, whose address it may have by now. What follows, from the dialler only, are messages as :mod:`.wire`
has them, each with a code that binds it to its place on this link (:mod:`.seals`). It is no WebSocket: masking the
log's bytes and putting them together again on both sides costs more than all else that is done with them there. With
TLS all of it is encrypted; the codes stay: they prove the secret, which certificates do not.

A peer that stands still is found by TCP (``TCP_USER_TIMEOUT``) or by its queue growing beyond ``MAX_QUEUED_BYTES``; the
connection is dropped then. Whether a peer is alive is not judged here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import structlog
from aiohttp import web

from lsmq_coordinator.auth import ANSWER_HEADER, REQUEST_HEADER, ClusterSecret, Signer, Verifier
from lsmq_coordinator.errors import NotAuthenticated
from lsmq_coordinator.names import Names
from lsmq_coordinator.parts import Parts
from lsmq_coordinator.tls import Certificates
from lsmq_node.replication import ReplicaMessage

from .outgoing import CONGESTED_BYTES, PROTOCOL, Dial, Outgoing, set_up
from .seals import Seal
from .wire import BadMessage, Decoder, encode

OnMessage = Callable[[str, int, ReplicaMessage, memoryview], None]

PATH = "/internal/replication"
_SWITCHING = 101
_log = structlog.get_logger("lsmq.cluster")


class Links:
    """Loop thread only. Add :meth:`routes` to an application that has ``auth_middleware``."""

    def __init__(
        self,
        node: str,
        secret: ClusterSecret,
        addresses: Callable[[str], str | None],
        on_message: OnMessage,
        on_broken: Callable[[str], None],
        parts: Parts | None = None,
        tls: Certificates | None = None,
    ) -> None:
        """Args:
        addresses: the internal URL of a node by its id, None when it is not known.
        on_message: ``(sender, shard, message, payload)``; must not raise.
        on_broken: ``(peer)``, once for each connection in either direction that ended; must not raise.
        """
        self.node = node
        self._tls = tls
        self._signer = Signer(secret)
        self._verifier = Verifier(secret)
        self._seal_keys = secret.keys("links")
        self._addresses = addresses
        self._on_message = on_message
        self._on_broken = on_broken
        self._outgoing: dict[str, Outgoing] = {}
        self._incoming: dict[str, IncomingLink] = {}
        self._names = Names()
        self._parts = parts or Parts()
        self._open = False

    def routes(self) -> list[web.RouteDef]:
        """``GET /internal/replication?node=ID&to=ID``, see the module."""
        return [web.get(PATH, self._accept)]

    def start(self) -> None:
        self._open = True

    def send(self, peer: str, shard: int, message: ReplicaMessage, payload: bytes | memoryview = b"") -> None:
        """Best effort, in order; dialled on demand. Dropped when the peer cannot be reached.

        ``payload`` must not change any more.
        """
        if not self._open:
            return
        outgoing = self._outgoing.get(peer)
        if outgoing is None:
            part = self._parts.part(f"link-{peer}", essential=False)
            outgoing = self._outgoing[peer] = Outgoing(
                peer, lambda: self._dial(peer), self._on_broken, self._names, part
            )
        outgoing.send(encode(shard, message, len(payload)), payload)

    def congested(self, peer: str) -> bool:
        """Whether so much waits to be sent to a peer that bulk is better held back."""
        outgoing = self._outgoing.get(peer)
        return outgoing is not None and outgoing.queued_bytes > CONGESTED_BYTES

    def look(self, nodes: Set[str]) -> None:
        """These are the nodes of the cluster now, and some may have moved: forget others, and dial anew who did."""
        for peer in list(self._outgoing):
            if peer in nodes:
                self._outgoing[peer].look()
            else:
                self._outgoing.pop(peer).end()

    async def close(self) -> None:
        """Close all connections. ``on_broken`` is not called for these."""
        self._open = False
        for outgoing in self._outgoing.values():
            await outgoing.close()
        self._outgoing.clear()
        for incoming in list(self._incoming.values()):
            incoming.abort()

    def _dial(self, peer: str) -> Dial | None:
        address = self._addresses(peer)
        if address is None:
            return None
        url = urlsplit(address)
        path = f"{url.path.rstrip('/')}{PATH}?node={quote(self.node, safe='')}&to={quote(peer, safe='')}"
        signed = self._signer.sign("GET", path, url.netloc)
        fields = {"Host": url.netloc, "Connection": "Upgrade", "Upgrade": PROTOCOL, **signed.headers}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]

        def check(proof: str | None) -> None:
            self._signer.check_answer(signed, _SWITCHING, proof, b"")

        return Dial(
            url.hostname or "",
            url.port or 80,
            "\r\n".join(lines).encode(),
            check,
            lambda start: self._signer.learn(signed, start),
            lambda: self._addresses(peer) == address,
            Seal(self._seal_keys[0], signed.mac),
            None if self._tls is None else self._tls.client,
        )

    async def _accept(self, request: web.Request) -> web.StreamResponse:
        header = request.headers.get(REQUEST_HEADER)
        try:
            verified = self._verifier.verified(header, request.method, request.raw_path, request.host)
        except NotAuthenticated as refused:
            raise web.HTTPUnauthorized(text=refused.message) from refused
        sender, transport = request.query.get("node", ""), request.transport
        if not sender or transport is None or not self._open:
            raise web.HTTPServiceUnavailable(text="this node is stopping, or the request names no node")
        if request.query.get("to", self.node) != self.node:  # A release before does not say.
            raise web.HTTPMisdirectedRequest(text=f"this is node {self.node!r}")
        seal = Seal(self._seal_keys[verified.which], verified.mac)
        incoming = IncomingLink(sender, transport, self._on_message, seal)
        protocol: Any = request.protocol
        protocol.set_parser(incoming)  # As aiohttp does it for WebSockets: from here on it gets what arrives.
        set_up(transport)
        proof = verified.answer_header(_SWITCHING, b"")
        answer = web.StreamResponse(
            status=_SWITCHING, headers={"Upgrade": PROTOCOL, "Connection": "Upgrade", ANSWER_HEADER: proof}
        )
        former = self._incoming.get(sender)
        self._incoming[sender] = incoming
        if former is not None:  # It broke, which has not been noticed here.
            former.abort()
            self._on_broken(sender)
        try:
            with suppress(ConnectionError):  # The peer may be gone again already.
                await answer.prepare(request)
                await incoming.ended
        finally:
            incoming.abort()
            if self._incoming.get(sender) is incoming:
                del self._incoming[sender]
                if self._open:
                    self._on_broken(sender)
        return answer


class IncomingLink:
    """The receiving end of a peer's connection: a parser, as aiohttp's server has it."""

    def __init__(self, sender: str, transport: asyncio.Transport, on_message: OnMessage, seal: Seal) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sender = sender
        self._transport = transport
        self._on_message = on_message
        self._decoder = Decoder(seal)

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Whether no more is wanted, and what is left over."""
        if self.ended.done():
            return True, b""
        try:
            for shard, message, payload in self._decoder.feed(data):
                self._on_message(self._sender, shard, message, payload)
        except BadMessage as error:
            _log.error("bad_message", sender=self._sender, message=error.message)
            self.abort()
            return True, b""
        return False, b""

    def feed_eof(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        self.feed_eof()
        self._transport.abort()
