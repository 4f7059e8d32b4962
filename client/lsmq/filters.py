"""What a reader picks of a topic's messages: by tag, by type, and by an expression over what they have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lsmq.errors import InvalidRequest
from lsmq.filter_expressions import Expression, Fields
from lsmq.messages import Key, Message, RecordHeader, check_tag, check_type, split_priority

#: Tags, or types, of one filter.
MAX_FILTER_WORDS: Final = 256
#: Between several words in a query.
SEPARATOR: Final = "||"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A message passes that has one of ``tags``, one of ``types`` and meets ``expression``: what is not given, all do.

    The broker goes by hashes of tag and type, so a message of another word with the same hash may come through: whoever
    reads asks :meth:`passes` again, which looks at the words themselves.
    """

    tags: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    expression: Expression | None = None

    @classmethod
    def of(
        cls, tag: str | Iterable[str] | None, kind: str | Iterable[str] | None, filter: str | None
    ) -> MessageFilter | None:
        """None where nothing is given. Raises ``InvalidRequest``, ``InvalidFilter``."""
        if tag is None and kind is None and filter is None:
            return None
        expression = None if filter is None else Expression(filter)
        return cls(_words("tag", tag), _words("type", kind), expression)

    def passes(self, message: Message) -> bool:
        """Whether the words of a message that the broker let through are those that were meant."""
        return (not self.tags or message.tag in self.tags) and (not self.types or message.type in self.types)

    def takes(self, header: RecordHeader, priority: int, stored_ms: int) -> bool:
        """Whether a message is picked, as far as its words and properties say: all of it.

        ``priority`` is a :func:`.messages.priority_value`.
        """
        if (self.tags and header.tag not in self.tags) or (self.types and header.type not in self.types):
            return False
        if self.expression is None:
            return True
        first, second = split_priority(priority)
        return self.expression.matches(
            Fields(_text(header.key), header.tag, header.type, first, second, stored_ms, header.properties)
        )

    def to_dict(self) -> dict[str, Any]:
        """As requests have it."""
        fields: dict[str, Any] = {}
        if self.tags:
            fields["tag"] = sorted(self.tags)
        if self.types:
            fields["type"] = sorted(self.types)
        if self.expression is not None:
            fields["filter"] = self.expression.text
        return fields

    def to_query(self) -> dict[str, str]:
        """As query parameters have it. Raises ``InvalidRequest`` for a word that none can have."""
        fields = self.to_dict()
        for name in ("tag", "type"):
            if name in fields:
                if any(SEPARATOR in word or word != word.strip() or not word for word in fields[name]):
                    raise InvalidRequest(
                        f"{name} names a word with {SEPARATOR!r} or a blank at its end in it, or an empty one; say it "
                        f"in filter, such as {name} = 'word'",
                        field=name,
                    )
                fields[name] = f" {SEPARATOR} ".join(fields[name])
        return fields


def _text(key: Key | None) -> str | None:
    if not isinstance(key, bytes):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _words(name: str, given: str | Iterable[str] | None) -> frozenset[str]:
    if given is None:
        return frozenset()
    words = (given,) if isinstance(given, str) else tuple(given)
    if not 1 <= len(words) <= MAX_FILTER_WORDS:
        raise InvalidRequest(
            f"{name} names {len(words)}; it must name 1 to {MAX_FILTER_WORDS}, or be left out",
            field=name,
            limit=MAX_FILTER_WORDS,
        )
    for word in words:
        if word == "":
            raise InvalidRequest(f"{name} names an empty word; say {name} = '' or {name} IS NULL in filter", field=name)
        (check_tag if name == "tag" else check_type)(word)
    return frozenset(words)
