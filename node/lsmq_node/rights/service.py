"""The rights of a node: who a token is, what he may, and how both are changed. Loop thread only.

All nodes agree on the documents (:class:`lsmq_node.broker.topology.RightsDocuments`); a change that one has made is
known to the others within the time of a heartbeat. What was decided before is decided again when they change: requests
that are held, before they are answered; streams, at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from lsmq import runtime
from lsmq.errors import (
    AuthenticationOff,
    Forbidden,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
    UnknownPrincipal,
    UnknownRole,
)
from lsmq_coordinator.parts import kept
from lsmq_node.broker import Background, Broker, Limited
from lsmq_node.config import Auth, CertificateName

from .book import (
    LIMIT,
    PRINCIPAL,
    ROLE,
    Changes,
    Grants,
    LimitOverrides,
    RightsBook,
    RightsHolder,
    Token,
    digest_of,
    role_document,
    surplus,
)
from .browser_sessions import BrowserSession, SessionCookie
from .evidence import (
    SECRET_BYTES,
    TOKEN_PREFIX,
    By,
    Proven,
    ShownCredentials,
    is_signed_token,
    is_token,
    named_in,
    proven_by_voucher,
    vouched,
)
from .first_token import keep_first_token
from .issuer import Issuer
from .model import (
    ADMIN,
    BUILT_IN,
    EVERYTHING,
    TENANT,
    Action,
    Binding,
    CheckedRight,
    ResourceKind,
    check_count,
    check_name,
    needed,
)
from .sessions import Sessions, session_ended

_log = structlog.get_logger("lsmq.rights")

#: A principal has so many: the one in use, and the one that comes in its place.
TOKENS_EACH: Final = 2
#: So long a change waits for those of others, first at this node and then at other ones.
_OTHERS_S: Final = 10.0
_NO_LIMITS: Final = LimitOverrides({})


class RightsService:
    """One for each node. ``start`` before anything else, ``stop`` at the end."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._documents = broker.topology.rights
        self._background = Background("rights")
        self._book = RightsBook()
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()  # of whoever changes something here: all at once, each but one would be too late
        config = broker.config
        self.on = config.auth is not Auth.NONE
        pattern = config.tls_principal_pattern
        self._name_pattern = re.compile(pattern) if pattern else None
        self._issuer = Issuer(config) if self.on and config.oidc_issuer is not None else None
        self.sessions = Sessions(config, self._documents, self._change)
        #: Grows with each change of what anybody may.
        self.version = 0

    def start(self) -> None:
        if self.on:
            self._documents.on_change(self._look)
            self._look()
            part = self._broker.parts.part("first-token", essential=False)
            self._background.start(kept(part, self._keep_first_token))
            if self._issuer is not None:
                keys, issuer = self._broker.parts.part("issuer", essential=False), self._issuer
                self._background.start(kept(keys, lambda: issuer.keep_keys(keys)))

    def begin_stop(self) -> None:
        """Nobody waits for it."""

    async def stop(self) -> None:
        await self._background.stop()

    def _look(self) -> None:
        version, documents = self._documents.known()
        if version == self.version:
            return
        self._book = RightsBook(documents, self._book)
        self.version = version
        self._broker.allowances.own = {name: each.values for name, each in self._book.limits.items()}
        if self._book.unread:
            _log.warning("rights_not_read", documents=self._book.unread[:10], count=len(self._book.unread))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _keep_first_token(self) -> None:
        cluster = self._broker.config.cluster
        name = f"{ADMIN}@{'local' if cluster is None else cluster.node}"
        await keep_first_token(self._broker.config.data, lambda secret: self._register_first(name, secret))
        await asyncio.Event().wait()

    async def _register_first(self, name: str, secret: str) -> None:
        """The token of a node's own administrator, in place of the former ones."""

        def changes(book: RightsBook) -> Changes:
            token = Token(name, runtime.token_hex(4), digest_of(secret), runtime.wall_ms(), None, name)
            grants = Grants((Binding(ADMIN),))
            former = {each.key: None for each in book.tokens_of(name)}
            return {**former, token.key: token.pack(), PRINCIPAL + name: grants.pack()}

        await self._change(changes)

    # Who, and may

    @property
    def book(self) -> RightsBook:
        """As it is known here."""
        return self._book

    async def authenticated(self, shown: ShownCredentials) -> Proven:
        """Who shows this, and until when he is taken for that.

        Raises ``Unauthenticated``, without a word of why a token is not good; ``Unavailable`` where nobody can tell.
        """
        kind = self._broker.config.tls_principal
        if shown.authorization is None and shown.certificate is not None and kind is not CertificateName.NONE:
            proven = named_in(shown.certificate, kind, self._name_pattern)
        else:
            proven = await self._proven_by_header(shown.secret)
        self._check_good(proven)
        return proven

    async def _proven_by_header(self, secret: str) -> Proven:
        found = proven_by_voucher(secret, self._documents.voucher_keys, runtime.wall_ms())
        if found is not None:
            return found
        if self._issuer is not None and is_signed_token(secret):
            return await self._issuer.proven(secret)
        if (cookie := SessionCookie.parsed(secret)) is not None:
            return await self._proven_by_session(cookie)
        token = self._book.token(secret)
        if token is None and is_token(secret):  # What is no token at all costs the control plane nothing.
            await self.newest()  # It may be new, or this node, which was away.
            token = self._book.token(secret)
        if token is None:
            raise _not_good()
        return Proven(token.principal, token.expires_ms, By.TOKEN, token.digest)

    async def _proven_by_session(self, cookie: SessionCookie) -> Proven:
        digest = digest_of(cookie.secret)
        if digest not in self._book.sessions and cookie.until_ms > runtime.wall_ms():
            await self.newest()  # Another node may have made it just now.
        session = self._book.sessions.get(digest)
        if session is None or not session.made(cookie) or runtime.wall_ms() >= cookie.until_ms:
            raise session_ended()
        return Proven(session.principal, session.expires_ms, By.SESSION, session.token, session.roles, session.digest)

    def _check_good(self, proven: Proven) -> None:
        """Raises ``Unauthenticated``."""
        now_ms = runtime.wall_ms()
        if proven.session is not None:
            session = self._book.sessions.get(proven.session)
            if session is None or not self._book.is_live(session, now_ms):
                raise session_ended()
            return
        if proven.expires_ms is not None and now_ms >= proven.expires_ms:
            raise _not_good()
        if proven.digest is not None:
            token = self._book.tokens.get(proven.digest)
            if token is None or not token.is_good(now_ms):
                raise _not_good()

    def holder(self, proven: Proven) -> RightsHolder:
        """What he may by now. Raises ``Unauthenticated`` where he is not known any more."""
        self._check_good(proven)
        return self._book.holder(proven.principal, proven.roles)

    def session(self, proven: Proven) -> BrowserSession:
        """By which he is known. Raises ``Unauthenticated`` where it has ended."""
        session = None if proven.session is None else self._book.sessions.get(proven.session)
        if session is None:
            raise session_ended()
        return session

    def voucher(self, proven: Proven) -> str:
        """What other nodes of the cluster are shown for somebody who showed a certificate."""
        return vouched(proven, self._documents.voucher_keys[0], runtime.wall_ms())

    async def newest(self) -> None:
        """Know all that was agreed on before. Raises ``Unavailable``."""
        await self._documents.newest()
        self._look()

    def check(self, holder: RightsHolder, kind: ResourceKind, name: str, action: Action) -> None:
        """Raises ``Forbidden``."""
        if not holder.may(kind, name, action):
            right = needed(kind, name, action)
            raise Forbidden(f"{holder.name} may not {right}; an administrator can grant it", right=right)

    async def changed(self) -> None:
        """Returns with the next change."""
        await self._changed.wait()

    # Changing

    async def create_token(
        self, name: str, ttl_ms: int | None, bindings: Sequence[Binding], by: str
    ) -> tuple[Token, str]:
        """A token for a principal that has none, and what it is given beside what it may already.

        Raises ``InvalidRequest``, ``UnknownRole``, ``TooManyRights``.
        """
        check_name(name, "principal")
        secret, now_ms = _new_secret(), runtime.wall_ms()
        token = _token(name, secret, now_ms, ttl_ms, by)

        def changes(book: RightsBook) -> Changes:
            if any(each.is_good(now_ms) for each in book.tokens_of(name)):
                raise InvalidRequest(f"{name} has a token; 'lsmq token rotate {name}' makes another", field="name")
            granted = _granted(book, name, bindings, ()) if bindings else {}
            former = {each.key: None for each in book.tokens_of(name)[: 1 - TOKENS_EACH]}
            return {**former, token.key: token.pack(), **granted}

        await self._change(changes)
        return token, secret

    async def rotate_token(self, name: str, ttl_ms: int | None, overlap_ms: int, by: str) -> tuple[Token, str]:
        """Another token for a principal; the one before is good for ``overlap_ms`` longer, and older ones not at all.

        Raises ``UnknownPrincipal``.
        """
        secret, now_ms = _new_secret(), runtime.wall_ms()
        token = _token(name, secret, now_ms, ttl_ms, by)

        def changes(book: RightsBook) -> Changes:
            nonlocal token
            former = book.tokens_of(name)
            good = [each for each in former if each.is_good(now_ms)]
            if not good:
                raise UnknownPrincipal(f"{name} has no token; 'lsmq token create {name}' makes one", principal=name)
            last = good[-1]
            # By the clock of another node that one may be of a later time: it is not the newest for that.
            token = replace(token, created_ms=max(now_ms, last.created_ms + 1))
            found: dict[str, bytes | None] = {**{each.key: None for each in former}, token.key: token.pack()}
            if overlap_ms:
                until_ms = min(now_ms + overlap_ms, last.expires_ms or now_ms + overlap_ms)
                kept_on = Token(name, last.id, last.digest, last.created_ms, until_ms, last.by)
                found[kept_on.key] = kept_on.pack()
            return found

        await self._change(changes)
        return token, secret

    async def revoke_tokens(self, name: str, id: str | None) -> None:
        """All of a principal, or the one with the id. What was granted stays. Raises ``UnknownPrincipal``."""

        def changes(book: RightsBook) -> Changes:
            gone = [each for each in book.tokens_of(name) if id in (None, each.id)]
            if not gone:
                what = "no token" if id is None else f"no token {id!r}"
                raise UnknownPrincipal(f"{name} has {what}; 'lsmq token list' shows all", principal=name)
            return {each.key: None for each in gone}

        await self._change(changes)

    async def put_role(self, name: str, rights: Sequence[CheckedRight]) -> None:
        """Raises ``InvalidRequest`` for a built-in one."""
        check_name(name, "role")
        check_count(len(rights), "rights of a role")
        if name in BUILT_IN:
            raise InvalidRequest(f"the role {name} is built in; choose another name", field="role")
        await self._change(lambda book: {ROLE + name: role_document(tuple(dict.fromkeys(rights)))})

    async def delete_role(self, name: str) -> None:
        """Raises ``UnknownRole``, and ``InvalidRequest`` where somebody has it."""

        def changes(book: RightsBook) -> Changes:
            if name not in book.own_roles:
                built_in = "is built in" if name in BUILT_IN else "is not there"
                raise UnknownRole(f"the role {name} {built_in}", role=name)
            holders = sorted(who for who, grants in book.grants.items() if name in {at.role for at in grants.roles})
            if holders:
                raise InvalidRequest(f"{', '.join(holders[:10])} have the role {name}; revoke it first", field="role")
            return {ROLE + name: None}

        await self._change(changes)

    async def grant(self, name: str, bindings: Sequence[Binding], rights: Sequence[CheckedRight]) -> None:
        """Raises ``InvalidRequest``, ``UnknownRole``, ``TooManyRights``."""
        check_name(name, "principal")
        await self._change(lambda book: _granted(book, name, bindings, rights))

    async def revoke(self, name: str, bindings: Sequence[Binding], rights: Sequence[CheckedRight]) -> None:
        """Take back what was granted like this. Raises ``UnknownPrincipal`` where something of it was not."""

        def changes(book: RightsBook) -> Changes:
            has = book.grants.get(name, Grants())
            for each in (*bindings, *rights):
                if each not in (*has.roles, *has.rights):
                    raise UnknownPrincipal(f"{name} was not granted {each}; 'lsmq acl list' shows all", principal=name)
            left = Grants(
                tuple(each for each in has.roles if each not in bindings),
                tuple(each for each in has.rights if each not in rights),
            )
            return {PRINCIPAL + name: left.pack()}

        await self._change(changes)

    async def alter_limits(self, name: str, given: Mapping[Limited, int | None]) -> None:
        """Set limits of a principal, beside those he has; None takes one away."""
        check_name(name, "principal")
        await self._change(lambda book: {LIMIT + name: book.limits.get(name, _NO_LIMITS).altered(given).pack()})

    async def remove_limits(self, name: str) -> None:
        """What holds for everybody holds for this principal again. Raises ``UnknownPrincipal`` where it did."""

        def changes(book: RightsBook) -> Changes:
            if name not in book.limits:
                raise UnknownPrincipal(f"{name} has no limits of its own; 'lsmq limit list' shows all", principal=name)
            return {LIMIT + name: None}

        await self._change(changes)

    async def _change(self, changes: Callable[[RightsBook], Changes]) -> None:
        if not self.on:
            raise AuthenticationOff("this node does not ask who its clients are; start it with auth = 'token'")
        loop = asyncio.get_running_loop()
        until = loop.time() + _OTHERS_S
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
        except TimeoutError:
            raise _others() from None
        try:
            while True:
                self._look()
                version, documents = self._documents.known()
                wanted = changes(self._book)
                gone = surplus(self._book, documents, wanted, runtime.wall_ms())
                if await self._documents.change({**gone, **wanted}, version):
                    self._look()
                    return
                if loop.time() > until:
                    raise _others()
        finally:
            self._turn.release()


def _others() -> Unavailable:
    return Unavailable(f"others change rights all the time, for {_OTHERS_S:g} s by now; try again")


def _not_good() -> Unauthenticated:
    return Unauthenticated("the token is not known here, has expired, or was revoked")


def _granted(book: RightsBook, name: str, bindings: Sequence[Binding], rights: Sequence[CheckedRight]) -> Changes:
    for binding in bindings:
        if binding.role not in book.roles:
            raise UnknownRole(f"there is no role {binding.role}; 'lsmq role list' shows all", role=binding.role)
        if binding.role == TENANT and not binding.prefix:
            raise InvalidRequest(f"the role {TENANT} is for names that begin alike: give the prefix", field="prefix")
        if EVERYTHING in binding.prefix:
            raise InvalidRequest(
                f"the prefix {binding.prefix!r} begins no name: give what names begin with, without a '*'",
                field="prefix",
            )
    has = book.grants.get(name, Grants())
    grants = Grants(tuple(dict.fromkeys((*has.roles, *bindings))), tuple(dict.fromkeys((*has.rights, *rights))))
    check_count(len(grants.roles), f"roles of {name}")
    check_count(len(grants.rights), f"rights of {name}")
    return {PRINCIPAL + name: grants.pack()}


def _token(name: str, secret: str, now_ms: int, ttl_ms: int | None, by: str) -> Token:
    expires_ms = None if ttl_ms is None else now_ms + ttl_ms
    return Token(name, runtime.token_hex(4), digest_of(secret), now_ms, expires_ms, by)


def _new_secret() -> str:
    return TOKEN_PREFIX + runtime.token_hex(SECRET_BYTES)
