"""Schemas of tokens, roles and grants."""

from __future__ import annotations

from typing import Final

from lsmq_node.broker import Limited
from lsmq_node.rights import Action, By, ResourceKind
from lsmq_node.rights.model import MAX_PATTERN_BYTES, MAX_RIGHTS

from .schema import Schema, flag, integer, list_of, object_of, text
from .schemas import NEXT, TIME_MS

MAX_TTL_MS = 100 * 365 * 86_400_000
MAX_OVERLAP_MS = 30 * 86_400_000

NAME: Schema = text(
    "1 to 128 letters, digits, '.', '_', '@' and '-', beginning with a letter or digit",
    pattern="[A-Za-z0-9][A-Za-z0-9._@-]{0,127}",
)
TOKEN_ID: Schema = text("Id of a token, 8 hex digits.", pattern="[0-9a-f]{8}")
_KIND: Schema = {"enum": [each.value for each in ResourceKind]}
_ACTION: Schema = {"enum": [each.value for each in Action]}
_PREFIX: Schema = text("Only for names that begin with it.", maxLength=MAX_PATTERN_BYTES - 1, default="")
_BINDING: Schema = object_of({"role": NAME, "prefix": _PREFIX}, required=("role",))
_PATTERN: Schema = text("A name, the beginning of names and `*`, or `*`.", minLength=1, maxLength=MAX_PATTERN_BYTES)
_RIGHT: Schema = object_of({"kind": _KIND, "pattern": _PATTERN, "action": _ACTION})
ROLES: Schema = list_of(_BINDING, maxItems=MAX_RIGHTS, default=())
RIGHTS: Schema = list_of(_RIGHT, maxItems=MAX_RIGHTS, default=())
_EXPIRES: Schema = {**TIME_MS, "type": ["integer", "null"]}
_TTL: Schema = integer(1_000, MAX_TTL_MS, "Good for so long; without it until it is revoked.")

_OVERLAP: Schema = integer(0, MAX_OVERLAP_MS, "The one before is good for so long.", default=86_400_000)

CREATE: Schema = object_of({"name": NAME, "ttl_ms": _TTL, "roles": ROLES}, required=("name",))
ROTATE: Schema = object_of(
    {
        "ttl_ms": _TTL,
        "overlap_ms": _OVERLAP,
    },
    required=(),
)
_TOKEN = {"name": NAME, "id": TOKEN_ID, "created_ms": TIME_MS, "expires_ms": _EXPIRES, "by": text()}
NEW_TOKEN: Schema = object_of({**_TOKEN, "token": text("Shown here, and never again.")})
TOKENS: Schema = object_of(
    {"tokens": list_of(object_of({**_TOKEN, "good": flag("Whether it has not expired.")})), "next": NEXT}
)
ROLE: Schema = object_of({"rights": RIGHTS})
ROLES_ANSWER: Schema = object_of(
    {"roles": list_of(object_of({"name": NAME, "built_in": flag(), "rights": RIGHTS})), "next": NEXT}
)
GRANTS: Schema = object_of({"roles": ROLES, "rights": RIGHTS}, required=())
_PRINCIPAL = object_of({"name": NAME, "roles": ROLES, "rights": RIGHTS})
SESSION: Schema = object_of(
    {
        "name": NAME,
        "expires_ms": {**TIME_MS, "description": "When it ends, however it is used."},
        "idle_until_ms": {**TIME_MS, "description": "When it ends unless it is renewed."},
        "anti_forgery": text("To be sent in `Lsmq-Anti-Forgery` with all that changes something."),
    }
)
PRINCIPALS: Schema = object_of({"principals": list_of(_PRINCIPAL), "next": NEXT})
TEST: Schema = object_of({"kind": _KIND, "name": text(default=""), "action": _ACTION}, required=("kind", "action"))
TESTED: Schema = object_of({"allowed": flag(), "by": text("What allows it; null: nothing does.", null=True)})
_OF_EVERYBODY: Schema = object_of({each.value: integer(0) for each in Limited})
_MOST: Final = 2**53
ALTER_LIMITS: Schema = object_of(
    {each.value: integer(0, _MOST, "0: none; null: as for everybody.", null=True) for each in Limited}, required=()
)
LIMITS: Schema = object_of(
    {
        "defaults": {**_OF_EVERYBODY, "description": "For whom nothing else was set, at this node; 0 is no limit."},
        "principals": list_of(
            object_of({"name": NAME, "limits": object_of({each.value: integer(0) for each in Limited}, required=())})
        ),
        "next": NEXT,
    }
)
WHOAMI: Schema = object_of(
    {
        "auth": text("How this node knows its clients: `none`, `token`."),
        "name": text("Of the principal; null where nobody is asked.", null=True),
        "by": {"enum": [*By, None], "description": "What the caller showed; null where nobody is asked."},
        "expires_ms": _EXPIRES,
        "roles": ROLES,
        "rights": RIGHTS,
        "allowed": {
            **list_of(_RIGHT, "All that the caller may, by roles and rights; null where nobody is asked: everything."),
            "type": ["array", "null"],
        },
    }
)
