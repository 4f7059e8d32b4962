"""What can be allowed: an action on resources of a kind whose names a pattern says. Pure.

A pattern is a name, the beginning of names followed by ``*``, or ``*`` alone. Whoever may do anything to a resource may
know of it: every action brings ``describe``. What is not allowed is forbidden; there is nothing that forbids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from lsmq.errors import InvalidRequest

MAX_RIGHTS: Final = 200
"""So many a role or a principal may have, and so many roles a principal."""
MAX_PATTERN_BYTES: Final = 256
EVERYTHING: Final = "*"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


E = TypeVar("E", bound=StrEnum)


class ResourceKind(StrEnum):
    """Of resources. Names reach disk and wire: never renamed."""

    TOPIC = "topic"
    GROUP = "group"  # of consumers
    PRODUCER_GROUP = "producer-group"
    CLUSTER = "cluster"  # nodes and shards, status and metrics; there is one, and it has no name
    RIGHTS = "rights"  # tokens, roles and grants; so are these


#: Kinds whose resources have names, so that a prefix can bound them.
NAMED_KINDS: Final = frozenset({ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.PRODUCER_GROUP})


class Action(StrEnum):
    """Names reach disk and wire: never renamed."""

    DESCRIBE = "describe"  # know of it
    READ = "read"  # messages of a topic; as a member of a group, acknowledging and committing
    WRITE = "write"  # messages to a topic; transactions of a producer group
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CheckedRight:
    """To do ``action`` to resources of a kind whose names ``pattern`` says."""

    kind: ResourceKind
    pattern: str
    action: Action

    @classmethod
    def parsed(cls, kind: str, pattern: str, action: str) -> CheckedRight:
        """Raises ``InvalidRequest``, naming what there is."""
        right = cls(_one_of(ResourceKind, kind, "kind"), pattern, _one_of(Action, action, "action"))
        if not 0 < len(pattern.encode(errors="surrogatepass")) <= MAX_PATTERN_BYTES or "*" in pattern[:-1]:
            raise InvalidRequest(
                f"{pattern[:80]!r} names no resources: give a name, the beginning of names and '*', or '*' alone, of "
                f"up to {MAX_PATTERN_BYTES} bytes",
                field="pattern",
                limit=MAX_PATTERN_BYTES,
            )
        if right.kind not in NAMED_KINDS and pattern != EVERYTHING:
            raise InvalidRequest(f"a {kind} has no name: its pattern is '*'", field="pattern")
        return right

    def within(self, prefix: str) -> CheckedRight | None:
        """What is left of it for names that begin with ``prefix``; None for nothing."""
        if not prefix:
            return self
        if self.kind not in NAMED_KINDS:
            return None
        name, star = self.pattern.removesuffix(EVERYTHING), self.pattern.endswith(EVERYTHING)
        if name.startswith(prefix):
            return self
        return CheckedRight(self.kind, prefix + EVERYTHING, self.action) if star and prefix.startswith(name) else None

    def covers(self, name: str) -> bool:
        """Whether the pattern says this name; ``*``, which is none, stands for every name there may be."""
        if name == EVERYTHING:
            return self.pattern == EVERYTHING
        if self.pattern.endswith(EVERYTHING):
            return name.startswith(self.pattern[:-1])
        return name == self.pattern

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.pattern}"


@dataclass(frozen=True, slots=True)
class Binding:
    """A role that a principal has, where ``prefix`` is given for names that begin with it alone."""

    role: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"role {self.role} on {self.prefix}*" if self.prefix else f"role {self.role}"


def _rights(*each: tuple[ResourceKind, Action]) -> tuple[CheckedRight, ...]:
    return tuple(CheckedRight(kind, EVERYTHING, action) for kind, action in each)


ADMIN: Final = "admin"
TENANT: Final = "tenant"
#: Roles that every cluster has.
BUILT_IN: Final[Mapping[str, tuple[CheckedRight, ...]]] = MappingProxyType(
    {
        ADMIN: _rights(*((kind, Action.ALL) for kind in ResourceKind)),
        "producer": _rights((ResourceKind.TOPIC, Action.WRITE), (ResourceKind.PRODUCER_GROUP, Action.WRITE)),
        "consumer": _rights((ResourceKind.TOPIC, Action.READ), (ResourceKind.GROUP, Action.READ)),
        "monitor": _rights(*((kind, Action.DESCRIBE) for kind in ResourceKind if kind is not ResourceKind.RIGHTS)),
        # All that is a tenant's own, who is told by the prefix of its names.
        TENANT: _rights(*((kind, Action.ALL) for kind in sorted(NAMED_KINDS))),
        # All that is in shards, to read it: see lsmq_node.api.access.
        "backup": _rights(
            (ResourceKind.TOPIC, Action.READ),
            (ResourceKind.GROUP, Action.READ),
            *(
                (kind, Action.DESCRIBE)
                for kind in (ResourceKind.PRODUCER_GROUP, ResourceKind.CLUSTER, ResourceKind.RIGHTS)
            ),
        ),
    }
)


def is_name(name: str) -> bool:
    """Of a principal or a role."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str, what: str) -> str:
    """Raises ``InvalidRequest`` where it is no name of a principal or a role."""
    if not is_name(name):
        raise InvalidRequest(
            f"{name[:80]!r} is no name of a {what}: use 1 to 128 letters, digits, '.', '_', '@' and '-', beginning "
            "with a letter or digit",
            field=what,
        )
    return name


def check_count(count: int, what: str) -> None:
    """Raises ``InvalidRequest``."""
    if count > MAX_RIGHTS:
        raise InvalidRequest(f"{count} {what} are over the limit of {MAX_RIGHTS}; use prefixes", limit=MAX_RIGHTS)


def needed(kind: ResourceKind, name: str, action: Action) -> str:
    """A right in words, as a refusal names it."""
    return f"{action} {kind} {name}" if kind in NAMED_KINDS else f"{action} {kind}"


def satisfies(given: Action, asked: Action) -> bool:
    return given in (asked, Action.ALL) or asked is Action.DESCRIBE


def allowing(rights: Iterable[CheckedRight], kind: ResourceKind, name: str, action: Action) -> CheckedRight | None:
    """The first right that allows it."""
    return next(
        (right for right in rights if right.kind is kind and satisfies(right.action, action) and right.covers(name)),
        None,
    )


def _one_of(kind: type[E], given: str, field: str) -> E:
    try:
        return kind(given)
    except ValueError:
        choices = ", ".join(kind)
        raise InvalidRequest(f"{given[:80]!r} is no {field}; it must be one of {choices}", field=field) from None
