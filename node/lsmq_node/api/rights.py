"""Tokens, roles and grants: who may use the node, and for what. See docs/security.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from lsmq import runtime
from lsmq.errors import AuthenticationOff, TooManyRights, UnknownPrincipal, UnknownRole
from lsmq_node.broker import Limited
from lsmq_node.rights import Action, Binding, CheckedRight, ResourceKind
from lsmq_node.rights.book import Grants, Token
from lsmq_node.rights.model import BUILT_IN

from . import rights_schemas as schemas
from .codec import answer
from .pages import PAGE, page
from .routing import Call, Content, Parameter, Routes

ROUTES = Routes("rights")
_PRINCIPAL = Parameter("principal", schemas.NAME, "Name of who has the token.")
_ROLE = Parameter("role", schemas.NAME, "Name of the role.")
_ID = Parameter("id", schemas.TOKEN_ID, "This one alone.")
_CHANGES = (AuthenticationOff, TooManyRights)
_NONE = Content("Done, durably; all nodes obey it within a second.", status=204)


def _bindings(document: dict[str, Any]) -> Sequence[Binding]:
    return [Binding(each["role"], each.get("prefix", "")) for each in document.get("roles", ())]


def _rights(document: dict[str, Any]) -> Sequence[CheckedRight]:
    return [CheckedRight.parsed(each["kind"], each["pattern"], each["action"]) for each in document.get("rights", ())]


def _shown_rights(rights: Iterable[CheckedRight]) -> list[dict[str, Any]]:
    return [{"kind": each.kind, "pattern": each.pattern, "action": each.action} for each in rights]


def _shown_grants(grants: Grants) -> dict[str, Any]:
    roles = [{"role": each.role, "prefix": each.prefix} for each in grants.roles]
    return {"roles": roles, "rights": _shown_rights(grants.rights)}


def _shown_limits(limits: Mapping[Limited, int]) -> dict[str, int]:
    return {name.value: value for name, value in limits.items()}


def _shown_token(token: Token) -> dict[str, Any]:
    return {
        "name": token.principal,
        "id": token.id,
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms,
        "by": token.by,
    }


@ROUTES.get("/v1/whoami", Content("As this node knows the caller.", schemas.WHOAMI))
async def whoami(call: Call) -> web.StreamResponse:
    """Who the caller is, and what he was granted."""
    asker, book = call.asker, call.node.rights.book
    grants = Grants() if asker.name is None else book.grants.get(asker.name, Grants())
    proven = asker.proven
    if proven is not None:
        grants = Grants(tuple(dict.fromkeys((*grants.roles, *proven.roles))), grants.rights)
    found = {
        "auth": call.broker.config.auth.value,
        "name": asker.name,
        "by": None if proven is None else proven.by,
        "expires_ms": asker.expires_ms,
    }
    allowed = None if asker.holder is None else _shown_rights(asker.holder.rights)
    return answer(call.request, {**found, **_shown_grants(grants), "allowed": allowed})


@ROUTES.get("/v1/tokens", Content("Without what is secret of them.", schemas.TOKENS), parameters=PAGE)
async def list_tokens(call: Call) -> web.StreamResponse:
    """All tokens, by name, the older of one name first."""
    now_ms = runtime.wall_ms()
    tokens, following = page(call, call.node.rights.book.tokens.values(), _place)
    found = [{**_shown_token(token), "good": token.is_good(now_ms)} for token in tokens]
    return answer(call.request, {"tokens": found, "next": following})


def _place(token: Token) -> str:
    """Of a token among all: a space comes before all that a name has."""
    return f"{token.principal} {token.created_ms:016d} {token.id}"


@ROUTES.post(
    "/v1/tokens",
    Content("The token, shown this once.", schemas.NEW_TOKEN, status=201),
    request=Content("For whom, for how long, and with which roles.", schemas.CREATE),
    errors=(*_CHANGES, UnknownRole),
)
async def create_token(call: Call) -> web.StreamResponse:
    """Make a token for somebody who has none."""
    document = await call.checked_document()
    token, secret = await call.node.rights.create_token(
        document["name"], document.get("ttl_ms"), _bindings(document), call.asker.name or ""
    )
    return answer(call.request, {**_shown_token(token), "token": secret}, 201)


@ROUTES.post(
    "/v1/tokens/{principal}/rotate",
    Content("The new one, shown this once.", schemas.NEW_TOKEN, status=201),
    parameters=(_PRINCIPAL,),
    request=Content("How long it is good, and how long the one before.", schemas.ROTATE),
    errors=(*_CHANGES, UnknownPrincipal),
)
async def rotate_token(call: Call) -> web.StreamResponse:
    """Make another token for somebody.

    The one before is good for a while longer, so that nobody is locked out while it is exchanged. What is older is good
    no longer.
    """
    document = await call.checked_document()
    token, secret = await call.node.rights.rotate_token(
        call.path("principal"), document.get("ttl_ms"), document["overlap_ms"], call.asker.name or ""
    )
    return answer(call.request, {**_shown_token(token), "token": secret}, 201)


@ROUTES.delete("/v1/tokens/{principal}", _NONE, parameters=(_PRINCIPAL, _ID), errors=(*_CHANGES, UnknownPrincipal))
async def revoke_tokens(call: Call) -> web.StreamResponse:
    """Revoke somebody's tokens.

    Requests that are held for them are refused, and their streams end. What they were granted stays.
    """
    await call.node.rights.revoke_tokens(call.path("principal"), call.query["id"])
    return web.Response(status=204)


@ROUTES.get("/v1/roles", Content("Those of every cluster, and this one's own.", schemas.ROLES_ANSWER), parameters=PAGE)
async def list_roles(call: Call) -> web.StreamResponse:
    """All roles, with their rights."""
    roles = call.node.rights.book.roles
    names, following = page(call, roles)
    found = [{"name": name, "built_in": name in BUILT_IN, "rights": _shown_rights(roles[name])} for name in names]
    return answer(call.request, {"roles": found, "next": following})


@ROUTES.put(
    "/v1/roles/{role}",
    _NONE,
    parameters=(_ROLE,),
    request=Content("All it is to have.", schemas.ROLE),
    errors=_CHANGES,
)
async def put_role(call: Call) -> web.StreamResponse:
    """Make a role, or change what it may."""
    name, document = call.path("role"), await call.checked_document()
    await call.node.rights.put_role(name, _rights(document))
    return web.Response(status=204)


@ROUTES.delete("/v1/roles/{role}", _NONE, parameters=(_ROLE,), errors=(*_CHANGES, UnknownRole))
async def delete_role(call: Call) -> web.StreamResponse:
    """Delete a role that nobody has."""
    await call.node.rights.delete_role(call.path("role"))
    return web.Response(status=204)


@ROUTES.get("/v1/acl", Content("By name.", schemas.PRINCIPALS), parameters=PAGE)
async def list_grants(call: Call) -> web.StreamResponse:
    """Who was granted what."""
    grants = call.node.rights.book.grants
    names, following = page(call, grants)
    listed = [{"name": name, **_shown_grants(grants[name])} for name in names]
    return answer(call.request, {"principals": listed, "next": following})


@ROUTES.post(
    "/v1/acl/{principal}/grant",
    _NONE,
    parameters=(_PRINCIPAL,),
    request=Content("Roles and rights, beside those there are.", schemas.GRANTS),
    errors=(*_CHANGES, UnknownRole),
)
async def grant_rights(call: Call) -> web.StreamResponse:
    """Grant roles and rights to somebody, who need not have a token yet."""
    name, document = call.path("principal"), await call.checked_document()
    await call.node.rights.grant(name, _bindings(document), _rights(document))
    return web.Response(status=204)


@ROUTES.post(
    "/v1/acl/{principal}/revoke",
    _NONE,
    parameters=(_PRINCIPAL,),
    request=Content("As they were granted.", schemas.GRANTS),
    errors=(*_CHANGES, UnknownPrincipal),
)
async def revoke_rights(call: Call) -> web.StreamResponse:
    """Take back roles and rights."""
    name, document = call.path("principal"), await call.checked_document()
    await call.node.rights.revoke(name, _bindings(document), _rights(document))
    return web.Response(status=204)


@ROUTES.post(
    "/v1/acl/{principal}/test",
    Content("Whether it would be allowed now.", schemas.TESTED),
    parameters=(_PRINCIPAL,),
    request=Content("To do what to which resource.", schemas.TEST),
)
async def test_rights(call: Call) -> web.StreamResponse:
    """Whether somebody may do something, and by what."""
    name, document = call.path("principal"), await call.checked_document()
    kind, action = ResourceKind(document["kind"]), Action(document["action"])
    by = call.node.rights.book.why(name, kind, document["name"], action)
    return answer(call.request, {"allowed": by is not None, "by": by})


@ROUTES.get("/v1/limits", Content("By name.", schemas.LIMITS), parameters=PAGE)
async def list_limits(call: Call) -> web.StreamResponse:
    """Limits of principals: what holds for everybody, and who has his own."""
    found, following = page(call, call.node.rights.book.limits)
    own = call.node.rights.book.limits
    listed = [{"name": name, "limits": _shown_limits(own[name].values)} for name in found]
    defaults = _shown_limits(call.broker.allowances.defaults)
    return answer(call.request, {"defaults": defaults, "principals": listed, "next": following})


@ROUTES.patch(
    "/v1/limits/{principal}",
    _NONE,
    parameters=(_PRINCIPAL,),
    request=Content("The limits to change.", schemas.ALTER_LIMITS),
    errors=_CHANGES,
)
async def alter_limits(call: Call) -> web.StreamResponse:
    """Give somebody limits of his own.

    What is left out stays; null has what holds for everybody hold for him again. Each node counts for itself.
    """
    name, document = call.path("principal"), await call.checked_document()
    await call.node.rights.alter_limits(name, {Limited(each): value for each, value in document.items()})
    return web.Response(status=204)


@ROUTES.delete("/v1/limits/{principal}", _NONE, parameters=(_PRINCIPAL,), errors=(*_CHANGES, UnknownPrincipal))
async def remove_limits(call: Call) -> web.StreamResponse:
    """Take somebody's own limits away."""
    await call.node.rights.remove_limits(call.path("principal"))
    return web.Response(status=204)
