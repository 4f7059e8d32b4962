"""The options that a user gave, taken one by one and by type. What nobody took in the end is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from lsmq.topics import parse_ranges
from lsmq_pipeline.errors import InvalidOption

T = TypeVar("T")

#: What Spark itself puts among the options.
_OF_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode", "header"})
#: What it puts there of ``load("here")``, ``save("here")`` and ``start("here")``.
_PATHS = ("path", "paths")

TIME = "milliseconds since 1970, or a time with its zone such as 2013-07-01T00:00:00Z or 2013-07-01T09:00:00+09:00"
DURATION = "milliseconds, or a number and its unit such as 500ms, 30s, 15m, 2h or 1d"
VALUES = 'one value, or a JSON array of values such as ["a", "b"] (values may hold commas)'
QUEUES = "queues and ranges such as 0-99,200"
QUEUES_BY_TOPIC = 'an object of topics and their queues such as {"orders": [0, 1, "10-99"]}'

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TIME_MS = 1 << 53
MAX_NUMBER = (1 << 63) - 1  # Spark's, too
_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Given:
    """Options by name, whatever their case.

    ``aliases`` are other names of ours, and ``remedy`` says of one that is unknown what to do instead, if it knows.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        aliases: Mapping[str, str] | None = None,
        remedy: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        self._given: dict[str, str] = {}
        self._remedy = remedy
        for name, value in options.items():
            own = (aliases or {}).get(name.lower(), name)
            if own.lower() in self._given:
                raise InvalidOption(f"option {name} is given by another name as well ({own}); give one", option=own)
            self._given[own.lower()] = value
        self._known: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        self._known[name.lower()] = name
        value = self._given.get(name.lower())
        return value.strip() if value is not None else None

    def parsed(self, name: str, parse: Callable[[str], T], expected: str, *, strip: bool = True) -> T | None:
        text = self.text(name)
        if text is None:
            return None
        if not strip:
            text = self._given[name.lower()]
        try:
            return parse(text)
        except (ValueError, KeyError, OverflowError) as error:
            raise InvalidOption(f"option {name} is {text!r}; it must be {expected}", option=name) from error

    def number(self, name: str, default: int, low: int = 1) -> int:
        value = self.parsed(name, int, f"a whole number of at least {low}")
        if value is None:
            return default
        if value < low:
            raise InvalidOption(f"option {name} is {value}; it must be at least {low}", option=name)
        if value > MAX_NUMBER:
            raise InvalidOption(f"option {name} is {value}; it must be at most {MAX_NUMBER}", option=name)
        return value

    def count(self, name: str) -> int | None:
        """A whole number of at least 1, None where it is not given."""
        return None if self.text(name) is None else self.number(name, 1)

    def switch(self, name: str, default: bool) -> bool:
        value = self.parsed(name, lambda text: {"true": True, "false": False}[text.lower()], "true or false")
        return default if value is None else value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise InvalidOption(f"option {name} is {text!r}; it must be one of {', '.join(choices)}", option=name)
        return text.lower()

    def at_most_one(self, names: Sequence[str]) -> None:
        """Raises ``InvalidOption`` where several of these are given, of which all but one would count for nothing."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise InvalidOption(f"options {' and '.join(given)} say the same thing twice; give one", option=given[1])

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raises ``InvalidOption`` for one that means nothing here."""
        for name in names:
            if name in self:
                raise InvalidOption(f"option {name} {why}", option=name)

    def check_all_known(self, what: str) -> None:
        for name in _PATHS:
            if name in self:
                raise InvalidOption(
                    f"there are no paths for {what}, and {self._given[name]!r} is one: say option topic, and call "
                    "load(), save() or start() without any",
                    option=name,
                )
        unknown = sorted(self._given.keys() - self._known.keys() - _OF_SPARK)
        if not unknown:
            return
        remedy = self._remedy(unknown[0])
        if remedy is not None:
            raise InvalidOption(f"there is no option {unknown[0]} for {what}: {remedy}", option=unknown[0])
        raise InvalidOption(
            f"there is no option {', '.join(unknown)} for {what}; there are: {', '.join(self._known.values())}",
            option=unknown[0],
        )


def parse_time(text: str) -> int:
    """Milliseconds since 1970 from such a number or from ISO 8601; 0 for times before, when nothing was stored.

    A time must name its zone: the session's is not told to a data source, and the driver's is another one.
    """
    if re.fullmatch(r"-?\d+", text):
        if int(text) > MAX_TIME_MS:
            raise ValueError(f"{text} is more than {MAX_TIME_MS}")
        return max(0, int(text))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no zone")
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def parse_duration_ms(text: str) -> int:
    """Milliseconds from a number with or without a unit, as Spark takes it."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if found is None:
        raise ValueError(text)
    return int(found[1]) * _UNITS_MS[found[2]]


def parse_pattern(text: str) -> str:
    """The text, if it is a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error
    return text


def parse_queues(text: str) -> tuple[range, ...]:
    """Ranges of queues, as a user writes them."""
    return tuple(parse_ranges(text))


def parse_queues_by_topic(text: str) -> dict[str, tuple[range, ...]]:
    """Ranges of queues of each topic, of an object of arrays of numbers and of texts such as ``10-99``."""
    found: dict[str, tuple[range, ...]] = {}
    for topic, queues in json_object(text).items():
        if not isinstance(queues, list) or not queues:
            raise ValueError(f"the queues of topic {topic!r} are not an array")
        parts = [part for queue in queues for part in parse_ranges(_queue_text(queue))]
        found[topic] = tuple(parts)
    if not found:
        raise ValueError("it names no topic")
    return found


def _queue_text(queue: Any) -> str:
    if type(queue) is not int and not isinstance(queue, str):
        raise ValueError(f"{queue!r} is neither a queue nor a range of queues")
    return str(queue)


def parse_values(text: str) -> tuple[str, ...]:
    """A JSON array of values, or one value to the letter. A text with a comma could be several, and is refused."""
    if text.lstrip().startswith("["):
        values = json.loads(text)
        if not values or not all(isinstance(value, str) for value in values):
            raise ValueError("not an array of texts")
        return tuple(values)
    if not text or "," in text:
        raise ValueError("several values, or one with a comma")
    return (text,)


def json_object(text: str) -> dict[str, Any]:
    """The object that this JSON is. Raises ``ValueError``."""
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("it is not an object")
    return given
