"""Filter expressions: the condition of a ``WHERE`` of SQL-92 over what a message has beside its body.

::

    expression  and-term ("OR" and-term)*
    and-term    not-term ("AND" not-term)*
    not-term    "NOT" not-term | "(" expression ")" | predicate
    predicate   operand ("=" | "<>" | "!=" | "<" | "<=" | ">" | ">=") operand
                operand ["NOT"] "BETWEEN" operand "AND" operand
                operand ["NOT"] "IN" "(" literal ("," literal)* ")"
                operand ["NOT"] "LIKE" text ["ESCAPE" text]
                operand "IS" ["NOT"] "NULL"
    operand     field | property | literal
    field       key | tag | type | priority | subpriority | stored_ms
    property    a name, such as region or order.total; or in quotes, "content-type"; with properties. before it where
                it is called as a field is
    literal     'text' | number

``priority``, ``subpriority`` and ``stored_ms`` are numbers, all else is text, and absent (NULL) where a message does
not have it. Text that is compared with a number is read as one; where it is none the comparison is unknown, as with
NULL: neither it nor its ``NOT`` matches. Keywords are of any case, names are not.

Not supported: arithmetic, functions, sub-queries, ``TRUE`` and ``FALSE``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from lsmq._like_pattern import LikePattern
from lsmq.errors import InvalidFilter

#: Characters of an expression.
MAX_FILTER_LENGTH: Final = 8_192
#: Parentheses and NOTs within one another.
MAX_FILTER_DEPTH: Final = 64

Value = str | int | float


class Field(Enum):
    """What a message has that is not a property."""

    KEY = "key"
    TAG = "tag"
    TYPE = "type"
    PRIORITY = "priority"
    SUBPRIORITY = "subpriority"
    STORED_MS = "stored_ms"


_NUMBERS: Final = frozenset({Field.PRIORITY, Field.SUBPRIORITY, Field.STORED_MS})


class Fields(NamedTuple):
    """A message, as an expression sees it. ``key`` is None for one that is not text, too."""

    key: str | None
    tag: str | None
    type: str | None
    priority: int
    subpriority: int
    stored_ms: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value


@dataclass(frozen=True, slots=True)
class FieldOf:
    field: Field


@dataclass(frozen=True, slots=True)
class Property:
    name: str


Operand = Literal | FieldOf | Property


@dataclass(frozen=True, slots=True)
class Compare:
    """``operator`` is one of = <> < <= > >=."""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class In:
    operand: Operand
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Like:
    operand: Operand
    pattern: LikePattern


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Operand


@dataclass(frozen=True, slots=True)
class Not:
    node: FilterNode


@dataclass(frozen=True, slots=True)
class All:
    nodes: tuple[FilterNode, ...]


@dataclass(frozen=True, slots=True)
class Any:
    nodes: tuple[FilterNode, ...]


FilterNode = Compare | In | Like | IsNull | Not | All | Any
Test = Callable[[Fields], bool | None]
"""True, False, or None for unknown."""

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
      | '(?P<text>(?:[^']|'')*)'
      | "(?P<quoted>(?:[^"]|"")+)"
      | (?P<name>[^\W\d][\w.]*)
      | (?P<sign><>|!=|<=|>=|[=<>(),])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*\Z")
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL"})
_COMPARISONS: Final = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PREFIX: Final = "properties."
#: With a sign: whole numbers of 128 bits, and so every id that is one, are what they are; longer ones are about that.
_WHOLE_DIGITS: Final = 40


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class Expression:
    """A parsed expression: its text, the tree, and whether a message meets it.

    Attributes:
        text: as it was given.
        node: the tree, for who answers it by columns.
        needs_header: whether it asks for anything beside ``priority``, ``subpriority`` and ``stored_ms``.
    """

    __slots__ = ("_test", "needs_header", "node", "text")

    def __init__(self, text: str) -> None:
        """Raises ``InvalidFilter`` naming the position of what is wrong."""
        self._mean(text, _Parser(text).parse())

    def _mean(self, text: str, node: FilterNode) -> None:
        self.text = text
        self.node = node
        self.needs_header = _needs_header(node)
        self._test = _test_of(node)

    def beside(self, other: Expression) -> Expression:
        """What is true of a message of which both are. It may be longer and deeper than one that is parsed."""
        both = Expression.__new__(Expression)
        both._mean(f"({self.text}) AND ({other.text})", All((self.node, other.node)))
        return both

    def matches(self, fields: Fields) -> bool:
        """Whether it is true of a message; what is unknown is not."""
        return self._test(fields) is True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


class _Parser:
    """Recursive descent: a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidFilter(f"filter is {text!r}; it must be text", field="filter", position=0)
        if len(text) > MAX_FILTER_LENGTH:
            raise InvalidFilter(
                f"filter has {len(text)} characters, the limit is {MAX_FILTER_LENGTH}; ask in parts",
                field="filter",
                position=MAX_FILTER_LENGTH,
                limit=MAX_FILTER_LENGTH,
            )
        self._text = text
        self._tokens = self._split()
        self._next = 0
        self._depth = 0

    def parse(self) -> FilterNode:
        if len(self._tokens) == 1:
            raise self._wrong("it is empty", self._tokens[0])
        node = self._any()
        if self._token.kind != "end":
            raise self._wrong(f"AND, OR or the end is expected, not {_shown(self._token)}")
        return node

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while True:
            found = _TOKEN.match(self._text, at)
            if found is None:
                while at < len(self._text) and self._text[at].isspace():
                    at += 1
                character = self._text[at]
                hint = " (it has no end)" if character in "'\"" else ""
                raise self._wrong(f"{character!r} does not begin anything{hint}", _Token("", character, at))
            kind = found.lastgroup or ""
            text, start = found[kind], found.end() - len(found[0].lstrip())
            if kind == "name" and text.upper() in _KEYWORDS:
                kind, text = "keyword", text.upper()
            tokens.append(_Token(kind, text, start))
            if kind == "end":
                return tokens
            at = found.end()

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _takes(self, *texts: str) -> str | None:
        token = self._token
        if token.kind in ("keyword", "sign") and token.text in texts:
            self._next += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._takes(text) is None:
            raise self._wrong(f"{text} is expected, not {_shown(self._token)}")

    def _wrong(self, what: str, token: _Token | None = None) -> InvalidFilter:
        at = (token or self._token).at
        return InvalidFilter(f"filter, at character {at + 1}: {what}", field="filter", position=at)

    def _any(self) -> FilterNode:
        nodes = [self._all()]
        while self._takes("OR"):
            nodes.append(self._all())
        return nodes[0] if len(nodes) == 1 else Any(tuple(nodes))

    def _all(self) -> FilterNode:
        nodes = [self._not()]
        while self._takes("AND"):
            nodes.append(self._not())
        return nodes[0] if len(nodes) == 1 else All(tuple(nodes))

    def _not(self) -> FilterNode:
        negated, nested = self._takes("NOT"), None if self._token.text != "(" else self._token
        if not negated and (nested is None or nested.kind != "sign"):
            return self._predicate()
        self._depth += 1
        if self._depth > MAX_FILTER_DEPTH:
            raise self._wrong(f"more than {MAX_FILTER_DEPTH} parentheses and NOTs within one another; say it flatter")
        if negated:
            node: FilterNode = Not(self._not())
        else:
            self._expect("(")
            node = self._any()
            self._expect(")")
        self._depth -= 1
        return node

    def _predicate(self) -> FilterNode:
        at = self._token
        left = self._operand()
        if sign := self._takes(*_COMPARISONS):
            return self._compare(_COMPARISONS[sign], left, self._operand(), at)
        if self._takes("IS"):
            negated = self._takes("NOT")
            self._expect("NULL")
            return Not(IsNull(left)) if negated else IsNull(left)
        negated = self._takes("NOT")
        node: FilterNode
        if self._takes("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            high = self._operand()
            node = All((self._compare(">=", left, low, at), self._compare("<=", left, high, at)))
        elif self._takes("IN"):
            node = self._in(left, at)
        elif self._takes("LIKE"):
            node = self._like(left, at)
        else:
            raise self._wrong(f"a comparison, BETWEEN, IN, LIKE or IS NULL is expected, not {_shown(self._token)}")
        return Not(node) if negated else node

    def _in(self, left: Operand, at: _Token) -> FilterNode:
        self._expect("(")
        values = []
        while True:
            token, value = self._token, self._operand()
            if not isinstance(value, Literal):
                raise self._wrong("IN takes texts and numbers only", token)
            self._compare("=", left, value, at)
            values.append(value.value)
            if not self._takes(","):
                break
        self._expect(")")
        return In(left, tuple(values))

    def _like(self, left: Operand, at: _Token) -> FilterNode:
        if is_number(left):
            raise self._wrong("LIKE is for text, and this is a number", at)
        pattern, escape = self._text_literal("LIKE"), ""
        if self._takes("ESCAPE"):
            token = self._token
            escape = self._text_literal("ESCAPE")
            if len(escape) != 1:
                raise self._wrong("ESCAPE takes one character", token)
        return Like(left, LikePattern.of(pattern, escape))

    def _text_literal(self, whose: str) -> str:
        token = self._take()
        if token.kind != "text":
            raise self._wrong(f"{whose} takes a text in single quotes, not {_shown(token)}", token)
        return token.text.replace("''", "'")

    def _compare(self, operator: str, left: Operand, right: Operand, at: _Token) -> FilterNode:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, FieldOf) and is_number(one) and isinstance(other, Literal) and _is_text(other):
                raise self._wrong(f"{one.field.value} is a number; compare it with one, without quotes", at)
        if isinstance(left, Literal) and not isinstance(right, Literal):
            return Compare(_MIRRORED[operator], right, left)
        return Compare(operator, left, right)

    def _operand(self) -> Operand:
        token = self._take()
        match token.kind:
            case "number":
                return Literal(_number(token.text))
            case "text":
                return Literal(token.text.replace("''", "'"))
            case "quoted":
                return Property(token.text.replace('""', '"'))
            case "name":
                return self._named(token)
        raise self._wrong(f"a name, a text or a number is expected, not {_shown(token)}", token)

    def _named(self, token: _Token) -> Operand:
        name = token.text
        if name == _PREFIX and self._token.kind == "quoted":
            return Property(self._take().text.replace('""', '"'))
        if name.endswith("."):
            raise self._wrong(f"the name {name!r} ends with a dot", token)
        if name.startswith(_PREFIX):
            return Property(name.removeprefix(_PREFIX))
        for field in Field:
            if name == field.value:
                return FieldOf(field)
        return Property(name)


def _shown(token: _Token) -> str:
    return "the end" if token.kind == "end" else repr(token.text)


def _number(text: str) -> int | float:
    stripped = text.strip()
    if stripped.lstrip("+-").isdigit() and len(stripped) <= _WHOLE_DIGITS:
        return int(stripped)
    return float(stripped)


def is_number(operand: Operand) -> bool:
    """Whether it is a number of every message, and never a text that is read as one."""
    if isinstance(operand, Literal):
        return not isinstance(operand.value, str)
    return isinstance(operand, FieldOf) and operand.field in _NUMBERS


def _is_text(operand: Operand) -> bool:
    return isinstance(operand, Literal) and isinstance(operand.value, str)


def _needs_header(node: FilterNode) -> bool:
    match node:
        case All(nodes) | Any(nodes):
            return any(map(_needs_header, nodes))
        case Not(inner):
            return _needs_header(inner)
        case Compare(_, left, right):
            return not (is_number(left) and is_number(right))
        case In(operand, _) | IsNull(operand) | Like(operand, _):
            return not is_number(operand)


# Evaluation: each node becomes a function once, so that a message costs calls and no look at the tree.


def _test_of(node: FilterNode) -> Test:
    match node:
        case All(nodes):
            return _unless(False, [_test_of(each) for each in nodes])
        case Any(nodes):
            return _unless(True, [_test_of(each) for each in nodes])
        case Not(inner):
            return _not_of(_test_of(inner))
        case IsNull(operand):
            get = _getter(operand)
            return lambda fields: get(fields) is None
        case Like(operand, pattern):
            return _like_of(_getter(operand), pattern)
        case In(operand, values):
            return _in_of(operand, values)
        case Compare(operator, left, right):
            return _compare_of(operator, left, right)


def _unless(decisive: bool, tests: list[Test]) -> Test:
    """``decisive`` where any is; else unknown where any is; else the other: AND for False, OR for True."""

    def test(fields: Fields) -> bool | None:
        known = True
        for each in tests:
            found = each(fields)
            if found is decisive:
                return decisive
            known = known and found is not None
        return not decisive if known else None

    return test


def _not_of(inner: Test) -> Test:
    def test(fields: Fields) -> bool | None:
        found = inner(fields)
        return None if found is None else not found

    return test


def _getter(operand: Operand) -> Callable[[Fields], Value | None]:
    match operand:
        case Literal(value):
            return lambda fields: value
        case Property(name):
            return lambda fields: _text_or_none(fields.properties.get(name))
        case FieldOf(field):
            place = tuple(Field).index(field)
            return lambda fields: fields[place]  # type: ignore[return-value]  # The properties come last.


def _text_or_none(value: object) -> str | None:
    """Of a property: nobody but its sender has looked whether it is text."""
    return value if isinstance(value, str) else None


def _like_of(get: Callable[[Fields], Value | None], pattern: LikePattern) -> Test:
    def test(fields: Fields) -> bool | None:
        value = get(fields)
        return None if value is None else pattern.matches(str(value))

    return test


def _as_number(value: Value | None) -> int | float | None:
    if isinstance(value, str):
        return _number(value) if _NUMBER.match(value) else None
    return value


def _in_of(operand: Operand, values: tuple[Value, ...]) -> Test:
    get = _getter(operand)
    texts = frozenset(value for value in values if isinstance(value, str))
    numbers = frozenset(value for value in values if not isinstance(value, str))

    def test(fields: Fields) -> bool | None:
        value = get(fields)
        if value is None:
            return None
        if value in texts:
            return True
        if not numbers:
            return False
        number = _as_number(value)
        return None if number is None else number in numbers

    return test


def _compare_of(operator: str, left: Operand, right: Operand) -> Test:
    get_left, get_right = _getter(left), _getter(right)
    numeric = is_number(left) or is_number(right)
    compare = _OPERATORS[operator]

    def test(fields: Fields) -> bool | None:
        one, other = get_left(fields), get_right(fields)
        if numeric:
            one, other = _as_number(one), _as_number(other)
        return None if one is None or other is None else compare(one, other)

    return test


_OPERATORS: Final[Mapping[str, Callable[[Value, Value], bool]]] = {
    "=": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "<": lambda one, other: one < other,  # type: ignore[operator]  # Both are text, or both numbers.
    "<=": lambda one, other: one <= other,  # type: ignore[operator]
    ">": lambda one, other: one > other,  # type: ignore[operator]
    ">=": lambda one, other: one >= other,  # type: ignore[operator]
}
