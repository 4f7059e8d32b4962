"""What a client shows of who it is, and what follows from it. Pure.

The header ``Authorization`` counts before a certificate. It holds a token of the cluster's own, a signed token (JWT) of
an issuer that the node believes (:mod:`.issuer`), what a browser has as a cookie (:mod:`.browser_sessions`) and nodes
pass on to each other like this, or the word of another node of the cluster, a *voucher*::

    lsmq~NAME~UNTIL_MS~GOOD_MS~MAC

Who knows clients by certificates must ask other nodes for them, and cannot show what was shown to it. So it says to
whom the connection belongs: ``NAME``, until the certificate expires at ``UNTIL_MS``. ``MAC`` is the HMAC-SHA256 of what
stands before it under a key of the cluster's secret; the voucher may be shown until ``GOOD_MS``, for some minutes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from lsmq.errors import Unauthenticated
from lsmq_node.choices import CertificateName

from .model import ADMIN, Binding, is_name

#: What a token begins with, so that people and scanners know one when they see it.
TOKEN_PREFIX: Final = "lsmq_"
SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(f"{TOKEN_PREFIX}[0-9a-f]{{{2 * SECRET_BYTES}}}")
_SIGNED: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_VOUCHER: Final = re.compile(r"lsmq~([^~]+)~([0-9]{1,16})~([0-9]{1,16})~([0-9a-f]{64})")
#: For clocks that differ, and clients that ask again.
_VOUCHER_GOOD_MS: Final = 300_000
_SCHEME: Final = "Bearer "
#: Of names in certificates, as the standard library calls them.
_SAN: Final = {CertificateName.DNS: "DNS", CertificateName.URI: "URI", CertificateName.EMAIL: "email"}


class By(StrEnum):
    """How a client is known. Names reach the wire: never renamed."""

    TOKEN = "token"
    CERTIFICATE = "certificate"
    OIDC = "oidc"
    SESSION = "session"  # of a browser


@dataclass(frozen=True, slots=True)
class Proven:
    """Who it is, until when, and by what. ``digest``: of a token of the cluster's own, which may be revoked. ``roles``
    are those that an issuer gives, beside what was granted. ``session``: the digest of a browser's session."""

    principal: str
    expires_ms: int | None
    by: By
    digest: bytes | None = None
    roles: tuple[Binding, ...] = ()
    session: bytes | None = None


@dataclass(frozen=True, slots=True)
class ShownCredentials:
    """By one request: its header ``Authorization``, or what stands for it ``by_cookie``, and the certificate of its
    connection, verified, as ``ssl.SSLSocket.getpeercert`` has it."""

    authorization: str | None = None
    certificate: Mapping[str, Any] | None = None
    by_cookie: bool = False

    @property
    def secret(self) -> str:
        """Raises ``Unauthenticated``."""
        if self.authorization is None:
            raise Unauthenticated("this node wants to know who asks: send 'Authorization: Bearer TOKEN'")
        if not self.authorization.startswith(_SCHEME):
            raise Unauthenticated("the header Authorization must be 'Bearer TOKEN'")
        return self.authorization[len(_SCHEME) :].strip()


def is_token(secret: str) -> bool:
    """Whether it looks like one of the cluster's own."""
    return _TOKEN.fullmatch(secret) is not None


def is_signed_token(secret: str) -> bool:
    """Whether it looks like a JWT."""
    return _SIGNED.fullmatch(secret) is not None


def check_principal(name: str, where: str) -> str:
    """A name that somebody else than this cluster gave. Raises ``Unauthenticated``."""
    if not is_name(name):
        raise Unauthenticated(
            f"{where} names {name[:80]!r}, which is no name of a principal: 1 to 128 letters, digits, '.', '_', '@' "
            "and '-', beginning with a letter or digit"
        )
    if name.startswith(f"{ADMIN}@"):
        raise Unauthenticated(f"{where} names {name!r}: names that begin with '{ADMIN}@' are the nodes' own")
    return name


def named_in(certificate: Mapping[str, Any], kind: CertificateName, pattern: re.Pattern[str] | None) -> Proven:
    """Whom a verified certificate names: exactly one of its names of the kind must match.

    Raises ``Unauthenticated``.
    """
    if kind is CertificateName.COMMON_NAME:
        found = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    else:
        found = [value for name, value in certificate.get("subjectAltName", ()) if name == _SAN[kind]]
    if pattern is not None:
        found = [match[1] for value in found if (match := pattern.fullmatch(value)) is not None and match[1]]
    if len(set(found)) != 1:
        raise Unauthenticated(
            f"the certificate has {len(set(found))} names of the kind {kind.value} that could be the principal's "
            "(tls_principal, tls_principal_pattern), and must have one; or send 'Authorization: Bearer TOKEN'"
        )
    name = check_principal(found[0], "the certificate")
    return Proven(name, ssl.cert_time_to_seconds(certificate["notAfter"]) * 1000, By.CERTIFICATE)


def vouched(proven: Proven, key: bytes, now_ms: int) -> str:
    """A voucher for what a certificate proved."""
    assert proven.expires_ms is not None and "~" not in proven.principal
    text = f"lsmq~{proven.principal}~{proven.expires_ms}~{now_ms + _VOUCHER_GOOD_MS}"
    return f"{text}~{_mac(key, text)}"


def proven_by_voucher(secret: str, keys: Sequence[bytes], now_ms: int) -> Proven | None:
    """None where it is none. Raises ``Unauthenticated`` for one that is not good."""
    match = _VOUCHER.fullmatch(secret)
    if match is None:
        return None
    text = secret[: match.start(4) - 1]
    if not any(hmac.compare_digest(_mac(key, text), match[4]) for key in keys) or now_ms >= int(match[3]):
        raise Unauthenticated("no node of this cluster vouches for that now")
    return Proven(match[1], int(match[2]), By.CERTIFICATE)


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
