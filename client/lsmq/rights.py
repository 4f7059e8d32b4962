"""Who may use a cluster, and for what: tokens, roles and grants, for administrators. See ``docs/security.md``.

::

    rights = Rights(client)
    made = await rights.create_token("shop", ttl_ms=90 * 86_400_000, roles=[GrantedRole("producer", "shop.")])
    Path("shop.token").write_text(made.token)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from lsmq._known_fields import of_known
from lsmq._paths import quoted
from lsmq._reading import all_pages, read
from lsmq._transport import Response
from lsmq.client import Client
from lsmq.errors import LsmqError, UnknownPrincipal, UnknownRole

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GrantedRole:
    """A role; with a ``prefix`` only for names that begin with it."""

    role: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.role} on {self.prefix}*" if self.prefix else self.role


@dataclass(frozen=True, slots=True)
class Right:
    """An ``action`` on resources of a ``kind`` whose names ``pattern`` says: a name, the beginning of names and ``*``,
    or ``*``."""

    kind: str
    pattern: str
    action: str

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.pattern}"


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token, without what is secret of it. ``by``: who made it. ``good``: it has not expired."""

    name: str
    id: str
    created_ms: int
    expires_ms: int | None
    by: str
    good: bool = True


@dataclass(frozen=True, slots=True)
class NewToken(TokenInfo):
    """With the ``token`` itself, which nobody can be told again."""

    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Role:
    """``built_in``: every cluster has it."""

    name: str
    built_in: bool
    rights: tuple[Right, ...]


@dataclass(frozen=True, slots=True)
class Principal:
    """What was granted to somebody."""

    name: str
    roles: tuple[GrantedRole, ...]
    rights: tuple[Right, ...]


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """Whom a node takes the client for. ``auth``: how it knows; where that is ``none``, ``name`` is None. ``by``: what
    the client showed, ``token``, ``certificate``, ``oidc`` or ``session``. ``allowed``: all that it may, by roles and
    rights together; None where that is everything, or the node, of a release before, does not say."""

    auth: str
    name: str | None
    expires_ms: int | None
    roles: tuple[GrantedRole, ...]
    rights: tuple[Right, ...]
    by: str | None = None
    allowed: tuple[Right, ...] | None = None


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """How much of each node principals may take, by names of limits; 0 is no limit. ``defaults``: at the node that
    answered, for whom nothing else was set. ``own``: by name, what was set for somebody."""

    defaults: Mapping[str, int]
    own: Mapping[str, Mapping[str, int]]


class Rights:
    """All methods raise ``Unauthenticated`` and ``Forbidden``; those that change something ``AuthenticationOff``."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def whoami(self) -> WhoAmI:
        """Whom the node takes this client for."""
        return await read(self.client, "GET", "/v1/whoami", _who)

    # Tokens

    async def tokens(self) -> list[TokenInfo]:
        """All of them, by name."""
        pages = await self._pages("/v1/tokens", lambda page: [of_known(TokenInfo, fields) for fields in page["tokens"]])
        return [token for page in pages for token in page]

    async def _pages(self, path: str, parse: Callable[[Mapping[str, Any]], T]) -> list[T]:
        """All of a list; a node of an earlier release has it on one."""
        router = self.client._router

        async def ask(params: dict[str, str]) -> Response:
            return (await router.ask_any("GET", path, params=params, deadline=self.client._deadline()))[0]

        return await all_pages(ask, parse)

    async def create_token(
        self, name: str, *, ttl_ms: int | None = None, roles: Iterable[GrantedRole] = ()
    ) -> NewToken:
        """A token for somebody who has none; without ``ttl_ms`` it is good until it is revoked.

        Raises ``InvalidRequest`` where ``name`` has one, ``UnknownRole``. Where the answer is lost, so is the token:
        :meth:`rotate_token`.
        """
        asked = {"name": name, "roles": [asdict(each) for each in roles], **_ttl(ttl_ms)}
        return await read(self.client, "POST", "/v1/tokens", partial(of_known, NewToken), asked)

    async def rotate_token(self, name: str, *, ttl_ms: int | None = None, overlap_ms: int = 86_400_000) -> NewToken:
        """Another token; the one before is good for ``overlap_ms`` longer. Raises ``UnknownPrincipal``."""
        asked = {"overlap_ms": overlap_ms, **_ttl(ttl_ms)}
        return await read(self.client, "POST", f"/v1/tokens/{quoted(name)}/rotate", partial(of_known, NewToken), asked)

    async def revoke_tokens(self, name: str, id: str | None = None) -> None:
        """All of somebody's, or one. On all nodes within a second. Raises ``UnknownPrincipal``."""
        query = "" if id is None else f"?id={quoted(id)}"
        await self._take_away("DELETE", f"/v1/tokens/{quoted(name)}{query}", UnknownPrincipal)

    async def _take_away(self, method: str, path: str, gone: type[LsmqError], value: Any = None) -> None:
        """Where an attempt whose answer was lost has done it, the next one finds nothing: it is done."""
        deadline = self.client._deadline()
        await self.client._router.ask_any(method, path, deadline=deadline, accept_repeated=gone, value=value)

    # Roles

    async def roles(self) -> list[Role]:
        """By name."""
        pages = await self._pages("/v1/roles", lambda page: [_role(fields) for fields in page["roles"]])
        return [role for page in pages for role in page]

    async def put_role(self, name: str, rights: Iterable[Right]) -> None:
        """Make a role, or put these in place of its rights. Raises ``InvalidRequest`` for a built-in one."""
        await self.client.ask("PUT", f"/v1/roles/{quoted(name)}", {"rights": [asdict(each) for each in rights]})

    async def delete_role(self, name: str) -> None:
        """Raises ``UnknownRole``, and ``InvalidRequest`` where somebody has it."""
        await self._take_away("DELETE", f"/v1/roles/{quoted(name)}", UnknownRole)

    # Grants

    async def grants(self) -> list[Principal]:
        """Who was granted what, by name."""
        pages = await self._pages(
            "/v1/acl", lambda page: [Principal(fields["name"], *_grants(fields)) for fields in page["principals"]]
        )
        return [principal for page in pages for principal in page]

    async def grant(self, name: str, *, roles: Iterable[GrantedRole] = (), rights: Iterable[Right] = ()) -> None:
        """Beside what was granted before. Raises ``UnknownRole``."""
        await self.client.ask("POST", f"/v1/acl/{quoted(name)}/grant", _given(roles, rights))

    async def revoke(self, name: str, *, roles: Iterable[GrantedRole] = (), rights: Iterable[Right] = ()) -> None:
        """As it was granted. Raises ``UnknownPrincipal`` where something of it was not."""
        path = f"/v1/acl/{quoted(name)}/revoke"
        await self._take_away("POST", path, UnknownPrincipal, _given(roles, rights))

    async def test(self, name: str, kind: str, resource: str, action: str) -> str | None:
        """By what somebody may do it, in words; None where he may not."""
        asked = {"kind": kind, "name": resource, "action": action}
        by: str | None = await read(
            self.client, "POST", f"/v1/acl/{quoted(name)}/test", lambda found: found["by"], asked
        )
        return by

    # Limits

    async def limits(self) -> PrincipalLimits:
        """What holds for everybody, and for somebody alone."""
        own: dict[str, Mapping[str, int]] = {}
        defaults: Mapping[str, int] = {}
        for everybody, some in await self._pages("/v1/limits", _limits):
            own.update(some)
            defaults = everybody
        return PrincipalLimits(defaults, own)

    async def alter_limits(self, name: str, limits: Mapping[str, int | None]) -> None:
        """Give somebody limits of his own, beside those he has, such as ``{"requests_per_s": 100}``.

        None takes one away. On all nodes within a second; each counts for itself.
        """
        await self.client.ask("PATCH", f"/v1/limits/{quoted(name)}", dict(limits))

    async def remove_limits(self, name: str) -> None:
        """What holds for everybody holds for him again. Raises ``UnknownPrincipal`` where he has none of his own."""
        await self._take_away("DELETE", f"/v1/limits/{quoted(name)}", UnknownPrincipal)


def _given(roles: Iterable[GrantedRole], rights: Iterable[Right]) -> dict[str, Any]:
    return {"roles": [asdict(each) for each in roles], "rights": [asdict(each) for each in rights]}


def _ttl(ttl_ms: int | None) -> dict[str, int]:
    return {} if ttl_ms is None else {"ttl_ms": ttl_ms}


def _who(fields: Mapping[str, Any]) -> WhoAmI:
    allowed = None if fields.get("allowed") is None else _rights(fields["allowed"])
    return WhoAmI(fields["auth"], fields["name"], fields["expires_ms"], *_grants(fields), fields.get("by"), allowed)


def _role(fields: Mapping[str, Any]) -> Role:
    return Role(fields["name"], fields["built_in"], _rights(fields["rights"]))


def _limits(page: Mapping[str, Any]) -> tuple[Mapping[str, int], dict[str, Mapping[str, int]]]:
    """What holds for everybody, and for some alone."""
    return dict(page["defaults"]), {fields["name"]: dict(fields["limits"]) for fields in page["principals"]}


def _rights(found: Iterable[Mapping[str, Any]]) -> tuple[Right, ...]:
    return tuple(of_known(Right, fields) for fields in found)


def _grants(fields: Mapping[str, Any]) -> tuple[tuple[GrantedRole, ...], tuple[Right, ...]]:
    return tuple(of_known(GrantedRole, each) for each in fields["roles"]), _rights(fields["rights"])
