"""Options of the data source: what a user writes, checked and typed.

Names are compared without regard to case, as Spark does, and are those of Spark's Kafka source where they mean the
same. Unknown ones are refused: a misspelt option that is silently ignored is found out at the worst moment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from lsmq.topics import parse_ranges
from lsmq_pipeline.errors import InvalidOption

T = TypeVar("T")

#: What Spark itself puts among the options.
_OF_SPARK = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode", "header"})

#: What Spark's Kafka source calls options of a read that mean the same here.
_OF_KAFKA = {
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
}

READ_FROM = ("follower", "leader", "any")


@dataclass(frozen=True, slots=True)
class Connection:
    """How to find the cluster; picklable, since tasks connect by themselves."""

    url: str
    zookeeper: str
    cluster: str | None
    deadline_ms: int
    request_timeout_ms: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Of a read, batch or streaming. ``docs/pipeline.md`` says what each means."""

    connection: Connection
    topics: tuple[str, ...]
    topic_pattern: str | None
    starting_offsets: str
    ending_offsets: str
    starting_ms: int | None
    ending_ms: int | None
    queues: tuple[range, ...] | None
    keys: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    min_partitions: int
    max_messages_per_partition: int
    max_bytes_per_partition: int
    preserve_order: bool
    max_messages_per_trigger: int | None
    fail_on_data_loss: bool
    include_properties: bool
    include_headers: bool
    binary_keys: bool
    read_from: str
    read_node: str | None
    group: str | None
    fetch_bytes: int

    @property
    def what(self) -> str:
        return ", ".join(self.topics) if self.topics else f"pattern {self.topic_pattern}"

    def asks_for(self, topic: str) -> bool:
        """Whether a topic of this name is to be read."""
        return topic in self.topics or bool(self.topic_pattern and re.fullmatch(self.topic_pattern, topic))


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Of a write, batch or streaming."""

    connection: Connection
    topic: str | None
    ack: str | None
    query_id: str | None
    batch_bytes: int
    batch_messages: int
    compression: str


class _Given:
    """The options a user gave, taken one by one; what is left over in the end is unknown."""

    def __init__(self, options: Mapping[str, str], aliases: Mapping[str, str] | None = None) -> None:
        self._given: dict[str, str] = {}
        for name, value in options.items():
            own = (aliases or {}).get(name.lower(), name)
            if own.lower() in self._given:
                raise InvalidOption(f"option {name} is given by another name as well ({own}); give one", option=own)
            self._given[own.lower()] = value
        self._known: dict[str, str] = {}

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
        except (ValueError, KeyError) as error:
            raise InvalidOption(f"option {name} is {text!r}; it must be {expected}", option=name) from error

    def number(self, name: str, default: int, low: int = 1) -> int:
        value = self.parsed(name, int, f"a whole number of at least {low}")
        if value is None:
            return default
        if value < low:
            raise InvalidOption(f"option {name} is {value}; it must be at least {low}", option=name)
        return value

    def switch(self, name: str, default: bool) -> bool:
        value = self.parsed(name, lambda text: {"true": True, "false": False}[text.lower()], "true or false")
        return default if value is None else value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise InvalidOption(f"option {name} is {text!r}; it must be one of {', '.join(choices)}", option=name)
        return text.lower()

    def check_all_known(self, what: str) -> None:
        unknown = sorted(self._given.keys() - self._known.keys() - _OF_SPARK)
        if unknown:
            raise InvalidOption(
                f"there is no option {', '.join(unknown)} for {what}; there are: {', '.join(self._known.values())}",
                option=unknown[0],
            )


def read_options(options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """The options of a read. Raises :class:`InvalidOption`."""
    given = _Given(options, _OF_KAFKA)
    topics = tuple(name.strip() for name in (given.text("topic") or "").split(",") if name.strip())
    pattern = given.parsed("topicPattern", _pattern, "a regular expression")
    if bool(topics) == (pattern is not None):
        raise InvalidOption("give either option topic (several separated by commas) or option topicPattern")
    read = ReadOptions(
        connection=_connection(given),
        topics=topics,
        topic_pattern=pattern,
        starting_offsets=given.text("startingOffsets") or ("latest" if streaming else "earliest"),
        ending_offsets=given.text("endingOffsets") or "latest",
        starting_ms=given.parsed("startingTimestamp", parse_time, _TIME),
        ending_ms=given.parsed("endingTimestamp", parse_time, _TIME),
        queues=given.parsed("queues", _ranges, "queues and ranges such as 0-99,200"),
        keys=given.parsed("keys", _values, _VALUES, strip=False),
        tags=given.parsed("tags", _values, _VALUES, strip=False),
        min_partitions=given.number("minPartitions", 1),
        max_messages_per_partition=given.number("maxMessagesPerPartition", 1_000_000),
        max_bytes_per_partition=given.number("maxBytesPerPartition", 64 << 20),
        preserve_order=given.switch("preserveOrder", True),
        max_messages_per_trigger=given.parsed("maxMessagesPerTrigger", _positive, "a whole number of at least 1"),
        fail_on_data_loss=given.switch("failOnDataLoss", True),
        include_properties=given.switch("includeProperties", True),
        include_headers=given.switch("includeHeaders", False),
        binary_keys=given.switch("binaryKeys", False),
        read_from=given.choice("readFrom", READ_FROM, "follower"),
        read_node=given.text("readNode") or None,
        group=given.text("group") or None,
        fetch_bytes=given.number("fetchBytes", 8 << 20, 1 << 10),
    )
    given.check_all_known("reading")
    if streaming and (read.ending_ms is not None or given.text("endingOffsets")):
        raise InvalidOption("a stream has no end: leave out endingOffsets and endingTimestamp", option="endingOffsets")
    if read.starting_offsets == "latest" and not streaming:
        raise InvalidOption(
            "startingOffsets of a batch cannot be latest: nothing would be read", option="startingOffsets"
        )
    if read.ending_offsets == "earliest":
        raise InvalidOption("endingOffsets cannot be earliest: nothing would be read", option="endingOffsets")
    return read


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. Raises :class:`InvalidOption`."""
    given = _Given(options)
    write = WriteOptions(
        connection=_connection(given),
        topic=given.text("topic") or None,
        ack=given.choice("ack", ("quorum", "leader", ""), "") or None,
        query_id=given.text("queryId") or None,
        batch_bytes=given.number("batchBytes", 1 << 20),
        batch_messages=given.number("batchMessages", 10_000),
        compression=given.choice("compression", ("none", "zstd"), "none"),
    )
    given.check_all_known("writing")
    return write


def _connection(given: _Given) -> Connection:
    return Connection(
        url=given.text("url") or "",
        zookeeper=given.text("zookeeper") or "",
        cluster=given.text("cluster") or None,
        deadline_ms=given.number("deadlineMs", 60_000),
        request_timeout_ms=given.number("requestTimeoutMs", 20_000),
    )


_TIME = "milliseconds since 1970, or a time with its zone such as 2013-07-01T00:00:00Z or 2013-07-01T09:00:00+09:00"
_VALUES = 'one value, or a JSON array of values such as ["a", "b"] (values may hold commas)'
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> int:
    """Milliseconds since 1970 from such a number or from ISO 8601; 0 for times before, when nothing was stored.

    A time must name its zone: the session's is not told to a data source, and the driver's is another one.
    """
    if re.fullmatch(r"-?\d+", text):
        return max(0, int(text))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no zone")
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error
    return text


def _ranges(text: str) -> tuple[range, ...]:
    return tuple(parse_ranges(text))


def _values(text: str) -> tuple[str, ...]:
    """A JSON array of values, or one value to the letter. A text with a comma could be several, and is refused."""
    if text.lstrip().startswith("["):
        values = json.loads(text)
        if not values or not all(isinstance(value, str) for value in values):
            raise ValueError("not an array of texts")
        return tuple(values)
    if not text or "," in text:
        raise ValueError("several values, or one with a comma")
    return (text,)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def as_options(values: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark wants them: text, without those that are None."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }
