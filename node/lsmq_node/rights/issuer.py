"""Signed tokens (JWT, RFC 7519) of an issuer of OpenID Connect: whether they are good, and whom they name.

The issuer's keys (JWKS, RFC 7517) are fetched in the background, and never because of one request alone: where a token
names a key that is not known, they are asked for anew, at most every ``oidc_retry_ms``. They stay in use while the
issuer cannot be reached. A token is good when

- its algorithm is one of those that its key is for: of RSA (from 2,048 bits on) RS and PS with 256, 384 and 512, of
  elliptic curves the one of the curve (ES256, ES384, ES512, EdDSA). There is neither ``none`` nor a secret shared;
- ``iss`` is the issuer, and ``aud`` is or has the audience;
- ``exp``, which it must have, and ``nbf`` and ``iat``, where it has them, agree with this node's clock within
  :data:`LEEWAY_S`.

Its signature is checked once by a node, and its result kept while it is good and the keys are the same.

Not supported: encrypted tokens (JWE), opaque tokens and their introspection, and the issuer's lists of sessions that
have ended: a token is good until it expires.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import structlog

from lsmq import runtime
from lsmq.errors import LsmqError, Unauthenticated, Unavailable
from lsmq_coordinator.parts import Part
from lsmq_node.client_port_config import is_safe_url
from lsmq_node.config import NodeConfig

from .book import digest_of
from .evidence import By, Proven, check_principal
from .model import MAX_RIGHTS, Binding, is_name

_log = structlog.get_logger("lsmq.rights")

LEEWAY_S: Final = 10
_DISCOVERY: Final = "/.well-known/openid-configuration"
_TIMEOUT_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 1 << 20
_MAX_KEYS: Final = 100
_MIN_RSA_BITS: Final = 2_048
_REMEMBERED: Final = 10_000
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}


class IssuerUnusable(LsmqError):
    """What the issuer answers is not what it should be. Said of a part of the node, never to a client."""


@dataclass(frozen=True, slots=True)
class _Key:
    key: Any  # a public key of `cryptography`
    algorithms: tuple[str, ...]


class Issuer:
    """Of one node. Loop thread only; :meth:`keep_keys` runs as long as it is in use."""

    def __init__(self, config: NodeConfig) -> None:
        """``config`` has an issuer, and an audience."""
        assert config.oidc_issuer is not None and config.oidc_audience is not None
        self._config = config
        self._issuer = config.oidc_issuer
        self._keys: dict[str | None, _Key] | None = None
        self._proven: dict[bytes, Proven] = {}
        self._wanted = asyncio.Event()
        self._asked = asyncio.Event()  # Replaced with each time that the issuer was asked.
        self._asked_s = float("-inf")
        self._is_reached = False

    # Tokens

    async def proven(self, secret: str) -> Proven:
        """Raises ``Unauthenticated``; ``Unavailable`` where the issuer's keys are not known."""
        digest = digest_of(secret)
        known = self._proven.get(digest)
        if known is None:
            key = await self._key_of(secret)
            known = self._checked(secret, key)
            if len(self._proven) >= _REMEMBERED:
                del self._proven[next(iter(self._proven))]
            self._proven[digest] = known
        return known

    async def _key_of(self, secret: str) -> _Key:
        import jwt  # Only where there is an issuer.

        try:
            header = jwt.get_unverified_header(secret)
        except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
            raise _no_good() from error
        if "crit" in header:
            raise _no_good()
        id = header.get("kid")
        key = self._find(id)
        if key is None and await self._learn():
            key = self._find(id)
        if key is not None:
            return key
        if self._keys is None or not self._is_reached:
            raise Unavailable(
                "the issuer of signed tokens (oidc_issuer) cannot be asked for the key of this one now; come again",
                sent=False,
            )
        raise _no_good()

    def _find(self, id: str | None) -> _Key | None:
        """By its id; a token that names none is signed by the only one there is."""
        keys = self._keys or {}
        if id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(id)

    async def _learn(self) -> bool:
        """Whether the keys have been asked for anew. Waits for that, for some seconds at most."""
        if self._keys is not None and runtime.monotonic() - self._asked_s < self._config.oidc_retry_ms / 1000:
            return False
        asked = self._asked
        self._wanted.set()
        try:
            async with asyncio.timeout(2 * _TIMEOUT_S):
                await asked.wait()
        except TimeoutError:
            return False
        return True

    def _checked(self, secret: str, key: _Key) -> Proven:
        import jwt

        config = self._config
        try:
            claims = jwt.decode(
                secret,
                key.key,
                algorithms=list(key.algorithms),
                issuer=self._issuer,
                audience=config.oidc_audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            expires_ms = int(float(claims["exp"]) * 1000) + 1000 * LEEWAY_S
        except jwt.ExpiredSignatureError as error:
            raise Unauthenticated("the signed token has expired") from error
        except (jwt.ImmatureSignatureError, jwt.InvalidIssuedAtError) as error:
            raise Unauthenticated("the signed token is not good yet; do the clocks differ?") from error
        except jwt.InvalidAudienceError as error:
            raise Unauthenticated("the signed token is for another audience than oidc_audience") from error
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _no_good() from error
        name = claims.get(config.oidc_principal_claim)
        if not isinstance(name, str):
            raise Unauthenticated(f"the signed token has no claim {config.oidc_principal_claim!r} with a name")
        principal = check_principal(config.oidc_principal_prefix + name, "the signed token")
        return Proven(principal, expires_ms, By.OIDC, roles=_roles(claims, config.oidc_roles_claim))

    # Keys

    async def keep_keys(self, part: Part) -> None:
        """Have the issuer's keys, until cancelled. The part says why they cannot be had."""
        while True:
            await self._ask(part)
            asked, self._asked = self._asked, asyncio.Event()
            self._wanted.clear()
            asked.set()
            await self._wait()

    async def _wait(self) -> None:
        """Until the keys are asked for again: in time, or since they are wanted and that is not too often."""
        config = self._config
        pause_ms = config.oidc_refresh_ms if self._is_reached else min(config.oidc_refresh_ms, config.oidc_retry_ms)
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._wanted.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, self._asked_s + config.oidc_retry_ms / 1000 - runtime.monotonic()))

    async def _ask(self, part: Part) -> None:
        try:
            context = await asyncio.to_thread(_context, self._config)  # Each time: the file may have changed.
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context), timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)
            ) as session:
                keys = await self._fetched(session)
        except (aiohttp.ClientError, OSError, ValueError, IssuerUnusable, RecursionError) as error:
            why = error.message if isinstance(error, IssuerUnusable) else str(error) or type(error).__name__
            self._is_reached = False
            part.retrying(f"the keys of {self._issuer} cannot be had: {why}")
        else:
            if self._keys is None or keys.keys() != self._keys.keys():
                _log.info("issuer_keys", issuer=self._issuer, keys=[str(id) for id in keys])
            self._keys, self._is_reached = keys, True
            self._proven.clear()
            part.running()
        self._asked_s = runtime.monotonic()

    async def _fetched(self, session: aiohttp.ClientSession) -> dict[str | None, _Key]:
        url = self._config.oidc_jwks_url
        if url is None:
            found = await _document(session, self._issuer.rstrip("/") + _DISCOVERY)
            if found.get("issuer") != self._issuer:
                raise IssuerUnusable(f"it calls itself {str(found.get('issuer'))[:200]!r}, and oidc_issuer is another")
            url = str(found.get("jwks_uri"))
            if not is_safe_url(url):
                raise IssuerUnusable(f"its keys are at {url[:200]!r}, which must begin with https://")
        listed = (await _document(session, url)).get("keys")
        if not isinstance(listed, list):
            raise IssuerUnusable(f"{url} has no list of keys")
        keys = {}
        for each in listed[:_MAX_KEYS]:
            if isinstance(each, dict) and (key := _usable(each)) is not None:
                keys[each.get("kid")] = key
        if not keys:
            raise IssuerUnusable(f"{url} has no key that signs tokens")
        return keys


async def _document(session: aiohttp.ClientSession, url: str) -> Mapping[str, Any]:
    async with session.get(url, allow_redirects=False, headers={"Accept": "application/json"}) as answer:
        if answer.status != 200:
            raise IssuerUnusable(f"{url} answers {answer.status}")
        content = bytearray()
        async for piece in answer.content.iter_any():
            content += piece
            if len(content) > _MAX_ANSWER_BYTES:
                raise IssuerUnusable(f"{url} answers with more than {_MAX_ANSWER_BYTES} bytes")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise IssuerUnusable(f"{url} answers with no JSON object")
    return found


def _usable(jwk: Mapping[str, Any]) -> _Key | None:
    """None for a key that signs no tokens, or not in a way that is good enough."""
    from jwt import algorithms
    from jwt.exceptions import PyJWTError

    kind, id = jwk.get("kty"), jwk.get("kid")
    if jwk.get("use", "sig") != "sig" or not isinstance(id, str | None) or "d" in jwk:
        return None
    made: Any
    try:
        if kind == "RSA":
            made = algorithms.RSAAlgorithm.from_jwk(dict(jwk))
            allowed: tuple[str, ...] = _RSA if made.key_size >= _MIN_RSA_BITS else ()
        elif kind in ("EC", "OKP") and jwk.get("crv") in _CURVES:
            maker = algorithms.ECAlgorithm if kind == "EC" else algorithms.OKPAlgorithm
            made, allowed = maker.from_jwk(dict(jwk)), (_CURVES[jwk["crv"]],)
        else:
            return None
    except (PyJWTError, KeyError, TypeError, ValueError):
        return None
    if "alg" in jwk:
        allowed = tuple(each for each in allowed if each == jwk["alg"])
    return _Key(made, allowed) if allowed else None


def _roles(claims: Mapping[str, Any], name: str) -> tuple[Binding, ...]:
    """What of the claim are roles; the rest is the issuer's own."""
    if not name:
        return ()
    found: Any = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    listed = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
    bindings = []
    for each in listed:
        role, _, prefix = each.partition(":") if isinstance(each, str) else ("", "", "")
        if is_name(role):
            bindings.append(Binding(role, prefix))
    return tuple(dict.fromkeys(bindings))[:MAX_RIGHTS]


def _context(config: NodeConfig) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=config.oidc_ca)


def _no_good() -> Unauthenticated:
    return Unauthenticated("the signed token is of nobody whom this node believes, or is not whole")
