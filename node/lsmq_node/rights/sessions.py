"""Signing in and out with a browser: the sessions that all nodes agree on, see :mod:`.browser_sessions`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Set
from typing import Final

from lsmq import runtime
from lsmq.errors import InvalidRequest, TooManyRequests, TooManyRights, Unauthenticated
from lsmq_node.broker.topology import RightsDocuments
from lsmq_node.config import NodeConfig

from .book import SESSION, Changes, RightsBook, digest_of, session_document, session_key
from .browser_sessions import SESSION_PREFIX, BrowserSession, SessionCookie
from .evidence import SECRET_BYTES, By, Proven

#: Of a principal so many; with one more the oldest ends.
SESSIONS_EACH: Final = 10
#: What all sessions take of the room for documents, a quarter of it: some thousand.
MAX_SESSIONS_BYTES: Final = 256 * 1024
#: Of one, with the roles that an issuer gave.
MAX_SESSION_BYTES: Final = 4 * 1024
#: So often a principal may sign in at a node: each time all nodes agree on it.
SIGN_INS_A_MINUTE: Final = 20
_SIGN_INS_KNOWN: Final = 10_000


class Sessions:
    """Of all browsers. Loop thread only."""

    def __init__(
        self,
        config: NodeConfig,
        documents: RightsDocuments,
        change: Callable[[Callable[[RightsBook], Changes]], Awaitable[None]],
    ) -> None:
        self._config = config
        self._documents = documents
        self._change = change
        self._sign_ins: deque[tuple[float, str]] = deque(maxlen=_SIGN_INS_KNOWN)  # when and who, of the last minute

    async def sign_in(self, proven: Proven) -> tuple[BrowserSession, SessionCookie]:
        """Begin a session for whoever showed a token. Beyond :data:`SESSIONS_EACH` the oldest ends.

        Raises ``InvalidRequest`` where no token was shown, ``TooManyRequests``, ``TooManyRights``, ``Unavailable``.
        """
        if proven.by not in (By.TOKEN, By.OIDC):
            raise InvalidRequest("a session stands for a token: sign in with 'Authorization: Bearer TOKEN'")
        self._count(proven.principal)
        secret, now_ms = f"{SESSION_PREFIX}~{runtime.token_hex(SECRET_BYTES)}", runtime.wall_ms()
        expires_ms = now_ms + self._config.browser_session_ms
        session = BrowserSession(
            proven.principal,
            runtime.token_hex(4),
            digest_of(secret),
            bytes.fromhex(runtime.token_hex(SECRET_BYTES)),
            proven.digest,
            proven.roles,
            now_ms,
            expires_ms if proven.expires_ms is None else min(expires_ms, proven.expires_ms),
        )
        document = session_document(session)

        def changes(book: RightsBook) -> Changes:
            live = [each for each in book.sessions_of(session.principal) if book.is_live(each, now_ms)]
            ended = {session_key(each): None for each in live[: max(0, len(live) + 1 - SESSIONS_EACH)]}
            over = {session_key(each) for each in book.sessions.values() if not book.is_live(each, now_ms)}
            self._check_room(len(document), over | ended.keys())
            return {**ended, session_key(session): document}

        await self._change(changes)
        return session, self.renewed(session, secret)

    def _count(self, principal: str) -> None:
        """Raises ``TooManyRequests``."""
        now = asyncio.get_running_loop().time()
        while self._sign_ins and self._sign_ins[0][0] <= now - 60:
            self._sign_ins.popleft()
        own = [at for at, who in self._sign_ins if who == principal]
        if len(own) >= SIGN_INS_A_MINUTE:
            retry_after_ms = int(1000 * (own[0] + 60 - now)) + 1
            raise TooManyRequests(
                f"{principal} signed in {len(own)} times within a minute, the limit; come again in {retry_after_ms} ms",
                limit=SIGN_INS_A_MINUTE,
                retry_after_ms=retry_after_ms,
            )
        self._sign_ins.append((now, principal))

    def _check_room(self, size: int, gone: Set[str]) -> None:
        """Raises ``TooManyRights`` where another session would take the room of tokens and grants."""
        _, documents = self._documents.known()
        others = sum(len(body) for key, body in documents.items() if key.startswith(SESSION) and key not in gone)
        if size > MAX_SESSION_BYTES or others + size > MAX_SESSIONS_BYTES:
            raise TooManyRights(
                f"a session of {size} bytes, of {MAX_SESSION_BYTES} at most, has no room beside the {others} bytes of "
                f"others, of {MAX_SESSIONS_BYTES} at most: sign out elsewhere, or wait until sessions end",
                limit=MAX_SESSIONS_BYTES,
            )

    def renewed(self, session: BrowserSession, secret: str) -> SessionCookie:
        """What the browser holds from now on, until it was idle for too long."""
        idle_until_ms = runtime.wall_ms() + self._config.browser_session_idle_ms
        return session.cookie(secret, min(idle_until_ms, session.expires_ms))

    async def sign_out(self, session: BrowserSession) -> None:
        """End it, on all nodes. Raises ``Unavailable``."""
        await self._change(lambda book: {session_key(session): None})


def session_ended() -> Unauthenticated:
    return Unauthenticated("the session has ended: sign in again")
