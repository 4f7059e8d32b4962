"""Sessions of browsers, each of which stands for a token that was shown once. Pure.

A session is a document that all nodes agree on, so that every node knows it, and its end. The browser has it as a
cookie, which scripts cannot read::

    lsmq_session~SECRET~UNTIL_MS~MAC

``SECRET`` has 256 random bits, of which the document knows the SHA-256 alone. ``UNTIL_MS`` is when the session ends
unless somebody goes on with it before: then the browser is given another cookie, and nothing is written anywhere.
``MAC`` is the HMAC-SHA256 of what stands before it under the session's key, which only the document has: so an old
cookie cannot be made to last. The *anti-forgery token* is made of the secret under the same key. The page is told it,
and shows it with all that changes something; a page of somebody else can have the cookie sent, and cannot know it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Any, Final

from .model import Binding

SESSION_PREFIX: Final = "lsmq_session"
_COOKIE: Final = re.compile(rf"({SESSION_PREFIX}~[0-9a-f]{{64}})~([0-9]{{1,16}})~([0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """An id is part of its key. ``token`` is the digest of the one that was shown, with which it ends; None for an
    issuer's, whose ``roles`` are kept."""

    principal: str
    id: str
    digest: bytes = field(repr=False)
    key: bytes = field(repr=False)
    token: bytes | None = field(repr=False)
    roles: tuple[Binding, ...]
    created_ms: int
    expires_ms: int

    def cookie(self, secret: str, until_ms: int) -> SessionCookie:
        return SessionCookie(secret, until_ms, _mac(self.key, f"{secret}~{until_ms}"))

    def made(self, cookie: SessionCookie) -> bool:
        """Whether it is a cookie of this session."""
        return hmac.compare_digest(_mac(self.key, f"{cookie.secret}~{cookie.until_ms}"), cookie.mac)

    def anti_forgery(self, secret: str) -> str:
        return _mac(self.key, f"{secret}~anti-forgery")

    def fields(self) -> dict[str, Any]:
        """Of its document."""
        return {
            "hash": self.digest,
            "key": self.key,
            "token": self.token,
            "roles": [[each.role, each.prefix] for each in self.roles],
            "created_ms": self.created_ms,
            "expires_ms": self.expires_ms,
        }


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """What a browser showed, or a node that passes its request on."""

    secret: str = field(repr=False)
    until_ms: int
    mac: str = field(repr=False)

    @classmethod
    def parsed(cls, text: str) -> SessionCookie | None:
        """None where it is no such thing."""
        match = _COOKIE.fullmatch(text)
        return None if match is None else cls(match[1], int(match[2]), match[3])

    def __str__(self) -> str:
        return f"{self.secret}~{self.until_ms}~{self.mac}"


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
