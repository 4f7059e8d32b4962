"""An issuer of signed tokens for tests: a real server with its keys, which can be changed and stopped."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "lsmq-tests"


class Issuer:
    """Serves discovery and keys on the loopback while it is entered. Its address stays the same."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.asked = 0
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.add("first")

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, Any]:
        """Of a node that believes it."""
        return {"oidc_issuer": self.url, "oidc_audience": AUDIENCE, "oidc_refresh_ms": 1_000, "oidc_retry_ms": 100}

    def add(self, id: str, kind: str = "RS256") -> None:
        self.keys[id] = {
            "RS256": lambda: rsa.generate_private_key(65_537, 2_048),
            "small": lambda: rsa.generate_private_key(65_537, 1_024),
            "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate,
        }[kind]()

    def jwks(self) -> dict[str, Any]:
        found = []
        for id, key in list(self.keys.items()):
            maker: Any = {
                rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
                ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
                ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
            }[
                next(
                    kind
                    for kind in (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey, ed25519.Ed25519PrivateKey)
                    if isinstance(key, kind)
                )
            ]
            found.append({**json.loads(maker.to_jwk(key.public_key())), "kid": id, "use": "sig"})
        return {"keys": found}

    def claims(self, name: str, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        return {"iss": self.url, "aud": AUDIENCE, "sub": name, "iat": now, "exp": now + 600, **more}

    def token(
        self,
        name: str = "",
        *,
        key: Any = "first",
        algorithm: str = "RS256",
        headers: Mapping[str, Any] | None = None,
        claims: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """Signed with the key of that id, or with one that is given."""
        made = claims if claims is not None else self.claims(name, **more)
        said = {"kid": key} if isinstance(key, str) else {}
        signing = self.keys[key] if isinstance(key, str) else key
        return jwt.encode(dict(made), signing, algorithm=algorithm, headers={**said, **(headers or {})})

    def __enter__(self) -> Issuer:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
        self._thread.start()
        assert started.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/keys", self._keys)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self.tls)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        started.set()
        await self._stopped.wait()
        await runner.cleanup()

    async def _discovery(self, request: web.Request) -> web.Response:
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})

    async def _keys(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.json_response(self.jwks())
