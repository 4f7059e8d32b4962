"""What a request picks of the messages: ``tag``, ``type`` and ``filter``, in bodies and in queries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from lsmq.filter_expressions import MAX_FILTER_LENGTH
from lsmq.filters import MAX_FILTER_WORDS, SEPARATOR, MessageFilter

from .routing import Parameter
from .schema import Schema, list_of, text

#: Filters of no more characters than this are parsed once: who reads with one asks again and again.
_KEPT_LENGTH: Final = 1_024
_KEPT: Final = 128
_EXPRESSION = text(
    "Only messages that meet this condition: that of a WHERE of SQL-92 over key, tag, type, priority, stored_ms and "
    "properties.",
    null=True,
    minLength=1,
    maxLength=MAX_FILTER_LENGTH,
)


def _words(name: str) -> Schema:
    return {
        "anyOf": [
            text(null=True, minLength=1),
            list_of(text(minLength=1), minItems=1, maxItems=MAX_FILTER_WORDS),
        ],
        "description": f"Only messages with this {name}, or one of these.",
    }


#: Of bodies.
FILTER_FIELDS: Final[dict[str, Schema]] = {"tag": _words("tag"), "type": _words("type"), "filter": _EXPRESSION}
#: Of queries.
FILTER_PARAMETERS: Final = (
    Parameter("tag", text(minLength=1), "Only messages with this tag, or one of several with `||` between them."),
    Parameter("type", text(minLength=1), "Only messages of this type, or one of several with `||` between them."),
    Parameter("filter", _EXPRESSION, "Only messages that meet this condition."),
)


def filter_of(fields: Mapping[str, Any]) -> MessageFilter | None:
    """What a checked body picks; None for everything. Raises ``InvalidFilter``, ``InvalidRequest``."""
    tag, kind, expression = fields.get("tag"), fields.get("type"), fields.get("filter")
    if tag is None and kind is None and expression is None:
        return None
    parsed = _hashable(tag), _hashable(kind), expression
    length = sum(len("".join(each)) for each in parsed if each is not None)
    return _parsed(*parsed) if length <= _KEPT_LENGTH else MessageFilter.of(*parsed)


def filter_of_query(query: Mapping[str, Any]) -> MessageFilter | None:
    """What a query picks; None for everything. Raises ``InvalidFilter``, ``InvalidRequest``."""
    return filter_of({**query, "tag": _split(query.get("tag")), "type": _split(query.get("type"))})


def _split(words: str | None) -> list[str] | None:
    return None if words is None else [word.strip() for word in words.split(SEPARATOR)]


def _hashable(words: str | list[str] | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    return words if words is None or isinstance(words, str) else tuple(words)


@lru_cache(_KEPT)
def _parsed(
    tag: str | tuple[str, ...] | None, kind: str | tuple[str, ...] | None, expression: str | None
) -> MessageFilter | None:
    return MessageFilter.of(tag, kind, expression)
