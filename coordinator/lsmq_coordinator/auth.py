"""Proof of the cluster secret on every request inside the cluster, and on its answer.

A request carries ``Lsmq-Auth: v1 <time_ms> <nonce> <mac>``. ``mac`` is HMAC-SHA256, in hex, under a key derived
from the secret, over these, separated by newlines::

    lsmq-request, method, path with query, host the client asked for, time_ms, nonce, SHA-256 of the body in hex

A server takes a nonce once within the window of 30 seconds before and after its own clock: a recorded request
cannot be sent again. The answer carries ``Lsmq-Auth-Answer``, the HMAC over the request's mac, the status and
the SHA-256 of the body, so that nobody can answer in a node's place. An answer that is streamed carries none;
its contents must be protected by their own protocol. Nothing is encrypted.

Node clocks must agree to within the window; an answer to a request outside it says by how much it is off.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from lsmq.errors import LsmqError

from .errors import NotAuthenticated, SecretUnusable

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

REQUEST_HEADER = "Lsmq-Auth"
ANSWER_HEADER = "Lsmq-Auth-Answer"
WINDOW_MS = 30_000
MAX_NONCES = 200_000
MIN_SECRET_BYTES = 16
_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """What all nodes of a cluster share. Each use has a key of its own; the secret itself is never sent."""

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) < MIN_SECRET_BYTES:
            raise SecretUnusable(
                f"the cluster secret has {len(self.value)} bytes; it needs at least {MIN_SECRET_BYTES} random ones"
            )

    @classmethod
    def load(cls, path: Path) -> ClusterSecret:
        """Read it from a file; white space around it is dropped. Raises ``SecretUnusable``."""
        try:
            if path.stat().st_mode & 0o022:
                raise SecretUnusable(f"{path}: others may write the cluster secret; chmod 600 it", file=str(path))
            return cls(path.read_bytes().strip())
        except OSError as error:
            raise SecretUnusable(f"{path}: the cluster secret cannot be read: {error.strerror}") from error

    @classmethod
    def create(cls, path: Path) -> ClusterSecret:
        """Write a new random one, readable by the owner only. Raises ``FileExistsError``."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
        return cls.load(path)

    def key(self, purpose: str) -> bytes:
        """The key for one purpose; one tells nothing about another."""
        return hmac.digest(self.value, f"lsmq {purpose} v1".encode(), hashlib.sha256)


@dataclass(frozen=True, slots=True)
class Signed:
    """A request's proof: the header to send, and what its answer must be checked with."""

    headers: dict[str, str]
    mac: str


class Signer:
    """The client's side."""

    def __init__(self, secret: ClusterSecret) -> None:
        self._key = secret.key("http")

    def sign(self, method: str, path: str, host: str, body: bytes = b"") -> Signed:
        """``path`` is the raw path with its query as it is sent, ``host`` what the ``Host`` header will say."""
        now_ms, nonce = str(time.time_ns() // 1_000_000), secrets.token_hex(16)
        mac = _request_mac(self._key, method, path, host, now_ms, nonce, body)
        return Signed({REQUEST_HEADER: f"{_VERSION} {now_ms} {nonce} {mac}"}, mac)

    def check_answer(self, signed: Signed, status: int, header: str | None, body: bytes) -> None:
        """Raises ``NotAuthenticated`` when the answer is not from a node of the cluster."""
        expected = _answer_mac(self._key, signed.mac, status, body)
        if header is None or not hmac.compare_digest(header.encode(), expected.encode()):
            raise NotAuthenticated("the answer does not prove the cluster secret; is another server at that address?")


class Verifier:
    """The server's side: remembers the nonces of the window. One for all routes of a process."""

    def __init__(self, secret: ClusterSecret, *, now_ms: Callable[[], int] | None = None) -> None:
        self._key = secret.key("http")
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._nonces: set[str] = set()
        self._expiry: deque[tuple[int, str]] = deque()

    def verify(self, header: str | None, method: str, path: str, host: str, body: bytes) -> str:
        """The request's mac. Raises ``NotAuthenticated`` with the reason."""
        sent_ms, nonce, mac = self._proven(header, method, path, host, body)
        now_ms = self._now_ms()
        off_ms = int(sent_ms) - now_ms
        if abs(off_ms) > WINDOW_MS:
            raise NotAuthenticated(
                f"the clocks of the nodes are {off_ms} ms apart; {WINDOW_MS} ms are allowed", clock_offset_ms=off_ms
            )
        self._take(nonce, now_ms)
        return mac

    def mac_of(self, header: str | None, method: str, path: str, host: str, body: bytes) -> str:
        """The mac of a request that :meth:`verify` has passed, for an answer that is a stream.

        Whether it is sent for the first time is not checked again. Raises ``NotAuthenticated``.
        """
        return self._proven(header, method, path, host, body)[2]

    def _proven(self, header: str | None, method: str, path: str, host: str, body: bytes) -> tuple[str, str, str]:
        parts = (header or "").split(" ")
        if len(parts) != 4 or parts[0] != _VERSION:
            raise NotAuthenticated(f"a request inside the cluster needs the header {REQUEST_HEADER}")
        _, sent_ms, nonce, mac = parts
        expected = _request_mac(self._key, method, path, host, sent_ms, nonce, body)
        if not hmac.compare_digest(mac.encode(), expected.encode()):
            raise NotAuthenticated("the request does not prove the cluster secret; do all nodes have the same?")
        return sent_ms, nonce, mac

    def _take(self, nonce: str, now_ms: int) -> None:
        # A request may be taken until its time is a window old, and its time may be a window ahead.
        while self._expiry and self._expiry[0][0] < now_ms - 2 * WINDOW_MS:
            self._nonces.discard(self._expiry.popleft()[1])
        if nonce in self._nonces:
            raise NotAuthenticated("the request was received before; it is not taken twice")
        if len(self._nonces) >= MAX_NONCES:
            raise NotAuthenticated(f"more than {MAX_NONCES} requests within {2 * WINDOW_MS} ms")
        self._nonces.add(nonce)
        self._expiry.append((now_ms, nonce))

    def answer_header(self, mac: str, status: int, body: bytes) -> str:
        return _answer_mac(self._key, mac, status, body)


def auth_middleware(verifier: Verifier, prefix: str = "/internal/") -> Middleware:
    """Refuses what comes to ``prefix`` without proof, before a handler sees it, and signs the answers.

    The body is read whole, up to the application's ``client_max_size``.
    """

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(prefix):
            return await handler(request)
        body = await request.read()
        try:
            header = request.headers.get(REQUEST_HEADER)
            mac = verifier.verify(header, request.method, request.raw_path, request.host, body)
        except NotAuthenticated as refused:
            return web.json_response({"error": refused.to_dict()}, status=refused.status)
        try:
            answer = await handler(request)
        except web.HTTPException as failure:
            failure.headers[ANSWER_HEADER] = verifier.answer_header(mac, failure.status, _body(failure))
            raise
        except Exception as error:
            logging.getLogger(__name__).exception("%s %s failed", request.method, request.path)
            internal = LsmqError(f"{request.path} failed: {type(error).__name__}")
            answer = web.json_response({"error": internal.to_dict()}, status=internal.status)
        if isinstance(answer, web.Response) and not answer.prepared:
            answer.headers[ANSWER_HEADER] = verifier.answer_header(mac, answer.status, _body(answer))
        return answer

    return authenticate


def _body(answer: web.Response) -> bytes:
    return bytes(answer.body) if isinstance(answer.body, bytes | bytearray) else b""


def _request_mac(key: bytes, method: str, path: str, host: str, sent_ms: str, nonce: str, body: bytes) -> str:
    text = "\n".join(("lsmq-request", method, path, host, sent_ms, nonce, hashlib.sha256(body).hexdigest()))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _answer_mac(key: bytes, mac: str, status: int, body: bytes) -> str:
    text = "\n".join(("lsmq-answer", mac, str(status), hashlib.sha256(body).hexdigest()))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
