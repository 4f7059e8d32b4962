"""Proof of the cluster secret on every request inside the cluster, and on its answer.

A request carries ``Lsmq-Auth: v2 <start> <time_ms> <nonce> <digest> <mac>``. ``digest`` is the SHA-256 of the body in
hex; ``mac`` is HMAC-SHA256, in hex, under a key derived from the secret, over these, separated by newlines::

    lsmq-request, start, method, path with query, host the client asked for, time_ms, nonce, digest

``start`` is a random number that the asked process drew when it began, and ``time_ms`` what its monotonic clock shows,
as far as the client knows. A client that does not, since it asks for the first time, or the node was started anew, or
one of them slept, is refused with ``Lsmq-Auth-Start: <start> <time_ms>`` and asks once more. So what was recorded
before a restart is of no use after it; and within one life of a process a nonce is taken once in the window of 30
seconds before and after the server's clock, so that no recorded request can be sent again at all. No wall clock is
asked: nodes whose clocks differ understand each other.

Since the header speaks for the body, a stranger is refused before one byte of his body is read.

The answer carries ``Lsmq-Auth-Answer``, the HMAC over the request's mac, the status and the SHA-256 of the body, so
that nobody can answer in a node's place. An answer that is streamed carries none; its contents must be protected by
their own protocol. Nothing is encrypted.

While a cluster changes its secret a node may know two (:class:`ClusterSecret`). A request is signed under the first and
taken under either; its answer is signed under the secret that the request proved, which the asker is known to have.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lsmq import runtime
from lsmq.errors import LsmqError, RequestTooLarge, TimedOut

from .errors import NotAuthenticated, SecretUnusable
from .http_status import status_of
from .private_files import too_open

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

REQUEST_HEADER = "Lsmq-Auth"
ANSWER_HEADER = "Lsmq-Auth-Answer"
START_HEADER = "Lsmq-Auth-Start"
WINDOW_MS = 30_000
MAX_NONCES = 200_000
MIN_SECRET_BYTES = 16
MAX_SECRETS = 2
#: So long the body of a signed request may take to arrive.
BODY_TIMEOUT_S = 10.0
_VERSION = "v2"
_UNKNOWN_START = "-"
_MAX_DIGITS = 18
_MAX_STARTS = 10_000  # far more than a cluster has addresses


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """What all nodes of a cluster share. Each use has a key of its own; the secret itself is never sent.

    While a cluster changes it there are two: ``value`` signs, and ``second`` is accepted as well.
    """

    value: bytes = field(repr=False)
    second: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        lines = self._values
        for number, value in enumerate(lines, 1):
            if len(value) < MIN_SECRET_BYTES:
                line = f"line {number} of the cluster secret" if len(lines) > 1 else "the cluster secret"
                raise SecretUnusable(f"{line} has {len(value)} bytes; it needs at least {MIN_SECRET_BYTES} random ones")
        if self.value == self.second:
            raise SecretUnusable(
                "both lines of the cluster secret are the same; leave one, or put another one beside it"
            )

    @classmethod
    def load(cls, path: Path) -> ClusterSecret:
        """Read it from a file of one or two lines, a secret each; white space around them is dropped.

        What is no text is one secret as a whole, line breaks and all. Raises ``SecretUnusable``.
        """
        try:
            mode = too_open(path)
            if mode is not None:
                raise SecretUnusable(
                    f"{path}: others may read or write the cluster secret (its mode is {mode}); chmod 600 it",
                    file=str(path),
                )
            lines = _lines(path.read_bytes().strip())
        except OSError as error:
            raise SecretUnusable(f"{path}: the cluster secret cannot be read: {error.strerror}") from error
        if len(lines) > MAX_SECRETS:
            raise SecretUnusable(
                f"{path}: the cluster secret has {len(lines)} lines; write one secret, or {MAX_SECRETS} while it is "
                "changed, each on a line of its own",
                file=str(path),
            )
        try:
            return cls(*lines)
        except SecretUnusable as error:
            raise SecretUnusable(f"{path}: {error.message}", file=str(path)) from None

    @classmethod
    def create(cls, path: Path) -> ClusterSecret:
        """Write a new random one, readable by the owner only. Raises ``FileExistsError``."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{runtime.token_hex(32)}\n")
        return cls.load(path)

    def key(self, purpose: str) -> bytes:
        """The key that signs for one purpose; one tells nothing about another."""
        return self.keys(purpose)[0]

    def keys(self, purpose: str) -> tuple[bytes, ...]:
        """The keys that are accepted for it: one of each secret, in their order."""
        return tuple(hmac.digest(value, f"lsmq {purpose} v1".encode(), hashlib.sha256) for value in self._values)

    @property
    def _values(self) -> tuple[bytes, ...]:
        return (self.value,) if self.second is None else (self.value, self.second)


def _lines(content: bytes) -> list[bytes]:
    lines = [line.strip() for line in content.split(b"\n")]
    try:
        is_text = all(line.decode().isprintable() for line in lines)
    except UnicodeDecodeError:
        is_text = False
    return lines if is_text else [content]


@dataclass(frozen=True, slots=True)
class Signed:
    """A request's proof: the header to send, and what its answer must be checked with. ``start``: for whom it is."""

    headers: dict[str, str]
    mac: str
    host: str
    start: str


class Signer:
    """The client's side. Remembers of each host that it asks its start, and how far its clock is ahead."""

    def __init__(self, secret: ClusterSecret) -> None:
        self._key = secret.key("http")
        self._starts: dict[str, tuple[str, int]] = {}

    def sign(self, method: str, path: str, host: str, body: bytes = b"") -> Signed:
        """``path`` is the raw path with its query as it is sent, ``host`` what the ``Host`` header will say."""
        start, ahead_ms = self._starts.get(host, (_UNKNOWN_START, 0))
        now_ms, nonce = str(_monotonic_ms() + ahead_ms), runtime.token_hex(16)
        proof = _Proof(start, now_ms, nonce, hashlib.sha256(body).hexdigest())
        mac = proof.mac(self._key, method, path, host)
        return Signed({REQUEST_HEADER: f"{_VERSION} {start} {now_ms} {nonce} {proof.digest} {mac}"}, mac, host, start)

    def learn(self, signed: Signed, told: str | None) -> bool:
        """A refusal told the host's start and clock; whether the request was for others, and may be sent anew.

        Nobody proves it. Whoever lies here has a request refused that he could have kept from arriving.
        """
        start, _, time_ms = (told or "").partition(" ")
        if not start or not (time_ms.isascii() and time_ms.isdigit() and len(time_ms) <= _MAX_DIGITS):
            return False
        ahead_ms = int(time_ms) - _monotonic_ms()
        known = self._starts.get(signed.host)
        if signed.start == start and known is not None and abs(known[1] - ahead_ms) <= WINDOW_MS // 2:
            return False
        if len(self._starts) >= _MAX_STARTS:
            self._starts.clear()
        self._starts[signed.host] = start, ahead_ms
        return True

    def check_answer(self, signed: Signed, status: int, header: str | None, body: bytes) -> None:
        """Raises ``NotAuthenticated`` when the answer is not from a node of the cluster."""
        expected = _answer_mac(self._key, signed.mac, status, body)
        if header is None or not hmac.compare_digest(header.encode(), expected.encode()):
            raise NotAuthenticated("the answer does not prove the cluster secret; is another server at that address?")


@dataclass(frozen=True, slots=True)
class _Proof:
    """What the header of a request says beside its mac."""

    start: str
    sent_ms: str
    nonce: str
    digest: str

    def mac(self, key: bytes, method: str, path: str, host: str) -> str:
        text = "\n".join(("lsmq-request", self.start, method, path, host, self.sent_ms, self.nonce, self.digest))
        return hmac.new(key, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()


class Verifier:
    """The server's side: its start, and the nonces of the window. One for all routes of a process."""

    def __init__(self, secret: ClusterSecret, *, now_ms: Callable[[], int] | None = None) -> None:
        self.start = runtime.token_hex(8)
        self._keys = secret.keys("http")
        self._now_ms = now_ms or _monotonic_ms
        self._nonces: set[str] = set()
        self._expiry: deque[tuple[int, str]] = deque()

    @property
    def challenge(self) -> str:
        """What a client must know to sign for this process now."""
        return f"{self.start} {self._now_ms()}"

    def verify(self, header: str | None, method: str, path: str, host: str) -> Verified:
        """Whoever sent this header knows the secret, and sent it just now. Raises ``NotAuthenticated``."""
        verified, proof = self._proven(header, method, path, host)
        if proof.start != self.start:
            raise NotAuthenticated(
                f"the request is for another start of this node, {proof.start}; sign it for {self.start}",
                start=self.start,
            )
        now_ms = self._now_ms()
        off_ms = int(proof.sent_ms) - now_ms
        if abs(off_ms) > WINDOW_MS:
            raise NotAuthenticated(f"the request was signed for {off_ms} ms from now; {WINDOW_MS} ms are allowed")
        self._take(proof.nonce, now_ms)
        return verified

    def verified(self, header: str | None, method: str, path: str, host: str) -> Verified:
        """A request that :meth:`verify` has passed, for an answer that is a stream.

        Whether it is sent for the first time is not checked again. Raises ``NotAuthenticated``.
        """
        return self._proven(header, method, path, host)[0]

    def _proven(self, header: str | None, method: str, path: str, host: str) -> tuple[Verified, _Proof]:
        parts = (header or "").split(" ")
        if len(parts) != 6 or parts[0] != _VERSION:
            raise NotAuthenticated(f"a request inside the cluster needs the header {REQUEST_HEADER}")
        *said, mac = parts[1:]
        proof = _Proof(*said)
        shown = mac.encode(errors="surrogateescape")
        for which, key in enumerate(self._keys):
            if hmac.compare_digest(shown, proof.mac(key, method, path, host).encode()):
                return Verified(mac, proof.digest, which, key), proof
        raise NotAuthenticated("the request does not prove the cluster secret; do all nodes have the same?")

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


@dataclass(frozen=True, slots=True)
class Verified:
    """A request whose header has proved the secret; its body must still be the one that the header speaks for.

    ``which``: the index of the secret that it proved among those of this node.
    """

    mac: str
    digest: str
    which: int
    key: bytes = field(repr=False)

    def check_body(self, body: bytes) -> None:
        """Raises ``NotAuthenticated``."""
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), self.digest):
            raise NotAuthenticated("the body is not the one that was signed")

    def answer_header(self, status: int, body: bytes) -> str:
        return _answer_mac(self.key, self.mac, status, body)


#: Under this key a request has its :class:`Verified`, where the handler reads the body and must check it.
VERIFIED: Any = getattr(web, "RequestKey", web.AppKey)("VERIFIED", Verified)  # Older aiohttp takes any key.


def auth_middleware(verifier: Verifier, prefix: str = "/internal/", unread: str | None = None) -> Middleware:
    """Refuses what comes to ``prefix`` without proof, before a handler sees it, and signs the answers.

    Nothing is read of the body before its sender has proved the secret; then all of it, up to the application's
    ``client_max_size`` and within ``BODY_TIMEOUT_S``. Under the prefix ``unread`` that is left to the handler, which
    must ask ``request[VERIFIED].check_body`` before it obeys the body.
    """

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(prefix):
            return await handler(request)
        try:
            verified = verifier.verify(
                request.headers.get(REQUEST_HEADER), request.method, request.raw_path, request.host
            )
            if unread is not None and request.path.startswith(unread):
                request[VERIFIED] = verified
            else:
                verified.check_body(await _whole_body(request))
        except NotAuthenticated as refused:
            answer = _refusal(refused)
            answer.headers[START_HEADER] = verifier.challenge
            return answer
        except LsmqError as refused:
            return _refusal(refused)
        try:
            response = await handler(request)
        except web.HTTPException as failure:
            failure.headers[ANSWER_HEADER] = verified.answer_header(failure.status, _body(failure))
            raise
        except Exception as error:
            logging.getLogger(__name__).exception("%s %s failed", request.method, request.path)
            internal = LsmqError(f"{request.path} failed: {type(error).__name__}")
            response = web.json_response({"error": internal.to_dict()}, status=status_of(internal))
        if isinstance(response, web.Response) and not response.prepared:
            response.headers[ANSWER_HEADER] = verified.answer_header(response.status, _body(response))
        return response

    return authenticate


async def _whole_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise TimedOut(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestTooLarge(f"the body is too large: {error.text}") from error


def _refusal(refused: LsmqError) -> web.Response:
    answer = web.json_response({"error": refused.to_dict()}, status=status_of(refused))
    answer.force_close()  # Whatever else comes over this connection is not read.
    return answer


def _monotonic_ms() -> int:
    return int(runtime.monotonic() * 1000)


def _body(answer: web.Response) -> bytes:
    return bytes(answer.body) if isinstance(answer.body, bytes | bytearray) else b""


def _answer_mac(key: bytes, mac: str, status: int, body: bytes) -> str:
    text = "\n".join(("lsmq-answer", mac, str(status), hashlib.sha256(body).hexdigest()))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
