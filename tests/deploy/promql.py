"""As much of PromQL as it takes to say which series an expression asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"\s+"
    r'|"(?:[^"\\]|\\.)*"'  # a label's value
    r"|\d+(?:\.\d+)?(?:[smhdw]\b)?"  # a number or a duration
    r"|[a-zA-Z_:][\w:]*"
    r"|[=!]~|[=!<>]=|[-+*/%=<>(){}\[\],:]"
)
_FUNCTIONS = re.compile(
    r"(?:abs|count|delta|deriv|histogram_quantile|increase|max|min|predict_linear|rate|sum|time|topk|vector)$"
)
_GROUPING = frozenset(("by", "on", "without", "ignoring"))
_WORDS = frozenset(("and", "or", "unless", "offset"))


@dataclass
class Asked:
    """What an expression asks for.

    Attributes:
        labels: by metric, those of its selectors.
        grouping: those by which results are grouped or joined.
    """

    labels: dict[str, set[str]] = field(default_factory=dict)
    grouping: set[str] = field(default_factory=set)


def asked(expression: str) -> Asked:
    """Fails for what it does not know: a function that is used for the first time is added above."""
    found, tokens = Asked(), list(_tokens(expression))
    at = 0
    while at < len(tokens):
        word, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if not re.match(r"[a-zA-Z_:]", word) or word in _WORDS or _FUNCTIONS.match(word):
            continue
        end = tokens.index({"{": "}", "(": ")"}[following], at) if following in ("{", "(") else at
        names = {each for each in tokens[at:end] if re.match(r"[a-zA-Z_]", each)}
        if word in _GROUPING:
            found.grouping |= names
        else:
            assert following != "(", f"{word} is no function that is known here"
            found.labels.setdefault(word, set()).update(names)
        at = end
    return found


def _tokens(expression: str) -> Iterator[str]:
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        assert match is not None, f"what is {expression[at : at + 20]!r}?"
        at = match.end()
        if match[0].strip():
            yield match[0]
