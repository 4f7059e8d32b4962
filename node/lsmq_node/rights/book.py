"""Principals, tokens and roles as they are agreed on, and what each may. Pure: built from documents, and never changed.

Keys and values of the documents, msgpack maps::

    principal/NAME    {"version": 1, "roles": [[role, prefix], ...], "rights": [[kind, pattern, action], ...]}
    role/NAME         {"version": 1, "rights": [[kind, pattern, action], ...]}
    limit/NAME        {"version": 1, "limits": {name: int}}
    token/NAME/ID     {"version": 1, "hash": sha256, "created_ms": int, "expires_ms": int | nil, "by": name}
    session/NAME/ID   {"version": 1, "hash": sha256, "key": bytes, "token": sha256 | nil, "created_ms": int,
                       "expires_ms": int, "roles": [[role, prefix], ...]}

Of a token, or the secret of a session, its hash alone is known: it has 256 random bits, so that a slow hash would
protect nothing more.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import msgpack

from lsmq_coordinator.state import MAX_RIGHTS_BYTES
from lsmq_node.broker import Limited

from .browser_sessions import BrowserSession
from .model import BUILT_IN, TENANT, Action, Binding, CheckedRight, ResourceKind, allowing

PRINCIPAL: Final = "principal/"
ROLE: Final = "role/"
TOKEN: Final = "token/"
LIMIT: Final = "limit/"
SESSION: Final = "session/"
#: What tokens and sessions take that are over; there is less where others need the room: some thousand.
MAX_OVER_BYTES: Final = 512 * 1024
_VERSION: Final = 1
_REMEMBERED: Final = 1_000
_HOLDERS: Final = 10_000

#: Documents by key; None takes one away.
Changes = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Token:
    """A token's id is part of its key. Without ``expires_ms`` it is good until it is revoked."""

    principal: str
    id: str
    digest: bytes = field(repr=False)
    created_ms: int
    expires_ms: int | None
    by: str

    @property
    def key(self) -> str:
        return f"{TOKEN}{self.principal}/{self.id}"

    def is_good(self, now_ms: int) -> bool:
        return self.expires_ms is None or now_ms < self.expires_ms

    def pack(self) -> bytes:
        return _pack(hash=self.digest, created_ms=self.created_ms, expires_ms=self.expires_ms, by=self.by)


@dataclass(frozen=True, slots=True)
class Grants:
    """What was given to a principal."""

    roles: tuple[Binding, ...] = ()
    rights: tuple[CheckedRight, ...] = ()

    def pack(self) -> bytes | None:
        """None where there is nothing to keep."""
        if not self.roles and not self.rights:
            return None
        return _pack(roles=[[each.role, each.prefix] for each in self.roles], rights=_listed(self.rights))


@dataclass(frozen=True, slots=True)
class LimitOverrides:
    """What was set for a principal, in place of what holds for everybody; 0 is no limit."""

    values: Mapping[Limited, int]

    def altered(self, changes: Mapping[Limited, int | None]) -> LimitOverrides:
        """None takes one away."""
        changed = {**self.values, **changes}
        return LimitOverrides(MappingProxyType({name: value for name, value in changed.items() if value is not None}))

    def pack(self) -> bytes | None:
        """None where there is nothing to keep."""
        return _pack(limits={name.value: value for name, value in self.values.items()}) if self.values else None


class RightsHolder:
    """A principal and all it may. Answers are remembered, a bounded number of them."""

    __slots__ = ("_known", "name", "rights")

    def __init__(self, name: str, rights: tuple[CheckedRight, ...]) -> None:
        self.name = name
        self.rights = rights
        self._known: dict[tuple[ResourceKind, str, Action], bool] = {}

    def may(self, kind: ResourceKind, name: str, action: Action) -> bool:
        asked = (kind, name, action)
        found = self._known.get(asked)
        if found is None:
            found = allowing(self.rights, kind, name, action) is not None
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[asked] = found
        return found


class RightsBook:
    """All of it, but for the documents whose keys are ``unread``, which a later release wrote: they give no rights."""

    def __init__(self, documents: Mapping[str, bytes] = MappingProxyType({}), former: RightsBook | None = None) -> None:
        """What has not changed since the ``former`` one is not read again."""
        self.tokens: dict[bytes, Token] = {}
        self.grants: dict[str, Grants] = {}
        self.own_roles: dict[str, tuple[CheckedRight, ...]] = {}
        self.limits: dict[str, LimitOverrides] = {}
        self.sessions: dict[bytes, BrowserSession] = {}
        self.unread: list[str] = []
        self._holders: dict[tuple[str, tuple[Binding, ...]], RightsHolder] = {}
        self._read: dict[str, tuple[bytes, _Item]] = {}
        known = {} if former is None else former._read
        for key, body in documents.items():
            found = known.get(key)
            try:
                item = found[1] if found is not None and found[0] == body else _read_document(key, _unpack(key, body))
            except (KeyError, TypeError, ValueError):
                self.unread.append(key)
                continue
            self._read[key] = body, item
            match item:
                case Token():
                    self.tokens[item.digest] = item
                case Grants():
                    self.grants[key.removeprefix(PRINCIPAL)] = item
                case LimitOverrides():
                    self.limits[key.removeprefix(LIMIT)] = item
                case BrowserSession():
                    self.sessions[item.digest] = item
                case _:
                    self.own_roles[key.removeprefix(ROLE)] = item

    @property
    def roles(self) -> Mapping[str, tuple[CheckedRight, ...]]:
        return {**self.own_roles, **BUILT_IN}

    def token(self, secret: str) -> Token | None:
        """Whether it is still good is another question."""
        return self.tokens.get(digest_of(secret))

    def tokens_of(self, principal: str) -> list[Token]:
        """Oldest first."""
        found = [token for token in self.tokens.values() if token.principal == principal]
        return sorted(found, key=lambda token: (token.created_ms, token.id))

    def is_live(self, session: BrowserSession, now_ms: int) -> bool:
        """Whether it goes on: it has not expired, and nor has the token that it stands for, or been revoked."""
        return now_ms < self.end_ms(session)

    def end_ms(self, session: BrowserSession) -> int:
        """When it is over, or its token; 0 where that was revoked."""
        if session.token is None:
            return session.expires_ms
        token = self.tokens.get(session.token)
        if token is None:
            return 0
        return session.expires_ms if token.expires_ms is None else min(session.expires_ms, token.expires_ms)

    def sessions_of(self, principal: str) -> list[BrowserSession]:
        """Oldest first."""
        found = [session for session in self.sessions.values() if session.principal == principal]
        return sorted(found, key=lambda session: (session.created_ms, session.id))

    def knows(self, principal: str) -> bool:
        return principal in self.grants or any(token.principal == principal for token in self.tokens.values())

    def holder(self, principal: str, roles: tuple[Binding, ...] = ()) -> RightsHolder:
        """With ``roles`` beside those that were granted. Of one that nobody knows: one that may nothing more."""
        found = self._holders.get((principal, roles))
        if found is None:
            rights = (right for right, _ in (*self._of(principal), *self._bound(roles)))
            found = RightsHolder(principal, tuple(dict.fromkeys(rights)))
            if roles or self.knows(principal):
                if len(self._holders) >= _HOLDERS:
                    self._holders.clear()
                self._holders[principal, roles] = found
        return found

    def why(self, principal: str, kind: ResourceKind, name: str, action: Action) -> str | None:
        """By what it may, in words; None where it may not."""
        for right, given in self._of(principal):
            if allowing((right,), kind, name, action) is not None:
                return given
        return None

    def _of(self, principal: str) -> Iterator[tuple[CheckedRight, str]]:
        grants = self.grants.get(principal, Grants())
        for right in grants.rights:
            yield right, str(right)
        yield from self._bound(grants.roles)

    def _bound(self, bindings: Iterable[Binding]) -> Iterator[tuple[CheckedRight, str]]:
        """What roles give. One that nobody knows gives nothing, nor does a tenant's for all names."""
        for binding in bindings:
            for right in self.roles.get(binding.role, ()) if binding.prefix or binding.role != TENANT else ():
                if (left := right.within(binding.prefix)) is not None:
                    yield left, str(binding)


_Item = Token | Grants | LimitOverrides | BrowserSession | tuple[CheckedRight, ...]


def _read_document(key: str, fields: dict[str, Any]) -> _Item:
    """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what this release does not know."""
    if key.startswith(TOKEN):
        principal, _, id = key.removeprefix(TOKEN).rpartition("/")
        return Token(principal, id, fields["hash"], fields["created_ms"], fields["expires_ms"], fields["by"])
    if key.startswith(SESSION):
        principal, _, id = key.removeprefix(SESSION).rpartition("/")
        roles = tuple(Binding(*each) for each in fields["roles"])
        times = fields["created_ms"], fields["expires_ms"]
        return BrowserSession(principal, id, fields["hash"], fields["key"], fields["token"], roles, *times)
    if key.startswith(PRINCIPAL):
        return Grants(tuple(Binding(*each) for each in fields["roles"]), _read(fields["rights"]))
    if key.startswith(ROLE):
        return _read(fields["rights"])
    if key.startswith(LIMIT):
        return LimitOverrides(MappingProxyType({Limited(name): int(value) for name, value in fields["limits"].items()}))
    raise ValueError(key)


def session_key(session: BrowserSession) -> str:
    return f"{SESSION}{session.principal}/{session.id}"


def session_document(session: BrowserSession) -> bytes:
    return _pack(**session.fields())


def surplus(book: RightsBook, documents: Mapping[str, bytes], changes: Changes, now_ms: int) -> Changes:
    """Which tokens and sessions that are over go with a change: those over longest, where their room is needed.

    The others are kept: a wall clock that is ahead says of good ones that they are over, until it is set right.
    """
    ends = {each.key: each.expires_ms or 0 for each in book.tokens.values() if not each.is_good(now_ms)}
    ends |= {session_key(each): book.end_ms(each) for each in book.sessions.values() if not book.is_live(each, now_ms)}
    sizes = {key: len(key) + len(body) for key, body in {**documents, **changes}.items() if body is not None}
    latest_first = sorted((key for key in ends if key in sizes and key not in changes), key=ends.__getitem__)[::-1]
    of_others = sum(sizes.values()) - sum(sizes[key] for key in latest_first)
    room = min(MAX_OVER_BYTES, MAX_RIGHTS_BYTES - of_others)
    taken = itertools.accumulate(sizes[key] for key in latest_first)
    return {key: None for key, bytes_so_far in zip(latest_first, taken, strict=True) if bytes_so_far > room}


def role_document(rights: tuple[CheckedRight, ...]) -> bytes:
    return _pack(rights=_listed(rights))


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def _listed(rights: tuple[CheckedRight, ...]) -> list[list[str]]:
    return [[right.kind.value, right.pattern, right.action.value] for right in rights]


def _read(rights: list[list[str]]) -> tuple[CheckedRight, ...]:
    return tuple(CheckedRight(ResourceKind(kind), pattern, Action(action)) for kind, pattern, action in rights)


def _pack(**fields: Any) -> bytes:
    body: bytes = msgpack.packb({"version": _VERSION, **fields})
    return body


def _unpack(key: str, body: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(body)
    if fields["version"] > _VERSION:
        raise ValueError(f"{key} has version {fields['version']}; this release reads {_VERSION}")
    return fields
